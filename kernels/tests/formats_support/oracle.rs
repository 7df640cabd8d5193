//! The affine formats written a second time: one element at a time, from the papers' formulas and
//! the register layout in the PTX manual, sharing nothing with the crate but the rows.

use ebb_kernels::formats::{FormatId, RecordShape};
use ebb_kernels::kv::Side;
use ebb_kernels::{BLOCK_TOKENS, bf16};

/// What the oracle knows of a page: enough to write the record and to say what it dequantises to.
pub(crate) struct Page {
    shape: RecordShape,
    /// (zero, range) of the group of (token, channel).
    zero: Vec<f32>,
    range: Vec<f32>,
    group_of: fn(RecordShape, usize, usize) -> usize,
    /// `[128][D]`: code and its levels (`2^b - 1`).
    codes: Vec<(u32, u32)>,
    /// Of kitty pages: each channel's rank, or the number of boosted ones.
    boosted_index: Vec<u8>,
    /// Of shifted pages: (zero, step) of each group.
    shifted: Vec<(f64, f64)>,
}

/// The page of `rows` in an affine format; `None` for the formats that are not.
pub(crate) fn quantise(format: FormatId, shape: RecordShape, rows: &[bf16]) -> Option<Page> {
    let per_channel = |_: RecordShape, _: usize, channel: usize| channel;
    let per_token = |_: RecordShape, token: usize, _: usize| token;
    let by_side = if shape.side == Side::K {
        per_channel
    } else {
        per_token
    };
    let direct = |levels| affine(shape, rows, by_side, |_, _| levels);
    let token = |levels| affine(shape, rows, per_token, |_, _| levels);
    let lower = |mut page: Page, target: u32| {
        if target < 8 {
            page.codes
                .iter_mut()
                .for_each(|c| *c = (requantise(c.0, 17), 15));
        }
        if target < 4 {
            page.codes
                .iter_mut()
                .for_each(|c| *c = (requantise(c.0, 5), 3));
        }
        page
    };
    let down = |target| lower(direct(255), target);
    Some(match format.name() {
        "int8" => down(8),
        "int4" => down(4),
        "int2" => down(2),
        "int2c" => clip(down(4), |_| true),
        "kitty25c" => boost_clipped(down(4), shape.head_dim / 4),
        "kitty12c" => boost_clipped(down(4), shape.head_dim / 8),
        "kitty25" => boost(down(4), shape.head_dim / 4),
        "kitty12" => boost(down(4), shape.head_dim / 8),
        "kitty25top" => boost_by(down(4), shape.head_dim / 4, magnitude_of(rows)),
        "kitty12top" => boost_by(down(4), shape.head_dim / 8, magnitude_of(rows)),
        "kitty25var" => boost_by(down(4), shape.head_dim / 4, Page::spread),
        "kitty12var" => boost_by(down(4), shape.head_dim / 8, Page::spread),
        "int4direct" => shifted(direct(65535), 4, false),
        "int2direct" => shifted(direct(65535), 2, false),
        "int4modified" => shifted(direct(65535), 4, true),
        "int2modified" => shifted(direct(65535), 2, true),
        "int4tdirect" => shifted(token(65535), 4, false),
        "int2tdirect" => shifted(token(65535), 2, false),
        "int4tmodified" => shifted(token(65535), 4, true),
        "int2tmodified" => shifted(token(65535), 2, true),
        "int3" => direct(7),
        "int8t" => lower(token(255), 8),
        "int4t" => lower(token(255), 4),
        "int2t" => lower(token(255), 2),
        "int2g32" | "kvmix11" | "int4g32" => {
            let key_group = |s: RecordShape, t: usize, c: usize| t / 32 * s.head_dim + c;
            let value_group = |s: RecordShape, t: usize, c: usize| t * (s.head_dim / 32) + c / 32;
            let group = if shape.side == Side::K {
                key_group
            } else {
                value_group
            };
            let side = shape.side;
            affine(shape, rows, group, move |t, c| {
                let i = if side == Side::K { t % 32 } else { c % 32 };
                match format.name() {
                    "int2g32" => 3,
                    "int4g32" => 15,
                    _ if i % 11 == 10 => 3,
                    _ => 7,
                }
            })
        }
        _ => return None,
    })
}

/// Step `2^b + 1` narrower codes, rounded half up.
fn requantise(code: u32, ratio: u32) -> u32 {
    (f64::from(code) / f64::from(ratio) + 0.5).floor() as u32
}

/// PM-KVQ's Direct and Modified Right Shift (section 4.3.1) of 16-bit codes, level by level, in
/// f64: the codes, steps and zeros of each width are those of the width before.
fn shifted(mut page: Page, bits: u32, modified: bool) -> Page {
    let groups = page.zero.iter().zip(&page.range);
    page.shifted = groups
        .map(|(z, r)| (f64::from(*z), f64::from(*r) / 65535.0))
        .collect();
    let mut width = 16;
    while width > bits {
        width /= 2;
        let power = 1 << width;
        for (code, levels) in &mut page.codes {
            (*code, *levels) = (*code / power, power - 1);
        }
        for (zero, step) in &mut page.shifted {
            let before = *step;
            if modified {
                *step *= f64::from(power);
                *zero += (*step - before) / 2.0;
            } else {
                *step *= f64::from(power + 1);
            }
        }
    }
    page
}

fn affine(
    shape: RecordShape,
    rows: &[bf16],
    group_of: fn(RecordShape, usize, usize) -> usize,
    levels: impl Fn(usize, usize) -> u32,
) -> Page {
    let d = shape.head_dim;
    let groups = 1 + group_of(shape, BLOCK_TOKENS - 1, d - 1);
    let mut members = vec![vec![]; groups];
    for (i, x) in rows.iter().enumerate() {
        members[group_of(shape, i / d, i % d)].push(x.to_f32());
    }
    let fp16 = finite_fp16();
    let (mut zero, mut range) = (vec![], vec![]);
    for values in members {
        let min = values.iter().copied().fold(f32::INFINITY, f32::min);
        let max = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        // The greatest fp16 <= min and the least >= max - zero; + 0.0 turns a negative zero.
        let z = fp16[fp16.partition_point(|h| *h <= min) - 1] + 0.0;
        zero.push(z);
        range.push(fp16[fp16.partition_point(|h| *h < max - z)] + 0.0);
    }
    let code = |i: usize| {
        let (token, channel) = (i / d, i % d);
        let (g, levels) = (group_of(shape, token, channel), levels(token, channel));
        let per_unit = if range[g] == 0.0 {
            0.0
        } else {
            levels as f32 / range[g]
        };
        let code = ((rows[i].to_f32() - zero[g]) * per_unit + 0.5).floor();
        ((code as u32).min(levels), levels)
    };
    Page {
        shape,
        codes: (0..rows.len()).map(code).collect(),
        zero,
        range,
        group_of,
        boosted_index: vec![],
        shifted: vec![],
    }
}

fn finite_fp16() -> Vec<f32> {
    let halves = (0..=u16::MAX).map(half::f16::from_bits);
    let mut values: Vec<f32> = halves
        .filter(|h| h.is_finite())
        .map(half::f16::to_f32)
        .collect();
    values.sort_by(f32::total_cmp);
    values
}

/// Kitty: all but the `boosted` loudest channels of a 4-bit page go to 2 bits.
fn boost(page: Page, boosted: usize) -> Page {
    boost_by(page, boosted, Page::loudness)
}

/// The same with another score.
fn boost_by(mut page: Page, boosted: usize, score: impl Fn(&Page, usize) -> f64) -> Page {
    let index = page.index_by(boosted, score);
    page.boosted_index = index.clone();
    let d = page.shape.head_dim;
    for (i, code) in page.codes.iter_mut().enumerate() {
        if index[i % d] as usize >= boosted {
            *code = (requantise(code.0, 5), 3);
        }
    }
    page
}

/// The mean magnitude of a channel of 16-bit rows, each element's in whole units of 2^-24: sums are
/// exact in f64.
pub(crate) fn magnitude_of(rows: &[bf16]) -> impl Fn(&Page, usize) -> f64 {
    |page, channel| mean_magnitude(rows, page.shape.head_dim, channel)
}

/// The paper's score of a channel of `rows`, `[tokens][head_dim]`.
pub(crate) fn mean_magnitude(rows: &[bf16], head_dim: usize, channel: usize) -> f64 {
    let unit = 2f64.powi(-24);
    let of_channel = rows[channel..].iter().step_by(head_dim);
    let magnitudes = of_channel.map(|x| (f64::from(*x).abs() / unit).floor() * unit);
    magnitudes.sum::<f64>() / (rows.len() / head_dim) as f64
}

/// All but the `boosted` loudest channels of a 4-bit page go to clipped 2 bits.
fn boost_clipped(mut page: Page, boosted: usize) -> Page {
    page.boosted_index = page.index_by(boosted, Page::loudness);
    let index = page.boosted_index.clone();
    clip(page, |group| index[group] as usize >= boosted)
}

/// Groups of a 4-bit page to clipped 2 bits: every window is tried on every element. Levels and
/// codes are counted in halves of a 4-bit step, of which a group spans 30.
fn clip(mut page: Page, chosen: impl Fn(usize) -> bool) -> Page {
    let d = page.shape.head_dim;
    let fp16 = finite_fp16();
    let narrowest = if page.shape.side == Side::K { 8 } else { 9 };
    let group_of = |page: &Page, i: usize| (page.group_of)(page.shape, i / d, i % d);
    for group in (0..page.zero.len()).filter(|g| chosen(*g)) {
        let of_group: Vec<usize> = (0..page.codes.len())
            .filter(|i| group_of(&page, *i) == group)
            .collect();
        // The nearest of four levels, the upper one of two, and how far it is.
        let nearest = |code: u32, low: i64, step: i64| -> (i64, u32) {
            let distance = |level: u32| (2 * i64::from(code) - low - step * i64::from(level)).abs();
            let level = (0..4).rev().min_by_key(|level| distance(*level)).unwrap();
            (distance(level), level)
        };
        let error = |low, step| -> i64 {
            let squares = of_group
                .iter()
                .map(|i| nearest(page.codes[*i].0, low, step).0.pow(2));
            squares.sum()
        };
        let mut windows = vec![];
        for step in (narrowest..=10).rev() {
            windows.extend((0..=30 - 3 * step).map(|low| (low, step)));
        }
        let (low, step) = windows
            .into_iter()
            .min_by_key(|(low, step)| error(*low, *step))
            .unwrap();
        for i in of_group {
            page.codes[i] = (nearest(page.codes[i].0, low, step).1, 3);
        }
        let half_step = page.range[group] / 30.0;
        page.zero[group] = to_nearest(&fp16, page.zero[group] + low as f32 * half_step);
        page.range[group] = to_nearest(&fp16, (3 * step) as f32 * half_step);
    }
    page
}

/// The nearest of ascending fp16 numbers, of two the one whose last bit is 0.
fn to_nearest(fp16: &[f32], x: f32) -> f32 {
    let above = fp16.partition_point(|h| *h < x);
    let (low, high) = (fp16[above - 1], fp16[above]);
    let distance = |h: f32| (f64::from(h) - f64::from(x)).abs();
    let even = |h: f32| half::f16::from_f32(h).to_bits().is_multiple_of(2);
    match distance(low).total_cmp(&distance(high)) {
        std::cmp::Ordering::Less => low + 0.0,
        std::cmp::Ordering::Equal if even(low) => low + 0.0,
        _ => high + 0.0,
    }
}

impl Page {
    /// `128 * 15` times the mean magnitude of a channel of a 4-bit page. Multiples of 2^-24 below
    /// 2^30: exact in f64.
    fn loudness(&self, channel: usize) -> f64 {
        let (z, r) = (
            f64::from(self.zero[channel]),
            f64::from(self.range[channel]),
        );
        let magnitude = |code: u32| (15.0 * z + f64::from(code) * r).abs();
        self.codes_of(channel).map(magnitude).sum()
    }

    /// Standard deviation of a channel of a 4-bit page, in units of its own; a root keeps the order
    /// and is correctly rounded.
    fn spread(&self, channel: usize) -> f64 {
        let mean = self.codes_of(channel).sum::<u32>();
        // 128 times the deviation of each code from the mean: an integer.
        let deviation = |code: u32| f64::from(128 * code).mul_add(1.0, -f64::from(mean)).powi(2);
        let squares: f64 = self.codes_of(channel).map(deviation).sum();
        f64::from(self.range[channel]).powi(2) * squares
    }

    fn codes_of(&self, channel: usize) -> impl Iterator<Item = u32> + '_ {
        let of_channel = self.codes.iter().skip(channel).step_by(self.shape.head_dim);
        of_channel.map(|(code, _)| *code)
    }

    /// Rank by `score` among the `boosted` greatest channels, or `boosted`.
    fn index_by(&self, boosted: usize, score: impl Fn(&Self, usize) -> f64) -> Vec<u8> {
        let d = self.shape.head_dim;
        let mut order: Vec<usize> = (0..d).collect();
        let scores: Vec<f64> = order.iter().map(|c| score(self, *c)).collect();
        order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
        let rank = |c| order[..boosted].iter().position(|o| *o == c);
        (0..d).map(|c| rank(c).unwrap_or(boosted) as u8).collect()
    }

    /// What the codes are worth, and how far the crate's f32 may be from it: not at all where this
    /// is computed in f32, too.
    pub(crate) fn values(&self) -> Vec<(f32, f32)> {
        let d = self.shape.head_dim;
        let value = |(i, (code, levels)): (usize, &(u32, u32))| {
            let g = (self.group_of)(self.shape, i / d, i % d);
            if let Some((zero, step)) = self.shifted.get(g) {
                // A step, its share of the zero, the zero, a product and a sum are each rounded
                // once, half an ulp of 2^-23 at most.
                let rounded = 2.5 * 2f32.powi(-23) * (self.zero[g].abs() + 2.0 * self.range[g]);
                return ((f64::from(*code) * step + zero) as f32, rounded);
            }
            (
                *code as f32 * (self.range[g] / *levels as f32) + self.zero[g],
                0.0,
            )
        };
        self.codes.iter().enumerate().map(value).collect()
    }

    /// The record, in the layout that the format's folder documents.
    pub(crate) fn record(&self, format: FormatId) -> Vec<u8> {
        let halves = self
            .zero
            .iter()
            .chain(&self.range)
            .map(|x| half::f16::from_f32(*x));
        let mut record: Vec<u8> = halves.flat_map(|h| h.to_le_bytes()).collect();
        let d = self.shape.head_dim;
        let code = |t: usize, c: usize| self.codes[t * d + c].0;
        let plane = |bits, code: &dyn Fn(usize, usize) -> u32| match self.shape.side {
            Side::K => fragment_order(BLOCK_TOKENS, d, bits, code),
            Side::V => fragment_order(d, BLOCK_TOKENS, bits, &|c, t| code(t, c)),
        };
        match format.name() {
            "int8" | "int8t" => record.extend(plane(8, &code)),
            "int4" | "int4t" | "int4direct" | "int4modified" | "int4tdirect" | "int4tmodified" => {
                record.extend(plane(4, &code));
            }
            "int2c" | "int2" | "int2t" | "int2direct" | "int2modified" | "int2tdirect"
            | "int2tmodified" => record.extend(plane(2, &code)),
            "int3" => {
                record.extend(plane(2, &|t, c| code(t, c) & 3));
                record.extend(plane(1, &|t, c| code(t, c) >> 2));
            }
            name if name.starts_with("kitty") => {
                let boosted = if name.starts_with("kitty25") {
                    d / 4
                } else {
                    d / 8
                };
                let index = self.boosted_index.clone();
                record.extend(plane(2, &|t, c| code(t, c) & 3));
                record.extend(&index);
                let channel = |rank| index.iter().position(|r| *r as usize == rank).unwrap();
                for slab in 0..boosted / (d / 8) {
                    let first = slab * (d / 8);
                    let high = |t: usize, c: usize| code(t, channel(first + c)) >> 2;
                    record.extend(fragment_order(BLOCK_TOKENS, d / 8, 2, &high));
                }
            }
            name => record.extend(self.words_of_32(name)),
        }
        record
    }

    /// Codes of groups of 32, a word after the other of all groups.
    fn words_of_32(&self, name: &str) -> Vec<u8> {
        let d = self.shape.head_dim;
        let (slots, bits) = match name {
            "int2g32" => (16, 2),
            "int4g32" => (8, 4),
            _ => (11, 3),
        };
        let mut words = vec![0u32; 32usize.div_ceil(slots) * self.zero.len()];
        for (i, (code, _)) in self.codes.iter().enumerate() {
            let (token, channel) = (i / d, i % d);
            let at = if self.shape.side == Side::K {
                token % 32
            } else {
                channel % 32
            };
            let group = (self.group_of)(self.shape, token, channel);
            words[at / slots * self.zero.len() + group] |= code << (bits * (at % slots));
        }
        words.iter().flat_map(|w| w.to_le_bytes()).collect()
    }
}

/// A plane as `mma.m16n8k16` wants its A operand: walk the lanes, their words and the fields of a
/// word, and put into each the element that the PTX manual says the lane holds there.
pub(crate) fn fragment_order(
    rows: usize,
    cols: usize,
    bits: usize,
    code: &dyn Fn(usize, usize) -> u32,
) -> Vec<u8> {
    let per_lane = rows * cols / 32 * bits / 32;
    let vector = if per_lane.is_multiple_of(4) { 4 } else { 2 };
    let mut words = vec![0u32; 32 * per_lane];
    for lane in 0..32 {
        for stream in 0..per_lane * 32 / bits {
            // Eight codes a fragment: registers a0..a3, each a pair.
            let (fragment, register, odd) = (stream / 8, stream / 2 % 4, stream % 2);
            let (row_half, col_half) = (register % 2, register / 2);
            let (row, col) = if cols == 8 {
                (32 * fragment + 16 * col_half, 0)
            } else {
                let tiles = cols / 16;
                (fragment / tiles * 16, fragment % tiles * 16 + 8 * col_half)
            };
            let row = row + 8 * row_half + lane / 4;
            let col = col + 2 * (lane % 4) + odd;
            let (word, shift) = match bits {
                8 => (2 * fragment + col_half, 8 * row_half),
                4 => (fragment, 8 * col_half + 4 * row_half),
                2 => (
                    fragment / 2,
                    8 * col_half + 4 * (fragment % 2) + 2 * row_half,
                ),
                _ => {
                    let low = 8 * col_half + 4 * (fragment % 2) + 2 * row_half;
                    (fragment / 4, low + fragment / 2 % 2)
                }
            };
            let at = (word / vector * 32 + lane) * vector + word % vector;
            words[at] |= code(row, col) << (shift + 16 * odd);
        }
    }
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}
