//! Source to tokens, by jinja2's rules: newlines are `\n`, one at the end is dropped, a block tag
//! swallows the newline after it and the spaces before it on its line.

use super::chars::{is_digit_of, is_space};
use super::fail::{Fail, Res, fail};

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    Data(String),
    PrintBegin,
    PrintEnd,
    TagBegin,
    TagEnd,
    Name(String),
    Text(String),
    Int(i128),
    Float(f64),
    /// An operator or a bracket.
    Op(&'static str),
    End,
}

/// Operators, longer ones first.
const OPERATORS: [&str; 26] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}",
    ">", "<", "=", ".", ":", "|", ",", ";",
];

/// Operators and opening brackets of one tag: what nests the tree that parsing, evaluating and
/// dropping recurse along. Long tags have some 100.
const OPERATORS_MAX: usize = 1000;
/// Bytes of one name. Long ones have some 40.
const NAME_BYTES_MAX: usize = 255;

/// The tokens with their lines, the last of which is [`Token::End`].
pub(super) fn tokens(source: &str) -> Res<Vec<(u32, Token)>> {
    let source = normalised(source);
    let mut lexer = Lexer {
        rest: &source,
        line: 1,
        at_line_start: true,
        tokens: Vec::new(),
    };
    while !lexer.rest.is_empty() {
        let line = lexer.line;
        lexer.root().map_err(|e| e.at(line))?;
    }
    let line = lexer.line;
    lexer.tokens.push((line, Token::End));
    Ok(lexer.tokens)
}

fn normalised(source: &str) -> String {
    let mut text = source.replace("\r\n", "\n").replace('\r', "\n");
    if text.ends_with('\n') {
        text.pop();
    }
    text
}

/// What a tag's sign does to the text before it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sign {
    Minus,
    Plus,
    None,
}

struct Lexer<'a> {
    rest: &'a str,
    line: u32,
    /// Whether what was read last ended with a newline.
    at_line_start: bool,
    tokens: Vec<(u32, Token)>,
}

fn sign_of(text: &str) -> Sign {
    match text.as_bytes().first() {
        Some(b'-') => Sign::Minus,
        Some(b'+') => Sign::Plus,
        _ => Sign::None,
    }
}

impl<'a> Lexer<'a> {
    /// Goes on by so many bytes, and gives them.
    fn take(&mut self, bytes: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.rest = rest;
        self.line += taken.bytes().filter(|&b| b == b'\n').count() as u32;
        if let Some(&last) = taken.as_bytes().last() {
            self.at_line_start = last == b'\n';
        }
        taken
    }

    fn take_spaces(&mut self) {
        let end = self.rest.find(|c| !is_space(c)).unwrap_or(self.rest.len());
        self.take(end);
    }

    fn push(&mut self, token: Token) {
        self.tokens.push((self.line, token));
    }

    /// Text and the tag after it.
    fn root(&mut self) -> Res<()> {
        let mut from = 0;
        let begin = loop {
            match self.rest[from..].find('{').map(|at| from + at) {
                Some(at) => match self.rest.as_bytes().get(at + 1) {
                    Some(b'{' | b'%' | b'#') => break Some(at),
                    _ => from = at + 1,
                },
                None => break None,
            }
        };
        let Some(begin) = begin else {
            let text = self.rest.to_owned();
            self.push(Token::Data(text));
            self.take(self.rest.len());
            return Ok(());
        };
        let kind = self.rest.as_bytes()[begin + 1];
        let sign = sign_of(&self.rest[begin + 2..]);
        let was_at_line_start = self.at_line_start;
        let line = self.line;
        let text = self.take(begin);
        self.data(line, text, sign, kind != b'{', was_at_line_start);
        if kind == b'%'
            && let Some(bytes) = raw_begin(self.rest)
        {
            self.take(bytes);
            return self.raw();
        }
        self.take(2 + usize::from(sign != Sign::None));
        self.at_line_start = false;
        match kind {
            b'#' => self.comment(),
            b'{' => {
                self.push(Token::PrintBegin);
                self.inside(false)
            }
            _ => {
                self.push(Token::TagBegin);
                self.inside(true)
            }
        }
    }

    /// The text before a tag, stripped as the tag says.
    fn data(&mut self, line: u32, text: &str, sign: Sign, strips: bool, at_line_start: bool) {
        let kept = match sign {
            Sign::Minus => text.trim_end_matches(is_space),
            Sign::None if strips => {
                let start = text.rfind('\n').map_or(0, |at| at + 1);
                let is_indent = text[start..].chars().all(is_space);
                if (start > 0 || at_line_start) && is_indent {
                    &text[..start]
                } else {
                    text
                }
            }
            _ => text,
        };
        if !kept.is_empty() {
            self.tokens.push((line, Token::Data(kept.to_owned())));
        }
    }

    fn comment(&mut self) -> Res<()> {
        let Some(end) = self.rest.find("#}") else {
            return fail("a comment has no end");
        };
        let sign = end
            .checked_sub(1)
            .map_or(Sign::None, |at| sign_of(&self.rest[self.floor(at)..]));
        self.take(end + 2);
        self.after_block(sign);
        Ok(())
    }

    /// The beginning of the character at `at`.
    fn floor(&self, mut at: usize) -> usize {
        while !self.rest.is_char_boundary(at) {
            at -= 1;
        }
        at
    }

    /// What the end of a block tag or comment swallows.
    fn after_block(&mut self, sign: Sign) {
        match sign {
            Sign::Minus => self.take_spaces(),
            Sign::None if self.rest.starts_with('\n') => {
                self.take(1);
            }
            _ => {}
        }
    }

    fn raw(&mut self) -> Res<()> {
        let mut from = 0;
        while let Some(at) = self.rest[from..].find("{%").map(|at| from + at) {
            let sign = sign_of(&self.rest[at + 2..]);
            let after = &self.rest[at + 2 + usize::from(sign != Sign::None)..];
            let name = after.trim_start_matches(is_space);
            if let Some(end) = name.strip_prefix("endraw") {
                let end = end.trim_start_matches(is_space);
                let end_sign = sign_of(end);
                let end = &end[usize::from(end_sign != Sign::None)..];
                if let Some(after) = end.strip_prefix("%}") {
                    let was_at_line_start = self.at_line_start;
                    let line = self.line;
                    let text = self.take(at);
                    self.data(line, text, sign, true, was_at_line_start);
                    self.take(self.rest.len() - after.len());
                    self.after_block(end_sign);
                    return Ok(());
                }
            }
            from = at + 2;
        }
        fail("a raw block has no end")
    }

    /// The tokens of a tag, to its end.
    fn inside(&mut self, is_block: bool) -> Res<()> {
        let mut open: Vec<&'static str> = Vec::new();
        let mut operators = 0;
        loop {
            if operators > OPERATORS_MAX {
                let problem = format!("an expression has more than {OPERATORS_MAX} operators");
                return Err(Fail::new(problem).at(self.line));
            }
            if open.is_empty() && self.end_of_tag(is_block) {
                return Ok(());
            }
            let Some(first) = self.rest.chars().next() else {
                return Ok(()); // the parser says what is missing
            };
            let line = self.line;
            if is_space(first) {
                self.take_spaces();
            } else if let Some(bytes) = self.float() {
                let text = self.take(bytes).replace('_', "");
                let number = text
                    .parse()
                    .map_err(|_| Fail::new("a number cannot be read"))?;
                self.tokens.push((line, Token::Float(number)));
            } else if let Some((bytes, number)) = integer(self.rest)? {
                self.take(bytes);
                self.tokens.push((line, Token::Int(number)));
            } else if first.is_alphanumeric() || first == '_' {
                if !(first.is_alphabetic() || first == '_') {
                    return fail("a name begins with a digit");
                }
                let end = self.rest.find(|c: char| !(c.is_alphanumeric() || c == '_'));
                let name = self.take(end.unwrap_or(self.rest.len()));
                if name.len() > NAME_BYTES_MAX {
                    return fail(format!("a name has more than {NAME_BYTES_MAX} bytes"));
                }
                let word = ["and", "or", "not", "in", "is", "if", "else"].contains(&name);
                operators += usize::from(word);
                self.tokens.push((line, Token::Name(name.to_owned())));
            } else if first == '\'' || first == '"' {
                let Some(bytes) = string_bytes(self.rest) else {
                    return fail("a string has no end");
                };
                let text = self.take(bytes);
                let text = unescaped(&text[1..bytes - 1])?;
                self.tokens.push((line, Token::Text(text)));
            } else if let Some(op) = OPERATORS.iter().find(|op| self.rest.starts_with(**op)) {
                match *op {
                    "(" => open.push(")"),
                    "[" => open.push("]"),
                    "{" => open.push("}"),
                    ")" | "]" | "}" if open.pop() != Some(*op) => {
                        return fail(format!("a {op} closes nothing"));
                    }
                    _ => {}
                }
                // What closes, or stands between elements, nests nothing.
                operators += usize::from(![")", "]", "}", ":", ",", ";"].contains(op));
                self.take(op.len());
                self.tokens.push((line, Token::Op(op)));
            } else {
                return fail(format!("unexpected character {first:?}"));
            }
        }
    }

    fn end_of_tag(&mut self, is_block: bool) -> bool {
        let sign = sign_of(self.rest);
        let end = if is_block { "%}" } else { "}}" };
        let has_sign = sign == Sign::Minus || (sign == Sign::Plus && is_block);
        if !self.rest[usize::from(has_sign)..].starts_with(end) {
            return false;
        }
        let token = if is_block {
            Token::TagEnd
        } else {
            Token::PrintEnd
        };
        self.push(token);
        self.take(2 + usize::from(has_sign));
        if is_block || sign == Sign::Minus {
            self.after_block(sign);
        }
        true
    }

    /// Bytes of the floating-point number that comes next.
    fn float(&self) -> Option<usize> {
        // What stands behind a dot is an index.
        if matches!(self.tokens.last(), Some((_, Token::Op(".")))) {
            return None;
        }
        let text = self.rest;
        let whole = digits(text)?;
        let fraction = text[whole..]
            .strip_prefix('.')
            .and_then(digits)
            .map(|d| d + 1);
        let mut end = whole + fraction.unwrap_or(0);
        let exponent = text[end..].strip_prefix(['e', 'E']).and_then(|e| {
            let sign = usize::from(e.starts_with(['+', '-']));
            Some(1 + sign + digits(&e[sign..])?)
        });
        if fraction.is_none() && exponent.is_none() {
            return None;
        }
        end += exponent.unwrap_or(0);
        Some(end)
    }
}

/// Bytes of digits with single underscores between them.
fn digits(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut end = 0;
    loop {
        match bytes.get(end) {
            Some(b'0'..=b'9') => end += 1,
            Some(b'_') if end > 0 && bytes.get(end + 1).is_some_and(u8::is_ascii_digit) => end += 2,
            _ => return (end > 0).then_some(end),
        }
    }
}

/// Bytes and value of the whole number that comes next.
fn integer(text: &str) -> Res<Option<(usize, i128)>> {
    let bytes = text.as_bytes();
    let Some(first) = bytes.first().filter(|b| b.is_ascii_digit()) else {
        return Ok(None);
    };
    let base = match bytes.get(1).map(u8::to_ascii_lowercase) {
        Some(b'b') => 2,
        Some(b'o') => 8,
        Some(b'x') => 16,
        _ => 10,
    };
    let run = |from: usize, takes: &dyn Fn(char) -> bool| {
        let mut end = from;
        while let Some(&byte) = bytes.get(end) {
            let skip = usize::from(byte == b'_');
            match bytes.get(end + skip) {
                Some(&next) if takes(char::from(next)) => end += skip + 1,
                _ => break,
            }
        }
        end
    };
    let mut prefix = 0;
    let mut end = 0;
    if *first == b'0' && base != 10 {
        let to = run(2, &|c| is_digit_of(c, base));
        if to > 2 {
            (prefix, end) = (2, to);
        }
    }
    let base = if prefix == 2 { base } else { 10 };
    if prefix == 0 {
        end = if *first == b'0' {
            run(1, &|c| c == '0')
        } else {
            run(1, &|c| c.is_ascii_digit())
        };
    }
    let number = i128::from_str_radix(&text[prefix..end].replace('_', ""), base)
        .map_err(|_| Fail::new("a whole number has more than 127 bits"))?;
    Ok(Some((end, number)))
}

/// Bytes of `{% raw %}`, if the text begins with it.
fn raw_begin(text: &str) -> Option<usize> {
    let after = text.strip_prefix("{%")?;
    let after = after.strip_prefix(['-', '+']).unwrap_or(after);
    let after = after.trim_start_matches(is_space).strip_prefix("raw")?;
    let after = after.trim_start_matches(is_space);
    let after = match after.strip_prefix("-%}") {
        Some(after) => after.trim_start_matches(is_space),
        None => after.strip_prefix("%}")?,
    };
    Some(text.len() - after.len())
}

/// Bytes of the string that `text` begins with, quotes included.
fn string_bytes(text: &str) -> Option<usize> {
    let quote = *text.as_bytes().first()?;
    let mut bytes = text.bytes().enumerate().skip(1);
    while let Some((at, byte)) = bytes.next() {
        if byte == b'\\' {
            bytes.next();
        } else if byte == quote {
            return Some(at + 1);
        }
    }
    None
}

/// A string's text, by Python's escapes.
fn unescaped(text: &str) -> Res<String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\\') {
        out.push_str(before);
        let Some(kind) = after.chars().next() else {
            return fail("a string ends with a backslash");
        };
        rest = &after[kind.len_utf8()..];
        let simple = match kind {
            '\n' => continue,
            '\\' | '\'' | '"' => kind,
            'a' => '\x07',
            'b' => '\x08',
            'f' => '\x0c',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'v' => '\x0b',
            '0'..='7' => {
                let more = rest
                    .bytes()
                    .take(2)
                    .take_while(|b| matches!(b, b'0'..=b'7'))
                    .count();
                let digits = &after[..1 + more];
                rest = &rest[more..];
                u32::from_str_radix(digits, 8)
                    .ok()
                    .and_then(char::from_u32)
                    .unwrap_or('\u{fffd}')
            }
            'x' | 'u' | 'U' => {
                let count = match kind {
                    'x' => 2,
                    'u' => 4,
                    _ => 8,
                };
                let digits = rest
                    .get(..count)
                    .filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()));
                let Some(digits) = digits else {
                    return fail(format!("a string has a \\{kind} without {count} digits"));
                };
                rest = &rest[count..];
                match u32::from_str_radix(digits, 16) {
                    Ok(code) if code < 0x11_0000 => char::from_u32(code).unwrap_or('\u{fffd}'),
                    _ => {
                        return fail(format!(
                            "a string has \\{kind}{digits}, which is no character"
                        ));
                    }
                }
            }
            'N' => return fail("a string names a character by \\N, which is not supported"),
            other => {
                out.push('\\');
                other
            }
        };
        out.push(simple);
    }
    out.push_str(rest);
    Ok(out)
}
