//! Statements: what a tag does.

use std::sync::Arc;

use super::super::ast::{Body, ExprKind, For, Stmt, StmtKind, Target};
use super::super::fail::{Res, fail};
use super::super::lexer::Token;
use super::{BLOCKS_MAX, ELIFS_MAX, Parser};

impl Parser {
    /// Statements up to a tag named in `ends`, whose name is the next token then, or to the end of
    /// the template if there are none.
    pub(super) fn body(&mut self, ends: &[&str]) -> Res<Body> {
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
    pub(super) fn scoped(&mut self, end: &str) -> Res<Body> {
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
}
