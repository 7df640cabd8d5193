//! A template, parsed.

use std::sync::Arc;

/// The number of a name or a text in its template's table.
pub(super) type Sym = u32;

/// A parsed template.
#[derive(Debug)]
pub(in crate::tokenizer::chat) struct Template {
    pub(super) body: Body,
    /// Names of variables, attributes, filters and keyword arguments.
    pub(super) names: Vec<String>,
    /// Texts between tags and of literals.
    pub(super) texts: Vec<String>,
}

#[derive(Debug, Default)]
pub(super) struct Body {
    pub(super) stmts: Vec<Stmt>,
    /// Variables that are undefined until it assigns them, see [`super::symbols`].
    pub(super) unset: Vec<Sym>,
}

#[derive(Debug)]
pub(super) struct Stmt {
    pub(super) line: u32,
    pub(super) kind: StmtKind,
}

#[derive(Debug)]
pub(super) enum StmtKind {
    Text(Sym),
    Print(Expr),
    For(Arc<For>),
    If(Vec<(Expr, Body)>, Body),
    Set(Target, Expr),
    /// `{% set x | filter %}…{% endset %}`
    Capture(Target, Option<Expr>, Body),
    With(Vec<(Target, Expr)>, Body),
    Macro(Arc<Macro>),
    /// `{% call(args) callee(…) %}…{% endcall %}`
    CallBlock(Arc<Macro>, Expr),
    Filter(Expr, Body),
    /// A body whose assignments end with it.
    Scope(Body),
    /// A body that sees no variables but the outermost.
    Block(Body),
    Break,
    Continue,
    /// A statement that needs other templates.
    Refused(&'static str),
}

#[derive(Debug)]
pub(super) struct For {
    pub(super) target: Target,
    pub(super) items: Expr,
    pub(super) condition: Option<Expr>,
    pub(super) body: Body,
    pub(super) otherwise: Body,
    pub(super) recursive: bool,
}

#[derive(Debug)]
pub(super) struct Macro {
    pub(super) name: Option<Sym>,
    pub(super) params: Vec<(Sym, Option<Expr>)>,
    pub(super) body: Body,
    /// Which of the special names its body mentions.
    pub(super) caller: bool,
    pub(super) kwargs: bool,
    pub(super) varargs: bool,
}

#[derive(Debug)]
pub(super) enum Target {
    Name(Sym),
    /// `ns.attribute`
    Attribute(Sym, Sym),
    Tuple(Vec<Target>),
}

#[derive(Debug)]
pub(super) struct Expr {
    pub(super) line: u32,
    pub(super) kind: ExprKind,
}

#[derive(Debug)]
pub(super) enum ExprKind {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(Sym),
    Name(Sym),
    List(Vec<Expr>),
    Tuple(Vec<Expr>),
    Dict(Vec<(Expr, Expr)>),
    Attribute(Box<Expr>, Sym),
    Item(Box<Expr>, Box<Expr>),
    /// Of a value: from, to, step.
    Slice(Box<Expr>, Box<[Option<Expr>; 3]>),
    /// Within a tuple of subscripts, where no value takes it.
    BareSlice,
    Call(Box<Expr>, Box<Args>),
    /// Of a value, or of the body of a block.
    Filter(Option<Box<Expr>>, Sym, Box<Args>),
    Test(Box<Expr>, Sym, Box<Args>),
    Not(Box<Expr>),
    Minus(Box<Expr>),
    Plus(Box<Expr>),
    Binary(Binary, Box<Expr>, Box<Expr>),
    And(Box<Expr>, Box<Expr>),
    Or(Box<Expr>, Box<Expr>),
    Concat(Vec<Expr>),
    Compare(Box<Expr>, Vec<(Compare, Expr)>),
    /// Condition, value, value otherwise.
    If(Box<Expr>, Box<Expr>, Option<Box<Expr>>),
}

impl Expr {
    /// Takes its parts out, to `parts`.
    fn give(&mut self, parts: &mut Vec<Self>) {
        match std::mem::replace(&mut self.kind, ExprKind::None) {
            ExprKind::None
            | ExprKind::Bool(_)
            | ExprKind::Int(_)
            | ExprKind::Float(_)
            | ExprKind::Text(_)
            | ExprKind::Name(_)
            | ExprKind::BareSlice => {}
            ExprKind::List(items) | ExprKind::Tuple(items) | ExprKind::Concat(items) => {
                parts.extend(items);
            }
            ExprKind::Dict(items) => parts.extend(items.into_iter().flat_map(|(k, v)| [k, v])),
            ExprKind::Attribute(a, _)
            | ExprKind::Not(a)
            | ExprKind::Minus(a)
            | ExprKind::Plus(a) => parts.push(*a),
            ExprKind::Item(a, b)
            | ExprKind::Binary(_, a, b)
            | ExprKind::And(a, b)
            | ExprKind::Or(a, b) => parts.extend([*a, *b]),
            ExprKind::Slice(a, bounds) => {
                parts.push(*a);
                parts.extend(bounds.into_iter().flatten());
            }
            ExprKind::Call(a, args) | ExprKind::Test(a, _, args) => {
                parts.push(*a);
                args.give(parts);
            }
            ExprKind::Filter(a, _, args) => {
                parts.extend(a.map(|a| *a));
                args.give(parts);
            }
            ExprKind::Compare(a, others) => {
                parts.push(*a);
                parts.extend(others.into_iter().map(|(_, other)| other));
            }
            ExprKind::If(a, b, c) => {
                parts.extend([*a, *b]);
                parts.extend(c.map(|c| *c));
            }
        }
    }
}

/// Without recursion: a template is dropped on threads of any stack.
impl Drop for Expr {
    fn drop(&mut self) {
        let mut parts = Vec::new();
        self.give(&mut parts);
        while let Some(mut part) = parts.pop() {
            part.give(&mut parts);
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Args {
    pub(super) positional: Vec<Expr>,
    pub(super) named: Vec<(Sym, Expr)>,
    /// `*more`
    pub(super) more: Option<Expr>,
    /// `**more`
    pub(super) more_named: Option<Expr>,
}

impl Args {
    fn give(self, parts: &mut Vec<Expr>) {
        parts.extend(self.positional);
        parts.extend(self.named.into_iter().map(|(_, value)| value));
        parts.extend(self.more);
        parts.extend(self.more_named);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    FloorDiv,
    Mod,
    Pow,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compare {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    In,
    NotIn,
}
