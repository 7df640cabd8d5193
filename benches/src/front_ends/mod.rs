//! `ebb-bench front-ends`: what gRPC and HTTP add to the engine.

mod direct;
mod instant;

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser as _;
use ebb_load::drive::{Drive, Limits, Live, Log, Run, Stage};
use ebb_load::protocol::{Address, Ebb, OpenAi, Protocol};
use ebb_load::record::Record;
use ebb_load::summary::{Figures, Slo};
use ebb_load::workload::{Workload, WorkloadArgs};
use ebb_models::model::LoadFormat;
use ebb_proto::v1::ServerLimits;
use ebb_serving::EngineConfig;
use ebb_serving::access::Access;
use ebb_serving::client_memory::ClientMemory;
use ebb_serving::core::EngineHandle;
use ebb_serving::server::{
    AllowedOrigins, ConnectionLimits, MetricsTls, Server, ServerConfig, Times,
};
use tokio::sync::watch;

use self::direct::Direct;
use self::instant::Instantly;
use crate::csv::Csv;

const HEADER: &str =
    "front_end,streams,step_ms,requests,ttft_p50_ms,ttft_p99_ms,itl_p50_ms,itl_p99_ms,tokens_s";

/// Measure what the gRPC and HTTP front ends add to the engine.
///
/// The real engine runs over a backend that computes nothing, in steps of a given time. Clients
/// ask it directly, over gRPC and over OpenAI's HTTP API; they run on one thread of the same
/// process. Prints the CSV
/// `front_end,streams,step_ms,requests,ttft_p50_ms,ttft_p99_ms,itl_p50_ms,itl_p99_ms,tokens_s`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Clients, each of which sends its next request when it has the answer
    #[arg(long, value_name = "N", default_value_t = 64)]
    streams: usize,
    /// Milliseconds of a step, one after the other; at 0 the host sets the pace
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [5.0, 1.0, 0.0])]
    step_ms: Vec<f64>,
    /// Seconds for each front end and step time
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    seconds: f64,
    /// Tokens of a prompt, as ebb-load takes them
    #[arg(long, value_name = "LENGTHS", default_value = "uniform:32..96")]
    prompt_tokens: String,
    /// Tokens of an answer; of unlike lengths, so that requests do not come all at once
    #[arg(long, value_name = "LENGTHS", default_value = "uniform:64..448")]
    output_tokens: String,
    /// Append to this CSV file too
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(clap::Parser)]
struct Plain {
    #[command(flatten)]
    workload: WorkloadArgs,
}

/// Runs the benchmark.
///
/// # Errors
/// When the engine or the server does not start.
pub fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let mut csv = Csv::new(HEADER, args.out.as_deref())?;
    for &step_ms in &args.step_ms {
        let engine = engine(args, Duration::from_secs_f64(step_ms / 1e3))?;
        let serving = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()?;
        let server = serving.block_on(async {
            let server = Server::bind(&server_config()).await?;
            server.ready(engine.clone()).await;
            Ok::<_, Box<dyn Error>>(server)
        })?;
        let http = server.api_address().ok_or("the server has no HTTP port")?;
        let grpc = Address::plain(format!("http://{}", server.grpc_address()));
        let clients = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        clients.block_on(async {
            let mut line = |name: &str, figures: &Figures| {
                let of = |quantiles: &Option<ebb_load::summary::Quantiles>| {
                    quantiles.map_or((0.0, 0.0), |q| (q.p50, q.p99))
                };
                let (ttft, itl) = (of(&figures.ttft_ms), of(&figures.itl_ms));
                csv.line(&format!(
                    "{name},{},{step_ms},{},{:.3},{:.3},{:.3},{:.3},{:.0}",
                    args.streams,
                    figures.requests,
                    ttft.0,
                    ttft.1,
                    itl.0,
                    itl.1,
                    figures.output_tokens_per_second
                ))
            };
            line("none", &measure(Direct(engine.clone()), args).await?)?;
            line("grpc", &measure(Ebb::connect(&grpc, 4).await?, args).await?)?;
            let openai = OpenAi::connect(&format!("http://{http}"), None).await?;
            line("http", &measure(openai, args).await?)?;
            Ok::<_, Box<dyn Error>>(())
        })?;
        serving.block_on(server.shut_down(Duration::from_secs(1)));
    }
    Ok(())
}

/// An engine of Llama-3.1-8B's shape, whose steps take so long.
fn engine(args: &Args, step: Duration) -> Result<EngineHandle, Box<dyn Error>> {
    let mut config = EngineConfig::new("benches/data/llama-3.1-8b", 16 << 30);
    config.load_format = LoadFormat::Dummy;
    config.max_running = args.streams;
    config.max_step_tokens = 8192;
    let backend = ebb_serving::start_on(config, |_, model, _| {
        Ok(Box::new(Instantly::new(model.spec.clone(), step)))
    });
    Ok(backend?)
}

fn server_config() -> ServerConfig {
    let any = || ([127, 0, 0, 1], 0).into();
    ServerConfig {
        grpc: any(),
        api: Some(any()),
        http: None,
        page: false,
        limits: ServerLimits {
            max_message_bytes: 4 << 20,
            ..ServerLimits::default()
        },
        connections: ConnectionLimits {
            max: 1024,
            per_peer: Some(1024),
        },
        times: Times::default(),
        client_memory: ClientMemory::unlimited(),
        access: Access::open(),
        allowed_origins: AllowedOrigins::None,
        tls: None,
        metrics_tls: MetricsTls::Off,
    }
}

async fn measure<P: Protocol>(protocol: P, args: &Args) -> Result<Figures, Box<dyn Error>> {
    let flags = [
        String::new(),
        format!("--prompt-tokens={}", args.prompt_tokens),
        format!("--output-tokens={}", args.output_tokens),
    ];
    let target = protocol.target().await?;
    let workload = Workload::new(&Plain::parse_from(flags).workload, None, &target);
    let (_interrupt, interrupted) = watch::channel(false);
    let run = Arc::new(Run {
        protocol,
        workload,
        limits: Limits {
            sessions: usize::MAX,
            in_flight: args.streams,
            drain: Duration::from_secs(10),
            time: Duration::from_secs(3600),
        },
        epoch: Instant::now(),
        live: Live::default(),
        log: Log::default(),
        interrupted,
    });
    let stage = |label: &str, seconds: f64| Stage {
        label: label.to_owned(),
        load: args.streams as f64,
        drive: Drive::Closed {
            clients: args.streams,
            duration: Duration::from_secs_f64(seconds),
        },
    };
    // Connections and buffers are made before the clock starts.
    run.stage(1, &stage("warm-up", 1.0)).await;
    let stage = stage("measured", args.seconds);
    let span = run.stage(0, &stage).await;
    let slo = Slo {
        ttft_ms: f64::MAX,
        itl_ms: f64::MAX,
    };
    let figures = run.log.with(|records| {
        let records: Vec<&Record> = records.iter().filter(|r| r.stage == 0).collect();
        Figures::of(&stage, &span, &records, &slo)
    });
    match figures.failed_share {
        0.0 => Ok(figures),
        _ => Err(format!("requests failed: {:?}", figures.outcomes).into()),
    }
}
