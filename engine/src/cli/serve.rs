//! `ebb serve`: the gRPC server, the HTTP API, and the metrics port.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::time::Duration;

use clap::Args;
use ebb_proto::v1;
use ebb_serving::EngineConfig;
use ebb_serving::client_memory::ClientMemory;
use ebb_serving::core::EngineHandle;
use ebb_serving::server::{
    ConnectionLimits, DEFAULT_MAX_CONNECTIONS, Server, ServerConfig, Signals, Times,
    serve_until_stopped,
};

use super::access_args::{AccessArgs, AccessConfig};
use super::engine_args::{EngineArgs, YEAR};
use super::error::CliError;
use super::size::ByteSize;
use super::source::start;

/// Bytes that one request message may have: a long prompt, with room to spare.
const MAX_MESSAGE_BYTES: u32 = 4 << 20;

/// Where to listen, and how to stop.
#[derive(Debug, Clone, Args)]
pub(super) struct ServeArgs {
    /// Address to listen on; 0.0.0.0 for every network.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    host: String,
    /// Port of the gRPC service; 0 lets the system choose.
    #[arg(long, value_name = "PORT", default_value_t = 50051)]
    port: u16,
    /// Port of the HTTP API (OpenAI's), which answers /metrics and probes, too; 0 lets the system
    /// choose.
    #[arg(long, value_name = "PORT", default_value_t = 8000)]
    http_port: u16,
    /// Serve no page at / of the HTTP port, and no /kv_pool that it draws.
    #[arg(long)]
    no_ui: bool,
    /// Port of /metrics, /livez and /readyz alone; 0 lets the system choose.
    #[arg(long, value_name = "PORT", default_value_t = 9400)]
    metrics_port: u16,
    /// Seconds that running requests get to finish after SIGTERM or Ctrl-C; a second signal ends at
    /// once.
    #[arg(long, value_name = "SECONDS", default_value_t = 30,
          value_parser = clap::value_parser!(u64).range(..=YEAR))]
    grace_period: u64,
    /// Maximum number of connections to the gRPC port, and to the HTTP API's; 0 for as many as the
    /// limit of open files allows. When they are taken, idle ones are closed for newcomers, the
    /// oldest first.
    #[arg(long, value_name = "N", default_value_t = DEFAULT_MAX_CONNECTIONS)]
    max_connections: usize,
    /// Of those, from one address; 0 for no limit of its own [default: half of --max-connections].
    /// Raise it where a proxy brings all clients.
    #[arg(long, value_name = "N")]
    max_connections_per_peer: Option<usize>,
    /// Memory for all that clients make the server hold beside the KV cache: messages on their way,
    /// texts being tokenised, prompts, answers not read yet. Beyond it calls get
    /// RESOURCE_EXHAUSTED or 429.
    #[arg(long, value_name = "SIZE", default_value_t = ByteSize(256 << 20))]
    client_memory: ByteSize,
    #[command(flatten)]
    access: AccessArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

/// Everything that `serve` needs, checked.
struct ServeConfig {
    engine: EngineConfig,
    server: ServerConfig,
    grace: Duration,
}

impl ServeArgs {
    fn config(&self) -> Result<ServeConfig, CliError> {
        let ports = [
            ("--port", self.port),
            ("--http-port", self.http_port),
            ("--metrics-port", self.metrics_port),
        ];
        for (i, &(flag, port)) in ports.iter().enumerate() {
            let same = |&&(_, other): &&(&str, u16)| port != 0 && other == port;
            if let Some((other, _)) = ports[..i].iter().find(same) {
                return Err(CliError::Usage(format!(
                    "{other} and {flag} are both {port}; choose two ports"
                )));
            }
        }
        let client_memory = ClientMemory::new(self.client_memory.0);
        let engine = EngineConfig {
            client_memory: client_memory.clone(),
            ..self.engine.config()?
        };
        let clamp = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let limits = v1::ServerLimits {
            max_running: clamp(engine.max_running),
            max_waiting: clamp(engine.max_waiting),
            max_step_tokens: clamp(engine.max_step_tokens),
            max_message_bytes: MAX_MESSAGE_BYTES,
        };
        let AccessConfig {
            access,
            allowed_origins,
            tls,
            metrics_tls,
        } = self.access.config()?;
        let server = ServerConfig {
            grpc: resolve(&self.host, self.port)?,
            api: Some(resolve(&self.host, self.http_port)?),
            page: !self.no_ui,
            http: Some(resolve(&self.host, self.metrics_port)?),
            limits,
            connections: ConnectionLimits {
                max: self.max_connections,
                per_peer: self.max_connections_per_peer,
            },
            times: Times::default(),
            client_memory,
            access,
            allowed_origins,
            tls,
            metrics_tls,
        };
        Ok(ServeConfig {
            engine,
            server,
            grace: Duration::from_secs(self.grace_period),
        })
    }

    /// Runs the command until a signal comes and what runs is finished.
    pub(super) async fn run(&self) -> Result<(), CliError> {
        let config = self.config()?;
        let mut signals = Signals::new().map_err(CliError::io("handle signals"))?;
        // Ports first: a taken one is known before the model is loaded, and probes are answered
        // meanwhile.
        let server = Server::<EngineHandle>::bind(&config.server).await?;
        let text = |address: Option<SocketAddr>| address.map(|a| a.to_string());
        let api = text(server.api_address()).unwrap_or_default();
        let http = text(server.http_address()).unwrap_or_default();
        let (keys, tls) = (config.server.access.count(), config.server.tls.is_some());
        tracing::info!(grpc = %server.grpc_address(), api, http, keys, tls, "listening");
        tracing::info!(model = config.engine.model, "loading the model");
        let engine = tokio::select! {
            engine = start(config.engine) => engine?,
            (signal, code) = signals.next() => {
                tracing::info!(signal, "stopped before the model was loaded");
                std::process::exit(code);
            }
        };
        let model = engine.model().name.clone();
        server.ready(engine.clone()).await;
        tracing::info!(model, "ready");
        let result = serve_until_stopped(server, &engine, &mut signals, config.grace).await;
        // Tasks of the server may have handles of their own for a moment yet.
        engine.close();
        if result.is_ok() {
            tracing::info!("stopped");
        }
        Ok(result?)
    }
}

fn resolve(host: &str, port: u16) -> Result<SocketAddr, CliError> {
    let unknown = |why: String| {
        CliError::Usage(format!(
            "--host {host:?} is not an address of this machine ({why}); try 127.0.0.1 or 0.0.0.0"
        ))
    };
    let mut addresses = (host, port)
        .to_socket_addrs()
        .map_err(|e| unknown(e.to_string()))?;
    addresses
        .next()
        .ok_or_else(|| unknown("the name has no address".into()))
}

#[cfg(test)]
mod tests {
    use super::super::{Cli, Command};
    use super::*;
    use clap::Parser as _;
    use ebb_scheduler::Mode;

    fn config(flags: &str) -> Result<ServeConfig, String> {
        let args = ["ebb", "serve"].into_iter().chain(flags.split_whitespace());
        let cli = Cli::try_parse_from(args).map_err(|e| e.to_string())?;
        let Command::Serve(serve) = cli.command else {
            panic!("not serve")
        };
        serve.config().map_err(|e| e.to_string())
    }

    #[test]
    fn flags_become_one_checked_config() {
        let c = config(
            "--kv-memory 512MiB --max-running 8 --no-prefix-cache --threads 3 --port 7 \
             --grace-period 5",
        );
        let c = c.unwrap();
        assert_eq!(
            (c.engine.kv_memory_bytes, c.engine.max_running),
            (Some(512 << 20), 8)
        );
        assert_eq!(
            (
                c.engine.prefix_cache,
                c.engine.threads,
                c.engine.max_context
            ),
            (false, 3, None)
        );
        assert_eq!(c.server.grpc.to_string(), "127.0.0.1:7");
        assert_eq!(c.server.http.map(|a| a.port()), Some(9400));
        assert_eq!(
            (c.grace, c.server.limits.max_running),
            (Duration::from_secs(5), 8)
        );
    }

    #[test]
    fn the_page_can_be_left_out() {
        let has_page = |flags: &str| config(flags).map(|c| c.server.page);
        assert_eq!((has_page(""), has_page("--no-ui")), (Ok(true), Ok(false)));
    }

    #[test]
    fn vllms_names_mean_the_same() {
        let vllm = config(
            "./a-model --max-model-len 640 --max-num-seqs 8 --max-num-batched-tokens 96 \
             --no-enable-prefix-caching",
        );
        let ours = config(
            "--model ./a-model --max-context 640 --max-running 8 --max-step-tokens 96 \
             --no-prefix-cache",
        );
        let [vllm, ours] = [vllm, ours].map(|c| c.unwrap().engine);
        assert_eq!((vllm.model.as_str(), vllm.max_running), ("./a-model", 8));
        assert_eq!(vllm.max_context, Some(640));
        assert_eq!((vllm.max_step_tokens, vllm.prefix_cache), (96, false));
        assert_eq!(format!("{vllm:?}"), format!("{ours:?}"));
    }

    #[test]
    fn priority_preemption_takes_a_margin() {
        let margin = |flags: &str| config(flags).map(|c| c.engine.priority_margin);
        assert_eq!(margin(""), Ok(None));
        assert_eq!(margin("--priority-preemption ./a-model"), Ok(Some(1)));
        assert_eq!(margin("--priority-preemption=5"), Ok(Some(5)));
        assert!(margin("--priority-preemption=0").is_err());
    }

    #[test]
    fn the_last_word_on_the_prefix_cache_counts() {
        let caches = |flags: &str| config(flags).unwrap().engine.prefix_cache;
        assert!(caches("") && caches("--enable-prefix-caching"));
        assert!(caches("--no-prefix-cache --enable-prefix-caching"));
        assert!(!caches(
            "--enable-prefix-caching --no-enable-prefix-caching"
        ));
    }

    #[test]
    fn a_model_is_named_once() {
        let error = config("./a --model ./b").err().expect("refused");
        assert!(error.contains("--model"), "{error}");
    }

    #[test]
    fn whoever_names_a_floor_wants_a_cache_that_shrinks() {
        let mode = |flags: &str| config(flags).unwrap().engine.kv_mode;
        assert_eq!(mode(""), None);
        assert_eq!(mode("--kv-floor k=int8,v=int8"), Some(Mode::Progressive));
        assert_eq!(
            mode("--kv-floor k=int8,v=int8 --kv-mode static"),
            Some(Mode::Static)
        );
        assert_eq!(mode("--kv-mode preempt-only"), Some(Mode::PreemptOnly));
        assert_eq!(mode("--kv-preset kivi2"), Some(Mode::Static));
        assert_eq!(mode("--kv-preset ebb"), Some(Mode::Progressive));
        assert_eq!(mode("--kv-preset ebb --kv-mode static"), Some(Mode::Static));
    }

    #[test]
    fn what_cannot_work_is_refused_with_the_flag() {
        for (flags, word) in [
            ("--max-running 0", "--max-running"),
            ("--max-waiting 0", "--max-waiting"),
            ("--max-step-tokens 0", "--max-step-tokens"),
            ("--max-context 0", "--max-context"),
            ("--threads 0", "--threads"),
            ("--kv-memory 5", "--kv-memory"),
            ("--gpu-memory-utilization 1.5", "--gpu-memory-utilization"),
            ("--device gpu", "cuda:1"),
            ("--device cuda:99", "--device"),
            ("--kv-memory lots", "--kv-memory"),
            ("--port 80 --metrics-port 80", "--metrics-port"),
            ("--port 80 --http-port 80", "--http-port"),
            ("--http-port 80 --metrics-port 80", "--http-port"),
            ("--port 70000", "--port"),
            ("--host not.a.name.invalid", "--host"),
            ("--grace-period soon", "--grace-period"),
            ("--grace-period 18446744073709551615", "--grace-period"),
            ("--hang-timeout=-1", "--hang-timeout"),
            ("--kv-preset kivi3", "kitty25-random"),
            ("--kv-preset pmkvq", "pmkvq:FILE"),
            ("--kv-preset kivi2 --kv-floor int8", "--kv-floor"),
        ] {
            let error = config(flags)
                .err()
                .unwrap_or_else(|| panic!("{flags} was accepted"));
            assert!(error.contains(word), "{flags}: {error}");
        }
    }
}
