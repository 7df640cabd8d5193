//! Attention's output rotated back, against the CPU's transform.

use std::sync::Arc;

use half::bf16;

use crate::cuda::Device;
use crate::cuda::driver::{DeviceBuffer, Stream};
use crate::cuda::ops::RotateBack;
use crate::cuda::probe::ProbeError;
use crate::cuda::selftest::Rng;
use crate::cuda::selftest::reference::relative_error;
use crate::cuda::selftest::table::Report;
use crate::formats::rotation::hadamard;

/// Rounded to bf16 once, by up to 2^-8 of a value.
const LIMIT: f64 = 3.9e-3;

/// No multiple of a CTA's, and some behind them that must stay as they are.
const HEADS: [usize; 2] = [21, 3];

pub(super) fn check(device: &Arc<Device>, report: &mut Report) -> Result<(), ProbeError> {
    for head_dim in [16, 32, 64, 128, 256] {
        let [heads, others] = HEADS.map(|heads| heads * head_dim);
        let before = Rng(head_dim as u64).values(heads + others, 3.0);
        let mut attended = DeviceBuffer::from_slice(device, &before, "attention's output")?;
        let stream = Stream::new(device)?;
        RotateBack::new(device, head_dim)?.run(&stream, heads, &mut attended)?;
        stream.synchronize()?;
        let mut after = vec![bf16::ZERO; before.len()];
        attended.read(0, &mut after)?;
        let mut worst = 0f64;
        let pairs = before
            .chunks_exact(head_dim)
            .zip(after.chunks_exact(head_dim));
        for (head, (before, after)) in pairs.enumerate() {
            if head >= HEADS[0] {
                worst = worst.max(if before == after { 0.0 } else { f64::INFINITY });
                continue;
            }
            let mut exact: Vec<f32> = before.iter().map(|x| x.to_f32()).collect();
            hadamard(&mut exact);
            let exact: Vec<f64> = exact.into_iter().map(f64::from).collect();
            worst = worst.max(relative_error(after.iter().map(|x| x.to_f64()), &exact));
        }
        report.check(&format!("heads of {head_dim} rotated back"), worst, LIMIT);
    }
    Ok(())
}
