//! Windows, soft caps and sinks over pages of any format.

use std::sync::Arc;

use super::case::{CUT, Case, Contents, Formats};
use super::{ATTENTION_LIMIT, GROUPS, KV_HEADS, UNROUNDED_LIMIT};
use crate::cuda::driver::Device;
use crate::cuda::probe::ProbeError;
use crate::cuda::selftest::Rng;
use crate::cuda::selftest::attention::Scoring;
use crate::cuda::selftest::table::Report;

/// In the first block, around the edges of blocks, and of several units where those are short.
const LENGTHS: [usize; 6] = [17, 129, 300, 700, 1290, 2049];

pub(in crate::cuda::selftest) fn check(
    device: &Arc<Device>,
    report: &mut Report,
) -> Result<(), ProbeError> {
    for head_dim in [64, 128] {
        for pages in Formats::kinds(device, head_dim) {
            for group in GROUPS {
                check_group(device, report, pages, group)?;
            }
            check_rows(device, report, pages)?;
        }
    }
    Ok(())
}

fn check_group(
    device: &Arc<Device>,
    report: &mut Report,
    pages: Formats,
    group: usize,
) -> Result<(), ProbeError> {
    let q_heads = KV_HEADS * group;
    for (window, cap, sinks) in [
        (Some(1), None, None),
        (Some(100), None, Some(q_heads)),
        (Some(128), Some(3.0), None),
        (Some(1000), Some(8.0), Some(q_heads)),
        (Some(5000), None, None),
        (None, Some(3.0), Some(q_heads)),
    ] {
        let scoring = Scoring::new(window, cap, sinks);
        check_scoring(device, report, (pages, group), scoring)?;
    }
    for (chunk, cap, sinks) in [
        (1, None, None),
        (64, None, Some(q_heads)),
        (128, Some(3.0), None),
        (1024, None, Some(q_heads)),
    ] {
        let scoring = Scoring::new(Some(chunk), cap, sinks).chunked();
        check_scoring(device, report, (pages, group), scoring)?;
    }
    // Each format at the edge of a window that ends within a block, before outputs are rounded.
    let mut next = 0..;
    let each = |_, _| 1 + next.next().unwrap_or(0) % pages.pairs.len() as u16;
    let lengths: Vec<_> = (0..pages.pairs.len()).map(|i| 900 + 128 * i).collect();
    let case = Case::new(pages, group, &lengths, 4.0, each, 92);
    let scoring = Scoring::new(Some(700), Some(30.0), None);
    let case = case.scored(scoring.clone());
    let name = format!("the same before rounding, {pages} group {group}, {scoring}");
    report.check(&name, case.run_unrounded(device)?, UNROUNDED_LIMIT);
    let company = case.changed_by_company(device, Some(CUT))?;
    let name = format!("bits alone and in a batch, {pages} group {group}, {scoring}");
    report.check(&name, company, 0.0);
    Ok(())
}

/// Decodes, and if several blocks are seen also in units of few.
fn check_scoring(
    device: &Arc<Device>,
    report: &mut Report,
    (pages, group): (Formats, usize),
    scoring: Scoring,
) -> Result<(), ProbeError> {
    let mut rng = Rng(90);
    let any = |_, _| pages.any(&mut rng);
    let case = Case::new(pages, group, &LENGTHS, 4.0, any, 91).scored(scoring.clone());
    let name = format!("decode of mixed blocks, {pages} group {group}, {scoring}");
    report.check(&name, case.run(device)?, ATTENTION_LIMIT);
    if matches!(scoring.spec.seen.window, Some(1000 | 1024)) {
        let name = format!("the same in units of {CUT} blocks");
        report.check(&name, case.run_cut(device, Some(CUT))?, ATTENTION_LIMIT);
    }
    Ok(())
}

/// Several rows of a sequence, whose windows begin in other tiles, blocks and units.
fn check_rows(device: &Arc<Device>, report: &mut Report, pages: Formats) -> Result<(), ProbeError> {
    for (group, rows, window) in [
        (1, 2, 1),
        (3, 5, 130),
        (4, 4, 128 * 3),
        (1, 16, 7),
        (1, 16, 384),
        (8, 4, 250),
        (3, 9, 800),
    ] {
        let scoring = Scoring::new(Some(window), None, Some(KV_HEADS * group));
        let mut rng = Rng((10 * group + rows) as u64);
        let mut any = |_, _| pages.any(&mut rng);
        // The windows' first tokens lie on both sides of a block's edge, too.
        let lengths = [rows, 129, 130, 700, 128 * 7 + rows / 2, 1290];
        let contents = Contents::of_offset(4.0);
        let case = Case::of_rows(rows, pages, group, &lengths, contents, &mut any, 93);
        let case = case.scored(scoring.clone());
        let name = format!("decode of {rows} rows, {pages} group {group}, {scoring}");
        report.check(&name, case.run(device)?, ATTENTION_LIMIT);
        let name = format!("the same merged, {pages} group {group}, {scoring}");
        report.check(&name, case.run_cut(device, Some(CUT))?, ATTENTION_LIMIT);
    }
    Ok(())
}

/// A batch of each kernel.
pub(in crate::cuda::selftest) fn check_quick(
    device: &Arc<Device>,
    report: &mut Report,
) -> Result<(), ProbeError> {
    for group in GROUPS {
        let kinds = [64, 128].map(|d| Formats::kinds(device, d));
        for pages in kinds.into_iter().flatten() {
            let scoring = Scoring::new(Some(300), Some(8.0), Some(KV_HEADS * group));
            let mut next = 0..;
            let each = |_, _| next.next().unwrap_or(0) % (pages.pairs.len() as u16 + 1);
            let lengths = [17, 1290, 129, 700, 300];
            let case = Case::new(pages, group, &lengths, 4.0, each, 94).scored(scoring.clone());
            let name = format!("decode of mixed blocks, quick, {pages} group {group}, {scoring}");
            report.check(&name, case.run(device)?, ATTENTION_LIMIT);
        }
    }
    Ok(())
}
