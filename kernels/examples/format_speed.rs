//! Speed of the page formats on one core, in elements per nanosecond (median of the repetitions).
//!
//! ```sh
//! cargo run --release -p ebb-kernels --example format_speed
//! ```

use std::hint::black_box;
use std::time::Instant;

use ebb_kernels::bf16;
use ebb_kernels::formats::{FormatId, RecordShape, legal_shrink, precision_levels};
use ebb_kernels::kv::Side;

/// Tokens the attention reader would dequantise at once.
const READER_TOKENS: usize = 32;

fn main() {
    println!(
        "format   side head_dim  encode  dequantise  of {READER_TOKENS} tokens  shrink from above"
    );
    for &format in FormatId::ALL {
        for side in [Side::K, Side::V] {
            for head_dim in [128, 64] {
                let shape = RecordShape { side, head_dim };
                if format.record_bytes(shape).is_ok() {
                    report(format, shape);
                }
            }
        }
    }
}

fn report(format: FormatId, shape: RecordShape) {
    let rows = rows(shape);
    let mut record = vec![0; format.record_bytes(shape).unwrap()];
    let mut values = vec![0f32; shape.elements()];
    let n = shape.elements();
    let encode = rate(n, || {
        format.encode(shape, black_box(&rows), &mut record).unwrap()
    });
    let dequantise = rate(n, || {
        format
            .dequantise(shape, black_box(&record), &mut values)
            .unwrap()
    });
    let tile = READER_TOKENS * shape.head_dim;
    let tiles = rate(n, || {
        for (i, out) in values.chunks_exact_mut(tile).enumerate() {
            let tokens = i * READER_TOKENS..(i + 1) * READER_TOKENS;
            format
                .dequantise_tokens(shape, black_box(&record), tokens, out)
                .unwrap();
        }
    });
    let on_ladder = precision_levels(shape.side).any(|f| f == format);
    let above = precision_levels(shape.side)
        .filter(|f| legal_shrink(*f, format, shape.side))
        .last();
    let shrink = above.filter(|_| on_ladder).map(|from| {
        let mut src = vec![0; from.record_bytes(shape).unwrap()];
        from.encode(shape, &rows, &mut src).unwrap();
        rate(n, || {
            from.shrink(format, shape, black_box(&src), &mut record)
                .unwrap()
        })
    });
    let shrink = shrink.map_or("-".to_owned(), |rate| format!("{rate:.2}"));
    println!(
        "{format:<8} {:?}    {:>4} {encode:>11.2} {dequantise:>11.2} {tiles:>17.2} {shrink:>19}",
        shape.side, shape.head_dim
    );
}

fn rate(elements: usize, mut work: impl FnMut()) -> f64 {
    let mut times: Vec<f64> = (0..200)
        .map(|_| {
            let start = Instant::now();
            work();
            start.elapsed().as_nanos() as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    elements as f64 / times[times.len() / 2]
}

fn rows(shape: RecordShape) -> Vec<bf16> {
    let mut state = 1u64;
    (0..shape.elements())
        .map(|_| {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            bf16::from_f32((state >> 40) as f32 / (1 << 23) as f32 - 1.0)
        })
        .collect()
}
