//! Runs a template.

mod calls;
mod expressions;
mod statements;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::SystemTime;

use super::ast::{Sym, Template};
use super::budget::{self, Buffer, Charge};
use super::fail::{Res, fail};
use super::scope::Scope;
use super::value::{Function, Loop, Namespace, Value};

/// Expressions, blocks and macros in each other, as they run. A level takes at most 8 KiB of the
/// 16 MiB of a known stack.
const DEPTH_MAX: usize = 1500;
/// The longest range, as the sandbox has it.
const RANGE_MAX: i128 = 100_000;
/// Bytes that a name and a text of the template take, and an element while others are computed.
const NAME_BYTES: usize = 32;
const TEXT_BYTES: usize = 48;
const ELEMENT_BYTES: usize = 32;

/// How a statement ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    Next,
    Break,
    Continue,
}

/// Renders a template with these variables. `now` is what the date is taken for.
pub(super) fn render(
    template: &Template,
    variables: Vec<(String, Value)>,
    now: SystemTime,
) -> Res<String> {
    let (names, texts) = (template.names.len(), template.texts.len());
    let _charge = Charge::new(NAME_BYTES * names + TEXT_BYTES * texts)?;
    let mut variables: HashMap<String, Value> = variables.into_iter().collect();
    let context = template.names.iter().map(|name| {
        let function = || Function::named(name).map(Value::Function);
        variables.remove(name).or_else(function)
    });
    let context = context.collect();
    let root = Scope::new(None)?;
    let number = |name: &str| {
        template
            .names
            .iter()
            .position(|n| n == name)
            .map(|at| at as Sym)
    };
    let machine = Machine {
        template,
        context,
        special: ["loop", "caller", "kwargs", "varargs"].map(number),
        root: root.clone(),
        texts: template.texts.iter().map(|_| RefCell::new(None)).collect(),
        depth: Cell::new(0),
        now,
        scopes: RefCell::default(),
        namespaces: RefCell::default(),
        changed_loops: RefCell::default(),
    };
    let mut out = Buffer::default();
    let ended = machine.body(&template.body, &root, &mut out);
    machine.forget();
    ended?;
    Ok(out.into_parts().0)
}

struct Machine<'t> {
    template: &'t Template,
    /// Arguments and functions, by the number of their names.
    context: Vec<Option<Value>>,
    root: Rc<Scope>,
    /// The numbers of `loop`, `caller`, `kwargs` and `varargs`, where the template has them.
    special: [Option<Sym>; 4],
    /// Texts of the template, as values once they are needed.
    texts: Vec<RefCell<Option<Value>>>,
    depth: Cell<usize>,
    now: SystemTime,
    /// What may hold itself through what it holds.
    scopes: RefCell<Vec<Rc<Scope>>>,
    namespaces: RefCell<Vec<Rc<Namespace>>>,
    changed_loops: RefCell<Vec<Rc<Loop>>>,
}

impl Machine<'_> {
    /// Takes apart what holds itself.
    fn forget(&self) {
        self.root.clear();
        for scope in self.scopes.borrow().iter() {
            scope.clear();
        }
        for namespace in self.namespaces.borrow().iter() {
            let fields = namespace.fields.take();
            drop(fields);
        }
        for state in self.changed_loops.borrow().iter() {
            let changed = state.changed.take();
            drop(changed);
        }
    }

    fn name(&self, name: Sym) -> &str {
        self.template
            .names
            .get(name as usize)
            .map_or("", String::as_str)
    }

    fn text_value(&self, number: Sym) -> Res<Value> {
        let Some(slot) = self.texts.get(number as usize) else {
            return fail("a text is missing");
        };
        if let Some(value) = &*slot.borrow() {
            return Ok(value.clone());
        }
        let value = Value::text(self.template.texts[number as usize].as_str())?;
        slot.replace(Some(value.clone()));
        Ok(value)
    }

    /// One level deeper, and a step.
    fn deeper<T>(&self, work: impl FnOnce() -> Res<T>) -> Res<T> {
        budget::steps(1)?;
        let depth = self.depth.get();
        if depth >= DEPTH_MAX {
            return fail("maximum recursion depth exceeded");
        }
        self.depth.set(depth + 1);
        let result = work();
        self.depth.set(depth);
        result
    }
}
