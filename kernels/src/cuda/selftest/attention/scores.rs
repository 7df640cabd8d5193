//! Windows, soft caps and sinks, at 16 bit: decode and prefill.

use std::sync::Arc;

use half::bf16;

use super::{ATTENTION_LIMIT, Case, LAYERS, differing};
use crate::SUB_BLOCK_TOKENS;
use crate::backend::StepInput;
use crate::cuda::probe::{AttentionProbe, ProbeError};
use crate::cuda::selftest::Rng;
use crate::cuda::selftest::reference::attend_scored;
use crate::cuda::selftest::table::Report;
use crate::cuda::{
    DECODE_VARIANTS, DecodeVariant, Device, PREFILL_VARIANTS, PrefillVariant, ScoreSpec, SplitRule,
};
use crate::kv::Side;
use crate::model::Seen;

/// What a case does with scores, and the sinks of its query heads, if they have any.
#[derive(Debug, Clone, Default)]
pub(in crate::cuda::selftest) struct Scoring {
    pub(in crate::cuda::selftest) spec: ScoreSpec,
    pub(in crate::cuda::selftest) sinks: Vec<bf16>,
}

impl Scoring {
    /// `sinks`: query heads that have some.
    pub(in crate::cuda::selftest) fn new(
        window: Option<usize>,
        soft_cap: Option<f32>,
        sinks: Option<usize>,
    ) -> Self {
        Self {
            spec: ScoreSpec {
                seen: Seen::window(window),
                soft_cap,
                sinks: sinks.is_some(),
            },
            sinks: Rng(3).values(sinks.unwrap_or(0), 4.0),
        }
    }

    /// The same of a chunk of the window's length.
    pub(in crate::cuda::selftest) fn chunked(mut self) -> Self {
        self.spec.seen.chunked = true;
        self
    }

    /// The first token that one at `position` sees.
    pub(in crate::cuda::selftest) fn first_seen(&self, position: usize) -> usize {
        match (self.spec.seen.window, self.spec.seen.chunked) {
            (Some(chunk), true) => position / chunk * chunk,
            (window, _) => (position + 1).saturating_sub(window.unwrap_or(usize::MAX)),
        }
    }

    /// Cap and sink of a query head.
    pub(in crate::cuda::selftest) fn of(&self, head: usize) -> (Option<f64>, Option<f64>) {
        let sink = self.sinks.get(head).map(|sink| sink.to_f64());
        (self.spec.soft_cap.map(f64::from), sink)
    }
}

impl std::fmt::Display for Scoring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ScoreSpec {
            seen,
            soft_cap,
            sinks,
        } = self.spec;
        match seen.window {
            Some(chunk) if seen.chunked => write!(f, "chunk {chunk}")?,
            Some(window) => write!(f, "window {window}")?,
            None => f.write_str("no window")?,
        }
        if let Some(cap) = soft_cap {
            write!(f, ", cap {cap}")?;
        }
        f.write_str(if sinks { ", sinks" } else { "" })
    }
}

/// Of several units, in the first block, and around the edges of sub-blocks and blocks.
const DECODED: [(usize, usize); 8] = [
    (2400, 1),
    (0, 1),
    (15, 1),
    (16, 1),
    (130, 1),
    (255, 1),
    (300, 1),
    (1100, 1),
];

const PREFILLED: [(usize, usize); 6] = [(0, 2), (0, 65), (15, 40), (127, 130), (300, 1), (900, 37)];

/// Windows within a tile, a sub-block, a block, at their edges, of several units, and beyond
/// sequences; some with caps and sinks, which also come alone. Chunks likewise.
pub(super) fn scorings(q_heads: usize) -> Vec<Scoring> {
    let windows = [
        (Some(1), None, None),
        (Some(5), None, Some(q_heads)),
        (Some(16), None, None),
        (Some(100), Some(3.0), None),
        (Some(128), None, Some(q_heads)),
        (Some(130), None, None),
        (Some(1000), None, None),
        (Some(1800), Some(20.0), Some(q_heads)),
        (Some(1 << 40), None, None),
        (None, Some(3.0), None),
        (None, None, Some(q_heads)),
    ];
    let windows = windows.map(|(w, c, s)| Scoring::new(w, c, s)).into_iter();
    let chunks = [
        (1, None, None),
        (16, None, Some(q_heads)),
        (64, Some(3.0), None),
        (128, None, None),
        (256, None, Some(q_heads)),
        (1024, Some(20.0), None),
        (1 << 40, None, None),
    ];
    let chunks = chunks.map(|(w, c, s)| Scoring::new(Some(w), c, s).chunked());
    windows.chain(chunks).collect()
}

pub(in crate::cuda::selftest) fn check(
    device: &Arc<Device>,
    report: &mut Report,
) -> Result<(), ProbeError> {
    for head_dim in [64, 128] {
        let group = 4;
        let decode = Case::new(head_dim, group, &DECODED, 3.0, 80);
        let prefill = Case::new(head_dim, group, &PREFILLED, 3.0, 81);
        for scoring in scorings(2 * group) {
            let name = format!("decode, {scoring}, head_dim {head_dim}");
            decode.check_scored(device, report, &name, &scoring, None, None)?;
            for variant in scored_prefills(device, head_dim) {
                let name = format!("{}, {scoring}", variant.name);
                prefill.check_scored(device, report, &name, &scoring, None, Some(variant))?;
            }
        }
        for variant in scored_decoders(device, head_dim) {
            let case = Case::new(head_dim, group, &DECODED, 40.0, 82);
            for (window, cap) in [(1000, None), (77, Some(5.0))] {
                let scoring = Scoring::new(Some(window), cap, Some(2 * group));
                let name = format!("{}, large scores, {scoring}", variant.name);
                case.check_scored(device, report, &name, &scoring, Some(variant), None)?;
            }
        }
        for (kv_heads, group) in [(2, 1), (2, 12), (1, 64), (8, 1)] {
            let heads = (kv_heads, group);
            let scoring = Scoring::new(Some(200), Some(6.0), Some(kv_heads * group));
            for seqs in [&DECODED[..6], &PREFILLED[2..5]] {
                let case = Case::of_heads(heads, head_dim, seqs, 3.0, 83);
                let name = format!("{scoring}, head_dim {head_dim} KV heads {kv_heads} {group}");
                case.check_scored(device, report, &name, &scoring, None, None)?;
            }
        }
        check_bits(device, report, head_dim)?;
    }
    for head_dim in (16..=256).step_by(16).filter(|d| !matches!(d, 64 | 128)) {
        let seqs = [(1700, 1), (0, 1), (200, 1), (0, 37), (100, 29), (240, 18)];
        let case = Case::new(head_dim, 3, &seqs, 3.0, 84);
        for scoring in [
            Scoring::new(Some(21), Some(4.0), None),
            Scoring::new(Some(1300), None, Some(6)),
        ] {
            let name = format!("head_dim {head_dim}, {scoring}");
            case.check_scored(device, report, &name, &scoring, None, None)?;
        }
    }
    check_bits(device, report, 96)
}

/// A case of each kernel of some widths.
pub(in crate::cuda::selftest) fn check_quick(
    device: &Arc<Device>,
    report: &mut Report,
) -> Result<(), ProbeError> {
    for head_dim in [64, 96, 128, 256] {
        let seqs = [(700, 1), (16, 1), (0, 34), (150, 20)];
        let case = Case::new(head_dim, 4, &seqs, 3.0, 85);
        for scoring in [
            Scoring::new(Some(21), Some(4.0), None),
            Scoring::new(Some(300), None, Some(8)),
        ] {
            let name = format!("head_dim {head_dim}, {scoring}");
            case.check_scored(device, report, &name, &scoring, None, None)?;
        }
    }
    Ok(())
}

fn scored_decoders(device: &Device, head_dim: usize) -> impl Iterator<Item = DecodeVariant> {
    let all = DECODE_VARIANTS.iter().copied();
    all.filter(move |v| v.head_dim == head_dim && v.takes_any_scores() && v.runs_on(device))
}

fn scored_prefills(device: &Device, head_dim: usize) -> impl Iterator<Item = PrefillVariant> {
    let all = PREFILL_VARIANTS.iter().copied();
    all.filter(move |v| v.takes_any_scores() && v.fits(device, head_dim))
}

/// The same bits in any company and however a prompt is cut.
fn check_bits(
    device: &Arc<Device>,
    report: &mut Report,
    head_dim: usize,
) -> Result<(), ProbeError> {
    for window in [40, 1500] {
        let scoring = Scoring::new(Some(window), None, Some(8));
        let together = Case::new(head_dim, 4, &DECODED, 3.0, 86);
        let batch = together.scored_outputs(device, &scoring, None, None)?;
        let alone = Case {
            seqs: 1,
            ..together
        };
        let single = alone.scored_outputs(device, &scoring, None, None)?;
        let name = format!("bits alone and in a batch, {scoring}, head_dim {head_dim}");
        report.check(&name, differing(&single, &batch), 0.0);
    }
    let prompt = Case::new(head_dim, 4, &[(0, 430)], 20.0, 87);
    for variant in scored_prefills(device, head_dim) {
        for window in [50, 200] {
            let scoring = Scoring::new(Some(window), None, Some(8));
            let whole = prompt.scored_outputs(device, &scoring, None, Some(variant))?;
            let mut cut = Vec::new();
            for (start, end) in [(0, 33), (33, 250), (250, 252), (252, 430)] {
                cut.extend(prompt.scored_chunk(device, &scoring, variant, start..end)?);
            }
            let name = format!("{}, bits of a prompt in chunks, {scoring}", variant.name);
            report.check(&name, differing(&whole, &cut), 0.0);
        }
    }
    Ok(())
}

impl Case {
    fn check_scored(
        &self,
        device: &Arc<Device>,
        report: &mut Report,
        name: &str,
        scoring: &Scoring,
        decode: Option<DecodeVariant>,
        prefill: Option<PrefillVariant>,
    ) -> Result<(), ProbeError> {
        let out = self.scored_outputs(device, scoring, decode, prefill)?;
        let error = self.worst(&out, &self.scored_reference(scoring));
        report.check(name, error, ATTENTION_LIMIT);
        Ok(())
    }

    fn scored_outputs(
        &self,
        device: &Arc<Device>,
        scoring: &Scoring,
        decode: Option<DecodeVariant>,
        prefill: Option<PrefillVariant>,
    ) -> Result<Vec<bf16>, ProbeError> {
        let mut input = self.pages.input.clone();
        input.seqs.truncate(self.seqs);
        let rows: u32 = input.seqs.iter().map(|s| s.rows).sum();
        input.tokens.truncate(rows as usize);
        let mut probe = self.scored_probe(device, scoring, &input, prefill)?;
        if let Some(variant) = decode {
            probe.configure(variant, SplitRule::default())?;
        }
        self.outputs_of(&mut probe, &input)
    }

    /// Of some rows of the first sequence.
    fn scored_chunk(
        &self,
        device: &Arc<Device>,
        scoring: &Scoring,
        prefill: PrefillVariant,
        rows: std::ops::Range<usize>,
    ) -> Result<Vec<bf16>, ProbeError> {
        let mut input = self.pages.input.clone();
        input.seqs.truncate(1);
        input.seqs[0].position += rows.start as u32;
        input.seqs[0].rows = rows.len() as u32;
        input.tokens.truncate(rows.len());
        let mut probe = self.scored_probe(device, scoring, &input, Some(prefill))?;
        probe.load(&input)?;
        let row = self.q_heads() * self.geometry.head_dim;
        let q = &self.q[rows.start * row..rows.end * row];
        Ok(probe.run(LAYERS - 1, q)?)
    }

    /// A probe over these pages, NaN where 16 tokens are seen by no row.
    fn scored_probe(
        &self,
        device: &Arc<Device>,
        scoring: &Scoring,
        input: &StepInput,
        prefill: Option<PrefillVariant>,
    ) -> Result<AttentionProbe, ProbeError> {
        let mut probe = self.probe(device, None, prefill)?;
        probe.score(scoring.spec, &scoring.sinks)?;
        let mut arena = self.arena.clone();
        let bytes = self.geometry.sub_record_bytes();
        for (seq, s) in input.seqs.iter().enumerate() {
            let hidden = scoring.first_seen(s.position as usize) / SUB_BLOCK_TOKENS;
            for token in (0..hidden * SUB_BLOCK_TOKENS).step_by(SUB_BLOCK_TOKENS) {
                for record in 0..self.geometry.records() {
                    let at = self.pages.row_offset(seq, token, record, bytes);
                    arena[at..at + bytes].fill(0xff);
                }
            }
        }
        probe.arena_mut().write_all(&arena)?;
        Ok(probe)
    }

    fn scored_reference(&self, scoring: &Scoring) -> Vec<f64> {
        let d = self.geometry.head_dim;
        let scale = 1.0 / (d as f64).sqrt();
        let q_heads = self.q_heads();
        let mut reference = vec![0.0; self.q.len()];
        for (seq, s) in self.pages.input.seqs.iter().enumerate() {
            for kv_head in 0..self.geometry.kv_heads {
                let [keys, values] = [Side::K, Side::V].map(|side| self.side(seq, side, kv_head));
                for i in 0..s.rows as usize {
                    let position = s.position as usize + i;
                    let seen = scoring.first_seen(position) * d..(position + 1) * d;
                    for head in kv_head * self.group..(kv_head + 1) * self.group {
                        let at = ((s.first_row as usize + i) * q_heads + head) * d;
                        let (q, keys) = (&self.q[at..at + d], &keys[seen.clone()]);
                        let values = &values[seen.clone()];
                        let want = attend_scored(q, keys, values, scale, scoring.of(head));
                        reference[at..at + d].copy_from_slice(&want);
                    }
                }
            }
        }
        reference
    }
}
