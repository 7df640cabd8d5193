//! Decode attention over blocks of any format, against attention over what the CPU's codecs
//! dequantise.

mod case;
mod scores;

use std::sync::Arc;

use super::Rng;
use super::attention::ATTENTION_LIMIT;
use super::table::Report;
use crate::BLOCK_TOKENS;
use crate::cuda::driver::Device;
use crate::cuda::probe::ProbeError;
use crate::formats::FormatId as F;
use case::{CODES, CUT, Case, Contents, Formats, KV_HEADS, PAIRS};
pub(super) use scores::{check as check_scores, check_quick as check_scores_quick};

/// Queries times ranges are rounded to fp16, they and probabilities times ranges to 16-bit
/// integers, the output to bf16.
const LIMIT: f64 = 3.2e-3;

/// Query heads of a KV head, for each of which sm_90 has another kernel.
const GROUPS: [usize; 3] = [4, 8, 16];

/// Before outputs are rounded to bf16, which alone may cost 1.7e-3.
const UNROUNDED_LIMIT: f64 = 2e-3;

/// KV heads and query heads of each: one for all of them (MQA), up to as many as there are kernels
/// for, and one for each (MHA). All other cases are GQA.
const MQA_AND_MHA: [(usize, usize); 6] = [(1, 8), (1, 16), (1, 32), (1, 48), (1, 64), (8, 1)];

/// A batch of each head size and number of heads that has a kernel, of blocks in all formats, and
/// in those that are not polar.
pub(super) fn check_quick(device: &Arc<Device>, report: &mut Report) -> Result<(), ProbeError> {
    let grouped = GROUPS.map(|group| (KV_HEADS, group));
    for (kv_heads, group) in grouped.into_iter().chain([(1, 8), (1, 32), (8, 1)]) {
        for pages in [64, 128]
            .into_iter()
            .flat_map(|d| Formats::kinds(device, d))
        {
            let pages = pages.of_kv_heads(kv_heads);
            let is_grouped = kv_heads == KV_HEADS;
            let (lengths, seed): (&[usize], u64) = match is_grouped {
                true => (&[17, 1290, 129, 700, 300], 29),
                false => (&[17, 1290, 300], 31),
            };
            // Each position in turn: there are as many blocks.
            let mut next = 0..;
            let each = |_, _| next.next().unwrap_or(0) % (pages.pairs.len() as u16 + 1);
            let case = Case::new(pages, group, lengths, 4.0, each, seed);
            let name = format!("decode of mixed blocks, quick, {pages} group {group}");
            report.check(&name, case.run(device)?, ATTENTION_LIMIT);
            if is_grouped {
                let knows_polar = case.probe(device, 1, None)?.0.knows_polar();
                let expected = Some(pages.has_polar());
                let name = format!("another kernel than theirs for {pages} group {group}");
                report.check(&name, f64::from(knows_polar != expected), 0.0);
            }
        }
    }
    Ok(())
}

pub(super) fn check(device: &Arc<Device>, report: &mut Report) -> Result<(), ProbeError> {
    for head_dim in [64, 128] {
        for (i, (k, v)) in PAIRS.into_iter().enumerate() {
            let pages = match i < CODES {
                true => Formats::codes(head_dim),
                false => Formats::all(head_dim),
            };
            let case = Case::new(pages, 4, &[300, 1290], 8.0, |_, _| i as u16 + 1, 20);
            let limit = match (k, v) {
                (F::F16, _) | (_, F::F16) => ATTENTION_LIMIT,
                _ => LIMIT,
            };
            let name = format!("decode of {k} keys, {v} values, head_dim {head_dim}");
            report.check(&name, case.run(device)?, limit);
            let case = Case::new(pages, 4, &[700, 1290], 8.0, |_, _| i as u16 + 1, 23);
            let name = format!("the same before rounding, head_dim {head_dim}: {k} {v}");
            report.check(&name, case.run_unrounded(device)?, UNROUNDED_LIMIT);
            if i < CODES {
                let case = Case::new(pages, 16, &[700, 1290], 8.0, |_, _| i as u16 + 1, 23);
                let name =
                    format!("the same of 16 heads before rounding, head_dim {head_dim}: {k} {v}");
                report.check(&name, case.run_unrounded(device)?, UNROUNDED_LIMIT);
            }
        }
        for pages in Formats::kinds(device, head_dim) {
            check_mixtures(device, report, pages)?;
            // The kernels of both widths are one template: all numbers of heads at one of them.
            let heads = match head_dim {
                128 => &MQA_AND_MHA[..],
                _ => &[(1, 32), (8, 1)],
            };
            check_mqa_and_mha(device, report, pages, heads)?;
            check_company(device, report, pages, 4)?;
            if !pages.has_polar() {
                check_company(device, report, pages, 16)?;
            }
            for group in GROUPS {
                check_sizes(device, report, pages, group)?;
            }
        }
    }
    Ok(())
}

fn check_mixtures(
    device: &Arc<Device>,
    report: &mut Report,
    pages: Formats,
) -> Result<(), ProbeError> {
    // The first is of so many blocks that they are dealt in turn.
    let lengths = [9000, 1, 17, 129, 1000, 4097];
    for group in [1, 3, 4, 8, 12] {
        let lengths = if group == 4 {
            &lengths[..]
        } else {
            &lengths[1..]
        };
        let mut rng = Rng(group as u64 + 30);
        let any = |_, _| pages.any(&mut rng);
        let case = Case::new(pages, group, lengths, 4.0, any, 21);
        let name = format!("decode of mixed blocks, {pages} group {group}");
        report.check(&name, case.run(device)?, ATTENTION_LIMIT);
    }
    // Several rows of a sequence: fewer columns than a unit has, as many, and several units of
    // them; ends just behind that of a block, so that its last tile is new, and of a sequence that
    // begins.
    for (group, rows) in [
        (1, 2),
        (3, 2),
        (4, 2),
        (4, 4),
        (8, 2),
        (3, 5),
        (1, 16),
        (8, 4),
        (3, 9),
    ] {
        let mut rng = Rng((10 * group + rows) as u64);
        let mut any = |_, _| pages.any(&mut rng);
        let lengths = [rows, 129, 128, 130, 700, 1029, 1290];
        let contents = Contents::of_offset(4.0);
        let case = Case::of_rows(rows, pages, group, &lengths, contents, &mut any, 27);
        let name = format!("decode of {rows} rows, {pages} group {group}");
        report.check(&name, case.run(device)?, ATTENTION_LIMIT);
        // Cut, the last unit of the second holds the new tokens alone, of which the first row sees
        // none.
        let lengths = [700, 9 * BLOCK_TOKENS + rows - 1, 1290];
        let case = Case::of_rows(rows, pages, group, &lengths, contents, &mut any, 28);
        let name = format!("the same before rounding, {pages} group {group} rows {rows}");
        report.check(&name, case.run_unrounded(device)?, UNROUNDED_LIMIT);
        let name = format!("the same merged, {pages} group {group} rows {rows}");
        report.check(&name, case.run_cut(device, Some(CUT))?, ATTENTION_LIMIT);
    }
    Ok(())
}

/// One KV head for all query heads, and one for each; up to several units of the widest kernel.
fn check_mqa_and_mha(
    device: &Arc<Device>,
    report: &mut Report,
    pages: Formats,
    heads: &[(usize, usize)],
) -> Result<(), ProbeError> {
    for &(kv_heads, group) in heads {
        let pages = pages.of_kv_heads(kv_heads);
        let mut rng = Rng(group as u64 + 60);
        let mut any = |_, _| pages.any(&mut rng);
        let case = Case::new(pages, group, &[1290, 1, 17, 129, 1000], 4.0, &mut any, 61);
        let name = format!("decode of mixed blocks, {pages} group {group}");
        report.check(&name, case.run(device)?, ATTENTION_LIMIT);
        let case = Case::new(pages, group, &[700, 1290], 4.0, &mut any, 62);
        let name = format!("the same before rounding, {pages} group {group}");
        report.check(&name, case.run_unrounded(device)?, UNROUNDED_LIMIT);
        // A batch of drafts, the last block with both old tokens and new ones.
        let contents = Contents::of_offset(4.0);
        let case = Case::of_rows(4, pages, group, &[130, 700], contents, &mut any, 63);
        let name = format!("decode of 4 rows, {pages} group {group}");
        report.check(&name, case.run(device)?, ATTENTION_LIMIT);
        let case = Case::new(pages, group, &[700, 17, 1000], 4.0, &mut any, 64);
        let name = format!("bits alone and in a batch of mixed blocks, {pages} group {group}");
        report.check(&name, case.changed_by_company(device, None)?, 0.0);
    }
    Ok(())
}

/// Scores that grow by more than exponents have room for, of a whole block or of every other row
/// tile, and shrink again; the open block's too. And values of all sizes, by block and by sequence.
fn check_sizes(
    device: &Arc<Device>,
    report: &mut Report,
    pages: Formats,
    group: usize,
) -> Result<(), ProbeError> {
    let keys = |block: usize, token: usize| match block % 16 {
        6..10 => 2.5,
        10..13 if token / 16 % 2 == 1 => 6.0,
        _ => 0.2,
    };
    // As small as fp16 has ranges for, as large, and none.
    let values = |seq: usize, block: usize| match (seq, block % 4) {
        (0, _) | (2, 0) => 1e-6,
        (1, _) | (2, 1) => 3e4,
        (2, 2) => 0.0,
        _ => 1.0,
    };
    let plain = Contents::of_offset(4.0);
    let growing = Contents { keys, ..plain };
    let sized = Contents { values, ..plain };
    let mut rng = Rng(70);
    for (what, contents, lengths, seed) in [
        ("scores that grow", growing, [4000, 1458, 2600], 71),
        ("values of all sizes", sized, [700, 900, 1290], 72),
    ] {
        let any = |_, _| pages.any(&mut rng);
        let case = Case::of_rows(1, pages, group, &lengths, contents, any, seed);
        let name = format!("decode of {what}, {pages} group {group}");
        report.check(&name, case.run(device)?, ATTENTION_LIMIT);
    }
    Ok(())
}

/// Mixtures of blocks that give warps unlike work, so that they wait for each other.
fn check_company(
    device: &Arc<Device>,
    report: &mut Report,
    pages: Formats,
    group: usize,
) -> Result<(), ProbeError> {
    let mut rng = Rng(50);
    let any = |_, _| pages.any(&mut rng);
    let case = Case::new(pages, group, &[4097, 900, 2000], 4.0, any, 24);
    let name = format!("decode of mixed blocks before rounding, {pages} group {group}");
    report.check(&name, case.run_unrounded(device)?, UNROUNDED_LIMIT);
    // Blocks that take all the room of a warp's queue, in units so short that warps wait for each
    // other often.
    let heavy: Vec<u16> = (1..)
        .zip(pages.pairs)
        .filter(|(_, (k, v))| [*k, *v].contains(&F::F16))
        .map(|(at, _)| at)
        .collect();
    let any = |_, _| heavy[rng.below(heavy.len())];
    let short: Vec<usize> = (0..30).map(|i| 129 + i * 97 % 500).collect();
    let case = Case::new(pages, group, &short, 4.0, any, 25);
    let name = format!("decode of short sequences with 16-bit pages, {pages} group {group}");
    report.check(&name, case.run(device)?, ATTENTION_LIMIT);
    // As many units as the finding warp may be ahead, and more.
    let tiny: Vec<usize> = (0..1500).map(|i| 1 + i % 16).collect();
    let case = Case::new(pages, group, &tiny, 4.0, |_, _| 0, 26);
    let name = format!("decode of many sequences of a tile, {pages} group {group}");
    report.check(&name, case.run(device)?, ATTENTION_LIMIT);
    // Blocks that take unlike times, then pieces for a few warps only: one that has had much and
    // waits must not keep from others what lets them get on.
    let any = |_, _| 1 + rng.below(pages.pairs.len()) as u16;
    let uneven: Vec<usize> = (0..150)
        .map(|i| if i % 6 == 5 { 700 + i } else { 1 + i * 7 % 40 })
        .collect();
    let case = Case::new(pages, group, &uneven, 4.0, any, 29);
    let name = format!("decode of long sequences among many short ones, {pages} group {group}");
    report.check(&name, case.run(device)?, ATTENTION_LIMIT);
    // A sequence's bits must not depend on its company: of blocks that are dealt in turn, of few,
    // of several units, of several rows.
    for (first, rows, cut) in [(9000, 1, None), (1290, 1, Some(CUT)), (700, 3, None)] {
        let lengths = [first, rows, 17, 129, 1000, 4097];
        let mut rng = Rng(40);
        let any = |_, _| pages.any(&mut rng);
        let contents = Contents::of_offset(4.0);
        let case = Case::of_rows(rows, pages, group, &lengths, contents, any, 22);
        let name = format!(
            "bits alone and in a batch of mixed blocks, {pages} group {group}, {first} tokens"
        );
        report.check(&name, case.changed_by_company(device, cut)?, 0.0);
    }
    Ok(())
}
