//! The formats against a second implementation, against fixed digests, and against their tables.

mod formats_support;

use ebb_kernels::BLOCK_TOKENS;
use ebb_kernels::formats::order::Plane;
use ebb_kernels::formats::{FormatId, RecordShape};
use ebb_kernels::kv::Side;
use formats_support::{cases, decode, digest, encode, hard_pages, oracle, page};

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
            let values = decode(format, shape, &record);
            assert!(
                values == naive.values(),
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
        assert_eq!(decode(FormatId::F16, shape, &record), exact);
    }
}

/// Digests of the records of one fixed page. A change of any of them is a change of what pages look
/// like in memory, and of what every other device must produce.
const GOLDEN: &[(&str, Side, usize, u64)] = &[
    ("f16", Side::K, 64, 0xe3c89cf45591447b),
    ("f16", Side::K, 128, 0x83cd3b0603577e38),
    ("f16", Side::V, 64, 0xe3c89cf45591447b),
    ("f16", Side::V, 128, 0x83cd3b0603577e38),
    ("int8", Side::K, 64, 0x4761b7ae1b865050),
    ("int8", Side::K, 128, 0xc761245ef2fb681f),
    ("int8", Side::V, 64, 0xf3a2ab6e18e783cd),
    ("int8", Side::V, 128, 0x9a557fb6641424f8),
    ("int4", Side::K, 64, 0xaac274f96fc4836b),
    ("int4", Side::K, 128, 0x0f1e41725678c362),
    ("int4", Side::V, 64, 0xd3789487e4f515ec),
    ("int4", Side::V, 128, 0x6515e0e4a066bed3),
    ("kitty25c", Side::K, 64, 0x963a373a4a401ae5),
    ("kitty25c", Side::K, 128, 0x2b677f4ca7ac5ec1),
    ("kitty12c", Side::K, 64, 0xcfd0b659b6ee7ac4),
    ("kitty12c", Side::K, 128, 0x90f644790759c96d),
    ("int2c", Side::K, 64, 0xd5245681d1bd8196),
    ("int2c", Side::K, 128, 0xccd78e07a2813c5a),
    ("int2c", Side::V, 64, 0x4deed380899368bc),
    ("int2c", Side::V, 128, 0x2a274ba785f4f0b6),
    ("kitty25", Side::K, 64, 0x02bb6eb47ff96875),
    ("kitty25", Side::K, 128, 0x17965c15b9bc88d0),
    ("kitty12", Side::K, 64, 0x99b11bdb456751f9),
    ("kitty12", Side::K, 128, 0x096b9e739bc7946c),
    ("int2", Side::K, 64, 0xe7cd5027b8f78b6a),
    ("int2", Side::K, 128, 0xda91e2bd440009ca),
    ("int2", Side::V, 64, 0x17bcf27ba8c579a3),
    ("int2", Side::V, 128, 0x3c1767424d3524fa),
    ("int3", Side::K, 64, 0xcc4a080ab8035cd6),
    ("int3", Side::K, 128, 0x56a01f28676c81e4),
    ("int3", Side::V, 64, 0x046773eed3e04913),
    ("int3", Side::V, 128, 0x0e39004a8b39b030),
    ("int2g32", Side::K, 64, 0x362cb5d557922144),
    ("int2g32", Side::K, 128, 0x42f003db0608b3d0),
    ("int2g32", Side::V, 64, 0x4738fbb972a84544),
    ("int2g32", Side::V, 128, 0xe7355f095c03244e),
    ("kvmix11", Side::K, 64, 0x22c6b1789412595b),
    ("kvmix11", Side::K, 128, 0xea16d75a8121fb94),
    ("kvmix11", Side::V, 64, 0xf3c1f328b6adc226),
    ("kvmix11", Side::V, 128, 0xeecf897e26da8988),
    ("int4g32", Side::K, 64, 0x45fd5067be854298),
    ("int4g32", Side::K, 128, 0x802282a207fc9bca),
    ("int4g32", Side::V, 64, 0x6e8df068b94bf041),
    ("int4g32", Side::V, 128, 0x9a5ce625a7be3085),
    ("polar44", Side::K, 64, 0x55f84a59263f11f8),
    ("polar44", Side::K, 128, 0xad0295d3cf3190e7),
    ("polar42", Side::K, 64, 0x60695534d8a7a5dd),
    ("polar42", Side::K, 128, 0x491c638c1540b7ac),
    ("polar44grid", Side::K, 64, 0x228e386921a2b002),
    ("polar44grid", Side::K, 128, 0x8f4345f21d09aa45),
    ("int4t", Side::K, 64, 0xa4f31736a760a72b),
    ("int4t", Side::K, 128, 0x1bdf5653d2532b20),
    ("int2t", Side::K, 64, 0x3e1a83333203ee1c),
    ("int2t", Side::K, 128, 0x70514f1499f5945d),
    ("kitty25var", Side::K, 64, 0xd967dac9580177ec),
    ("kitty25var", Side::K, 128, 0x9f8ed99232f7876e),
    ("kitty12var", Side::K, 64, 0x749cd7b2ab3b6076),
    ("kitty12var", Side::K, 128, 0x418583758d07e358),
    ("kitty25rnd", Side::K, 64, 0xcd161db92da537da),
    ("kitty25rnd", Side::K, 128, 0xa25580e2186ef60a),
    ("kitty12rnd", Side::K, 64, 0xc999f0bb1a741ab2),
    ("kitty12rnd", Side::K, 128, 0x424be57c9be93426),
    ("int4shr", Side::K, 64, 0x65aacb175eecde9c),
    ("int4shr", Side::K, 128, 0xd098a99f2f693924),
    ("int4shr", Side::V, 64, 0x45735b06ea96fd6b),
    ("int4shr", Side::V, 128, 0x2892fd56e065d3d3),
    ("int2shr", Side::K, 64, 0x5a740584637bcbde),
    ("int2shr", Side::K, 128, 0xc3fb22e3922a7511),
    ("int2shr", Side::V, 64, 0x1a595efd44ca40bc),
    ("int2shr", Side::V, 128, 0xc1461ee58c4db094),
    ("int4rsh", Side::K, 64, 0x80017dfc811d261b),
    ("int4rsh", Side::K, 128, 0xfd79f37d36e2eab2),
    ("int4rsh", Side::V, 64, 0xd34b710a78f660e0),
    ("int4rsh", Side::V, 128, 0xbb0cc938ee3f6d03),
    ("int2rsh", Side::K, 64, 0x8c8d2112592e1f5c),
    ("int2rsh", Side::K, 128, 0xfc58788c00e243fa),
    ("int2rsh", Side::V, 64, 0xaf9374a57231df06),
    ("int2rsh", Side::V, 128, 0xc3898d32bf57f7f7),
];

#[test]
fn golden_bytes() {
    let mut actual = vec![];
    for (format, shape) in cases() {
        if matches!(shape.head_dim, 64 | 128) {
            let record = encode(format, shape, &page(shape, 1234));
            actual.push((format.name(), shape.side, shape.head_dim, digest(&record)));
        }
    }
    let table: String = actual
        .iter()
        .map(|(name, side, d, digest)| {
            format!("    (\"{name}\", Side::{side:?}, {d}, {digest:#018x}),\n")
        })
        .collect();
    assert!(actual == GOLDEN, "the table of this build is\n{table}");
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

/// Stored bits per element at head_dim 128 and 64, as the design states them.
#[test]
fn bits_per_element() {
    let table = [
        ("f16", Side::K, 16.0, 16.0),
        ("f16", Side::V, 16.0, 16.0),
        ("int8", Side::K, 8.25, 8.25),
        ("int8", Side::V, 8.25, 8.5),
        ("int4", Side::K, 4.25, 4.25),
        ("int4", Side::V, 4.25, 4.5),
        ("kitty25c", Side::K, 2.8125, 2.8125),
        ("kitty12c", Side::K, 2.5625, 2.5625),
        ("int2c", Side::K, 2.25, 2.25),
        ("int2c", Side::V, 2.25, 2.5),
        ("int2", Side::K, 2.25, 2.25),
        ("int2", Side::V, 2.25, 2.5),
        ("int3", Side::K, 3.25, 3.25),
        ("int3", Side::V, 3.25, 3.5),
        ("kitty25", Side::K, 2.8125, 2.8125),
        ("kitty12", Side::K, 2.5625, 2.5625),
        ("polar44", Side::K, 4.25, 4.25),
        ("polar42", Side::K, 3.25, 3.25),
        ("polar44grid", Side::K, 4.125, 4.125),
        ("int4t", Side::K, 4.25, 4.5),
        ("int2t", Side::K, 2.25, 2.5),
        ("int2g32", Side::K, 3.0, 3.0),
        ("int2g32", Side::V, 3.0, 3.0),
        ("kvmix11", Side::K, 4.0, 4.0),
        ("kvmix11", Side::V, 4.0, 4.0),
        ("int4g32", Side::K, 5.0, 5.0),
        ("int4g32", Side::V, 5.0, 5.0),
        ("kitty25var", Side::K, 2.8125, 2.8125),
        ("kitty12var", Side::K, 2.5625, 2.5625),
        ("kitty25rnd", Side::K, 2.8125, 2.8125),
        ("kitty12rnd", Side::K, 2.5625, 2.5625),
        ("int4shr", Side::K, 4.25, 4.25),
        ("int4shr", Side::V, 4.25, 4.5),
        ("int2shr", Side::K, 2.25, 2.25),
        ("int2shr", Side::V, 2.25, 2.5),
        ("int4rsh", Side::K, 4.25, 4.25),
        ("int4rsh", Side::V, 4.25, 4.5),
        ("int2rsh", Side::K, 2.25, 2.25),
        ("int2rsh", Side::V, 2.25, 2.5),
    ];
    let mut listed = 0;
    for &format in FormatId::ALL {
        for side in [Side::K, Side::V] {
            let row = table
                .iter()
                .find(|row| row.0 == format.name() && row.1 == side);
            assert_eq!(row.is_some(), format.is_legal(side), "{format} {side:?}");
            if let Some((_, _, at_128, at_64)) = row {
                let bits = |head_dim| format.stored_bits(RecordShape { side, head_dim }).unwrap();
                assert_eq!(
                    (bits(128), bits(64)),
                    (*at_128, *at_64),
                    "{format} {side:?}"
                );
                listed += 1;
            }
        }
    }
    assert_eq!(listed, table.len());
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
