//! gRPC `ebb.v1`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ebb_proto::v1;
use ebb_proto::v1::ebb_client::EbbClient;
use ebb_proto::v1::generate_response::Event as Piece;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Request, Status, Streaming};

use super::target::ApiKey;
use super::{Address, Answer, Ask, Event, Failure, Finished, Pace, Protocol, Target};

/// Bytes of an answer that may be on their way to a client that reads at once, and of all answers
/// of a connection.
const EAGER_WINDOW_BYTES: (u32, u32) = (1 << 20, 16 << 20);
/// The same where clients pause: answers wait at the server, and do not hold up each other.
const SLOW_WINDOW_BYTES: (u32, u32) = (16 << 10, 16 << 20);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A client that sends its key with every call.
type Client = EbbClient<InterceptedService<Channel, Bearer>>;

/// Adds the key to a call, if there is one.
#[derive(Debug, Clone)]
struct Bearer(Option<MetadataValue<Ascii>>);

impl Bearer {
    fn new(key: Option<&ApiKey>) -> Result<Self, Failure> {
        let Some(key) = key else {
            return Ok(Self(None));
        };
        let value = format!("Bearer {}", key.text()).parse();
        let mut value: MetadataValue<Ascii> = value.map_err(|_| Failure {
            code: "UNAUTHENTICATED".into(),
            message: "EBB_API_KEY has characters other than visible ASCII ones".into(),
        })?;
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

/// Connections to an Ebb server.
#[derive(Debug, Clone)]
pub struct Ebb {
    eager: Arc<[Client]>,
    /// Made when first used.
    slow: Client,
    turn: Arc<AtomicUsize>,
    has_tls: bool,
}

impl Ebb {
    /// Opens `connections` connections, which requests take in turn.
    ///
    /// # Errors
    /// When nobody listens there, or its certificate is not one to trust.
    pub async fn connect(address: &Address, connections: usize) -> Result<Self, Failure> {
        let Address { url, tls, key } = address;
        let bearer = Bearer::new(key.as_ref())?;
        let lost = |error: tonic::transport::Error| {
            let cause = innermost(&error);
            let advice = if tls.is_some() {
                "--tls and --ca say whom to trust"
            } else {
                "start the server, or name another with --target; one behind TLS needs --tls"
            };
            Failure {
                code: "UNAVAILABLE".into(),
                message: format!("cannot connect to {url} ({cause}); {advice}"),
            }
        };
        let endpoint = |(stream, connection)| {
            let mut endpoint = Endpoint::from_shared(url.to_owned())?;
            if let Some(tls) = tls {
                let config = ClientTlsConfig::new();
                endpoint = endpoint.tls_config(match &tls.ca {
                    Some(pem) => config.ca_certificate(Certificate::from_pem(pem)),
                    None => config.with_native_roots(),
                })?;
            }
            let endpoint = endpoint
                .connect_timeout(CONNECT_TIMEOUT)
                .tcp_nodelay(true)
                .initial_stream_window_size(stream)
                .initial_connection_window_size(connection);
            Ok(endpoint)
        };
        let mut eager = Vec::with_capacity(connections);
        for _ in 0..connections.max(1) {
            let endpoint = endpoint(EAGER_WINDOW_BYTES).map_err(lost)?;
            let channel = endpoint.connect().await.map_err(lost)?;
            eager.push(EbbClient::with_interceptor(channel, bearer.clone()));
        }
        let slow = endpoint(SLOW_WINDOW_BYTES).map_err(lost)?.connect_lazy();
        Ok(Self {
            eager: eager.into(),
            slow: EbbClient::with_interceptor(slow, bearer),
            turn: Arc::default(),
            has_tls: tls.is_some(),
        })
    }

    fn client(&self, pace: Pace) -> Client {
        match pace {
            Pace::Slow => self.slow.clone(),
            Pace::Eager => {
                let turn = self.turn.fetch_add(1, Ordering::Relaxed);
                self.eager[turn % self.eager.len()].clone()
            }
        }
    }
}

impl Protocol for Ebb {
    type Answer = Streaming<v1::GenerateResponse>;

    async fn target(&self) -> Result<Target, Failure> {
        let mut client = self.client(Pace::Eager);
        let model = client.get_model_info(v1::GetModelInfoRequest {}).await;
        let model = model.map_err(|status| {
            let mut failure = failure(status);
            // What a server that waits for TLS looks like: which it is depends on how far the
            // connection came before it was closed.
            let broken = ["INTERNAL", "UNKNOWN", "UNAVAILABLE", "CANCELLED"];
            if !self.has_tls && broken.contains(&failure.code.as_str()) {
                failure.message += "; one behind TLS needs --tls";
            }
            failure
        });
        let model = model?.into_inner();
        let server = client.get_server_info(v1::GetServerInfoRequest {}).await;
        let server = server.map_err(failure)?.into_inner();
        Ok(Target {
            protocol: "ebb.v1".into(),
            server: format!("ebb {}", server.version),
            model: model.name,
            device: server.device,
            kv_mode: server.kv_precision.map(|kv| kv.mode).unwrap_or_default(),
            kv_bytes: server.kv_cache.map_or(0, |kv| kv.bytes_total),
            max_context: model.max_context,
            vocab_size: model.vocab_size,
            end_tokens: model.eos_token_ids,
        })
    }

    async fn generate(&self, ask: Ask, pace: Pace) -> Result<Self::Answer, Failure> {
        let answer = self.client(pace).generate(message(ask)).await;
        Ok(answer.map_err(failure)?.into_inner())
    }
}

impl Answer for Streaming<v1::GenerateResponse> {
    async fn next(&mut self) -> Option<Result<Event, Failure>> {
        loop {
            let piece = match self.message().await {
                Ok(message) => message?.event,
                Err(status) => return Some(Err(failure(status))),
            };
            return Some(Ok(match piece {
                Some(Piece::Started(started)) => Event::Started {
                    cached_tokens: started.cached_tokens,
                },
                Some(Piece::Delta(delta)) => Event::Tokens(delta.token_ids),
                Some(Piece::Finished(end)) => Event::Finished(Finished {
                    completion_tokens: end.completion_tokens,
                    lowest_kv_bits: Some(end.lowest_kv_bits),
                    mean_kv_bits: Some(end.mean_kv_bits),
                }),
                // Not asked for.
                Some(Piece::PromptLogprobs(_)) | None => continue,
            }));
        }
    }
}

/// What an error comes down to: transports wrap it in several that say nothing.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

fn message(ask: Ask) -> v1::GenerateRequest {
    let ids = v1::TokenIds { ids: ask.prompt };
    v1::GenerateRequest {
        prompt: Some(v1::generate_request::Prompt::TokenIds(ids)),
        sampling: Some(v1::SamplingParams {
            temperature: Some(ask.temperature),
            // The model's own defaults may restrict sampling; a load test means plain work.
            top_k: Some(0),
            top_p: Some(1.0),
            repetition_penalty: Some(1.0),
            seed: Some(ask.seed),
            max_tokens: Some(ask.max_tokens),
            ignore_eos: true,
            ..Default::default()
        }),
        timeout_ms: ask.timeout.map(|limit| limit.as_millis().max(1) as u64),
        min_kv_bits: ask.min_kv_bits,
        ..Default::default()
    }
}

fn failure(status: Status) -> Failure {
    Failure {
        code: code_name(status.code()),
        message: status.message().to_owned(),
    }
}

/// As gRPC spells it: `RESOURCE_EXHAUSTED`.
fn code_name(code: Code) -> String {
    let camel = format!("{code:?}");
    let mut name = String::new();
    for letter in camel.chars() {
        if letter.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_spelt_as_grpc_does() {
        assert_eq!(code_name(Code::Ok), "OK");
        assert_eq!(code_name(Code::ResourceExhausted), "RESOURCE_EXHAUSTED");
        assert_eq!(code_name(Code::DeadlineExceeded), "DEADLINE_EXCEEDED");
    }

    #[test]
    fn a_request_asks_for_plain_work() {
        let message = message(Ask {
            prompt: vec![5, 6],
            max_tokens: 9,
            temperature: 0.0,
            seed: 3,
            min_kv_bits: Some(8),
            timeout: Some(Duration::from_micros(10)),
        });
        let sampling = message.sampling.unwrap();
        assert!(sampling.ignore_eos);
        assert_eq!((sampling.max_tokens, sampling.seed), (Some(9), Some(3)));
        assert_eq!(
            (message.timeout_ms, message.min_kv_bits),
            (Some(1), Some(8))
        );
    }
}
