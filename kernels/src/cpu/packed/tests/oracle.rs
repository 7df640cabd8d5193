//! Every format against f64.

use super::*;

/// What a product should be, per output, and how far off it may be.
struct Expected {
    /// With activations quantised as the product quantises them.
    quantised: Vec<f64>,
    tight: Vec<f64>,
    /// With the activations and the weights as they are.
    plain: Vec<f64>,
    loose: Vec<f64>,
}

fn expected(
    tensor: &PackedTensor,
    matrix: &QuantisedMatrix,
    x: &[f32],
    is_float: bool,
) -> Expected {
    let (inputs, format) = (tensor.inputs(), tensor.format());
    // Half a step of each input's block, and its value on that grid.
    let mut steps = vec![0.0; inputs];
    let mut on_grid: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
    if !is_float {
        for (block, x) in x.chunks(32).enumerate() {
            let most = x.iter().fold(0.0f32, |most, x| most.max(x.abs()));
            for (at, x) in x.iter().enumerate() {
                // As `quantise` rounds, in f32.
                let steps_of_x = x * (127.0 / most);
                let coarse = steps_of_x.round_ties_even();
                let fine = ((steps_of_x - coarse) * 254.0).round_ties_even();
                let code = 254.0 * f64::from(coarse) + f64::from(fine);
                on_grid[block * 32 + at] = code * f64::from(most / (127.0 * 254.0));
                // And what dividing rounds.
                steps[block * 32 + at] = f64::from(most) / (2.0 * 127.0 * 254.0) * 1.01;
            }
        }
    }
    let mut all = Expected {
        quantised: vec![],
        tight: vec![],
        plain: vec![],
        loose: vec![],
    };
    let (mut packed, mut exact) = (vec![0.0; inputs], vec![0.0; inputs]);
    for output in 0..tensor.rows() {
        matrix.row(output, &mut packed);
        tensor.dequantise_row(output, &mut exact);
        let offsets = tensor.offsets(output);
        let (mut quantised, mut plain, mut sizes, mut loose) = (0.0, 0.0, 0.0, 0.0);
        for i in 0..inputs {
            let (w, want) = (f64::from(packed[i]), f64::from(exact[i]));
            let offset = offsets.get(i / format.group).copied().unwrap_or(0.0);
            // The scale's part and the offset's, which may cancel.
            let size = want.abs() + 2.0 * f64::from(offset).abs();
            // f16 rounds scales and offsets by 2^-11 at most.
            let rounding = size * 0.5f64.powi(11);
            assert!(
                (w - want).abs() <= rounding * 1.001,
                "{format} {output} {i}: {w} {want}"
            );
            quantised += on_grid[i] * w;
            plain += f64::from(x[i]) * want;
            sizes += on_grid[i].abs() * size;
            // Every activation may be off by half a step, and every weight by its rounding.
            loose += steps[i] * want.abs() + (f64::from(x[i]).abs() + steps[i]) * rounding;
        }
        all.quantised.push(quantised);
        // Sums of f32: each of some 20 to 300 additions rounds by 2^-24 of a partial sum.
        all.tight.push(3e-6 * sizes + 1e-30);
        all.plain.push(plain);
        all.loose.push(loose + 3e-6 * sizes + 1e-30);
    }
    all
}

fn check(pool: &mut Pool, format: WeightFormat, outputs: usize, inputs: usize) {
    const ROWS: usize = 100;
    let tensor = tensor(format, 5, outputs, inputs);
    let matrix = matrix(pool, &tensor);
    let x = activations(6, ROWS * inputs);
    let is_float = format.codes == Codes::E4M3;
    let of_rows = x
        .chunks(inputs)
        .map(|x| expected(&tensor, &matrix, x, is_float));
    let of_rows: Vec<_> = of_rows.collect();
    let parts = plain(matrix);
    let mut first: Option<Vec<f32>> = None;
    for dots in DotSet::available() {
        let what = format!("{} {format} {outputs} of {inputs}", dots.name());
        let all = store(pool, dots, &parts, &x);
        for (row, (got, want)) in all.chunks(outputs).zip(&of_rows).enumerate() {
            for (at, got) in got.iter().enumerate() {
                let got = f64::from(*got);
                let error = (got - want.quantised[at]).abs();
                let what = || format!("{what}: row {row}, output {at}: {got}");
                assert!(
                    error <= want.tight[at],
                    "{}, expected {}",
                    what(),
                    want.quantised[at]
                );
                let error = (got - want.plain[at]).abs();
                assert!(
                    error <= want.loose[at],
                    "{}, plain {}",
                    what(),
                    want.plain[at]
                );
            }
        }
        // Instruction sets agree to the bit, and a row has the same bits in every batch.
        assert!(
            same(first.get_or_insert_with(|| all.clone()), &all),
            "{what}"
        );
        for rows in [1, 3, 17] {
            let begin = ROWS - rows;
            let some = store(pool, dots, &parts, &x[begin * inputs..]);
            assert!(same(&some, &all[begin * outputs..]), "{what}: {rows} rows");
        }
    }
}

fn check_groups(codes: Codes) {
    let mut pool = Pool::new(2).unwrap();
    // 576 is 18 blocks, more than a stretch.
    for group in [16, 32, 48, 64, 128, 576] {
        for has_offsets in [false, true] {
            let format = WeightFormat {
                codes,
                group,
                has_offsets,
            };
            check(&mut pool, format, 45, 576);
        }
    }
    // A row that is no whole block, groups that end within one, and outputs on both sides of a
    // panel and of a pair of them.
    for (outputs, inputs, group) in [
        (1, 7, 7),
        (15, 52, 52),
        (16, 200, 16),
        (17, 200, 32),
        (33, 72, 48),
        (32, 1040, 128),
    ] {
        let format = WeightFormat {
            codes,
            group,
            has_offsets: true,
        };
        check(&mut pool, format, outputs, inputs);
    }
}

macro_rules! formats {
    ($($name:ident: $codes:expr,)*) => {
        $(#[test]
        fn $name() {
            check_groups($codes);
        })*

        #[test]
        fn every_kind_of_codes_has_its_test() {
            assert_eq!(all_codes(), [$($codes),*]);
        }
    };
}

formats! {
    int2: Codes::Int { bits: 2, zero: 2 },
    int3: Codes::Int { bits: 3, zero: 4 },
    int4: Codes::Int { bits: 4, zero: 8 },
    int5: Codes::Int { bits: 5, zero: 16 },
    int6: Codes::Int { bits: 6, zero: 32 },
    int7: Codes::Int { bits: 7, zero: 64 },
    int8: Codes::Int { bits: 8, zero: 128 },
    int4_from_zero: Codes::Int { bits: 4, zero: 0 },
    int8_from_three: Codes::Int { bits: 8, zero: 3 },
    e4m3: Codes::E4M3,
    e2m1: Codes::E2M1,
    iq4: Codes::Iq4,
}
