//! A decode kernel that finishes heads of Q, K and V does what the kernel for that does, to the
//! bit.

use std::sync::Arc;

use super::{Case, KV_HEADS, LAYERS, differing};
use crate::cuda::Device;
use crate::cuda::probe::{HeadOptions, HeadsProbe, ProbeError};
use crate::cuda::selftest::table::Report;
use crate::formats::rotation::Rotation;
use crate::model::QkNorm;

const PLAIN: HeadOptions = HeadOptions {
    bias: false,
    norm: QkNorm::None,
    growth: None,
    passing: 0,
    rotation: Rotation::NONE,
    scales: false,
};

/// Sequences of one row, few of them cut; whatever models do with heads.
pub(super) fn check(device: &Arc<Device>, report: &mut Report) -> Result<(), ProbeError> {
    let lengths = [1, 16, 17, 127, 128, 129, 300, 400, 700, 1025, 1152, 1200];
    // More are left to a kernel that does not finish heads.
    let most = 4 * device.multiprocessors() / KV_HEADS;
    let many: Vec<usize> = (0..most).map(|i| 1 + i * 37 % 300).collect();
    for head_dim in [64, 128] {
        for (group, options) in [
            (4, PLAIN),
            (1, PLAIN),
            (
                3,
                HeadOptions {
                    bias: true,
                    ..PLAIN
                },
            ),
            (
                8,
                HeadOptions {
                    norm: QkNorm::PerHead,
                    ..PLAIN
                },
            ),
            (
                5,
                HeadOptions {
                    bias: true,
                    norm: QkNorm::PerHead,
                    rotation: Rotation { k: true, v: true },
                    scales: true,
                    ..PLAIN
                },
            ),
        ] {
            for lengths in lengths.chunks(most) {
                one(device, report, (head_dim, group), lengths, options, 0)?;
            }
        }
        one(device, report, (head_dim, 4), &many, PLAIN, 0)?;
        // Cut into units of as few blocks as may be, and into three.
        for (lengths, spread) in [(&[1152][..], 32), (&[385, 1100, 20, 769], 12)] {
            one(device, report, (head_dim, 4), lengths, PLAIN, spread)?;
        }
    }
    Ok(())
}

/// Few and short sequences.
pub(super) fn check_quick(device: &Arc<Device>, report: &mut Report) -> Result<(), ProbeError> {
    for head_dim in [64, 128] {
        one(device, report, (head_dim, 4), &[1, 17, 300, 129], PLAIN, 0)?;
        one(device, report, (head_dim, 4), &[900, 130], PLAIN, 8)?;
    }
    Ok(())
}

/// On a device whose decode kernel does not finish heads there is nothing to compare.
fn one(
    device: &Arc<Device>,
    report: &mut Report,
    (head_dim, group): (usize, usize),
    lengths: &[usize],
    options: HeadOptions,
    spread: usize,
) -> Result<(), ProbeError> {
    let seqs: Vec<_> = lengths.iter().map(|n| (n - 1, 1)).collect();
    let case = Case::new(head_dim, group, &seqs, 1.0, 12);
    let mut attention = case.probe(device, None, None)?;
    attention.spread(spread);
    attention.load(&case.pages.input)?;
    let mut probe = HeadsProbe::new(device, attention, options)?;
    let name = format!(
        "{} sequences, heads finished by decode, head_dim {head_dim} group {group}, \
         spread {spread}",
        lengths.len()
    );
    if probe.finishes() != device.has_copy_engine() {
        report.check(&format!("{name}: which kernel does it"), 1.0, 0.0);
    }
    if !probe.finishes() {
        return Ok(());
    }
    let [apart, finished] = [false, true].map(|how| probe.run(LAYERS - 1, &case.arena, how));
    let ((apart, pages), (finished, appended)) = (apart?, finished?);
    let is_nan = apart.iter().filter(|v| v.is_nan()).count();
    let bytes = pages.iter().zip(&appended).filter(|(a, b)| a != b).count();
    let nothing_new = usize::from(appended == case.arena);
    let wrong = differing(&apart, &finished) + (is_nan + bytes + nothing_new) as f64;
    report.check(&name, wrong, 0.0);
    Ok(())
}
