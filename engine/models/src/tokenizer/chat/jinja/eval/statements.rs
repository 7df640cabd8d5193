//! Statements, as they run.

use std::rc::Rc;
use std::sync::Arc;

use super::super::ast::{Body, Expr, ExprKind, For, Macro, Stmt, StmtKind, Target};
use super::super::budget::{self, Buffer};
use super::super::fail::{Res, fail};
use super::super::scope::Scope;
use super::super::show::write_str;
use super::super::value::{Loop, Macro as MacroValue, Seq, Value};
use super::{Flow, Machine};

impl Machine<'_> {
    pub(super) fn body(&self, body: &Body, scope: &Rc<Scope>, out: &mut Buffer) -> Res<Flow> {
        self.deeper(|| {
            for name in &body.unset {
                scope.set(*name, self.undefined(*name)?)?;
            }
            for stmt in &body.stmts {
                let flow = self.stmt(stmt, scope, out).map_err(|e| e.at(stmt.line))?;
                if flow != Flow::Next {
                    return Ok(flow);
                }
            }
            Ok(Flow::Next)
        })
    }

    fn stmt(&self, stmt: &Stmt, scope: &Rc<Scope>, out: &mut Buffer) -> Res<Flow> {
        match &stmt.kind {
            StmtKind::Text(number) => {
                out.push(&self.template.texts[*number as usize])?;
            }
            StmtKind::Print(expr) => write_str(&self.eval(expr, scope)?, out)?,
            StmtKind::If(branches, otherwise) => {
                for (condition, body) in branches {
                    budget::steps(1)?;
                    if self.eval(condition, scope)?.is_true() {
                        return self.body(body, scope, out);
                    }
                }
                return self.body(otherwise, scope, out);
            }
            StmtKind::For(definition) => return self.for_loop(definition, scope, out),
            StmtKind::Set(target, expr) => self.set(target, expr, scope)?,
            StmtKind::Capture(target, filter, body) => {
                let mut captured = Buffer::default();
                let flow = self.body(body, &Scope::new(Some(scope.clone()))?, &mut captured)?;
                if flow != Flow::Next {
                    return Ok(flow);
                }
                let mut value = Value::buffer(captured);
                if let Some(filter) = filter {
                    value = self.filter(filter, Some(value), scope)?;
                }
                self.assign(target, value, scope)?;
            }
            StmtKind::With(values, body) => {
                let inner = Scope::new(Some(scope.clone()))?;
                for (target, expr) in values {
                    let value = self.eval(expr, scope)?;
                    self.assign(target, value, &inner)?;
                }
                return self.body(body, &inner, out);
            }
            StmtKind::Macro(definition) => {
                let value = self.make_macro(definition, scope)?;
                scope.set(definition.name.unwrap_or_default(), value)?;
            }
            StmtKind::CallBlock(definition, call) => {
                let caller = self.make_macro(definition, scope)?;
                let ExprKind::Call(callee, args) = &call.kind else {
                    return fail("`call` is not followed by a call");
                };
                let value = self.call(callee, args, Some(caller), scope)?;
                write_str(&value, out)?;
            }
            StmtKind::Filter(filter, body) => {
                let mut captured = Buffer::default();
                let flow = self.body(body, &Scope::new(Some(scope.clone()))?, &mut captured)?;
                if flow != Flow::Next {
                    return Ok(flow);
                }
                let value = self.filter(filter, Some(Value::buffer(captured)), scope)?;
                write_str(&value, out)?;
            }
            StmtKind::Scope(body) => {
                return self.body(body, &Scope::new(Some(scope.clone()))?, out);
            }
            StmtKind::Block(body) => {
                self.body(body, &Scope::new(Some(self.root.clone()))?, out)?;
            }
            StmtKind::Break => return Ok(Flow::Break),
            StmtKind::Continue => return Ok(Flow::Continue),
            StmtKind::Refused(what) => {
                return fail(format!(
                    "`{what}` needs other templates, of which there are none"
                ));
            }
        }
        Ok(Flow::Next)
    }

    fn for_loop(&self, definition: &Arc<For>, scope: &Rc<Scope>, out: &mut Buffer) -> Res<Flow> {
        let items = self.eval(&definition.items, scope)?;
        self.run_loop(definition, &items, 0, scope, out)
    }

    pub(super) fn run_loop(
        &self,
        definition: &Arc<For>,
        items: &Value,
        depth: usize,
        scope: &Rc<Scope>,
        out: &mut Buffer,
    ) -> Res<Flow> {
        let mut items = items.items()?;
        if let Some(condition) = &definition.condition {
            let mut kept = Vec::new();
            for item in &items.items {
                let inner = Scope::new(Some(scope.clone()))?;
                self.unpack(&definition.target, item.clone(), &inner)?;
                if self.eval(condition, &inner)?.is_true() {
                    kept.push(item.clone());
                }
            }
            items = Seq::new(kept)?;
        }
        if items.items.is_empty() {
            let inner = Scope::new(Some(scope.clone()))?;
            return self.body(&definition.otherwise, &inner, out);
        }
        let again = definition.recursive.then(|| {
            self.keep(scope);
            (definition.clone(), scope.clone())
        });
        let state = Loop::new(items.clone(), depth, again)?;
        let mut completed = false;
        for (at, item) in items.items.iter().enumerate() {
            state.index.set(at);
            let inner = Scope::new(Some(scope.clone()))?;
            if let Some(name) = self.special[0] {
                inner.set(name, Value::Loop(state.clone()))?;
            }
            self.unpack(&definition.target, item.clone(), &inner)?;
            match self.body(&definition.body, &inner, out)? {
                Flow::Next => completed = true,
                Flow::Continue => {}
                Flow::Break => break,
            }
        }
        // jinja2 notes at the end of the body that the loop was not empty.
        if !completed {
            let inner = Scope::new(Some(scope.clone()))?;
            return self.body(&definition.otherwise, &inner, out);
        }
        Ok(Flow::Next)
    }

    fn set(&self, target: &Target, expr: &Expr, scope: &Rc<Scope>) -> Res<()> {
        let value = self.eval(expr, scope)?;
        self.assign(target, value, scope)
    }

    fn assign(&self, target: &Target, value: Value, scope: &Rc<Scope>) -> Res<()> {
        self.unpack(target, value, scope)
    }

    fn unpack(&self, target: &Target, value: Value, scope: &Rc<Scope>) -> Res<()> {
        match target {
            Target::Name(name) => scope.set(*name, value),
            Target::Attribute(name, field) => match self.lookup(*name, scope)? {
                Some(Value::Namespace(namespace)) => namespace.set(self.name(*field), value),
                _ => fail("cannot assign attribute on non-namespace object"),
            },
            Target::Tuple(targets) => {
                let items = value.items()?;
                if items.items.len() != targets.len() {
                    return fail(format!(
                        "{} values to unpack, not {}",
                        targets.len(),
                        items.items.len()
                    ));
                }
                for (target, item) in targets.iter().zip(&items.items) {
                    self.unpack(target, item.clone(), scope)?;
                }
                Ok(())
            }
        }
    }

    /// Keeps a scope until the end, since what is in it may hold it.
    fn keep(&self, scope: &Rc<Scope>) {
        let mut scopes = self.scopes.borrow_mut();
        if !scopes.last().is_some_and(|last| Rc::ptr_eq(last, scope)) {
            scopes.push(scope.clone());
        }
    }

    fn make_macro(&self, definition: &Arc<Macro>, scope: &Rc<Scope>) -> Res<Value> {
        self.keep(scope);
        let name = definition.name.map(|name| self.name(name));
        MacroValue::new(definition.clone(), name, scope.clone()).map(Value::Macro)
    }
}
