//! Activations as signed bytes.

use std::collections::TryReserveError;

use super::BLOCK;
use crate::cpu::shared::SharedSlice;
use crate::cpu::simd::{Isa, Kernel, Simd};
use crate::cpu::threads::{Pool, TaskPanic};

/// A block of a row: 32 activations are about `scale * codes`. One cache line.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Block {
    /// -127 to 127.
    pub(super) codes: [i8; BLOCK],
    /// The greatest magnitude divided by 127.
    pub(super) scale: f32,
    /// Of the codes: of the first and the second half, and of all.
    pub(super) sums: [i32; 3],
    /// The sums times the scale: what offsets of weights are multiplied by.
    pub(super) scaled_sums: [f32; 3],
}

impl Block {
    const ZERO: Self = Self {
        codes: [0; BLOCK],
        scale: 0.0,
        sums: [0; 3],
        scaled_sums: [0.0; 3],
    };
}

impl Block {
    /// Codes `4 * quad` to `4 * quad + 3`, the first in the lowest byte.
    #[inline(always)]
    pub(super) fn four(&self, quad: usize) -> i32 {
        i32::from_le(bytemuck::cast_ref::<[i8; BLOCK], [i32; BLOCK / 4]>(&self.codes)[quad])
    }
}

/// Rows of quantised activations, kept between products.
#[derive(Debug, Default)]
pub struct Activations {
    /// `[rows][blocks]`
    blocks: Vec<Block>,
    blocks_per_row: usize,
}

/// Below this, 127 divided by a block's greatest magnitude may overflow; such blocks become zero.
const LEAST: f32 = 1e-35;

/// Floats below which the calling thread quantises alone: others would take longer to join in.
const MIN_PARALLEL: usize = 1 << 14;

impl Activations {
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

    /// The first rows' cache lines.
    pub(super) fn lines(&self) -> impl Iterator<Item = *const u8> {
        self.blocks.iter().map(|block| (&raw const *block).cast())
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
            scaled_sums: [f32::NAN; 3],
            ..Block::ZERO
        };
    }
    if most < LEAST {
        return Block::ZERO;
    }
    let inverse = 127.0 / most;
    let mut block = Block {
        scale: most / 127.0,
        ..Block::ZERO
    };
    let mut rounded = [0i32; BLOCK];
    for (to, x) in rounded.iter_mut().zip(x) {
        *to = (x * inverse + MAGIC).to_bits() as i32 - MAGIC.to_bits() as i32;
    }
    for (to, code) in block.codes.iter_mut().zip(&rounded) {
        *to = *code as i8;
    }
    let (first, second) = rounded.split_at(BLOCK / 2);
    let (first, second) = (first.iter().sum::<i32>(), second.iter().sum::<i32>());
    block.sums = [first, second, first + second];
    block.scaled_sums = block.sums.map(|sum| sum as f32 * block.scale);
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
            for (code, x) in block.codes.iter().zip(x) {
                let error = (f32::from(*code) * block.scale - x).abs();
                assert!(error <= block.scale * 0.5001);
            }
            let sum = |codes: &[i8]| codes.iter().map(|c| i32::from(*c)).sum::<i32>();
            let (a, b) = (sum(&block.codes[..16]), sum(&block.codes[16..]));
            assert_eq!(block.sums, [a, b, a + b]);
            assert!(block.codes.iter().any(|code| code.abs() == 127));
        }
        assert!(blocks[2].codes[77 - 64..].iter().all(|code| *code == 0));
    }

    #[test]
    fn odd_values() {
        assert_eq!(of(&[0.0; 40])[0].scale, 0.0);
        assert_eq!(of(&[1e-40, 1e-36])[0].codes, [0; 32]);
        let large = of(&[f32::MAX, -f32::MAX, 1.0]);
        assert_eq!(large[0].codes[..3], [127, -127, 0]);
        for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = [1.0; 64];
            x[40] = odd;
            let blocks = of(&x);
            assert!(blocks[0].scale > 0.0 && blocks[1].scale.is_nan());
            assert!(blocks[1].scaled_sums[2].is_nan());
        }
    }
}
