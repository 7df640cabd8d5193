//! Heads of other widths than 64 and 128, and other scales of scores than `1 / sqrt(head_dim)`.

use std::sync::Arc;

use super::{ATTENTION_LIMIT, Case, differing};
use crate::cuda::probe::ProbeError;
use crate::cuda::selftest::table::Report;
use crate::cuda::{DECODE_VARIANTS, Device, PREFILL_VARIANTS};

const WIDTHS: [usize; 14] = [
    16, 32, 48, 80, 96, 112, 144, 160, 176, 192, 208, 224, 240, 256,
];

/// Of query heads to a KV head; fewer in the emulator, which is slow.
const GROUPS: &[usize] = match cfg!(feature = "cuda-emulator") {
    true => &[1, 12],
    false => &[1, 4, 6, 8, 12],
};

/// (position, rows): decoded, the first one in several units, and prefilled.
const SEQS: [(usize, usize); 10] = [
    (1700, 1),
    (0, 1),
    (15, 1),
    (16, 1),
    (127, 1),
    (200, 1),
    (0, 2),
    (0, 37),
    (100, 29),
    (240, 18),
];

/// Every width, every kernel of it, and the same bits in any company and however a prompt is cut.
pub(super) fn check(device: &Arc<Device>, report: &mut Report) -> Result<(), ProbeError> {
    for head_dim in WIDTHS {
        for &group in GROUPS {
            one(device, report, (head_dim, group), &SEQS)?;
        }
        for variant in DECODE_VARIANTS
            .iter()
            .filter(|v| v.head_dim == head_dim && v.runs_on(device))
        {
            let case = Case::new(head_dim, 3, &SEQS[..6], 40.0, 9);
            let error = case.run(device, Some(*variant))?;
            report.check(variant.name, error, ATTENTION_LIMIT);
        }
        let batch = Case::new(head_dim, 4, &SEQS[..6], 3.0, 10);
        let together = batch.outputs(device, None, None)?;
        let single = Case { seqs: 1, ..batch };
        report.check(
            &format!("bits alone and in a batch, head_dim {head_dim}"),
            differing(&single.outputs(device, None, None)?, &together),
            0.0,
        );
        let prompt = Case::new(head_dim, 4, &[(0, 150)], 20.0, 14);
        for variant in PREFILL_VARIANTS.iter().filter(|v| v.fits(device, head_dim)) {
            let whole = prompt.outputs(device, None, Some(*variant))?;
            let cut = prompt.outputs_in_chunks(device, *variant, &[0, 33, 119])?;
            report.check(
                &format!("{}, bits of a prompt in chunks", variant.name),
                differing(&whole, &cut),
                0.0,
            );
        }
    }
    for head_dim in [64, 96, 128] {
        let case = Case::new(head_dim, 4, &SEQS[1..8], 3.0, 15);
        report.check(
            &format!("scores multiplied by 1/16, head_dim {head_dim}"),
            case.run_scaled(device, 0.0625)?,
            ATTENTION_LIMIT,
        );
    }
    Ok(())
}

/// A few widths, few and short sequences.
pub(super) fn check_quick(device: &Arc<Device>, report: &mut Report) -> Result<(), ProbeError> {
    for head_dim in [16, 80, 192, 256] {
        let seqs = [(300, 1), (16, 1), (0, 34)];
        one(device, report, (head_dim, 4), &seqs)?;
    }
    Ok(())
}

fn one(
    device: &Arc<Device>,
    report: &mut Report,
    (head_dim, group): (usize, usize),
    seqs: &[(usize, usize)],
) -> Result<(), ProbeError> {
    let case = Case::new(head_dim, group, seqs, 3.0, 7);
    let name = format!("head_dim {head_dim} group {group}");
    report.check(&name, case.run(device, None)?, ATTENTION_LIMIT);
    Ok(())
}
