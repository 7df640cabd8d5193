//! `ebb-bench online`: a request trace against the engine, in real time.

mod figures;

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use ebb_load::trace::Trace;
use ebb_models::model::LoadFormat;
use ebb_serving::core::{EngineHandle, RequestError};
use tokio::task::JoinSet;

pub use figures::{Figures, figures};

use crate::csv::Csv;
use crate::engine_args::{EngineArgs, start};
use crate::simulate::args::read_trace;
use crate::simulate::setup::Targets;
use crate::throughput::{Answer, Ask, Timeline, Workload, answer, measure};

const HEADER: &str = "engine,kv,kv_gib,rate,requests,served,rejected,attained,ttft_p50_s,\
                      ttft_p99_s,tpot_p50_ms,tpot_p99_ms,out_tok_s,preemptions,mean_kv_bits";

/// Run a request trace against the engine in real time: what `simulate` tells of a modelled GPU,
/// measured. Requests arrive at their times, with random prompts and answers of the trace's
/// lengths.
///
/// Prints the CSV
/// `engine,kv,kv_gib,rate,requests,served,rejected,attained,ttft_p50_s,ttft_p99_s,tpot_p50_ms,tpot_p99_ms,out_tok_s,preemptions,mean_kv_bits`;
/// attained is the share of all requests that meet both targets.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// CSV file of arrival in milliseconds, prompt tokens, generated tokens [default: the Azure
    /// conversation trace]
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Requests a second on average, one after the other in one engine
    #[arg(long, value_name = "LIST", value_delimiter = ',', required = true)]
    rate: Vec<f64>,
    /// Requests: the trace is cut, or repeated, to as many [default: those it has]
    #[arg(long, value_name = "N")]
    requests: Option<usize>,
    /// Target for the time to the first token, in seconds
    #[arg(long, value_name = "S", default_value_t = 2.0)]
    ttft: f64,
    /// Target for the time between two tokens, in seconds, on an answer's average
    #[arg(long, value_name = "S", default_value_t = 0.05)]
    tpot: f64,
    /// Append to this CSV file too
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Append to this CSV file what the engine held and did, ten times a second
    #[arg(long, value_name = "FILE")]
    timeline: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineArgs,
}

/// Runs the benchmark.
///
/// # Errors
/// When the trace cannot be read, or the engine does not start or fails.
pub fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    crate::log_to_stderr();
    let trace = read_trace(args.trace.as_deref(), &args.rate, args.requests)?;
    // Room for the token that an answer's last one would be followed by.
    let longest = trace.iter().map(|a| a.prompt + a.generated).max();
    let context = longest.unwrap_or(0) as usize + 1;
    let mut config = args.engine.config(LoadFormat::Dummy, Some(context))?;
    config.max_waiting = trace.len().max(config.max_waiting);
    let step_tokens = config.max_step_tokens;
    let (engine, runtime) = start(config)?;
    let mut csv = Csv::new(HEADER, args.out.as_deref())?;
    // What is made at first use is made before the clock starts.
    let warm = Workload {
        n: 4,
        input: (step_tokens / 2).min(context.saturating_sub(5)).max(1),
        output: 4.min(context - 2),
    };
    runtime.block_on(measure(&engine, &warm, 0.0, 1))?;
    for (&rate, seed) in args.rate.iter().zip(2..) {
        let trace = trace.clone().with_rate(rate);
        let before = engine.state().preemptions;
        let (answers, seconds) = runtime.block_on(async {
            let timeline = match args.timeline.as_deref() {
                Some(path) => Some((Timeline::begin(&engine).await, path)),
                None => None,
            };
            let replayed = replay(&engine, &trace, seed).await;
            if let Some((timeline, path)) = timeline {
                let setting = format!("ebb,{},{rate}", mode_and_memory(&engine));
                timeline
                    .end("engine,kv,kv_gib,rate", &setting, path)
                    .await?;
            }
            replayed
        })?;
        let targets = Targets {
            ttft: args.ttft,
            tpot: args.tpot,
        };
        let f = figures(&answers, targets, seconds);
        csv.line(&format!(
            "ebb,{},{rate},{},{},{},{:.4},{:.3},{:.3},{:.2},{:.2},{:.1},{},{:.2}",
            mode_and_memory(&engine),
            trace.len(),
            f.served,
            f.rejected,
            f.attained,
            f.ttft_p50,
            f.ttft_p99,
            1e3 * f.tpot_p50,
            1e3 * f.tpot_p99,
            f.out_tok_s,
            engine.state().preemptions - before,
            f.mean_kv_bits
        ))?;
    }
    runtime.block_on(engine.drain(Duration::from_secs(1)));
    Ok(())
}

fn mode_and_memory(engine: &EngineHandle) -> String {
    let state = engine.state();
    let gib = state.kv_bytes_total as f64 / f64::from(1u32 << 30);
    format!("{},{gib:.2}", state.kv.mode)
}

/// What became of each request, in the order of their arrivals (none: it was turned away), and the
/// seconds until all were done. An answer's times count from when its request was due.
async fn replay(
    engine: &EngineHandle,
    trace: &Trace,
    seed: u64,
) -> Result<(Vec<Option<Answer>>, f64), Box<dyn Error>> {
    let begin = tokio::time::Instant::now();
    let mut tasks = JoinSet::new();
    let mut answers = vec![None; trace.len()];
    let mut note = |done: Result<(usize, Result<Answer, RequestError>), _>| {
        let (index, answered) = done?;
        answers[index] = match answered {
            Ok(answer) => Some(answer),
            Err(RequestError::QueueFull { .. } | RequestError::Invalid { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        Ok::<_, Box<dyn Error>>(())
    };
    for (index, arrival) in trace.iter().enumerate() {
        let workload = Workload {
            n: 1,
            input: arrival.prompt as usize,
            output: arrival.generated as usize,
        };
        let (vocab, seed) = (engine.model().vocab, seed << 32 | index as u64);
        let prompt = workload.prompts(vocab, seed).remove(0);
        let request = Ask::of(vocab, &workload, 0.0, seed)?.request(prompt);
        let due = begin + Duration::from_secs_f64(arrival.at);
        tokio::time::sleep_until(due).await;
        let answer = answer(engine.clone(), request, due.into_std());
        tasks.spawn(async move { (index, answer.await) });
        while let Some(done) = tasks.try_join_next() {
            note(done)?;
        }
    }
    while let Some(done) = tasks.join_next().await {
        note(done)?;
    }
    Ok((answers, begin.elapsed().as_secs_f64()))
}
