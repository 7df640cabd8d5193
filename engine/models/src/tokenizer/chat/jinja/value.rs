//! Python's values, as far as templates have them.
//!
//! Lists and dictionaries never change, as in jinja2's immutable sandbox. Only namespaces do.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use super::ast;
use super::budget::{self, Buffer, Charge};
use super::fail::{Res, fail};
use super::scope::Scope;

/// Lists, tuples and dictionaries in each other.
const DEPTH_MAX: usize = 200;
/// Bytes that an element takes in its list, and an entry in its dictionary.
const ELEMENT_BYTES: usize = 48;
const ENTRY_BYTES: usize = 128;
/// Bytes that a value takes which is neither a text nor a list.
const OBJECT_BYTES: usize = 128;
/// Bytes of a name that are more than looking at it pays for.
const LONG_NAME: usize = 64;
/// Dictionaries of more entries have an index.
const SEARCHED_MAX: usize = 8;

#[derive(Clone)]
pub(super) enum Value {
    /// With what to say when it is used.
    Undefined(Rc<Message>),
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(Rc<Text>),
    List(Rc<Seq>),
    Tuple(Rc<Seq>),
    Dict(Rc<Dict>),
    Range(Rc<Range>),
    /// `dict.keys()` and its like.
    View(View, Rc<Dict>),
    /// What can be gone through once.
    Iterator(Rc<Iter>),
    Namespace(Rc<Namespace>),
    Macro(Rc<Macro>),
    Loop(Rc<Loop>),
    Cycler(Rc<Cycler>),
    Joiner(Rc<Joiner>),
    Function(Function),
    /// A method of a value.
    Method(Rc<(Value, &'static str, Charge)>),
}

/// What to say when an undefined value is used.
pub(super) struct Message {
    text: Box<str>,
    _charge: Charge,
}

impl From<&Message> for String {
    fn from(message: &Message) -> Self {
        message.text.as_ref().to_owned()
    }
}

pub(super) struct Text {
    text: String,
    /// Whether each character is a byte.
    is_ascii: bool,
    /// Whether it is HTML, which what is added to it is escaped for.
    is_markup: bool,
    _charge: Charge,
}

pub(super) struct Seq {
    pub(super) items: Vec<Value>,
    depth: usize,
    /// Whether it is a group of `groupby`, whose parts have names.
    pub(super) is_group: bool,
    _charge: Charge,
}

pub(super) struct Dict {
    entries: Vec<(Value, Value)>,
    index: Option<HashMap<u64, Vec<usize>>>,
    depth: usize,
    charge: Charge,
}

pub(super) struct Iter {
    left: RefCell<VecDeque<Value>>,
    depth: usize,
    _charge: Charge,
}

pub(super) struct Range {
    pub(super) start: i128,
    pub(super) step: i128,
    pub(super) len: usize,
    /// As it is written.
    pub(super) stop: i128,
    _charge: Charge,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum View {
    Keys,
    Values,
    Items,
}

pub(super) struct Namespace {
    pub(super) fields: RefCell<Vec<(Rc<str>, Value)>>,
    charge: RefCell<Charge>,
}

pub(super) struct Macro {
    pub(super) definition: Arc<ast::Macro>,
    pub(super) name: Option<Rc<str>>,
    pub(super) scope: Rc<Scope>,
    _charge: Charge,
}

pub(super) struct Loop {
    pub(super) items: Rc<Seq>,
    pub(super) index: Cell<usize>,
    pub(super) depth: usize,
    /// What `changed` was called with. It may hold any loop, this one too: whoever calls it keeps
    /// the loop until the end.
    pub(super) changed: RefCell<Option<Vec<Value>>>,
    /// The loop and the scope around it, where it is recursive. Whoever makes it keeps the scope
    /// until the end.
    pub(super) again: Option<(Arc<ast::For>, Rc<Scope>)>,
    _charge: Charge,
}

impl Loop {
    pub(super) fn new(
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
    pub(super) fn new(
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

pub(super) struct Cycler {
    pub(super) items: Rc<Seq>,
    pub(super) at: Cell<usize>,
}

impl Cycler {
    pub(super) fn new(items: Vec<Value>) -> Res<Rc<Self>> {
        Ok(Rc::new(Self {
            items: Seq::new(items)?,
            at: Cell::new(0),
        }))
    }
}

pub(super) struct Joiner {
    pub(super) separator: Value,
    pub(super) used: Cell<bool>,
    _charge: Charge,
}

impl Joiner {
    pub(super) fn new(separator: Value) -> Res<Rc<Self>> {
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
pub(super) enum Function {
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
    pub(super) fn named(name: &str) -> Option<Self> {
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

impl Text {
    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    /// Number of characters.
    pub(super) fn len(&self) -> Res<usize> {
        if self.is_ascii {
            return Ok(self.text.len());
        }
        budget::bytes(self.text.len())?;
        Ok(self.text.chars().count())
    }

    pub(super) fn is_markup(&self) -> bool {
        self.is_markup
    }

    pub(super) fn is_ascii(&self) -> bool {
        self.is_ascii
    }
}

impl Seq {
    pub(super) fn new(items: Vec<Value>) -> Res<Rc<Self>> {
        Self::make(items, false)
    }

    pub(super) fn make(items: Vec<Value>, is_group: bool) -> Res<Rc<Self>> {
        budget::steps(items.len() / 4)?;
        let depth = depth_above(items.iter())?;
        let _charge = Charge::new(ELEMENT_BYTES * (items.len() + 2))?;
        Ok(Rc::new(Self {
            items,
            depth,
            is_group,
            _charge,
        }))
    }
}

/// The depth of what holds `values`.
fn depth_above<'a>(values: impl Iterator<Item = &'a Value>) -> Res<usize> {
    let depth = 1 + values.map(Value::depth).max().unwrap_or(0);
    if depth > DEPTH_MAX {
        return fail(format!("values are nested more than {DEPTH_MAX} deep"));
    }
    Ok(depth)
}

impl Dict {
    pub(super) fn new() -> Res<Self> {
        Ok(Self {
            entries: Vec::new(),
            index: None,
            depth: 1,
            charge: Charge::new(OBJECT_BYTES)?,
        })
    }

    pub(super) fn of(entries: impl IntoIterator<Item = (Value, Value)>) -> Res<Rc<Self>> {
        let mut dict = Self::new()?;
        for (key, value) in entries {
            dict.insert(key, value)?;
        }
        Ok(Rc::new(dict))
    }

    pub(super) fn insert(&mut self, key: Value, value: Value) -> Res<()> {
        budget::steps(1)?;
        self.depth = self.depth.max(depth_above([&key, &value].into_iter())?);
        let hash = super::ops::hash(&key)?;
        if let Some(at) = self.position(&key, hash)? {
            self.entries[at].1 = value;
            return Ok(());
        }
        self.charge.grow(ENTRY_BYTES)?;
        let at = self.entries.len();
        self.entries.push((key, value));
        if let Some(index) = &mut self.index {
            index.entry(hash).or_default().push(at);
        } else if self.entries.len() > SEARCHED_MAX {
            let mut index: HashMap<u64, Vec<usize>> = HashMap::new();
            for (at, (key, _)) in self.entries.iter().enumerate() {
                index.entry(super::ops::hash(key)?).or_default().push(at);
            }
            self.index = Some(index);
        }
        Ok(())
    }

    fn position(&self, key: &Value, hash: u64) -> Res<Option<usize>> {
        let candidates: &mut dyn Iterator<Item = usize> = match &self.index {
            Some(index) => &mut index.get(&hash).into_iter().flatten().copied(),
            None => &mut (0..self.entries.len()),
        };
        for at in candidates {
            if super::ops::equal(&self.entries[at].0, key)? {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    /// The value of a key.
    ///
    /// # Errors
    /// When it cannot be a key.
    pub(super) fn get(&self, key: &Value) -> Res<Option<&Value>> {
        let hash = super::ops::hash(key)?;
        Ok(self.position(key, hash)?.map(|at| &self.entries[at].1))
    }

    pub(super) fn get_text(&self, key: &str) -> Res<Option<&Value>> {
        if self.index.is_none() {
            if key.len() >= LONG_NAME {
                budget::bytes(key.len().saturating_mul(self.entries.len()))?;
            }
            let is_it = |k: &Value| matches!(k, Value::Text(t) if t.as_str() == key);
            return Ok(self.entries.iter().find(|(k, _)| is_it(k)).map(|(_, v)| v));
        }
        self.get(&Value::text(key)?)
    }

    pub(super) fn entries(&self) -> &[(Value, Value)] {
        &self.entries
    }
}

impl Iter {
    pub(super) fn next(&self) -> Option<Value> {
        self.left.borrow_mut().pop_front()
    }
}

impl Range {
    /// Its last element must be a whole number of ours.
    pub(super) fn value(start: i128, step: i128, len: usize, stop: i128) -> Res<Value> {
        Ok(Value::Range(Rc::new(Self {
            start,
            step,
            len,
            stop,
            _charge: Charge::new(OBJECT_BYTES)?,
        })))
    }

    pub(super) fn get(&self, at: usize) -> Value {
        let offset = self.step.saturating_mul(at as i128);
        Value::Int(self.start.saturating_add(offset))
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

    pub(super) fn new() -> Res<Rc<Self>> {
        Ok(Rc::new(Self {
            fields: RefCell::default(),
            charge: RefCell::new(Charge::new(OBJECT_BYTES)?),
        }))
    }

    pub(super) fn get(&self, name: &str) -> Res<Option<Value>> {
        let fields = self.fields.borrow();
        Self::pay_search(&fields, name)?;
        let found = fields.iter().find(|(n, _)| **n == *name);
        Ok(found.map(|(_, value)| value.clone()))
    }

    pub(super) fn set(&self, name: &str, value: Value) -> Res<()> {
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

impl Value {
    pub(super) fn text(text: impl Into<String>) -> Res<Self> {
        let text = text.into();
        budget::text(text.len())?;
        budget::bytes(text.len())?;
        let charge = Charge::new(text.len() + 64)?;
        Ok(Self::of_text(text, charge))
    }

    fn of_text(text: String, charge: Charge) -> Self {
        Self::Text(Rc::new(Text {
            is_ascii: text.is_ascii(),
            text,
            is_markup: false,
            _charge: charge,
        }))
    }

    /// A text as HTML: Python's `Markup`.
    pub(super) fn marked(self) -> Res<Self> {
        match self {
            Self::Text(text) if !text.is_markup => match Rc::try_unwrap(text) {
                Ok(text) => Ok(Self::Text(Rc::new(Text {
                    is_markup: true,
                    ..text
                }))),
                Err(shared) => Self::text(shared.as_str())?.marked(),
            },
            other => Ok(other),
        }
    }

    /// Marks a text, and those in a list, if `is_markup`.
    pub(super) fn marked_if(self, is_markup: bool) -> Res<Self> {
        let each = |seq: &Seq| {
            let items = seq.items.iter().cloned().map(Self::marked);
            Seq::new(items.collect::<Res<_>>()?)
        };
        match self {
            value if !is_markup => Ok(value),
            Self::List(seq) => Ok(Self::List(each(&seq)?)),
            Self::Tuple(seq) => Ok(Self::Tuple(each(&seq)?)),
            value => value.marked(),
        }
    }

    pub(super) fn buffer(buffer: Buffer) -> Self {
        let (text, charge) = buffer.into_parts();
        Self::of_text(text, charge)
    }

    pub(super) fn list(items: Vec<Self>) -> Res<Self> {
        Ok(Self::List(Seq::new(items)?))
    }

    pub(super) fn tuple(items: Vec<Self>) -> Res<Self> {
        Ok(Self::Tuple(Seq::new(items)?))
    }

    pub(super) fn iterator(items: Vec<Self>) -> Res<Self> {
        budget::steps(items.len() / 4)?;
        Ok(Self::Iterator(Rc::new(Iter {
            depth: depth_above(items.iter())?,
            _charge: Charge::new(ELEMENT_BYTES * (items.len() + 2))?,
            left: RefCell::new(items.into()),
        })))
    }

    /// An undefined value, with what to say when it is used. Names in it are
    /// [cut](super::fail::Named).
    pub(super) fn undefined(message: impl Into<Box<str>>) -> Res<Self> {
        let text = message.into();
        let _charge = Charge::new(OBJECT_BYTES + text.len())?;
        Ok(Self::Undefined(Rc::new(Message { text, _charge })))
    }

    /// A method of a value.
    pub(super) fn method(value: Self, method: &'static str) -> Res<Self> {
        let charge = Charge::new(OBJECT_BYTES)?;
        Ok(Self::Method(Rc::new((value, method, charge))))
    }

    pub(super) fn is_undefined(&self) -> bool {
        matches!(self, Self::Undefined(_))
    }

    pub(super) fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text.as_str()),
            _ => None,
        }
    }

    /// A whole number, which truths are too.
    pub(super) fn as_int(&self) -> Option<i128> {
        match self {
            Self::Int(number) => Some(*number),
            Self::Bool(truth) => Some(i128::from(*truth)),
            _ => None,
        }
    }

    fn depth(&self) -> usize {
        match self {
            Self::List(seq) | Self::Tuple(seq) => seq.depth,
            Self::Dict(dict) | Self::View(_, dict) => dict.depth,
            Self::Iterator(iter) => iter.depth,
            Self::Method(bound) => 1 + bound.0.depth(),
            Self::Cycler(cycler) => 1 + cycler.items.depth,
            Self::Joiner(joiner) => 1 + joiner.separator.depth(),
            Self::Loop(state) => 1 + state.items.depth,
            // What namespaces and functions hold is taken apart by itself.
            _ => 0,
        }
    }

    /// Python's name of its type.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::Undefined(_) => "Undefined",
            Self::None => "NoneType",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Float(_) => "float",
            Self::Text(_) => "str",
            Self::List(_) => "list",
            Self::Tuple(_) => "tuple",
            Self::Dict(_) => "dict",
            Self::Range(_) => "range",
            Self::View(View::Keys, _) => "dict_keys",
            Self::View(View::Values, _) => "dict_values",
            Self::View(View::Items, _) => "dict_items",
            Self::Iterator(_) => "generator",
            Self::Namespace(_) => "Namespace",
            Self::Macro(_) => "Macro",
            Self::Loop(_) => "LoopContext",
            Self::Cycler(_) => "Cycler",
            Self::Joiner(_) => "Joiner",
            Self::Function(_) => "function",
            Self::Method(_) => "builtin_function_or_method",
        }
    }

    pub(super) fn is_true(&self) -> bool {
        match self {
            Self::Undefined(_) | Self::None => false,
            Self::Bool(truth) => *truth,
            Self::Int(number) => *number != 0,
            Self::Float(number) => *number != 0.0,
            Self::Text(text) => !text.as_str().is_empty(),
            Self::List(seq) | Self::Tuple(seq) => !seq.items.is_empty(),
            Self::Dict(dict) | Self::View(_, dict) => !dict.entries().is_empty(),
            Self::Range(range) => range.len > 0,
            Self::Loop(state) => !state.items.items.is_empty(),
            _ => true,
        }
    }

    /// `len()`
    pub(super) fn len(&self) -> Res<usize> {
        match self {
            Self::Undefined(_) => Ok(0),
            Self::Text(text) => text.len(),
            Self::List(seq) | Self::Tuple(seq) => Ok(seq.items.len()),
            Self::Dict(dict) | Self::View(_, dict) => Ok(dict.entries().len()),
            Self::Range(range) => Ok(range.len),
            Self::Loop(state) => Ok(state.items.items.len()),
            other => fail(format!(
                "object of type '{}' has no len()",
                other.type_name()
            )),
        }
    }

    /// What going through it gives. It shares a list's elements.
    pub(super) fn items(&self) -> Res<Rc<Seq>> {
        let items = match self {
            Self::List(seq) | Self::Tuple(seq) => {
                // Whoever asks for them goes through them.
                budget::steps(seq.items.len())?;
                return Ok(seq.clone());
            }
            Self::Undefined(_) => Vec::new(),
            Self::Text(text) => {
                let text = text.as_str();
                budget::steps(text.len())?;
                let letters = text.chars().map(|c| Self::text(c.to_string()));
                letters.collect::<Res<_>>()?
            }
            Self::Dict(dict) | Self::View(View::Keys, dict) => {
                dict.entries().iter().map(|(key, _)| key.clone()).collect()
            }
            Self::View(View::Values, dict) => dict
                .entries()
                .iter()
                .map(|(_, value)| value.clone())
                .collect(),
            Self::View(View::Items, dict) => {
                budget::steps(dict.entries().len())?;
                let pairs = dict.entries().iter();
                let pairs = pairs.map(|(k, v)| Self::tuple(vec![k.clone(), v.clone()]));
                pairs.collect::<Res<_>>()?
            }
            Self::Range(range) => {
                budget::steps(range.len / 8)?;
                (0..range.len).map(|at| range.get(at)).collect()
            }
            Self::Iterator(iter) => Vec::from(iter.left.take()),
            other => return fail(format!("'{}' object is not iterable", other.type_name())),
        };
        Seq::new(items)
    }

    pub(super) fn is_iterable(&self) -> bool {
        matches!(
            self,
            Self::Undefined(_)
                | Self::Text(_)
                | Self::List(_)
                | Self::Tuple(_)
                | Self::Dict(_)
                | Self::View(..)
                | Self::Range(_)
                | Self::Iterator(_)
                | Self::Loop(_)
        )
    }

    pub(super) fn is_callable(&self) -> bool {
        matches!(
            self,
            Self::Undefined(_)
                | Self::Macro(_)
                | Self::Loop(_)
                | Self::Joiner(_)
                | Self::Function(_)
                | Self::Method(_)
        )
    }
}
