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

    /// What is assigned to.
    pub(super) fn targets(&mut self, ends: &[&str], with_namespace: bool) -> Res<Target> {
        let mut targets = Vec::new();
        let mut is_tuple = false;
        loop {
            if self.is_at_end(ends) {
                break;
            }
            targets.push(self.target(with_namespace)?);
            if !self.skip_op(",") {
                break;
            }
            is_tuple = true;
        }
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
