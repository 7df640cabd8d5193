//! `ebb-bench throughput`: tokens a second of the whole engine, offline.

mod figures;
mod measure;
mod timeline;
mod workload;

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use ebb_models::model::LoadFormat;
use ebb_serving::core::EngineHandle;

pub use figures::{Answer, Figures, figures};
pub(crate) use figures::{percentile, sorted};
pub(crate) use measure::{Ask, answer};
pub use measure::{Measured, measure};
pub(crate) use timeline::Timeline;
pub use workload::Workload;

use crate::csv::Csv;
use crate::engine_args::{EngineArgs, start};

const SETTING: &str = "engine,kv,in,out,n,kv_gib";
const ITL_HEADER: &str =
    "engine,kv,in,out,n,kv_gib,itl_p50_ms,itl_p99_ms,itl_smooth_p99_ms,p99_ratio,itl_jitter_p99";
const HEADER: &str = "engine,kv,in,out,n,kv_gib,decode_tok_s,out_tok_s,itl_p50_ms,itl_p99_ms,\
                      ttft_p50_ms,preemptions,mean_kv_bits";

/// Measure the tokens a second of the whole engine: all requests of a workload are submitted at
/// once, with random prompts and answers of a fixed length.
///
/// Prints the CSV
/// `engine,kv,in,out,n,kv_gib,decode_tok_s,out_tok_s,itl_p50_ms,itl_p99_ms,ttft_p50_ms,preemptions,mean_kv_bits`.
/// decode_tok_s counts the tokens between the last first token and the first end; out_tok_s all of
/// them over the whole time.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Workloads, one after the other in one engine: REQUESTSxPROMPT/ANSWER, in tokens
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "1x1024/256,64x1024/256,256x1024/256"
    )]
    workloads: Vec<Workload>,
    /// Load the model's files instead of random weights
    #[arg(long)]
    load: bool,
    /// Temperature; 0 is greedy
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    temperature: f32,
    /// Append to this CSV file too
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print, and append to this CSV file, how evenly tokens came:
    /// `engine,kv,in,out,n,kv_gib,itl_p50_ms,itl_p99_ms,itl_smooth_p99_ms,p99_ratio,itl_jitter_p99`,
    /// where smooth means that each gap counts as the median of the 33 around it, p99_ratio is the
    /// 99th percentile over the smooth one, and jitter a gap over its median
    #[arg(long, value_name = "FILE")]
    itl: Option<PathBuf>,
    /// Append to this CSV file what the engine held and did, ten times a second
    #[arg(long, value_name = "FILE")]
    timeline: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineArgs,
}

/// Runs the benchmark.
///
/// # Errors
/// When the engine does not start or does not answer.
pub fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    crate::log_to_stderr();
    let format = if args.load {
        LoadFormat::Auto
    } else {
        LoadFormat::Dummy
    };
    let largest = |of: fn(&Workload) -> usize| args.workloads.iter().map(of).max();
    // Room for the token that an answer's last one would be followed by.
    let context = largest(Workload::context).map(|tokens| tokens + 1);
    let mut config = args.engine.config(format, context)?;
    config.max_waiting = largest(|w| w.n).unwrap_or(1).max(config.max_waiting);
    let step_tokens = config.max_step_tokens;
    let (engine, runtime) = start(config)?;
    let mut csv = Csv::new(HEADER, args.out.as_deref())?;
    let itl = args.itl.as_deref();
    let mut itl = itl.map(|p| Csv::new(ITL_HEADER, Some(p))).transpose()?;
    for (workload, seed) in args.workloads.iter().zip(1..) {
        let measured = runtime.block_on(async {
            // What is made at first use is made before the clock starts: a full step of prompts, a
            // few of decoding.
            let warm = Workload {
                n: workload.n.min(step_tokens / workload.input + 1),
                output: workload.output.min(4),
                ..*workload
            };
            measure(&engine, &warm, args.temperature, seed << 32).await?;
            let timeline = match args.timeline.as_deref() {
                Some(path) => Some((Timeline::begin(&engine).await, path)),
                None => None,
            };
            let measured = measure(&engine, workload, args.temperature, seed).await?;
            if let Some((timeline, path)) = timeline {
                timeline
                    .end(SETTING, &setting(&engine, workload), path)
                    .await?;
            }
            Ok::<_, Box<dyn Error>>(measured)
        })?;
        csv.line(&row(&engine, workload, &measured))?;
        if let Some(itl) = &mut itl {
            itl.line(&itl_row(&engine, workload, &measured.figures))?;
        }
    }
    runtime.block_on(engine.drain(Duration::from_secs(1)));
    Ok(())
}

/// What both CSVs begin with.
fn setting(engine: &EngineHandle, workload: &Workload) -> String {
    let state = engine.state();
    let gib = state.kv_bytes_total as f64 / f64::from(1u32 << 30);
    let Workload { n, input, output } = workload;
    format!("ebb,{},{input},{output},{n},{gib:.2}", state.kv.mode)
}

fn itl_row(engine: &EngineHandle, workload: &Workload, f: &Figures) -> String {
    format!(
        "{},{:.3},{:.3},{:.3},{:.3},{:.3}",
        setting(engine, workload),
        f.itl_p50_ms,
        f.itl_p99_ms,
        f.itl_smooth_p99_ms,
        f.itl_p99_ms / f.itl_smooth_p99_ms,
        f.itl_jitter_p99
    )
}

fn row(engine: &EngineHandle, workload: &Workload, measured: &Measured) -> String {
    let f = &measured.figures;
    format!(
        "{},{:.1},{:.1},{:.3},{:.3},{:.1},{},{:.2}",
        setting(engine, workload),
        f.decode_tok_s,
        f.out_tok_s,
        f.itl_p50_ms,
        f.itl_p99_ms,
        f.ttft_p50_ms,
        measured.preemptions,
        f.mean_kv_bits
    )
}
