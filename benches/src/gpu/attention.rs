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
}

pub(super) const HEAD_DIM: usize = 128;

const fn shape(batch: usize, tokens: usize, q_heads: usize, kv_heads: usize) -> Shape {
    Shape {
        batch,
        tokens,
        q_heads,
        kv_heads,
    }
}

/// Query heads that share KV heads (GQA), have one each (MHA), or share one (MQA).
const SHAPES: [Shape; 14] = [
    shape(1, 1152, 32, 8),
    shape(64, 1152, 32, 8),
    shape(256, 1152, 32, 8),
    shape(1, 131_072, 32, 8),
    shape(8, 32_768, 32, 8),
    shape(64, 4096, 32, 8),
    shape(128, 8192, 32, 8),
    shape(16, 16_384, 40, 8),
    shape(8, 4096, 32, 32),
    shape(64, 4096, 32, 32),
    shape(1, 131_072, 32, 32),
    shape(1, 131_072, 32, 1),
    shape(8, 32_768, 32, 1),
    shape(64, 4096, 32, 1),
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

impl Shape {
    /// `batch`x`tokens`, which may be the name of several, and `/query heads/KV heads` behind it.
    fn names(&self) -> [String; 2] {
        let short = format!("{}x{}", self.batch, self.tokens);
        let heads = format!("/{}/{}", self.q_heads, self.kv_heads);
        [short.clone(), short + &heads]
    }
}

/// Those of these names, `batch`x`tokens` or `batch`x`tokens`/`query heads`/`KV heads`; all, if
/// none is named.
pub fn shapes(named: &[String]) -> Result<Vec<Shape>, String> {
    if named.is_empty() {
        return Ok(SHAPES.to_vec());
    }
    let mut found = Vec::new();
    for name in named {
        let of_name = SHAPES.iter().filter(|s| s.names().contains(name));
        let before = found.len();
        found.extend(of_name);
        if found.len() == before {
            let known = SHAPES.map(|s| s.names()[1].clone()).join(", ");
            return Err(format!("there is no shape {name}; there are {known}"));
        }
    }
    Ok(found)
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
            windowed: ebb_kernels::kv::WindowedLayers::NONE,
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
                if best.as_ref().is_none_or(|b| us < b.0) {
                    best = Some((us, kernel));
                }
            }
        }
        if let Some((us, kernel)) = best {
            eprintln!("{}: best {us:.1} us by {kernel}", s.names()[1]);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_for_every_shape_that_has_it() {
        let heads = |named: &[&str]| -> Vec<(usize, usize)> {
            let named: Vec<String> = named.iter().map(|n| (*n).to_owned()).collect();
            let found = shapes(&named).unwrap();
            found.iter().map(|s| (s.q_heads, s.kv_heads)).collect()
        };
        assert_eq!(heads(&["64x4096"]), [(32, 8), (32, 32), (32, 1)]);
        assert_eq!(heads(&["64x4096/32/1"]), [(32, 1)]);
        assert_eq!(heads(&["128x8192", "8x4096/32/32"]), [(32, 8), (32, 32)]);
        assert_eq!(heads(&[]).len(), SHAPES.len());
        let names = SHAPES.map(|s| s.names()[1].clone());
        for (i, name) in names.iter().enumerate() {
            assert!(!names[..i].contains(name), "{name}");
        }
        let error = shapes(&["64x4096/8/8".to_owned()]).unwrap_err();
        assert!(
            error.contains("no shape 64x4096/8/8") && error.contains("64x4096/32/32"),
            "{error}"
        );
    }
}
