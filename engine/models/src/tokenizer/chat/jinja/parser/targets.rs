//! What is assigned to.

use super::super::ast::Target;
use super::super::fail::{Res, fail};
use super::super::lexer::Token;
use super::{Parser, is_constant};

impl Parser {
    /// Whether a list that stands without brackets ends here, or at one of these words.
    pub(super) fn is_at_end(&self, ends: &[&str]) -> bool {
        match self.token() {
            Token::PrintEnd | Token::TagEnd | Token::Op(")") => true,
            Token::Name(name) => ends.contains(&name.as_str()),
            _ => false,
        }
    }

    /// Items with commas between them, and whether there was a comma.
    pub(super) fn between_commas<T>(
        &mut self,
        ends: &[&str],
        mut item: impl FnMut(&mut Self) -> Res<T>,
    ) -> Res<(Vec<T>, bool)> {
        let mut items = Vec::new();
        let mut has_comma = false;
        while !self.is_at_end(ends) {
            items.push(item(self)?);
            if !self.skip_op(",") {
                break;
            }
            has_comma = true;
        }
        Ok((items, has_comma))
    }

    /// Items with commas between them, perhaps one behind the last, and what closes them.
    pub(super) fn up_to<T>(
        &mut self,
        close: &'static str,
        mut item: impl FnMut(&mut Self) -> Res<T>,
    ) -> Res<Vec<T>> {
        let mut items = Vec::new();
        while !self.is_op(close) {
            if !items.is_empty() {
                self.expect_op(",")?;
                if self.is_op(close) {
                    break;
                }
            }
            items.push(item(self)?);
        }
        self.expect_op(close)?;
        Ok(items)
    }

    /// What is assigned to.
    pub(super) fn targets(&mut self, ends: &[&str], with_namespace: bool) -> Res<Target> {
        let target = |parser: &mut Self| parser.target(with_namespace);
        let (mut targets, is_tuple) = self.between_commas(ends, target)?;
        match (is_tuple, targets.pop()) {
            (false, Some(target)) => Ok(target),
            (true, Some(last)) => {
                targets.push(last);
                Ok(Target::Tuple(targets))
            }
            (_, None) => self.unexpected("a name to assign to"),
        }
    }

    fn target(&mut self, with_namespace: bool) -> Res<Target> {
        self.deeper()?;
        let target = if self.skip_op("(") {
            let target = match self.is_op(")") {
                true => Target::Tuple(Vec::new()),
                false => self.targets(&[], false)?,
            };
            self.expect_op(")")?;
            target
        } else {
            let name = self.expect_name()?;
            if is_constant(&name) {
                return fail(format!("`{name}` cannot be assigned to"));
            }
            let name = self.names.number(&name);
            match with_namespace && self.skip_op(".") {
                true => {
                    let attribute = self.expect_name()?;
                    Target::Attribute(name, self.names.number(&attribute))
                }
                false => Target::Name(name),
            }
        };
        self.expressions -= 1;
        Ok(target)
    }
}
