//! Calls, filters and tests, which may follow a value.

use super::super::ast::{Args, Expr, ExprKind};
use super::super::fail::{Res, fail};
use super::super::lexer::Token;
use super::{Parser, few};

impl Parser {
    pub(super) fn call(&mut self, value: Expr) -> Res<Expr> {
        let line = self.line();
        let args = Box::new(self.args()?);
        Ok(Expr {
            line,
            kind: ExprKind::Call(Box::new(value), args),
        })
    }

    fn args(&mut self) -> Res<Args> {
        self.expect_op("(")?;
        let mut args = Args::default();
        self.up_to(")", |parser| parser.arg(&mut args))?;
        Ok(args)
    }

    fn arg(&mut self, args: &mut Args) -> Res<()> {
        let wrong = "arguments stand in an order that Python does not allow";
        if self.skip_op("*") {
            if args.more.is_some() || args.more_named.is_some() {
                return fail(wrong);
            }
            args.more = Some(self.expression(true)?);
        } else if self.skip_op("**") {
            if args.more_named.is_some() {
                return fail(wrong);
            }
            args.more_named = Some(self.expression(true)?);
        } else if let Token::Name(name) = self.token()
            && matches!(self.after(), Token::Op("="))
        {
            if args.more_named.is_some() {
                return fail(wrong);
            }
            let name = self.names.number(&name.clone());
            if args.named.iter().any(|(other, _)| *other == name) {
                return fail("an argument is named twice");
            }
            self.next();
            self.next();
            args.named.push((name, self.expression(true)?));
        } else {
            if args.more.is_some() || args.more_named.is_some() || !args.named.is_empty() {
                return fail(wrong);
            }
            args.positional.push(self.expression(true)?);
        }
        few(args.positional.len() + args.named.len(), "arguments")
    }

    /// The filters (and tests and calls, if `with_tests`) behind a value.
    pub(super) fn filters(&mut self, mut value: Expr, with_tests: bool) -> Res<Expr> {
        loop {
            if self.skip_op("|") {
                value = self.filter(Some(value))?;
            } else if with_tests && self.skip_name("is") {
                value = self.test(value)?;
            } else if with_tests && self.is_op("(") {
                value = self.call(value)?;
            } else {
                return Ok(value);
            }
        }
    }

    fn dotted(&mut self) -> Res<String> {
        let mut name = self.expect_name()?;
        while self.skip_op(".") {
            name = name + "." + &self.expect_name()?;
        }
        Ok(name)
    }

    /// A filter, whose `|` is taken.
    pub(super) fn filter(&mut self, value: Option<Expr>) -> Res<Expr> {
        let line = self.line();
        let name = self.dotted()?;
        if !self.is_soft && !(self.known.filter)(&name) {
            self.unknown
                .push((line, format!("there is no filter `{name}`")));
        }
        let args = match self.is_op("(") {
            true => self.args()?,
            false => Args::default(),
        };
        let name = self.names.number(&name);
        let kind = ExprKind::Filter(value.map(Box::new), name, Box::new(args));
        Ok(Expr { line, kind })
    }

    /// A test, whose `is` is taken.
    fn test(&mut self, value: Expr) -> Res<Expr> {
        let line = self.line();
        let negated = self.skip_name("not");
        let name = self.dotted()?;
        if !self.is_soft && !(self.known.test)(&name) {
            self.unknown
                .push((line, format!("there is no test `{name}`")));
        }
        let takes_one = match self.token() {
            Token::Op("[" | "{") | Token::Text(_) | Token::Int(_) | Token::Float(_) => true,
            Token::Name(n) => !matches!(n.as_str(), "else" | "or" | "and"),
            _ => false,
        };
        let args = if self.is_op("(") {
            self.args()?
        } else if takes_one {
            if self.is_name("is") {
                return fail("tests cannot be chained with `is`");
            }
            let argument = self.primary()?;
            Args {
                positional: vec![self.postfix(argument)?],
                ..Args::default()
            }
        } else {
            Args::default()
        };
        let name = self.names.number(&name);
        let mut value = Expr {
            line,
            kind: ExprKind::Test(Box::new(value), name, Box::new(args)),
        };
        if negated {
            value = Expr {
                line,
                kind: ExprKind::Not(Box::new(value)),
            };
        }
        Ok(value)
    }
}
