//! Runs workloads through an engine.

use std::error::Error;
use std::time::Instant;

use ebb_serving::core::{EngineHandle, Prompt, Request, RequestError, StreamEvent};
use ebb_serving::sampling::{ParamError, SamplingOptions};

use super::Workload;
use super::figures::{Answer, Figures, figures};

/// A workload's figures and what the engine did meanwhile.
#[derive(Debug, Clone, Copy)]
pub struct Measured {
    /// Rates and times.
    pub figures: Figures,
    /// Sequences thrown out to be computed again.
    pub preemptions: u64,
}

/// Submits all requests of a workload at once and reads every answer.
pub async fn measure(
    engine: &EngineHandle,
    workload: &Workload,
    temperature: f32,
    seed: u64,
) -> Result<Measured, Box<dyn Error>> {
    let vocab = engine.model().vocab;
    let ask = Ask::of(vocab, workload, temperature, seed)?;
    let prompts = workload.prompts(vocab, seed);
    let before = engine.state().preemptions;
    let begin = Instant::now();
    let tasks: Vec<_> = prompts
        .into_iter()
        .map(|tokens| tokio::spawn(answer(engine.clone(), ask.request(tokens), begin)))
        .collect();
    let mut answers = Vec::with_capacity(tasks.len());
    for task in tasks {
        let answer = task.await??;
        let tokens: u32 = answer.arrivals.iter().map(|a| a.1).sum();
        if tokens as usize != workload.output {
            return Err(format!("an answer has {tokens} tokens of {}", workload.output).into());
        }
        answers.push(answer);
    }
    Ok(Measured {
        figures: figures(&answers),
        preemptions: engine.state().preemptions - before,
    })
}

/// What all requests of a workload share.
#[derive(Debug, Clone)]
pub(crate) struct Ask(SamplingOptions);

impl Ask {
    /// Answers of the workload's length, whatever is drawn.
    ///
    /// # Errors
    /// When there is no such temperature.
    pub(crate) fn of(
        vocab: usize,
        workload: &Workload,
        temperature: f32,
        seed: u64,
    ) -> Result<Self, ParamError> {
        let params = SamplingOptions {
            temperature,
            max_tokens: Some(workload.output as u32),
            ignore_eos: true,
            seed: Some(seed),
            ..SamplingOptions::default()
        };
        params.clone().validate(vocab)?;
        Ok(Self(params))
    }

    /// A request with that prompt.
    pub(crate) fn request(&self, prompt: Vec<u32>) -> Request {
        Request::new(Prompt::Tokens(prompt), self.0.clone())
    }
}

/// Asks, and reads the answer; its times count from `begin`.
pub(crate) async fn answer(
    engine: EngineHandle,
    request: Request,
    begin: Instant,
) -> Result<Answer, RequestError> {
    let mut answer = Answer::default();
    let mut stream = engine.generate(request).await?;
    while let Some(event) = stream.next().await {
        match event? {
            StreamEvent::Started { .. } => {}
            StreamEvent::Delta { token_ids, .. } => {
                if !token_ids.is_empty() {
                    let at = begin.elapsed();
                    answer.arrivals.push((at, token_ids.len() as u32));
                }
            }
            StreamEvent::Finished { end, .. } => answer.kv_bits = f64::from(end.kv_bits.mean),
        }
    }
    Ok(answer)
}
