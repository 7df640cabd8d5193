//! What front ends need of an engine, so that they can be tested without one.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::core::{
    EngineHandle, EngineState, GenerateStream, ModelInfo, PoolLook, Prompt, Request, RequestError,
};
use crate::metrics::{ClientGauges, EngineGauges, Recorder};
use crate::sampling::SamplingOptions;

/// An engine as front ends see it: cheap to clone, safe to call from any task.
pub trait Engine: Clone + Send + Sync + 'static {
    /// Validates, tokenises and queues a request; the stream carries the answer or the reason why
    /// there is none.
    fn generate(
        &self,
        request: Request,
    ) -> impl Future<Output = Result<GenerateStream, RequestError>> + Send;

    /// Aborts by request id; false when no such request is live.
    fn abort(&self, request_id: &str) -> bool;

    /// Token ids of a prompt as `generate` would use them; `add_special` is for [`Prompt::Text`]
    /// only.
    fn tokenize(
        &self,
        prompt: Prompt,
        add_special: bool,
    ) -> impl Future<Output = Result<Vec<u32>, RequestError>> + Send;

    /// Text of token ids, all of them below [`ModelInfo::vocab`].
    fn detokenize(
        &self,
        token_ids: Vec<u32>,
        skip_special: bool,
    ) -> impl Future<Output = Result<String, RequestError>> + Send;

    /// What is served.
    fn model(&self) -> &ModelInfo;

    /// The bytes that a token adds to a text; none outside the vocabulary. They need not be whole
    /// characters.
    fn token_bytes(&self, id: u32) -> &[u8];

    /// Sampling parameters of a request that sets none: the model's own.
    fn default_sampling(&self) -> SamplingOptions;

    /// The engine as of its last step.
    fn state(&self) -> EngineState;

    /// Who holds the KV pool at how many bits, at most a moment ago.
    fn kv_pool(&self) -> impl Future<Output = Arc<PoolLook>> + Send;

    /// Where the engine counts and times.
    fn recorder(&self) -> &Recorder;

    /// Stops admission; resolves when everything running has finished, at `grace` at the latest.
    fn drain(&self, grace: Duration) -> impl Future<Output = ()> + Send;

    /// False after a fatal error: the engine will make no more steps.
    fn alive(&self) -> bool;

    /// Whether requests wait, and no step has come back for longer than the hang timeout.
    fn is_hung(&self) -> bool;
}

/// The engine's numbers for a scrape.
pub(crate) fn gauges(state: &EngineState, clients: ClientGauges) -> EngineGauges {
    EngineGauges {
        running: state.running,
        waiting: state.waiting,
        kv_bytes_total: state.kv_bytes_total,
        kv_bytes_live: state.kv_bytes_live,
        kv_bytes_cached: state.kv_bytes_cached,
        steps: state.steps,
        step_age: state.step_age,
        preemptions: state.preemptions,
        prefix_queries: state.prefix_queries,
        prefix_hits: state.prefix_hits,
        tokens_computed: state.tokens_computed,
        tokens_thrown_away: state.tokens_thrown_away,
        texts_waiting: state.texts_waiting,
        kv: state.kv.clone(),
        clients,
    }
}

impl Engine for EngineHandle {
    async fn generate(&self, request: Request) -> Result<GenerateStream, RequestError> {
        self.generate(request).await
    }

    fn abort(&self, request_id: &str) -> bool {
        self.abort(request_id)
    }

    async fn tokenize(&self, prompt: Prompt, add_special: bool) -> Result<Vec<u32>, RequestError> {
        self.tokenize(prompt, add_special).await
    }

    async fn detokenize(
        &self,
        token_ids: Vec<u32>,
        skip_special: bool,
    ) -> Result<String, RequestError> {
        self.detokenize(token_ids, skip_special).await
    }

    fn model(&self) -> &ModelInfo {
        self.model()
    }

    fn token_bytes(&self, id: u32) -> &[u8] {
        self.tokenizer().token_bytes(id).unwrap_or_default()
    }

    fn default_sampling(&self) -> SamplingOptions {
        self.default_sampling()
    }

    fn state(&self) -> EngineState {
        self.state()
    }

    async fn kv_pool(&self) -> Arc<PoolLook> {
        self.kv_pool().await
    }

    fn recorder(&self) -> &Recorder {
        self.recorder()
    }

    async fn drain(&self, grace: Duration) {
        self.drain(grace).await;
    }

    fn alive(&self) -> bool {
        self.alive()
    }

    fn is_hung(&self) -> bool {
        self.is_hung()
    }
}
