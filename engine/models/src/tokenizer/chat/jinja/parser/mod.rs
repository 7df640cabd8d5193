//! Tokens to a tree, by jinja2's grammar.

mod calls;
mod macros;
mod operands;
mod operators;
mod statements;
mod targets;

use std::collections::{HashMap, HashSet};

use super::ast::{Sym, Template};
use super::fail::{Fail, Res, fail};
use super::lexer::{Token, tokens};
use super::symbols;

/// Brackets and conditions in each other, and blocks in each other.
const EXPRESSIONS_MAX: usize = 100;
const BLOCKS_MAX: usize = 100;
/// `elif`s of one template.
const ELIFS_MAX: usize = 500;
/// Parameters of one macro, and arguments of one call.
const ARGUMENTS_MAX: usize = 255;

/// Which filters and tests there are.
#[derive(Clone, Copy)]
pub(super) struct Known {
    pub(super) filter: fn(&str) -> bool,
    pub(super) test: fn(&str) -> bool,
}

/// Parses a template's source.
pub(super) fn parse(source: &str, known: Known) -> Res<Template> {
    let mut parser = Parser {
        tokens: tokens(source)?,
        at: 0,
        names: Table::default(),
        texts: Table::default(),
        known,
        unknown: Vec::new(),
        is_soft: false,
        in_loop: false,
        expressions: 0,
        blocks: 0,
        macros: Vec::new(),
        block_names: HashSet::new(),
        elifs: 0,
    };
    let mut body = parser.body(&[]).map_err(|e| e.at(parser.line()))?;
    if let Some((line, problem)) = parser.unknown.into_iter().next() {
        return Err(Fail::new(problem).at(line));
    }
    symbols::settle(&mut body);
    Ok(Template {
        body,
        names: parser.names.list,
        texts: parser.texts.list,
    })
}

/// Texts by number.
#[derive(Default)]
struct Table {
    list: Vec<String>,
    numbers: HashMap<String, Sym>,
}

impl Table {
    fn number(&mut self, text: &str) -> Sym {
        if let Some(&number) = self.numbers.get(text) {
            return number;
        }
        let number = self.list.len() as Sym;
        self.list.push(text.to_owned());
        self.numbers.insert(text.to_owned(), number);
        number
    }
}

struct Parser {
    tokens: Vec<(u32, Token)>,
    at: usize,
    names: Table,
    texts: Table,
    known: Known,
    /// Filters and tests that do not exist, outside of conditions.
    unknown: Vec<(u32, String)>,
    /// Whether what is parsed may never be reached, so that unknown filters are no error yet.
    is_soft: bool,
    in_loop: bool,
    expressions: usize,
    blocks: usize,
    /// Which of `caller`, `kwargs` and `varargs` the macros around mention.
    macros: Vec<[bool; 3]>,
    block_names: HashSet<String>,
    elifs: usize,
}

impl Parser {
    fn token(&self) -> &Token {
        self.tokens
            .get(self.at)
            .map_or(&Token::End, |(_, token)| token)
    }

    fn after(&self) -> &Token {
        self.tokens
            .get(self.at + 1)
            .map_or(&Token::End, |(_, token)| token)
    }

    fn line(&self) -> u32 {
        let at = self.at.min(self.tokens.len().saturating_sub(1));
        self.tokens.get(at).map_or(1, |&(line, _)| line)
    }

    fn next(&mut self) -> Token {
        let token = self.tokens.get_mut(self.at).map(|(_, token)| token);
        let taken = token.map_or(Token::End, |token| match token {
            // Looked at again for messages alone.
            Token::Data(text) => Token::Data(std::mem::take(text)),
            other => other.clone(),
        });
        if self.at + 1 < self.tokens.len() {
            self.at += 1;
        }
        taken
    }

    fn is_op(&self, op: &str) -> bool {
        matches!(self.token(), Token::Op(o) if *o == op)
    }

    fn skip_op(&mut self, op: &str) -> bool {
        let is = self.is_op(op);
        if is {
            self.next();
        }
        is
    }

    fn is_name(&self, name: &str) -> bool {
        matches!(self.token(), Token::Name(n) if n == name)
    }

    fn skip_name(&mut self, name: &str) -> bool {
        let is = self.is_name(name);
        if is {
            self.next();
        }
        is
    }

    fn unexpected<T>(&self, expected: &str) -> Res<T> {
        let found = match self.token() {
            Token::Data(_) => "text".to_owned(),
            Token::PrintBegin => "{{".to_owned(),
            Token::PrintEnd => "}}".to_owned(),
            Token::TagBegin => "{%".to_owned(),
            Token::TagEnd => "%}".to_owned(),
            Token::Name(name) => format!("`{name}`"),
            Token::Text(_) => "a string".to_owned(),
            Token::Int(_) | Token::Float(_) => "a number".to_owned(),
            Token::Op(op) => format!("`{op}`"),
            Token::End => "the end of the template".to_owned(),
        };
        Err(Fail::new(format!("expected {expected}, found {found}")).at(self.line()))
    }

    fn expect_op(&mut self, op: &'static str) -> Res<()> {
        if self.skip_op(op) {
            return Ok(());
        }
        self.unexpected(&format!("`{op}`"))
    }

    fn expect_name(&mut self) -> Res<String> {
        match self.token() {
            Token::Name(_) => match self.next() {
                Token::Name(name) => Ok(name),
                _ => self.unexpected("a name"),
            },
            _ => self.unexpected("a name"),
        }
    }

    fn expect(&mut self, token: &Token, shown: &str) -> Res<()> {
        if self.token() == token {
            self.next();
            return Ok(());
        }
        self.unexpected(shown)
    }

    fn deeper(&mut self) -> Res<()> {
        self.expressions += 1;
        if self.expressions > EXPRESSIONS_MAX {
            return fail(format!(
                "an expression is nested more than {EXPRESSIONS_MAX} deep"
            ));
        }
        Ok(())
    }
}

/// Refuses more than [`ARGUMENTS_MAX`] of them.
fn few(count: usize, what: &str) -> Res<()> {
    if count > ARGUMENTS_MAX {
        return fail(format!("there are more than {ARGUMENTS_MAX} {what}"));
    }
    Ok(())
}

/// Names that are values, which nothing can be called.
fn is_constant(name: &str) -> bool {
    matches!(name, "true" | "false" | "none" | "True" | "False" | "None")
}
