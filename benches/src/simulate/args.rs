//! The command line.

use std::path::{Path, PathBuf};

use ebb_scheduler::{Admission, Config, Mode};
use ebb_serving::kv_plan::DEFAULT_FLOOR;
use ebb_serving::kv_spec::KvSpec;

use super::hardware::{H200, Hardware};
use super::setup::{Setup, Targets, mode_named};
use super::shape::Shape;
use super::size::Size;
use super::trace::{Trace, azure};

/// Replay a request trace against the scheduler, on a modelled GPU: what a KV budget serves within
/// a latency target.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// CSV file of arrival in milliseconds, prompt tokens, generated tokens [default: the Azure
    /// conversation trace]
    #[arg(long, value_name = "FILE", help_heading = "Load")]
    pub trace: Option<PathBuf>,
    /// Requests a second on average; several give a row each [default: the trace's own]
    #[arg(
        long,
        value_name = "X",
        value_delimiter = ',',
        help_heading = "Load",
        conflicts_with = "search"
    )]
    pub rate: Vec<f64>,
    /// Requests: the trace is cut, or repeated, to as many [default: those it has]
    #[arg(long, value_name = "N", help_heading = "Load")]
    pub requests: Option<usize>,
    /// Find the highest rate at which the share --attain of the requests meets both targets
    #[arg(long, help_heading = "Load")]
    pub search: bool,
    /// Share of the requests for --search
    #[arg(
        long,
        value_name = "SHARE",
        default_value_t = 0.95,
        help_heading = "Load"
    )]
    pub attain: f64,
    /// Target for the time to the first token, in seconds
    #[arg(long, value_name = "S", default_value_t = 2.0, help_heading = "Load")]
    pub ttft: f64,
    /// Target for the time between two tokens, in seconds, on an answer's average
    #[arg(long, value_name = "S", default_value_t = 0.05, help_heading = "Load")]
    pub tpot: f64,
    /// A request's max_tokens over the tokens it generates: 1 tells the scheduler the true length
    #[arg(long, value_name = "F", default_value_t = 1.0, help_heading = "Load")]
    pub max_tokens_factor: f64,

    /// What gives way when memory is full
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "preempt-only,static,progressive",
        value_parser = mode_named,
        help_heading = "Server"
    )]
    pub mode: Vec<Mode>,
    /// Memory of the KV cache
    #[arg(
        long,
        value_name = "SIZE",
        value_delimiter = ',',
        default_value = "4GiB,8GiB,16GiB,32GiB",
        help_heading = "Server"
    )]
    pub kv_memory: Vec<Size>,
    /// Formats that blocks shrink to
    #[arg(long, value_name = "SPEC", default_value = DEFAULT_FLOOR, help_heading = "Server")]
    pub floor: String,
    /// Shape of the model: 8b or smollm2-135m
    #[arg(long, default_value = "8b", value_parser = Shape::named, help_heading = "Server")]
    pub model: Shape,
    /// Sequences with memory at once
    #[arg(long, value_name = "N", default_value_t = 256, help_heading = "Server")]
    pub max_running: usize,
    /// Requests that may wait [default: all]
    #[arg(long, value_name = "N", help_heading = "Server")]
    pub max_waiting: Option<usize>,
    /// Tokens of one step
    #[arg(
        long,
        value_name = "N",
        default_value_t = 2048,
        help_heading = "Server"
    )]
    pub max_step_tokens: usize,
    /// Tokens of one prompt in one step
    #[arg(
        long,
        value_name = "N",
        default_value_t = 2048,
        help_heading = "Server"
    )]
    pub prefill_chunk: usize,
    /// Share of the pool that admission may promise at the floor
    #[arg(
        long,
        value_name = "PERCENT",
        default_value_t = 100,
        help_heading = "Server"
    )]
    pub overcommit: u32,
    /// Where blocks shrink: admit what fits at the floor (degrade), or at 16 bit (queue)
    #[arg(long, default_value = "degrade", value_parser = admission_named, help_heading = "Server")]
    pub admission: Admission,

    /// Steps that are planned and not done: 2 on a GPU, whose next step is planned while one runs
    #[arg(
        long,
        value_name = "N",
        default_value_t = 2,
        value_parser = clap::value_parser!(u8).range(1..=2),
        help_heading = "Server"
    )]
    pub in_flight: u8,
    /// Mode static: tokens of a prompt that read each other at 16 bit [default: by the KV memory,
    /// as an engine does]
    #[arg(long, value_name = "TOKENS", help_heading = "Server")]
    pub static_chunk: Option<u32>,
    /// Blocks of requests that have ended are free at once, and not when others need them
    #[arg(long, help_heading = "Server")]
    pub no_prefix_cache: bool,
    /// Bytes of the blocks that one step transcodes in mode progressive
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "256MiB",
        help_heading = "Server"
    )]
    pub shrink_bytes: Size,
    /// Mode progressive begins to shrink when less of the pool would be free, in thousandths
    #[arg(
        long,
        value_name = "PERMILLE",
        default_value_t = 20,
        help_heading = "Server"
    )]
    pub low_water: u32,
    /// ... and goes on until as much would be
    #[arg(
        long,
        value_name = "PERMILLE",
        default_value_t = 50,
        help_heading = "Server"
    )]
    pub high_water: u32,
    /// Mode progressive also shrinks where running requests hold more than this
    #[arg(long, value_name = "SIZE", help_heading = "Server")]
    pub live_limit: Option<Size>,

    /// Bytes a second that a copy moves on the GPU, an H200 unless told otherwise
    #[arg(long, value_name = "B/S", default_value_t = H200.bandwidth, help_heading = "Hardware")]
    pub bandwidth: f64,
    /// Share of it that a step's kernels get
    #[arg(
        long,
        value_name = "SHARE",
        default_value_t = H200.bandwidth_efficiency,
        help_heading = "Hardware"
    )]
    pub bandwidth_efficiency: f64,
    /// FLOP a second of a large bf16 matrix product
    #[arg(long, value_name = "FLOP/S", default_value_t = H200.flops, help_heading = "Hardware")]
    pub flops: f64,
    /// Share of it that a step's kernels get
    #[arg(
        long,
        value_name = "SHARE",
        default_value_t = H200.flops_efficiency,
        help_heading = "Hardware"
    )]
    pub flops_efficiency: f64,
    /// Share of the bandwidth that reading shrunk blocks gets, of what reading 16-bit ones gets
    #[arg(
        long,
        value_name = "SHARE",
        default_value_t = H200.shrunk_efficiency,
        help_heading = "Hardware"
    )]
    pub shrunk_efficiency: f64,
    /// Seconds of each step in which the GPU does not compute
    #[arg(long, value_name = "S", default_value_t = H200.overhead, help_heading = "Hardware")]
    pub overhead: f64,

    /// Tell the bits of a stored token when everything unprotected stands at the floor
    #[arg(long, help_heading = "Output")]
    pub at_floor: bool,
    /// Write the figures to this CSV file
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub csv: Option<PathBuf>,
    /// Print the figures as JSON
    #[arg(long, help_heading = "Output")]
    pub json: bool,
    /// Write a plot of goodput over KV memory to this SVG file
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub plot: Option<PathBuf>,
}

fn admission_named(name: &str) -> Result<Admission, String> {
    match name {
        "degrade" => Ok(Admission::Degrade),
        "queue" => Ok(Admission::Queue),
        _ => Err(format!(
            "{name:?} is not a policy of admission; choose degrade or queue"
        )),
    }
}

impl Args {
    /// The trace, cut or repeated as asked for.
    ///
    /// # Errors
    /// A sentence with the file or flag at fault.
    pub fn trace(&self) -> Result<Trace, String> {
        read_trace(self.trace.as_deref(), &self.rate, self.requests)
    }

    /// A server of a mode and memory.
    ///
    /// # Errors
    /// A sentence with the flag at fault.
    pub fn setup(&self, mode: Mode, kv: Size) -> Result<Setup, String> {
        for (flag, value) in [
            ("--bandwidth", self.bandwidth),
            ("--bandwidth-efficiency", self.bandwidth_efficiency),
            ("--flops", self.flops),
            ("--flops-efficiency", self.flops_efficiency),
            ("--shrunk-efficiency", self.shrunk_efficiency),
        ] {
            if !(value > 0.0 && value.is_finite()) {
                return Err(format!("{flag} is {value}; it must be above 0"));
            }
        }
        if !(0.0..=1e3).contains(&self.overhead) {
            return Err(format!(
                "--overhead is {}; it must be from 0 to 1000 seconds",
                self.overhead
            ));
        }
        if !(1.0..=1e4).contains(&self.max_tokens_factor) {
            return Err(format!(
                "--max-tokens-factor is {}; it must be from 1 to 10000",
                self.max_tokens_factor
            ));
        }
        if !(0.0..=1.0).contains(&self.attain) {
            return Err(format!(
                "--attain is {}; it must be from 0 to 1",
                self.attain
            ));
        }
        Ok(Setup {
            shape: self.model,
            hardware: Hardware {
                bandwidth: self.bandwidth,
                bandwidth_efficiency: self.bandwidth_efficiency,
                flops: self.flops,
                flops_efficiency: self.flops_efficiency,
                shrunk_efficiency: self.shrunk_efficiency,
                overhead: self.overhead,
            },
            kv_bytes: kv.0,
            floor: self.floor.parse::<KvSpec>().map_err(|e| e.to_string())?,
            limits: Config {
                mode,
                max_running: self.max_running,
                max_waiting: self.max_waiting.unwrap_or(1 << 24),
                max_step_tokens: self.max_step_tokens,
                prefill_chunk: self.prefill_chunk,
                max_logit_rows: self.max_running,
                overcommit_percent: self.overcommit,
                admission: self.admission,
                shrink_bytes_max: self.shrink_bytes.0,
                low_water_permille: self.low_water,
                high_water_permille: self.high_water,
                live_bytes_max: self.live_limit.map_or(u64::MAX, |size| size.0),
                max_in_flight: self.in_flight.into(),
                ..Config::default()
            },
            static_chunk: self.static_chunk,
            prefix_cache: !self.no_prefix_cache,
            max_tokens_factor: self.max_tokens_factor,
            targets: Targets {
                ttft: self.ttft,
                tpot: self.tpot,
            },
        })
    }

    /// What the plot shows.
    pub fn title(&self) -> String {
        let what = match (self.search, self.rate.as_slice()) {
            (true, _) => format!("highest rate with {} % in target", 100.0 * self.attain),
            (false, [rate]) => format!("at {rate} req/s"),
            (false, _) => "goodput".to_owned(),
        };
        format!(
            "{} on one GPU (modelled), {what}: TTFT \u{2264} {} s, TPOT \u{2264} {} ms",
            self.model.name,
            self.ttft,
            1e3 * self.tpot
        )
    }
}

/// A trace, the Azure conversation trace unless told otherwise, cut or repeated; its rates are to
/// be these.
///
/// # Errors
/// A sentence with the file or flag at fault.
pub(crate) fn read_trace(
    path: Option<&Path>,
    rates: &[f64],
    requests: Option<usize>,
) -> Result<Trace, String> {
    if let Some(rate) = rates.iter().find(|rate| !(1e-3..=1e6).contains(*rate)) {
        return Err(format!(
            "--rate is {rate}; it must be from 0.001 to 1000000"
        ));
    }
    let trace = Trace::read(&path.map_or_else(azure, Path::to_owned))?;
    Ok(match requests {
        Some(0) => return Err("--requests is 0; it must be at least 1".into()),
        Some(requests) => trace.with_requests(requests),
        None => trace,
    })
}
