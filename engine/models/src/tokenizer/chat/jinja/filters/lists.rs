//! Filters of lists and of what lists are made of.

use std::cmp::Ordering;

use super::super::args::{Arguments, int, text, truth};
use super::super::attributes::{item, own_attribute};
use super::super::budget::{self, Buffer};
use super::super::fail::{Named, Res, fail};
use super::super::ops;
use super::super::show::{to_str, write_str};
use super::super::tests;
use super::super::value::{Dict, Seq, Value};

/// A path of attributes, as filters take it: `a.b.0`.
pub(super) struct Path(Vec<Value>);

impl Path {
    pub(super) fn new(path: &Value) -> Res<Self> {
        let Value::Text(t) = path else {
            return Ok(Self(vec![path.clone()]));
        };
        budget::steps(t.as_str().len())?;
        let parts = t.as_str().split('.').map(|part| {
            let is_number = !part.is_empty() && part.chars().all(super::super::chars::is_digit);
            match part.parse() {
                Ok(number) if is_number => Ok(Value::Int(number)),
                _ => Value::text(part),
            }
        });
        Ok(Self(parts.collect::<Res<_>>()?))
    }

    pub(super) fn optional(path: Option<Value>) -> Res<Self> {
        match path {
            None | Some(Value::None) => Ok(Self(Vec::new())),
            Some(path) => Self::new(&path),
        }
    }

    pub(super) fn get(&self, value: &Value) -> Res<Value> {
        self.get_or(value, None)
    }

    pub(super) fn get_or(&self, value: &Value, default: Option<&Value>) -> Res<Value> {
        let mut value = value.clone();
        for part in &self.0 {
            budget::steps(1)?;
            value = item(&value, part)?;
            if let (Value::Undefined(_), Some(default)) = (&value, default) {
                value = default.clone();
            }
        }
        Ok(value)
    }
}

/// What values are compared by.
pub(super) struct Key {
    path: Path,
    by_case: bool,
}

impl Key {
    pub(super) fn new(path: Path, by_case: bool) -> Self {
        Self { path, by_case }
    }

    pub(super) fn get(&self, value: &Value) -> Res<Value> {
        self.get_or(value, None)
    }

    pub(super) fn get_or(&self, value: &Value, default: Option<&Value>) -> Res<Value> {
        let value = self.path.get_or(value, default)?;
        match &value {
            Value::Text(t) if !self.by_case => {
                budget::chars(t.as_str().len())?;
                Value::text(t.as_str().to_lowercase())
            }
            _ => Ok(value),
        }
    }
}

/// A stable sort by an order that may fail, and need not be one.
pub(in super::super) fn sort_by<T: Clone>(
    items: &mut [T],
    order: impl Fn(&T, &T) -> Res<Option<Ordering>>,
) -> Res<()> {
    let mut sorted = items.to_vec();
    let mut width = 1;
    while width < items.len() {
        for start in (0..items.len()).step_by(2 * width) {
            let middle = (start + width).min(items.len());
            let end = (start + 2 * width).min(items.len());
            let (mut left, mut right) = (start, middle);
            for slot in &mut sorted[start..end] {
                let takes_right = right < end
                    && (left >= middle
                        || order(&items[right], &items[left])? == Some(Ordering::Less));
                let from = if takes_right { &mut right } else { &mut left };
                *slot = items[*from].clone();
                *from += 1;
            }
        }
        items.clone_from_slice(&sorted);
        width *= 2;
    }
    Ok(())
}

/// Sorts values by their keys.
fn sorted(mut keyed: Vec<(Value, Value)>, reverse: bool) -> Res<Vec<(Value, Value)>> {
    // Equal elements keep their order in reverse, too.
    if reverse {
        keyed.reverse();
    }
    sort_by(&mut keyed, |a, b| ops::order("<", &a.0, &b.0))?;
    if reverse {
        keyed.reverse();
    }
    Ok(keyed)
}

pub(super) fn lists(name: &str, value: Value, args: Arguments) -> Res<Value> {
    match name {
        "attr" => {
            let [name] = args.bind(name, 1, ["name"])?;
            let name = name.unwrap_or(Value::None);
            own_attribute(&value, text(&name)?)
        }
        "count" | "length" => {
            args.none(name)?;
            Ok(Value::Int(value.len()? as i128))
        }
        "first" => {
            args.none(name)?;
            let first = match &value {
                Value::Iterator(iter) => iter.next(),
                Value::Text(t) => {
                    let first = t.as_str().chars().next();
                    first.map(Value::text).transpose()?
                }
                Value::Range(range) => (range.len > 0).then(|| range.get(0)),
                other => other.items()?.items.first().cloned(),
            };
            first.map_or_else(
                || Value::undefined("No first item, sequence was empty."),
                Ok,
            )
        }
        "last" => {
            args.none(name)?;
            let last = match &value {
                Value::Text(t) => {
                    let last = t.as_str().chars().next_back();
                    last.map(Value::text).transpose()?
                }
                Value::Range(range) => range.len.checked_sub(1).map(|at| range.get(at)),
                Value::Iterator(_) => {
                    let name = value.type_name();
                    return fail(format!("'{name}' object is not reversible"));
                }
                other => other.items()?.items.last().cloned(),
            };
            last.map_or_else(|| Value::undefined("No last item, sequence was empty."), Ok)
        }
        "items" => {
            args.none(name)?;
            match &value {
                Value::Undefined(_) => Value::iterator(Vec::new()),
                Value::Dict(dict) => {
                    let view = Value::View(super::super::value::View::Items, dict.clone());
                    Value::iterator(view.items()?.items.clone())
                }
                _ => fail("Can only get item pairs from a mapping."),
            }
        }
        "list" => {
            args.none(name)?;
            Ok(Value::List(value.items()?))
        }
        "reverse" => {
            args.none(name)?;
            if let Value::Text(t) = &value {
                budget::chars(t.as_str().len())?;
                let reversed: String = t.as_str().chars().rev().collect();
                return Value::text(reversed);
            }
            let items = value.items()?;
            let reversed = items.items.iter().rev().cloned().collect();
            match &value {
                Value::Iterator(_) => Value::list(reversed),
                _ => Value::iterator(reversed),
            }
        }
        "batch" => {
            let [count, fill] = args.bind(name, 1, ["linecount", "fill_with"])?;
            batch(&value, int(count, 0)?, fill)
        }
        "slice" => {
            let [count, fill] = args.bind(name, 1, ["slices", "fill_with"])?;
            slice(&value, int(count, 0)?, fill)
        }
        "join" => {
            let [separator, attribute] = args.bind(name, 0, ["d", "attribute"])?;
            let attribute = attribute.filter(|a| !matches!(a, Value::None));
            let path = Path::optional(attribute)?;
            let separator = separator.map_or_else(|| Value::text(""), |s| to_str(&s))?;
            let mut out = Buffer::default();
            for (at, item) in value.items()?.items.iter().enumerate() {
                if at > 0 {
                    out.push(text(&separator)?)?;
                }
                write_str(&path.get(item)?, &mut out)?;
            }
            Ok(Value::buffer(out))
        }
        "map" => map(&value, args),
        "select" | "reject" | "selectattr" | "rejectattr" => select(name, &value, args),
        "dictsort" => {
            let names = ["case_sensitive", "by", "reverse"];
            let [case, by, reverse] = args.bind(name, 0, names)?;
            let Value::Dict(dict) = &value else {
                return fail(format!(
                    "'{}' object has no attribute 'items'",
                    value.type_name()
                ));
            };
            let by_value = match by.as_ref().map(Value::as_text) {
                None | Some(Some("key")) => false,
                Some(Some("value")) => true,
                _ => return fail("You can only sort by either \"key\" or \"value\""),
            };
            let key = Key::new(Path(Vec::new()), truth(case, false));
            let mut keyed = Vec::new();
            for (name, value) in dict.entries() {
                let by = key.get(if by_value { value } else { name })?;
                keyed.push((by, Value::tuple(vec![name.clone(), value.clone()])?));
            }
            let keyed = sorted(keyed, int(reverse, 0)? != 0)?;
            Value::list(keyed.into_iter().map(|(_, pair)| pair).collect())
        }
        "sort" => {
            let names = ["reverse", "case_sensitive", "attribute"];
            let [reverse, case, attribute] = args.bind(name, 0, names)?;
            let by_case = truth(case, false);
            let paths = match &attribute {
                Some(Value::Text(t)) => {
                    let parts = t.as_str().split(',').map(|p| Path::new(&Value::text(p)?));
                    parts.collect::<Res<Vec<_>>>()?
                }
                _ => vec![Path::optional(attribute)?],
            };
            let keys: Vec<Key> = paths.into_iter().map(|p| Key::new(p, by_case)).collect();
            let mut keyed = Vec::new();
            for item in &value.items()?.items {
                let parts = keys.iter().map(|key| key.get(item)).collect::<Res<_>>()?;
                keyed.push((Value::list(parts)?, item.clone()));
            }
            let keyed = sorted(keyed, int(reverse, 0)? != 0)?;
            Value::list(keyed.into_iter().map(|(_, item)| item).collect())
        }
        "unique" => {
            let [case, attribute] = args.bind(name, 0, ["case_sensitive", "attribute"])?;
            let key = Key::new(Path::optional(attribute)?, truth(case, false));
            let mut seen = Dict::new()?;
            let mut unique = Vec::new();
            for item in &value.items()?.items {
                let by = key.get(item)?;
                if seen.get(&by)?.is_none() {
                    seen.insert(by, Value::None)?;
                    unique.push(item.clone());
                }
            }
            Value::iterator(unique)
        }
        _ => group_by(&value, args),
    }
}

fn group_by(value: &Value, args: Arguments) -> Res<Value> {
    let names = ["attribute", "default", "case_sensitive"];
    let [attribute, default, case] = args.bind("groupby", 1, names)?;
    let default = default.filter(|d| !matches!(d, Value::None));
    let path = attribute.unwrap_or(Value::None);
    let key = Key::new(Path::new(&path)?, truth(case, false));
    let mut keyed = Vec::new();
    for item in &value.items()?.items {
        keyed.push((key.get_or(item, default.as_ref())?, item.clone()));
    }
    let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
    for (by, item) in sorted(keyed, false)? {
        match groups.last_mut() {
            Some((last, items)) if ops::equal(last, &by)? => items.push(item),
            _ => groups.push((by, vec![item])),
        }
    }
    let mut tuples = Vec::new();
    for (mut by, items) in groups {
        if !key.by_case
            && let Some(first) = items.first()
        {
            by = key.path.get_or(first, default.as_ref())?;
        }
        tuples.push(Value::Tuple(Seq::make(
            vec![by, Value::list(items)?],
            true,
        )?));
    }
    Value::list(tuples)
}

fn batch(value: &Value, count: i128, fill: Option<Value>) -> Res<Value> {
    let count = usize::try_from(count.max(0)).unwrap_or(usize::MAX);
    let items = value.items()?;
    let fill = fill.filter(|f| !matches!(f, Value::None));
    let mut batches = Vec::new();
    let mut rest = &items.items[..];
    if count == 0 && !rest.is_empty() {
        // Python's condition holds before the first element alone.
        batches.push(Value::list(Vec::new())?);
        batches.push(Value::list(rest.to_vec())?);
        return Value::iterator(batches);
    }
    while !rest.is_empty() {
        let (now, later) = rest.split_at(count.min(rest.len()));
        let mut batch = now.to_vec();
        if let Some(fill) = &fill {
            ops::reserve(count)?;
            batch.resize(count, fill.clone());
        }
        batches.push(Value::list(batch)?);
        rest = later;
    }
    Value::iterator(batches)
}

fn slice(value: &Value, slices: i128, fill: Option<Value>) -> Res<Value> {
    let items = value.items()?;
    let Some(slices) = usize::try_from(slices).ok().filter(|s| *s > 0) else {
        if slices == 0 {
            return fail("integer division or modulo by zero");
        }
        return Value::iterator(Vec::new());
    };
    ops::reserve(slices)?;
    let fill = fill.filter(|f| !matches!(f, Value::None));
    let (each, extra) = (items.items.len() / slices, items.items.len() % slices);
    let mut rest = &items.items[..];
    let mut all = Vec::new();
    for at in 0..slices {
        budget::steps(1)?;
        let (now, later) = rest.split_at(each + usize::from(at < extra));
        let mut part = now.to_vec();
        if let Some(fill) = &fill
            && at >= extra
        {
            part.push(fill.clone());
        }
        all.push(Value::list(part)?);
        rest = later;
    }
    Value::iterator(all)
}

fn map(value: &Value, mut args: Arguments) -> Res<Value> {
    if !value.is_true() {
        return Value::iterator(Vec::new());
    }
    let Arguments {
        positional, named, ..
    } = &mut args;
    let items = value.items()?;
    let mut mapped = Vec::with_capacity(items.items.len());
    let by_attribute = named.iter().position(|(n, _)| n == "attribute");
    if let (true, Some(at)) = (positional.is_empty(), by_attribute) {
        let (_, path) = named.swap_remove(at);
        let mut default = None;
        if let Some(at) = named.iter().position(|(n, _)| n == "default") {
            default = Some(named.swap_remove(at).1).filter(|d| !matches!(d, Value::None));
        }
        if let Some((name, _)) = named.first() {
            let name = Named(name);
            return fail(format!("Unexpected keyword argument '{name}'"));
        }
        let path = Path::new(&path)?;
        for item in &items.items {
            mapped.push(path.get_or(item, default.as_ref())?);
        }
        return Value::iterator(mapped);
    }
    if positional.is_empty() {
        return fail("map requires a filter argument");
    }
    let filter = positional.remove(0);
    let filter = text(&filter)?;
    for item in &items.items {
        if !super::exists(filter) {
            return fail(format!("No filter named '{}'.", Named(filter)));
        }
        mapped.push(super::call(filter, item.clone(), args.copy()?)?);
    }
    Value::iterator(mapped)
}

fn select(name: &str, value: &Value, mut args: Arguments) -> Res<Value> {
    if !value.is_true() {
        return Value::iterator(Vec::new());
    }
    let mut path = Path(Vec::new());
    if name.ends_with("attr") {
        if args.positional.is_empty() {
            return fail("Missing parameter for attribute name");
        }
        path = Path::new(&args.positional.remove(0))?;
    }
    let wanted = name.starts_with("select");
    let items = value.items()?;
    let mut selected = Vec::new();
    let test = (!args.positional.is_empty()).then(|| args.positional.remove(0));
    for item in &items.items {
        let part = path.get(item)?;
        budget::steps(1)?;
        let is = match &test {
            None => part.is_true(),
            Some(test) => {
                let test = text(test)?;
                tests::call(test, &part, args.copy()?)?
            }
        };
        if is == wanted {
            selected.push(item.clone());
        }
    }
    Value::iterator(selected)
}
