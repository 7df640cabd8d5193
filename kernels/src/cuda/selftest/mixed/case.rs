//! A batch over blocks of mixed formats, and attention over what the CPU's codecs dequantise.

use std::sync::Arc;

use half::bf16;

use super::super::Rng;
use super::super::attention::Scoring;
use super::super::attention::differing;
use super::super::records::{encoded, put, ranges};
use super::super::reference::{attend_scored, relative_error};
use crate::backend::{StepInput, TableBuilder};
use crate::cuda::driver::Device;
use crate::cuda::probe::{AttentionProbe, ProbeError};
use crate::cuda::step::StepCapacity;
use crate::formats::{FormatId as F, RecordShape};
use crate::kv::{KvGeometry, KvLayout, Side};
use crate::{BLOCK_TOKENS, SUB_BLOCK_TOKENS};

/// Formats of keys and values at the positions after the first; those with polar keys come last.
pub(super) const PAIRS: [(F, F); 16] = [
    (F::Int8, F::Int8),
    (F::Int4, F::Int4),
    (F::Int2, F::Int2),
    (F::Kitty25, F::Int2),
    (F::Kitty25c, F::Int2c),
    (F::Kitty12, F::Int4),
    (F::Int4, F::Int2),
    (F::Int2, F::Int8),
    (F::Int3, F::Int3),
    (F::Int3, F::Int2),
    (F::F16, F::Int8),
    (F::Int8, F::F16),
    // As many chunks as a warp's queue has room for, behind any number of others.
    (F::F16, F::F16),
    (F::Polar44, F::F16),
    (F::Polar42, F::Int4),
    (F::Polar44Grid, F::Int3),
];

/// Those of [`PAIRS`] that have no polar keys.
pub(super) const CODES: usize = 13;
const _: () = {
    let mut i = 0;
    while i < PAIRS.len() {
        let is_polar = matches!(PAIRS[i].0, F::Polar44 | F::Polar42 | F::Polar44Grid);
        assert!(is_polar == (i >= CODES));
        i += 1;
    }
};

/// Blocks of the units in which sequences are cut to be looked at before outputs are rounded.
pub(super) const CUT: usize = 3;

/// Of the cases that do not say otherwise.
pub(super) const KV_HEADS: usize = 2;

/// The formats of a model's pages: where there are no polar ones, sm_90 has kernels of their own.
#[derive(Clone, Copy)]
pub(super) struct Formats {
    head_dim: usize,
    kv_heads: usize,
    pub(super) pairs: &'static [(F, F)],
}

impl Formats {
    pub(super) fn all(head_dim: usize) -> Self {
        Self {
            head_dim,
            kv_heads: KV_HEADS,
            pairs: &PAIRS,
        }
    }

    pub(super) fn codes(head_dim: usize) -> Self {
        Self {
            pairs: &PAIRS[..CODES],
            ..Self::all(head_dim)
        }
    }

    /// One for each kernel of the device: without the copy engine there is one for all.
    pub(super) fn kinds(device: &Device, head_dim: usize) -> Vec<Self> {
        let mut kinds = vec![Self::all(head_dim)];
        if device.has_copy_engine() {
            kinds.push(Self::codes(head_dim));
        }
        kinds
    }

    /// The same of so many KV heads.
    pub(super) fn of_kv_heads(self, kv_heads: usize) -> Self {
        Self { kv_heads, ..self }
    }

    /// A 16-bit record of a shrunk block takes a frame of eight records: with one KV head, those of
    /// four layers.
    pub(super) fn layers(self) -> usize {
        (4 / self.kv_heads).max(2)
    }

    /// The layer that is looked at is the last; the others have any formats.
    pub(super) fn page_formats(self, (k, v): (F, F)) -> Vec<F> {
        let mut formats = [F::Int4, F::Int2].repeat(self.layers() - 1);
        formats.extend([k, v]);
        formats
    }

    pub(super) fn has_polar(self) -> bool {
        self.pairs.len() > CODES
    }

    pub(super) fn layout(self) -> KvLayout {
        let geometry = KvGeometry {
            layers: self.layers(),
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            windowed: crate::kv::WindowedLayers::NONE,
        };
        let pairs = self.pairs.iter().copied();
        let pages: Vec<_> = pairs.map(|pair| self.page_formats(pair)).collect();
        let layout = KvLayout::new(geometry, geometry.frame_layout(), &pages);
        layout.expect("the formats of the test have a layout")
    }

    /// The first position or any of those after it.
    pub(super) fn any(self, rng: &mut Rng) -> u16 {
        rng.below(self.pairs.len() + 1) as u16
    }
}

impl std::fmt::Display for Formats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = if self.has_polar() { "any" } else { "no polar" };
        write!(f, "{kind} pages, head_dim {}", self.head_dim)?;
        match self.kv_heads {
            KV_HEADS => Ok(()),
            kv_heads => write!(f, " KV heads {kv_heads}"),
        }
    }
}

/// What random pages are made of.
#[derive(Clone, Copy)]
pub(super) struct Contents {
    /// Of some channels of keys, from zero.
    pub(super) offset: f32,
    /// What the keys of a block are multiplied by, token by token, before that.
    pub(super) keys: fn(block: usize, token: usize) -> f32,
    /// What the values of a sequence's block are multiplied by.
    pub(super) values: fn(seq: usize, block: usize) -> f32,
}

impl Contents {
    pub(super) fn of_offset(offset: f32) -> Self {
        Self {
            offset,
            keys: |_, _| 1.0,
            values: |_, _| 1.0,
        }
    }
}

/// Sequences of some new rows each over random pages, NaN wherever no token lies.
pub(super) struct Case {
    layout: KvLayout,
    group: usize,
    /// Of a sequence.
    rows: usize,
    /// Its deltas describe all block tables.
    input: StepInput,
    capacity: StepCapacity,
    frames: u32,
    pool: Vec<u8>,
    q: Vec<bf16>,
    /// What the last layer's pages hold, `[sequence][KV head][side][tokens][head_dim]`.
    values: Vec<Vec<[Vec<f32>; 2]>>,
    /// Position and frames of each block of each sequence.
    blocks: Vec<Vec<(u16, Vec<u32>)>>,
    scoring: Scoring,
}

impl Case {
    /// `position(sequence, block)` of a sealed block; the one that is open is 16 bit. `offset`:
    /// [`Contents::offset`].
    pub(super) fn new(
        pages: Formats,
        group: usize,
        lengths: &[usize],
        offset: f32,
        position: impl FnMut(usize, usize) -> u16,
        seed: u64,
    ) -> Self {
        let contents = Contents::of_offset(offset);
        Self::of_rows(1, pages, group, lengths, contents, position, seed)
    }

    /// The same with the last `rows` tokens of every sequence new, and the blocks in which they lie
    /// 16 bit.
    pub(super) fn of_rows(
        rows: usize,
        pages: Formats,
        group: usize,
        lengths: &[usize],
        contents: Contents,
        mut position: impl FnMut(usize, usize) -> u16,
        seed: u64,
    ) -> Self {
        let mut rng = Rng(seed);
        let layout = pages.layout();
        let head_dim = pages.head_dim;
        let block_frames = layout.frames(0);
        let blocks = |tokens: usize| tokens.div_ceil(BLOCK_TOKENS);
        let frames = block_frames * lengths.iter().map(|n| blocks(*n) as u32).sum::<u32>();
        let mut free: Vec<u32> = (0..frames).collect();
        rng.shuffle(&mut free);
        let mut this = Self {
            pool: vec![0xff; frames as usize * layout.frame().frame_bytes],
            q: rng.values(
                lengths.len() * rows * pages.kv_heads * group * head_dim,
                3.0,
            ),
            input: StepInput::default(),
            capacity: StepCapacity {
                rows: lengths.len() * rows,
                seqs: lengths.len(),
                blocks: lengths.len() * lengths.iter().map(|n| blocks(*n)).max().unwrap_or(0),
            },
            values: Vec::new(),
            blocks: Vec::new(),
            scoring: Scoring::default(),
            group,
            rows,
            frames,
            layout,
        };
        let mut tables = TableBuilder::default();
        for (seq, &tokens) in lengths.iter().enumerate() {
            let new = vec![0; rows];
            this.input
                .push_seq(seq as u32, (tokens - rows) as u32, &new);
            this.values.push(vec![Default::default(); pages.kv_heads]);
            this.blocks.push(Vec::new());
            for block in 0..blocks(tokens) {
                let is_open = (block + 1) * BLOCK_TOKENS > tokens - rows;
                let at = if is_open { 0 } else { position(seq, block) };
                let filled = (tokens - block * BLOCK_TOKENS).min(BLOCK_TOKENS);
                let rest = free.len() - this.layout.frames(at) as usize;
                let frames = free.split_off(rest);
                tables.set(seq as u32, block, at, &frames);
                let values = (contents.values)(seq, block);
                let keys = |token| ((contents.keys)(block, token), contents.offset);
                this.add_block(at, filled, &frames, (keys, values), &mut rng);
                this.blocks[seq].push((at, frames));
            }
        }
        tables.take_deltas(&mut this.input.deltas);
        this
    }

    /// Does with scores what `scoring` says. What no row sees becomes NaN: shrunk blocks, and 16
    /// tokens at a time of others.
    pub(super) fn scored(mut self, scoring: Scoring) -> Self {
        for (seq, blocks) in self.input.seqs.iter().zip(&self.blocks) {
            let hidden = scoring.first_seen(seq.position as usize);
            for (index, (position, frames)) in blocks.iter().enumerate() {
                let of_block = hidden
                    .saturating_sub(index * BLOCK_TOKENS)
                    .min(BLOCK_TOKENS);
                for record in 0..self.layout.geometry().records() {
                    let parts = ranges(&self.layout, *position, record, frames);
                    let gone = match position {
                        0 => of_block / SUB_BLOCK_TOKENS,
                        _ if of_block == BLOCK_TOKENS => parts.len(),
                        _ => 0,
                    };
                    for part in parts.into_iter().take(gone) {
                        self.pool[part].fill(0xff);
                    }
                }
            }
        }
        self.scoring = scoring;
        self
    }

    /// A block of the last sequence. `keys`: what a token's are multiplied by and, some channels,
    /// shifted by; `values`: multiplied by.
    pub(super) fn add_block(
        &mut self,
        position: u16,
        tokens: usize,
        frames: &[u32],
        (keys, values): (impl Fn(usize) -> (f32, f32), f32),
        rng: &mut Rng,
    ) {
        let (layout, geometry) = (&self.layout, self.layout.geometry());
        let (head_dim, kv_heads) = (geometry.head_dim, geometry.kv_heads);
        for record in 0..geometry.records() {
            let page = record / kv_heads;
            let side = Side::of_page(page);
            let mut rows = rng.values(BLOCK_TOKENS * head_dim, 1.0);
            for (i, x) in rows.iter_mut().enumerate() {
                let (factor, shift) = match side {
                    // Some channels of keys lie far from zero, as those of models with biases do.
                    Side::K if i % head_dim % 7 == 3 => keys(i / head_dim),
                    Side::K => (keys(i / head_dim).0, 0.0),
                    Side::V => (values, 0.0),
                };
                *x = bf16::from_f32(x.to_f32() * factor + shift);
            }
            let shape = RecordShape { side, head_dim };
            let format = layout.format(position, page / 2, side);
            let mut decoded: Vec<f32> = rows.iter().map(|x| x.to_f32()).collect();
            let mut bytes: Vec<u8> = rows.iter().flat_map(|x| x.to_le_bytes()).collect();
            if format != F::F16 {
                bytes = encoded(format, shape, &rows);
                let done = format.dequantise(shape, &bytes, &mut decoded);
                assert!(done.is_ok(), "{format} of a page of the test: {done:?}");
            } else if position == 0 {
                bytes[tokens * head_dim * 2..].fill(0xff);
            }
            put(
                &mut self.pool,
                &ranges(layout, position, record, frames),
                &bytes,
            );
            if page / 2 == geometry.layers - 1 {
                let held = self.values.last_mut().expect("a sequence");
                held[record % kv_heads][side as usize].extend(&decoded[..tokens * head_dim]);
            }
        }
    }

    pub(super) fn q_heads(&self) -> usize {
        self.layout.geometry().kv_heads * self.group
    }

    pub(super) fn last_layer(&self) -> usize {
        self.layout.geometry().layers - 1
    }

    /// The first `seqs` sequences, ready to run, and their queries; in units of `cut` blocks if
    /// that is given.
    pub(super) fn probe(
        &self,
        device: &Arc<Device>,
        seqs: usize,
        cut: Option<usize>,
    ) -> Result<(AttentionProbe, &[bf16]), ProbeError> {
        let mut input = self.input.clone();
        input.seqs.truncate(seqs);
        input.tokens.truncate(seqs * self.rows);
        let q_heads = self.q_heads();
        let mut probe = AttentionProbe::with_pages(
            device,
            &self.layout,
            self.frames,
            q_heads,
            self.rows,
            self.capacity,
        )?;
        if !self.scoring.spec.is_plain() {
            probe.score(self.scoring.spec, &self.scoring.sinks)?;
        }
        if let Some(blocks) = cut {
            probe.cut_finely(blocks);
        }
        probe.arena_mut().write_all(&self.pool)?;
        probe.load(&input)?;
        let q = &self.q[..seqs * self.rows * q_heads * self.layout.geometry().head_dim];
        Ok((probe, q))
    }

    /// Outputs of the first `seqs` sequences, NaN if they are not the same again; in units of `cut`
    /// blocks if that is given.
    pub(super) fn outputs(
        &self,
        device: &Arc<Device>,
        seqs: usize,
        cut: Option<usize>,
    ) -> Result<Vec<bf16>, ProbeError> {
        let (mut probe, q) = self.probe(device, seqs, cut)?;
        let first = probe.run(self.last_layer(), q)?;
        let again = probe.run(self.last_layer(), q)?;
        let same = differing(&first, &again) == 0.0;
        Ok(if same {
            first
        } else {
            vec![bf16::NAN; first.len()]
        })
    }

    /// The largest relative error of any (row, head).
    pub(super) fn run(&self, device: &Arc<Device>) -> Result<f64, ProbeError> {
        self.run_cut(device, None)
    }

    /// The same in units of `cut` blocks.
    pub(super) fn run_cut(
        &self,
        device: &Arc<Device>,
        cut: Option<usize>,
    ) -> Result<f64, ProbeError> {
        let out = self.outputs(device, self.input.seqs.len(), cut)?;
        let out: Vec<f64> = out.iter().map(|x| x.to_f64()).collect();
        Ok(self.error(&out))
    }

    /// Bits of the first sequence's outputs that are others in company. Infinite if they are not
    /// the same each time.
    pub(super) fn changed_by_company(
        &self,
        device: &Arc<Device>,
        cut: Option<usize>,
    ) -> Result<f64, ProbeError> {
        let alone = self.outputs(device, 1, cut)?;
        let together = self.outputs(device, self.input.seqs.len(), cut)?;
        if alone.iter().chain(&together).any(|x| x.is_nan()) {
            return Ok(f64::INFINITY);
        }
        Ok(differing(&alone, &together))
    }

    /// The same before outputs are rounded to bf16. Every sequence has blocks enough to be cut.
    pub(super) fn run_unrounded(&self, device: &Arc<Device>) -> Result<f64, ProbeError> {
        let (mut probe, q) = self.probe(device, self.input.seqs.len(), Some(CUT))?;
        Ok(self.error(&probe.run_unrounded(self.last_layer(), q)?))
    }

    pub(super) fn error(&self, out: &[f64]) -> f64 {
        let (d, kv_heads) = (
            self.layout.geometry().head_dim,
            self.layout.geometry().kv_heads,
        );
        let heads = out.chunks_exact(d).zip(self.q.chunks_exact(d));
        let error = |(i, (out, q)): (usize, (&[f64], &[bf16]))| {
            let row = i / self.q_heads();
            let [keys, values] = &self.values[row / self.rows][i / self.group % kv_heads];
            // Tokens behind its own are those of later rows.
            let seen = keys.len() - (self.rows - 1 - row % self.rows) * d;
            let first = self.scoring.first_seen(seen / d - 1) * d;
            let (keys, values) = (&keys[first..seen], &values[first..seen]);
            let (scale, of_scores) = (1.0 / (d as f64).sqrt(), self.scoring.of(i % self.q_heads()));
            let wanted = attend_scored(q, keys, values, scale, of_scores);
            relative_error(out.iter().copied(), &wanted)
        };
        heads.enumerate().map(error).fold(0.0, f64::max)
    }
}
