//! What a device is asked for where it samples a choice's next token.

use ebb_kernels::backend::{Edits, LogitEdit, SampleFailure, SampleRequest};

use super::{SampleError, SamplerState};

/// A choice's edits, kept from token to token: every id that bias, mask, prompt or answer touches,
/// ascending.
#[derive(Clone, Debug, Default)]
pub(super) struct EditList(Vec<LogitEdit>);

impl EditList {
    fn new(state: &SamplerState) -> Self {
        let params = state.params();
        let mut this = Self::default();
        for &(id, bias) in &params.logit_bias {
            this.entry(id).bias += bias;
        }
        if params.min_tokens > 0 {
            for &id in state.ends() {
                this.entry(id).masked = true;
            }
        }
        for &id in state.prompt_ids() {
            this.entry(id).in_prompt = true;
        }
        for (&id, &count) in state.output_counts() {
            this.entry(id).count = count;
        }
        this
    }

    fn entry(&mut self, id: u32) -> &mut LogitEdit {
        let at = match self.0.binary_search_by_key(&id, |e| e.id) {
            Ok(at) => at,
            Err(at) => {
                let new = LogitEdit {
                    id,
                    bias: 0.0,
                    count: 0,
                    masked: false,
                    in_prompt: false,
                };
                self.0.insert(at, new);
                at
            }
        };
        &mut self.0[at]
    }

    /// Notes a token of the answer.
    pub(super) fn accept(&mut self, token: u32) {
        self.entry(token).count += 1;
    }
}

impl SamplerState {
    /// Asks for the next token from the logits of `row`; its edits are appended to `edits`. With
    /// `also`, the last token of the answer is not known yet: that sample of the step before gives
    /// it, and the one wanted is the token after it.
    pub fn sample_request(
        &mut self,
        row: u32,
        also: Option<u32>,
        edits: &mut Vec<LogitEdit>,
    ) -> SampleRequest {
        let position = self.generated() + u32::from(also.is_some());
        let mut list = self.edit_list.take();
        let params = self.params();
        let penalises = params.penalises_output();
        let masks = position < params.min_tokens;
        let mut kept = Edits::NONE;
        if penalises || masks || !params.logit_bias.is_empty() {
            let list = list.get_or_insert_with(|| EditList::new(self));
            kept = Edits {
                first: edits.len() as u32,
                len: list.0.len() as u32,
                repetition: params.repetition_penalty,
                frequency: params.frequency_penalty,
                presence: params.presence_penalty,
                also: also.filter(|_| penalises),
            };
            edits.extend(list.0.iter().map(|e| LogitEdit {
                masked: e.masked && masks,
                ..*e
            }));
        }
        let request = SampleRequest {
            row,
            temperature: if params.is_greedy() {
                0.0
            } else {
                params.temperature
            },
            top_k: params.top_k,
            top_p: params.top_p,
            min_p: params.min_p,
            bits: self.bits_at(position),
            logprobs: params.logprobs,
            edits: kept,
        };
        self.edit_list = list;
        request
    }

    /// Asks for this choice's first token from the same row as a sibling's `first`.
    pub fn sample_request_beside(&self, first: &SampleRequest) -> SampleRequest {
        SampleRequest {
            bits: self.bits(),
            ..*first
        }
    }
}

impl From<SampleFailure> for SampleError {
    fn from(error: SampleFailure) -> Self {
        match error {
            SampleFailure::NotFinite => Self::NotFinite,
            SampleFailure::NoCandidate => Self::NoCandidate,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::sampling::SamplingOptions;
    use crate::sampling::philox::draw_bits;

    fn state(options: SamplingOptions, prompt: &[u32]) -> SamplerState {
        let params = options.validate(100).expect("valid");
        SamplerState::new(Arc::new(params), &[9, 50], prompt, 77)
    }

    #[test]
    fn a_plain_request_has_no_edits_and_counts_the_token_in_flight() {
        let mut state = state(SamplingOptions::default(), &[1, 2]);
        let mut edits = Vec::new();
        let known = state.sample_request(3, None, &mut edits);
        assert_eq!((known.row, known.bits), (3, draw_bits(77, 0, 0)));
        state.accept(5);
        let second = state.sample_request(0, None, &mut edits);
        assert_eq!(second.bits, draw_bits(77, 0, 1));
        let flying = state.sample_request(0, Some(6), &mut edits);
        assert_eq!(flying.bits, draw_bits(77, 0, 2));
        assert_eq!(flying.edits, Edits::NONE);
        let sibling = state.sibling(4).sample_request_beside(&known);
        assert_eq!((sibling.row, sibling.bits), (3, draw_bits(77, 4, 0)));
        assert!(edits.is_empty());
    }

    #[test]
    fn edits_merge_bias_mask_prompt_and_answer() {
        let options = SamplingOptions {
            logit_bias: vec![(50, 1.5), (4, -2.0)],
            repetition_penalty: 1.1,
            min_tokens: 3,
            ..Default::default()
        };
        let mut state = state(options, &[7, 4, 7]);
        state.accept(7);
        let mut edits = vec![LogitEdit {
            id: 0,
            bias: 0.0,
            count: 0,
            masked: false,
            in_prompt: false,
        }];
        // Built late, as after tokens that were sampled elsewhere, and kept up to date from there.
        let request = state.sample_request(0, Some(1), &mut edits);
        assert_eq!((request.edits.first, request.edits.len), (1, 4));
        assert_eq!(request.edits.also, Some(1));
        let of = |edits: &[LogitEdit]| -> Vec<_> {
            let all = edits[1..].iter();
            all.map(|e| (e.id, e.bias, e.count, e.masked, e.in_prompt))
                .collect()
        };
        let want = [
            (4, -2.0, 0, false, true),
            (7, 0.0, 1, false, true),
            (9, 0.0, 0, true, false),
            (50, 1.5, 0, true, false),
        ];
        assert_eq!(of(&edits), want);
        state.accept(8);
        edits.truncate(1);
        // The third token is still masked, the fourth is not.
        state.sample_request(0, None, &mut edits);
        assert_eq!(of(&edits)[2], (8, 0.0, 1, false, false));
        assert!(edits.iter().any(|e| e.masked));
        edits.truncate(1);
        state.sample_request(0, Some(0), &mut edits);
        assert!(!edits.iter().any(|e| e.masked));
    }
}
