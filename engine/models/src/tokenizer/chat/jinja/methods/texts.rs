//! Methods of Python's texts.

use super::super::args::{Arguments, int, text, truth, width};
use super::super::budget::{self, Buffer};
use super::super::fail::{Res, fail};
use super::super::show::escape;
use super::super::strformat;
use super::super::value::{Text, Value};
use super::case::{capitalize, cased, casefold, is_kind, swapcase, title};
use super::parts::{char_at, justify, lines, part, replace, split, strip};

fn optional_text(value: &Option<Value>) -> Res<Option<&str>> {
    match value {
        None | Some(Value::None) => Ok(None),
        Some(value) => text(value).map(Some),
    }
}

pub(super) fn text_method(
    value: &Value,
    this: &Text,
    method: &'static str,
    args: Arguments,
) -> Res<Value> {
    let t = this.as_str();
    budget::bytes(t.len())?;
    match method {
        "upper" => cased(t, args, method, |t| t.to_uppercase()),
        "lower" => cased(t, args, method, |t| t.to_lowercase()),
        "casefold" => cased(t, args, method, casefold),
        "title" => cased(t, args, method, title),
        "capitalize" => cased(t, args, method, capitalize),
        "swapcase" => cased(t, args, method, swapcase),
        "strip" | "lstrip" | "rstrip" => {
            let [chars] = args.bind(method, 0, ["/chars"])?;
            let chars = optional_text(&chars)?;
            strip(value, t, chars, method != "rstrip", method != "lstrip")
        }
        "split" | "rsplit" => {
            let [separator, most] = args.bind(method, 0, ["sep", "maxsplit"])?;
            let most = usize::try_from(int(most, -1)?).unwrap_or(usize::MAX);
            split(t, optional_text(&separator)?, most, method == "rsplit")
        }
        "splitlines" => {
            let [keeps] = args.bind(method, 0, ["keepends"])?;
            let keeps = truth(keeps, false);
            budget::chars(t.len())?;
            let lines = lines(t, keeps).map(Value::text);
            Value::list(lines.collect::<Res<_>>()?)
        }
        "partition" | "rpartition" => {
            let [separator] = args.bind(method, 1, ["/sep"])?;
            let separator = separator.unwrap_or(Value::None);
            let sep = text(&separator)?;
            budget::bytes(sep.len())?;
            if sep.is_empty() {
                return fail("empty separator");
            }
            let parts = match method {
                "partition" => t
                    .split_once(sep)
                    .map(|(a, b)| [a, sep, b])
                    .unwrap_or([t, "", ""]),
                _ => t
                    .rsplit_once(sep)
                    .map(|(a, b)| [a, sep, b])
                    .unwrap_or(["", "", t]),
            };
            Value::tuple(parts.into_iter().map(Value::text).collect::<Res<_>>()?)
        }
        "startswith" | "endswith" => {
            let [affix, from, to] = args.bind(method, 1, ["/affix", "/start", "/end"])?;
            let part = part(this, from, to)?;
            let has = |affix: &Value| {
                let affix = text(affix)?;
                budget::bytes(affix.len().min(t.len()))?;
                Ok(part.exists
                    && match method {
                        "startswith" => part.text.starts_with(affix),
                        _ => part.text.ends_with(affix),
                    })
            };
            match affix.unwrap_or(Value::None) {
                Value::Tuple(seq) => {
                    for affix in &seq.items {
                        if has(affix)? {
                            return Ok(Value::Bool(true));
                        }
                    }
                    Ok(Value::Bool(false))
                }
                affix => has(&affix).map(Value::Bool),
            }
        }
        "find" | "rfind" | "index" | "rindex" | "count" => {
            let [wanted, from, to] = args.bind(method, 1, ["/sub", "/start", "/end"])?;
            let wanted = wanted.unwrap_or(Value::None);
            let wanted = text(&wanted)?;
            budget::bytes(wanted.len())?;
            let part = part(this, from, to)?;
            if method == "count" {
                budget::chars(t.len())?;
                let count = match wanted {
                    _ if !part.exists => 0,
                    "" => part.text.chars().count() + 1,
                    _ => part.text.matches(wanted).count(),
                };
                return Ok(Value::Int(count as i128));
            }
            let at = match method {
                _ if !part.exists => None,
                "find" | "index" => part.text.find(wanted),
                _ => part.text.rfind(wanted),
            };
            match at {
                Some(at) => Ok(Value::Int(char_at(this, part.start + at))),
                None if method.ends_with("find") => Ok(Value::Int(-1)),
                None => fail("substring not found"),
            }
        }
        "replace" => {
            let [old, new, most] = args.bind(method, 2, ["/old", "/new", "count"])?;
            let (old, new) = (old.unwrap_or(Value::None), new.unwrap_or(Value::None));
            let most = usize::try_from(int(most, -1)?).unwrap_or(usize::MAX);
            let mut escaped = Buffer::default();
            let new = match &new {
                Value::Text(new) if this.is_markup() && !new.is_markup() => {
                    escape(new.as_str(), &mut escaped)?;
                    escaped.as_str()
                }
                new => text(new)?,
            };
            replace(value, t, text(&old)?, new, most)
        }
        "removeprefix" | "removesuffix" => {
            let [affix] = args.bind(method, 1, ["/affix"])?;
            let affix = affix.unwrap_or(Value::None);
            let affix = text(&affix)?;
            let rest = match method {
                "removeprefix" => t.strip_prefix(affix),
                _ => t.strip_suffix(affix),
            };
            rest.map_or_else(|| Ok(value.clone()), Value::text)
        }
        "join" => {
            let [items] = args.bind(method, 1, ["/iterable"])?;
            let items = items.unwrap_or(Value::None).items()?;
            let mut out = Buffer::default();
            for (at, item) in items.items.iter().enumerate() {
                let Value::Text(item) = item else {
                    let name = item.type_name();
                    return fail(format!(
                        "sequence item {at}: expected str instance, {name} found"
                    ));
                };
                if at > 0 {
                    out.push(t)?;
                }
                match this.is_markup() && !item.is_markup() {
                    true => escape(item.as_str(), &mut out)?,
                    false => out.push(item.as_str())?,
                }
            }
            Ok(Value::buffer(out))
        }
        "center" | "ljust" | "rjust" => {
            let [wide, fill] = args.bind(method, 1, ["/width", "/fillchar"])?;
            let fill = match optional_text(&fill)? {
                None => ' ',
                Some(fill) => {
                    let mut chars = fill.chars();
                    match (chars.next(), chars.next()) {
                        (Some(fill), None) => fill,
                        _ => return fail("The fill character must be exactly one character long"),
                    }
                }
            };
            justify(value, this, width(wide, 0)?, fill, method)
        }
        "zfill" => {
            let [wide] = args.bind(method, 1, ["/width"])?;
            let missing = width(wide, 0)?.saturating_sub(this.len()?);
            let digits = t.strip_prefix(['+', '-']).unwrap_or(t);
            let mut out = Buffer::default();
            out.push(&t[..t.len() - digits.len()])?;
            out.fill('0', missing)?;
            out.push(digits)?;
            Ok(Value::buffer(out))
        }
        "expandtabs" => {
            let [size] = args.bind(method, 0, ["tabsize"])?;
            let size = width(size, 8)?;
            let mut out = Buffer::default();
            let mut column = 0;
            for c in t.chars() {
                match c {
                    '\t' => {
                        let spaces = if size == 0 { 0 } else { size - column % size };
                        out.fill(' ', spaces)?;
                        column += spaces;
                    }
                    _ => {
                        out.push_char(c)?;
                        column = if matches!(c, '\n' | '\r') {
                            0
                        } else {
                            column + 1
                        };
                    }
                }
            }
            Ok(Value::buffer(out))
        }
        "format" => strformat::format(t, &args),
        "format_map" => {
            let [map] = args.bind(method, 1, ["/mapping"])?;
            let Some(Value::Dict(map)) = map else {
                return fail("format_map() takes a mapping");
            };
            let mut all = Arguments::default();
            for (key, value) in map.entries() {
                if let Some(key) = key.as_text() {
                    all.push_named(key, value.clone())?;
                }
            }
            strformat::format(t, &all)
        }
        "encode" | "maketrans" | "translate" => {
            fail(format!("the method {method} of texts is not supported"))
        }
        _ => {
            args.none(method)?;
            budget::chars(t.len())?;
            Ok(Value::Bool(is_kind(t, method)))
        }
    }
}
