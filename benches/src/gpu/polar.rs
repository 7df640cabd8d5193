//! `ebb-bench polar`: what PolarQuant's table decode is worth against conversion to Cartesian, and
//! both against 16-bit keys.

use std::error::Error;
use std::sync::Arc;

use ebb_kernels::cuda::Device;
use ebb_kernels::cuda::probe::{PolarProbe, PolarWay};

/// Products may be off by this much, relatively: operands are rounded to fp16.
const ERROR_MAX: f64 = 2e-3;

/// Blocks that are compared with the CPU's.
const CHECKED: usize = 256;

/// Prints a line for each way: query-key products of four queries and one KV head of 128 channels
/// over `blocks` blocks.
///
/// # Errors
/// When products are not those of the CPU's codec.
pub fn run(device: &Arc<Device>, blocks: usize, repeats: usize) -> Result<(), Box<dyn Error>> {
    println!("keys,blocks,tokens,us_p50,us_min,key_bytes,gb_s,tokens_per_us,error");
    for way in PolarWay::ALL {
        let error = PolarProbe::new(device, way, CHECKED.min(blocks))?.error()?;
        if error > ERROR_MAX {
            return Err(format!(
                "{}: products are off by {error:.1e}, more than {ERROR_MAX:.0e}",
                way.name()
            )
            .into());
        }
        let mut probe = PolarProbe::new(device, way, blocks)?;
        let times = probe.time(repeats)?;
        let (p50, least) = (times[times.len() / 2], times[0]);
        let (bytes, tokens) = (probe.bytes(), probe.tokens());
        println!(
            "{},{blocks},{tokens},{p50:.1},{least:.1},{bytes},{:.0},{:.0},{error:.1e}",
            way.name(),
            bytes as f64 / p50 / 1e3,
            tokens as f64 / p50
        );
    }
    Ok(())
}
