//! Parts, epilogues, odd values, sizes and failures.

use super::*;

#[test]
fn memory_is_that_of_the_codes_and_scales() {
    let bits = |format: WeightFormat, inputs, outputs| {
        let bytes = QuantisedMatrix::bytes(format, inputs, outputs).unwrap();
        8.0 * bytes as f64 / (inputs * outputs) as f64
    };
    // Codes, an f16 for each scale and offset, and a factor and some padding for each panel.
    for (format, want) in [
        (INT4, 5.0),
        (INT6, 7.0),
        (E4M3, 8.0),
        (
            WeightFormat {
                has_offsets: false,
                ..INT4
            },
            4.5,
        ),
    ] {
        for (inputs, outputs) in [(1536, 8960), (8960, 1536), (576, 1536)] {
            let got = bits(format, inputs, outputs);
            assert!(got >= want && got < want + 0.12, "{format}: {got}");
        }
    }
}

#[test]
fn what_has_no_layout() {
    let bytes = |format| QuantisedMatrix::bytes(format, 64, 16);
    assert!(bytes(INT4).is_some());
    assert_eq!(bytes(WeightFormat { group: 24, ..INT4 }), None);
    assert_eq!(bytes(WeightFormat { group: 0, ..INT4 }), None);
    let codes = Codes::Int { bits: 9, zero: 0 };
    assert_eq!(bytes(WeightFormat { codes, ..INT4 }), None);
    assert!(bytes(WeightFormat { group: 100, ..INT4 }).is_some());
    assert!(!QuantisedMatrix::can_join(INT4, E4M3));
    assert!(QuantisedMatrix::can_join(INT4, INT6));
}

#[test]
fn parts_of_different_formats_write_their_columns() {
    let mut pool = Pool::new(2).unwrap();
    let inputs = 96;
    let tensors = [(INT4, 40), (E4M3, 9), (INT6, 33)];
    let x = activations(3, 5 * inputs);
    let stride = 40 + 9 + 33;
    let bias = random(4, stride);
    let before = random(8, 5 * stride);
    for dots in DotSet::available() {
        for with_bias in [false, true] {
            let (mut parts, mut first) = (vec![], 0);
            let mut want = vec![0.0; 5 * stride];
            for (seed, (format, outputs)) in tensors.into_iter().enumerate() {
                let tensor = tensor(format, seed as u64, outputs, inputs);
                let part = plain(matrix(&mut pool, &tensor));
                let alone = store(&mut pool, dots, &part, &x);
                for (row, alone) in alone.chunks(outputs).enumerate() {
                    want[row * stride + first..][..outputs].copy_from_slice(alone);
                }
                let weights = Weights::Plain(matrix(&mut pool, &tensor));
                let bias = with_bias.then(|| bias[first..first + outputs].to_vec());
                parts.push(Part::new(first, weights, bias));
                first += outputs;
            }
            let got = multiply(&mut pool, dots, &parts, &x, (stride, false), &before);
            // Nothing is added to sums with a bias.
            let added = (!with_bias)
                .then(|| multiply(&mut pool, dots, &parts, &x, (stride, true), &before));
            for (i, want) in want.iter().enumerate() {
                match &added {
                    None => assert_eq!(got[i], want + bias[i % stride]),
                    Some(added) => {
                        assert_eq!(got[i].to_bits(), want.to_bits(), "{}", dots.name());
                        assert_eq!(added[i], before[i] + want);
                    }
                }
            }
        }
    }
}

#[test]
fn gates() {
    let mut pool = Pool::new(2).unwrap();
    let (inputs, outputs) = (160, 45);
    let x = activations(5, 100 * inputs);
    for (a, b) in [(INT4, INT6), (E4M3, E4M3)] {
        let (gate, up) = (tensor(a, 1, outputs, inputs), tensor(b, 2, outputs, inputs));
        for dots in DotSet::available() {
            let both = [matrix(&mut pool, &gate), matrix(&mut pool, &up)];
            let alone = [&gate, &up].map(|tensor| {
                let part = plain(matrix(&mut pool, tensor));
                store(&mut pool, dots, &part, &x)
            });
            let [gates, ups] = alone;
            let parts = [Part::new(0, Weights::Gated(both), None)];
            let got = store(&mut pool, dots, &parts, &x);
            for (got, (gate, up)) in got.iter().zip(gates.iter().zip(&ups)) {
                let want = f64::from(*gate) / (1.0 + (-f64::from(*gate)).exp()) * f64::from(*up);
                let error = (f64::from(*got) - want).abs();
                assert!(error <= 1e-6 * want.abs() + 1e-30, "{got} {want}");
            }
        }
    }
}

#[test]
fn what_is_filled_again_holds_the_last_only() {
    let mut pool = Pool::new(2).unwrap();
    for codes in all_codes() {
        let format = WeightFormat {
            codes,
            group: 32,
            has_offsets: false,
        };
        let mut matrix = matrix(&mut pool, &tensor(format, 1, 20, 72));
        let last = tensor(format, 2, 20, 72);
        fill(&mut pool, &mut matrix, &last);
        let again = self::matrix(&mut pool, &last);
        let (mut got, mut want) = ([0.0; 72], [0.0; 72]);
        for row in 0..20 {
            matrix.row(row, &mut got);
            again.row(row, &mut want);
            assert_eq!(got, want, "{format}: row {row}");
        }
    }
}

#[test]
fn scales_of_any_size() {
    let mut pool = Pool::new(1).unwrap();
    let inputs = 64;
    // Scales as far apart as f16 can hold in one row, and rows as far apart as f32 can.
    for size in [1e-34f32, 1e-20, 1.0, 1e20, 1e30] {
        let mut all = tensor(INT4, 1, 20, inputs);
        for scale in all.rows_mut(0, 20).scales.chunks_mut(2) {
            (scale[0], scale[1]) = (size, size * 2f32.powi(-20));
        }
        all.rows_mut(0, 20).offsets.fill(size * -0.5);
        let matrix = matrix(&mut pool, &all);
        let (mut got, mut want) = (vec![0.0; inputs], vec![0.0; inputs]);
        for row in 0..20 {
            matrix.row(row, &mut got);
            all.dequantise_row(row, &mut want);
            for (got, want) in got.iter().zip(&want) {
                assert!(
                    (got - want).abs() <= want.abs() * 5e-4 + size * 1e-9,
                    "{got} {want}"
                );
            }
        }
    }
    let mut zeros = PackedTensor::new(INT4, 16, inputs);
    zeros.rows_mut(0, 16).codes.fill(3);
    let parts = plain(matrix(&mut pool, &zeros));
    for dots in DotSet::available() {
        let out = store(&mut pool, dots, &parts, &random(1, inputs));
        assert!(out.iter().all(|x| *x == 0.0));
    }
}

#[test]
fn what_is_not_finite_stays_in_its_row_and_output() {
    let mut pool = Pool::new(2).unwrap();
    let inputs = 96;
    for format in [INT4, INT6, E4M3] {
        let parts = plain(matrix(&mut pool, &tensor(format, 1, 20, inputs)));
        let mut x = random(2, 4 * inputs);
        let clean = x.clone();
        (x[inputs + 40], x[2 * inputs + 90]) = (f32::NAN, f32::INFINITY);
        for dots in DotSet::available() {
            let got = store(&mut pool, dots, &parts, &x);
            let want = store(&mut pool, dots, &parts, &clean);
            assert!(same(&got[..20], &want[..20]) && same(&got[60..], &want[60..]));
            assert!(got[20..60].iter().all(|x| !x.is_finite()), "{format}");
        }
    }
    // A NaN among the codes.
    let mut tensor = tensor(E4M3, 1, 20, inputs);
    tensor.rows_mut(7, 1).codes[50] = 0xff;
    let parts = plain(matrix(&mut pool, &tensor));
    for dots in DotSet::available() {
        let got = store(&mut pool, dots, &parts, &random(2, inputs));
        assert!(got.iter().enumerate().all(|(i, x)| x.is_nan() == (i == 7)));
    }
}

#[test]
fn the_lines_of_the_rows_in_use_are_fetched() {
    let mut pool = Pool::new(1).unwrap();
    let inputs = 576;
    let x = random(1, 64 * inputs);
    let mut quantised = Activations::default();
    // A longer prompt leaves its blocks behind.
    for rows in [64, 1, 3] {
        let on = (&mut pool, Isa::detect());
        quantised.quantise(on, rows, inputs, &x).unwrap();
        for (format, bytes, start) in [
            (INT4, 128 * inputs / 32, None),
            (E4M3, 4 * inputs, Some(x.as_ptr().addr())),
        ] {
            let product = Product {
                rows,
                a: &x,
                quantised: &quantised,
                parts: &plain(matrix(&mut pool, &tensor(format, 1, 16, inputs))),
                stride: 16,
                add: false,
                activation: Activation::Silu,
            };
            let lines: Vec<usize> = product.input_lines().map(|line| line.addr()).collect();
            assert!(lines.windows(2).all(|pair| pair[1] == pair[0] + 64));
            let first = start.unwrap_or(lines[0]);
            let whole = (first + rows * bytes).div_ceil(64) - first / 64;
            assert_eq!((lines[0], lines.len()), (first / 64 * 64, whole.min(512)));
        }
    }
}

#[test]
fn an_error_of_the_source_is_returned() {
    for threads in [1, 3] {
        let mut pool = Pool::new(threads).unwrap();
        let bytes = QuantisedMatrix::bytes(INT4, 32, 1000).unwrap();
        let mut memory = WeightMemory::new(bytes).unwrap();
        let mut matrix = QuantisedMatrix::new(&mut memory, INT4, 32, 1000);
        let filled = matrix.fill(&mut pool, |first, rows| {
            assert!(first % 16 == 0 && rows.codes.len() == 32 * 16.min(1000 - first));
            if first >= 500 { Err("gone") } else { Ok(()) }
        });
        assert_eq!(filled, Ok(Err("gone")));
    }
}

#[test]
fn threads_and_large_batches_change_nothing() {
    let (inputs, outputs) = (80, 300);
    let mut one = Pool::new(1).unwrap();
    let dots = DotSet::of(Isa::detect());
    for format in [INT4, INT6, E4M3] {
        let parts = plain(matrix(&mut one, &tensor(format, 9, outputs, inputs)));
        let x = activations(10, 301 * inputs);
        let want: Vec<f32> = x
            .chunks(inputs)
            .flat_map(|x| store(&mut one, dots, &parts, x))
            .collect();
        for threads in [1, 2, 5] {
            let mut pool = Pool::new(threads).unwrap();
            for rows in [96, 97, 192, 193, 301] {
                let got = store(&mut pool, dots, &parts, &x[..rows * inputs]);
                assert!(
                    same(&got, &want[..rows * outputs]),
                    "{format} {rows} {threads}"
                );
            }
        }
    }
}
