//! Paged attention, decode and prefill.

mod heads;
mod rope;
mod rotate_back;
mod scores;
mod widths;

use std::sync::Arc;

use half::bf16;

use crate::backend::StepInput;
use crate::cuda::probe::{AttentionProbe, ProbeError};
use crate::cuda::{DECODE_VARIANTS, DecodeVariant, Device, PrefillVariant};
use crate::kv::{KvGeometry, Side};

use super::reference::{attend_scaled, relative_error};
use super::table::Report;
use super::{Pages, Rng};
pub(super) use scores::{Scoring, check as check_scores, check_quick as check_scores_quick};

/// P and the output are rounded to bf16: 2^-9 each, and some room.
pub(super) const ATTENTION_LIMIT: f64 = 6e-3;

const KV_HEADS: usize = 2;
const LAYERS: usize = 2;

/// KV heads and query heads of each: one KV head for all query heads (MQA), up to as many as there
/// are kernels for, and one for each (MHA). The other cases are GQA.
pub(super) const MQA_AND_MHA: [(usize, usize); 4] = [(1, 8), (1, 32), (1, 64), (8, 1)];

pub(super) fn check(device: &Arc<Device>, report: &mut Report) -> Result<(), ProbeError> {
    let lengths = [
        8193, 1, 2, 15, 16, 17, 127, 128, 129, 255, 256, 257, 1000, 1023, 2049, 4097,
    ];
    let decode: Vec<(usize, usize)> = lengths.iter().map(|n| (n - 1, 1)).collect();
    let mixed = [
        (0, 1),
        (0, 2),
        (0, 65),
        (100, 77),
        (127, 130),
        (300, 1),
        (1000, 33),
        (2048, 64),
    ];
    for head_dim in [64, 128] {
        for group in [1, 3, 4, 5, 6, 8, 12] {
            for (name, seqs) in [("decode", &decode[..]), ("mixed", &mixed[..])] {
                let case = Case::new(head_dim, group, seqs, 3.0, 7);
                let error = case.run(device, None)?;
                report.check(
                    &format!("{name} head_dim {head_dim} group {group}"),
                    error,
                    ATTENTION_LIMIT,
                );
            }
        }
        for heads in MQA_AND_MHA {
            for (name, seqs) in [("decode", &decode[1..13]), ("mixed", &mixed[..6])] {
                let case = Case::of_heads(heads, head_dim, seqs, 3.0, 16);
                let (kv_heads, group) = heads;
                let name = format!("{name} head_dim {head_dim} KV heads {kv_heads} group {group}");
                report.check(&name, case.run(device, None)?, ATTENTION_LIMIT);
            }
        }
        // Scores far apart: the running maximum moves often.
        let case = Case::new(head_dim, 4, &decode, 40.0, 8);
        report.check(
            &format!("decode, large scores, head_dim {head_dim}"),
            case.run(device, None)?,
            ATTENTION_LIMIT,
        );
        for variant in DECODE_VARIANTS
            .iter()
            .filter(|v| v.head_dim == head_dim && v.runs_on(device))
        {
            let case = Case::new(head_dim, 4, &decode, 3.0, 9);
            report.check(
                variant.name,
                case.run(device, Some(*variant))?,
                ATTENTION_LIMIT,
            );
        }
        // A sequence's bits must not depend on its company.
        let together = Case::new(head_dim, 4, &decode, 3.0, 10);
        let batch = together.outputs(device, None, None)?;
        let alone = Case {
            seqs: 1,
            ..Case::new(head_dim, 4, &decode, 3.0, 10)
        };
        let single = alone.outputs(device, None, None)?;
        report.check(
            &format!("bits alone and in a batch, head_dim {head_dim}"),
            differing(&single, &batch),
            0.0,
        );
    }
    heads::check(device, report)
}

/// Values whose bits differ.
pub(super) fn differing(a: &[bf16], b: &[bf16]) -> f64 {
    let same_shape = a.iter().zip(b);
    same_shape
        .filter(|(a, b)| a.to_bits() != b.to_bits())
        .count() as f64
}

/// Heads of every width, and what is done with them before scores; `quick`: a few.
pub(super) fn check_heads(
    device: &Arc<Device>,
    quick: bool,
    report: &mut Report,
) -> Result<(), ProbeError> {
    rotate_back::check(device, report)?;
    if quick {
        widths::check_quick(device, report)?;
        return rope::check_quick(device, report);
    }
    widths::check(device, report)?;
    rope::check(device, report)
}

/// One mixed and one decode batch of each head size, and of one KV head.
pub(super) fn check_quick(device: &Arc<Device>, report: &mut Report) -> Result<(), ProbeError> {
    for head_dim in [64, 128] {
        for (name, seqs) in [
            ("decode", &[(700, 1), (0, 1), (16, 1)][..]),
            ("mixed", &[(0, 70), (300, 1), (90, 33)]),
        ] {
            let case = Case::new(head_dim, 4, seqs, 3.0, 11);
            report.check(
                &format!("{name} head_dim {head_dim}"),
                case.run(device, None)?,
                ATTENTION_LIMIT,
            );
            let case = Case::of_heads((1, 32), head_dim, seqs, 3.0, 11);
            let name = format!("{name} head_dim {head_dim} KV heads 1 group 32");
            report.check(&name, case.run(device, None)?, ATTENTION_LIMIT);
        }
    }
    heads::check_quick(device, report)
}

/// Sequences with random pages, NaN wherever no token lies.
pub(super) struct Case {
    geometry: KvGeometry,
    group: usize,
    pages: Pages,
    frames: u32,
    arena: Vec<u8>,
    q: Vec<bf16>,
    /// Sequences run, from the first.
    seqs: usize,
}

impl Case {
    /// `seqs`: (position, rows). `amplitude`: of queries.
    pub(super) fn new(
        head_dim: usize,
        group: usize,
        seqs: &[(usize, usize)],
        amplitude: f32,
        seed: u64,
    ) -> Self {
        Self::of_heads((KV_HEADS, group), head_dim, seqs, amplitude, seed)
    }

    /// The same of so many KV heads, and query heads of each.
    pub(super) fn of_heads(
        (kv_heads, group): (usize, usize),
        head_dim: usize,
        seqs: &[(usize, usize)],
        amplitude: f32,
        seed: u64,
    ) -> Self {
        let mut rng = Rng(seed);
        let geometry = KvGeometry {
            layers: LAYERS,
            kv_heads,
            head_dim,
            windowed: crate::kv::WindowedLayers::NONE,
        };
        let layout = geometry.frame_layout();
        let frames = Pages::frames_for(layout, seqs.iter().map(|s| s.0 + s.1)) + 5;
        let mut pages = Pages::new(layout, frames, &mut rng);
        let mut arena = vec![0xff; frames as usize * layout.frame_bytes];
        for (seq, &(position, rows)) in seqs.iter().enumerate() {
            pages.add(position, rows);
            for token in 0..position + rows {
                for record in 0..geometry.records() {
                    let at = pages.row_offset(seq, token, record, geometry.sub_record_bytes());
                    for (i, v) in rng.values(head_dim, 1.0).iter().enumerate() {
                        arena[at + 2 * i..at + 2 * i + 2].copy_from_slice(&v.to_le_bytes());
                    }
                }
            }
        }
        let q = rng.values(
            pages.input.tokens.len() * kv_heads * group * head_dim,
            amplitude,
        );
        Self {
            geometry,
            group,
            pages,
            frames,
            arena,
            q,
            seqs: seqs.len(),
        }
    }

    fn q_heads(&self) -> usize {
        self.geometry.kv_heads * self.group
    }

    pub(super) fn outputs(
        &self,
        device: &Arc<Device>,
        variant: Option<DecodeVariant>,
        prefill: Option<PrefillVariant>,
    ) -> Result<Vec<bf16>, ProbeError> {
        let mut input = self.pages.input.clone();
        input.seqs.truncate(self.seqs);
        let rows: u32 = input.seqs.iter().map(|s| s.rows).sum();
        input.tokens.truncate(rows as usize);
        let mut probe = self.probe(device, variant, prefill)?;
        self.outputs_of(&mut probe, &input)
    }

    /// The outputs of a probe over these pages for `input`.
    fn outputs_of(
        &self,
        probe: &mut AttentionProbe,
        input: &StepInput,
    ) -> Result<Vec<bf16>, ProbeError> {
        probe.load(input)?;
        let rows = input.tokens.len();
        let q_heads = self.q_heads();
        let q = &self.q[..rows * q_heads * self.geometry.head_dim];
        let first = probe.run(LAYERS - 1, q)?;
        // Again: counters and scratch must be left as they were found.
        let second = probe.run(LAYERS - 1, q)?;
        let same = first
            .iter()
            .zip(&second)
            .all(|(a, b)| a.to_bits() == b.to_bits());
        Ok(if same {
            first
        } else {
            vec![bf16::NAN; first.len()]
        })
    }

    /// A probe over these pages.
    fn probe(
        &self,
        device: &Arc<Device>,
        variant: Option<DecodeVariant>,
        prefill: Option<PrefillVariant>,
    ) -> Result<AttentionProbe, ProbeError> {
        let mut probe = AttentionProbe::new(
            device,
            self.geometry,
            self.geometry.frame_layout(),
            self.frames,
            self.q_heads(),
            self.pages.capacity(),
            variant,
        )?;
        if let Some(prefill) = prefill {
            probe.configure_prefill(prefill)?;
        }
        probe.arena_mut().write_all(&self.arena)?;
        Ok(probe)
    }

    /// The outputs of the first sequence when its rows come in chunks, which begin at `starts`.
    pub(super) fn outputs_in_chunks(
        &self,
        device: &Arc<Device>,
        prefill: PrefillVariant,
        starts: &[usize],
    ) -> Result<Vec<bf16>, ProbeError> {
        let whole = &self.pages.input;
        let mut probe = self.probe(device, None, Some(prefill))?;
        let row = self.q_heads() * self.geometry.head_dim;
        let mut out = Vec::new();
        for (i, &start) in starts.iter().enumerate() {
            let end = starts
                .get(i + 1)
                .copied()
                .unwrap_or(whole.seqs[0].rows as usize);
            let mut input = whole.clone();
            input.seqs.truncate(1);
            input.seqs[0].position += start as u32;
            input.seqs[0].rows = (end - start) as u32;
            input.tokens.truncate(end - start);
            probe.load(&input)?;
            out.extend(probe.run(LAYERS - 1, &self.q[start * row..end * row])?);
        }
        Ok(out)
    }

    /// The largest relative error of any (row, head).
    fn run(&self, device: &Arc<Device>, variant: Option<DecodeVariant>) -> Result<f64, ProbeError> {
        let out = self.outputs(device, variant, None)?;
        Ok(self.worst(&out, &self.reference()))
    }

    /// The same where scores are multiplied with `scale`.
    pub(super) fn run_scaled(&self, device: &Arc<Device>, scale: f32) -> Result<f64, ProbeError> {
        let input = &self.pages.input;
        let mut probe = self.probe(device, None, None)?;
        probe.scale(scale)?;
        let out = self.outputs_of(&mut probe, input)?;
        Ok(self.worst(&out, &self.reference_scaled(scale.into())))
    }

    /// The largest relative error of any (row, head) of `out`.
    pub(super) fn worst(&self, out: &[bf16], reference: &[f64]) -> f64 {
        let d = self.geometry.head_dim;
        assert_eq!(out.len(), reference.len());
        out.chunks_exact(d)
            .zip(reference.chunks_exact(d))
            .map(|(out, want)| relative_error(out.iter().map(|v| v.to_f64()), want))
            .fold(0.0, f64::max)
    }

    /// What all rows should be, by definition; in the order of the outputs.
    pub(super) fn reference(&self) -> Vec<f64> {
        self.reference_scaled(1.0 / (self.geometry.head_dim as f64).sqrt())
    }

    /// The same where scores are multiplied with `scale`.
    fn reference_scaled(&self, scale: f64) -> Vec<f64> {
        let d = self.geometry.head_dim;
        let q_heads = self.q_heads();
        let mut reference = vec![0.0; self.q.len()];
        for (seq, s) in self.pages.input.seqs.iter().enumerate() {
            for kv_head in 0..self.geometry.kv_heads {
                let [keys, values] = [Side::K, Side::V].map(|side| self.side(seq, side, kv_head));
                for i in 0..s.rows as usize {
                    let seen = (s.position as usize + i + 1) * d;
                    for head in kv_head * self.group..(kv_head + 1) * self.group {
                        let at = ((s.first_row as usize + i) * q_heads + head) * d;
                        let (q, keys) = (&self.q[at..at + d], &keys[..seen]);
                        let want = attend_scaled(q, keys, &values[..seen], scale);
                        reference[at..at + d].copy_from_slice(&want);
                    }
                }
            }
        }
        reference
    }

    /// One side of the last layer's cache of a sequence, `[tokens][head_dim]`.
    fn side(&self, seq: usize, side: Side, kv_head: usize) -> Vec<bf16> {
        let s = &self.pages.input.seqs[seq];
        let record = self.geometry.record(LAYERS - 1, side, kv_head);
        (0..(s.position + s.rows) as usize)
            .flat_map(|token| {
                let at =
                    self.pages
                        .row_offset(seq, token, record, self.geometry.sub_record_bytes());
                let row = &self.arena[at..at + 2 * self.geometry.head_dim];
                row.chunks_exact(2)
                    .map(|b| bf16::from_le_bytes([b[0], b[1]]))
                    .collect::<Vec<_>>()
            })
            .collect()
    }
}
