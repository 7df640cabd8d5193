//! Expressions, as they are evaluated.

use std::rc::Rc;

use super::super::ast::{Expr, ExprKind, Sym};
use super::super::attributes::{attribute, item};
use super::super::budget::{self, Buffer, Charge};
use super::super::fail::{Named, Res, fail};
use super::super::scope::Scope;
use super::super::show::write_str;
use super::super::value::{Dict, Value};
use super::super::{ops, tests};
use super::{ELEMENT_BYTES, Machine};

impl Machine<'_> {
    pub(super) fn lookup(&self, name: Sym, scope: &Scope) -> Res<Option<Value>> {
        let found = scope.get(name)?;
        Ok(found.or_else(|| self.context.get(name as usize).cloned().flatten()))
    }

    pub(super) fn undefined(&self, name: Sym) -> Res<Value> {
        Value::undefined(format!("'{}' is undefined", Named(self.name(name))))
    }

    pub(super) fn eval(&self, expr: &Expr, scope: &Rc<Scope>) -> Res<Value> {
        let value = match &expr.kind {
            // What has no parts needs no level.
            ExprKind::Name(name) => {
                budget::steps(1)?;
                let found = self.lookup(*name, scope)?;
                found.map_or_else(|| self.undefined(*name), Ok)
            }
            ExprKind::Text(number) => self.text_value(*number),
            ExprKind::None => Ok(Value::None),
            ExprKind::Bool(truth) => Ok(Value::Bool(*truth)),
            ExprKind::Int(number) => Ok(Value::Int(*number)),
            ExprKind::Float(number) => Ok(Value::Float(*number)),
            _ => self.deeper(|| self.eval_parts(expr, scope)),
        };
        value.map_err(|e| e.at(expr.line))
    }

    fn all(&self, exprs: &[Expr], scope: &Rc<Scope>) -> Res<Vec<Value>> {
        budget::steps(exprs.len() / 4)?;
        let _charge = Charge::new(ELEMENT_BYTES * exprs.len())?;
        exprs.iter().map(|expr| self.eval(expr, scope)).collect()
    }

    fn eval_parts(&self, expr: &Expr, scope: &Rc<Scope>) -> Res<Value> {
        match &expr.kind {
            ExprKind::Attribute(value, name) => {
                attribute(&self.eval(value, scope)?, self.name(*name))
            }
            ExprKind::Item(value, key) => {
                let value = self.eval(value, scope)?;
                item(&value, &self.eval(key, scope)?)
            }
            ExprKind::Not(value) => Ok(Value::Bool(!self.eval(value, scope)?.is_true())),
            ExprKind::And(a, b) => {
                let value = self.eval(a, scope)?;
                if value.is_true() {
                    self.eval(b, scope)
                } else {
                    Ok(value)
                }
            }
            ExprKind::Or(a, b) => {
                let value = self.eval(a, scope)?;
                if value.is_true() {
                    Ok(value)
                } else {
                    self.eval(b, scope)
                }
            }
            ExprKind::Binary(op, a, b) => {
                let a = self.eval(a, scope)?;
                ops::binary(*op, &a, &self.eval(b, scope)?)
            }
            ExprKind::Minus(value) => ops::signed(&self.eval(value, scope)?, true),
            ExprKind::Plus(value) => ops::signed(&self.eval(value, scope)?, false),
            ExprKind::Filter(..) => self.filter(expr, None, scope),
            ExprKind::Call(callee, args) => self.call(callee, args, None, scope),
            ExprKind::Test(value, name, args) => {
                let value = self.eval(value, scope)?;
                let args = self.arguments(args, scope)?;
                tests::call(self.name(*name), &value, args).map(Value::Bool)
            }
            ExprKind::If(condition, value, otherwise) => {
                if self.eval(condition, scope)?.is_true() {
                    return self.eval(value, scope);
                }
                match otherwise {
                    Some(otherwise) => self.eval(otherwise, scope),
                    None => Value::undefined(
                        "the inline if-expression evaluated to false and no else section was \
                         defined.",
                    ),
                }
            }
            _ => self.eval_rarer(expr, scope),
        }
    }

    /// The kinds that take more of the stack, or are rare.
    fn eval_rarer(&self, expr: &Expr, scope: &Rc<Scope>) -> Res<Value> {
        match &expr.kind {
            ExprKind::List(items) => Value::list(self.all(items, scope)?),
            ExprKind::Tuple(items) => Value::tuple(self.all(items, scope)?),
            ExprKind::Dict(items) => {
                let mut dict = Dict::new()?;
                for (key, value) in items {
                    let key = self.eval(key, scope)?;
                    dict.insert(key, self.eval(value, scope)?)?;
                }
                Ok(Value::Dict(Rc::new(dict)))
            }
            ExprKind::Slice(value, parts) => {
                let value = self.eval(value, scope)?;
                let mut bounds = [None, None, None];
                for (bound, part) in bounds.iter_mut().zip(parts.iter()) {
                    if let Some(part) = part {
                        *bound = Some(self.eval(part, scope)?);
                    }
                }
                ops::slice(&value, &bounds)
            }
            ExprKind::Concat(parts) => {
                let mut joined = Buffer::default();
                for part in parts {
                    write_str(&self.eval(part, scope)?, &mut joined)?;
                }
                Ok(Value::buffer(joined))
            }
            ExprKind::Compare(first, others) => {
                let mut left = self.eval(first, scope)?;
                for (op, right) in others {
                    let right = self.eval(right, scope)?;
                    if !ops::compare(*op, &left, &right)? {
                        return Ok(Value::Bool(false));
                    }
                    left = right;
                }
                Ok(Value::Bool(true))
            }
            _ => fail("a slice stands where no value takes it"),
        }
    }
}
