//! What operators join: names, constants, brackets, and what follows in dots and brackets.

use super::super::ast::{Expr, ExprKind};
use super::super::fail::{Res, fail};
use super::super::lexer::Token;
use super::Parser;

impl Parser {
    pub(super) fn primary(&mut self) -> Res<Expr> {
        let line = self.line();
        let kind = match self.token() {
            Token::Name(_) => {
                let name = self.expect_name()?;
                let special = ["caller", "kwargs", "varargs"]
                    .iter()
                    .position(|s| *s == name);
                if let (Some(special), Some(mentions)) = (special, self.macros.last_mut()) {
                    mentions[special] = true;
                }
                match name.as_str() {
                    "true" | "True" => ExprKind::Bool(true),
                    "false" | "False" => ExprKind::Bool(false),
                    "none" | "None" => ExprKind::None,
                    other => ExprKind::Name(self.names.number(other)),
                }
            }
            Token::Text(_) => {
                let mut text = String::new();
                while let Token::Text(piece) = self.token() {
                    text.push_str(piece);
                    self.next();
                }
                ExprKind::Text(self.texts.number(&text))
            }
            &Token::Int(number) => {
                self.next();
                ExprKind::Int(number)
            }
            &Token::Float(number) => {
                self.next();
                ExprKind::Float(number)
            }
            Token::Op("(") => {
                self.next();
                let value = self.tuple(true, &[], true)?;
                self.expect_op(")")?;
                return Ok(value);
            }
            Token::Op("[") => {
                self.next();
                ExprKind::List(self.up_to("]", |parser| parser.expression(true))?)
            }
            Token::Op("{") => {
                self.next();
                ExprKind::Dict(self.up_to("}", |parser| {
                    let key = parser.expression(true)?;
                    parser.expect_op(":")?;
                    Ok((key, parser.expression(true)?))
                })?)
            }
            _ => return self.unexpected("an expression"),
        };
        Ok(Expr { line, kind })
    }

    pub(super) fn postfix(&mut self, mut value: Expr) -> Res<Expr> {
        loop {
            value = match self.token() {
                Token::Op("." | "[") => self.subscript(value)?,
                Token::Op("(") => self.call(value)?,
                _ => return Ok(value),
            };
        }
    }

    fn subscript(&mut self, value: Expr) -> Res<Expr> {
        let line = self.line();
        if self.skip_op(".") {
            let kind = match self.next() {
                Token::Name(name) => ExprKind::Attribute(Box::new(value), self.names.number(&name)),
                Token::Int(number) => {
                    let index = Expr {
                        line,
                        kind: ExprKind::Int(number),
                    };
                    ExprKind::Item(Box::new(value), Box::new(index))
                }
                _ => return fail("a dot is followed by neither a name nor a number"),
            };
            return Ok(Expr { line, kind });
        }
        self.expect_op("[")?;
        let mut indices = Vec::new();
        let mut slice = None;
        while !self.is_op("]") {
            if !indices.is_empty() {
                self.expect_op(",")?;
            }
            let (index, parts) = self.index()?;
            indices.push(index);
            slice = parts;
        }
        self.expect_op("]")?;
        let kind = match (indices.len(), slice) {
            (1, Some(slice)) => ExprKind::Slice(Box::new(value), slice),
            (1, None) => ExprKind::Item(Box::new(value), Box::new(indices.remove(0))),
            _ => {
                let index = Expr {
                    line,
                    kind: ExprKind::Tuple(indices),
                };
                ExprKind::Item(Box::new(value), Box::new(index))
            }
        };
        Ok(Expr { line, kind })
    }

    /// An index, or a slice's three parts.
    #[allow(clippy::type_complexity, reason = "a name would say no more")]
    fn index(&mut self) -> Res<(Expr, Option<Box<[Option<Expr>; 3]>>)> {
        let line = self.line();
        let mut parts = [None, None, None];
        if !self.is_op(":") {
            let value = self.expression(true)?;
            if !self.is_op(":") {
                return Ok((value, None));
            }
            parts[0] = Some(value);
        }
        self.expect_op(":")?;
        if !(self.is_op(":") || self.is_op("]") || self.is_op(",")) {
            parts[1] = Some(self.expression(true)?);
        }
        if self.skip_op(":") && !(self.is_op("]") || self.is_op(",")) {
            parts[2] = Some(self.expression(true)?);
        }
        let bare = Expr {
            line,
            kind: ExprKind::BareSlice,
        };
        Ok((bare, Some(Box::new(parts))))
    }
}
