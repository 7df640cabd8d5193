//! Kitty's own page of two tensors and its sink, from the paper's text: nothing here is shared with
//! the crate but the rows and the bytes.

mod formats_support;

use ebb_kernels::formats::{FormatId, RecordShape};
use ebb_kernels::{BLOCK_TOKENS, bf16};
use formats_support::oracle::mean_magnitude;
use formats_support::{dequantise, digest, encode, hard_pages, page};

/// Tokens that `kitty25s32` and `int2s32` keep at 16 bit.
const SINK: usize = 32;

/// A page of keys of T tokens as section 4.1 stores it.
struct KeyPage<'a> {
    /// scale and zero point of each channel.
    meta: &'a [u8],
    /// `Tensor_2bits` and `Tensor_High_2bits`, `[channel][token]`, four tokens a byte.
    low: &'a [u8],
    high: &'a [u8],
    boost_idx: &'a [u8],
    tokens: usize,
    d_boost: usize,
}

impl<'a> KeyPage<'a> {
    fn of(bytes: &'a [u8], d: usize, d_boost: usize, tokens: usize) -> Self {
        let (meta, rest) = bytes.split_at(4 * d);
        let (low, rest) = rest.split_at(d * tokens / 4);
        let (high, boost_idx) = rest.split_at(d_boost * tokens / 4);
        assert_eq!(boost_idx.len(), d);
        Self {
            meta,
            low,
            high,
            boost_idx,
            tokens,
            d_boost,
        }
    }

    fn is_boosted(&self, d: usize) -> bool {
        usize::from(self.boost_idx[d]) < self.d_boost
    }

    /// Algorithm 1, lines 5 to 14, of one element.
    fn code(&self, d: usize, t: usize) -> u8 {
        let shift = [0, 2, 4, 6][t % 4];
        let two_bits = |tensor: &[u8], row: usize| {
            let byte = tensor[row * self.tokens / 4 + t / 4];
            (byte >> shift) & 0x3
        };
        let x_low = two_bits(self.low, d);
        let x_high = if self.is_boosted(d) {
            two_bits(self.high, usize::from(self.boost_idx[d]))
        } else {
            0
        };
        x_low | (x_high << 2)
    }

    fn meta(&self, d: usize) -> (f32, f32) {
        let half = |i: usize| {
            let at = 4 * d + 2 * i;
            half::f16::from_le_bytes([self.meta[at], self.meta[at + 1]]).to_f32()
        };
        (half(0), half(1))
    }

    /// Algorithm 1: `[token][channel]`.
    fn dequantise(&self) -> Vec<f32> {
        let channels = self.boost_idx.len();
        let mut k = vec![f32::NAN; self.tokens * channels];
        for d in 0..channels {
            let (scale, zero_point) = self.meta(d);
            for t in 0..self.tokens {
                k[t * channels + d] = f32::from(self.code(d, t)) * scale + zero_point;
            }
        }
        k
    }
}

/// The formats of two tensors: the format, its sink, and the eighths of its channels that are
/// boosted.
const PAGES: [(FormatId, usize, usize); 3] = [
    (FormatId::Kitty25Page, 0, 2),
    (FormatId::Kitty12Page, 0, 1),
    (FormatId::Kitty25Sink32, SINK, 2),
];

/// Calls `check` with every such format's pages: the format's name, the head dimension, all rows,
/// the record, the rows behind the sink and the page that holds these.
fn for_all_pages(check: impl Fn(&str, RecordShape, &[bf16], &[u8], &[bf16], &KeyPage<'_>)) {
    for (format, sink, eighths) in PAGES {
        for d in [64, 128, 256] {
            let shape = RecordShape::k(d);
            let mut pages = hard_pages(shape);
            pages.extend((0..4).map(|seed| ("page", page(shape, 50 + seed))));
            for (name, rows) in pages {
                let record = encode(format, shape, &rows);
                let tokens = BLOCK_TOKENS - sink;
                let stored = KeyPage::of(&record[2 * sink * d..], d, eighths * d / 8, tokens);
                let name = format!("{format}, head_dim {d}, {name}");
                check(&name, shape, &rows, &record, &rows[sink * d..], &stored);
            }
        }
    }
}

#[test]
fn pages_have_the_papers_sizes() {
    let bytes = |format: FormatId| format.record_bytes(RecordShape::k(128)).unwrap();
    assert_eq!(bytes(FormatId::Kitty25Page), 5760);
    assert_eq!(bytes(FormatId::Kitty12Page), 5248);
    // 32 rows of bf16, and the page of 96 tokens.
    assert_eq!(
        bytes(FormatId::Kitty25Sink32),
        8192 + 512 + 3072 + 768 + 128
    );
    let values = FormatId::Int2Sink32.record_bytes(RecordShape::v(128));
    assert_eq!(values.unwrap(), 8192 + 384 + 3072);
}

#[test]
fn pages_dequantise_by_algorithm_1() {
    for_all_pages(|name, shape, _, record, rows, stored| {
        let format: FormatId = name.split(',').next().unwrap().parse().unwrap();
        let values = dequantise(format, shape, record);
        let behind = &values[values.len() - rows.len()..];
        assert!(behind == stored.dequantise(), "{name}");
    });
}

/// Equation 2 and the quantiser of the paper, in f64.
#[test]
fn channels_and_codes_are_those_of_the_formulas() {
    for_all_pages(|name, shape, _, _, rows, stored| {
        let d = shape.head_dim;
        let scores: Vec<f64> = (0..d).map(|c| mean_magnitude(rows, d, c)).collect();
        let mut order: Vec<usize> = (0..d).collect();
        order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
        let (mut ties, mut seen) = (0, 0);
        for (rank, channel) in order.into_iter().enumerate() {
            let expected = rank.min(stored.d_boost);
            assert_eq!(usize::from(stored.boost_idx[channel]), expected, "{name}");
            let values = || rows[channel..].iter().step_by(d).map(|x| f64::from(*x));
            let (min, max) = values().fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), x| {
                (a.min(x), b.max(x))
            });
            let levels = if rank < stored.d_boost { 15.0 } else { 3.0 };
            let step = ((max - min) / levels).max(1e-6);
            let (scale, zero_point) = stored.meta(channel);
            let near = |stored: f32, exact: f64| {
                let ulp = exact.abs() * 2f64.powi(-10) + 2f64.powi(-24);
                (f64::from(stored) - exact).abs() <= ulp / 2.0 * 1.001
            };
            assert!(near(scale, step) && near(zero_point, min), "{name}");
            for (t, x) in values().enumerate() {
                let exact = (x - min) / step + 0.5;
                let code = f64::from(stored.code(channel, t));
                seen += 1;
                // f32 may round a tie to either side.
                if (exact - exact.round()).abs() < 1e-4 && (1.0..=levels).contains(&exact.round()) {
                    ties += 1;
                    assert!((code - (exact - 0.5)).abs() < 0.501, "{name}");
                } else {
                    assert_eq!(code, exact.floor().min(levels), "{name} {channel} {t}");
                }
            }
        }
        assert!(
            ties * 10 < seen || !name.ends_with("page"),
            "{ties} of {seen}"
        );
    });
}

/// By hand, in the released kernel's order: tokens 0 to 3 of a channel with codes 1, 2, 3, 0, and
/// of a boosted one with codes 9, 6, 15, 0, whose low bits are the same.
#[test]
fn bytes_of_a_channel_are_those_packed_by_hand() {
    let d = 64;
    let (two_bits, four_bits) = (3, 5);
    let mut rows = vec![bf16::from_f32(8.0); BLOCK_TOKENS * d];
    for token in 0..BLOCK_TOKENS {
        rows[token * d + two_bits] = bf16::from_f32([1.0, 2.0, 3.0, 0.0][token % 4]);
        rows[token * d + four_bits] = bf16::from_f32(64.0 * [9.0, 6.0, 15.0, 0.0][token % 4]);
    }
    let record = encode(FormatId::Kitty25Page, RecordShape::k(d), &rows);
    // Scale 1 and least value 0; scale 64 and least value 0.
    assert_eq!(record[4 * two_bits..][..4], [0x00, 0x3c, 0, 0]);
    assert_eq!(record[4 * four_bits..][..4], [0x00, 0x54, 0, 0]);
    let low = &record[4 * d..];
    assert_eq!(low[32 * two_bits..][..32], [0b0011_1001; 32]);
    assert_eq!(low[32 * four_bits..][..32], [0b0011_1001; 32]);
    let high = &low[32 * d..];
    assert_eq!(high[..32], [0b0011_0110; 32], "of the loudest channel");
    let index = &high[32 * 16..];
    assert_eq!((index[four_bits], index[two_bits]), (0, 16));
    // Equal channels: the lower ones. Those behind the sixteenth have the sentinel.
    let mut expected = [16; 64];
    expected[four_bits] = 0;
    let others = [0, 1, 2, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];
    for (rank, channel) in (1..).zip(others) {
        expected[channel] = rank;
    }
    assert_eq!(index, expected);
}

/// Channels with 4 bits in a record of a quarter boosted, which ends with `behind_index` bytes
/// behind its index.
fn boosted(format: FormatId, d: usize, rows: &[bf16]) -> Vec<usize> {
    let record = encode(format, RecordShape::k(d), rows);
    let behind_index = match format {
        FormatId::Kitty25Page => 0,
        // The slabs.
        _ => d / 4 * BLOCK_TOKENS / 4,
    };
    let index = &record[record.len() - behind_index - d..][..d];
    (0..d).filter(|c| usize::from(index[*c]) < d / 4).collect()
}

/// Channels 20 and 40 contend for the last place. 20 is 1 throughout; 40 is 0.898 but for its ends,
/// and all of that is 1 in steps of 1/4.
#[test]
fn rankings_of_the_16_bit_page_and_of_the_4_bit_page_differ() {
    let d = 64;
    let mut rows = vec![bf16::ZERO; BLOCK_TOKENS * d];
    for (token, row) in rows.chunks_exact_mut(d).enumerate() {
        row[..15].fill(bf16::from_f32(100.0));
        row[20] = bf16::ONE;
        row[40] = bf16::from_f32([0.0, 3.75].get(token).copied().unwrap_or(0.9));
    }
    let with = |last: usize| (0..15).chain([last]).collect::<Vec<usize>>();
    assert!(mean_magnitude(&rows, d, 40) < 0.95 * mean_magnitude(&rows, d, 20));
    assert_eq!(boosted(FormatId::Kitty25, d, &rows), with(40));
    assert_eq!(boosted(FormatId::Kitty25Top, d, &rows), with(20));
    assert_eq!(boosted(FormatId::Kitty25Page, d, &rows), with(20));
}

/// How often the two rankings choose other channels, on pages like a model's: printed, and seldom.
#[test]
fn rankings_seldom_differ() {
    let (d, pages) = (128, 200);
    let (mut differing, mut channels) = (0, 0);
    for seed in 0..pages {
        let rows = page(RecordShape::k(d), 1000 + seed);
        let four_bit = boosted(FormatId::Kitty25, d, &rows);
        let sixteen_bit = boosted(FormatId::Kitty25Top, d, &rows);
        assert_eq!(sixteen_bit, boosted(FormatId::Kitty25Page, d, &rows));
        let others = four_bit.iter().filter(|c| !sixteen_bit.contains(c)).count();
        differing += usize::from(others > 0);
        channels += others;
    }
    println!(
        "the rankings differ on {differing} of {pages} pages, by {channels} of {} channels",
        pages * d as u64 / 4
    );
    assert!(differing < pages as usize / 2 && channels < pages as usize / 2);
}

#[test]
fn the_sink_comes_back_bit_for_bit_and_the_next_token_does_not() {
    for (format, shape) in [
        (FormatId::Kitty25Sink32, RecordShape::k(64)),
        (FormatId::Kitty25Sink32, RecordShape::k(128)),
        (FormatId::Int2Sink32, RecordShape::v(64)),
        (FormatId::Int2Sink32, RecordShape::v(80)),
        (FormatId::Int2Sink32, RecordShape::v(128)),
    ] {
        let d = shape.head_dim;
        let mut rows = page(shape, 60);
        // What has no code is no matter in the sink.
        rows[7] = bf16::INFINITY;
        rows[31 * d + 1] = bf16::from_f32(-3e38);
        let record = encode(format, shape, &rows);
        let values = dequantise(format, shape, &record);
        let bytes: Vec<u8> = rows[..SINK * d]
            .iter()
            .flat_map(|x| x.to_le_bytes())
            .collect();
        assert_eq!(digest(&record[..2 * SINK * d]), digest(&bytes), "{format}");
        let same = |token: usize| {
            let at = token * d..(token + 1) * d;
            at.clone()
                .all(|i| values[i].to_bits() == rows[i].to_f32().to_bits())
        };
        assert!((0..SINK).all(same), "{format} {shape:?}");
        assert!(!(SINK..BLOCK_TOKENS).any(same), "{format} {shape:?}");
    }
}

/// A token of values is quantised by itself: those behind the sink are int2's.
#[test]
fn values_behind_the_sink_are_those_of_int2() {
    for d in [64, 80, 128, 256] {
        let shape = RecordShape::v(d);
        let mut pages = hard_pages(shape);
        pages.push(("page", page(shape, 61)));
        for (name, rows) in pages {
            let values = |format| dequantise(format, shape, &encode(format, shape, &rows));
            let (sink, whole) = (values(FormatId::Int2Sink32), values(FormatId::Int2));
            assert!(sink[SINK * d..] == whole[SINK * d..], "{d} {name}");
        }
    }
}
