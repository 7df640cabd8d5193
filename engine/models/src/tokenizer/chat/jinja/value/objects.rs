//! Objects of jinja2: namespaces, macros, loops, and what its functions make.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use super::super::ast;
use super::super::budget::{self, Charge};
use super::super::fail::Res;
use super::super::scope::Scope;
use super::{ENTRY_BYTES, LONG_NAME, OBJECT_BYTES, Seq, Value, depth_above};

pub(in super::super) struct Namespace {
    pub(in super::super) fields: RefCell<Vec<(Rc<str>, Value)>>,
    charge: RefCell<Charge>,
}

pub(in super::super) struct Macro {
    pub(in super::super) definition: Arc<ast::Macro>,
    pub(in super::super) name: Option<Rc<str>>,
    pub(in super::super) scope: Rc<Scope>,
    _charge: Charge,
}

pub(in super::super) struct Loop {
    pub(in super::super) items: Rc<Seq>,
    pub(in super::super) index: Cell<usize>,
    pub(in super::super) depth: usize,
    /// What `changed` was called with. It may hold any loop, this one too: whoever calls it keeps
    /// the loop until the end.
    pub(in super::super) changed: RefCell<Option<Vec<Value>>>,
    /// The loop and the scope around it, where it is recursive. Whoever makes it keeps the scope
    /// until the end.
    pub(in super::super) again: Option<(Arc<ast::For>, Rc<Scope>)>,
    _charge: Charge,
}

impl Loop {
    pub(in super::super) fn new(
        items: Rc<Seq>,
        depth: usize,
        again: Option<(Arc<ast::For>, Rc<Scope>)>,
    ) -> Res<Rc<Self>> {
        Ok(Rc::new(Self {
            items,
            index: Cell::new(0),
            depth,
            changed: RefCell::default(),
            again,
            _charge: Charge::new(OBJECT_BYTES)?,
        }))
    }
}

impl Macro {
    pub(in super::super) fn new(
        definition: Arc<ast::Macro>,
        name: Option<&str>,
        scope: Rc<Scope>,
    ) -> Res<Rc<Self>> {
        Ok(Rc::new(Self {
            definition,
            name: name.map(Into::into),
            scope,
            _charge: Charge::new(OBJECT_BYTES + name.map_or(0, str::len))?,
        }))
    }
}

pub(in super::super) struct Cycler {
    pub(in super::super) items: Rc<Seq>,
    pub(in super::super) at: Cell<usize>,
}

impl Cycler {
    pub(in super::super) fn new(items: Vec<Value>) -> Res<Rc<Self>> {
        Ok(Rc::new(Self {
            items: Seq::new(items)?,
            at: Cell::new(0),
        }))
    }
}

pub(in super::super) struct Joiner {
    pub(in super::super) separator: Value,
    pub(in super::super) used: Cell<bool>,
    _charge: Charge,
}

impl Joiner {
    pub(in super::super) fn new(separator: Value) -> Res<Rc<Self>> {
        // It may be in a separator itself.
        depth_above([&separator].into_iter())?;
        Ok(Rc::new(Self {
            separator,
            used: Cell::new(false),
            _charge: Charge::new(OBJECT_BYTES)?,
        }))
    }
}

/// The functions that templates can call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Function {
    Range,
    Dict,
    Namespace,
    Cycler,
    Joiner,
    Lipsum,
    RaiseException,
    StrftimeNow,
}

impl Function {
    pub(in super::super) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "range" => Self::Range,
            "dict" => Self::Dict,
            "namespace" => Self::Namespace,
            "cycler" => Self::Cycler,
            "joiner" => Self::Joiner,
            "lipsum" => Self::Lipsum,
            "raise_exception" => Self::RaiseException,
            "strftime_now" => Self::StrftimeNow,
            _ => return None,
        })
    }
}

impl Namespace {
    /// Pays for looking at each field's name, and for the bytes of those that are as long as this.
    fn pay_search(fields: &[(Rc<str>, Value)], name: &str) -> Res<()> {
        budget::steps(fields.len() / 8)?;
        if name.len() < LONG_NAME {
            return Ok(());
        }
        let mut alike = fields.iter().filter(|(n, _)| n.len() == name.len());
        alike.try_for_each(|(n, _)| budget::bytes(n.len()))
    }

    pub(in super::super) fn new() -> Res<Rc<Self>> {
        Ok(Rc::new(Self {
            fields: RefCell::default(),
            charge: RefCell::new(Charge::new(OBJECT_BYTES)?),
        }))
    }

    pub(in super::super) fn get(&self, name: &str) -> Res<Option<Value>> {
        let fields = self.fields.borrow();
        Self::pay_search(&fields, name)?;
        let found = fields.iter().find(|(n, _)| **n == *name);
        Ok(found.map(|(_, value)| value.clone()))
    }

    pub(in super::super) fn set(&self, name: &str, value: Value) -> Res<()> {
        let mut fields = self.fields.borrow_mut();
        budget::steps(1)?;
        Self::pay_search(&fields, name)?;
        match fields.iter_mut().find(|(n, _)| **n == *name) {
            Some((_, old)) => {
                let old = std::mem::replace(old, value);
                drop(fields);
                drop(old);
            }
            None => {
                self.charge.borrow_mut().grow(ENTRY_BYTES + name.len())?;
                fields.push((name.into(), value));
            }
        }
        Ok(())
    }
}
