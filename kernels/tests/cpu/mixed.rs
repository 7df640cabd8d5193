//! Blocks at different precision levels: attention over them, and the way there.

use std::convert::Infallible;
use std::sync::Arc;

use crate::common::oracle::Oracle;
use crate::common::paged::{Chunk, Paged, Pending, same};
use crate::common::{Family, Random, RandomWeights};
use ebb_kernels::backend::Backend;
use ebb_kernels::bf16;
use ebb_kernels::cpu::{CpuBackend, CpuOptions};
use ebb_kernels::formats::rotation::{Rotation, hadamard};
use ebb_kernels::formats::{FormatId as F, RecordShape};
use ebb_kernels::kv::{KvArena, KvLayout, Side};
use ebb_kernels::model::{LayerTensor, OnlineKeyScales, QkNorm, TensorName, WeightSource};

const WIDE: Family = Family {
    q_heads: 4,
    kv_heads: 2,
    head_dim: 64,
    ..Family::LLAMA
};

const DEEP: Family = Family {
    q_heads: 3,
    kv_heads: 3,
    head_dim: 128,
    ..Family::LLAMA
};

/// One KV head for all query heads.
const MQA: Family = Family {
    q_heads: 8,
    kv_heads: 1,
    head_dim: 64,
    // A 16-bit record of a shrunk block takes a frame of eight.
    layers: |spec| spec.layers.push(spec.layers[0].clone()),
    ..Family::LLAMA
};

fn weights(family: Family) -> RandomWeights {
    RandomWeights {
        spec: family.spec(),
        seed: 5,
    }
}

fn text(seed: u64, len: usize) -> Vec<u32> {
    let mut random = Random::new(seed);
    (0..len).map(|_| random.below(101) as u32).collect()
}

/// Positions 1..: eight bits; every level somewhere and some pages still whole; two bits; static.
fn layout(weights: &RandomWeights) -> KvLayout {
    let geometry = weights.spec.kv_geometry();
    let shrunk = [
        vec![F::Int8],
        vec![F::Kitty25, F::Int2, F::Int4, F::Int4, F::Kitty12, F::Int8],
        vec![F::Int2],
        vec![F::Int3, F::F16, F::Polar44, F::Int3, F::F16, F::Int2],
    ];
    let pages = 2 * geometry.layers;
    let shrunk = shrunk.map(|formats| formats.into_iter().cycle().take(pages).collect());
    KvLayout::new(geometry, geometry.frame_layout(), &shrunk).unwrap()
}

fn paged(weights: &RandomWeights, threads: usize, seed: u64) -> Paged {
    let options = CpuOptions {
        layout: Some(layout(weights)),
        ..CpuOptions::new(threads)
    };
    Paged::with_options(weights, 600, seed, options)
}

/// Runs `tokens` of one sequence behind shrinks; the logits of every row.
fn run(paged: &mut Paged, seq: usize, shrinks: &[Pending], tokens: &[u32]) -> Vec<Vec<f32>> {
    let mut input = paged.input(&[Chunk { seq, tokens }]);
    shrinks.iter().for_each(|s| s.attach(&mut input));
    paged.step(&input)
}

/// Makes the oracle's cache hold what the pages of a shrunk block dequantise to.
fn copy_pages(
    paged: &Paged,
    seq: usize,
    block: usize,
    first_frame: usize,
    oracle: &mut Oracle<RandomWeights>,
) {
    let (pages, seq) = (&paged.pages, &paged.seqs[seq]);
    let (geometry, position) = (pages.geometry(), seq.positions[block]);
    let dim = geometry.head_dim;
    let mut rows = vec![0.0; 128 * dim];
    for layer in 0..geometry.layers {
        for (index, side) in [Side::K, Side::V].into_iter().enumerate() {
            let shape = RecordShape {
                side,
                head_dim: dim,
            };
            for head in 0..geometry.kv_heads {
                let place = pages.place(position, geometry.record(layer, side, head));
                let frame = |n: u32| {
                    let id = seq.frames[first_frame + (place.frame + n) as usize];
                    paged.backend.arena().frame(id)
                };
                let bytes = pages.record_bytes(position, layer, side);
                let here = place.first_part as usize;
                let mut record = frame(0)[place.offset as usize..][..here].to_vec();
                if here < bytes {
                    record.extend_from_slice(&frame(1)[..bytes - here]);
                }
                let format = pages.format(position, layer, side);
                format.dequantise(shape, &record, &mut rows).unwrap();
                for (token, row) in rows.chunks_exact(dim).enumerate() {
                    oracle.set(layer, index, block * 128 + token, head, row);
                }
            }
        }
    }
}

#[test]
fn attention_over_mixed_pages_is_the_oracle_over_what_they_dequantise_to() {
    for family in [WIDE, DEEP, MQA] {
        let weights = weights(family);
        let tokens = text(1, 520);
        let mut paged = paged(&weights, 3, 7);
        let mut oracle = Oracle::new(&weights.spec, weights.clone());
        let seq = paged.add();
        run(&mut paged, seq, &[], &tokens[..512]);
        tokens[..512].iter().for_each(|t| drop(oracle.push(*t)));
        // Blocks 0, 1 and 2 at positions 2, 1 and 4; block 3 stays.
        let shrinks: Vec<_> = [(0, 2), (1, 1), (2, 4)]
            .map(|(block, to)| paged.shrink(seq, block, to))
            .into();
        let got = run(&mut paged, seq, &shrinks, &tokens[512..]);
        let mut first_frame = 0;
        for block in 0..3 {
            copy_pages(&paged, seq, block, first_frame, &mut oracle);
            first_frame += paged.pages.frames(paged.seqs[seq].positions[block]) as usize;
        }
        let (mut total, mut scale) = (0.0, 0.0);
        for (token, got) in tokens[512..].iter().zip(&got) {
            for (x, want) in got.iter().zip(oracle.push(*token)) {
                total += (f64::from(*x) - want).powi(2);
                scale += want * want;
            }
        }
        let relative = (total / scale).sqrt();
        assert!(relative < 1e-3, "{family:?}: {relative:e}");
    }
}

#[test]
fn every_way_to_a_position_gives_the_same_bits() {
    let weights = weights(WIDE);
    let tokens = text(2, 300);
    let run_by = |ways: &[&[u16]]| {
        let mut paged = paged(&weights, 2, 3);
        let seq = paged.add();
        run(&mut paged, seq, &[], &tokens[..256]);
        let mut logits = vec![];
        for (i, token) in tokens[256..].iter().enumerate() {
            // One hop a step; all have arrived before the last rows.
            let hops: Vec<_> = ways
                .iter()
                .enumerate()
                .filter_map(|(block, way)| Some((block, *way.get(i)?)))
                .collect();
            let shrinks: Vec<_> = hops
                .into_iter()
                .map(|(block, to)| paged.shrink(seq, block, to))
                .collect();
            logits = run(&mut paged, seq, &shrinks, &[*token]);
            if i == 3 {
                break;
            }
        }
        // The cache of the tokens in between differs, so compare pages, not logits.
        drop(logits);
        let frames: Vec<Vec<u8>> = paged.seqs[seq].frames[..]
            .iter()
            .take(
                (0..2)
                    .map(|b| paged.pages.frames(paged.seqs[seq].positions[b]))
                    .sum::<u32>() as usize,
            )
            .map(|f| paged.backend.arena().frame(*f).to_vec())
            .collect();
        frames
    };
    let direct = run_by(&[&[3], &[2]]);
    assert!(direct == run_by(&[&[1, 2, 3], &[1, 2]]));
    assert!(direct == run_by(&[&[2, 3], &[2]]));
    assert!(direct != run_by(&[&[2], &[2]]));
}

#[test]
fn bits_do_not_depend_on_batch_chunks_or_threads() {
    let weights = weights(WIDE);
    let tokens = text(3, 420);
    let other = text(4, 77);
    let rows = |threads: usize, chunk: usize, company: bool| {
        let mut paged = paged(&weights, threads, threads as u64);
        let seq = paged.add();
        let beside = paged.add();
        run(&mut paged, seq, &[], &tokens[..384]);
        let mut shrinks = vec![paged.shrink(seq, 0, 3), paged.shrink(seq, 1, 2)];
        let mut logits = vec![];
        for (i, tokens) in tokens[384..].chunks(chunk).enumerate() {
            let mut chunks = vec![];
            if company && i < 7 {
                chunks.push(Chunk {
                    seq: beside,
                    tokens: &other[11 * i..][..11],
                });
            }
            chunks.push(Chunk { seq, tokens });
            let mut input = paged.input(&chunks);
            shrinks.drain(..).for_each(|s| s.attach(&mut input));
            let rows = paged.step(&input);
            logits.extend(rows[rows.len() - tokens.len()..].iter().cloned());
        }
        logits
    };
    let want = rows(1, 36, false);
    for (threads, chunk, company) in [(1, 1, false), (4, 36, false), (3, 5, true), (7, 1, true)] {
        let got = rows(threads, chunk, company);
        assert!(
            got.iter().zip(&want).all(|(a, b)| same(a, b)),
            "{threads} {chunk} {company}"
        );
    }
}

#[test]
fn a_page_without_codes_leaves_its_block_as_it_was_and_the_rest_goes_on() {
    let weights = weights(WIDE);
    let tokens = text(6, 300);
    let broken = |fail: bool| {
        let mut paged = paged(&weights, 2, 1);
        let seq = paged.add();
        run(&mut paged, seq, &[], &tokens[..256]);
        // Layer 1, V, head 1, token 5 of block 0 holds an infinity that no row attends to strongly
        // enough to matter here: what counts is that both runs read it.
        let geometry = paged.pages.geometry();
        let place = geometry.sub_record_place(paged.pages.frame(), geometry.record(1, Side::V, 1));
        let frame = paged.seqs[seq].frames[place.frame];
        let at = place.offset + (5 * 64 + 3) * 2;
        let huge = ebb_kernels::bf16::from_f32(1e5).to_le_bytes();
        paged.backend.arena_mut().frame_mut(frame)[at..at + 2].copy_from_slice(&huge);
        let mut input_shrinks = vec![];
        if fail {
            input_shrinks.push(paged.shrink(seq, 0, 3));
        }
        input_shrinks.push(paged.shrink(seq, 1, 3));
        let mut input = paged.input(&[Chunk {
            seq,
            tokens: &tokens[256..],
        }]);
        input_shrinks.iter().for_each(|s| s.attach(&mut input));
        let output = paged.backend.step(&input).unwrap();
        (output.logits.to_vec(), output.failed_shrinks.to_vec())
    };
    let (want, none) = broken(false);
    let (got, failed) = broken(true);
    assert!(none.is_empty());
    assert!(same(&got, &want));
    let [failure] = &failed[..] else {
        panic!("{failed:?}")
    };
    assert_eq!(
        (failure.shrink, failure.layer, failure.side, failure.kv_head),
        (0, 1, Side::V, 1)
    );
    assert!(failure.to_string().contains("65504"), "{failure}");
}

#[test]
fn rotated_values_leave_the_16_bit_model_as_it_is() {
    let family = Family {
        qkv_bias: true,
        ..WIDE
    };
    let weights = weights(family);
    let tokens = text(8, 200);
    let logits = |v, rotate_v_online| {
        let options = CpuOptions {
            layout: Some(layout(&weights)),
            rotation: Rotation { k: false, v },
            rotate_v_online,
            ..CpuOptions::new(2)
        };
        let mut paged = Paged::with_options(&weights, 300, 1, options);
        let seq = paged.add();
        run(&mut paged, seq, &[], &tokens).concat()
    };
    let plain = logits(false, false);
    let distance = |rotated: Vec<f32>| {
        let pairs = plain.iter().zip(&rotated);
        let error: f32 = pairs.map(|(a, b)| (a - b).powi(2)).sum();
        (error / plain.iter().map(|a| a * a).sum::<f32>()).sqrt()
    };
    assert_eq!(distance(logits(false, true)), 0.0);
    // Cached values are rounded to bf16 in another basis.
    let online = distance(logits(true, true));
    assert!(online > 0.0 && online < 5e-3, "{online:e}");
    let relative = distance(logits(true, false));
    // The folded weights are rounded to bf16 once more.
    assert!(relative > 0.0 && relative < 1e-2, "{relative:e}");
}

/// Weights with key scales folded in, of a model without norms of heads.
struct Scaled<'a> {
    weights: &'a RandomWeights,
    scales: &'a OnlineKeyScales,
}

impl WeightSource for Scaled<'_> {
    type Error = Infallible;

    fn shape(&self, name: TensorName) -> Result<Vec<usize>, Infallible> {
        self.weights.shape(name)
    }

    fn read_rows(
        &self,
        name: TensorName,
        first_row: usize,
        out: &mut [bf16],
    ) -> Result<(), Infallible> {
        use LayerTensor as L;
        self.weights.read_rows(name, first_row, out)?;
        let spec = &self.weights.spec;
        let heads = spec.heads();
        let TensorName::Layer(layer, tensor) = name else {
            return Ok(());
        };
        let (is_query, width) = match tensor {
            L::Q => (true, spec.hidden),
            L::K => (false, spec.hidden),
            L::QBias => (true, 1),
            L::KBias => (false, 1),
            _ => return Ok(()),
        };
        let pairs = heads.head_dim / 2;
        for (channel, row) in (first_row..).zip(out.chunks_exact_mut(width)) {
            let group = if is_query { heads.group() } else { 1 };
            let pair = channel / heads.head_dim / group * pairs + channel % pairs;
            let scale = self.scales.scales[layer][pair];
            let factor = if is_query { scale } else { 1.0 / scale };
            for w in row {
                *w = bf16::from_f32(w.to_f32() * factor);
            }
        }
        Ok(())
    }
}

#[test]
fn keys_scaled_in_every_step_are_those_of_folded_weights() {
    let family = Family {
        qkv_bias: true,
        ..WIDE
    };
    let weights = weights(family);
    let heads = weights.spec.heads();
    let pairs = heads.kv_heads * heads.head_dim / 2;
    // Powers of two change no rounding, so that all must be the same to the bit.
    let scale = |layer: usize, pair: usize| (((pair * 5 + layer) % 7) as f32 - 3.0).exp2();
    let of_layer = |layer| (0..pairs).map(|pair| scale(layer, pair)).collect();
    let scales = Arc::new(OnlineKeyScales {
        heads: heads.kv_heads,
        scales: (0..weights.spec.layers.len()).map(of_layer).collect(),
    });
    let options = |online: bool| CpuOptions {
        layout: Some(layout(&weights)),
        scale_k_online: online.then(|| scales.clone()),
        ..CpuOptions::new(2)
    };
    let folded = Scaled {
        weights: &weights,
        scales: &scales,
    };
    let tokens = text(8, 200);
    let run = |mut paged: Paged| {
        let seq = paged.add();
        let logits = run(&mut paged, seq, &[], &tokens).concat();
        (logits, rows_of_first_layer(&paged, seq, Side::K, 1))
    };
    let (plain, keys) = run(Paged::with_options(&weights, 300, 1, options(false)));
    let (want, folded_keys) = run(Paged::of(&weights.spec, &folded, 300, 1, options(false)));
    let (got, online_keys) = run(Paged::with_options(&weights, 300, 1, options(true)));
    assert!(same(&got, &want) && same(&got, &plain));
    assert!(online_keys == folded_keys && online_keys != keys);
}

#[test]
fn key_scales_of_another_model_are_refused() {
    let weights = weights(WIDE);
    let options = CpuOptions {
        scale_k_online: Some(Arc::new(OnlineKeyScales {
            heads: 1,
            scales: vec![vec![1.0; 3]],
        })),
        ..CpuOptions::new(1)
    };
    let geometry = weights.spec.kv_geometry();
    let arena = KvArena::new(geometry.frame_layout(), 8).unwrap();
    let spec = weights.spec.clone();
    let started = CpuBackend::with_options(spec, &weights, arena, options, &mut |_, _| ());
    let error = started.unwrap_err().to_string();
    assert!(error.contains("key scales must be"), "{error}");
}

/// The 16-bit rows of one page of layer 0, `[tokens][head_dim]`.
fn rows_of_first_layer(paged: &Paged, seq: usize, side: Side, head: usize) -> Vec<Vec<f32>> {
    let geometry = paged.pages.geometry();
    let row_bytes = 2 * geometry.head_dim;
    let record = geometry.record(0, side, head);
    let place = geometry.sub_record_place(paged.pages.frame(), record);
    let frames = paged.pages.frame().frames_per_sub_block;
    let len = paged.seqs[seq].len;
    let row = |token: usize| {
        let frame = paged.seqs[seq].frames[token / 16 * frames + place.frame];
        let at = place.offset + token % 16 * row_bytes;
        let bytes = &paged.backend.arena().frame(frame)[at..at + row_bytes];
        let values = bytes.chunks_exact(2);
        values
            .map(|b| ebb_kernels::bf16::from_le_bytes([b[0], b[1]]).to_f32())
            .collect()
    };
    (0..len).map(row).collect()
}

#[test]
fn rotated_keys_are_turned_in_the_cache_and_the_16_bit_model_is_as_it_was() {
    for family in [
        Family {
            qkv_bias: true,
            ..WIDE
        },
        Family {
            qk_norm: QkNorm::PerHead,
            ..DEEP
        },
    ] {
        let weights = weights(family);
        let tokens = text(8, 200);
        let run = |k| {
            let options = CpuOptions {
                layout: Some(layout(&weights)),
                rotation: Rotation { k, v: false },
                ..CpuOptions::new(2)
            };
            let mut paged = Paged::with_options(&weights, 300, 1, options);
            let seq = paged.add();
            let logits = run(&mut paged, seq, &[], &tokens).concat();
            let page = |side| rows_of_first_layer(&paged, seq, side, 1);
            (logits, page(Side::K), page(Side::V))
        };
        let (plain, keys, values) = run(false);
        let (rotated, turned, same_values) = run(true);
        assert_eq!(keys.len(), 200);
        assert!(values == same_values && keys != turned);
        for (key, turned) in keys.into_iter().zip(turned) {
            let norm = key.iter().map(|x| x * x).sum::<f32>().sqrt();
            let mut back = turned;
            hadamard(&mut back);
            let apart = key.iter().zip(&back).map(|(a, b)| (a - b).powi(2));
            // Each was rounded to bf16 once.
            assert!(apart.sum::<f32>().sqrt() < 4e-3 * norm);
        }
        let error: f32 = plain
            .iter()
            .zip(&rotated)
            .map(|(a, b)| (a - b).powi(2))
            .sum();
        let scale: f32 = plain.iter().map(|a| a * a).sum();
        let relative = (error / scale).sqrt();
        assert!(relative > 0.0 && relative < 1e-2, "{relative:e}");
    }
}

#[test]
fn heads_that_cannot_be_rotated_are_refused() {
    let weights = weights(Family {
        head_dim: 24,
        ..Family::LLAMA
    });
    let start = |rotation| {
        let options = CpuOptions {
            rotation,
            ..CpuOptions::new(1)
        };
        let geometry = weights.spec.kv_geometry();
        let arena = KvArena::new(geometry.frame_layout(), 8).unwrap();
        let spec = weights.spec.clone();
        CpuBackend::with_options(spec, &weights, arena, options, &mut |_, _| ())
    };
    assert!(start(Rotation::NONE).is_ok());
    for (k, v) in [(true, false), (false, true)] {
        let error = start(Rotation { k, v }).unwrap_err().to_string();
        assert!(error.contains("power of two, got 24"), "{error}");
    }
}
