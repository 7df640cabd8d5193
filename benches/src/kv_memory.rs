//! `ebb-bench kv-memory`: what one sequence takes of the KV pool, by arithmetic.

use std::error::Error;
use std::path::PathBuf;

use ebb_block_manager::PoolConfig;
use ebb_block_manager::precision::MinBits;
use ebb_kernels::kv::WindowedLayers;
use ebb_models::model::{LoadFormat, ModelRef};
use ebb_scheduler::Mode;
use ebb_serving::kv_plan::{DEFAULT_FLOOR, KvPlan, KvSource};

use crate::csv::Csv;

const HEADER: &str =
    "model,tokens,layers,windowed_layers,window,all_layers_mib,16_bit_mib,floor_mib";

/// Tokens that steps in flight compute of a prompt, at most: a chunk and the next.
const TOKENS_AHEAD: u32 = 2 * 2048;

/// Tell what one sequence takes of the KV pool at most.
///
/// Prints the CSV `model,tokens,layers,windowed_layers,window,all_layers_mib,16_bit_mib,floor_mib`:
/// at 16 bit if all layers kept everything; at 16 bit with what layers with a sliding window give
/// back behind it, while its prompt is computed in chunks of 2048 tokens; and with its blocks at
/// their floor, which is what admission promises.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Models: a config.json in a directory is enough
    #[arg(value_name = "NAME|DIR|FILE", required = true)]
    models: Vec<String>,
    /// Tokens of the sequence
    #[arg(long, value_name = "N", default_value_t = 32_768)]
    tokens: u64,
    /// Formats that blocks shrink to
    #[arg(long, value_name = "SPEC", default_value = DEFAULT_FLOOR)]
    kv_floor: String,
    /// Append to this CSV file too
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Runs the benchmark.
///
/// # Errors
/// When a model cannot be read or cannot have such pages.
pub fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let mut csv = Csv::new(HEADER, args.out.as_deref())?;
    let source = KvSource::Floor(args.kv_floor.parse()?);
    for model in &args.models {
        let name = ModelRef::parse(model)?.files(None)?.name();
        let opened = ebb_models::open_as(model, None, LoadFormat::Dummy, None)?;
        let geometry = opened.model.spec.kv_geometry();
        let pool = |geometry| -> Result<PoolConfig, Box<dyn Error>> {
            Ok(KvPlan::new(geometry, Mode::Progressive, &source)?.pool(1))
        };
        let all = pool(ebb_kernels::kv::KvGeometry {
            windowed: WindowedLayers::NONE,
            ..geometry
        })?;
        let with_windows = pool(geometry)?;
        let mib = |frames: u64, pool: &PoolConfig| {
            (frames * pool.frame_bytes) as f64 / f64::from(1 << 20)
        };
        csv.line(&format!(
            "{name},{},{},{},{},{:.1},{:.1},{:.1}",
            args.tokens,
            geometry.layers,
            geometry.windowed.count(),
            geometry.windowed.tokens(),
            mib(all.frames_at_16_bit(args.tokens, TOKENS_AHEAD), &all),
            mib(
                with_windows.frames_at_16_bit(args.tokens, TOKENS_AHEAD),
                &with_windows
            ),
            mib(
                with_windows.floor_frames(args.tokens, MinBits::ANY, 0),
                &with_windows
            ),
        ))?;
    }
    Ok(())
}
