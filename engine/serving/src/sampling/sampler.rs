//! Chooses the next token of a row of logits.

use super::SampleError;
use super::edits::Edits;
use super::filter::Filter;
use super::logprobs::{Distribution, TokenLogprobs, token_logprobs};
use super::scan::Scan;
use super::state::SamplerState;

/// A chosen token.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// Its id.
    pub token: u32,
    /// What the model itself thought of it, where the request asks.
    pub logprobs: Option<TokenLogprobs>,
}

/// Chooses tokens. Holds only buffers: one for a whole engine thread, whatever the request.
#[derive(Debug, Default)]
pub struct Sampler {
    scan: Scan,
    edits: Edits,
    filter: Filter,
}

impl Sampler {
    /// A sampler with empty buffers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Chooses the next token of `state` from `logits` (one row, `[vocab]`) and notes it there.
    /// The row is changed on the way and is as before on return, on an error too.
    ///
    /// # Errors
    /// [`SampleError`] when no token can be chosen; `state` is then unchanged.
    pub fn sample(
        &mut self,
        logits: &mut [f32],
        state: &mut SamplerState,
    ) -> Result<Sampled, SampleError> {
        self.scan.run(logits)?;
        let report = state.params().logprobs;
        let distribution = report.map(|top| Distribution::of(logits, &self.scan, top));
        self.edits.apply(logits, state);
        let token = self.choose(logits, state);
        self.edits.undo(logits);
        let token = token?;
        state.accept(token);
        Ok(Sampled {
            token,
            logprobs: distribution.map(|d| d.report(logits[token as usize])),
        })
    }

    fn choose(&mut self, logits: &[f32], state: &SamplerState) -> Result<u32, SampleError> {
        if self.edits.ids().len() > 0 {
            self.scan.refresh(logits, self.edits.ids())?;
        }
        if state.params().is_greedy() {
            return Ok(self.scan.argmax(logits));
        }
        let bits = state.bits();
        Ok(self.filter.sample(logits, &self.scan, state.params(), bits))
    }

    /// What the model thought of `token`, from the row of logits before it: for the tokens of a
    /// prompt and for perplexity.
    ///
    /// # Errors
    /// [`SampleError`] when the logits are not a distribution, or have no such token.
    pub fn token_logprobs(
        &mut self,
        logits: &[f32],
        token: u32,
        top: u32,
    ) -> Result<TokenLogprobs, SampleError> {
        self.scan.run(logits)?;
        token_logprobs(logits, &self.scan, token, top)
    }
}
