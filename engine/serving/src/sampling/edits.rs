//! Changes to single logits before a token is chosen: masks, bias, penalties.
//!
//! They touch a few tokens of the vocabulary, so the row is changed in place and put back after:
//! several choices can be sampled from one row, and log-probabilities are read from it unchanged.

use super::state::SamplerState;

/// The logits that were changed, with what they were, in the order of the changes.
#[derive(Debug, Default)]
pub(super) struct Edits {
    undo: Vec<(u32, f32)>,
}

/// The logit of a token that was there before. What was finite stays finite: of the edits, this one
/// alone could leave `f32`, for no bias or penalty in its range moves a logit that large.
pub(super) fn repeated(logit: f32, penalty: f32) -> f32 {
    if logit > 0.0 {
        (logit / penalty).min(f32::MAX)
    } else if logit == f32::NEG_INFINITY {
        logit
    } else {
        (logit * penalty).max(f32::MIN)
    }
}

impl Edits {
    /// Applies, in vLLM's order: end tokens masked until `min_tokens`, bias, penalties.
    pub(super) fn apply(&mut self, logits: &mut [f32], state: &SamplerState) {
        self.undo.clear();
        let params = state.params();
        for &id in state.masked() {
            self.change(logits, id, |_| f32::NEG_INFINITY);
        }
        for &(id, bias) in &params.logit_bias {
            self.change(logits, id, |logit| logit + bias);
        }
        if !params.penalises_output() {
            return;
        }
        let repeat = |logit| repeated(logit, params.repetition_penalty);
        for (&id, &count) in state.output_counts() {
            self.change(logits, id, |logit| {
                repeat(logit) - params.frequency_penalty * count as f32 - params.presence_penalty
            });
        }
        for id in state.prompt_only_ids() {
            self.change(logits, id, repeat);
        }
    }

    fn change(&mut self, logits: &mut [f32], id: u32, new: impl Fn(f32) -> f32) {
        // Prompts may hold ids that the model has no logit for.
        if let Some(logit) = logits.get_mut(id as usize) {
            self.undo.push((id, *logit));
            *logit = new(*logit);
        }
    }

    /// The ids whose logits were changed.
    pub(super) fn ids(&self) -> impl ExactSizeIterator<Item = u32> + '_ {
        self.undo.iter().map(|&(id, _)| id)
    }

    /// Puts every logit back.
    pub(super) fn undo(&mut self, logits: &mut [f32]) {
        for (id, logit) in self.undo.drain(..).rev() {
            logits[id as usize] = logit;
        }
    }
}
