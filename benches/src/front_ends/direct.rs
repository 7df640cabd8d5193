//! The engine as a protocol: no front end at all.

use ebb_load::protocol::{Answer, Ask, Event, Failure, Finished, Pace, Protocol, Target};
use ebb_serving::core::{EngineHandle, GenerateStream, Prompt, Request, RequestError, StreamEvent};
use ebb_serving::sampling::SamplingOptions;

/// Calls the engine in its own process.
#[derive(Clone)]
pub(super) struct Direct(pub(super) EngineHandle);

impl Protocol for Direct {
    type Answer = Events;

    async fn target(&self) -> Result<Target, Failure> {
        let model = self.0.model();
        Ok(Target {
            protocol: "none".into(),
            model: model.name.clone(),
            max_context: model.max_context as u32,
            vocab_size: model.vocab as u32,
            ..Target::default()
        })
    }

    async fn generate(&self, ask: Ask, _: Pace) -> Result<Events, Failure> {
        let sampling = SamplingOptions {
            temperature: ask.temperature,
            seed: Some(ask.seed),
            max_tokens: Some(ask.max_tokens),
            ignore_eos: true,
            ..SamplingOptions::default()
        };
        let request = Request::new(Prompt::Tokens(ask.prompt), sampling);
        self.0.generate(request).await.map(Events).map_err(failure)
    }
}

/// An answer as the engine gives it.
pub(super) struct Events(GenerateStream);

impl Answer for Events {
    async fn next(&mut self) -> Option<Result<Event, Failure>> {
        Some(match self.0.next().await? {
            Err(error) => Err(failure(error)),
            Ok(StreamEvent::Started { cached_tokens, .. }) => Ok(Event::Started {
                cached_tokens: cached_tokens as u32,
            }),
            Ok(StreamEvent::Delta { token_ids, .. }) => Ok(Event::Tokens(token_ids)),
            Ok(StreamEvent::Finished { end, .. }) => Ok(Event::Finished(Finished {
                completion_tokens: end.completion_tokens as u32,
                lowest_kv_bits: Some(end.kv_bits.lowest.into()),
                mean_kv_bits: Some(end.kv_bits.mean),
            })),
        })
    }
}

fn failure(error: RequestError) -> Failure {
    Failure {
        code: "FAILED".into(),
        message: error.to_string(),
    }
}
