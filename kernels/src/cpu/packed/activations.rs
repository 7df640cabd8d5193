//! Activations of two signed bytes each.
//!
//! One byte, as llama.cpp has it, moves a small model's probabilities by more than rounding weights
//! to bf16 does (SmolLM2-135M Q4_1: 3.6e-3 nats a token; with two bytes 9e-5). So there is a second
//! one for what the first leaves. Each dot product is two: of one row, reading weights takes longer
//! than that.

use std::collections::TryReserveError;

use super::BLOCK;
use crate::cpu::shared::SharedSlice;
use crate::cpu::simd::{Isa, Kernel, Simd};
use crate::cpu::threads::{Pool, TaskPanic};

/// How much finer the second byte is: half a step of the first is 127 of its own.
pub(super) const FINER: i32 = 254;

/// A block of a row: 32 activations are about `scale * (FINER * coarse + fine)`. Two cache lines.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Block {
    /// -127 to 127.
    pub(super) coarse: [i8; BLOCK],
    /// Likewise.
    pub(super) fine: [i8; BLOCK],
    /// The greatest magnitude divided by `127 * FINER`.
    pub(super) scale: f32,
    /// Of the coarse codes: of the first and the second half, and of all.
    pub(super) coarse_sums: [i32; 3],
    /// Of the fine ones.
    pub(super) fine_sums: [i32; 3],
    /// Of the activations: what offsets of weights are multiplied by.
    pub(super) sums: [f32; 3],
}

impl Block {
    const ZERO: Self = Self {
        coarse: [0; BLOCK],
        fine: [0; BLOCK],
        scale: 0.0,
        coarse_sums: [0; 3],
        fine_sums: [0; 3],
        sums: [0.0; 3],
    };
}

/// Codes `4 * quad` to `4 * quad + 3`, the first in the lowest byte.
#[inline(always)]
pub(super) fn four(codes: &[i8; BLOCK], quad: usize) -> i32 {
    i32::from_le_bytes(codes.as_chunks::<4>().0[quad].map(|code| code as u8))
}

/// Rows of quantised activations, kept between products.
#[derive(Debug, Default)]
pub struct Activations {
    /// `[rows][blocks]`
    blocks: Vec<Block>,
    blocks_per_row: usize,
}

/// A block whose greatest magnitude is below this, 3.8e-34, becomes zero: its scale would be
/// subnormal, with too few bits to keep errors within half a step.
const LEAST: f32 = f32::MIN_POSITIVE * STEPS;

/// Fine steps of the greatest magnitude.
const STEPS: f32 = (127 * FINER) as f32;

/// Floats below which the calling thread quantises alone: others would take longer to join in.
const MIN_PARALLEL: usize = 1 << 14;

impl Activations {
    /// Bytes of `rows` rows of `inputs` activations.
    pub fn bytes(rows: usize, inputs: usize) -> usize {
        let blocks = rows.saturating_mul(inputs.div_ceil(BLOCK));
        blocks.saturating_mul(size_of::<Block>())
    }

    /// Makes room for `rows` rows of `inputs` activations.
    pub fn reserve(&mut self, rows: usize, inputs: usize) -> Result<(), TryReserveError> {
        let len = rows.saturating_mul(inputs.div_ceil(BLOCK));
        self.blocks
            .try_reserve_exact(len.saturating_sub(self.blocks.len()))
    }

    /// Quantises `[rows][inputs]` in place of what was there. A block with an infinity or a NaN
    /// becomes NaN.
    pub fn quantise(
        &mut self,
        (pool, isa): (&mut Pool, Isa),
        rows: usize,
        inputs: usize,
        x: &[f32],
    ) -> Result<(), TaskPanic> {
        self.blocks_per_row = inputs.div_ceil(BLOCK);
        let per_row = self.blocks_per_row;
        self.blocks
            .resize(self.blocks.len().max(rows * per_row), Block::ZERO);
        let blocks = SharedSlice::new(&mut self.blocks);
        let tasks = match rows * inputs < MIN_PARALLEL {
            true => 1,
            false => rows.min(pool.threads() * 4),
        };
        pool.run(tasks, |task, _| {
            let (first, end) = (task * rows / tasks, (task + 1) * rows / tasks);
            for row in first..end {
                // SAFETY: tasks have disjoint rows.
                let blocks = unsafe { blocks.slice(row * per_row, per_row) };
                isa.run(Quantise {
                    x: &x[row * inputs..][..inputs],
                    blocks,
                });
            }
        })
    }

    /// The blocks of `count` rows from `row` on. Panics if rows have other blocks or are fewer.
    #[inline(always)]
    pub(super) fn rows(&self, row: usize, count: usize, blocks: usize) -> &[Block] {
        assert_eq!(
            blocks, self.blocks_per_row,
            "activations of another product"
        );
        &self.blocks[row * blocks..][..count * blocks]
    }
}

struct Quantise<'a> {
    x: &'a [f32],
    blocks: &'a mut [Block],
}

impl Kernel for Quantise<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let (whole, rest) = self.x.as_chunks::<BLOCK>();
        for (x, block) in whole.iter().zip(self.blocks.iter_mut()) {
            *block = quantise(x);
        }
        if let (false, Some(last)) = (rest.is_empty(), self.blocks.last_mut()) {
            let mut x = [0.0; BLOCK];
            x[..rest.len()].copy_from_slice(rest);
            *last = quantise(&x);
        }
    }
}

/// Plain Rust, every operation exact or rounded once: compilers vectorise it without changing bits.
#[inline(always)]
fn quantise(x: &[f32; BLOCK]) -> Block {
    // Adding it leaves a number's nearest integer, ties to even, in the low bits of the sum.
    const MAGIC: f32 = 12_582_912.0;
    let mut most = 0;
    for x in x {
        // Magnitudes are ordered like their bits, NaN on top.
        most = most.max(x.to_bits() & 0x7fff_ffff);
    }
    let most = f32::from_bits(most);
    if !most.is_finite() {
        return Block {
            scale: f32::NAN,
            sums: [f32::NAN; 3],
            ..Block::ZERO
        };
    }
    if most < LEAST {
        return Block::ZERO;
    }
    let inverse = 127.0 / most;
    let mut block = Block {
        scale: most / STEPS,
        ..Block::ZERO
    };
    let nearest = |x: f32| (x + MAGIC).to_bits() as i32 - MAGIC.to_bits() as i32;
    let (mut coarse, mut fine) = ([0i32; BLOCK], [0i32; BLOCK]);
    for ((coarse, fine), x) in coarse.iter_mut().zip(&mut fine).zip(x) {
        let steps = x * inverse;
        *coarse = nearest(steps);
        // What is left is exact, and half a step at most.
        *fine = nearest((steps - *coarse as f32) * FINER as f32);
    }
    let sums = |codes: &[i32; BLOCK], to: &mut [i8; BLOCK]| {
        for (to, code) in to.iter_mut().zip(codes) {
            *to = *code as i8;
        }
        let (first, second) = codes.split_at(BLOCK / 2);
        let (first, second) = (first.iter().sum::<i32>(), second.iter().sum::<i32>());
        [first, second, first + second]
    };
    block.coarse_sums = sums(&coarse, &mut block.coarse);
    block.fine_sums = sums(&fine, &mut block.fine);
    for (place, sum) in block.sums.iter_mut().enumerate() {
        let steps = FINER * block.coarse_sums[place] + block.fine_sums[place];
        *sum = steps as f32 * block.scale;
    }
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(x: &[f32]) -> Vec<Block> {
        let mut activations = Activations::default();
        let mut pool = Pool::new(1).unwrap();
        let mut all = Vec::new();
        for isa in Isa::available() {
            let on = (&mut pool, isa);
            activations.quantise(on, 1, x.len(), x).unwrap();
            all.push(format!("{:?}", activations.blocks));
        }
        assert!(all.iter().all(|other| *other == all[0]));
        activations.blocks
    }

    #[test]
    fn errors_are_within_half_a_step() {
        let x: Vec<f32> = (0..77)
            .map(|i| ((i * 37 % 100) as f32 - 50.0) / 7.0)
            .collect();
        let blocks = of(&x);
        assert_eq!(blocks.len(), 3);
        for (block, x) in blocks.iter().zip(x.chunks(32)) {
            let pairs = block.coarse.iter().zip(&block.fine);
            let value = |(coarse, fine): (&i8, &i8)| FINER * i32::from(*coarse) + i32::from(*fine);
            for (code, x) in pairs.clone().map(value).zip(x) {
                let error = (f64::from(code) * f64::from(block.scale) - f64::from(*x)).abs();
                assert!(error <= f64::from(block.scale) * 0.51, "{code} {x}");
            }
            let sum = |codes: &[i8]| codes.iter().map(|c| i32::from(*c)).sum::<i32>();
            for (codes, sums) in [
                (&block.coarse, block.coarse_sums),
                (&block.fine, block.fine_sums),
            ] {
                let (a, b) = (sum(&codes[..16]), sum(&codes[16..]));
                assert_eq!(sums, [a, b, a + b]);
            }
            assert!(block.coarse.iter().any(|code| code.abs() == 127));
            let all: i32 = pairs.map(value).sum();
            assert_eq!(block.sums[2], all as f32 * block.scale);
        }
        assert!(blocks[2].coarse[77 - 64..].iter().all(|code| *code == 0));
    }

    #[test]
    fn bytes_are_those_of_the_blocks() {
        for (rows, inputs) in [(1, 1), (3, 32), (2, 77)] {
            let mut activations = Activations::default();
            let on = (&mut Pool::new(1).unwrap(), Isa::detect());
            let x = vec![1.0; rows * inputs];
            activations.quantise(on, rows, inputs, &x).unwrap();
            let bytes = size_of_val(&activations.blocks[..]);
            assert_eq!(Activations::bytes(rows, inputs), bytes);
        }
        assert_eq!(Activations::bytes(usize::MAX, 1 << 20), usize::MAX);
        assert!(Activations::default().reserve(usize::MAX, 1 << 20).is_err());
    }

    #[test]
    fn small_blocks_are_as_accurate_as_others_or_zero() {
        for most in [1e-38, 3e-37, 1e-35, 1e-34, LEAST.next_down()] {
            let block = of(&[most, most / -3.0])[0];
            assert_eq!((block.scale, block.sums[2]), (0.0, 0.0), "{most}");
        }
        for most in [LEAST, LEAST.next_up(), 1e-33, 1e-20, 1e38, f32::MAX] {
            let x: [f32; 32] = std::array::from_fn(|i| most * (1.0 - i as f32 / 16.0));
            let block = of(&x)[0];
            assert!(block.scale >= f32::MIN_POSITIVE, "{most}");
            let step = f64::from(most) / f64::from(STEPS);
            let codes = block.coarse.iter().zip(&block.fine);
            for ((coarse, fine), x) in codes.zip(x) {
                let code = FINER * i32::from(*coarse) + i32::from(*fine);
                let error = f64::from(code) * f64::from(block.scale) - f64::from(x);
                assert!(error.abs() <= step * 0.51, "{x}: off by {error} of {step}");
            }
        }
    }

    #[test]
    fn odd_values() {
        assert_eq!(of(&[0.0; 40])[0].scale, 0.0);
        assert_eq!(of(&[1e-40, 1e-36])[0].coarse, [0; 32]);
        let large = of(&[f32::MAX, -f32::MAX, 1.0]);
        assert_eq!(large[0].coarse[..3], [127, -127, 0]);
        for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = [1.0; 64];
            x[40] = odd;
            let blocks = of(&x);
            assert!(blocks[0].scale > 0.0 && blocks[1].scale.is_nan());
            assert!(blocks[1].sums[2].is_nan());
        }
    }
}
