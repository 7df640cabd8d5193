//! PolarQuant's published rule a second time, from the formulas of the paper (arXiv 2502.00527, 3.2
//! and 3.3) in f64, with the brackets rounded to nearest and the pi taken back.

use std::f64::consts::PI;

use ebb_kernels::{BLOCK_TOKENS, bf16};
use half::f16;

use super::oracle::fragment_order;

/// A value is this close to the edge of two codes where f32 may decide otherwise than f64.
const EDGE: f64 = 1e-4;

/// A quantised page of keys.
pub(crate) struct PolarPage {
    head_dim: usize,
    radius_bits: u32,
    group: usize,
    /// max r of every pair of every group, `[group][pair]`.
    greatest: Vec<f16>,
    /// Before rounding, `[token][pair]`: `2^(m-1) theta / pi`, and `r / s`.
    angles: Vec<f64>,
    radii: Vec<f64>,
}

/// m = 4 bits of angle and `radius_bits` of radius, with a scale for each pair and `group` tokens.
/// Where a greatest radius lies on an fp16, in f32, it is that of `record`.
pub(crate) fn quantise(
    rows: &[bf16],
    head_dim: usize,
    (radius_bits, group): (u32, usize),
    record: &[u8],
) -> PolarPage {
    let pairs = head_dim / 2;
    let of_pair = |token: usize, pair: usize| {
        let x = f64::from(rows[token * head_dim + pair].to_f32());
        let y = f64::from(rows[token * head_dim + pair + pairs].to_f32());
        // The origin has no angle, whatever the signs of its zeros; it is stored as 0.
        let angle = if x == 0.0 && y == 0.0 {
            0.0
        } else {
            y.atan2(x)
        };
        (angle + PI, x.hypot(y))
    };
    let mut greatest = vec![];
    for first in (0..BLOCK_TOKENS).step_by(group) {
        for pair in 0..pairs {
            let radii = (first..first + group).map(|token| of_pair(token, pair).1);
            let max = radii.fold(0.0, f64::max);
            // The least fp16 that is not less.
            let least = |max: f64| {
                let mut bits = 0;
                while f64::from(f16::from_bits(bits).to_f32()) < max {
                    bits += 1;
                }
                f16::from_bits(bits)
            };
            // A radius is an f32: 1 beside 1e-4 is 1.
            let ulp = 2f64.powi(-23);
            let either = [least(max * (1.0 - ulp)), least(max * (1.0 + ulp))];
            let at = 2 * greatest.len();
            let given = f16::from_le_bytes([record[at], record[at + 1]]);
            greatest.push(match either.contains(&given) {
                true => given,
                false => least(max),
            });
        }
    }
    let mut page = PolarPage {
        head_dim,
        radius_bits,
        group,
        greatest,
        angles: vec![],
        radii: vec![],
    };
    for token in 0..BLOCK_TOKENS {
        for pair in 0..pairs {
            let (theta, radius) = of_pair(token, pair);
            let scale = page.scale(token, pair);
            page.angles.push(8.0 * theta / PI);
            page.radii.push(match scale {
                0.0 => 0.0,
                _ => radius / scale,
            });
        }
    }
    page
}

impl PolarPage {
    fn last(&self) -> u32 {
        (1 << self.radius_bits) - 1
    }

    /// s of a pair's group.
    fn scale(&self, token: usize, pair: usize) -> f64 {
        let greatest = self.greatest[token / self.group * (self.head_dim / 2) + pair];
        f64::from(greatest.to_f32()) / f64::from(self.last())
    }

    /// Bytes of greatest radii, then of angles, then of radii.
    pub(crate) fn parts(&self) -> [usize; 3] {
        let pairs = self.head_dim / 2;
        [
            2 * self.greatest.len(),
            BLOCK_TOKENS * pairs / 2,
            BLOCK_TOKENS * pairs * self.radius_bits as usize / 8,
        ]
    }

    /// Angle and radius of (token, pair) rounded to nearest. Where a value lies on an edge, the
    /// neighbour that `given` has, if it is one of the two.
    fn codes(&self, token: usize, pair: usize, given: (u32, u32)) -> (u32, u32) {
        let at = token * self.head_dim / 2 + pair;
        let nearest = |value: f64, given: u32, wrap: u32| {
            let nearest = (value + 0.5).floor() as u32;
            let other = (value + 0.5).round() as u32;
            let on_edge = (value + 0.5 - f64::from(other)).abs() < EDGE;
            let either = [other % wrap, (other.max(1) - 1) % wrap];
            match on_edge && either.contains(&given) {
                true => given,
                false => nearest % wrap,
            }
        };
        let angle = nearest(self.angles[at], given.0, 16);
        let radius = nearest(self.radii[at], given.1, u32::MAX);
        (angle, radius.min(self.last()))
    }

    /// The record; on edges with the codes of `given`, `[token][pair]`.
    pub(crate) fn record(&self, given: &[(u32, u32)]) -> Vec<u8> {
        let pairs = self.head_dim / 2;
        let mut record: Vec<u8> = self.greatest.iter().flat_map(|r| r.to_le_bytes()).collect();
        let code = |t: usize, pair: usize| self.codes(t, pair, given[t * pairs + pair]);
        record.extend(fragment_order(BLOCK_TOKENS, pairs, 4, &|t, p| code(t, p).0));
        let bits = self.radius_bits as usize;
        record.extend(fragment_order(BLOCK_TOKENS, pairs, bits, &|t, p| {
            code(t, p).1
        }));
        record
    }

    /// x and y of (token, pair) that codes stand for, and the greatest radius of its group.
    pub(crate) fn value(&self, token: usize, pair: usize, codes: (u32, u32)) -> (f64, f64, f64) {
        let theta = PI * f64::from(codes.0) / 8.0 - PI;
        let radius = f64::from(codes.1) * self.scale(token, pair);
        let greatest = self.scale(token, pair) * f64::from(self.last());
        (theta.cos() * radius, theta.sin() * radius, greatest)
    }
}
