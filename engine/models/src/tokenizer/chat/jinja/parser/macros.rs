//! Macros, and blocks that call them.

use std::sync::Arc;

use super::super::ast::{Expr, ExprKind, Macro, StmtKind, Sym};
use super::super::fail::{Res, fail};
use super::{Parser, few, is_constant};

impl Parser {
    pub(super) fn macro_block(&mut self) -> Res<StmtKind> {
        let name = self.expect_name()?;
        let name = self.names.number(&name);
        let params = self.signature()?;
        let definition = self.macro_body(Some(name), params, "endmacro")?;
        Ok(StmtKind::Macro(Arc::new(definition)))
    }

    pub(super) fn call_block(&mut self) -> Res<StmtKind> {
        let params = match self.is_op("(") {
            true => self.signature()?,
            false => Vec::new(),
        };
        let call = self.expression(true)?;
        if !matches!(call.kind, ExprKind::Call(..)) {
            return fail("`call` is not followed by a call");
        }
        let definition = self.macro_body(None, params, "endcall")?;
        Ok(StmtKind::CallBlock(Arc::new(definition), call))
    }

    fn signature(&mut self) -> Res<Vec<(Sym, Option<Expr>)>> {
        let mut params: Vec<(Sym, Option<Expr>)> = Vec::new();
        self.expect_op("(")?;
        while !self.is_op(")") {
            if !params.is_empty() {
                self.expect_op(",")?;
            }
            let name = self.expect_name()?;
            if is_constant(&name) {
                return fail(format!("`{name}` cannot be a parameter"));
            }
            let name = self.names.number(&name);
            if params.iter().any(|(other, _)| *other == name) {
                return fail("a parameter is named twice");
            }
            let default = match self.skip_op("=") {
                true => Some(self.expression(true)?),
                false if params.last().is_some_and(|(_, default)| default.is_some()) => {
                    return fail("a parameter without a default follows one that has one");
                }
                false => None,
            };
            params.push((name, default));
            few(params.len(), "parameters")?;
        }
        self.expect_op(")")?;
        Ok(params)
    }

    fn macro_body(
        &mut self,
        name: Option<Sym>,
        params: Vec<(Sym, Option<Expr>)>,
        end: &str,
    ) -> Res<Macro> {
        self.macros.push([false; 3]);
        let in_loop = std::mem::replace(&mut self.in_loop, false);
        let body = self.scoped(end)?;
        self.in_loop = in_loop;
        let [mut caller, mut kwargs, mut varargs] = self.macros.pop().unwrap_or_default();
        if let Some(around) = self.macros.last_mut() {
            *around = [around[0] | caller, around[1] | kwargs, around[2] | varargs];
        }
        for (param, default) in &params {
            match self.names.list[*param as usize].as_str() {
                "caller" if caller && default.is_none() => {
                    return fail("the parameter `caller` needs a default");
                }
                "caller" => caller = false,
                "kwargs" => kwargs = false,
                "varargs" => varargs = false,
                _ => {}
            }
        }
        Ok(Macro {
            name,
            params,
            body,
            caller,
            kwargs,
            varargs,
        })
    }
}
