//! Heads that rotate in part or not at all, that are normed together or behind RoPE, of any width:
//! what is appended and what attention is given, against its definition.

use std::sync::Arc;

use half::bf16;

use super::{Case, KV_HEADS, LAYERS};
use crate::cuda::Device;
use crate::cuda::ops::HeadSpec;
use crate::cuda::probe::{EPS, HeadOptions, HeadsProbe, ProbeError};
use crate::cuda::selftest::reference::relative_error;
use crate::cuda::selftest::table::Report;
use crate::formats::rotation::{Rotation, hadamard};
use crate::kv::Side;
use crate::model::{QkNorm, QueryGrowth};

/// Heads are computed in f32 and rounded to bf16 once, by up to 2^-8 of a value.
const LIMIT: f64 = 3.9e-3;

/// (position, rows).
const SEQS: [(usize, usize); 3] = [(130, 1), (14, 5), (0, 1)];

const PLAIN: HeadOptions = HeadOptions {
    bias: false,
    norm: QkNorm::None,
    growth: None,
    passing: 0,
    rotation: Rotation::NONE,
    scales: false,
};

/// Of the positions of [`SEQS`], some are left as they are.
const GROWTH: QueryGrowth = QueryGrowth {
    beta: 0.3,
    interval: 16,
    from_one: false,
};

const KEYS: Rotation = Rotation { k: true, v: false };
const VALUES: Rotation = Rotation { k: false, v: true };

pub(super) fn check(device: &Arc<Device>, report: &mut Report) -> Result<(), ProbeError> {
    for (head_dim, group) in [
        (16, 1),
        (48, 3),
        (64, 4),
        (80, 5),
        (96, 4),
        (128, 2),
        (192, 8),
        (256, 3),
    ] {
        let bias = HeadOptions {
            bias: true,
            ..PLAIN
        };
        let without = HeadOptions {
            passing: head_dim,
            ..bias
        };
        let in_part = HeadOptions {
            passing: head_dim / 4,
            norm: QkNorm::PerHead,
            ..bias
        };
        let whole = HeadOptions {
            norm: QkNorm::Whole,
            ..PLAIN
        };
        let behind = HeadOptions {
            norm: QkNorm::PerHeadBehindRope,
            ..in_part
        };
        let growing = HeadOptions {
            growth: Some(GROWTH),
            ..PLAIN
        };
        let scaled = HeadOptions {
            scales: true,
            ..PLAIN
        };
        let scaled_unturned = HeadOptions {
            scales: true,
            ..without
        };
        for options in [
            PLAIN,
            bias,
            without,
            in_part,
            whole,
            behind,
            growing,
            scaled,
            scaled_unturned,
        ] {
            one(device, report, (head_dim, group), options)?;
        }
        if head_dim.is_power_of_two() {
            for rotation in [KEYS, VALUES] {
                for options in [PLAIN, in_part] {
                    let rotated = HeadOptions {
                        rotation,
                        ..options
                    };
                    one(device, report, (head_dim, group), rotated)?;
                }
            }
        }
    }
    Ok(())
}

/// One of each kind.
pub(super) fn check_quick(device: &Arc<Device>, report: &mut Report) -> Result<(), ProbeError> {
    let whole = HeadOptions {
        bias: true,
        norm: QkNorm::Whole,
        passing: 24,
        ..PLAIN
    };
    let rotated = HeadOptions {
        passing: 64,
        norm: QkNorm::PerHeadBehindRope,
        growth: Some(GROWTH),
        rotation: Rotation { k: true, v: true },
        scales: true,
        ..PLAIN
    };
    one(device, report, (96, 3), whole)?;
    one(device, report, (256, 4), rotated)
}

fn one(
    device: &Arc<Device>,
    report: &mut Report,
    (head_dim, group): (usize, usize),
    options: HeadOptions,
) -> Result<(), ProbeError> {
    let case = Case::new(head_dim, group, &SEQS, 1.0, 13);
    let mut attention = case.probe(device, None, None)?;
    attention.load(&case.pages.input)?;
    let mut probe = HeadsProbe::new(device, attention, options)?;
    let (queries, pages) = probe.finished(LAYERS - 1, &case.arena)?;
    let wanted = Finished::of(&probe, &case, options)?;
    let error = |got: &[bf16], want: &[f64]| relative_error(got.iter().map(|v| v.to_f64()), want);
    let mut worst = 0f64;
    let mut untouched = case.arena.clone();
    for (row, (seq, position)) in rows().enumerate() {
        let per_head = |heads: usize| (0..heads).map(move |h| (row * heads + h) * head_dim);
        for at in per_head(KV_HEADS * group) {
            let head = at..at + head_dim;
            worst = worst.max(error(&queries[head.clone()], &wanted.q[head]));
        }
        for (h, at) in per_head(KV_HEADS).enumerate() {
            for (side, want) in [(Side::K, &wanted.k), (Side::V, &wanted.v)] {
                let record = case.geometry.record(LAYERS - 1, side, h);
                let bytes = case.geometry.sub_record_bytes();
                let from = case.pages.row_offset(seq, position, record, bytes);
                let place = from..from + 2 * head_dim;
                let got: Vec<_> = pages[place.clone()]
                    .chunks_exact(2)
                    .map(|b| bf16::from_le_bytes([b[0], b[1]]))
                    .collect();
                worst = worst.max(error(&got, &want[at..at + head_dim]));
                untouched[place.clone()].copy_from_slice(&pages[place]);
            }
        }
    }
    if untouched != pages {
        worst = f64::INFINITY;
    }
    report.check(&name(&probe.spec, options), worst, LIMIT);
    Ok(())
}

fn name(spec: &HeadSpec, options: HeadOptions) -> String {
    let HeadOptions {
        bias,
        norm,
        growth,
        rotation,
        scales,
        ..
    } = options;
    let norm = match norm {
        QkNorm::None => "no",
        QkNorm::PerHead => "head",
        QkNorm::PerHeadBehindRope => "late head",
        QkNorm::Whole => "whole",
    };
    let with = |is: bool, what: &'static str| if is { what } else { "" };
    format!(
        "heads of {}, {} rotate, {norm} norms{}{}{}{}{}",
        spec.head_dim,
        spec.rotary_dim,
        with(bias, ", bias"),
        with(growth.is_some(), ", growth"),
        with(scales, ", factors"),
        with(rotation.k, ", Hadamard"),
        with(rotation.v, ", Hadamard of V"),
    )
}

/// (sequence, position) of each row.
fn rows() -> impl Iterator<Item = (usize, usize)> {
    let of_seq = |(seq, (first, rows)): (usize, (usize, usize))| {
        (first..first + rows).map(move |position| (seq, position))
    };
    SEQS.into_iter().enumerate().flat_map(of_seq)
}

/// What queries, keys and values should be, `[rows][heads][head_dim]`.
struct Finished {
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
}

impl Finished {
    fn of(probe: &HeadsProbe, case: &Case, options: HeadOptions) -> Result<Self, ProbeError> {
        let (qkv, [bias, q_norm, k_norm]) = probe.inputs()?;
        let factors = probe.factors()?;
        let dim = case.geometry.head_dim;
        let (q_width, kv_width) = (KV_HEADS * case.group * dim, KV_HEADS * dim);
        let mut this = Self {
            q: Vec::new(),
            k: Vec::new(),
            v: Vec::new(),
        };
        let width = q_width + 2 * kv_width;
        for (row, (_, position)) in qkv.chunks_exact(width).zip(rows()) {
            let value =
                |(c, x): (usize, &bf16)| x.to_f64() + bias.get(c).map_or(0.0, |bias| bias.to_f64());
            let row: Vec<f64> = row.iter().enumerate().map(value).collect();
            let (q, kv) = row.split_at(q_width);
            let (k, v) = kv.split_at(kv_width);
            let growth = options.growth.map_or(1.0, |growth| {
                let steps = growth.steps(position as u32);
                1.0 + f64::from(growth.beta) * f64::from(steps).ln_1p()
            });
            for (x, weights, growth, first, out) in [
                (q, &q_norm, growth, 0, &mut this.q),
                (k, &k_norm, 1.0, KV_HEADS * case.group, &mut this.k),
            ] {
                let is_behind = options.norm == QkNorm::PerHeadBehindRope;
                let mut x = match is_behind {
                    true => x.to_vec(),
                    false => normed(x, weights),
                };
                for (h, head) in (first..).zip(x.chunks_exact_mut(dim)) {
                    rotate(head, position, &probe.rope.inv_freq);
                    if is_behind {
                        head.copy_from_slice(&normed(head, weights));
                    }
                    head.iter_mut().for_each(|x| *x *= growth);
                    let factors = factors.chunks_exact(dim / 2).nth(h).into_iter().flatten();
                    for (i, factor) in factors.enumerate() {
                        head[i] *= f64::from(*factor);
                        head[i + dim / 2] *= f64::from(*factor);
                    }
                    if options.rotation.k {
                        times_hadamard(head);
                    }
                }
                out.extend(x);
            }
            let mut v = v.to_vec();
            if options.rotation.v {
                v.chunks_exact_mut(dim).for_each(times_hadamard);
            }
            this.v.extend(v);
        }
        Ok(this)
    }
}

fn times_hadamard(head: &mut [f64]) {
    let mut exact: Vec<f32> = head.iter().map(|x| *x as f32).collect();
    hadamard(&mut exact);
    let pairs = head.iter_mut().zip(exact);
    pairs.for_each(|(x, exact)| *x = exact.into());
}

/// Every `weights.len()` values divided by the root of their mean square, times `weights`.
fn normed(x: &[f64], weights: &[bf16]) -> Vec<f64> {
    if weights.is_empty() {
        return x.to_vec();
    }
    let of = |x: &[f64]| {
        let square = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        let inverse = 1.0 / (square + f64::from(EPS)).sqrt();
        let scaled = x.iter().zip(weights).map(|(x, w)| x * inverse * w.to_f64());
        scaled.collect::<Vec<_>>()
    };
    x.chunks_exact(weights.len()).flat_map(of).collect()
}

/// Rotates as many pairs as there are frequencies, half-split from the first channel on.
fn rotate(head: &mut [f64], position: usize, inv_freq: &[f32]) {
    let half = inv_freq.len();
    for (i, frequency) in inv_freq.iter().enumerate() {
        let (sine, cosine) = f64::from(position as f32 * frequency).sin_cos();
        let (a, b) = (head[i], head[i + half]);
        head[i] = a * cosine - b * sine;
        head[i + half] = b * cosine + a * sine;
    }
}
