//! Calls of filters, macros and functions.

use std::rc::Rc;

use super::super::args::{Arguments, int, text};
use super::super::ast::{Args, Expr, ExprKind};
use super::super::budget::{self, Buffer};
use super::super::fail::{Fail, Named, Res, fail};
use super::super::scope::Scope;
use super::super::show::to_str;
use super::super::value::{
    Cycler, Dict, Function, Joiner, Macro as MacroValue, Namespace, Range, Value,
};
use super::super::{filters, methods, ops};
use super::{Machine, RANGE_MAX};
use crate::tokenizer::chat::clock;

impl Machine<'_> {
    pub(super) fn arguments(&self, args: &Args, scope: &Rc<Scope>) -> Res<Arguments> {
        let mut all = Arguments::default();
        all.reserve(args.positional.len())?;
        for expr in &args.positional {
            all.positional.push(self.eval(expr, scope)?);
        }
        for (name, expr) in &args.named {
            all.push_named(self.name(*name), self.eval(expr, scope)?)?;
        }
        if let Some(more) = &args.more {
            let more = self.eval(more, scope)?.items()?;
            all.reserve(more.items.len())?;
            all.positional.extend_from_slice(&more.items);
        }
        if let Some(more) = &args.more_named {
            let more = self.eval(more, scope)?;
            let Value::Dict(more) = more else {
                return fail("what follows ** is not a mapping");
            };
            for (name, value) in more.entries() {
                budget::steps(1 + all.named.len() / 8)?;
                let name = text(name)?;
                if all.named.iter().any(|(n, _)| n == name) {
                    return fail(format!("an argument is named '{}' twice", Named(name)));
                }
                all.push_named(name, value.clone())?;
            }
        }
        Ok(all)
    }

    /// A chain of filters, over `body` where it begins with none.
    pub(super) fn filter(&self, expr: &Expr, body: Option<Value>, scope: &Rc<Scope>) -> Res<Value> {
        let ExprKind::Filter(inner, name, args) = &expr.kind else {
            return fail("a filter is missing");
        };
        let value = match (inner, body) {
            (Some(inner), Some(body)) => self.deeper(|| self.filter(inner, Some(body), scope))?,
            (Some(inner), None) => self.eval(inner, scope)?,
            (None, body) => body.unwrap_or(Value::None),
        };
        let args = self.arguments(args, scope)?;
        filters::call(self.name(*name), value, args).map_err(|e| e.at(expr.line))
    }

    pub(super) fn call(
        &self,
        callee: &Expr,
        args: &Args,
        caller: Option<Value>,
        scope: &Rc<Scope>,
    ) -> Res<Value> {
        let callee = self.eval(callee, scope)?;
        let mut args = self.arguments(args, scope)?;
        if let Some(caller) = caller {
            if args.named.iter().any(|(name, _)| name == "caller") {
                return fail("a call block gives `caller` twice");
            }
            args.push_named("caller", caller)?;
        }
        match &callee {
            Value::Macro(function) => self.call_macro(function, args),
            Value::Method(bound) => {
                if let (Value::Loop(state), "changed") = (&bound.0, bound.1)
                    && state.changed.borrow().is_none()
                {
                    self.changed_loops.borrow_mut().push(state.clone());
                }
                methods::call(&bound.0, bound.1, args)
            }
            Value::Function(function) => self.call_function(*function, args),
            Value::Joiner(joiner) => {
                args.none("joiner")?;
                if joiner.used.replace(true) {
                    return Ok(joiner.separator.clone());
                }
                Value::text("")
            }
            Value::Loop(state) => {
                let [items] = args.bind("loop", 1, ["iterable"])?;
                let Some((definition, around)) = &state.again else {
                    return fail(
                        "The loop must have the 'recursive' marker to be called recursively.",
                    );
                };
                let items = items.unwrap_or(Value::None);
                let mut out = Buffer::default();
                self.run_loop(definition, &items, state.depth + 1, around, &mut out)?;
                Ok(Value::buffer(out))
            }
            Value::Undefined(message) => fail(&**message),
            other => fail(format!("'{}' object is not callable", other.type_name())),
        }
    }

    fn call_macro(&self, function: &MacroValue, args: Arguments) -> Res<Value> {
        let definition = &function.definition;
        let scope = Scope::new(Some(function.scope.clone()))?;
        let Arguments {
            positional,
            mut named,
            ..
        } = args;
        let mut positional = positional.into_iter();
        let take = |name: &str, named: &mut Vec<(String, Value)>| {
            let at = named.iter().position(|(n, _)| n == name)?;
            Some(named.remove(at).1)
        };
        let mut has_caller = false;
        for (param, default) in &definition.params {
            let name = self.name(*param);
            has_caller |= name == "caller";
            let given = positional.next().or_else(|| take(name, &mut named));
            let value = match (given, default) {
                (Some(value), _) => value,
                (None, Some(default)) => self.eval(default, &scope)?,
                (None, None) => {
                    let name = Named(name);
                    Value::undefined(format!("parameter '{name}' was not provided"))?
                }
            };
            scope.set(*param, value)?;
        }
        if definition.caller && !has_caller {
            let caller = take("caller", &mut named).filter(|c| !matches!(c, Value::None));
            let caller = caller.map_or_else(|| Value::undefined("No caller defined"), Ok)?;
            if let Some(name) = self.special[1] {
                scope.set(name, caller)?;
            }
        }
        if definition.kwargs {
            let mut dict = Dict::new()?;
            for (name, value) in named {
                dict.insert(Value::text(name)?, value)?;
            }
            if let Some(name) = self.special[2] {
                scope.set(name, Value::Dict(Rc::new(dict)))?;
            }
        } else if let Some((name, _)) = named.first() {
            let name = Named(name);
            return fail(format!("a macro takes no keyword argument '{name}'"));
        }
        if definition.varargs {
            if let Some(name) = self.special[3] {
                scope.set(name, Value::tuple(positional.collect())?)?;
            }
        } else if positional.next().is_some() {
            let most = definition.params.len();
            return fail(format!("a macro takes not more than {most} argument(s)"));
        }
        let mut out = Buffer::default();
        self.body(&definition.body, &scope, &mut out)?;
        Ok(Value::buffer(out))
    }

    fn call_function(&self, function: Function, args: Arguments) -> Res<Value> {
        match function {
            Function::Range => range(args),
            Function::Dict | Function::Namespace => {
                let Arguments {
                    positional, named, ..
                } = args;
                let mut dict = match &positional[..] {
                    [] => Dict::new()?,
                    [Value::Undefined(message)] => return fail(&**message),
                    [Value::Dict(from)] => {
                        let mut dict = Dict::new()?;
                        for (key, value) in from.entries() {
                            dict.insert(key.clone(), value.clone())?;
                        }
                        dict
                    }
                    [pairs] => {
                        let mut dict = Dict::new()?;
                        for pair in &pairs.items()?.items {
                            match &pair.items()?.items[..] {
                                [key, value] => dict.insert(key.clone(), value.clone())?,
                                _ => return fail("dict() needs pairs"),
                            }
                        }
                        dict
                    }
                    _ => return fail("dict() takes at most one argument by place"),
                };
                for (name, value) in named {
                    dict.insert(Value::text(name)?, value)?;
                }
                if function == Function::Dict {
                    return Ok(Value::Dict(Rc::new(dict)));
                }
                let namespace = Namespace::new()?;
                for (name, value) in dict.entries() {
                    if let Some(name) = name.as_text() {
                        namespace.set(name, value.clone())?;
                    }
                }
                self.namespaces.borrow_mut().push(namespace.clone());
                Ok(Value::Namespace(namespace))
            }
            Function::Cycler => {
                if args.positional.is_empty() || !args.named.is_empty() {
                    return fail("at least one item has to be provided");
                }
                Cycler::new(args.positional).map(Value::Cycler)
            }
            Function::Joiner => {
                let [separator] = args.bind("joiner", 0, ["sep"])?;
                let separator = separator.map_or_else(|| Value::text(", "), Ok)?;
                Joiner::new(separator).map(Value::Joiner)
            }
            Function::Lipsum => fail("lipsum is not supported: its text differs each time"),
            Function::RaiseException => {
                let [message] = args.bind("raise_exception", 1, ["message"])?;
                let message = to_str(&message.unwrap_or(Value::None))?;
                Err(Fail::raised(text(&message)?.to_owned()))
            }
            Function::StrftimeNow => {
                let [format] = args.bind("strftime_now", 1, ["format"])?;
                let format = format.unwrap_or(Value::None);
                let format = text(&format)?;
                // A directive becomes some 24 bytes at most.
                budget::text(format.len().saturating_mul(16))?;
                budget::steps(format.len())?;
                Value::text(clock::strftime(format, self.now))
            }
        }
    }
}

fn range(args: Arguments) -> Res<Value> {
    let [first, second, step] = args.bind("range", 1, ["/start", "/stop", "/step"])?;
    let (start, stop) = match second {
        Some(stop) => (int(first, 0)?, int(Some(stop), 0)?),
        None => (0, int(first, 0)?),
    };
    let step = int(step, 1)?;
    let far = 1 << 100;
    if [start, stop, step].iter().any(|n| !(-far..far).contains(n)) {
        return fail("Range too big.");
    }
    if step == 0 {
        return fail("range() arg 3 must not be zero");
    }
    let len = ops::numbers_between(start, stop, step);
    if len > RANGE_MAX {
        return fail(format!(
            "Range too big. The sandbox blocks ranges larger than MAX_RANGE ({RANGE_MAX})."
        ));
    }
    Range::value(start, step, len as usize, stop)
}
