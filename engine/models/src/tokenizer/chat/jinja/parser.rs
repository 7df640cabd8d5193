//! Tokens to a tree, by jinja2's grammar.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::ast::{
    Args, Binary, Body, Compare, Expr, ExprKind, For, Macro, Stmt, StmtKind, Sym, Target, Template,
};
use super::fail::{Fail, Res, fail};
use super::lexer::{Token, tokens};
use super::symbols;

/// Brackets and conditions in each other, and blocks in each other.
const EXPRESSIONS_MAX: usize = 100;
const BLOCKS_MAX: usize = 100;
/// `elif`s of one template.
const ELIFS_MAX: usize = 500;
/// Parameters of one macro, and arguments of one call.
const ARGUMENTS_MAX: usize = 255;

/// Which filters and tests there are.
#[derive(Clone, Copy)]
pub(super) struct Known {
    pub(super) filter: fn(&str) -> bool,
    pub(super) test: fn(&str) -> bool,
}

/// Parses a template's source.
pub(super) fn parse(source: &str, known: Known) -> Res<Template> {
    let mut parser = Parser {
        tokens: tokens(source)?,
        at: 0,
        names: Table::default(),
        texts: Table::default(),
        known,
        unknown: Vec::new(),
        is_soft: false,
        in_loop: false,
        expressions: 0,
        blocks: 0,
        macros: Vec::new(),
        block_names: HashSet::new(),
        elifs: 0,
    };
    let mut body = parser.body(&[]).map_err(|e| e.at(parser.line()))?;
    if let Some((line, problem)) = parser.unknown.into_iter().next() {
        return Err(Fail::new(problem).at(line));
    }
    symbols::settle(&mut body);
    Ok(Template {
        body,
        names: parser.names.list,
        texts: parser.texts.list,
    })
}

/// Texts by number.
#[derive(Default)]
struct Table {
    list: Vec<String>,
    numbers: HashMap<String, Sym>,
}

impl Table {
    fn number(&mut self, text: &str) -> Sym {
        if let Some(&number) = self.numbers.get(text) {
            return number;
        }
        let number = self.list.len() as Sym;
        self.list.push(text.to_owned());
        self.numbers.insert(text.to_owned(), number);
        number
    }
}

struct Parser {
    tokens: Vec<(u32, Token)>,
    at: usize,
    names: Table,
    texts: Table,
    known: Known,
    /// Filters and tests that do not exist, outside of conditions.
    unknown: Vec<(u32, String)>,
    /// Whether what is parsed may never be reached, so that unknown filters are no error yet.
    is_soft: bool,
    in_loop: bool,
    expressions: usize,
    blocks: usize,
    /// Which of `caller`, `kwargs` and `varargs` the macros around mention.
    macros: Vec<[bool; 3]>,
    block_names: HashSet<String>,
    elifs: usize,
}

impl Parser {
    fn token(&self) -> &Token {
        self.tokens
            .get(self.at)
            .map_or(&Token::End, |(_, token)| token)
    }

    fn after(&self) -> &Token {
        self.tokens
            .get(self.at + 1)
            .map_or(&Token::End, |(_, token)| token)
    }

    fn line(&self) -> u32 {
        let at = self.at.min(self.tokens.len().saturating_sub(1));
        self.tokens.get(at).map_or(1, |&(line, _)| line)
    }

    fn next(&mut self) -> Token {
        let token = self.tokens.get_mut(self.at).map(|(_, token)| token);
        let taken = token.map_or(Token::End, |token| match token {
            // Looked at again for messages alone.
            Token::Data(text) => Token::Data(std::mem::take(text)),
            other => other.clone(),
        });
        if self.at + 1 < self.tokens.len() {
            self.at += 1;
        }
        taken
    }

    fn is_op(&self, op: &str) -> bool {
        matches!(self.token(), Token::Op(o) if *o == op)
    }

    fn skip_op(&mut self, op: &str) -> bool {
        let is = self.is_op(op);
        if is {
            self.next();
        }
        is
    }

    fn is_name(&self, name: &str) -> bool {
        matches!(self.token(), Token::Name(n) if n == name)
    }

    fn skip_name(&mut self, name: &str) -> bool {
        let is = self.is_name(name);
        if is {
            self.next();
        }
        is
    }

    fn unexpected<T>(&self, expected: &str) -> Res<T> {
        let found = match self.token() {
            Token::Data(_) => "text".to_owned(),
            Token::PrintBegin => "{{".to_owned(),
            Token::PrintEnd => "}}".to_owned(),
            Token::TagBegin => "{%".to_owned(),
            Token::TagEnd => "%}".to_owned(),
            Token::Name(name) => format!("`{name}`"),
            Token::Text(_) => "a string".to_owned(),
            Token::Int(_) | Token::Float(_) => "a number".to_owned(),
            Token::Op(op) => format!("`{op}`"),
            Token::End => "the end of the template".to_owned(),
        };
        Err(Fail::new(format!("expected {expected}, found {found}")).at(self.line()))
    }

    fn expect_op(&mut self, op: &'static str) -> Res<()> {
        if self.skip_op(op) {
            return Ok(());
        }
        self.unexpected(&format!("`{op}`"))
    }

    fn expect_name(&mut self) -> Res<String> {
        match self.token() {
            Token::Name(_) => match self.next() {
                Token::Name(name) => Ok(name),
                _ => self.unexpected("a name"),
            },
            _ => self.unexpected("a name"),
        }
    }

    fn expect(&mut self, token: &Token, shown: &str) -> Res<()> {
        if self.token() == token {
            self.next();
            return Ok(());
        }
        self.unexpected(shown)
    }

    // ---- statements

    /// Statements up to a tag named in `ends`, whose name is the next token then, or to the end of
    /// the template if there are none.
    fn body(&mut self, ends: &[&str]) -> Res<Body> {
        let mut body = Body::default();
        loop {
            let line = self.line();
            match self.token() {
                Token::End if ends.is_empty() => return Ok(body),
                Token::End => return self.unexpected(&format!("`{}`", ends.join("` or `"))),
                Token::Data(_) => {
                    if let Token::Data(text) = self.next() {
                        let kind = StmtKind::Text(self.texts.number(&text));
                        body.stmts.push(Stmt { line, kind });
                    }
                }
                Token::PrintBegin => {
                    self.next();
                    let value = self.tuple(true, &[], false)?;
                    self.expect(&Token::PrintEnd, "`}}`")?;
                    body.stmts.push(Stmt {
                        line,
                        kind: StmtKind::Print(value),
                    });
                }
                Token::TagBegin => {
                    self.next();
                    if matches!(self.token(), Token::Name(n) if ends.contains(&n.as_str())) {
                        return Ok(body);
                    }
                    let line = self.line();
                    self.blocks += 1;
                    if self.blocks > BLOCKS_MAX {
                        return fail(format!("blocks are nested more than {BLOCKS_MAX} deep"));
                    }
                    self.statement(line, &mut body)?;
                    self.blocks -= 1;
                    self.expect(&Token::TagEnd, "`%}`")?;
                }
                _ => return self.unexpected("text or a tag"),
            }
        }
    }

    /// The rest of a tag, and a body up to a tag named in `ends`.
    fn statements(&mut self, ends: &[&str]) -> Res<Body> {
        self.skip_op(":");
        self.expect(&Token::TagEnd, "`%}`")?;
        self.body(ends)
    }

    /// [`Parser::statements`] in a scope of its own, with the end's name taken.
    fn scoped(&mut self, end: &str) -> Res<Body> {
        let soft = std::mem::replace(&mut self.is_soft, false);
        let body = self.statements(&[end])?;
        self.next();
        self.is_soft = soft;
        Ok(body)
    }

    fn statement(&mut self, line: u32, body: &mut Body) -> Res<()> {
        let name = self.expect_name()?;
        let kind = match name.as_str() {
            "for" => self.for_loop()?,
            "if" => self.conditions()?,
            "set" => self.set()?,
            "with" => self.with()?,
            "macro" => self.macro_block()?,
            "call" => self.call_block()?,
            "filter" => {
                let filter = self.filter(None)?;
                let filter = self.filters(filter, false)?;
                StmtKind::Filter(filter, self.scoped("endfilter")?)
            }
            "block" => self.block()?,
            "generation" => {
                let in_loop = std::mem::replace(&mut self.in_loop, false);
                let inner = self.scoped("endgeneration")?;
                self.in_loop = in_loop;
                StmtKind::Scope(inner)
            }
            "autoescape" => {
                let value = self.expression(true)?;
                if !matches!(value.kind, ExprKind::Bool(false)) {
                    return fail("`autoescape` other than false is not supported");
                }
                StmtKind::Scope(self.scoped("endautoescape")?)
            }
            "print" => {
                let mut first = true;
                while *self.token() != Token::TagEnd {
                    if !first {
                        self.expect_op(",")?;
                    }
                    first = false;
                    let kind = StmtKind::Print(self.expression(true)?);
                    body.stmts.push(Stmt { line, kind });
                }
                return Ok(());
            }
            "break" | "continue" if self.in_loop => {
                if name == "break" {
                    StmtKind::Break
                } else {
                    StmtKind::Continue
                }
            }
            "break" | "continue" => return fail(format!("`{name}` stands outside of a loop")),
            "extends" => {
                self.expression(true)?;
                StmtKind::Refused("extends")
            }
            "include" => {
                self.expression(true)?;
                if self.skip_name("ignore") && !self.skip_name("missing") {
                    return self.unexpected("`missing`");
                }
                self.skip_context()?;
                StmtKind::Refused("include")
            }
            "import" => {
                self.expression(true)?;
                if !self.skip_name("as") {
                    return self.unexpected("`as`");
                }
                self.expect_name()?;
                self.skip_context()?;
                StmtKind::Refused("import")
            }
            "from" => {
                self.expression(true)?;
                if !self.skip_name("import") {
                    return self.unexpected("`import`");
                }
                loop {
                    self.expect_name()?;
                    if self.skip_name("as") {
                        self.expect_name()?;
                    }
                    if !self.skip_op(",") {
                        break;
                    }
                }
                self.skip_context()?;
                StmtKind::Refused("import")
            }
            _ => return fail(format!("there is no tag `{name}` here")),
        };
        body.stmts.push(Stmt { line, kind });
        Ok(())
    }

    /// `with context` or `without context`
    fn skip_context(&mut self) -> Res<()> {
        if (self.skip_name("with") || self.skip_name("without")) && !self.skip_name("context") {
            return self.unexpected("`context`");
        }
        Ok(())
    }

    fn for_loop(&mut self) -> Res<StmtKind> {
        let target = self.targets(&["in"], false)?;
        if let Target::Name(name) = target
            && self.names.list[name as usize] == "loop"
        {
            return fail("a loop cannot assign to `loop`");
        }
        if !self.skip_name("in") {
            return self.unexpected("`in`");
        }
        let items = self.tuple(false, &["recursive"], false)?;
        let soft = std::mem::replace(&mut self.is_soft, false);
        let condition = match self.skip_name("if") {
            true => Some(self.expression(true)?),
            false => None,
        };
        let recursive = self.skip_name("recursive");
        let in_loop = std::mem::replace(&mut self.in_loop, true);
        let body = self.statements(&["endfor", "else"])?;
        // The body of a recursive loop is a function, and its `else` is in it.
        self.in_loop = in_loop && !recursive;
        let otherwise = match self.expect_name()?.as_str() {
            "else" => {
                let otherwise = self.statements(&["endfor"])?;
                self.next();
                otherwise
            }
            _ => Body::default(),
        };
        (self.in_loop, self.is_soft) = (in_loop, soft);
        Ok(StmtKind::For(Arc::new(For {
            target,
            items,
            condition,
            body,
            otherwise,
            recursive,
        })))
    }

    fn conditions(&mut self) -> Res<StmtKind> {
        let soft = std::mem::replace(&mut self.is_soft, true);
        let mut branches = Vec::new();
        let otherwise = loop {
            let condition = self.tuple(false, &[], false)?;
            branches.push((condition, self.statements(&["elif", "else", "endif"])?));
            match self.expect_name()?.as_str() {
                "elif" => {
                    self.elifs += 1;
                    if self.elifs > ELIFS_MAX {
                        return fail(format!("it has more than {ELIFS_MAX} `elif`s"));
                    }
                }
                "else" => {
                    let otherwise = self.statements(&["endif"])?;
                    self.next();
                    break otherwise;
                }
                _ => break Body::default(),
            }
        };
        self.is_soft = soft;
        Ok(StmtKind::If(branches, otherwise))
    }

    fn set(&mut self) -> Res<StmtKind> {
        let target = self.targets(&[], true)?;
        if self.skip_op("=") {
            return Ok(StmtKind::Set(target, self.tuple(true, &[], false)?));
        }
        let filter = match self.skip_op("|") {
            true => {
                let first = self.filter(None)?;
                Some(self.filters(first, false)?)
            }
            false => None,
        };
        Ok(StmtKind::Capture(target, filter, self.scoped("endset")?))
    }

    fn with(&mut self) -> Res<StmtKind> {
        let mut values = Vec::new();
        while *self.token() != Token::TagEnd {
            if !values.is_empty() {
                self.expect_op(",")?;
            }
            let target = self.targets(&[], false)?;
            self.expect_op("=")?;
            values.push((target, self.expression(true)?));
        }
        Ok(StmtKind::With(values, self.scoped("endwith")?))
    }

    fn block(&mut self) -> Res<StmtKind> {
        let name = self.expect_name()?;
        if !self.block_names.insert(name.clone()) {
            return fail(format!("the block `{name}` is defined twice"));
        }
        self.skip_name("scoped");
        if self.skip_name("required") {
            return fail("`required` blocks are not supported");
        }
        let in_loop = std::mem::replace(&mut self.in_loop, false);
        let body = self.scoped("endblock")?;
        self.in_loop = in_loop;
        self.skip_name(&name);
        Ok(StmtKind::Block(body))
    }

    fn macro_block(&mut self) -> Res<StmtKind> {
        let name = self.expect_name()?;
        let name = self.names.number(&name);
        let params = self.signature()?;
        let definition = self.macro_body(Some(name), params, "endmacro")?;
        Ok(StmtKind::Macro(Arc::new(definition)))
    }

    fn call_block(&mut self) -> Res<StmtKind> {
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

    /// Whether a list that stands without brackets ends here, or at one of these words.
    fn is_at_end(&self, ends: &[&str]) -> bool {
        match self.token() {
            Token::PrintEnd | Token::TagEnd | Token::Op(")") => true,
            Token::Name(name) => ends.contains(&name.as_str()),
            _ => false,
        }
    }

    /// What is assigned to.
    fn targets(&mut self, ends: &[&str], with_namespace: bool) -> Res<Target> {
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

    // ---- expressions

    fn deeper(&mut self) -> Res<()> {
        self.expressions += 1;
        if self.expressions > EXPRESSIONS_MAX {
            return fail(format!(
                "an expression is nested more than {EXPRESSIONS_MAX} deep"
            ));
        }
        Ok(())
    }

    /// An expression, or several with commas between them.
    fn tuple(&mut self, with_condition: bool, ends: &[&str], in_brackets: bool) -> Res<Expr> {
        let line = self.line();
        let mut items = Vec::new();
        let mut is_tuple = false;
        loop {
            if self.is_at_end(ends) {
                break;
            }
            items.push(self.expression(with_condition)?);
            if !self.skip_op(",") {
                break;
            }
            is_tuple = true;
        }
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

    fn expression(&mut self, with_condition: bool) -> Res<Expr> {
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
        let line = self.line();
        let mut left = self.and()?;
        while self.skip_name("or") {
            let kind = ExprKind::Or(Box::new(left), Box::new(self.and()?));
            left = Expr { line, kind };
        }
        Ok(left)
    }

    fn and(&mut self) -> Res<Expr> {
        let line = self.line();
        let mut left = self.not()?;
        while self.skip_name("and") {
            let kind = ExprKind::And(Box::new(left), Box::new(self.not()?));
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

    fn primary(&mut self) -> Res<Expr> {
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
                let mut items = Vec::new();
                while !self.is_op("]") {
                    if !items.is_empty() {
                        self.expect_op(",")?;
                        if self.is_op("]") {
                            break;
                        }
                    }
                    items.push(self.expression(true)?);
                }
                self.expect_op("]")?;
                ExprKind::List(items)
            }
            Token::Op("{") => {
                self.next();
                let mut items = Vec::new();
                while !self.is_op("}") {
                    if !items.is_empty() {
                        self.expect_op(",")?;
                        if self.is_op("}") {
                            break;
                        }
                    }
                    let key = self.expression(true)?;
                    self.expect_op(":")?;
                    items.push((key, self.expression(true)?));
                }
                self.expect_op("}")?;
                ExprKind::Dict(items)
            }
            _ => return self.unexpected("an expression"),
        };
        Ok(Expr { line, kind })
    }

    fn postfix(&mut self, mut value: Expr) -> Res<Expr> {
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

    fn call(&mut self, value: Expr) -> Res<Expr> {
        let line = self.line();
        let args = Box::new(self.args()?);
        Ok(Expr {
            line,
            kind: ExprKind::Call(Box::new(value), args),
        })
    }

    fn args(&mut self) -> Res<Args> {
        let wrong = "arguments stand in an order that Python does not allow";
        self.expect_op("(")?;
        let mut args = Args::default();
        let mut first = true;
        while !self.is_op(")") {
            if !first {
                self.expect_op(",")?;
                if self.is_op(")") {
                    break;
                }
            }
            first = false;
            if self.skip_op("*") {
                if args.more.is_some() || args.more_named.is_some() {
                    return fail(wrong);
                }
                args.more = Some(self.expression(true)?);
            } else if self.skip_op("**") {
                if args.more_named.is_some() {
                    return fail(wrong);
                }
                args.more_named = Some(self.expression(true)?);
            } else if let Token::Name(name) = self.token()
                && matches!(self.after(), Token::Op("="))
            {
                if args.more_named.is_some() {
                    return fail(wrong);
                }
                let name = self.names.number(&name.clone());
                if args.named.iter().any(|(other, _)| *other == name) {
                    return fail("an argument is named twice");
                }
                self.next();
                self.next();
                args.named.push((name, self.expression(true)?));
            } else {
                if args.more.is_some() || args.more_named.is_some() || !args.named.is_empty() {
                    return fail(wrong);
                }
                args.positional.push(self.expression(true)?);
            }
            few(args.positional.len() + args.named.len(), "arguments")?;
        }
        self.expect_op(")")?;
        Ok(args)
    }

    /// The filters (and tests and calls, if `with_tests`) behind a value.
    fn filters(&mut self, mut value: Expr, with_tests: bool) -> Res<Expr> {
        loop {
            if self.skip_op("|") {
                value = self.filter(Some(value))?;
            } else if with_tests && self.skip_name("is") {
                value = self.test(value)?;
            } else if with_tests && self.is_op("(") {
                value = self.call(value)?;
            } else {
                return Ok(value);
            }
        }
    }

    fn dotted(&mut self) -> Res<String> {
        let mut name = self.expect_name()?;
        while self.skip_op(".") {
            name = name + "." + &self.expect_name()?;
        }
        Ok(name)
    }

    /// A filter, whose `|` is taken.
    fn filter(&mut self, value: Option<Expr>) -> Res<Expr> {
        let line = self.line();
        let name = self.dotted()?;
        if !self.is_soft && !(self.known.filter)(&name) {
            self.unknown
                .push((line, format!("there is no filter `{name}`")));
        }
        let args = match self.is_op("(") {
            true => self.args()?,
            false => Args::default(),
        };
        let name = self.names.number(&name);
        let kind = ExprKind::Filter(value.map(Box::new), name, Box::new(args));
        Ok(Expr { line, kind })
    }

    /// A test, whose `is` is taken.
    fn test(&mut self, value: Expr) -> Res<Expr> {
        let line = self.line();
        let negated = self.skip_name("not");
        let name = self.dotted()?;
        if !self.is_soft && !(self.known.test)(&name) {
            self.unknown
                .push((line, format!("there is no test `{name}`")));
        }
        let takes_one = match self.token() {
            Token::Op("[" | "{") | Token::Text(_) | Token::Int(_) | Token::Float(_) => true,
            Token::Name(n) => !matches!(n.as_str(), "else" | "or" | "and"),
            _ => false,
        };
        let args = if self.is_op("(") {
            self.args()?
        } else if takes_one {
            if self.is_name("is") {
                return fail("tests cannot be chained with `is`");
            }
            let argument = self.primary()?;
            Args {
                positional: vec![self.postfix(argument)?],
                ..Args::default()
            }
        } else {
            Args::default()
        };
        let name = self.names.number(&name);
        let mut value = Expr {
            line,
            kind: ExprKind::Test(Box::new(value), name, Box::new(args)),
        };
        if negated {
            value = Expr {
                line,
                kind: ExprKind::Not(Box::new(value)),
            };
        }
        Ok(value)
    }
}

/// Refuses more than [`ARGUMENTS_MAX`] of them.
fn few(count: usize, what: &str) -> Res<()> {
    if count > ARGUMENTS_MAX {
        return fail(format!("there are more than {ARGUMENTS_MAX} {what}"));
    }
    Ok(())
}

/// Names that are values, which nothing can be called.
fn is_constant(name: &str) -> bool {
    matches!(name, "true" | "false" | "none" | "True" | "False" | "None")
}
