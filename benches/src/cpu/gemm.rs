//! Our products against the `gemm` crate's, on the shapes of SmolLM2-135M.

use std::convert::Infallible;
use std::error::Error;
use std::time::Duration;

use ebb_kernels::bf16;
use ebb_kernels::cpu::baseline::{Order, gemm_crate};
use ebb_kernels::cpu::gemm::{Columns, Epilogue, PackedMatrix, Product, WeightMemory};
use ebb_kernels::cpu::simd::Isa;
use ebb_kernels::cpu::threads::Pool;

use super::model::random;
use crate::report::{Report, shortest};

/// Name, outputs, inner dimension, and how often a pass over the model computes it.
const SHAPES: [(&str, usize, usize, f64); 5] = [
    ("qkv", 960, 576, 30.0),
    ("o", 576, 576, 30.0),
    ("gate+up", 3072, 576, 30.0),
    ("down", 576, 1536, 30.0),
    ("lm_head", 49152, 576, 1.0),
];

/// Measures every product for `m` rows, and their sum over the model; returns the crate's rate over
/// the model, in operations per second. For prompts (`m` above 16) the model's sum leaves out the
/// head, of which a prompt needs one row.
///
/// Ours multiplies bf16 weights, the crate f32 ones, in whichever order of memory suits it better.
pub(super) fn rates(
    pool: &mut Pool,
    isa: Isa,
    m: usize,
    budget: Duration,
    report: &mut Report,
) -> Result<f64, Box<dyn Error>> {
    let (mut ours_total, mut theirs_total, mut flops_total) = (0.0, 0.0, 0.0);
    for (name, n, k, times) in SHAPES {
        let (ours, theirs) = product(pool, isa, (m, n, k), budget / 4)?;
        let flops = 2.0 * (m * n * k) as f64;
        compare(report, &format!("gemm {name} m={m}"), flops, ours, theirs);
        if m <= 16 || name != "lm_head" {
            ours_total += times * ours;
            theirs_total += times * theirs;
            flops_total += times * flops;
        }
    }
    let name = format!("gemm model m={m}");
    compare(report, &name, flops_total, ours_total, theirs_total);
    Ok(flops_total / theirs_total)
}

fn compare(report: &mut Report, name: &str, flops: f64, ours: f64, theirs: f64) {
    report.figure(&format!("{name} ours"), flops / ours / 1e9, "GFLOP/s");
    report.figure(
        &format!("{name} gemm crate"),
        flops / theirs / 1e9,
        "GFLOP/s",
    );
    report.figure(&format!("{name} ratio"), theirs / ours, "x");
}

/// Seconds of one product, ours and the crate's.
fn product(
    pool: &mut Pool,
    isa: Isa,
    (m, n, k): (usize, usize, usize),
    budget: Duration,
) -> Result<(f64, f64), Box<dyn Error>> {
    let rows: Vec<bf16> = random(1, n * k).map(bf16::from_f32).collect();
    let out_in: Vec<f32> = rows.iter().map(|x| x.to_f32()).collect();
    let in_out: Vec<f32> = (0..n * k).map(|i| out_in[i % n * k + i / n]).collect();
    let a: Vec<f32> = random(2, m * k).collect();
    let mut out = vec![0.0; m * n];
    let mut memory = WeightMemory::new(PackedMatrix::bytes(k, n, false))?;
    let mut w = memory.matrix(k, n, false);
    w.fill(pool, Columns::From(0), &rows)?;
    let product = Product {
        rows: m,
        a: &a,
        w: &w,
        epilogue: Epilogue::Store,
        next: None,
    };
    let ours = shortest(budget, || product.run(pool, isa, &mut out))?;
    let mut theirs = Duration::MAX;
    for w in [(&out_in, Order::OutIn), (&in_out, Order::InOut)] {
        let time = shortest(budget, || {
            gemm_crate(pool.threads(), (m, n, k), &a, (w.0, w.1), &mut out);
            Ok::<_, Infallible>(())
        })?;
        theirs = theirs.min(time);
    }
    Ok((ours.as_secs_f64(), theirs.as_secs_f64()))
}
