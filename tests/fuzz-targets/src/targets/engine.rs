//! An engine that takes requests as far as the queue, which is always full.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ebb_models::tokenizer::SpecialIds;
use ebb_serving::core::{
    EngineState, Field, GenerateStream, ModelInfo, PoolLook, Prompt, Request, RequestError,
};
use ebb_serving::kv_pool::KvPool;
use ebb_serving::metrics::Recorder;
use ebb_serving::sampling::{Sampler, SamplerState, SamplingOptions, SamplingParams};
use ebb_serving::server::Engine;

/// Its vocabulary. A text's tokens are its bytes, as far as they are ids: how texts are tokenised
/// is another target's business.
const VOCAB: usize = 64;
/// Tokens sampled for each request that would have been queued.
const TOKENS: usize = 2;

#[derive(Clone)]
pub(super) struct Checks(Arc<Inner>);

struct Inner {
    model: ModelInfo,
    recorder: Recorder,
    logits: Vec<f32>,
}

impl Checks {
    pub(super) fn new() -> Self {
        Self(Arc::new(Inner {
            model: ModelInfo {
                name: "checks".into(),
                aliases: Vec::new(),
                description: "no model".into(),
                device: "none".into(),
                max_context: 1000,
                max_running: 2,
                vocab: VOCAB,
                eos_token_ids: vec![2, 7],
                special: SpecialIds::default(),
                has_chat_template: false,
                kv_bytes_per_token: 64,
            },
            recorder: Recorder::disabled(),
            logits: (0..VOCAB).map(|id| (id * 37 % 101) as f32 - 50.0).collect(),
        }))
    }

    fn ids(&self, prompt: Prompt, add_special: bool) -> Result<Vec<u32>, RequestError> {
        prompt.validate()?;
        match prompt {
            Prompt::Tokens(ids) => match ids.iter().find(|&&id| id as usize >= VOCAB) {
                Some(id) => Err(RequestError::invalid(
                    Field::TokenIds,
                    format!("no {id} here"),
                )),
                None => Ok(ids),
            },
            Prompt::Text(text) => {
                let begin = add_special.then_some(1);
                let ids = text.bytes().map(|byte| u32::from(byte) % VOCAB as u32);
                Ok(begin.into_iter().chain(ids).collect())
            }
            Prompt::Chat(_) => Err(RequestError::invalid(Field::Chat, "there is no template")),
        }
    }

    /// Whatever parameters are accepted, tokens can be sampled with them.
    fn sample(&self, params: SamplingParams, prompt: &[u32]) {
        let model = &self.0.model;
        let top = params.logprobs;
        let seed = params.seed.unwrap_or(1);
        let params = Arc::new(params);
        let mut state = SamplerState::new(params, &model.eos_token_ids, prompt, seed);
        let (mut sampler, mut logits) = (Sampler::new(), self.0.logits.clone());
        for _ in 0..TOKENS {
            let sampled = sampler.sample(&mut logits, &mut state);
            let sampled = sampled.expect("accepted parameters always give a token");
            assert!((sampled.token as usize) < VOCAB);
            assert_eq!(sampled.logprobs.is_some(), top.is_some());
            if let Some(report) = sampled.logprobs {
                assert!(report.logprob <= 0.0 && report.logprob.is_finite());
                assert_eq!(report.top.len(), top.unwrap_or(0) as usize);
            }
        }
        assert_eq!(logits, self.0.logits, "logits are as before");
    }
}

impl Engine for Checks {
    async fn generate(&self, request: Request) -> Result<GenerateStream, RequestError> {
        let model = &self.0.model;
        let params = request.validate(model.vocab)?;
        params.check_ends(&model.eos_token_ids, model.vocab)?;
        let now = Instant::now();
        assert!(request.deadline(now).is_none_or(|at| at >= now));
        assert!(!request.request_id.is_empty());
        let prompt = self.ids(request.prompt, true)?;
        self.sample(params, &prompt);
        Err(RequestError::QueueFull { limit: 0 })
    }

    fn abort(&self, request_id: &str) -> bool {
        assert!(!request_id.is_empty());
        false
    }

    fn tokenize(
        &self,
        prompt: Prompt,
        add_special: bool,
    ) -> impl Future<Output = Result<Vec<u32>, RequestError>> + Send {
        std::future::ready(self.ids(prompt, add_special))
    }

    async fn detokenize(&self, ids: Vec<u32>, _: bool) -> Result<String, RequestError> {
        assert!(ids.iter().all(|&id| (id as usize) < VOCAB));
        Ok(ids.iter().map(|&id| char::from(id as u8)).collect())
    }

    fn model(&self) -> &ModelInfo {
        &self.0.model
    }

    fn token_bytes(&self, _: u32) -> &[u8] {
        b"t"
    }

    fn default_sampling(&self) -> SamplingOptions {
        SamplingOptions::default()
    }

    fn state(&self) -> EngineState {
        EngineState::default()
    }

    async fn kv_pool(&self) -> Arc<PoolLook> {
        Arc::new(PoolLook {
            at: Instant::now(),
            state: EngineState::default(),
            pool: KvPool::default(),
        })
    }

    fn recorder(&self) -> &Recorder {
        &self.0.recorder
    }

    async fn drain(&self, _: Duration) {}

    fn alive(&self) -> bool {
        true
    }

    fn is_hung(&self) -> bool {
        false
    }
}
