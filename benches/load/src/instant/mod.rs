//! A server of `ebb.v1` that has its answers ready: what remains is the load generator's own cost.

mod answer;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ebb_proto::v1;
use ebb_proto::v1::ebb_server::{Ebb, EbbServer};
use tokio::sync::{Semaphore, oneshot};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

use answer::Answer;

/// How the server behaves.
#[derive(Debug, Clone, Copy)]
pub struct Behaviour {
    /// Time before each token.
    pub gap: Duration,
    /// Requests at once; more are refused.
    pub places: usize,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            gap: Duration::ZERO,
            places: 1 << 20,
        }
    }
}

/// A time in which nothing moves.
#[derive(Debug, Clone, Default)]
struct Stall(Arc<Mutex<Option<(Instant, Instant)>>>);

impl Stall {
    /// When it ends, if it is going on.
    fn end(&self) -> Option<Instant> {
        let now = Instant::now();
        let stall = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        stall
            .filter(|(begin, end)| *begin <= now && now < *end)
            .map(|(_, end)| end)
    }
}

/// A running server, in a thread of its own until dropped.
#[derive(Debug)]
pub struct InstantServer {
    address: SocketAddr,
    stall: Stall,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl InstantServer {
    /// Starts it on a free port of this machine.
    ///
    /// # Errors
    /// When there is no port or thread to be had.
    pub fn start(behaviour: Behaviour) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let listener = {
            let _context = runtime.enter();
            let bound = std::net::TcpListener::bind("127.0.0.1:0")?;
            bound.set_nonblocking(true)?;
            tokio::net::TcpListener::from_std(bound)?
        };
        let address = listener.local_addr()?;
        let stall = Stall::default();
        let service = Service {
            behaviour,
            stall: stall.clone(),
            places: Arc::new(Semaphore::new(behaviour.places)),
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let serve = async move {
            let server = Server::builder()
                .add_service(EbbServer::new(service))
                .serve_with_incoming(TcpIncoming::from(listener).with_nodelay(Some(true)));
            tokio::select! {
                _ = server => {}
                _ = stopped => {}
            }
        };
        let thread = std::thread::Builder::new()
            .name("instant-server".into())
            .spawn(move || runtime.block_on(serve))?;
        Ok(Self {
            address,
            stall,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Its address, as `--target` takes it.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// From `begin` on nothing is answered for this long.
    pub fn stall(&self, begin: Instant, length: Duration) {
        let mut stall = self.stall.0.lock().unwrap_or_else(PoisonError::into_inner);
        *stall = Some((begin, begin + length));
    }
}

impl Drop for InstantServer {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed.
            let _ = thread.join();
        }
    }
}

struct Service {
    behaviour: Behaviour,
    stall: Stall,
    places: Arc<Semaphore>,
}

#[tonic::async_trait]
impl Ebb for Service {
    type GenerateStream = Answer;

    async fn generate(
        &self,
        request: Request<v1::GenerateRequest>,
    ) -> Result<Response<Answer>, Status> {
        if let Some(end) = self.stall.end() {
            tokio::time::sleep_until(end.into()).await;
        }
        let full = || Status::resource_exhausted("the queue is full");
        let place = self
            .places
            .clone()
            .try_acquire_owned()
            .map_err(|_| full())?;
        let request = request.into_inner();
        let prompt = match request.prompt {
            Some(v1::generate_request::Prompt::TokenIds(ids)) => ids.ids.len() as u32,
            _ => return Err(Status::invalid_argument("prompt: send token_ids")),
        };
        let tokens = request.sampling.and_then(|s| s.max_tokens).unwrap_or(1);
        Ok(Response::new(Answer::new(
            prompt,
            tokens,
            self.behaviour.gap,
            self.stall.clone(),
            place,
        )))
    }

    async fn get_model_info(
        &self,
        _: Request<v1::GetModelInfoRequest>,
    ) -> Result<Response<v1::GetModelInfoResponse>, Status> {
        Ok(Response::new(v1::GetModelInfoResponse {
            name: "instant".into(),
            max_context: 1 << 20,
            vocab_size: 50_000,
            ..Default::default()
        }))
    }

    async fn get_server_info(
        &self,
        _: Request<v1::GetServerInfoRequest>,
    ) -> Result<Response<v1::GetServerInfoResponse>, Status> {
        Ok(Response::new(v1::GetServerInfoResponse {
            version: env!("CARGO_PKG_VERSION").into(),
            accepting: true,
            device: "nothing is computed".into(),
            ..Default::default()
        }))
    }

    async fn abort(
        &self,
        _: Request<v1::AbortRequest>,
    ) -> Result<Response<v1::AbortResponse>, Status> {
        Err(Status::unimplemented("cancel the call instead"))
    }

    async fn tokenize(
        &self,
        _: Request<v1::TokenizeRequest>,
    ) -> Result<Response<v1::TokenizeResponse>, Status> {
        Err(Status::unimplemented("there is no tokenizer"))
    }

    async fn detokenize(
        &self,
        _: Request<v1::DetokenizeRequest>,
    ) -> Result<Response<v1::DetokenizeResponse>, Status> {
        Err(Status::unimplemented("there is no tokenizer"))
    }
}
