//! Shrinking: which steps are legal, that they are requantisation, and that paths do not matter.

mod formats_support;

use ebb_kernels::bf16;
use ebb_kernels::formats::{
    FormatError, FormatId, RecordShape, ladder, legal_shrink, precision_levels,
};
use ebb_kernels::kv::Side;
use formats_support::{cases, dequantise, encode, hard_pages, page, shrink};
use proptest::prelude::*;

/// The ladder of a side, clipped below int4, the one that is not, and that of keys per token.
fn branches(side: Side) -> Vec<Vec<FormatId>> {
    let clipped: Vec<FormatId> = ladder(side).collect();
    let below = |f: &FormatId| f.nominal_bits() < 4.0;
    let is_by_token = |f: &FormatId| BY_TOKEN.contains(f);
    let others = precision_levels(side).filter(|f| !is_by_token(f));
    let others = others.filter(|f| !below(f) || !clipped.contains(f));
    let mut branches = vec![clipped.clone(), others.collect()];
    if side == Side::K {
        branches.push([&[FormatId::F16], BY_TOKEN].concat());
    }
    branches
}

const BY_TOKEN: &[FormatId] = &[FormatId::Int8t, FormatId::Int4t, FormatId::Int2t];

fn shapes() -> [RecordShape; 6] {
    [
        RecordShape::k(128),
        RecordShape::k(64),
        RecordShape::k(256),
        RecordShape::v(128),
        RecordShape::v(64),
        RecordShape::v(256),
    ]
}

#[test]
fn bytes_and_bits_fall_down_every_ladder() {
    for shape in shapes() {
        for levels in branches(shape.side) {
            assert_eq!(levels[0], FormatId::F16);
            for pair in levels.windows(2) {
                assert!(pair[0].nominal_bits() > pair[1].nominal_bits(), "{pair:?}");
                let bytes = |f: FormatId| f.record_bytes(shape).unwrap();
                assert!(bytes(pair[0]) > bytes(pair[1]));
            }
        }
    }
}

#[test]
fn only_downward_steps_of_one_branch_are_legal() {
    for side in [Side::K, Side::V] {
        let (branches, levels) = (branches(side), precision_levels(side).collect::<Vec<_>>());
        let on_one: Vec<FormatId> = branches.concat();
        assert!(levels.iter().all(|f| on_one.contains(f)), "{levels:?}");
        for &from in FormatId::ALL {
            for &to in FormatId::ALL {
                let below = |branch: &Vec<FormatId>| {
                    let at = |f| branch.iter().position(|r| *r == f);
                    matches!((at(from), at(to)), (Some(from), Some(to)) if from < to)
                };
                let is_static = to.is_legal(side) && !levels.contains(&to);
                let legal = branches.iter().any(below) || from == FormatId::F16 && is_static;
                assert_eq!(
                    legal_shrink(from, to, side),
                    legal,
                    "{side:?} {from} -> {to}"
                );
            }
        }
    }
}

#[test]
fn an_illegal_shrink_is_an_error() {
    let shape = RecordShape::k(64);
    let record = encode(FormatId::Int2, shape, &page(shape, 1));
    let mut out = vec![0; FormatId::Int4.record_bytes(shape).unwrap()];
    let error = FormatId::Int2
        .shrink(FormatId::Int4, shape, &record, &mut out)
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "a keys page cannot shrink from int2 to int4"
    );
    let wrong = FormatId::Int8
        .shrink(FormatId::Int4, shape, &record, &mut out)
        .unwrap_err();
    assert!(matches!(wrong, FormatError::Length { .. }), "{wrong}");
}

/// All ways from the 16-bit rows to a level: encoding it, and every chain of shrinks that ends
/// there.
fn assert_one_result(shape: RecordShape, rows: &[bf16], name: &str) {
    for levels in branches(shape.side) {
        let direct: Vec<Vec<u8>> = levels.iter().map(|f| encode(*f, shape, rows)).collect();
        // By induction over single jumps from the direct result, every chain gives the direct
        // result.
        for to in 1..levels.len() {
            for from in 0..to {
                let got = shrink(levels[from], levels[to], shape, &direct[from]);
                assert!(
                    got == direct[to],
                    "{name} {shape:?}: {} -> {} gives other bytes than encoding",
                    levels[from],
                    levels[to]
                );
            }
        }
    }
}

#[test]
fn every_path_to_a_level_gives_the_same_bytes() {
    for shape in shapes() {
        for seed in 0..8 {
            assert_one_result(shape, &page(shape, seed), "page");
        }
        for (name, rows) in hard_pages(shape) {
            assert_one_result(shape, &rows, name);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// The same, over pages of arbitrary finite fp16-range values with arbitrary magnitudes.
    #[test]
    fn every_path_gives_the_same_bytes_on_any_page(
        seed in any::<u64>(),
        spread in -20i32..14,
        offset in -30000f32..30000.0,
        side in prop_oneof![Just(Side::K), Just(Side::V)],
        head_dim in prop_oneof![Just(64usize), Just(128), Just(256)],
    ) {
        let shape = RecordShape { side, head_dim };
        let mut random = formats_support::Random::new(seed);
        let rows: Vec<bf16> = (0..shape.elements())
            .map(|_| bf16::from_f32(offset + random.normal() * 2f32.powi(spread) / 8.0))
            .collect();
        assert_one_result(shape, &rows, "random");
    }
}

#[test]
fn a_static_format_is_reached_from_16_bit_as_encoding_reaches_it() {
    for (format, shape) in cases() {
        if legal_shrink(FormatId::F16, format, shape.side) {
            let rows = page(shape, 7);
            let wide = encode(FormatId::F16, shape, &rows);
            let got = shrink(FormatId::F16, format, shape, &wide);
            assert!(got == encode(format, shape, &rows), "{format} {shape:?}");
        }
    }
}

/// Pages whose 8-bit codes are known: every group spans exactly 0..=255 in steps of one.
fn all_codes_page(shape: RecordShape) -> Vec<bf16> {
    let d = shape.head_dim;
    let group_len = if shape.side == Side::K { 128 } else { d };
    let at = |token: usize, channel: usize| match shape.side {
        Side::K => (channel, token),
        Side::V => (token, channel),
    };
    (0..shape.elements())
        .map(|i| {
            let (group, index) = at(i / d, i % d);
            // Two fixed ends, and the rest of the group walks on through all codes.
            let code = match index {
                0 => 0,
                1 => 255,
                _ => (group * (group_len - 2) + index - 2) % 256,
            };
            bf16::from_f32(code as f32)
        })
        .collect()
}

#[test]
fn a_shrink_is_requantisation_on_all_codes() {
    for shape in shapes() {
        let rows = all_codes_page(shape);
        let mut seen = [false; 256];
        rows.iter().for_each(|x| seen[x.to_f32() as usize] = true);
        assert!(seen.iter().all(|s| *s), "the page holds every 8-bit code");

        let eight = encode(FormatId::Int8, shape, &rows);
        let exact: Vec<f32> = rows.iter().map(|x| x.to_f32()).collect();
        assert_eq!(dequantise(FormatId::Int8, shape, &eight), exact);

        // Requantised: the dequantised value in steps of the next level, rounded half up.
        let requantised = |values: &[f32], step: f32| -> Vec<f32> {
            values
                .iter()
                .map(|x| (x / step + 0.5).floor() * step)
                .collect()
        };
        let four = shrink(FormatId::Int8, FormatId::Int4, shape, &eight);
        let at_four = requantised(&exact, 17.0);
        assert_eq!(dequantise(FormatId::Int4, shape, &four), at_four);
        let two = shrink(FormatId::Int4, FormatId::Int2, shape, &four);
        assert_eq!(
            dequantise(FormatId::Int2, shape, &two),
            requantised(&at_four, 85.0)
        );
    }
}

/// The same of keys per token, whose page is one of values turned on its side: channels are a
/// token's group.
#[test]
fn a_shrink_of_keys_by_token_is_requantisation_on_all_codes() {
    for head_dim in [64, 128, 256] {
        let rows = all_codes_page(RecordShape::v(head_dim));
        let shape = RecordShape::k(head_dim);
        let exact: Vec<f32> = rows.iter().map(|x| x.to_f32()).collect();
        let mut record = encode(FormatId::F16, shape, &rows);
        let mut want = exact;
        for (pair, step) in [
            FormatId::F16,
            FormatId::Int8t,
            FormatId::Int4t,
            FormatId::Int2t,
        ]
        .windows(2)
        .zip([1.0, 17.0, 85.0])
        {
            record = shrink(pair[0], pair[1], shape, &record);
            for x in &mut want {
                *x = (*x / step + 0.5f32).floor() * step;
            }
            assert_eq!(dequantise(pair[1], shape, &record), want, "{}", pair[1]);
        }
    }
}

#[test]
fn a_kitty_page_is_int4_in_its_boosted_channels_and_int2_elsewhere() {
    for shape in [RecordShape::k(128), RecordShape::k(64)] {
        let d = shape.head_dim;
        let rows = page(shape, 12);
        let values = |format| dequantise(format, shape, &encode(format, shape, &rows));
        let four = values(FormatId::Int4);
        let loudness = |c: usize| -> f64 {
            let column = four.iter().skip(c).step_by(d);
            column.map(|x| f64::from(x.abs())).sum()
        };
        for (format, share, two) in [
            (FormatId::Kitty25, 4, FormatId::Int2),
            (FormatId::Kitty12, 8, FormatId::Int2),
            (FormatId::Kitty25c, 4, FormatId::Int2c),
            (FormatId::Kitty12c, 8, FormatId::Int2c),
        ] {
            let (kitty, two) = (values(format), values(two));
            let like = |c: usize, page: &[f32]| {
                kitty
                    .iter()
                    .zip(page)
                    .skip(c)
                    .step_by(d)
                    .all(|(a, b)| a == b)
            };
            let (boosted, others): (Vec<usize>, Vec<usize>) = (0..d).partition(|c| like(*c, &four));
            assert_eq!(boosted.len(), d / share, "{format}");
            assert!(others.iter().all(|c| like(*c, &two)), "{format}");
            let quietest = boosted
                .iter()
                .map(|c| loudness(*c))
                .fold(f64::INFINITY, f64::min);
            assert!(others.iter().all(|c| loudness(*c) <= quietest), "{format}");
        }
    }
}

#[test]
fn metadata_is_written_once_unless_clipped() {
    for shape in shapes() {
        let rows = page(shape, 11);
        let groups = if shape.side == Side::K {
            shape.head_dim
        } else {
            128
        };
        for low in &branches(shape.side)[1..] {
            let low = &low[1..];
            let groups = if low == BY_TOKEN { 128 } else { groups };
            let first = encode(low[0], shape, &rows);
            for format in &low[1..] {
                let record = encode(*format, shape, &rows);
                assert_eq!(
                    record[..4 * groups],
                    first[..4 * groups],
                    "{format} {shape:?}"
                );
            }
        }
    }
}
