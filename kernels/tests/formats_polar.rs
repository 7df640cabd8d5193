//! PolarQuant's published formats: against a second implementation of the paper's formulas, and in
//! what tells them from their neighbours.

mod formats_support;

use ebb_kernels::formats::order::Plane;
use ebb_kernels::formats::{FormatId, RecordShape};
use ebb_kernels::{BLOCK_TOKENS, bf16};
use formats_support::polar::{PolarPage, quantise};
use formats_support::{Random, dequantise, encode, hard_pages, page};

/// Format, bits of a radius, tokens of a group.
const PUBLISHED: [(FormatId, u32, usize); 3] = [
    (FormatId::Polar44G64, 4, 64),
    (FormatId::Polar42G64, 2, 64),
    (FormatId::Polar44G128, 4, 128),
];

/// A record's codes of angle and radius, `[token][pair]`.
fn codes(page: &PolarPage, record: &[u8], pairs: usize, radius_bits: u32) -> Vec<(u32, u32)> {
    let [meta, angles, _] = page.parts();
    let code = |plane: &[u8], bits: u32, i: usize| {
        let order = Plane {
            rows: BLOCK_TOKENS,
            cols: pairs,
            bits,
        };
        let at = order.place(i / pairs, i % pairs);
        let word: [u8; 4] = plane[4 * at.word..4 * at.word + 4].try_into().unwrap();
        u32::from_le_bytes(word) >> at.shift & ((1 << bits) - 1)
    };
    let (angle_plane, radius_plane) = record[meta..].split_at(angles);
    let of = |i| (code(angle_plane, 4, i), code(radius_plane, radius_bits, i));
    (0..BLOCK_TOKENS * pairs).map(of).collect()
}

/// A page of `row(token, channel)`.
fn rows_of(head_dim: usize, row: impl Fn(usize, usize) -> f32) -> Vec<bf16> {
    let elements = 0..BLOCK_TOKENS * head_dim;
    let rows = elements.map(|i| bf16::from_f32(row(i / head_dim, i % head_dim)));
    rows.collect()
}

#[test]
fn published_records_and_values_are_those_of_the_papers_formulas() {
    for (format, radius_bits, group) in PUBLISHED {
        for head_dim in [64, 96, 128, 256] {
            let (shape, pairs) = (RecordShape::k(head_dim), head_dim / 2);
            // What is below every fp16 underflows in f32, where it is squared.
            let mut pages = hard_pages(shape);
            pages.retain(|(name, _)| !name.starts_with("denormals of bf16"));
            pages.retain(|(name, _)| *name != "below every fp16");
            pages.extend((50..54).map(|seed| ("page", page(shape, seed))));
            for (name, rows) in pages {
                let record = encode(format, shape, &rows);
                let want = quantise(&rows, head_dim, (radius_bits, group), &record);
                assert_eq!(record.len(), want.parts().iter().sum::<usize>());
                let codes = codes(&want, &record, pairs, radius_bits);
                assert!(
                    record == want.record(&codes),
                    "{format} {shape:?} {name}: bytes"
                );
                let values = dequantise(format, shape, &record);
                for (i, codes) in codes.into_iter().enumerate() {
                    let (token, pair) = (i / pairs, i % pairs);
                    let (x, y, greatest) = want.value(token, pair, codes);
                    let at = token * head_dim + pair;
                    for (got, want) in [(values[at], x), (values[at + pairs], y)] {
                        assert!(
                            (f64::from(got) - want).abs() <= 1e-6 * greatest,
                            "{format} {shape:?} {name}: token {token} pair {pair} is {got}, not \
                             {want}"
                        );
                    }
                }
            }
        }
    }
}

/// Taken to the letter, the paper's decode turns every key by pi.
#[test]
fn published_polar_keys_keep_their_sign() {
    for (format, radius_bits, group) in PUBLISHED {
        let (shape, pairs) = (RecordShape::k(128), 64);
        let rows = page(shape, 55);
        let values = dequantise(format, shape, &encode(format, shape, &rows));
        let mut long = 0;
        for pair in 0..pairs {
            let row = |token: usize| {
                let at = token * 128 + pair;
                (rows[at].to_f32(), rows[at + pairs].to_f32())
            };
            let radius = |token| row(token).0.hypot(row(token).1);
            for token in 0..BLOCK_TOKENS {
                let first = token / group * group;
                let greatest = (first..first + group).map(radius).fold(0.0, f32::max);
                let half_step = greatest * 1.001 / (2.0 * ((1 << radius_bits) - 1) as f32);
                if radius(token) <= half_step {
                    continue;
                }
                long += 1;
                let at = token * 128 + pair;
                let (x, y) = row(token);
                let dot = x * values[at] + y * values[at + pairs];
                // Within half a cell: of an angle of at most pi/16.
                let least = 0.98 * radius(token) * values[at].hypot(values[at + pairs]);
                assert!(dot > 0.0 && dot >= least, "{format}: {token} {pair}: {dot}");
            }
        }
        assert!(long > 6000, "{format}: only {long} pairs are long");
    }
}

#[test]
fn a_group_of_64_has_a_scale_of_its_own() {
    let shape = RecordShape::k(128);
    let plain = page(shape, 56);
    let mut loud = plain.clone();
    for x in &mut loud[..64 * 128] {
        *x = bf16::from_f32(x.to_f32() * 100.0);
    }
    for (format, _, group) in PUBLISHED {
        let later = |rows: &[bf16]| {
            let values = dequantise(format, shape, &encode(format, shape, rows));
            values[64 * 128..].to_vec()
        };
        let same = later(&plain) == later(&loud);
        assert_eq!(same, group == 64, "{format}");
    }
}

/// Radii that hardly vary, far from zero, take the last code: a zero would spread them.
#[test]
fn radii_have_no_zero() {
    for (format, radius_bits, group) in PUBLISHED {
        let (shape, pairs) = (RecordShape::k(64), 32);
        let mut random = Random::new(57);
        let lengths: Vec<f32> = (0..BLOCK_TOKENS * pairs)
            .map(|_| 9.0 + random.signed().abs())
            .collect();
        // Along the axes, so that radii are what they are made of.
        let rows = rows_of(64, |token, channel| {
            let on_x = (token + channel) % 2 == 0;
            match channel < pairs {
                true if on_x => lengths[token * pairs + channel],
                false if !on_x => lengths[token * pairs + channel - pairs],
                _ => 0.0,
            }
        });
        let record = encode(format, shape, &rows);
        let bits = format.stored_bits(shape).unwrap();
        let groups = BLOCK_TOKENS / group;
        let expected = (4.0 + f64::from(radius_bits)) / 2.0 + groups as f64 / 16.0;
        // P greatest radii a group and nothing else: 16 bits of 2 * 128 elements.
        assert_eq!(bits, expected, "{format}");
        let page = quantise(&rows, 64, (radius_bits, group), &record);
        assert_eq!(page.parts()[0], groups * pairs * 2);
        let last = (1 << radius_bits) - 1;
        let lowest = if radius_bits == 2 { last } else { last - 1 };
        for (_, radius) in codes(&page, &record, pairs, radius_bits) {
            assert!(radius >= lowest, "{format}: radius code {radius}");
        }
        // And a radius that does not vary comes back.
        let rows = rows_of(64, |_, channel| if channel < pairs { -9.5 } else { 0.0 });
        let values = dequantise(format, shape, &encode(format, shape, &rows));
        for (i, value) in values.into_iter().enumerate() {
            let want = if i % 64 < pairs { -9.5 } else { 0.0 };
            assert!((value - want).abs() < 9.5e-6, "{format}: {value}");
        }
    }
}

/// Axes and diagonals are directions of the grid; the middles of its cells are 0.2 radii off.
#[test]
fn directions_of_the_grid_decode_exactly() {
    for (format, _, _) in PUBLISHED {
        let (shape, pairs) = (RecordShape::k(64), 32);
        let axes = [(2.0, 0.0), (0.0, 2.0), (-2.0, 0.0), (0.0, -2.0)];
        let diagonals = [(1.5, 1.5), (-1.5, 1.5), (-1.5, -1.5), (1.5, -1.5)];
        let of = |token: usize, pair: usize| {
            let turn = (token + pair / 2) % 4;
            if pair.is_multiple_of(2) {
                axes[turn]
            } else {
                diagonals[turn]
            }
        };
        let rows = rows_of(64, |token, channel| match channel < pairs {
            true => of(token, channel).0,
            false => of(token, channel - pairs).1,
        });
        let values = dequantise(format, shape, &encode(format, shape, &rows));
        for (i, (x, value)) in rows.iter().zip(values).enumerate() {
            let error = (x.to_f32() - value).abs();
            assert!(
                error <= 2.2 / 512.0,
                "{format}: element {i} errs by {error}"
            );
        }
    }
}

/// The rule of each format as its README has it: the greatest errors on random keys.
#[test]
fn published_formats_differ_from_those_with_fitted_cells() {
    let shape = RecordShape::k(128);
    // Directions anywhere, as the paper's keys have them.
    let mut random = Random::new(58);
    let rows = rows_of(128, |_, _| 0.0);
    let rows: Vec<bf16> = rows
        .iter()
        .map(|_| bf16::from_f32(random.normal()))
        .collect();
    let error = |format: FormatId| -> f64 {
        let values = dequantise(format, shape, &encode(format, shape, &rows));
        let squares = rows.iter().zip(values);
        squares
            .map(|(x, y)| f64::from(x.to_f32() - y).powi(2))
            .sum()
    };
    let [wide, narrow, whole] = PUBLISHED.map(|(format, ..)| error(format));
    assert!(wide <= whole && 2.0 * whole < narrow);
    let grid = error(FormatId::Polar44Grid);
    assert!((0.8..1.25).contains(&(whole / grid)), "{whole} {grid}");
}
