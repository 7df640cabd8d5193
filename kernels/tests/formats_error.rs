//! How far dequantised pages are from the rows, and what that does to attention scores.

mod formats_support;

use ebb_kernels::formats::{FormatId, RecordShape};
use ebb_kernels::kv::Side;
use ebb_kernels::{BLOCK_TOKENS, bf16};
use formats_support::{Random, cases, dequantise, encode, hard_pages, page};

/// Greatest and least of each channel or token, with the width that fp16 rounding may add.
fn ranges(shape: RecordShape, rows: &[bf16], per_channel: bool, tokens: usize) -> Vec<f32> {
    let d = shape.head_dim;
    let group = |i: usize| {
        if per_channel {
            i / d / tokens * d + i % d
        } else {
            i / d
        }
    };
    let groups = 1 + group(rows.len() - 1);
    let mut bounds = vec![(f32::INFINITY, f32::NEG_INFINITY); groups];
    for (i, x) in rows.iter().enumerate() {
        let (low, high) = &mut bounds[group(i)];
        *low = low.min(x.to_f32());
        *high = high.max(x.to_f32());
    }
    // Rounding the zero down and the range up widens by an ulp of fp16 each: 2^-10, or 2^-24.
    let widened = |(low, high): (f32, f32)| {
        (high - low) * 1.001 + low.abs() * 2f32.powi(-10) + 2f32.powi(-22)
    };
    let widths: Vec<f32> = bounds.into_iter().map(widened).collect();
    (0..rows.len()).map(|i| widths[group(i)]).collect()
}

/// The greatest error each element may have, from the format's definition alone.
fn bounds(format: FormatId, shape: RecordShape, rows: &[bf16]) -> Option<Vec<f32>> {
    let by_side = || ranges(shape, rows, shape.side == Side::K, BLOCK_TOKENS);
    let by_token = || ranges(shape, rows, false, BLOCK_TOKENS);
    let half_steps = |ranges: Vec<f32>, levels: f32| -> Vec<f32> {
        ranges
            .into_iter()
            .map(|r| r / levels / 2.0 * 1.0001)
            .collect()
    };
    Some(match format.name() {
        "f16" => vec![0.0; rows.len()],
        "int8" => half_steps(by_side(), 255.0),
        "int4" => half_steps(by_side(), 15.0),
        // A code is 6 half steps of 4 bit, of 30, from its level at most, and was one off before;
        // zero and range are rounded to fp16 once more.
        "int2c" | "kitty25c" | "kitty12c" => {
            let ranges = by_side().into_iter();
            let rounded = |(range, x): (f32, &bf16)| {
                range * 7.001 / 30.0 + (x.to_f32().abs() + range) * 2f32.powi(-10) + 2f32.powi(-24)
            };
            ranges.zip(rows).map(rounded).collect()
        }
        // A boosted channel is better than that; which they are is the oracle's matter.
        "int2" => half_steps(by_side(), 3.0),
        // The step is at least 1e-6, and fp16 to nearest: 2^-11 of it, or 2^-25, a code; so is the
        // least value.
        "kitty25page" | "kitty12page" | "kitty25s32" => {
            let bound =
                |range: f32| (range / 3.0).max(1e-6) / 2.0 * 1.0001 + range * 2f32.powi(-11);
            by_side()
                .into_iter()
                .map(|range| bound(range) + 16.0 * 2f32.powi(-25))
                .collect()
        }
        name if name.starts_with("kitty") => half_steps(by_side(), 3.0),
        "int2s32" => half_steps(by_side(), 3.0),
        // A group in as many parts as there are codes: a value is off by one at most, or by half
        // of one where codes stand for their middle.
        "int4direct" => half_steps(by_side(), 8.0),
        "int2direct" => half_steps(by_side(), 2.0),
        "int4modified" => half_steps(by_side(), 16.0),
        "int2modified" => half_steps(by_side(), 4.0),
        "int4tdirect" => half_steps(by_token(), 8.0),
        "int2tdirect" => half_steps(by_token(), 2.0),
        "int4tmodified" => half_steps(by_token(), 16.0),
        "int2tmodified" => half_steps(by_token(), 4.0),
        "int3" => half_steps(by_side(), 7.0),
        "int8t" => half_steps(by_token(), 255.0),
        "int4t" => half_steps(by_token(), 15.0),
        "int2t" => half_steps(by_token(), 3.0),
        // The eleventh code of a word has 2 bits.
        "int2g32" | "kvmix11" if shape.side == Side::K => {
            half_steps(ranges(shape, rows, true, 32), 3.0)
        }
        "int4g32" if shape.side == Side::K => half_steps(ranges(shape, rows, true, 32), 15.0),
        "int2g32" | "kvmix11" => half_steps(by_token(), 3.0),
        "int4g32" => half_steps(by_token(), 15.0),
        _ => return None,
    })
}

#[test]
fn every_element_is_within_half_a_step() {
    for (format, shape) in cases() {
        let mut pages = hard_pages(shape);
        pages.push(("page", page(shape, 31)));
        for (name, rows) in pages {
            let Some(bounds) = bounds(format, shape, &rows) else {
                continue;
            };
            let values = dequantise(format, shape, &encode(format, shape, &rows));
            for (i, ((x, y), bound)) in rows.iter().zip(&values).zip(bounds).enumerate() {
                let error = (x.to_f32() - y).abs();
                assert!(
                    error <= bound,
                    "{format} {shape:?} {name}: element {i} is {x}, dequantises to {y}, bound \
                     {bound}"
                );
            }
        }
    }
}

/// A polar code errs by half a cell of angle and half a cell of radius.
#[test]
fn every_pair_is_within_half_a_cell() {
    for (format, shape) in cases() {
        // Cells of a radius, whether angles are on the circle, and tokens that share a greatest
        // radius, where radii count from zero.
        let (radius_cells, circle, group) = match format.name() {
            "polar44" => (16.0, false, None),
            "polar42" => (4.0, false, None),
            "polar44grid" => (16.0, true, None),
            "polar44g64" => (15.0, true, Some(64)),
            "polar42g64" => (3.0, true, Some(64)),
            "polar44g128" => (15.0, true, Some(128)),
            _ => continue,
        };
        let (d, pairs) = (shape.head_dim, shape.head_dim / 2);
        let mut pages = hard_pages(shape);
        pages.push(("page", page(shape, 32)));
        for (name, rows) in pages {
            let values = dequantise(format, shape, &encode(format, shape, &rows));
            for pair in 0..pairs {
                let of = |row: &dyn Fn(usize) -> f32| -> Vec<(f64, f64)> {
                    let at = |t: usize| {
                        let (x, y) = (
                            f64::from(row(t * d + pair)),
                            f64::from(row(t * d + pair + pairs)),
                        );
                        (y.atan2(x).rem_euclid(std::f64::consts::TAU), x.hypot(y))
                    };
                    (0..BLOCK_TOKENS).map(at).collect()
                };
                let exact = of(&|i| rows[i].to_f32());
                let span = |value: &dyn Fn(&(f64, f64)) -> f64| {
                    let low = exact.iter().map(value).fold(f64::INFINITY, f64::min);
                    let high = exact.iter().map(value).fold(0.0, f64::max);
                    // fp16 metadata: angles up to 2 pi have ulps of 2^-8, radii of 2^-10 relative.
                    (high - low) * 1.001 + low * 2f64.powi(-9) + 2f64.powi(-22)
                };
                let angle_cell = if circle {
                    std::f64::consts::TAU / 16.0
                } else {
                    span(&|p| p.0) / 16.0
                };
                let fitted = span(&|p| p.1);
                let longest = |t: usize, group: usize| {
                    let of_group = exact.chunks_exact(group).nth(t / group).unwrap();
                    let greatest = of_group.iter().map(|p| p.1).fold(0.0, f64::max);
                    greatest * (1.0 + 2f64.powi(-10)) + 2f64.powi(-24)
                };
                for (t, (_, radius)) in exact.iter().enumerate() {
                    let radius_cell = group.map_or(fitted, |g| longest(t, g)) / radius_cells;
                    let (x, y) = (values[t * d + pair], values[t * d + pair + pairs]);
                    let (rx, ry) = (
                        rows[t * d + pair].to_f32(),
                        rows[t * d + pair + pairs].to_f32(),
                    );
                    let error = f64::from(x - rx).hypot(f64::from(y - ry));
                    // The chord of half a cell on the dequantised radius, and the radius's own half
                    // cell.
                    let bound = (radius + radius_cell) * angle_cell / 2.0 + radius_cell / 2.0;
                    assert!(
                        error <= bound * 1.001 + 1e-6 * radius,
                        "{format} {name}: token {t} pair {pair} errs by {error}, bound {bound}"
                    );
                }
            }
        }
    }
}

/// Scores of random queries: the error stays within what the element bounds allow, and far below it
/// on average, since roundings are not correlated.
#[test]
fn scores_of_dequantised_keys_are_close() {
    for (format, shape) in cases().into_iter().filter(|(_, s)| s.side == Side::K) {
        let d = shape.head_dim;
        let rows = page(shape, 33);
        let Some(bounds) = bounds(format, shape, &rows) else {
            continue;
        };
        let values = dequantise(format, shape, &encode(format, shape, &rows));
        let mut random = Random::new(7);
        let (mut squared, mut allowed) = (0.0, 0.0);
        for _ in 0..8 {
            let query: Vec<f32> = (0..d).map(|_| random.normal()).collect();
            for token in 0..BLOCK_TOKENS {
                let at = token * d..(token + 1) * d;
                let dot = |f: &dyn Fn(usize) -> f32| -> f64 {
                    at.clone()
                        .zip(&query)
                        .map(|(i, q)| f64::from(f(i)) * f64::from(*q))
                        .sum()
                };
                let error = (dot(&|i| values[i]) - dot(&|i| rows[i].to_f32())).abs();
                let bound: f64 = at
                    .clone()
                    .zip(&query)
                    .map(|(i, q)| f64::from(bounds[i] * q.abs()))
                    .sum();
                assert!(
                    error <= bound + 1e-9,
                    "{format}: score errs by {error}, bound {bound}"
                );
                squared += error * error;
                allowed += bound * bound;
            }
        }
        let ratio = (squared / allowed.max(1e-30)).sqrt();
        assert!(
            ratio < 0.25,
            "{format} {shape:?}: scores err by {ratio} of the worst case"
        );
    }
}

/// More bits, less error: a page loses on every rung, but the levels keep their order.
#[test]
fn error_grows_down_the_ladder() {
    for side in [Side::K, Side::V] {
        for head_dim in [64, 128] {
            let shape = RecordShape { side, head_dim };
            let rows = page(shape, 34);
            let error = |format: FormatId| -> f64 {
                let values = dequantise(format, shape, &encode(format, shape, &rows));
                let squares = rows
                    .iter()
                    .zip(values)
                    .map(|(x, y)| f64::from(x.to_f32() - y).powi(2));
                squares.sum()
            };
            let errors: Vec<f64> = ebb_kernels::formats::ladder(side).map(error).collect();
            assert!(
                errors.windows(2).all(|e| e[0] < e[1]),
                "{shape:?} {errors:?}"
            );
        }
    }
}

/// What the papers compare their choices with, on pages whose channels differ as a model's do.
#[test]
fn ablations_err_more_than_what_they_are_compared_with() {
    let error = |format: FormatId, side: Side| -> f64 {
        let shape = RecordShape {
            side,
            head_dim: 128,
        };
        let of_page = |seed| -> f64 {
            let rows = page(shape, seed);
            let values = dequantise(format, shape, &encode(format, shape, &rows));
            let squares = rows.iter().zip(values);
            squares
                .map(|(x, y)| f64::from(x.to_f32() - y).powi(2))
                .sum()
        };
        (0..8).map(of_page).sum()
    };
    let keys = |format| error(format, Side::K);
    // A boosted channel errs by its step, so that for the error of the page alone variance is the
    // better guide.
    assert!(keys(FormatId::Kitty25Variance) < keys(FormatId::Kitty25));
    assert!(keys(FormatId::Kitty25) < 0.7 * keys(FormatId::Kitty25Random));
    assert!(keys(FormatId::Kitty12) < 0.7 * keys(FormatId::Kitty12Random));
    assert!(keys(FormatId::Kitty12Variance) < 0.7 * keys(FormatId::Kitty12Random));
    // Shifts: the Equivalent one first, with KIVI's groups and with keys per token. Modified errs
    // less than Equivalent here, which keeps the ends of a group and little else.
    for (side, [equivalent, direct, modified]) in [
        (
            Side::K,
            [FormatId::Int4, FormatId::Int4Direct, FormatId::Int4Modified],
        ),
        (
            Side::K,
            [FormatId::Int2, FormatId::Int2Direct, FormatId::Int2Modified],
        ),
        (
            Side::V,
            [FormatId::Int4, FormatId::Int4Direct, FormatId::Int4Modified],
        ),
        (
            Side::V,
            [FormatId::Int2, FormatId::Int2Direct, FormatId::Int2Modified],
        ),
        (
            Side::K,
            [
                FormatId::Int4t,
                FormatId::Int4tDirect,
                FormatId::Int4tModified,
            ],
        ),
        (
            Side::K,
            [
                FormatId::Int2t,
                FormatId::Int2tDirect,
                FormatId::Int2tModified,
            ],
        ),
    ] {
        let mean = [equivalent, direct, modified].map(|f| error(f, side));
        assert!(mean[1] > 1.1 * mean[0], "{side:?} {direct} {mean:?}");
        assert!(mean[2] < mean[0], "{side:?} {modified} {mean:?}");
    }
    for side in [Side::K, Side::V] {
        assert!(error(FormatId::Int2g32, side) < error(FormatId::Int2, side));
        assert!(error(FormatId::Int4g32, side) < error(FormatId::Int4, side));
    }
}

/// Zeros and ranges, in f64.
fn zeros_and_ranges(format: FormatId, shape: RecordShape, rows: &[bf16]) -> Vec<(f64, f64)> {
    let groups = groups(shape);
    let record = encode(format, shape, rows);
    let half = |i: usize| f64::from(half::f16::from_le_bytes([record[2 * i], record[2 * i + 1]]));
    (0..groups).map(|g| (half(g), half(groups + g))).collect()
}

/// In every group of every page: what 2-bit codes lose of the 4-bit page, squared, is not more
/// where they are clipped, but for the rounding of zero and range; and the window lies within the
/// group's own range.
#[test]
fn clipping_never_loses_more_of_the_4_bit_page() {
    for (side, head_dim) in [64, 80, 128, 256]
        .iter()
        .flat_map(|d| [(Side::K, *d), (Side::V, *d)])
    {
        let shape = RecordShape { side, head_dim };
        let mut pages = hard_pages(shape);
        pages.extend((40..44).map(|seed| ("page", page(shape, seed))));
        let mut lower = 0;
        for (name, rows) in pages {
            let values = |format| dequantise(format, shape, &encode(format, shape, &rows));
            let four = values(FormatId::Int4);
            let own = zeros_and_ranges(FormatId::Int4, shape, &rows);
            let windows = zeros_and_ranges(FormatId::Int2c, shape, &rows);
            let lost = |format| -> Vec<f64> {
                let mut sums = vec![0.0; own.len()];
                for (i, (a, b)) in four.iter().zip(values(format)).enumerate() {
                    let group = if side == Side::K {
                        i % head_dim
                    } else {
                        i / head_dim
                    };
                    sums[group] += f64::from(a - b).powi(2);
                }
                sums.into_iter().map(f64::sqrt).collect()
            };
            let (clipped, whole) = (lost(FormatId::Int2c), lost(FormatId::Int2));
            for (g, ((zero, range), (low, width))) in own.iter().zip(&windows).enumerate() {
                // Zero and range are each half an ulp of fp16 off at most.
                let ulp = (zero.abs() + range) * 2f64.powi(-10) + 2f64.powi(-23);
                let members = four.len() / own.len();
                assert!(
                    clipped[g] <= whole[g] + ulp * (members as f64).sqrt(),
                    "{shape:?} {name} group {g}: {}, not clipped {}",
                    clipped[g],
                    whole[g]
                );
                assert!(*low >= zero - ulp && low + width <= zero + range + ulp);
                lower += usize::from(clipped[g] < 0.95 * whole[g]);
            }
        }
        assert!(lower > groups(shape), "only {lower} groups gain");
    }
}

fn groups(shape: RecordShape) -> usize {
    match shape.side {
        Side::K => shape.head_dim,
        Side::V => BLOCK_TOKENS,
    }
}
