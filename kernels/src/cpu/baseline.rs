//! What the backend's speed is measured against: the memory's read bandwidth, and the `gemm` crate
//! on the same shapes.

use std::time::Instant;

use super::simd::{Isa, Kernel, Simd};
use super::threads::Pool;
use crate::memory::{HugeBuffer, LINE};

/// Best rate, in bytes per second, at which the pool's threads together read memory that no cache
/// holds: passes over 1 GiB with one, two and four streams per thread, with and without
/// prefetching, timed in stretches of 64 MiB (about 2 ms, short enough to fall between the
/// interruptions of a busy machine).
pub fn read_bandwidth(pool: &mut Pool, isa: Isa) -> std::io::Result<f64> {
    const STRETCH: usize = 64 << 20;
    const STRETCHES: usize = 16;
    let threads = pool.threads();
    let share = STRETCH / threads / (4 * LINE) * (4 * LINE);
    let buffer = HugeBuffer::zeroed(STRETCH * STRETCHES)?;
    // SAFETY: the whole buffer, which nobody else has.
    unsafe { std::slice::from_raw_parts_mut(buffer.as_ptr(), buffer.len()) }.fill(1);
    let mut best = 0.0f64;
    for pass in 0..12 {
        let (streams, prefetch) = ([1, 2, 4][pass % 3], pass % 2 == 0);
        for stretch in 0..STRETCHES {
            let start = Instant::now();
            let run = pool.run(threads, |task, _| {
                let first = buffer
                    .as_ptr()
                    .wrapping_add(stretch * STRETCH + task * share);
                // SAFETY: the slices are within the buffer, which is only read.
                let slice = unsafe { std::slice::from_raw_parts(first, share) };
                std::hint::black_box(isa.run(Read {
                    slice,
                    streams,
                    prefetch,
                }));
            });
            run.map_err(std::io::Error::other)?;
            best = best.max((share * threads) as f64 / start.elapsed().as_secs_f64());
        }
    }
    Ok(best)
}

/// How far ahead each stream prefetches.
const AHEAD: usize = 8192;

struct Read<'a> {
    slice: &'a [u8],
    streams: usize,
    prefetch: bool,
}

impl Kernel for Read<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let part = self.slice.len() / self.streams;
        let mut acc = [s.splat(0.0); 4];
        for at in (0..part).step_by(LINE) {
            for (stream, acc) in acc.iter_mut().enumerate().take(self.streams) {
                let line = self.slice[stream * part + at..][..LINE].as_ptr();
                if self.prefetch {
                    s.prefetch(line.wrapping_add(AHEAD));
                }
                for i in 0..LINE / 4 / S::LANES {
                    // SAFETY: within the line sliced above.
                    *acc = s.max(*acc, unsafe {
                        s.load(line.cast::<f32>().add(i * S::LANES))
                    });
                }
            }
        }
        acc.into_iter().map(|a| s.first(a)).sum()
    }
}

/// How the right operand of [`gemm_crate`] lies in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// `[n][k]`, as checkpoints store weights.
    OutIn,
    /// `[k][n]`.
    InOut,
}

/// `out[m][n] = a[m][k] · w` in f32 by the `gemm` crate on `threads` threads of rayon. Panics if a
/// slice is too short.
pub fn gemm_crate(
    threads: usize,
    (m, n, k): (usize, usize, usize),
    a: &[f32],
    (w, order): (&[f32], Order),
    out: &mut [f32],
) {
    assert!(a.len() >= m * k && w.len() >= n * k && out.len() >= m * n);
    let parallelism = match threads {
        1 => gemm::Parallelism::None,
        n => gemm::Parallelism::Rayon(n),
    };
    let (row_a, row_out) = (k as isize, n as isize);
    let (w_column, w_row) = match order {
        Order::OutIn => (k as isize, 1),
        Order::InOut => (1, n as isize),
    };
    // SAFETY: row-major operands of the lengths asserted.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            row_out,
            false,
            a.as_ptr(),
            1,
            row_a,
            w.as_ptr(),
            w_column,
            w_row,
            0.0,
            1.0,
            false,
            false,
            false,
            parallelism,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn baselines_measure_something() {
        let mut pool = Pool::new(2).unwrap();
        let rate = read_bandwidth(&mut pool, Isa::detect()).unwrap();
        assert!(rate > 1e8, "{rate} B/s");
        let mut out = [0.0; 4];
        // [1 2] · [3 5; 4 6]
        gemm_crate(
            1,
            (1, 2, 2),
            &[1.0, 2.0],
            (&[3.0, 4.0, 5.0, 6.0], Order::OutIn),
            &mut out,
        );
        assert_eq!(out[..2], [11.0, 17.0]);
        gemm_crate(
            1,
            (1, 2, 2),
            &[1.0, 2.0],
            (&[3.0, 5.0, 4.0, 6.0], Order::InOut),
            &mut out,
        );
        assert_eq!(out[..2], [11.0, 17.0]);
    }
}
