//! The formats against a second implementation, against fixed digests, and against their tables.

mod formats_support;

use ebb_kernels::BLOCK_TOKENS;
use ebb_kernels::formats::order::Plane;
use ebb_kernels::formats::{FormatId, RecordShape};
use formats_support::{cases, dequantise, digest, encode, hard_pages, oracle, page};

#[test]
fn records_and_values_are_those_of_the_naive_codec() {
    let mut covered = 0;
    for (format, shape) in cases() {
        let mut pages = hard_pages(shape);
        pages.push(("page", page(shape, 21)));
        for (name, rows) in pages {
            let Some(naive) = oracle::quantise(format, shape, &rows) else {
                continue;
            };
            let record = encode(format, shape, &rows);
            assert!(
                record == naive.record(format),
                "{format} {shape:?} {name}: bytes"
            );
            let values = dequantise(format, shape, &record);
            let near = |(got, (want, by)): (&f32, (f32, f32))| (got - want).abs() <= by;
            assert!(
                values.iter().zip(naive.values()).all(near),
                "{format} {shape:?} {name}: values"
            );
            covered += 1;
        }
    }
    assert!(covered > 500, "only {covered} pages compared");
}

#[test]
fn sixteen_bit_pages_are_the_rows() {
    for shape in [RecordShape::k(64), RecordShape::v(128), RecordShape::k(8)] {
        let rows = page(shape, 22);
        let record = encode(FormatId::F16, shape, &rows);
        let bytes: Vec<u8> = rows.iter().flat_map(|x| x.to_le_bytes()).collect();
        assert_eq!(record, bytes);
        let exact: Vec<f32> = rows.iter().map(|x| x.to_f32()).collect();
        assert_eq!(dequantise(FormatId::F16, shape, &record), exact);
    }
}

/// What a format's folder says of its records at head_dim 64 and 128, in golden.csv: the bits that
/// an element takes, and the digest of the record of one fixed page. A change of a digest is a
/// change of what pages look like in memory, and of what every other device must produce.
fn golden(format: FormatId) -> String {
    let mut table = "side,head_dim,bits_per_element,digest\n".to_owned();
    for (_, shape) in cases().into_iter().filter(|(f, _)| *f == format) {
        if matches!(shape.head_dim, 64 | 128) {
            let bits = format.stored_bits(shape).unwrap();
            let digest = digest(&encode(format, shape, &page(shape, 1234)));
            let (side, head_dim) = (shape.side, shape.head_dim);
            table += &format!("{side:?},{head_dim},{bits:?},{digest:#018x}\n");
        }
    }
    table
}

#[test]
fn golden_bytes_and_bits_per_element() {
    for &format in FormatId::ALL {
        let file = format!(
            "{}/{}/golden.csv",
            env!("CARGO_MANIFEST_DIR"),
            format.folder()
        );
        let want = std::fs::read_to_string(&file).unwrap_or_default();
        let got = golden(format);
        assert!(got == want, "{file}: of this build it is\n{got}");
    }
}

/// Polar codes against the library's angles in f64: equal, but where a value lies on a cell's edge.
#[test]
fn polar_codes_are_the_floors_of_the_papers_formula() {
    for (name, radius_bits) in [("polar44", 4u32), ("polar42", 2)] {
        for head_dim in [64, 128] {
            let shape = RecordShape::k(head_dim);
            let (format, pairs) = (name.parse().unwrap(), head_dim / 2);
            let rows = page(shape, 23);
            let record: Vec<u8> = encode(format, shape, &rows);
            let half =
                |i: usize| f64::from(half::f16::from_le_bytes([record[2 * i], record[2 * i + 1]]));
            let planes = &record[8 * pairs..];
            let (angles, radii) = planes.split_at(BLOCK_TOKENS * pairs / 2);
            let mut on_edge = 0;
            for (quantity, (plane, bits)) in
                [(angles, 4), (radii, radius_bits)].into_iter().enumerate()
            {
                let order = Plane {
                    rows: BLOCK_TOKENS,
                    cols: pairs,
                    bits,
                };
                for i in 0..BLOCK_TOKENS * pairs {
                    let (token, pair) = (i / pairs, i % pairs);
                    let x = f64::from(rows[token * head_dim + pair]);
                    let y = f64::from(rows[token * head_dim + pair + pairs]);
                    let value = match quantity {
                        0 => y.atan2(x).rem_euclid(std::f64::consts::TAU),
                        _ => x.hypot(y),
                    };
                    let zero = half(2 * quantity * pairs + pair);
                    let range = half((2 * quantity + 1) * pairs + pair);
                    let cells = (value - zero) / range * f64::from(1 << bits);
                    let at = order.place(token, pair);
                    let word: [u8; 4] = plane[4 * at.word..4 * at.word + 4].try_into().unwrap();
                    let code = u32::from_le_bytes(word) >> at.shift & ((1 << bits) - 1);
                    if (cells - cells.round()).abs() < 1e-4 {
                        on_edge += 1;
                    } else {
                        assert_eq!(
                            f64::from(code),
                            cells.floor(),
                            "{name} token {token} pair {pair}"
                        );
                    }
                }
            }
            assert!(on_edge < 200, "{on_edge} values on an edge");
        }
    }
}

/// Kitty's own record sizes at head_dim 128: 5760 bytes with a quarter boosted, 5248 with an
/// eighth.
#[test]
fn kitty_records_have_the_papers_sizes() {
    let bytes = |name: &str| {
        let format: FormatId = name.parse().unwrap();
        format.record_bytes(RecordShape::k(128)).unwrap()
    };
    assert_eq!((bytes("kitty25"), bytes("kitty12")), (5760, 5248));
}

/// Channels drawn at random are as many as Kitty boosts, others on every page, and the same ones
/// again for the same page.
#[test]
fn random_channels_differ_from_page_to_page() {
    let shape = RecordShape::k(64);
    let index_of = |seed| -> Vec<u8> {
        let record = encode(FormatId::Kitty25Random, shape, &page(shape, seed));
        // Behind zeros, ranges and the low plane.
        record[4 * 64 + BLOCK_TOKENS * 64 / 4..][..64].to_vec()
    };
    let first = index_of(1);
    assert_eq!(first, index_of(1));
    let mut times = [0; 64];
    for seed in 0..64 {
        let index = index_of(seed);
        let mut ranks: Vec<u8> = index.iter().copied().filter(|rank| *rank < 16).collect();
        ranks.sort_unstable();
        assert_eq!(ranks, (0..16).collect::<Vec<u8>>());
        assert!(index.iter().all(|rank| *rank <= 16));
        for (times, rank) in times.iter_mut().zip(&index) {
            *times += u32::from(*rank < 16);
        }
    }
    // 16 of 64 on average; no channel always, none never.
    assert!(times.iter().all(|t| (4..32).contains(t)), "{times:?}");
}
