//! Where answers come from: an engine in this process, or a running server.

use std::collections::VecDeque;
use std::path::PathBuf;

use clap::Args;
use ebb_proto::v1;
use ebb_proto::v1::ebb_client::EbbClient;
use ebb_proto::v1::generate_response::Event;
use ebb_serving::core::{EngineHandle, GenerateStream};
use ebb_serving::server::{request, responses, status};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Request, Status, Streaming};

use super::engine_args::{ENGINE_FLAGS, EngineArgs};
use super::error::{CliError, root_cause};
use super::secret::Secret;

/// Flags that say where answers come from.
#[derive(Debug, Clone, Args)]
pub(super) struct SourceArgs {
    /// Use the server at this address, such as http://127.0.0.1:50051, instead of loading a model
    /// here.
    #[arg(long, value_name = "URL", conflicts_with_all = ENGINE_FLAGS)]
    server: Option<String>,
    /// The API key that the server asks for.
    #[arg(long, value_name = "KEY", env = "EBB_API_KEY", hide_env_values = true)]
    api_key: Option<Secret>,
    /// The authority that the server's certificate is from, as a PEM file, for an address that
    /// begins with https:// [default: those that this system trusts].
    #[arg(long, value_name = "FILE", requires = "server")]
    ca: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineArgs,
}

/// A client that sends its key with every call.
type Client = EbbClient<InterceptedService<Channel, Bearer>>;

/// Answers requests.
pub(super) enum Source {
    /// An engine in this process.
    Local(EngineHandle),
    /// A server.
    Remote(Client),
}

impl SourceArgs {
    /// Connects, or loads the model.
    ///
    /// # Errors
    /// When there is no server or the model cannot be loaded.
    pub(super) async fn open(&self) -> Result<Source, CliError> {
        match &self.server {
            Some(url) => self.connect(url).await.map(Source::Remote),
            None => start(self.engine.config()?).await.map(Source::Local),
        }
    }
}

/// Loads a model without holding up the async tasks.
pub(super) async fn start(config: ebb_serving::EngineConfig) -> Result<EngineHandle, CliError> {
    let started = tokio::task::spawn_blocking(move || ebb_serving::start(config)).await;
    let started = started
        .map_err(|e| CliError::Status(format!("loading the model failed because of a bug: {e}")))?;
    Ok(started?)
}

impl SourceArgs {
    async fn connect(&self, url: &str) -> Result<Client, CliError> {
        let address = if url.contains("://") {
            url.to_owned()
        } else {
            format!("http://{url}")
        };
        let fail = |error: tonic::transport::Error| CliError::Connect {
            url: url.to_owned(),
            cause: root_cause(&error),
        };
        let mut endpoint = Endpoint::from_shared(address).map_err(fail)?;
        if endpoint.uri().scheme_str() == Some("https") {
            endpoint = endpoint.tls_config(self.tls()?).map_err(fail)?;
        }
        let channel = endpoint.connect().await.map_err(fail)?;
        let bearer = Bearer::new(self.api_key.as_ref())?;
        Ok(EbbClient::with_interceptor(channel, bearer))
    }

    /// Whom to trust.
    fn tls(&self) -> Result<ClientTlsConfig, CliError> {
        let Some(path) = &self.ca else {
            return Ok(ClientTlsConfig::new().with_native_roots());
        };
        let read = std::fs::read(path);
        let pem = read.map_err(CliError::io(format!("read --ca {}", path.display())))?;
        Ok(ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem)))
    }
}

/// Adds the key to a call, if there is one.
#[derive(Clone)]
pub(super) struct Bearer(Option<MetadataValue<Ascii>>);

impl Bearer {
    fn new(key: Option<&Secret>) -> Result<Self, CliError> {
        let Some(key) = key else {
            return Ok(Self(None));
        };
        let wrong = |_| {
            CliError::Usage(
                "--api-key (or EBB_API_KEY) has characters other than visible ASCII ones".into(),
            )
        };
        let mut value: MetadataValue<Ascii> =
            format!("Bearer {}", key.text()).parse().map_err(wrong)?;
        value.set_sensitive(true);
        Ok(Self(Some(value)))
    }
}

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(value) = &self.0 {
            let metadata = request.metadata_mut();
            metadata.insert("authorization", value.clone());
        }
        Ok(request)
    }
}

/// One answer, event by event. Dropping it aborts the request.
pub(super) enum Answer {
    /// From an engine in this process.
    Local {
        /// The request's name.
        request_id: String,
        /// The engine's side.
        events: GenerateStream,
        /// Converted but not yet taken.
        ready: VecDeque<v1::GenerateResponse>,
    },
    /// From a server.
    Remote(Box<Streaming<v1::GenerateResponse>>),
}

impl Source {
    /// Sends a request.
    ///
    /// # Errors
    /// When it is refused at once.
    pub(super) async fn generate(
        &mut self,
        message: v1::GenerateRequest,
    ) -> Result<Answer, CliError> {
        match self {
            Self::Local(engine) => {
                let request = request(message, engine.default_sampling()).map_err(Status::from)?;
                let request_id = request.request_id.clone();
                let events = engine.generate(request).await.map_err(|e| status(&e))?;
                Ok(Answer::Local {
                    request_id,
                    events,
                    ready: VecDeque::new(),
                })
            }
            Self::Remote(client) => Ok(Answer::Remote(Box::new(
                client.generate(message).await?.into_inner(),
            ))),
        }
    }

    /// Name of the model.
    ///
    /// # Errors
    /// When the server cannot be asked.
    pub(super) async fn model_name(&mut self) -> Result<String, CliError> {
        match self {
            Self::Local(engine) => Ok(engine.model().name.clone()),
            Self::Remote(client) => Ok(client
                .get_model_info(v1::GetModelInfoRequest {})
                .await?
                .into_inner()
                .name),
        }
    }
}

impl Answer {
    /// The next event; none after the last.
    ///
    /// # Errors
    /// When the request ended without a complete answer.
    pub(super) async fn next(&mut self) -> Result<Option<Event>, CliError> {
        loop {
            let message = match self {
                Self::Local {
                    request_id,
                    events,
                    ready,
                } => {
                    if ready.is_empty() {
                        let Some(event) = events.next().await else {
                            return Ok(None);
                        };
                        let event = event.map_err(|e| status(&e))?;
                        ready.extend(responses(event, request_id));
                    }
                    ready.pop_front()
                }
                Self::Remote(stream) => match stream.message().await? {
                    None => return Ok(None),
                    message => message,
                },
            };
            // A newer server may send events that this program does not know.
            if let Some(event) = message.and_then(|m| m.event) {
                return Ok(Some(event));
            }
        }
    }
}
