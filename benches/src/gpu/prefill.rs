//! `ebb-bench prefill`: attention of one layer of Llama-3.1-8B's shape over prompts and chunks of
//! prompts.

use std::sync::Arc;

use ebb_kernels::cuda::probe::{AttentionProbe, ColdL2, ProbeError};
use ebb_kernels::cuda::selftest::{Pages, Rng};
use ebb_kernels::cuda::{Device, PREFILL_VARIANTS};
use ebb_kernels::kv::{FrameLayout, KvGeometry};

/// Sequences of equal length: so many rows each, after `position` tokens in the cache.
#[derive(Debug, Clone, Copy)]
struct Shape {
    seqs: usize,
    rows: usize,
    position: usize,
    head_dim: usize,
}

const fn shape(seqs: usize, rows: usize, position: usize, head_dim: usize) -> Shape {
    Shape {
        seqs,
        rows,
        position,
        head_dim,
    }
}

const SHAPES: [Shape; 5] = [
    shape(1, 8192, 0, 128),
    shape(4, 2048, 0, 128),
    shape(1, 2048, 6144, 128),
    shape(1, 512, 7680, 128),
    shape(1, 8192, 0, 64),
];
const Q_HEADS: usize = 32;
const KV_HEADS: usize = 8;

impl Shape {
    /// Operations: two products, of which a row sees the keys up to its own.
    fn flop(&self) -> f64 {
        let keys: usize = (1..=self.rows).map(|i| self.position + i).sum();
        4.0 * (self.seqs * keys * Q_HEADS * self.head_dim) as f64
    }
}

/// Prints the CSV `engine,kernel,seqs,rows,position,hq,hkv,d,us,TFLOPs`, one line per shape and
/// compiled kernel; heads are of `head_dim` channels, those of the shape if `None`.
pub fn run(
    device: &Arc<Device>,
    repeats: usize,
    head_dim: Option<usize>,
) -> Result<(), ProbeError> {
    println!("engine,kernel,seqs,rows,position,hq,hkv,d,us,TFLOPs");
    for shape in SHAPES {
        let s = Shape {
            head_dim: head_dim.unwrap_or(shape.head_dim),
            ..shape
        };
        let geometry = KvGeometry {
            layers: 1,
            kv_heads: KV_HEADS,
            head_dim: s.head_dim,
            windowed: ebb_kernels::kv::WindowedLayers::NONE,
        };
        let layout = FrameLayout {
            frame_bytes: geometry.sub_block_bytes(),
            frames_per_sub_block: 1,
        };
        let frames = Pages::frames_for(layout, vec![s.position + s.rows; s.seqs]);
        let mut pages = Pages::new(layout, frames, &mut Rng(1));
        for _ in 0..s.seqs {
            pages.add(s.position, s.rows);
        }
        let capacity = pages.capacity();
        let mut probe =
            AttentionProbe::new(device, geometry, layout, frames, Q_HEADS, capacity, None)?;
        probe.fill_random(2)?;
        for variant in PREFILL_VARIANTS
            .iter()
            .filter(|v| v.fits(device, s.head_dim))
        {
            probe.configure_prefill(*variant)?;
            probe.load(&pages.input)?;
            let times = probe.time(0, repeats, ColdL2::Written)?;
            let us = times[times.len() / 2];
            println!(
                "ebb,{},{},{},{},{Q_HEADS},{KV_HEADS},{},{us:.1},{:.1}",
                variant.name,
                s.seqs,
                s.rows,
                s.position,
                s.head_dim,
                s.flop() / us / 1e6
            );
        }
    }
    Ok(())
}
