//! Matrix products of few rows.

use std::sync::Arc;

use super::reference::relative_error;
use super::table::Report;
use crate::cuda::driver::Device;
use crate::cuda::probe::{Normed, NormsProbe, ProbeError, Product, ProductProbe};
use crate::cuda::products::Way;

/// Inputs are exact in bf16; only sums are rounded.
const WIDE_LIMIT: f64 = 1e-5;
/// As the outputs are rounded to bf16: half of the last of its 8 bits.
const NARROW_LIMIT: f64 = 1.0 / 256.0;

/// As the inputs, gates, what they open and the outputs are: a half each, of which the two in the
/// middle have the first's error, too.
const GATED_LIMIT: f64 = 2.0 / 256.0;

/// (rows, inputs, outputs).
type Shape = (usize, usize, usize);

/// Every way against the definition; bits of rows alone and in company. `quick`: a few streamed
/// ones of each kind.
pub(super) fn check(
    device: &Arc<Device>,
    quick: bool,
    report: &mut Report,
) -> Result<(), ProbeError> {
    if quick {
        for shape in [(9, 520, 264), (33, 328, 392)] {
            let mut probe = ProductProbe::new(device, shape, false)?;
            if let Some(product) = probe.run(Way::Stream)? {
                let name = format!("product {shape:?}");
                compare(report, &name, shape, false, &product, &mut Vec::new());
            }
        }
        gated(device, &GATED[..2], report)?;
        return norms(device, &NORMS[..2], report);
    }
    // Every number of rows of the skinny kernel, with inputs that divide among the warps unevenly
    // or leave some without any.
    let skinny = (1..=8).map(|rows| (rows, 672, 48));
    let skinny = skinny.chain([(3, 32, 16), (8, 4096, 32), (9, 64, 16)]);
    // Less than a tile and less than a unit, tiles and units begun, one CTA for several tiles and
    // several for one.
    let streamed = [
        (1, 8, 8),
        (2, 64, 128),
        (7, 200, 136),
        (8, 1024, 128),
        (9, 520, 264),
        (16, 576, 960),
        (17, 1032, 504),
        (31, 64, 1000),
        (32, 2056, 16),
        (33, 328, 392),
        (63, 1544, 248),
        (64, 776, 520),
    ];
    for shape in skinny.chain(streamed) {
        for wide in [true, false] {
            let mut want = Vec::new();
            for way in Way::ALL {
                let mut probe = ProductProbe::new(device, shape, wide)?;
                if let Some(product) = probe.run(way)? {
                    let name = format!("product {shape:?} {way:?}");
                    compare(report, &name, shape, wide, &product, &mut want);
                }
            }
        }
    }
    // The last: a CTA begins in the middle of three that share a tile and ends as the first of
    // three that share the next.
    for shape in [
        (5, 1544, 264),
        (64, 1032, 504),
        (33, 520, 1000),
        (20, 704, 256),
    ] {
        let mut probe = ProductProbe::new(device, shape, false)?;
        // What a launch leaves must suit the next.
        for launch in 0..4 {
            if let Some(product) = probe.run(Way::Stream)? {
                let name = format!("product {shape:?}, launch {launch}");
                compare(report, &name, shape, false, &product, &mut Vec::new());
            }
        }
    }
    gated(device, &GATED, report)?;
    norms(device, &NORMS, report)?;
    nan(device, report)?;
    company(device, report)
}

/// A row of NaN, of the bits that say that a partial sum has not come, gives NaN, and the other
/// rows what they gave without it.
fn nan(device: &Arc<Device>, report: &mut Report) -> Result<(), ProbeError> {
    let (shape, poisoned) = ((16, 1544, 264), 3);
    let mut probe = ProductProbe::new(device, shape, true)?;
    let Some(before) = probe.run(Way::Stream)? else {
        return Ok(());
    };
    probe.poison(poisoned)?;
    for launch in 0..2 {
        let after = probe.run(Way::Stream)?.map_or(Vec::new(), |p| p.y);
        let rows = before.y.chunks(shape.2).zip(after.chunks(shape.2));
        let wrong = rows.enumerate().map(|(row, (before, after))| {
            let pairs = before.iter().zip(after);
            let is_right = |(before, after): &(&f32, &f32)| match row == poisoned {
                true => after.is_nan(),
                false => before.to_bits() == after.to_bits(),
            };
            pairs.filter(|pair| !is_right(pair)).count()
        });
        let name = format!("product {shape:?} with a row of NaN, launch {launch}");
        report.check(&name, wrong.sum::<usize>() as f64, 0.0);
    }
    Ok(())
}

/// Gated products whose outputs fill tiles or not.
const GATED: [Shape; 7] = [
    (5, 1544, 272),
    (31, 520, 1008),
    (1, 72, 16),
    (8, 576, 3072),
    (16, 1032, 496),
    (64, 776, 400),
    (64, 328, 1280),
];

/// Gated products against the definition.
fn gated(device: &Arc<Device>, shapes: &[Shape], report: &mut Report) -> Result<(), ProbeError> {
    for &shape in shapes {
        let (rows, inputs, outputs) = shape;
        let mut probe = ProductProbe::new(device, shape, false)?;
        let Some(product) = probe.run_gated()? else {
            continue;
        };
        let dot = |row: usize, output: usize| {
            let x = &product.x[row * inputs..][..inputs];
            let w = &product.w[output * inputs..][..inputs];
            let terms = x.iter().zip(w).map(|(x, w)| x.to_f64() * w.to_f64());
            half::bf16::from_f64(terms.sum()).to_f64()
        };
        let open = |row, output| {
            let (gate, up) = (dot(row, output), dot(row, outputs / 2 + output));
            gate / (1.0 + (-gate).exp()) * up
        };
        let want: Vec<f64> = (0..rows)
            .flat_map(|row| (0..outputs / 2).map(move |output| (row, output)))
            .map(|(row, output)| open(row, output))
            .collect();
        let error = relative_error(product.y.iter().map(|v| f64::from(*v)), &want);
        report.check(&format!("gated product {shape:?}"), error, NARROW_LIMIT);
    }
    Ok(())
}

/// Compares with the definition, which is kept in `want` for other ways of the same product.
fn compare(
    report: &mut Report,
    name: &str,
    (_, inputs, _): Shape,
    wide: bool,
    product: &Product,
    want: &mut Vec<f64>,
) {
    if want.is_empty() {
        let singles = |v: &[half::bf16]| v.iter().map(|v| v.to_f32()).collect::<Vec<_>>();
        let (x, w) = (singles(&product.x), singles(&product.w));
        let sum = |x: &[f32], w: &[f32]| {
            let terms = x.iter().zip(w).map(|(x, w)| f64::from(x * w));
            terms.sum::<f64>()
        };
        let rows = x.chunks_exact(inputs);
        want.extend(rows.flat_map(|x| w.chunks_exact(inputs).map(move |w| sum(x, w))));
    }
    let error = relative_error(product.y.iter().map(|v| f64::from(*v)), want);
    let limit = if wide { WIDE_LIMIT } else { NARROW_LIMIT };
    let width = if wide { "f32" } else { "bf16" };
    report.check(&format!("{name} {width}"), error, limit);
}

/// (rows, inputs, hidden, outputs), and whether gated.
type NormsCase = ((usize, usize, usize, usize), bool);

const NORMS: [NormsCase; 7] = [
    ((1, 520, 576, 272), false),
    ((11, 776, 504, 656), true),
    ((3, 1544, 136, 528), true),
    ((8, 192, 1032, 80), false),
    ((16, 1032, 896, 1024), true),
    ((24, 1544, 576, 272), false),
    ((61, 1032, 520, 816), true),
];

/// Products that take part in the norm between them, against the definition.
fn norms(device: &Arc<Device>, cases: &[NormsCase], report: &mut Report) -> Result<(), ProbeError> {
    for &(shape, gated) in cases {
        let Some(normed) = NormsProbe::new(device, shape, gated)?.run()? else {
            continue;
        };
        let (residual, y) = by_definition(&normed, shape, gated);
        let name = |what| format!("{what} {shape:?}, gated {gated}");
        let after = normed.residual[1].iter().map(|v| f64::from(*v));
        report.check(
            &name("product onto a residual"),
            relative_error(after, &residual),
            NARROW_LIMIT,
        );
        let got = normed.y.iter().map(|v| v.to_f64());
        report.check(
            &name("product of its norm"),
            relative_error(got, &y),
            if gated { GATED_LIMIT } else { NARROW_LIMIT },
        );
    }
    Ok(())
}

/// The residual stream after the first product, and the second one's outputs; a row's error counts
/// by its own size.
fn by_definition(
    normed: &Normed,
    (rows, inputs, hidden, outputs): (usize, usize, usize, usize),
    gated: bool,
) -> (Vec<f64>, Vec<f64>) {
    let dot = |x: &[f64], w: &[half::bf16]| {
        let terms = x.iter().zip(w).map(|(x, w)| x * w.to_f64());
        terms.sum::<f64>()
    };
    let (mut residual, mut y) = (Vec::new(), Vec::new());
    for row in 0..rows {
        let x: Vec<f64> = normed.x[row * inputs..][..inputs]
            .iter()
            .map(|x| x.to_f64())
            .collect();
        let stream: Vec<f64> = (0..hidden)
            .map(|i| {
                let before = f64::from(normed.residual[0][row * hidden + i]);
                before + dot(&x, &normed.w[0][i * inputs..][..inputs])
            })
            .collect();
        let mean = stream.iter().map(|r| r * r).sum::<f64>() / hidden as f64;
        let inverse = 1.0 / (mean + normed.eps).sqrt();
        let input: Vec<f64> = stream
            .iter()
            .zip(&normed.weight)
            .map(|(r, g)| r * inverse * g.to_f64())
            .collect();
        let of = |i: usize| dot(&input, &normed.w[1][i * hidden..][..hidden]);
        if gated {
            let open = |gate: f64, up: f64| gate / (1.0 + (-gate).exp()) * up;
            y.extend((0..outputs / 2).map(|i| open(of(i), of(outputs / 2 + i))));
        } else {
            y.extend((0..outputs).map(of));
        }
        residual.extend(stream);
    }
    (residual, y)
}

/// A streamed row has the same bits whatever the number of rows, for one n side of the instruction,
/// and up to 16 rows, which are cut alike.
fn company(device: &Arc<Device>, report: &mut Report) -> Result<(), ProbeError> {
    let (inputs, outputs) = (1160, 392);
    let rows_of = |rows: usize| -> Result<Option<Vec<f32>>, ProbeError> {
        let mut probe = ProductProbe::new(device, (rows, inputs, outputs), true)?;
        Ok(probe.run(Way::Stream)?.map(|product| product.y))
    };
    let sides: [(usize, &[usize]); 3] = [
        (16, &[1, 2, 7, 8, 9]),
        (32, &[17, 24, 31]),
        (64, &[33, 48, 63]),
    ];
    for (most, fewer) in sides {
        let Some(all) = rows_of(most)? else {
            return Ok(());
        };
        for &rows in fewer {
            let some = rows_of(rows)?.unwrap_or_default();
            let same = some
                .iter()
                .zip(&all)
                .filter(|(a, b)| a.to_bits() == b.to_bits());
            let different = rows * outputs - same.count();
            let name = format!("product, bits of {rows} rows alone and among {most}");
            report.check(&name, different as f64, 0.0);
        }
    }
    Ok(())
}
