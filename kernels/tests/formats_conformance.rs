//! What every format of the registry must do.

mod formats_support;

use ebb_kernels::formats::{FormatError, FormatId, RecordShape};
use ebb_kernels::kv::Side;
use ebb_kernels::{BLOCK_TOKENS, bf16};
use formats_support::{cases, dequantise, encode, hard_pages, page};

#[test]
fn names_parse_back_and_the_unknown_is_refused() {
    for &format in FormatId::ALL {
        assert_eq!(format.name().parse(), Ok(format));
        assert_eq!(format.to_string(), format.name());
    }
    let error = "int9".parse::<FormatId>().unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("'int9'") && text.contains("f16, int8, int4"),
        "{text}"
    );
    assert!("INT4".parse::<FormatId>().is_err() && "".parse::<FormatId>().is_err());
}

#[test]
fn records_are_multiples_of_16_bytes() {
    for (format, shape) in cases() {
        assert_eq!(
            format.record_bytes(shape).unwrap() % 16,
            0,
            "{format} {shape:?}"
        );
    }
}

#[test]
fn every_byte_of_a_record_is_written_and_depends_on_the_rows_alone() {
    for (format, shape) in cases() {
        let rows = page(shape, 1);
        let mut other = vec![0; format.record_bytes(shape).unwrap()];
        format.encode(shape, &rows, &mut other).unwrap();
        assert_eq!(encode(format, shape, &rows), other, "{format} {shape:?}");
    }
}

#[test]
fn any_token_range_dequantises_as_the_whole_does() {
    for (format, shape) in cases() {
        let record = encode(format, shape, &page(shape, 2));
        let whole = dequantise(format, shape, &record);
        for start in (0..=BLOCK_TOKENS).step_by(16) {
            for end in (start..=BLOCK_TOKENS).step_by(16) {
                let want = &whole[start * shape.head_dim..end * shape.head_dim];
                let mut got = vec![f32::NAN; want.len()];
                format
                    .dequantise_tokens(shape, &record, start..end, &mut got)
                    .unwrap();
                assert_eq!(got, want, "{format} {shape:?} {start}..{end}");
            }
        }
    }
}

/// Polar formats keep angles in fp16 and cannot.
fn keeps_constants(format: FormatId) -> bool {
    !format.name().starts_with("polar")
}

#[test]
fn constant_groups_dequantise_exactly() {
    let representable = [
        0.0,
        1.0,
        -1.0,
        0.33203125,
        -510.0,
        65280.0,
        -65280.0,
        6.1035156e-5,
        5.9604645e-8,
    ];
    for (format, shape) in cases().into_iter().filter(|(f, _)| keeps_constants(*f)) {
        for constant in representable {
            assert_eq!(
                bf16::from_f32(constant).to_f32(),
                constant,
                "the test's own constant"
            );
            let rows = vec![bf16::from_f32(constant); shape.elements()];
            let values = dequantise(format, shape, &encode(format, shape, &rows));
            assert!(
                values.iter().all(|x| *x == constant),
                "{format} {shape:?} {constant}"
            );
        }
    }
}

#[test]
fn a_constant_group_beside_others_dequantises_exactly() {
    for (format, shape) in cases().into_iter().filter(|(f, _)| keeps_constants(*f)) {
        let d = shape.head_dim;
        let mut rows = page(shape, 3);
        let constant = bf16::from_f32(-2.75);
        // Channel 9 and token 40 at once: whichever way the format groups, one is a whole group.
        for token in 0..BLOCK_TOKENS {
            rows[token * d + 9] = constant;
        }
        rows[40 * d..41 * d].fill(constant);
        let values = dequantise(format, shape, &encode(format, shape, &rows));
        let channel = (0..BLOCK_TOKENS).all(|t| values[t * d + 9] == -2.75);
        let token = values[40 * d..41 * d].iter().all(|x| *x == -2.75);
        assert!(channel || token, "{format} {shape:?}");
    }
}

#[test]
fn what_is_not_finite_is_an_error_that_says_where() {
    for (format, shape) in cases() {
        for bad in [bf16::INFINITY, bf16::NEG_INFINITY, bf16::NAN, -bf16::NAN] {
            let mut rows = page(shape, 4);
            let (token, channel) = (77, shape.head_dim - 3);
            rows[token * shape.head_dim + channel] = bad;
            let mut record = vec![0; format.record_bytes(shape).unwrap()];
            let result = format.encode(shape, &rows, &mut record);
            if format == FormatId::F16 {
                // 16-bit pages are the model's own rows, whatever they hold.
                assert_eq!(result, Ok(()));
                continue;
            }
            let error = result.unwrap_err();
            let place = format!("token {token}, channel {channel} ");
            assert!(error.to_string().contains(&place), "{format}: {error}");
            assert!(
                matches!(error, FormatError::NonFinite { token: 77, .. }),
                "{format}: {error}"
            );
        }
    }
}

#[test]
fn values_and_ranges_beyond_fp16_are_errors() {
    for (format, shape) in cases().into_iter().filter(|(f, _)| *f != FormatId::F16) {
        let mut record = vec![0; format.record_bytes(shape).unwrap()];
        for value in [65536.0, -65536.0, 3e38, -3e38] {
            let mut rows = page(shape, 5);
            rows[33 * shape.head_dim + 2] = bf16::from_f32(value);
            let error = format.encode(shape, &rows, &mut record).unwrap_err();
            assert!(
                matches!(
                    error,
                    FormatError::BeyondFp16 {
                        token: 33,
                        channel: 2,
                        ..
                    }
                ),
                "{format}: {error}"
            );
        }
        // Both ends are within fp16, the distance is not.
        let signs = |i: usize| {
            if (i + i / shape.head_dim).is_multiple_of(2) {
                60160.0
            } else {
                -60160.0
            }
        };
        let rows: Vec<bf16> = (0..shape.elements())
            .map(|i| bf16::from_f32(signs(i)))
            .collect();
        let error = format.encode(shape, &rows, &mut record).unwrap_err();
        assert!(
            matches!(
                error,
                FormatError::RangeBeyondFp16 { .. } | FormatError::RadiusBeyondFp16 { .. }
            ),
            "{format} {shape:?}: {error}"
        );
    }
}

#[test]
fn hard_pages_stay_finite() {
    for (format, shape) in cases() {
        for (name, rows) in hard_pages(shape) {
            let values = dequantise(format, shape, &encode(format, shape, &rows));
            assert!(
                values.iter().all(|x| x.is_finite()),
                "{format} {shape:?} {name}"
            );
        }
    }
}

/// A record from outside may hold anything; dequantising it is finite work without a panic.
#[test]
fn any_bytes_dequantise() {
    for (format, shape) in cases() {
        for fill in [0x00, 0xFF, 0x7B, 0x81] {
            let record = vec![fill; format.record_bytes(shape).unwrap()];
            dequantise(format, shape, &record);
        }
    }
}

#[test]
fn misuse_is_an_error_that_names_the_format() {
    let (format, shape) = (FormatId::Int4, RecordShape::k(64));
    let mut record = vec![0; format.record_bytes(shape).unwrap()];
    let short = format
        .encode(shape, &page(shape, 6)[1..], &mut record)
        .unwrap_err();
    assert_eq!(
        short.to_string(),
        "the rows (elements) of a int4 page must hold 8192, got 8191"
    );
    record.push(0);
    assert!(matches!(
        format.encode(shape, &page(shape, 6), &mut record),
        Err(FormatError::Length {
            expected: 4352,
            got: 4353,
            ..
        })
    ));
    record.pop();
    let mut out = vec![0.0; 16 * 64];
    for range in [8..24, 0..15, 128..144, 0..0x1_0000_0000] {
        let error = format
            .dequantise_tokens(shape, &record, range, &mut out)
            .unwrap_err();
        assert!(matches!(error, FormatError::TokenRange { .. }), "{error}");
    }
    let reversed = std::ops::Range { start: 32, end: 16 };
    assert!(
        format
            .dequantise_tokens(shape, &record, reversed, &mut out)
            .is_err()
    );
    assert!(matches!(
        format.record_bytes(RecordShape {
            side: Side::V,
            head_dim: 72
        }),
        Err(FormatError::HeadDim { head_dim: 72, .. })
    ));
    assert!(format.record_bytes(RecordShape::k(0)).is_err());
}
