//! Expressions, from the weakest operator down to signs.

use super::super::ast::{Binary, Compare, Expr, ExprKind};
use super::super::fail::Res;
use super::super::lexer::Token;
use super::Parser;

impl Parser {
    /// An expression, or several with commas between them.
    pub(super) fn tuple(
        &mut self,
        with_condition: bool,
        ends: &[&str],
        in_brackets: bool,
    ) -> Res<Expr> {
        let line = self.line();
        let item = |parser: &mut Self| parser.expression(with_condition);
        let (mut items, is_tuple) = self.between_commas(ends, item)?;
        if !is_tuple {
            if let Some(item) = items.pop() {
                return Ok(item);
            }
            if !in_brackets {
                return self.unexpected("an expression");
            }
        }
        Ok(Expr {
            line,
            kind: ExprKind::Tuple(items),
        })
    }

    pub(super) fn expression(&mut self, with_condition: bool) -> Res<Expr> {
        self.deeper()?;
        let value = match with_condition {
            true => self.conditional()?,
            false => self.or()?,
        };
        self.expressions -= 1;
        Ok(value)
    }

    fn conditional(&mut self) -> Res<Expr> {
        let line = self.line();
        let unknown = self.unknown.len();
        let mut value = self.or()?;
        while self.skip_name("if") {
            let soft = std::mem::replace(&mut self.is_soft, true);
            let condition = self.or()?;
            let otherwise = match self.skip_name("else") {
                true => Some(Box::new(self.expression(true)?)),
                false => None,
            };
            self.is_soft = soft;
            // What it has may never be reached.
            self.unknown.truncate(unknown);
            let kind = ExprKind::If(Box::new(condition), Box::new(value), otherwise);
            value = Expr { line, kind };
        }
        Ok(value)
    }

    fn or(&mut self) -> Res<Expr> {
        self.joined("or", Self::and, ExprKind::Or)
    }

    fn and(&mut self) -> Res<Expr> {
        self.joined("and", Self::not, ExprKind::And)
    }

    /// Operands with a word between them, from the left.
    fn joined(
        &mut self,
        word: &str,
        operand: fn(&mut Self) -> Res<Expr>,
        kind: fn(Box<Expr>, Box<Expr>) -> ExprKind,
    ) -> Res<Expr> {
        let line = self.line();
        let mut left = operand(self)?;
        while self.skip_name(word) {
            let kind = kind(Box::new(left), Box::new(operand(self)?));
            left = Expr { line, kind };
        }
        Ok(left)
    }

    fn not(&mut self) -> Res<Expr> {
        let mut lines = Vec::new();
        while self.is_name("not") {
            lines.push(self.line());
            self.next();
        }
        let mut value = self.compare()?;
        while let Some(line) = lines.pop() {
            value = Expr {
                line,
                kind: ExprKind::Not(Box::new(value)),
            };
        }
        Ok(value)
    }

    fn compare(&mut self) -> Res<Expr> {
        let line = self.line();
        let first = self.sum()?;
        let mut others = Vec::new();
        loop {
            let op = match self.token() {
                Token::Op("==") => Compare::Eq,
                Token::Op("!=") => Compare::Ne,
                Token::Op("<") => Compare::Lt,
                Token::Op("<=") => Compare::Le,
                Token::Op(">") => Compare::Gt,
                Token::Op(">=") => Compare::Ge,
                Token::Name(name) if name == "in" => Compare::In,
                Token::Name(name)
                    if name == "not" && matches!(self.after(), Token::Name(n) if n == "in") =>
                {
                    self.next();
                    Compare::NotIn
                }
                _ => break,
            };
            self.next();
            others.push((op, self.sum()?));
        }
        if others.is_empty() {
            return Ok(first);
        }
        Ok(Expr {
            line,
            kind: ExprKind::Compare(Box::new(first), others),
        })
    }

    fn binary(&mut self, ops: &[(&str, Binary)], operand: fn(&mut Self) -> Res<Expr>) -> Res<Expr> {
        let line = self.line();
        let mut left = operand(self)?;
        while let Some(&(_, op)) = ops.iter().find(|(op, _)| self.is_op(op)) {
            self.next();
            let kind = ExprKind::Binary(op, Box::new(left), Box::new(operand(self)?));
            left = Expr { line, kind };
        }
        Ok(left)
    }

    fn sum(&mut self) -> Res<Expr> {
        self.binary(&[("+", Binary::Add), ("-", Binary::Sub)], Self::concat)
    }

    fn concat(&mut self) -> Res<Expr> {
        let line = self.line();
        let first = self.product()?;
        if !self.is_op("~") {
            return Ok(first);
        }
        let mut parts = vec![first];
        while self.skip_op("~") {
            parts.push(self.product()?);
        }
        Ok(Expr {
            line,
            kind: ExprKind::Concat(parts),
        })
    }

    fn product(&mut self) -> Res<Expr> {
        let ops = [
            ("*", Binary::Mul),
            ("/", Binary::Div),
            ("//", Binary::FloorDiv),
            ("%", Binary::Mod),
        ];
        self.binary(&ops, Self::power)
    }

    fn power(&mut self) -> Res<Expr> {
        self.binary(&[("**", Binary::Pow)], Self::unary)
    }

    fn unary(&mut self) -> Res<Expr> {
        let mut signs = Vec::new();
        while self.is_op("-") || self.is_op("+") {
            signs.push((self.line(), self.is_op("-")));
            self.next();
        }
        let value = self.primary()?;
        let mut value = self.postfix(value)?;
        while let Some((line, is_minus)) = signs.pop() {
            let inner = Box::new(value);
            let kind = match is_minus {
                true => ExprKind::Minus(inner),
                false => ExprKind::Plus(inner),
            };
            value = Expr { line, kind };
        }
        self.filters(value, true)
    }
}
