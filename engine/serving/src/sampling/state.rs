//! What a choice remembers between its tokens.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::SamplingParams;
use super::philox::draw_bits;
use super::sample_request::EditList;

/// One choice of a request: its parameters, its random stream, and what it has generated so far.
/// It belongs to the request and outlives preemption; nothing here depends on other sequences.
#[derive(Clone, Debug)]
pub struct SamplerState {
    params: Arc<SamplingParams>,
    /// Ids that end the choice, ascending.
    ends: Arc<[u32]>,
    /// The prompt's ids, ascending, once each; empty unless repetition is penalised.
    prompt: Arc<[u32]>,
    seed: u64,
    choice: u32,
    generated: u32,
    /// How often each id was generated; kept only where a penalty asks for it.
    counts: FxHashMap<u32, u32>,
    /// The edits of its samples, where a device samples and there are any.
    pub(super) edit_list: Option<EditList>,
}

impl SamplerState {
    /// The first choice of a request. `end_ids` are the model's own end tokens, `prompt` the
    /// token ids of the prompt; `seed` is the request's, or one picked for it.
    pub fn new(params: Arc<SamplingParams>, end_ids: &[u32], prompt: &[u32], seed: u64) -> Self {
        let own: &[u32] = if params.ignore_eos { &[] } else { end_ids };
        let mut ends: Vec<u32> = own.iter().chain(&params.stop_token_ids).copied().collect();
        ends.sort_unstable();
        ends.dedup();
        let mut seen = Vec::new();
        if params.repetition_penalty != 1.0 {
            seen = prompt.to_vec();
            seen.sort_unstable();
            seen.dedup();
        }
        Self {
            params,
            ends: ends.into(),
            prompt: seen.into(),
            seed,
            choice: 0,
            generated: 0,
            counts: FxHashMap::default(),
            edit_list: None,
        }
    }

    /// Another choice of the same request, which has generated nothing yet. It shares what is
    /// known of the prompt.
    pub fn sibling(&self, choice: u32) -> Self {
        Self {
            choice,
            generated: 0,
            counts: FxHashMap::default(),
            edit_list: None,
            ..self.clone()
        }
    }

    /// The request's parameters.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Tokens generated so far.
    pub fn generated(&self) -> u32 {
        self.generated
    }

    /// Whether `token`, just generated, ends the choice: it is an end token of the model (unless
    /// the request ignores those) or a stop id, and not before `min_tokens`.
    pub fn is_end(&self, token: u32) -> bool {
        self.generated >= self.params.min_tokens && self.ends.binary_search(&token).is_ok()
    }

    /// Whether stop strings count yet: `min_tokens` have been generated.
    pub fn stops_armed(&self) -> bool {
        self.generated >= self.params.min_tokens
    }

    /// Whether `max_tokens` have been generated.
    pub fn is_full(&self) -> bool {
        self.params
            .max_tokens
            .is_some_and(|max| self.generated >= max)
    }

    /// Random bits of the next token.
    pub(super) fn bits(&self) -> u64 {
        self.bits_at(self.generated)
    }

    /// Random bits of token `position` of the answer.
    pub(super) fn bits_at(&self, position: u32) -> u64 {
        draw_bits(self.seed, self.choice, position)
    }

    /// Ids that end the choice.
    pub(super) fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// The prompt's ids, where repetition is penalised.
    pub(super) fn prompt_ids(&self) -> &[u32] {
        &self.prompt
    }

    /// Ids that must not come next.
    pub(super) fn masked(&self) -> &[u32] {
        if self.generated < self.params.min_tokens {
            &self.ends
        } else {
            &[]
        }
    }

    /// How often each id was generated.
    pub(super) fn output_counts(&self) -> &FxHashMap<u32, u32> {
        &self.counts
    }

    /// Ids of the prompt that were not generated.
    pub(super) fn prompt_only_ids(&self) -> impl Iterator<Item = u32> + '_ {
        let ids = self.prompt.iter().copied();
        ids.filter(|id| !self.counts.contains_key(id))
    }

    /// Notes the token that came next.
    pub fn accept(&mut self, token: u32) {
        self.generated += 1;
        if self.params.penalises_output() {
            *self.counts.entry(token).or_insert(0) += 1;
            if let Some(edits) = &mut self.edit_list {
                edits.accept(token);
            }
        }
    }
}
