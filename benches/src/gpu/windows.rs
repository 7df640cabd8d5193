//! `ebb-bench windows`: decode attention in layers that see a window, and in the same model's
//! layers that see all tokens.

use std::sync::Arc;

use ebb_kernels::cuda::probe::{AttentionProbe, ColdL2, ProbeError};
use ebb_kernels::cuda::selftest::{Pages, Rng};
use ebb_kernels::cuda::{Device, ScoreSpec};
use ebb_kernels::kv::{FrameLayout, KvGeometry};
use ebb_kernels::model::Seen;

/// Attention of a model.
#[derive(Debug, Clone, Copy)]
struct Shape {
    name: &'static str,
    q_heads: usize,
    kv_heads: usize,
    head_dim: usize,
    window: usize,
    sinks: bool,
}

const SHAPES: [Shape; 2] = [
    Shape {
        name: "gpt-oss",
        q_heads: 64,
        kv_heads: 8,
        head_dim: 64,
        window: 128,
        sinks: true,
    },
    Shape {
        name: "gemma-3-12b",
        q_heads: 16,
        kv_heads: 8,
        head_dim: 256,
        window: 1024,
        sinks: false,
    },
];

/// What is timed.
#[derive(Debug, Clone)]
pub struct Sizes {
    /// Sequences.
    pub batches: Vec<usize>,
    /// Tokens of each.
    pub contexts: Vec<usize>,
    /// In place of each shape's own.
    pub window: Option<usize>,
    /// Of scores, in every layer.
    pub soft_cap: Option<f32>,
}

/// Prints the CSV `engine,model,kernel,bits,batch,seqlen,hq,hkv,d,window,us,GBps`, a line for
/// layers with the window and one for those that see all (window 0); bytes are those of the tokens
/// that are seen. What does not fit into the device's memory is left out.
///
/// # Errors
/// When the device fails.
pub fn run(
    device: &Arc<Device>,
    sizes: &Sizes,
    repeats: usize,
    cold: ColdL2,
) -> Result<(), ProbeError> {
    println!("engine,model,kernel,bits,batch,seqlen,hq,hkv,d,window,us,GBps");
    for shape in SHAPES {
        for &tokens in &sizes.contexts {
            for &batch in &sizes.batches {
                if let Err(error) = time(device, shape, (batch, tokens), sizes, (repeats, cold)) {
                    eprintln!("{}, {batch}x{tokens} is left out: {error}", shape.name);
                }
            }
        }
    }
    Ok(())
}

fn time(
    device: &Arc<Device>,
    shape: Shape,
    (batch, tokens): (usize, usize),
    sizes: &Sizes,
    (repeats, cold): (usize, ColdL2),
) -> Result<(), ProbeError> {
    let Shape {
        q_heads,
        kv_heads,
        head_dim,
        ..
    } = shape;
    let geometry = KvGeometry {
        layers: 1,
        kv_heads,
        head_dim,
        windowed: ebb_kernels::kv::WindowedLayers::NONE,
    };
    let layout = FrameLayout {
        frame_bytes: geometry.sub_block_bytes(),
        frames_per_sub_block: 1,
    };
    let mut rng = Rng(1);
    let frames = Pages::frames_for(layout, vec![tokens; batch]);
    let mut pages = Pages::new(layout, frames, &mut rng);
    for _ in 0..batch {
        pages.add(tokens - 1, 1);
    }
    let capacity = pages.capacity();
    let mut probe = AttentionProbe::new(device, geometry, layout, frames, q_heads, capacity, None)?;
    probe.fill_random(2)?;
    let sinks = rng.values(q_heads, 1.0);
    for window in [Some(sizes.window.unwrap_or(shape.window)), None] {
        let scores = ScoreSpec {
            seen: Seen::window(window),
            soft_cap: sizes.soft_cap,
            sinks: shape.sinks,
        };
        probe.score(scores, &sinks)?;
        probe.as_served();
        probe.load(&pages.input)?;
        let times = probe.time(0, repeats, cold)?;
        let us = times[times.len() / 2];
        let seen = window.map_or(tokens, |window| window.min(tokens));
        let bytes = batch * seen * geometry.token_bytes();
        println!(
            "ebb,{},{},16,{batch},{tokens},{q_heads},{kv_heads},{head_dim},{},{us:.1},{:.0}",
            shape.name,
            probe.variant().name,
            window.unwrap_or(0),
            bytes as f64 / us / 1e3
        );
    }
    Ok(())
}
