//! Every prefill kernel that runs on the device.

use std::sync::Arc;

use super::attention::{ATTENTION_LIMIT, Case, MQA_AND_MHA, differing};
use super::table::Report;
use crate::cuda::probe::ProbeError;
use crate::cuda::{Device, PREFILL_VARIANTS};

/// (position, rows): whole prompts and chunks, around the edges of sub-blocks, blocks and tiles.
const RAGGED: [(usize, usize); 11] = [
    (0, 2),
    (0, 16),
    (0, 65),
    (1, 31),
    (15, 2),
    (100, 77),
    (127, 2),
    (127, 130),
    (255, 17),
    (900, 37),
    (1072, 16),
];

/// Ragged prompts and chunks, scores far apart, and the same bits however a prompt is cut.
pub(super) fn check(device: &Arc<Device>, report: &mut Report) -> Result<(), ProbeError> {
    for head_dim in [64, 128] {
        let variants = || {
            let all = PREFILL_VARIANTS.iter().copied();
            all.filter(|v| v.fits(device, head_dim))
        };
        let alike = [1, 3, 4, 5, 6, 8, 12].map(|group| (group, 3.0));
        for (group, amplitude) in alike.into_iter().chain([(4, 40.0)]) {
            let case = Case::new(head_dim, group, &RAGGED, amplitude, 12);
            let reference = case.reference();
            for variant in variants() {
                let out = case.outputs(device, None, Some(variant))?;
                report.check(
                    &format!("{} group {group}, queries to {amplitude}", variant.name),
                    case.worst(&out, &reference),
                    ATTENTION_LIMIT,
                );
            }
        }
        for heads in MQA_AND_MHA {
            let case = Case::of_heads(heads, head_dim, &RAGGED[..9], 3.0, 17);
            let reference = case.reference();
            for variant in variants() {
                let out = case.outputs(device, None, Some(variant))?;
                let (kv_heads, group) = heads;
                let name = format!("{} KV heads {kv_heads} group {group}", variant.name);
                report.check(&name, case.worst(&out, &reference), ATTENTION_LIMIT);
            }
        }
        let prompt = Case::new(head_dim, 4, &[(0, 700)], 20.0, 14);
        for variant in variants() {
            let whole = prompt.outputs(device, None, Some(variant))?;
            let cut = prompt.outputs_in_chunks(device, variant, &[0, 33, 300, 419, 556])?;
            report.check(
                &format!("{}, bits of a prompt in chunks", variant.name),
                differing(&whole, &cut),
                0.0,
            );
        }
    }
    Ok(())
}
