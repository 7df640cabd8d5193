//! `ebb-bench startup`: how long an engine takes from nothing to ready, with its files in the page
//! cache.

mod files;

use std::error::Error;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use ebb_models::model::{LoadFormat, ModelRef};
use ebb_serving::device::Device;

use crate::csv::Csv;
use crate::engine_args::EngineArgs;

const HEADER: &str = "engine,model,weights_gib,run,seconds,device_s,model_s";

/// What a started engine prints before its times.
const READY: &str = "ready ";

/// Measure how long an engine takes to start: writes safetensors of random values in a
/// configuration's shape, then starts an engine on them several times, each in a process of its
/// own.
///
/// Prints the CSV `engine,model,weights_gib,run,seconds,device_s,model_s`: from the start of the
/// process to ready, and of that the device's own start and everything from config.json on.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Where the files are kept meanwhile, in a folder of their own; needs room for the weights
    #[arg(long, value_name = "DIR", default_value_os_t = std::env::temp_dir())]
    dir: PathBuf,
    /// Starts
    #[arg(long, value_name = "N", default_value_t = 3)]
    runs: usize,
    /// Append to this CSV file too
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Start an engine once on the files here, print its times, and end
    #[arg(long, value_name = "DIR", hide = true)]
    once: Option<String>,
    #[command(flatten)]
    engine: EngineArgs,
}

/// Runs the benchmark.
///
/// # Errors
/// When the files cannot be written or an engine does not start.
pub fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    if let Some(dir) = &args.once {
        return once(args, dir);
    }
    let model = Path::new(&args.engine.model);
    let name = ModelRef::parse(&args.engine.model)?.files(None)?.name();
    let opened = ebb_models::open_as(&args.engine.model, None, LoadFormat::Dummy, None)?;
    let dir = args.dir.join(format!("ebb-startup-{}", std::process::id()));
    let begin = Instant::now();
    let written = files::write(&opened.model, &model.join("config.json"), &dir);
    let measured = written.and_then(|bytes| {
        let gib = bytes as f64 / f64::from(1u32 << 30);
        let seconds = begin.elapsed().as_secs_f64();
        eprintln!("wrote {gib:.2} GiB in {seconds:.1} s");
        let mut csv = Csv::new(HEADER, args.out.as_deref())?;
        for run in 1..=args.runs {
            let (seconds, parts) = start(&dir)?;
            csv.line(&format!("ebb,{name},{gib:.2},{run},{seconds:.3},{parts}"))?;
        }
        Ok(())
    });
    std::fs::remove_dir_all(&dir)?;
    measured
}

/// Starts an engine in a process of its own: seconds to ready, and the times that it tells.
fn start(dir: &Path) -> Result<(f64, String), Box<dyn Error>> {
    let begin = Instant::now();
    let mut child = Command::new(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .arg("--once")
        .arg(dir)
        .stdout(Stdio::piped())
        .spawn()?;
    let mut times = None;
    if let Some(out) = child.stdout.take() {
        for line in BufReader::new(out).lines() {
            if let Some(parts) = line?.strip_prefix(READY) {
                times = Some((begin.elapsed().as_secs_f64(), parts.to_owned()));
            }
        }
    }
    let status = child.wait()?;
    times.ok_or_else(|| format!("the engine did not start ({status})").into())
}

fn once(args: &Args, dir: &str) -> Result<(), Box<dyn Error>> {
    crate::log_to_stderr();
    let begin = Instant::now();
    let device = Device::open(args.engine.device)?;
    let device_s = begin.elapsed().as_secs_f64();
    let mut config = args.engine.config_on(device, LoadFormat::Auto, None)?;
    config.model = dir.to_owned();
    let begin = Instant::now();
    let engine = ebb_serving::start(config)?;
    println!("{READY}{device_s:.3},{:.3}", begin.elapsed().as_secs_f64());
    // The engine's thread is at rest; the system takes its memory back faster than it could be
    // freed.
    drop(engine);
    std::process::exit(0)
}
