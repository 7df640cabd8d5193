use half::bf16;
use proptest::prelude::*;

use super::*;
use crate::cpu::random::random;
use crate::model::Activation;

fn weights(seed: u64, len: usize) -> Vec<bf16> {
    random(seed, len).into_iter().map(bf16::from_f32).collect()
}

fn matrix(pool: &mut Pool, k: usize, n: usize, rows: &[bf16]) -> PackedMatrix {
    let mut memory = WeightMemory::new(PackedMatrix::bytes(k, n, false)).unwrap();
    let mut w = memory.matrix(k, n, false);
    w.fill(pool, Columns::From(0), rows).unwrap();
    w
}

fn multiply(
    pool: &mut Pool,
    isa: Isa,
    rows: usize,
    a: &[f32],
    w: &PackedMatrix,
    epilogue: Epilogue<'_>,
    out: &mut [f32],
) {
    let product = Product {
        rows,
        a,
        w,
        epilogue,
        next: Some(w),
    };
    product.run(pool, isa, out).unwrap();
}

/// `Σ a[i] w[i]` in f64.
fn dot(a: &[f32], w: &[bf16]) -> f64 {
    a.iter()
        .zip(w)
        .map(|(a, w)| f64::from(*a) * w.to_f64())
        .sum()
}

fn close(got: f32, want: f64, k: usize) -> bool {
    (f64::from(got) - want).abs() <= 1e-6 * (k as f64).sqrt() * 3.0 + 1e-6 * want.abs()
}

#[test]
fn matches_f64_on_every_path() {
    let mut pool = Pool::new(3).unwrap();
    for (m, k, n) in [
        (1, 1, 1),
        (1, 64, 33),
        (5, 72, 100),
        (13, 100, 31),
        (200, 40, 64),
    ] {
        let (a, rows) = (random(1, m * k), weights(2, n * k));
        let w = matrix(&mut pool, k, n, &rows);
        let mut first: Option<Vec<f32>> = None;
        for isa in Isa::available() {
            let mut out = vec![f32::NAN; m * n];
            multiply(&mut pool, isa, m, &a, &w, Epilogue::Store, &mut out);
            for (i, x) in out.iter().enumerate() {
                let want = dot(&a[i / n * k..][..k], &rows[i % n * k..][..k]);
                assert!(
                    close(*x, want, k),
                    "{} {m}x{k}x{n} {i}: {x} {want}",
                    isa.name()
                );
            }
            // All instruction sets to the bit.
            assert_eq!(*first.get_or_insert_with(|| out.clone()), out);
        }
    }
}

#[test]
fn the_order_is_one_chain_of_fused_multiply_adds() {
    let mut pool = Pool::new(1).unwrap();
    let (m, k, n) = (4, 150, 70);
    let (a, rows) = (random(3, m * k), weights(4, n * k));
    let w = matrix(&mut pool, k, n, &rows);
    let mut out = vec![0.0; m * n];
    multiply(
        &mut pool,
        Isa::detect(),
        m,
        &a,
        &w,
        Epilogue::Store,
        &mut out,
    );
    for r in 0..m {
        for c in 0..n {
            let chain = (0..k).fold(0.0f32, |s, i| {
                a[r * k + i].mul_add(rows[c * k + i].to_f32(), s)
            });
            assert_eq!(out[r * n + c].to_bits(), chain.to_bits());
        }
    }
}

#[test]
fn agrees_with_the_gemm_crate() {
    let mut pool = Pool::new(2).unwrap();
    let (m, k, n) = (37, 576, 192);
    let (a, rows) = (random(5, m * k), weights(6, n * k));
    let dense: Vec<f32> = rows.iter().map(|w| w.to_f32()).collect();
    let w = matrix(&mut pool, k, n, &rows);
    let mut out = vec![0.0; m * n];
    multiply(
        &mut pool,
        Isa::detect(),
        m,
        &a,
        &w,
        Epilogue::Store,
        &mut out,
    );
    let mut want = vec![0.0f32; m * n];
    let (k, n) = (k as isize, n as isize);
    // SAFETY: `want` is m x n, `a` m x k row-major, `dense` n x k row-major (read transposed).
    unsafe {
        gemm::gemm(
            m,
            n as usize,
            k as usize,
            want.as_mut_ptr(),
            1,
            n,
            false,
            a.as_ptr(),
            1,
            k,
            dense.as_ptr(),
            k,
            1,
            0.0,
            1.0,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
    for (x, y) in out.iter().zip(&want) {
        assert!((x - y).abs() < 1e-4, "{x} {y}");
    }
}

#[test]
fn epilogues() {
    let mut pool = Pool::new(2).unwrap();
    let (m, k, n) = (7, 40, 45);
    let (a, gate, up) = (random(7, m * k), weights(8, n * k), weights(9, n * k));
    let w = matrix(&mut pool, k, n, &gate);
    let mut memory = WeightMemory::new(PackedMatrix::bytes(k, n, true)).unwrap();
    let mut gated = memory.matrix(k, n, true);
    gated.fill(&mut pool, Columns::Gate, &gate).unwrap();
    gated.fill(&mut pool, Columns::Up, &up).unwrap();
    let bias = random(10, 64);
    let before = random(11, m * n);
    for isa in Isa::available() {
        let mut run = |w: &PackedMatrix, e| {
            let mut out = before.clone();
            multiply(&mut pool, isa, m, &a, w, e, &mut out);
            out
        };
        let plain = run(&w, Epilogue::Store);
        let biased = run(&w, Epilogue::Bias(&bias));
        let added = run(&w, Epilogue::Add);
        let swiglu = run(&gated, Epilogue::Gated(Activation::Silu));
        for i in 0..m * n {
            assert_eq!(biased[i], plain[i] + bias[i % n]);
            assert_eq!(added[i], before[i] + plain[i]);
            let g = dot(&a[i / n * k..][..k], &gate[i % n * k..][..k]);
            let u = dot(&a[i / n * k..][..k], &up[i % n * k..][..k]);
            let want = g / (1.0 + (-g).exp()) * u;
            assert!(
                (f64::from(swiglu[i]) - want).abs() < 1e-4,
                "{} {want}",
                swiglu[i]
            );
        }
    }
}

#[test]
fn fused_tensors_and_columns() {
    let mut pool = Pool::new(2).unwrap();
    let k = 24;
    let (q, v) = (weights(12, 40 * k), weights(13, 30 * k));
    let mut memory = WeightMemory::new(PackedMatrix::bytes(k, 70, false)).unwrap();
    let mut w = memory.matrix(k, 70, false);
    w.fill(&mut pool, Columns::From(0), &q).unwrap();
    w.fill(&mut pool, Columns::From(40), &v).unwrap();
    let mut column = vec![0.0; k];
    for c in 0..70 {
        w.column(c, &mut column);
        let want = if c < 40 {
            &q[c * k..]
        } else {
            &v[(c - 40) * k..]
        };
        assert!(column.iter().zip(want).all(|(x, w)| *x == w.to_f32()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// A row's result is the same alone, in any batch, with any number of threads.
    #[test]
    fn batch_and_thread_invariant(
        m in 1usize..130, k in 1usize..90, n in 1usize..150, threads in 1usize..5,
        seed in any::<u64>(), cut in 0usize..130,
    ) {
        let mut one = Pool::new(1).unwrap();
        let mut many = Pool::new(threads).unwrap();
        let (a, rows) = (random(seed, m * k), weights(seed ^ 1, n * k));
        let w = matrix(&mut many, k, n, &rows);
        let isa = Isa::detect();
        let mut whole = vec![0.0; m * n];
        multiply(&mut many, isa, m, &a, &w, Epilogue::Store, &mut whole);
        let cut = cut % m;
        let mut parts = vec![0.0; m * n];
        let (top, bottom) = parts.split_at_mut(cut * n);
        multiply(&mut one, isa, cut, &a, &w, Epilogue::Store, top);
        multiply(&mut one, isa, m - cut, &a[cut * k..], &w, Epilogue::Store, bottom);
        prop_assert!(whole.iter().zip(&parts).all(|(x, y)| x.to_bits() == y.to_bits()));
    }
}
