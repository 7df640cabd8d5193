//! Hadamard rotations of what is cached: V's, folded into the weights so that serving pays nothing
//! for it, and K's, which every step computes.
//!
//! With H the normalised Walsh-Hadamard matrix of size `head_dim` (symmetric, `H H = 1`), the
//! cached values become `v' = H v` if every head of W_v (and of V's bias) is multiplied by H from
//! the left. Attention only forms weighted sums of values, `o' = H o`, and the output projection
//! undoes the rotation if every head of W_o is multiplied by H from the right: `W_o H H o = W_o o`.
//! Outliers of single channels are spread over the head, so that a token's range, and with it the
//! 2-bit step, gets smaller. Where weights cannot be changed, a backend computes `H v` as it
//! appends values and `H o'` as attention puts it out (`rotate_v_online`).
//!
//! Keys are turned by RoPE behind W_k, so that nothing can be folded there. Queries and keys are
//! both multiplied by H after RoPE, which leaves their products as they were: `(H q) . (H k) = q .
//! k`.

mod hadamard;

pub use hadamard::hadamard;

use half::bf16;

/// Which sides of the cache are rotated. It holds for a whole model, never for a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rotation {
    /// Keys, and queries with them, after RoPE.
    pub k: bool,
    /// Values, in the weights or as they are appended.
    pub v: bool,
}

impl Rotation {
    /// Neither.
    pub const NONE: Self = Self { k: false, v: false };

    /// Whether heads of so many channels can be rotated, if any are.
    ///
    /// # Errors
    /// When they cannot.
    pub fn check(self, head_dim: usize) -> Result<(), RotationError> {
        match head_dim.is_power_of_two() {
            false if self != Self::NONE => Err(RotationError::HeadDim { head_dim }),
            _ => Ok(()),
        }
    }
}

/// A weight: rounded once, after the fold.
pub trait Weight: Copy {
    /// Exact.
    fn to_f32(self) -> f32;
    /// Rounds to nearest.
    fn from_f32(x: f32) -> Self;
}

impl Weight for f32 {
    fn to_f32(self) -> f32 {
        self
    }
    fn from_f32(x: f32) -> Self {
        x
    }
}

impl Weight for bf16 {
    fn to_f32(self) -> f32 {
        bf16::to_f32(self)
    }
    fn from_f32(x: f32) -> Self {
        bf16::from_f32(x)
    }
}

/// Heads that cannot be rotated, or weights that the rotation cannot be folded into.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RotationError {
    /// Walsh-Hadamard matrices of this construction exist for powers of two.
    #[error(
        "the Hadamard rotation of keys or values needs a head_dim that is a power of two, \
         got {head_dim}"
    )]
    HeadDim {
        /// Channels of a head.
        head_dim: usize,
    },
    /// The matrix does not consist of whole heads.
    #[error(
        "a matrix of {elements} weights is not made of whole heads of {head_dim} x {inputs} weights"
    )]
    Shape {
        /// Weights of the matrix.
        elements: usize,
        /// Channels of a head.
        head_dim: usize,
        /// Inputs of a channel (W_v), or 1 (W_o, biases).
        inputs: usize,
    },
}

/// Folds the rotation into W_v, `[kv_heads * head_dim][inputs]`; V's bias is the case `inputs` = 1.
pub fn fold_v<W: Weight>(
    w_v: &mut [W],
    head_dim: usize,
    inputs: usize,
) -> Result<(), RotationError> {
    check(w_v.len(), head_dim, inputs)?;
    let mut column = vec![0.0; head_dim];
    for head in w_v.chunks_exact_mut(head_dim * inputs) {
        for input in 0..inputs {
            for (channel, x) in column.iter_mut().enumerate() {
                *x = head[channel * inputs + input].to_f32();
            }
            hadamard(&mut column);
            for (channel, x) in column.iter().enumerate() {
                head[channel * inputs + input] = W::from_f32(*x);
            }
        }
    }
    Ok(())
}

/// Folds the rotation into W_o, `[outputs][q_heads * head_dim]`.
pub fn fold_o<W: Weight>(w_o: &mut [W], head_dim: usize) -> Result<(), RotationError> {
    check(w_o.len(), head_dim, 1)?;
    let mut row = vec![0.0; head_dim];
    for head in w_o.chunks_exact_mut(head_dim) {
        for (x, w) in row.iter_mut().zip(&*head) {
            *x = w.to_f32();
        }
        hadamard(&mut row);
        for (w, x) in head.iter_mut().zip(&row) {
            *w = W::from_f32(*x);
        }
    }
    Ok(())
}

fn check(elements: usize, head_dim: usize, inputs: usize) -> Result<(), RotationError> {
    if !head_dim.is_power_of_two() {
        return Err(RotationError::HeadDim { head_dim });
    }
    let head = head_dim * inputs;
    if head == 0 || !elements.is_multiple_of(head) {
        return Err(RotationError::Shape {
            elements,
            head_dim,
            inputs,
        });
    }
    Ok(())
}
