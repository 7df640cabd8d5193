//! What the format tests share: pages, shapes and short calls. Each test file uses a part of it.
#![allow(dead_code)]

pub(crate) mod oracle;
pub(crate) mod polar;

use ebb_kernels::formats::{FormatId, RecordShape};
use ebb_kernels::kv::Side;
use ebb_kernels::{BLOCK_TOKENS, bf16};

/// Every (format, shape) that exists among the head dimensions of real models.
pub(crate) fn cases() -> Vec<(FormatId, RecordShape)> {
    let mut cases = vec![];
    for &format in FormatId::ALL {
        for side in [Side::K, Side::V] {
            for head_dim in [64, 128, 80, 96, 256] {
                let shape = RecordShape { side, head_dim };
                if format.record_bytes(shape).is_ok() {
                    cases.push((format, shape));
                }
            }
        }
    }
    cases
}

pub(crate) fn encode(format: FormatId, shape: RecordShape, rows: &[bf16]) -> Vec<u8> {
    // Dirty memory: encoding must write every byte.
    let mut record = vec![0xA5; format.record_bytes(shape).unwrap()];
    format.encode(shape, rows, &mut record).unwrap();
    record
}

pub(crate) fn dequantise(format: FormatId, shape: RecordShape, record: &[u8]) -> Vec<f32> {
    let mut values = vec![f32::NAN; shape.elements()];
    format.dequantise(shape, record, &mut values).unwrap();
    values
}

pub(crate) fn shrink(from: FormatId, to: FormatId, shape: RecordShape, record: &[u8]) -> Vec<u8> {
    let mut out = vec![0x5A; to.record_bytes(shape).unwrap()];
    from.shrink(to, shape, record, &mut out).unwrap();
    out
}

/// A small generator with a fixed sequence per seed.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678_9abc_def1)
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 ^ (self.0 >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 16
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// In `[-1, 1)`, with 24 bits.
    pub(crate) fn signed(&mut self) -> f32 {
        (self.bits() & 0xff_ffff) as f32 / (1 << 23) as f32 - 1.0
    }

    /// Roughly normal, mean 0, deviation about 1.
    pub(crate) fn normal(&mut self) -> f32 {
        (0..6).map(|_| self.signed()).sum::<f32>() * 0.7
    }
}

/// A page like those of a model: channels with offsets, a few of them large.
pub(crate) fn page(shape: RecordShape, seed: u64) -> Vec<bf16> {
    let mut random = Random::new(seed);
    let channels: Vec<(f32, f32)> = (0..shape.head_dim)
        .map(|c| {
            let loud = if c % 13 == 5 { 8.0 } else { 1.0 };
            (
                random.normal() * loud,
                loud * (0.25 + random.signed().abs()),
            )
        })
        .collect();
    (0..BLOCK_TOKENS)
        .flat_map(|_| {
            channels
                .iter()
                .map(|(m, s)| m + s * random.normal())
                .collect::<Vec<_>>()
        })
        .map(bf16::from_f32)
        .collect()
}

/// Pages that stress a codec: each with a name for the message.
pub(crate) fn hard_pages(shape: RecordShape) -> Vec<(&'static str, Vec<bf16>)> {
    let n = shape.elements();
    let mut random = Random::new(99);
    let mut make = |f: &mut dyn FnMut(&mut Random, usize) -> f32| -> Vec<bf16> {
        (0..n).map(|i| bf16::from_f32(f(&mut random, i))).collect()
    };
    vec![
        ("zeros", make(&mut |_, _| 0.0)),
        ("negative zeros", make(&mut |_, _| -0.0)),
        (
            "zeros of both signs",
            make(&mut |r, _| 0.0f32.copysign(r.signed())),
        ),
        ("denormals of fp16", make(&mut |r, _| r.signed() * 3e-6)),
        ("below every fp16", make(&mut |r, _| r.signed() * 1e-20)),
        ("denormals of bf16", make(&mut |r, _| r.signed() * 1e-39)),
        (
            "widest",
            make(&mut |r, _| if r.signed() < 0.0 { -32000.0 } else { 32000.0 }),
        ),
        (
            "wide magnitudes",
            make(&mut |r, _| r.signed() * 2f32.powi(r.below(30) as i32 - 16)),
        ),
        (
            "tiny spread on a large offset",
            make(&mut |r, _| 4096.0 + 32.0 * r.below(2) as f32),
        ),
        (
            "one outlier",
            make(&mut |_, i| if i == 77 { 30000.0 } else { 0.001 }),
        ),
        ("all positive", make(&mut |r, _| 1.0 + r.signed().abs())),
        ("all negative", make(&mut |r, _| -1.0 - r.signed().abs())),
    ]
}

/// FNV-1a, 64 bit.
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}
