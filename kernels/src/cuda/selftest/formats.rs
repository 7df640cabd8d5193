//! Codecs of the device against the CPU's, byte by byte: every transition that a schedule may take,
//! on hostile pages, among frames in random order; and shrinks that fail.

use std::sync::Arc;

use half::bf16;

use super::Rng;
use super::records::{encoded, page, put, ranges, take};
use super::table::Report;
use crate::BLOCK_TOKENS;
use crate::backend::{
    BackendError, BlockTables, ShrinkFailure, StepInput, TableBuilder, TableShape,
};
use crate::cuda::arena::DeviceArena;
use crate::cuda::codecs::{Codecs, Scratch};
use crate::cuda::driver::{Device, Stream};
use crate::cuda::error::CudaError;
use crate::cuda::probe::ProbeError;
use crate::cuda::step::StepCapacity;
use crate::cuda::tables::DeviceTables;
use crate::formats::gpu::Writer;
use crate::formats::{FormatError, FormatId as F, RecordShape, legal_shrink};
use crate::kv::{KvGeometry, KvLayout, Side};

/// Formats of a side whose pages transcode.cu writes.
fn transcoded(side: Side) -> Vec<F> {
    let formats = F::ALL.iter().copied();
    formats
        .filter(|f| f.is_legal(side) && f.gpu_writer() == Writer::Transcode)
        .collect()
}

/// Formats of keys and values of which at least one is written by encode.cu.
const ENCODED_PAIRS: [(F, F); 21] = [
    (F::Polar44, F::F16),
    (F::Polar42, F::Int4),
    (F::Polar44Grid, F::Int8),
    (F::Polar44G64, F::F16),
    (F::Polar42G64, F::Int4),
    (F::Polar44G128, F::Int8),
    (F::Int2g32, F::Int2g32),
    (F::Int4g32, F::Kvmix11),
    (F::Kvmix11, F::Int4g32),
    (F::Kitty25Variance, F::F16),
    (F::Kitty12Variance, F::F16),
    (F::Kitty25Random, F::F16),
    (F::Kitty12Random, F::F16),
    (F::Int4Direct, F::Int2Direct),
    (F::Int2Direct, F::Int4Direct),
    (F::Int4Modified, F::Int2Modified),
    (F::Int2Modified, F::Int4Modified),
    (F::Int4tDirect, F::Int4Direct),
    (F::Int2tDirect, F::Int2Direct),
    (F::Int4tModified, F::Int4Modified),
    (F::Int2tModified, F::Int2Modified),
];

/// The same, and every other format that encode.cu writes.
fn encoded_pairs() -> Vec<(F, F)> {
    let mut pairs = ENCODED_PAIRS.to_vec();
    for &format in F::ALL {
        let listed = |side: Side| {
            let of_side = pairs
                .iter()
                .map(|p| if side == Side::K { p.0 } else { p.1 });
            !format.is_legal(side) || of_side.clone().any(|f| f == format)
        };
        if format.gpu_writer() == Writer::Encode && !(listed(Side::K) && listed(Side::V)) {
            let on = |side| {
                if format.is_legal(side) {
                    format
                } else {
                    F::F16
                }
            };
            pairs.push((on(Side::K), on(Side::V)));
        }
    }
    pairs
}

/// What the CPU makes of a pool: the same pool after the shrinks, and those that failed.
fn shrunk(layout: &KvLayout, input: &StepInput, pool: &[u8]) -> (Vec<u8>, Vec<ShrinkFailure>) {
    let geometry = layout.geometry();
    let (mut after, mut failures) = (pool.to_vec(), Vec::new());
    for (shrink, s) in input.shrinks.iter().enumerate() {
        let (old, new) = s.frames(layout, input);
        for record in 0..geometry.records() {
            let page = record / geometry.kv_heads;
            let (layer, side) = (page / 2, Side::of_page(page));
            let shape = RecordShape {
                side,
                head_dim: geometry.head_dim,
            };
            let source = take(pool, &ranges(layout, s.from, record, old));
            let format = |position| layout.format(position, layer, side);
            let (from, to) = (format(s.from), format(s.to));
            let mut target = vec![0; layout.record_bytes(s.to, layer, side)];
            let done: Result<(), FormatError> = if from == to {
                target.copy_from_slice(&source);
                Ok(())
            } else {
                from.shrink(to, shape, &source, &mut target)
            };
            match done {
                Ok(()) => put(&mut after, &ranges(layout, s.to, record, new), &target),
                Err(error) => {
                    failures.push(ShrinkFailure {
                        shrink,
                        layer,
                        side,
                        kv_head: record % geometry.kv_heads,
                        error,
                    });
                    break;
                }
            }
        }
    }
    (after, failures)
}

/// A pool with blocks to shrink: its layout, the step, and its bytes.
struct Case {
    layout: KvLayout,
    input: StepInput,
    pool: Vec<u8>,
    frames: u32,
}

impl Case {
    /// Blocks of random frames for `moves`, pairs of positions; `rows(shrink, record)` are their
    /// pages.
    fn new(
        layout: KvLayout,
        moves: &[(u16, u16)],
        rng: &mut Rng,
        mut rows: impl FnMut(usize, usize, &mut Rng) -> Vec<bf16>,
    ) -> Self {
        let geometry = layout.geometry();
        let sum =
            |at: fn(&(u16, u16)) -> u16| moves.iter().map(|m| layout.frames(at(m))).sum::<u32>();
        let frames = sum(|m| m.0) + sum(|m| m.1) + 3;
        let mut free: Vec<u32> = (0..frames).collect();
        rng.shuffle(&mut free);
        let mut pool = vec![0xff; frames as usize * layout.frame().frame_bytes];
        let mut input = StepInput::default();
        for (shrink, &(from, to)) in moves.iter().enumerate() {
            let mut block =
                |position| free.split_off(free.len() - layout.frames(position) as usize);
            let (old, new) = (block(from), block(to));
            for record in 0..geometry.records() {
                let page = record / geometry.kv_heads;
                let side = Side::of_page(page);
                let shape = RecordShape {
                    side,
                    head_dim: geometry.head_dim,
                };
                let format = layout.format(from, page / 2, side);
                let bytes = encoded(format, shape, &rows(shrink, record, rng));
                put(&mut pool, &ranges(&layout, from, record, &old), &bytes);
            }
            input.push_shrink((from, &old), (to, &new));
        }
        Self {
            layout,
            input,
            pool,
            frames,
        }
    }

    /// Bytes that the device leaves otherwise than the CPU does, outside the targets of failed
    /// shrinks, and whether the failures are the same ones; how many there were.
    fn run(&self, device: &Arc<Device>) -> Result<(f64, usize), ProbeError> {
        let stream = Stream::new(device)?;
        let scratch = Scratch::of(&self.layout, self.frames, &capacity(4), 1);
        let mut arena =
            DeviceArena::of_layout(device, &self.layout, self.frames, scratch.frames())?;
        let codecs = Codecs::new(device, &self.layout, self.frames, scratch, false)?;
        let mut codecs =
            codecs.ok_or_else(|| CudaError::Unsupported("a layout that never shrinks".into()))?;
        arena.write_all(&self.pool)?;
        let mut tables = tables(device, &self.layout, self.frames, scratch, 0)?;
        codecs.begin(
            &stream,
            1,
            &mut arena,
            &self.input,
            (&tables.0, &mut tables.1),
        )?;
        stream.synchronize()?;
        let (failures, _) = codecs.results(1)?;
        let (want, want_failures) = shrunk(&self.layout, &self.input, &self.pool);
        let unused: Vec<u32> = want_failures
            .iter()
            .flat_map(|f| {
                self.input.shrinks[f.shrink]
                    .frames(&self.layout, &self.input)
                    .1
            })
            .copied()
            .collect();
        let mut differing = 0;
        for frame in (0..self.frames).filter(|f| !unused.contains(f)) {
            let bytes = self.layout.frame().frame_bytes;
            let want = &want[frame as usize * bytes..][..bytes];
            let got = arena.read_frame(frame)?;
            differing += got.iter().zip(want).filter(|(a, b)| a != b).count();
        }
        let same = format!("{failures:?}") == format!("{want_failures:?}");
        let error = if same {
            differing as f64
        } else {
            f64::INFINITY
        };
        Ok((error, want_failures.len()))
    }
}

/// Every pair of formats of keys and values that pages shrink through on the device, as positions,
/// position 0 first.
fn all_positions(geometry: KvGeometry) -> (KvLayout, Vec<(F, F)>) {
    let (k, v) = (transcoded(Side::K), transcoded(Side::V));
    let pairs = k.iter().flat_map(|k| v.iter().map(|v| (*k, *v)));
    positions(geometry, pairs)
}

/// The pairs as positions, behind position 0.
fn positions(
    geometry: KvGeometry,
    shrunk: impl Iterator<Item = (F, F)>,
) -> (KvLayout, Vec<(F, F)>) {
    let mut pairs = vec![(F::F16, F::F16)];
    pairs.extend(shrunk);
    let shrunk: Vec<Vec<F>> = pairs[1..]
        .iter()
        .map(|(k, v)| [*k, *v].repeat(geometry.layers))
        .collect();
    let layout = KvLayout::new(geometry, geometry.frame_layout(), &shrunk);
    (layout.expect("the geometry takes every format"), pairs)
}

fn moves(side: Side) -> Vec<(F, F)> {
    let formats = transcoded(side);
    let pairs = formats
        .iter()
        .flat_map(|a| formats.iter().map(move |b| (*a, *b)));
    pairs.filter(|(a, b)| legal_shrink(*a, *b, side)).collect()
}

/// Steps of one sequence.
fn capacity(blocks: usize) -> StepCapacity {
    StepCapacity {
        rows: 0,
        seqs: 1,
        blocks,
    }
}

/// Block tables for a sequence of `blocks` blocks.
fn tables(
    device: &Arc<Device>,
    layout: &KvLayout,
    frames: u32,
    scratch: Scratch,
    blocks: usize,
) -> Result<(BlockTables, DeviceTables), CudaError> {
    let shape = TableShape::new(1, blocks, layout, frames);
    Ok((
        BlockTables::new(shape, frames),
        DeviceTables::new(device, shape, scratch.shape)?,
    ))
}

/// Transitions against the CPU's bytes.
pub(super) fn check(device: &Arc<Device>, report: &mut Report) -> Result<(), ProbeError> {
    for (head_dim, kv_heads) in [(64, 3), (128, 2), (256, 2)] {
        let geometry = KvGeometry {
            layers: 3,
            kv_heads,
            head_dim,
            windowed: crate::kv::WindowedLayers::NONE,
        };
        let (layout, pairs) = all_positions(geometry);
        let position = |pair: (F, F)| {
            let at = pairs.iter().skip(1).position(|p| *p == pair);
            at.map_or(0, |p| p as u16 + 1)
        };
        let mut rng = Rng(head_dim as u64);
        for (i, (from, to)) in moves(Side::K).into_iter().enumerate() {
            // From the sub-blocks of an unshrunk block, and from a 16-bit page of a shrunk one.
            let mut pair = vec![(position((from, F::Int4)), position((to, F::Int2)))];
            if from == F::F16 {
                pair.push((0, position((to, F::F16))));
            }
            let case = Case::new(layout.clone(), &pair, &mut rng, |shrink, record, rng| {
                page(i + shrink + record, head_dim, rng)
            });
            let name = format!("shrink K {from} -> {to}, head_dim {head_dim}: bytes");
            report.check(&name, case.run(device)?.0, 0.0);
        }
        for (i, (from, to)) in moves(Side::V).into_iter().enumerate() {
            let mut pair = vec![(position((F::Int2, from)), position((F::Int2, to)))];
            if from == F::F16 {
                pair[0].0 = position((F::F16, F::F16));
                pair.push((0, position((F::Int8, to))));
            }
            let case = Case::new(layout.clone(), &pair, &mut rng, |shrink, record, rng| {
                page(i + shrink + record, head_dim, rng)
            });
            let name = format!("shrink V {from} -> {to}, head_dim {head_dim}: bytes");
            report.check(&name, case.run(device)?.0, 0.0);
        }
        let failing = [
            (0, position((F::Int4, F::Int8))),
            (0, position((F::F16, F::Int3))),
            (position((F::F16, F::F16)), position((F::Kitty12, F::Int2))),
        ];
        check_failures(device, report, "affine", &layout, &failing, &mut rng)?;
        let failing = [
            (0, position((F::Int2t, F::Int8))),
            (0, position((F::Int8t, F::Int3))),
            (position((F::F16, F::F16)), position((F::Int4t, F::Int2))),
        ];
        check_failures(device, report, "per token", &layout, &failing, &mut rng)?;
        check_dequantising(device, report, "ladder", &layout, &pairs, &mut rng)?;
        if head_dim <= 128 {
            check_static(device, report, geometry, &mut rng)?;
        }
    }
    Ok(())
}

/// Formats that pages get from 16 bit alone: of an unshrunk block, and of one whose pages are 16
/// bit.
fn check_static(
    device: &Arc<Device>,
    report: &mut Report,
    geometry: KvGeometry,
    rng: &mut Rng,
) -> Result<(), ProbeError> {
    let head_dim = geometry.head_dim;
    let encoded = encoded_pairs();
    let pairs = std::iter::once((F::F16, F::F16)).chain(encoded.clone());
    let (layout, pairs) = positions(geometry, pairs);
    for (i, (k, v)) in encoded.into_iter().enumerate() {
        let to = i as u16 + 2;
        // The records of two blocks are of all kinds.
        let moves = [(0, to), (1, to), (0, to), (1, to)];
        let case = Case::new(layout.clone(), &moves, rng, |shrink, record, rng| {
            page(shrink + record, head_dim, rng)
        });
        let name = format!("shrink to {k} keys, {v} values, head_dim {head_dim}: bytes");
        report.check(&name, case.run(device)?.0, 0.0);
    }
    let families = [
        ("polar", F::Polar44),
        ("published polar", F::Polar44G64),
        ("per-token", F::Int2tDirect),
        ("grouped", F::Kvmix11),
        ("two tensors", F::Kitty25Page),
    ];
    for (name, keys) in families {
        let to = pairs.iter().position(|p| p.0 == keys).unwrap_or(0) as u16;
        let moves = [(0, to), (0, to), (1, to)];
        check_failures(device, report, name, &layout, &moves, rng)?;
    }
    check_dequantising(device, report, "static", &layout, &pairs, rng)
}

/// Pages without codes: the failures are the CPU's, and other blocks shrink.
fn check_failures(
    device: &Arc<Device>,
    report: &mut Report,
    family: &str,
    layout: &KvLayout,
    moves: &[(u16, u16)],
    rng: &mut Rng,
) -> Result<(), ProbeError> {
    let (head_dim, records) = (layout.geometry().head_dim, layout.geometry().records());
    let heads = layout.geometry().kv_heads;
    type Spoil = fn(&mut [bf16], usize);
    let spoils: [(&str, Spoil); 8] = [
        ("NaN", |rows, _| rows[5000] = bf16::NAN),
        ("-inf and a later inf", |rows, _| {
            rows[rows.len() - 1] = bf16::INFINITY;
            rows[321] = bf16::NEG_INFINITY;
        }),
        ("65536", |rows, _| rows[77] = bf16::from_f32(65536.0)),
        ("a channel too wide", |rows, d| {
            rows[9 * d + 3] = bf16::from_f32(40000.0);
            rows[90 * d + 3] = bf16::from_f32(-40000.0);
        }),
        ("a token too wide", |rows, d| {
            rows[9 * d + 3] = bf16::from_f32(40000.0);
            rows[9 * d + 60] = bf16::from_f32(-40000.0);
        }),
        ("a wide channel before a NaN", |rows, d| {
            rows[9 * d + 3] = bf16::from_f32(40000.0);
            rows[90 * d + 3] = bf16::from_f32(-40000.0);
            rows[9 * d + 4] = bf16::NAN;
            rows[12 * d + 1] = bf16::from_f32(1.0);
        }),
        ("two radii too long", |rows, d| {
            // Each channel of a pair is within fp16, and so is its range.
            for (token, pair, sign) in [(99, 7, -1.0), (3, 11, 1.0), (50, 7, 1.0)] {
                rows[token * d + pair] = bf16::from_f32(50000.0 + token as f32 * 8.0);
                rows[token * d + pair + d / 2] = bf16::from_f32(sign * 45000.0);
            }
            rows[4 * d + 7] = bf16::from_f32(60000.0);
        }),
        ("a wide group of 32", |rows, d| {
            rows[70 * d + 33] = bf16::from_f32(40000.0);
            rows[70 * d + 40] = bf16::from_f32(-40000.0);
            rows[93 * d + 33] = bf16::from_f32(-40000.0);
        }),
    ];
    let mut failed = 0;
    for (name, spoil) in spoils {
        let case = Case::new(layout.clone(), moves, rng, |shrink, record, rng| {
            let mut rows = page(record, head_dim, rng);
            // Of the middle block a late record of values and the last one; of the last block all
            // keys from the third head on.
            let bad = match shrink {
                1 => record + heads == records - 1 || record == records - 1,
                2 => record > 2 && (record / heads).is_multiple_of(2),
                _ => false,
            };
            if bad {
                rows.fill(bf16::from_f32(0.25));
                spoil(&mut rows, head_dim);
            }
            rows
        });
        let (error, failures) = case.run(device)?;
        failed += usize::from(failures > 0);
        let name = format!("{family} shrinks of a page with {name}, head_dim {head_dim}");
        report.check(&name, error, 0.0);
    }
    // What is not finite, what is beyond fp16, and a group that is too wide or a radius; no family
    // minds all of the rest.
    let name = format!("{family} shrinks that fail, head_dim {head_dim}: missing");
    report.check(&name, 5_usize.saturating_sub(failed) as f64, 0.0);
    Ok(())
}

/// Blocks of every position, dequantised into scratch: bf16, to nearest, of what the CPU
/// dequantises. One is named twice, and one is the target of a shrink that fails, whose old frames
/// have to be read.
fn check_dequantising(
    device: &Arc<Device>,
    report: &mut Report,
    family: &str,
    layout: &KvLayout,
    pairs: &[(F, F)],
    rng: &mut Rng,
) -> Result<(), ProbeError> {
    let geometry = layout.geometry();
    let head_dim = geometry.head_dim;
    let last = layout.levels() as u16 - 1;
    // What matters of a move here is where it begins; the last one stands where it leads.
    let mut moves: Vec<(u16, u16)> = (1..=last).map(|position| (position, last)).collect();
    let to = pairs
        .iter()
        .position(|(k, v)| *k != F::F16 && *v == F::Int4);
    moves.push((0, to.map_or(1, |p| p as u16)));
    let failing = moves.len() - 1;
    let mut case = Case::new(layout.clone(), &moves, rng, |shrink, record, rng| {
        let mut rows = page(shrink + record, head_dim, rng);
        if shrink == failing && record == geometry.records() - 1 {
            rows[3] = bf16::INFINITY;
        }
        rows
    });
    let all = std::mem::take(&mut case.input.shrinks);
    let frames_of = |shrink: usize| all[shrink].frames(layout, &case.input);
    let old = |shrink: usize| (all[shrink].from, frames_of(shrink).0.to_vec());
    let mut blocks: Vec<(u16, Vec<u32>)> = (0..failing).map(old).collect();
    blocks.push(old(4));
    blocks.push((all[failing].to, frames_of(failing).1.to_vec()));
    case.input.shrinks.push(all[failing]);
    let mut builder = TableBuilder::default();
    for (index, (position, frames)) in blocks.iter().enumerate() {
        builder.set(0, index, *position, frames);
    }
    builder.take_deltas(&mut case.input.deltas);
    let tokens = (blocks.len() * BLOCK_TOKENS) as u32;
    case.input.push_seq(0, tokens - 1, &[0]);

    let stream = Stream::new(device)?;
    let scratch = Scratch::of(layout, case.frames, &capacity(blocks.len()), 1);
    let mut arena = DeviceArena::of_layout(device, layout, case.frames, scratch.frames())?;
    let codecs = Codecs::new(device, layout, case.frames, scratch, false)?;
    let mut codecs =
        codecs.ok_or_else(|| CudaError::Unsupported("a layout that never shrinks".into()))?;
    arena.write_all(&case.pool)?;
    let mut tables = tables(device, layout, case.frames, scratch, blocks.len())?;
    codecs.place_scratch(&mut tables.1);
    let applied = |delta: &_| tables.1.apply(delta);
    tables
        .0
        .apply(layout, &case.input.deltas, applied)
        .map_err(BackendError::from)?;
    codecs.begin(
        &stream,
        0,
        &mut arena,
        &case.input,
        (&tables.0, &mut tables.1),
    )?;
    let Some(&[Some(place)]) = codecs.in_scratch().first_chunk() else {
        report.check("shrunk blocks are read in scratch", f64::INFINITY, 0.0);
        return Ok(());
    };
    let in_scratch = |block: usize| {
        let frames = layout.frames(0) as usize;
        tables.1.frames_at(place.first_block + block as u32, frames)
    };
    let mut differing = 0;
    for layer in 0..geometry.layers {
        codecs.dequantise_layer(&stream, &mut arena, layer, 0)?;
        stream.synchronize()?;
        let all_frames: Result<Vec<_>, _> = (0..case.frames + scratch.frames())
            .map(|f| arena.read_frame(f))
            .collect();
        let memory = all_frames?.concat();
        for (i, (position, source)) in blocks.iter().cloned().enumerate() {
            let (mut position, mut source) = (position, source);
            if i == blocks.len() - 1 {
                position = 0;
                source = all[failing].frames(layout, &case.input).0.to_vec();
            }
            for side in [Side::K, Side::V] {
                for head in 0..geometry.kv_heads {
                    let record = geometry.record(layer, side, head);
                    let shape = RecordShape { side, head_dim };
                    let bytes = take(&case.pool, &ranges(layout, position, record, &source));
                    let mut want = vec![0.0; shape.elements()];
                    let format = layout.format(position, layer, side);
                    let done = format.dequantise(shape, &bytes, &mut want);
                    done.map_err(|e| CudaError::Unsupported(e.to_string()))?;
                    let want: Vec<u8> = want
                        .iter()
                        .flat_map(|x| bf16::from_f32(*x).to_le_bytes())
                        .collect();
                    let got = ranges(layout, 0, record, in_scratch(i));
                    let got = take(&memory, &got);
                    differing += got.iter().zip(&want).filter(|(a, b)| a != b).count();
                }
            }
        }
    }
    let name = format!("dequantising of every {family} format, head_dim {head_dim}: bytes");
    report.check(&name, differing as f64, 0.0);
    let reused = in_scratch(4) != in_scratch(failing);
    let name = format!("a shared {family} block is dequantised once, head_dim {head_dim}");
    report.check(&name, f64::from(u8::from(reused)), 0.0);
    Ok(())
}
