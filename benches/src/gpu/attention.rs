//! `ebb-bench attention`: decode attention on the shapes of the published comparison.

use std::sync::Arc;

use ebb_kernels::cuda::probe::{AttentionProbe, ColdL2, ProbeError};
use ebb_kernels::cuda::selftest::{Pages, Rng};
use ebb_kernels::cuda::{DECODE_VARIANTS, Device, SplitRule};
use ebb_kernels::kv::{FrameLayout, KvGeometry};

/// A decode batch: sequences of equal length.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub(super) batch: usize,
    pub(super) tokens: usize,
    pub(super) q_heads: usize,
    pub(super) kv_heads: usize,
    /// What the best 16-bit kernel of others takes, microseconds.
    target_us: f64,
}

pub(super) const HEAD_DIM: usize = 128;

const fn shape(
    batch: usize,
    tokens: usize,
    q_heads: usize,
    kv_heads: usize,
    target_us: f64,
) -> Shape {
    Shape {
        batch,
        tokens,
        q_heads,
        kv_heads,
        target_us,
    }
}

const SHAPES: [Shape; 9] = [
    shape(1, 1152, 32, 8, 0.0),
    shape(64, 1152, 32, 8, 0.0),
    shape(256, 1152, 32, 8, 0.0),
    shape(1, 131_072, 32, 8, 138.0),
    shape(8, 32_768, 32, 8, 255.0),
    shape(64, 4096, 32, 8, 255.0),
    shape(128, 8192, 32, 8, 970.0),
    shape(16, 16_384, 40, 8, 255.0),
    shape(8, 4096, 32, 32, 138.0),
];

const fn rule(
    blocks_min: usize,
    blocks_max: usize,
    units: usize,
    blocks_small: usize,
) -> SplitRule {
    SplitRule {
        blocks_min,
        blocks_max,
        units,
        blocks_small,
        long: usize::MAX,
    }
}

/// Those named as `batch`x`tokens`; all, if none is.
pub fn shapes(named: &[String]) -> Result<Vec<Shape>, String> {
    if named.is_empty() {
        return Ok(SHAPES.to_vec());
    }
    let name = |s: &Shape| format!("{}x{}", s.batch, s.tokens);
    let find = |n: &String| {
        let found = SHAPES.iter().find(|s| name(s) == *n).copied();
        found.ok_or_else(|| {
            let known = SHAPES.iter().map(name).collect::<Vec<_>>().join(", ");
            format!("there is no shape {n}; there are {known}")
        })
    };
    named.iter().map(find).collect()
}

/// Prints the CSV's first line.
pub fn print_header() {
    println!("engine,kernel,bits,batch,seqlen,hq,hkv,d,us,GBps");
}

/// Of heads of `head_dim` channels: prints the CSV
/// `engine,kernel,bits,batch,seqlen,hq,hkv,d,us,GBps`; one line for the preferred kernel, and one
/// per kernel whose name contains `kernels` and way of cutting the sequences in `rules`.
pub fn run(
    device: &Arc<Device>,
    (shapes, head_dim): (&[Shape], usize),
    repeats: usize,
    cold: ColdL2,
    kernels: &str,
    rules: &[[usize; 4]],
) -> Result<(), ProbeError> {
    print_header();
    for s in shapes {
        // One layer of a model: its records lie together in one frame, as in a model whose frames
        // hold whole layers.
        let geometry = KvGeometry {
            layers: 1,
            kv_heads: s.kv_heads,
            head_dim,
        };
        let layout = FrameLayout {
            frame_bytes: geometry.sub_block_bytes(),
            frames_per_sub_block: 1,
        };
        let mut rng = Rng(1);
        let frames = Pages::frames_for(layout, vec![s.tokens; s.batch]);
        let mut pages = Pages::new(layout, frames, &mut rng);
        for _ in 0..s.batch {
            pages.add(s.tokens - 1, 1);
        }
        let capacity = pages.capacity();
        let mut probe =
            AttentionProbe::new(device, geometry, layout, frames, s.q_heads, capacity, None)?;
        probe.fill_random(2)?;
        probe.load(&pages.input)?;
        let bytes = s.batch * s.tokens * geometry.token_bytes();
        let preferred = probe.variant();
        let mut best: Option<(f64, String)> = None;
        for variant in DECODE_VARIANTS
            .iter()
            .filter(|v| v.head_dim == head_dim && v.runs_on(device))
        {
            let default = SplitRule::default();
            let tried = rules.iter().map(|r| rule(r[0], r[1], r[2], r[3]));
            for rule in [default].into_iter().chain(tried) {
                let chosen = *variant == preferred && rule == default;
                if !(chosen || !kernels.is_empty() && variant.name.contains(kernels)) {
                    continue;
                }
                probe.configure(*variant, rule)?;
                probe.load(&pages.input)?;
                let times = probe.time(0, repeats, cold)?;
                let us = times[times.len() / 2];
                let kernel = format!(
                    "{}/{}-{}-{}-{}",
                    variant.name, rule.blocks_min, rule.blocks_max, rule.units, rule.blocks_small
                );
                println!(
                    "ebb,{kernel},16,{},{},{},{},{head_dim},{us:.1},{:.0}",
                    s.batch,
                    s.tokens,
                    s.q_heads,
                    s.kv_heads,
                    bytes as f64 / us / 1e3
                );
                if chosen && s.target_us > 0.0 && head_dim == HEAD_DIM {
                    let verdict = if us <= s.target_us {
                        "reached"
                    } else {
                        "missed"
                    };
                    eprintln!(
                        "{} x {}: {us:.1} us, fastest {:.1}, target {} {verdict}",
                        s.batch, s.tokens, times[0], s.target_us
                    );
                }
                if best.as_ref().is_none_or(|b| us < b.0) {
                    best = Some((us, kernel));
                }
            }
        }
        if let Some((us, kernel)) = best {
            eprintln!("{} x {}: best {us:.1} us by {kernel}", s.batch, s.tokens);
        }
    }
    Ok(())
}
