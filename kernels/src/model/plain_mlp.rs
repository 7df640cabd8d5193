//! An MLP without gates.

use super::spec::Activation;

/// `W_down activation(W_up x + b_up) + b_down`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlainMlp {
    /// Rows of `W_up`.
    pub intermediate: usize,
    /// What the first product goes through.
    pub activation: Activation,
    /// Both products have a bias; otherwise neither has.
    pub bias: bool,
}
