//! Variables that a body assigns before it reads them: jinja2 takes them for undefined until then,
//! in the blocks inside of it too, even where an argument has their name.
//!
//! What a block is given of the variables around it is settled when a template is compiled, by the
//! order in which names stand in it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::ast::{Args, Body, Expr, ExprKind, Macro, Stmt, StmtKind, Sym, Target};

/// Settles it for a template and all blocks in it.
pub(super) fn settle(body: &mut Body) {
    settle_block(body, &[], &[], None);
}

/// The names that a block mentions itself, with those of the blocks around it.
struct Block<'a> {
    around: Option<&'a Block<'a>>,
    mentioned: HashSet<Sym>,
    unset: HashSet<Sym>,
    /// Names assigned: in the block, and in the branches that are being looked through.
    assigned: Vec<HashSet<Sym>>,
    /// In how many of those a name is.
    times_assigned: HashMap<Sym, usize>,
}

/// Settles it for a block with these parameters, of which some have defaults.
fn settle_block(body: &mut Body, params: &[Sym], defaults: &[&Expr], around: Option<&Block<'_>>) {
    let mut block = Block {
        around,
        mentioned: params.iter().copied().collect(),
        unset: HashSet::new(),
        assigned: vec![HashSet::new()],
        times_assigned: HashMap::new(),
    };
    for default in defaults {
        block.reads(default);
    }
    block.body(body);
    body.unset = block.unset.iter().copied().collect();
    inner_blocks(body, &block);
}

fn inner_blocks(body: &mut Body, block: &Block<'_>) {
    for stmt in &mut body.stmts {
        match &mut stmt.kind {
            StmtKind::If(branches, otherwise) => {
                for (_, body) in branches {
                    inner_blocks(body, block);
                }
                inner_blocks(otherwise, block);
            }
            StmtKind::For(definition) => {
                // Nobody else has it yet.
                if let Some(definition) = Arc::get_mut(definition) {
                    let mut params = Vec::new();
                    names_of(&definition.target, &mut params);
                    settle_block(&mut definition.body, &params, &[], Some(block));
                    settle_block(&mut definition.otherwise, &[], &[], Some(block));
                }
            }
            StmtKind::Macro(definition) | StmtKind::CallBlock(definition, _) => {
                if let Some(Macro { params, body, .. }) = Arc::get_mut(definition) {
                    let names: Vec<Sym> = params.iter().map(|(name, _)| *name).collect();
                    let defaults: Vec<&Expr> = params.iter().filter_map(|p| p.1.as_ref()).collect();
                    settle_block(body, &names, &defaults, Some(block));
                }
            }
            StmtKind::With(values, body) => {
                let mut params = Vec::new();
                for (target, _) in values {
                    names_of(target, &mut params);
                }
                settle_block(body, &params, &[], Some(block));
            }
            StmtKind::Capture(_, _, body) | StmtKind::Filter(_, body) | StmtKind::Scope(body) => {
                settle_block(body, &[], &[], Some(block));
            }
            StmtKind::Block(body) => settle_block(body, &[], &[], None),
            _ => {}
        }
    }
}

fn names_of(target: &Target, names: &mut Vec<Sym>) {
    match target {
        Target::Name(name) => names.push(*name),
        Target::Attribute(..) => {}
        Target::Tuple(targets) => targets.iter().for_each(|target| names_of(target, names)),
    }
}

impl Block<'_> {
    fn is_mentioned_around(&self, name: Sym) -> bool {
        let mut around = self.around;
        while let Some(block) = around {
            if block.mentioned.contains(&name) {
                return true;
            }
            around = block.around;
        }
        false
    }

    /// Notes that the branch being looked through assigns a name.
    fn notes(&mut self, name: Sym) {
        if let Some(branch) = self.assigned.last_mut()
            && branch.insert(name)
        {
            *self.times_assigned.entry(name).or_default() += 1;
        }
    }

    fn assigns(&mut self, name: Sym) {
        self.notes(name);
        if !self.mentioned.contains(&name) {
            if !self.is_mentioned_around(name) {
                self.unset.insert(name);
            }
            self.mentioned.insert(name);
        }
    }

    fn assigns_target(&mut self, target: &Target) {
        match target {
            Target::Name(name) => self.assigns(*name),
            Target::Attribute(name, _) => {
                self.mentioned.insert(*name);
            }
            Target::Tuple(targets) => targets
                .iter()
                .for_each(|target| self.assigns_target(target)),
        }
    }

    fn body(&mut self, body: &Body) {
        body.stmts.iter().for_each(|stmt| self.stmt(stmt));
    }

    fn stmt(&mut self, stmt: &Stmt) {
        match &stmt.kind {
            StmtKind::Print(expr) | StmtKind::Filter(expr, _) | StmtKind::CallBlock(_, expr) => {
                self.reads(expr);
            }
            StmtKind::For(definition) => self.reads(&definition.items),
            StmtKind::If(branches, otherwise) => self.branches(branches, otherwise),
            StmtKind::Set(target, expr) => {
                self.reads(expr);
                self.assigns_target(target);
            }
            StmtKind::Capture(target, _, _) => self.assigns_target(target),
            StmtKind::With(values, _) => values.iter().for_each(|(_, expr)| self.reads(expr)),
            StmtKind::Macro(definition) => {
                if let Some(name) = definition.name {
                    self.assigns(name);
                }
            }
            StmtKind::Text(_)
            | StmtKind::Scope(_)
            | StmtKind::Block(_)
            | StmtKind::Break
            | StmtKind::Continue
            | StmtKind::Refused(_) => {}
        }
    }

    /// What a branch assigns first is looked up as ever: the branch may not be taken.
    fn branches(&mut self, branches: &[(Expr, Body)], otherwise: &Body) {
        self.assigned.push(HashSet::new());
        for (condition, body) in branches {
            self.reads(condition);
            self.body(body);
        }
        self.body(otherwise);
        for name in self.assigned.pop().unwrap_or_default() {
            let times = self.times_assigned.entry(name).or_default();
            *times = times.saturating_sub(1);
            if *times == 0 {
                self.unset.remove(&name);
            }
            self.notes(name);
        }
    }

    fn reads_all(&mut self, exprs: &[Expr]) {
        exprs.iter().for_each(|expr| self.reads(expr));
    }

    fn reads_args(&mut self, args: &Args) {
        self.reads_all(&args.positional);
        args.named.iter().for_each(|(_, expr)| self.reads(expr));
        args.more.iter().for_each(|expr| self.reads(expr));
        args.more_named.iter().for_each(|expr| self.reads(expr));
    }

    fn reads(&mut self, expr: &Expr) {
        match &expr.kind {
            ExprKind::Name(name) => {
                self.mentioned.insert(*name);
            }
            ExprKind::List(items) | ExprKind::Tuple(items) | ExprKind::Concat(items) => {
                self.reads_all(items);
            }
            ExprKind::Dict(items) => items.iter().for_each(|(key, value)| {
                self.reads(key);
                self.reads(value);
            }),
            ExprKind::Attribute(value, _)
            | ExprKind::Not(value)
            | ExprKind::Minus(value)
            | ExprKind::Plus(value) => self.reads(value),
            ExprKind::Item(a, b)
            | ExprKind::Binary(_, a, b)
            | ExprKind::And(a, b)
            | ExprKind::Or(a, b) => {
                self.reads(a);
                self.reads(b);
            }
            ExprKind::Slice(value, parts) => {
                self.reads(value);
                parts.iter().flatten().for_each(|part| self.reads(part));
            }
            ExprKind::Call(value, args) | ExprKind::Test(value, _, args) => {
                self.reads(value);
                self.reads_args(args);
            }
            ExprKind::Filter(value, _, args) => {
                value.iter().for_each(|value| self.reads(value));
                self.reads_args(args);
            }
            ExprKind::Compare(first, others) => {
                self.reads(first);
                others.iter().for_each(|(_, other)| self.reads(other));
            }
            ExprKind::If(condition, value, otherwise) => {
                self.reads(condition);
                self.reads(value);
                otherwise.iter().for_each(|otherwise| self.reads(otherwise));
            }
            ExprKind::None
            | ExprKind::Bool(_)
            | ExprKind::Int(_)
            | ExprKind::Float(_)
            | ExprKind::Text(_)
            | ExprKind::BareSlice => {}
        }
    }
}
