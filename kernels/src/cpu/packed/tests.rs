use super::*;
use crate::cpu::gemm::WeightMemory;
use crate::cpu::random::random;
use crate::cpu::simd::{DotSet, Isa};
use crate::cpu::threads::Pool;
use crate::model::Activation;
use crate::weight_formats::{Codes, PackedTensor, Quantisation, WeightFormat};

mod edges;
mod oracle;
mod refused;

const INT4: WeightFormat = WeightFormat {
    codes: Codes::Int { bits: 4, zero: 8 },
    group: 32,
    has_offsets: true,
};

const INT6: WeightFormat = WeightFormat {
    codes: Codes::Int { bits: 6, zero: 32 },
    group: 16,
    has_offsets: false,
};

const E4M3: WeightFormat = WeightFormat {
    codes: Codes::E4M3,
    group: 4096,
    has_offsets: false,
};

/// Activations with an outlier here and there, as models have them.
fn activations(seed: u64, len: usize) -> Vec<f32> {
    let mut x = random(seed, len);
    x.iter_mut().step_by(53).for_each(|x| *x *= 20.0);
    x
}

/// Weights of a format: random ones, quantised.
fn tensor(format: WeightFormat, seed: u64, outputs: usize, inputs: usize) -> PackedTensor {
    Quantisation::Nearest(format).tensor(inputs, &random(seed, outputs * inputs))
}

fn matrix(pool: &mut Pool, tensor: &PackedTensor) -> QuantisedMatrix {
    let (format, outputs, inputs) = (tensor.format(), tensor.rows(), tensor.inputs());
    let bytes = QuantisedMatrix::bytes(format, inputs, outputs).unwrap();
    let mut memory = WeightMemory::new(bytes).unwrap();
    let mut matrix = QuantisedMatrix::new(&mut memory, format, inputs, outputs);
    fill(pool, &mut matrix, tensor);
    assert_eq!(matrix.len(), bytes);
    matrix
}

fn fill(pool: &mut Pool, matrix: &mut QuantisedMatrix, tensor: &PackedTensor) {
    let filled = matrix.fill(pool, |first, rows| {
        tensor.copy_rows(first, rows);
        Ok::<_, ()>(())
    });
    assert_eq!(filled, Ok(Ok(())));
}

fn plain(matrix: QuantisedMatrix) -> Vec<Part> {
    vec![Part::new(0, Weights::Plain(matrix), None)]
}

/// `out[rows][stride]`, which was `before`.
fn multiply(
    pool: &mut Pool,
    dots: DotSet,
    parts: &[Part],
    a: &[f32],
    (stride, add): (usize, bool),
    before: &[f32],
) -> Vec<f32> {
    let inputs = parts[0].matrices()[0].inputs();
    let rows = a.len() / inputs;
    let mut quantised = Activations::default();
    quantised
        .quantise((pool, Isa::detect()), rows, inputs, a)
        .unwrap();
    let product = Product {
        rows,
        a,
        quantised: &quantised,
        parts,
        stride,
        add,
        activation: Activation::Silu,
    };
    let mut out = before.to_vec();
    product.run_with(pool, dots, &mut out, None).unwrap();
    out
}

/// [`multiply`] with one part and nothing before.
fn store(pool: &mut Pool, dots: DotSet, parts: &[Part], a: &[f32]) -> Vec<f32> {
    let matrix = &parts[0].matrices()[0];
    let outputs = parts[0].outputs();
    let before = vec![f32::NAN; a.len() / matrix.inputs() * outputs];
    multiply(pool, dots, parts, a, (outputs, false), &before)
}

fn same(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

/// Every kind of codes, with zeros in the middle and elsewhere.
fn all_codes() -> Vec<Codes> {
    let ints = (2..=8).map(|bits| Codes::Int {
        bits,
        zero: 1 << (bits - 1),
    });
    let others = [
        Codes::Int { bits: 4, zero: 0 },
        Codes::Int { bits: 8, zero: 3 },
        Codes::E4M3,
        Codes::E2M1,
        Codes::Iq4,
    ];
    ints.chain(others).collect()
}
