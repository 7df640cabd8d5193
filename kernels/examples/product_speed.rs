//! Speed of matrix products on the CPU by the format of their weights: GB/s of weights with one
//! row, GFLOP/s with 16 and 512 (fastest tenth of the repetitions: the machine may be busy).
//!
//! ```sh
//! cargo run --release -p ebb-kernels --example product_speed -- 2
//! ```
//! The arguments are the number of threads and a part of the names of what to measure. Weights are
//! as many as no cache holds, one matrix after the other, as a model has them.

use std::hint::black_box;
use std::time::Instant;

use ebb_kernels::bf16;
use ebb_kernels::cpu::gemm::{self, Columns, Epilogue, PackedMatrix, WeightMemory};
use ebb_kernels::cpu::packed::{Activations, Part, Product, QuantisedMatrix, Weights};
use ebb_kernels::cpu::simd::Isa;
use ebb_kernels::cpu::threads::Pool;
use ebb_kernels::model::Activation;
use ebb_kernels::weight_formats::{Codes, Quantisation, WeightFormat};

/// Bytes of all matrices of a shape in bf16: four times a large cache.
const MODEL_BYTES: usize = 512 << 20;

/// Inputs and outputs.
const SHAPES: [(&str, usize, usize); 4] = [
    ("SmolLM2 gate", 576, 1536),
    ("SmolLM2 down", 1536, 576),
    ("Qwen-1.5B gate", 1536, 8960),
    ("Qwen-1.5B down", 8960, 1536),
];

fn formats() -> Vec<WeightFormat> {
    let int = |bits, zero, group, has_offsets| WeightFormat {
        codes: Codes::Int { bits, zero },
        group,
        has_offsets,
    };
    vec![
        int(4, 0, 32, true),
        int(4, 8, 128, false),
        int(5, 0, 32, true),
        int(6, 32, 16, false),
        int(8, 128, 32, false),
        WeightFormat {
            codes: Codes::Iq4,
            group: 32,
            has_offsets: false,
        },
        WeightFormat {
            codes: Codes::E4M3,
            group: usize::MAX,
            has_offsets: false,
        },
    ]
}

fn main() {
    let threads = std::env::args().nth(1).and_then(|text| text.parse().ok());
    let mut pool = Pool::new(threads.unwrap_or(2)).unwrap();
    println!("{} threads, {}", pool.threads(), Isa::detect().name());
    println!(
        "shape           weights                               1 row: GB/s  us  16: GFLOP/s   512"
    );
    for (name, inputs, outputs) in SHAPES {
        let wanted = std::env::args().nth(2).unwrap_or_default();
        if format!("{name} bf16").contains(&wanted) {
            expanded(&mut pool, name, inputs, outputs);
        }
        let is_wanted = |format: &WeightFormat| format!("{name} {format}").contains(&wanted);
        for format in formats().into_iter().filter(is_wanted) {
            packed(&mut pool, name, format, inputs, outputs);
        }
    }
}

fn expanded(pool: &mut Pool, name: &str, inputs: usize, outputs: usize) {
    let bytes = PackedMatrix::bytes(inputs, outputs, false);
    let count = MODEL_BYTES / bytes;
    let mut memory = WeightMemory::new(count * bytes).unwrap();
    let weights: Vec<bf16> = (random(outputs * inputs).iter())
        .map(|x| bf16::from_f32(*x))
        .collect();
    let matrices: Vec<_> = (0..count)
        .map(|_| {
            let mut matrix = memory.matrix(inputs, outputs, false);
            matrix.fill(pool, Columns::From(0), &weights).unwrap();
            matrix
        })
        .collect();
    report(
        (name, "bf16"),
        (inputs, outputs),
        bytes,
        count,
        |rows, index, x, out| {
            let product = gemm::Product {
                rows,
                a: x,
                w: &matrices[index],
                epilogue: Epilogue::Store,
                next: Some(&matrices[(index + 1) % count]),
            };
            product.run(pool, Isa::detect(), out).unwrap();
        },
    );
}

fn packed(pool: &mut Pool, name: &str, format: WeightFormat, inputs: usize, outputs: usize) {
    let quantisation = Quantisation::Nearest(format);
    let tensor = quantisation.tensor(inputs, &random(inputs * 16));
    let format = tensor.format();
    let bytes = QuantisedMatrix::bytes(format, inputs, outputs).unwrap();
    let count = MODEL_BYTES / bytes / 2;
    let mut memory = WeightMemory::new(count * bytes).unwrap();
    let parts: Vec<_> = (0..count)
        .map(|_| {
            let mut matrix = QuantisedMatrix::new(&mut memory, format, inputs, outputs);
            let filled = matrix.fill(pool, |_, rows| {
                tensor.copy_rows(0, rows);
                Ok::<_, ()>(())
            });
            filled.unwrap().unwrap();
            [Part::new(0, Weights::Plain(matrix), None)]
        })
        .collect();
    let mut quantised = Activations::default();
    let label = format.to_string();
    report(
        (name, &label),
        (inputs, outputs),
        bytes,
        count,
        |rows, index, x, out| {
            let on = (&mut *pool, Isa::detect());
            quantised.quantise(on, rows, inputs, x).unwrap();
            let product = Product {
                rows,
                a: x,
                quantised: &quantised,
                parts: &parts[index],
                stride: outputs,
                add: false,
                activation: Activation::Silu,
            };
            product.run(pool, Isa::detect(), out).unwrap();
        },
    );
}

fn report(
    (name, label): (&str, &str),
    (inputs, outputs): (usize, usize),
    bytes: usize,
    count: usize,
    mut multiply: impl FnMut(usize, usize, &[f32], &mut [f32]),
) {
    let x = random(512 * inputs);
    let mut out = vec![0.0; 512 * outputs];
    let mut time = |rows: usize, repetitions: usize| {
        let mut times: Vec<f64> = (0..repetitions)
            .map(|repetition| {
                let start = Instant::now();
                multiply(rows, repetition % count, black_box(&x), &mut out);
                start.elapsed().as_secs_f64()
            })
            .collect();
        times.sort_by(f64::total_cmp);
        times[repetitions / 10]
    };
    let one = time(1, 2 * count);
    let some = time(16, count);
    let many = time(512, 12);
    let gbps = bytes as f64 / one / 1e9;
    let gflops = |rows: f64, time: f64| 2.0 * rows * (inputs * outputs) as f64 / time / 1e9;
    println!(
        "{name:<15} {label:<40} {gbps:>8.1} {:>6.0} {:>10.0} {:>6.0}",
        one * 1e6,
        gflops(16.0, some),
        gflops(512.0, many)
    );
}

fn random(len: usize) -> Vec<f32> {
    let mut state = 1u64;
    let next = || {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(len).collect()
}
