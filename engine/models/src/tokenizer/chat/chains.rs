//! Chains of operators, which parsing, evaluating and dropping an expression recurse along.

use super::ChatError;

/// Operators, opening brackets and names after a dot in one expression or tag. Long ones have some
/// 100.
const OPERATORS_MAX: usize = 1000;
/// `elif`s of one template.
const ELIFS_MAX: usize = 500;

/// Refuses a source whose chains are longer than a stack of
/// [`with_known_stack`](crate::with_known_stack) holds.
///
/// # Errors
/// [`ChatError::Template`] with the line.
pub(super) fn check(source: &str) -> Result<(), ChatError> {
    let (mut rest, mut elifs) = (source, 0);
    while let Some(at) = rest.find('{') {
        rest = &rest[at..];
        let end = match rest.as_bytes().get(1) {
            Some(b'{') => "}}",
            Some(b'%') => "%}",
            Some(b'#') => {
                rest = rest[2..].split_once("#}").map_or("", |(_, after)| after);
                continue;
            }
            _ => {
                rest = &rest[1..];
                continue;
            }
        };
        let Tag {
            operators,
            is_elif,
            after,
        } = tag(&rest[2..], end);
        elifs += usize::from(is_elif);
        let problem = if operators > OPERATORS_MAX {
            format!("an expression has more than {OPERATORS_MAX} operators")
        } else if elifs > ELIFS_MAX {
            format!("it has more than {ELIFS_MAX} `elif`s")
        } else {
            rest = after;
            continue;
        };
        let line = source[..source.len() - rest.len()].lines().count().max(1);
        return Err(ChatError::Template(format!("line {line}: {problem}")));
    }
    Ok(())
}

struct Tag<'a> {
    operators: usize,
    is_elif: bool,
    after: &'a str,
}

/// What there is up to `end`, which does not count inside of a string.
fn tag<'a>(mut rest: &'a str, end: &str) -> Tag<'a> {
    let (mut operators, mut words, mut is_elif) = (0, 0, false);
    while let Some(next) = rest.chars().next() {
        if rest.starts_with(end) {
            rest = &rest[end.len()..];
            break;
        }
        let length = match next {
            '\'' | '"' => string_bytes(rest),
            _ if next.is_alphabetic() || next == '_' => {
                let is_name = |c: char| c.is_alphanumeric() || c == '_';
                let length = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
                let word = &rest[..length];
                let is_operator = ["and", "or", "not", "in", "is", "if", "else"].contains(&word);
                is_elif |= words == 0 && word == "elif";
                (operators, words) = (operators + usize::from(is_operator), words + 1);
                length
            }
            '=' | '!' | '<' | '>' | '/' | '*' => {
                let is_double = rest[1..].starts_with(['=', '/', '*']);
                operators += 1;
                1 + usize::from(is_double)
            }
            '+' | '-' | '%' | '~' | '|' | '.' | '(' | '[' | '{' => {
                operators += 1;
                1
            }
            _ => next.len_utf8(),
        };
        rest = &rest[length..];
    }
    Tag {
        operators,
        is_elif,
        after: rest,
    }
}

/// Bytes of the string that `text` begins with, quotes included.
fn string_bytes(text: &str) -> usize {
    let quote = text.as_bytes()[0];
    let mut bytes = text.bytes().enumerate().skip(1);
    while let Some((at, byte)) = bytes.next() {
        if byte == b'\\' {
            bytes.next();
        } else if byte == quote {
            return at + 1;
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_count_outside_of_strings_and_comments() {
        let operators = |source: &str| tag(source, "}}").operators;
        assert_eq!(operators("a.b[0] | f(1) == not 'x + \\' y }}' }}"), 6);
        assert_eq!(operators("2 ** 3 // 4 != 5 }} 1 + 1"), 3);
        assert_eq!(operators("android in island }}"), 1);
        let many = "+".repeat(2000);
        for fine in ["{# {{ 1 @ }} #}", "{ 1 @ }", "{{ '@' }}", "@"] {
            assert_eq!(check(&fine.replace('@', &many)), Ok(()), "{fine}");
        }
        for bad in ["{{ 1 @ }}", "{% if 1 @ %}", "{{ 'a' @", "{{ '\\'' @ }}"] {
            let bad = format!("one\ntwo {}", bad.replace('@', &many));
            let error = check(&bad).unwrap_err().to_string();
            assert!(error.contains("line 2: an expression has more"), "{error}");
        }
    }
}
