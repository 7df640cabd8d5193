//! The variables that blocks of a template have.

use std::cell::RefCell;
use std::rc::Rc;

use super::ast::Sym;
use super::budget::{self, Charge};
use super::fail::Res;
use super::value::Value;

/// Bytes that a scope takes, and a variable in it.
const SCOPE_BYTES: usize = 128;
const VARIABLE_BYTES: usize = 64;
/// Variables that are looked through for a step.
const VARIABLES_PER_STEP: usize = 32;

/// The variables of a block, inside of those of the blocks around it.
pub(super) struct Scope {
    variables: RefCell<Vec<(Sym, Value)>>,
    around: Option<Rc<Scope>>,
    charge: RefCell<Charge>,
}

impl Scope {
    pub(super) fn new(around: Option<Rc<Self>>) -> Res<Rc<Self>> {
        budget::steps(1)?;
        Ok(Rc::new(Self {
            variables: RefCell::default(),
            around,
            charge: RefCell::new(Charge::new(SCOPE_BYTES)?),
        }))
    }

    pub(super) fn get(&self, name: Sym) -> Res<Option<Value>> {
        let (mut scope, mut looked_at) = (Some(self), 0);
        while let Some(this) = scope {
            let variables = this.variables.borrow();
            if let Some((_, value)) = variables.iter().find(|(n, _)| *n == name) {
                budget::steps(looked_at / VARIABLES_PER_STEP)?;
                return Ok(Some(value.clone()));
            }
            looked_at += 1 + variables.len();
            scope = this.around.as_deref();
        }
        budget::steps(looked_at / VARIABLES_PER_STEP)?;
        Ok(None)
    }

    pub(super) fn set(&self, name: Sym, value: Value) -> Res<()> {
        let mut variables = self.variables.borrow_mut();
        budget::steps(1 + variables.len() / 8)?;
        if let Some((_, old)) = variables.iter_mut().find(|(n, _)| *n == name) {
            let old = std::mem::replace(old, value);
            drop(variables);
            drop(old);
            return Ok(());
        }
        self.charge.borrow_mut().grow(VARIABLE_BYTES)?;
        variables.push((name, value));
        Ok(())
    }

    /// Forgets all variables: they may hold functions that hold this scope.
    pub(super) fn clear(&self) {
        let variables = self.variables.take();
        drop(variables);
    }
}
