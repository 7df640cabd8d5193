//! What happens between a sum and the output it is stored to.

use super::Epilogue;
use super::tile::PANEL;
use crate::cpu::math::activate;
use crate::cpu::simd::Simd;

/// Finishes the sums of one row and panel into `out`, which is shorter than the panel at the
/// matrix's right edge.
#[inline(always)]
pub(crate) fn finish<S: Simd>(
    s: S,
    epilogue: Epilogue<'_>,
    sums: &[f32],
    panel: usize,
    out: &mut [f32],
) {
    assert_eq!(sums.len(), PANEL);
    let width = match epilogue {
        Epilogue::Gated(_) => PANEL / 2,
        _ => PANEL,
    };
    if out.len() == width {
        full(s, epilogue, sums, panel, out);
    } else {
        let mut padded = [0.0; PANEL];
        padded[..out.len()].copy_from_slice(out);
        full(s, epilogue, sums, panel, &mut padded[..width]);
        out.copy_from_slice(&padded[..out.len()]);
    }
}

#[inline(always)]
fn full<S: Simd>(s: S, epilogue: Epilogue<'_>, sums: &[f32], panel: usize, out: &mut [f32]) {
    let bias = match epilogue {
        Epilogue::Bias(bias) => &bias[panel * PANEL..][..PANEL],
        _ => sums,
    };
    for c in (0..out.len()).step_by(S::LANES) {
        // SAFETY: `out` has 32 or 16 elements, `bias` and `sums` 32, and `LANES` divides 16; the
        // up columns are the second half of the sums.
        unsafe {
            let sum = s.load(sums.as_ptr().add(c));
            let out = out.as_mut_ptr().add(c);
            let value = match epilogue {
                Epilogue::Store => sum,
                Epilogue::Bias(_) => s.add(sum, s.load(bias.as_ptr().add(c))),
                Epilogue::Add => s.add(s.load(out), sum),
                Epilogue::Gated(activation) => {
                    let up = s.load(sums.as_ptr().add(c + PANEL / 2));
                    s.mul(activate(s, activation, sum), up)
                }
            };
            s.store(out, value);
        }
    }
}
