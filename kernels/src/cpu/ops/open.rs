//! Gates of what attention puts out.

use super::for_rows;
use crate::cpu::math;
use crate::cpu::shared::SharedSlice;
use crate::cpu::simd::{Isa, Kernel, Simd};
use crate::cpu::threads::{Pool, TaskPanic};
use crate::model::{HeadShape, OutputGate};

/// Multiplies rows of what attention puts out, `[rows][q heads]`, by gates, whose products are
/// `[rows][q heads]` or `[rows][query heads]` and become the gates.
pub(crate) fn open(
    (pool, isa): (&mut Pool, Isa),
    attended: &mut [f32],
    gates: &mut [f32],
    (gate, heads): (OutputGate, HeadShape),
) -> Result<(), TaskPanic> {
    let width = heads.q_width();
    let channels = if gate.per_head { heads.head_dim } else { 1 };
    let rows = attended.len() / width;
    let (attended, gates) = (SharedSlice::new(attended), SharedSlice::new(gates));
    for_rows(pool, rows, width, |first, end| {
        let (first, len) = (first * width, (end - first) * width);
        // SAFETY: ranges of rows are disjoint.
        let (attended, gates) = unsafe {
            (
                attended.slice(first, len),
                gates.slice(first / channels, len / channels),
            )
        };
        isa.run(Open {
            attended,
            gates,
            channels,
            softplus: gate.softplus,
        });
    })
}

struct Open<'a> {
    attended: &'a mut [f32],
    gates: &'a mut [f32],
    /// That a gate opens.
    channels: usize,
    softplus: bool,
}

impl Kernel for Open<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.softplus {
            true => self.gates.iter_mut().for_each(|x| *x = math::softplus(*x)),
            false => math::map(s, &math::Sigmoid, self.gates),
        }
        if self.channels == 1 {
            let opened = self.attended.iter_mut().zip(self.gates);
            return opened.for_each(|(x, gate)| *x *= *gate);
        }
        let heads = self.attended.chunks_exact_mut(self.channels);
        for (head, gate) in heads.zip(self.gates) {
            head.iter_mut().for_each(|x| *x *= *gate);
        }
    }
}
