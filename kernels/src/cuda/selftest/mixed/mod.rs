//! Decode attention over blocks of any format, against attention over what the CPU's codecs
//! dequantise.

use std::sync::Arc;

use half::bf16;

use super::Rng;
use super::attention::{ATTENTION_LIMIT, differing};
use super::records::{encoded, put, ranges};
use super::reference::{attend, relative_error};
use super::table::Report;
use crate::BLOCK_TOKENS;
use crate::backend::{StepInput, TableBuilder};
use crate::cuda::driver::Device;
use crate::cuda::probe::{AttentionProbe, ProbeError};
use crate::cuda::step::StepCapacity;
use crate::formats::{FormatId as F, RecordShape};
use crate::kv::{KvGeometry, KvLayout, Side};

/// Queries times ranges are rounded to fp16, they and probabilities times ranges to 16-bit
/// integers, the output to bf16.
const LIMIT: f64 = 3.2e-3;

/// Formats of keys and values at the positions after the first; those with polar keys come last.
const PAIRS: [(F, F); 16] = [
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
const CODES: usize = 13;
const _: () = {
    let mut i = 0;
    while i < PAIRS.len() {
        let is_polar = matches!(PAIRS[i].0, F::Polar44 | F::Polar42 | F::Polar44Grid);
        assert!(is_polar == (i >= CODES));
        i += 1;
    }
};

/// Query heads of a KV head, for each of which sm_90 has another kernel.
const GROUPS: [usize; 3] = [4, 8, 16];

/// Before outputs are rounded to bf16, which alone may cost 1.7e-3.
const UNROUNDED_LIMIT: f64 = 2e-3;

/// Blocks of the units in which sequences are cut to be looked at before that.
const CUT: usize = 3;

/// KV heads and query heads of each: one for all of them (MQA), up to as many as there are kernels
/// for, and one for each (MHA). All other cases are GQA.
const MQA_AND_MHA: [(usize, usize); 6] = [(1, 8), (1, 16), (1, 32), (1, 48), (1, 64), (8, 1)];

/// Of the cases that do not say otherwise.
const KV_HEADS: usize = 2;

/// The formats of a model's pages: where there are no polar ones, sm_90 has kernels of their own.
#[derive(Clone, Copy)]
struct Formats {
    head_dim: usize,
    kv_heads: usize,
    pairs: &'static [(F, F)],
}

impl Formats {
    fn all(head_dim: usize) -> Self {
        Self {
            head_dim,
            kv_heads: KV_HEADS,
            pairs: &PAIRS,
        }
    }

    fn codes(head_dim: usize) -> Self {
        Self {
            pairs: &PAIRS[..CODES],
            ..Self::all(head_dim)
        }
    }

    /// One for each kernel of the device: without the copy engine there is one for all.
    fn kinds(device: &Device, head_dim: usize) -> Vec<Self> {
        let mut kinds = vec![Self::all(head_dim)];
        if device.has_copy_engine() {
            kinds.push(Self::codes(head_dim));
        }
        kinds
    }

    /// The same of so many KV heads.
    fn of_kv_heads(self, kv_heads: usize) -> Self {
        Self { kv_heads, ..self }
    }

    /// A 16-bit record of a shrunk block takes a frame of eight records: with one KV head, those of
    /// four layers.
    fn layers(self) -> usize {
        (4 / self.kv_heads).max(2)
    }

    /// The layer that is looked at is the last; the others have any formats.
    fn page_formats(self, (k, v): (F, F)) -> Vec<F> {
        let mut formats = [F::Int4, F::Int2].repeat(self.layers() - 1);
        formats.extend([k, v]);
        formats
    }

    fn has_polar(self) -> bool {
        self.pairs.len() > CODES
    }

    fn layout(self) -> KvLayout {
        let geometry = KvGeometry {
            layers: self.layers(),
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
        };
        let pairs = self.pairs.iter().copied();
        let pages: Vec<_> = pairs.map(|pair| self.page_formats(pair)).collect();
        let layout = KvLayout::new(geometry, geometry.frame_layout(), &pages);
        layout.expect("the formats of the test have a layout")
    }

    /// The first position or any of those after it.
    fn any(self, rng: &mut Rng) -> u16 {
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
struct Contents {
    /// Of some channels of keys, from zero.
    offset: f32,
    /// What the keys of a block are multiplied by, token by token, before that.
    keys: fn(block: usize, token: usize) -> f32,
    /// What the values of a sequence's block are multiplied by.
    values: fn(seq: usize, block: usize) -> f32,
}

impl Contents {
    fn of_offset(offset: f32) -> Self {
        Self {
            offset,
            keys: |_, _| 1.0,
            values: |_, _| 1.0,
        }
    }
}

/// Sequences of some new rows each over random pages, NaN wherever no token lies.
struct Case {
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
}

impl Case {
    /// `position(sequence, block)` of a sealed block; the one that is open is 16 bit. `offset`:
    /// [`Contents::offset`].
    fn new(
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
    fn of_rows(
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
            }
        }
        tables.take_deltas(&mut this.input.deltas);
        this
    }

    /// A block of the last sequence. `keys`: what a token's are multiplied by and, some channels,
    /// shifted by; `values`: multiplied by.
    fn add_block(
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

    fn q_heads(&self) -> usize {
        self.layout.geometry().kv_heads * self.group
    }

    fn last_layer(&self) -> usize {
        self.layout.geometry().layers - 1
    }

    /// The first `seqs` sequences, ready to run, and their queries; in units of `cut` blocks if
    /// that is given.
    fn probe(
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
    fn outputs(
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
    fn run(&self, device: &Arc<Device>) -> Result<f64, ProbeError> {
        self.run_cut(device, None)
    }

    /// The same in units of `cut` blocks.
    fn run_cut(&self, device: &Arc<Device>, cut: Option<usize>) -> Result<f64, ProbeError> {
        let out = self.outputs(device, self.input.seqs.len(), cut)?;
        let out: Vec<f64> = out.iter().map(|x| x.to_f64()).collect();
        Ok(self.error(&out))
    }

    /// Bits of the first sequence's outputs that are others in company. Infinite if they are not
    /// the same each time.
    fn changed_by_company(
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
    fn run_unrounded(&self, device: &Arc<Device>) -> Result<f64, ProbeError> {
        let (mut probe, q) = self.probe(device, self.input.seqs.len(), Some(CUT))?;
        Ok(self.error(&probe.run_unrounded(self.last_layer(), q)?))
    }

    fn error(&self, out: &[f64]) -> f64 {
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
            let (keys, values) = (&keys[..seen], &values[..seen]);
            relative_error(out.iter().copied(), &attend(q, keys, values))
        };
        heads.enumerate().map(error).fold(0.0, f64::max)
    }
}

/// A batch of each head size and number of heads that has a kernel, of blocks in all formats, and
/// in those that are not polar.
pub(super) fn check_quick(device: &Arc<Device>, report: &mut Report) -> Result<(), ProbeError> {
    for (head_dim, group) in [64, 128].into_iter().flat_map(|d| GROUPS.map(|g| (d, g))) {
        for pages in Formats::kinds(device, head_dim) {
            // Each position in turn: there are as many blocks.
            let mut next = 0..;
            let each = |_, _| next.next().unwrap_or(0) % (pages.pairs.len() as u16 + 1);
            let case = Case::new(pages, group, &[17, 1290, 129, 700, 300], 4.0, each, 29);
            let name = format!("decode of mixed blocks, quick, {pages} group {group}");
            report.check(&name, case.run(device)?, ATTENTION_LIMIT);
            let knows_polar = case.probe(device, 1, None)?.0.knows_polar();
            let expected = Some(pages.has_polar());
            let name = format!("another kernel than theirs for {pages} group {group}");
            report.check(&name, f64::from(knows_polar != expected), 0.0);
        }
    }
    for head_dim in [64, 128] {
        for pages in Formats::kinds(device, head_dim) {
            for (kv_heads, group) in [(1, 8), (1, 32), (8, 1)] {
                let pages = pages.of_kv_heads(kv_heads);
                let mut next = 0..;
                let each = |_, _| next.next().unwrap_or(0) % (pages.pairs.len() as u16 + 1);
                let case = Case::new(pages, group, &[17, 1290, 300], 4.0, each, 31);
                let name = format!("decode of mixed blocks, quick, {pages} group {group}");
                report.check(&name, case.run(device)?, ATTENTION_LIMIT);
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
            // Kernels of a width differ in no more than that.
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
