//! Hadamard rotations change what is cached and nothing that attention returns.

mod formats_support;

use ebb_kernels::formats::rotation::{RotationError, fold_o, fold_v, hadamard};
use ebb_kernels::formats::{FormatId, RecordShape};
use ebb_kernels::{BLOCK_TOKENS, bf16};
use formats_support::{Random, dequantise, encode};

fn random(n: usize, seed: u64) -> Vec<f32> {
    let mut random = Random::new(seed);
    (0..n).map(|_| random.normal()).collect()
}

/// `[rows][cols] x [cols]`
fn matvec(matrix: &[f32], x: &[f32]) -> Vec<f32> {
    let rows = matrix.chunks_exact(x.len());
    rows.map(|row| row.iter().zip(x).map(|(a, b)| a * b).sum())
        .collect()
}

/// Attention with fixed weights over three tokens, two KV heads and four query heads.
fn attention(w_v: &[f32], bias: &[f32], w_o: &[f32], head_dim: usize, hidden: usize) -> Vec<f32> {
    let (tokens, kv_heads, q_heads) = (3, 2, 4);
    let weights = [0.2, 0.5, 0.3];
    let values: Vec<Vec<f32>> = (0..tokens)
        .map(|t| {
            let v = matvec(w_v, &random(hidden, 100 + t));
            v.iter().zip(bias).map(|(v, b)| v + b).collect()
        })
        .collect();
    let mut heads = vec![0.0; q_heads * head_dim];
    for (h, out) in heads.chunks_exact_mut(head_dim).enumerate() {
        let kv = h * kv_heads / q_heads;
        for (v, p) in values.iter().zip(weights) {
            let p = p * (1.0 + h as f32);
            let v = &v[kv * head_dim..(kv + 1) * head_dim];
            out.iter_mut().zip(v).for_each(|(o, v)| *o += p * v);
        }
    }
    matvec(w_o, &heads)
}

#[test]
fn attention_returns_the_same() {
    for head_dim in [64, 128] {
        let hidden = 96;
        let mut w_v = random(2 * head_dim * hidden, 1);
        let mut bias = random(2 * head_dim, 2);
        let mut w_o = random(hidden * 4 * head_dim, 3);
        let plain = attention(&w_v, &bias, &w_o, head_dim, hidden);
        let before = w_v.clone();
        fold_v(&mut w_v, head_dim, hidden).unwrap();
        fold_v(&mut bias, head_dim, 1).unwrap();
        let half_folded = attention(&w_v, &bias, &w_o, head_dim, hidden);
        fold_o(&mut w_o, head_dim).unwrap();
        let rotated = attention(&w_v, &bias, &w_o, head_dim, hidden);

        let scale = plain.iter().fold(0f32, |m, x| m.max(x.abs()));
        let distance = |a: &[f32]| {
            a.iter()
                .zip(&plain)
                .fold(0f32, |m, (a, b)| m.max((a - b).abs()))
        };
        assert!(
            distance(&rotated) < 1e-5 * scale,
            "{} of {scale}",
            distance(&rotated)
        );
        // Both folds did something.
        assert!(distance(&half_folded) > 0.1 * scale);
        assert_ne!(before, w_v);
    }
}

#[test]
fn folding_bf16_weights_rounds_once() {
    let (head_dim, hidden) = (64, 16);
    let exact = random(head_dim * hidden, 4);
    let mut stored: Vec<bf16> = exact.iter().map(|x| bf16::from_f32(*x)).collect();
    let mut reference: Vec<f32> = stored.iter().map(|x| x.to_f32()).collect();
    fold_v(&mut stored, head_dim, hidden).unwrap();
    fold_v(&mut reference, head_dim, hidden).unwrap();
    let rounded: Vec<bf16> = reference.iter().map(|x| bf16::from_f32(*x)).collect();
    assert_eq!(stored, rounded);
}

#[test]
fn folding_twice_is_the_identity() {
    let mut w = random(128 * 8, 5);
    let before = w.clone();
    fold_o(&mut w, 128).unwrap();
    fold_o(&mut w, 128).unwrap();
    assert!(w.iter().zip(&before).all(|(a, b)| (a - b).abs() < 1e-5));
}

#[test]
fn weights_that_cannot_be_rotated_are_refused() {
    let mut w = vec![0f32; 80 * 4];
    assert_eq!(
        fold_v(&mut w, 80, 4),
        Err(RotationError::HeadDim { head_dim: 80 })
    );
    let ragged = RotationError::Shape {
        elements: 320,
        head_dim: 64,
        inputs: 4,
    };
    assert_eq!(fold_v(&mut w, 64, 4), Err(ragged));
    assert_eq!(
        fold_v(&mut w, 0, 4),
        Err(RotationError::HeadDim { head_dim: 0 })
    );
    assert!(fold_v(&mut w, 64, 0).is_err());
}

/// Why it is worth having: a loud channel sets the range of every token, and the rotation spreads
/// it.
#[test]
fn rotated_values_lose_less_at_two_bits() {
    let shape = RecordShape::v(128);
    let mut rng = Random::new(6);
    let row = |rng: &mut Random| -> Vec<f32> {
        (0..128)
            .map(|c| rng.normal() * if c % 40 == 7 { 12.0 } else { 1.0 })
            .collect()
    };
    let plain: Vec<Vec<f32>> = (0..BLOCK_TOKENS).map(|_| row(&mut rng)).collect();
    let mut rotated = plain.clone();
    rotated.iter_mut().for_each(|row| hadamard(row));
    let loss = |rows: &[Vec<f32>]| -> f32 {
        let rows: Vec<bf16> = rows.concat().into_iter().map(bf16::from_f32).collect();
        let values = dequantise(FormatId::Int2, shape, &encode(FormatId::Int2, shape, &rows));
        rows.iter()
            .zip(values)
            .map(|(x, y)| (x.to_f32() - y).powi(2))
            .sum()
    };
    let (plain, rotated) = (loss(&plain), loss(&rotated));
    assert!(rotated < 0.5 * plain, "{rotated} against {plain}");
}

/// The same of keys: a channel that swings further than the others has the largest step, and it is
/// the one that scores depend on.
#[test]
fn rotated_keys_lose_less_at_two_and_three_bits() {
    let shape = RecordShape::k(64);
    let mut rng = Random::new(7);
    let loud = |c: usize| if c % 20 == 7 { 12.0 } else { 1.0 };
    let row = |rng: &mut Random| -> Vec<f32> { (0..64).map(|c| rng.normal() * loud(c)).collect() };
    let keys: Vec<Vec<f32>> = (0..BLOCK_TOKENS).map(|_| row(&mut rng)).collect();
    let queries: Vec<Vec<f32>> = (0..32).map(|_| row(&mut rng)).collect();
    let dot = |q: &[f32], k: &[f32]| -> f32 { q.iter().zip(k).map(|(a, b)| a * b).sum() };
    let scores = |queries: &[Vec<f32>], keys: &[Vec<f32>]| -> Vec<f32> {
        let of = |q: &Vec<f32>| keys.iter().map(|k| dot(q, k)).collect::<Vec<_>>();
        queries.iter().flat_map(of).collect()
    };
    let turned = |rows: &[Vec<f32>]| {
        let mut rows = rows.to_vec();
        rows.iter_mut().for_each(|row| hadamard(row));
        rows
    };
    let exact = scores(&queries, &keys);
    let error = |scores: Vec<f32>| -> f32 {
        scores
            .iter()
            .zip(&exact)
            .map(|(a, b)| (a - b).powi(2))
            .sum()
    };
    let scale: f32 = exact.iter().map(|x| x * x).sum();
    assert!(error(scores(&turned(&queries), &turned(&keys))) < 1e-9 * scale);
    for format in [FormatId::Int3, FormatId::Int2] {
        let cached = |keys: &[Vec<f32>]| -> Vec<Vec<f32>> {
            let rows: Vec<bf16> = keys.concat().into_iter().map(bf16::from_f32).collect();
            let values = dequantise(format, shape, &encode(format, shape, &rows));
            values.chunks_exact(64).map(<[f32]>::to_vec).collect()
        };
        let plain = error(scores(&queries, &cached(&keys)));
        let rotated = error(scores(&turned(&queries), &cached(&turned(&keys))));
        assert!(rotated < 0.5 * plain, "{format}: {rotated} against {plain}");
    }
}
