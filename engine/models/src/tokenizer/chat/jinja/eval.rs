//! Runs a template.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

use super::args::{Arguments, int, text};
use super::ast::{Args, Body, Expr, ExprKind, For, Macro, Stmt, StmtKind, Sym, Target, Template};
use super::attributes::{attribute, item};
use super::budget::{self, Buffer, Charge};
use super::fail::{Fail, Named, Res, fail};
use super::show::{to_str, write_str};
use super::value::{
    Cycler, Dict, Function, Joiner, Loop, Macro as MacroValue, Namespace, Range, Scope, Seq, Value,
};
use super::{filters, methods, ops, tests};
use crate::tokenizer::chat::clock;

/// Expressions, blocks and macros in each other, as they run. A level takes at most 8 KiB of the
/// 16 MiB of a known stack.
const DEPTH_MAX: usize = 1500;
/// The longest range, as the sandbox has it.
const RANGE_MAX: i128 = 100_000;
/// Bytes that a name and a text of the template take, and an element while others are computed.
const NAME_BYTES: usize = 32;
const TEXT_BYTES: usize = 48;
const ELEMENT_BYTES: usize = 32;

/// How a statement ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    Next,
    Break,
    Continue,
}

/// Renders a template with these variables. `now` is what the date is taken for.
pub(super) fn render(
    template: &Template,
    variables: Vec<(String, Value)>,
    now: SystemTime,
) -> Res<String> {
    let (names, texts) = (template.names.len(), template.texts.len());
    let _charge = Charge::new(NAME_BYTES * names + TEXT_BYTES * texts)?;
    let mut variables: HashMap<String, Value> = variables.into_iter().collect();
    let context = template.names.iter().map(|name| {
        let function = || Function::named(name).map(Value::Function);
        variables.remove(name).or_else(function)
    });
    let context = context.collect();
    let root = Scope::new(None)?;
    let number = |name: &str| {
        template
            .names
            .iter()
            .position(|n| n == name)
            .map(|at| at as Sym)
    };
    let machine = Machine {
        template,
        context,
        special: ["loop", "caller", "kwargs", "varargs"].map(number),
        root: root.clone(),
        texts: template.texts.iter().map(|_| RefCell::new(None)).collect(),
        depth: Cell::new(0),
        now,
        scopes: RefCell::default(),
        namespaces: RefCell::default(),
        changed_loops: RefCell::default(),
    };
    let mut out = Buffer::default();
    let ended = machine.body(&template.body, &root, &mut out);
    machine.forget();
    ended?;
    Ok(out.into_parts().0)
}

struct Machine<'t> {
    template: &'t Template,
    /// Arguments and functions, by the number of their names.
    context: Vec<Option<Value>>,
    root: Rc<Scope>,
    /// The numbers of `loop`, `caller`, `kwargs` and `varargs`, where the template has them.
    special: [Option<Sym>; 4],
    /// Texts of the template, as values once they are needed.
    texts: Vec<RefCell<Option<Value>>>,
    depth: Cell<usize>,
    now: SystemTime,
    /// What may hold itself through what it holds.
    scopes: RefCell<Vec<Rc<Scope>>>,
    namespaces: RefCell<Vec<Rc<Namespace>>>,
    changed_loops: RefCell<Vec<Rc<Loop>>>,
}

impl Machine<'_> {
    /// Takes apart what holds itself.
    fn forget(&self) {
        self.root.clear();
        for scope in self.scopes.borrow().iter() {
            scope.clear();
        }
        for namespace in self.namespaces.borrow().iter() {
            let fields = namespace.fields.take();
            drop(fields);
        }
        for state in self.changed_loops.borrow().iter() {
            let changed = state.changed.take();
            drop(changed);
        }
    }

    fn name(&self, name: Sym) -> &str {
        self.template
            .names
            .get(name as usize)
            .map_or("", String::as_str)
    }

    fn text_value(&self, number: Sym) -> Res<Value> {
        let Some(slot) = self.texts.get(number as usize) else {
            return fail("a text is missing");
        };
        if let Some(value) = &*slot.borrow() {
            return Ok(value.clone());
        }
        let value = Value::text(self.template.texts[number as usize].as_str())?;
        slot.replace(Some(value.clone()));
        Ok(value)
    }

    /// One level deeper, and a step.
    fn deeper<T>(&self, work: impl FnOnce() -> Res<T>) -> Res<T> {
        budget::steps(1)?;
        let depth = self.depth.get();
        if depth >= DEPTH_MAX {
            return fail("maximum recursion depth exceeded");
        }
        self.depth.set(depth + 1);
        let result = work();
        self.depth.set(depth);
        result
    }

    // ---- statements

    fn body(&self, body: &Body, scope: &Rc<Scope>, out: &mut Buffer) -> Res<Flow> {
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

    fn run_loop(
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

    // ---- expressions

    fn lookup(&self, name: Sym, scope: &Scope) -> Res<Option<Value>> {
        let found = scope.get(name)?;
        Ok(found.or_else(|| self.context.get(name as usize).cloned().flatten()))
    }

    fn undefined(&self, name: Sym) -> Res<Value> {
        Value::undefined(format!("'{}' is undefined", Named(self.name(name))))
    }

    fn eval(&self, expr: &Expr, scope: &Rc<Scope>) -> Res<Value> {
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

    fn arguments(&self, args: &Args, scope: &Rc<Scope>) -> Res<Arguments> {
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
    fn filter(&self, expr: &Expr, body: Option<Value>, scope: &Rc<Scope>) -> Res<Value> {
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

    fn call(
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
