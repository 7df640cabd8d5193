//! Sampling parameters: as a request states them, and as the engine may rely on them.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::ops::{Deref, RangeInclusive};

use ebb_kernels::backend::{REPETITION_PENALTIES, TEMPERATURE_MIN};
use serde::{Deserialize, Serialize};

use super::limits::{
    LOGIT_BIAS_MAX, LOGPROBS_MAX, N_MAX, STOP_BYTES_MAX, STOP_IDS_MAX, STOP_STRINGS_MAX,
};
use super::{Param, ParamError};

/// Below this a temperature means greedy: dividing by it would leave no other token a chance.
const GREEDY_BELOW: f32 = TEMPERATURE_MIN;

/// Sampling parameters as a request states them, not yet checked. The default samples from the
/// model's own distribution.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SamplingOptions {
    /// Divides the logits; 0 is greedy.
    pub temperature: f32,
    /// Keep the k most likely tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep the smallest set of most likely tokens whose probabilities add up to this.
    pub top_p: f32,
    /// Drop tokens less likely than this share of the most likely one.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens in the prompt or the answer.
    pub repetition_penalty: f32,
    /// Subtracted from the logit of each token already in the answer.
    pub presence_penalty: f32,
    /// Subtracted from a token's logit for each time it is in the answer.
    pub frequency_penalty: f32,
    /// Added to the logits of these token ids.
    pub logit_bias: Vec<(u32, f32)>,
    /// The same seed gives the same answer; `None` leaves the choice to the server.
    pub seed: Option<u64>,
    /// Most tokens to generate per choice; `None`: as many as the context has room for.
    pub max_tokens: Option<u32>,
    /// Neither an end token nor a stop string ends a choice before this many tokens.
    pub min_tokens: u32,
    /// Strings that end a choice.
    pub stop: Vec<String>,
    /// The text of a choice that a stop string ended includes the match.
    pub include_stop: bool,
    /// Whether special tokens are left out of the text. The one that ends a choice always is.
    #[serde(default = "yes")]
    pub skip_special_tokens: bool,
    /// Token ids that end a choice, besides the model's own end tokens.
    pub stop_token_ids: Vec<u32>,
    /// Do not end at the model's end tokens.
    pub ignore_eos: bool,
    /// Report each token's log-probability and this many of the most likely tokens.
    pub logprobs: Option<u32>,
    /// The same for the tokens of the prompt.
    pub prompt_logprobs: Option<u32>,
    /// Independent answers to the one prompt.
    pub n: u32,
}

/// What logs of before there was this field mean.
fn yes() -> bool {
    true
}

impl Default for SamplingOptions {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: None,
            max_tokens: None,
            min_tokens: 0,
            stop: Vec::new(),
            include_stop: false,
            skip_special_tokens: yes(),
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            logprobs: None,
            prompt_logprobs: None,
            n: 1,
        }
    }
}

/// Checked sampling parameters: read like [`SamplingOptions`], made only by
/// [`SamplingOptions::validate`].
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams(SamplingOptions);

impl Deref for SamplingParams {
    type Target = SamplingOptions;

    fn deref(&self) -> &SamplingOptions {
        &self.0
    }
}

impl SamplingParams {
    /// Whether the most likely token is taken, without drawing.
    pub fn is_greedy(&self) -> bool {
        self.temperature < GREEDY_BELOW
    }

    /// Checks that `min_tokens`, which rules out every id that would end a choice, leaves another
    /// one: a request can use up a vocabulary of a few hundred tokens. `end_ids` are the model's.
    ///
    /// # Errors
    /// When all `vocab` ids would end the choice.
    pub fn check_ends(&self, end_ids: &[u32], vocab: usize) -> Result<(), ParamError> {
        let own: &[u32] = if self.ignore_eos { &[] } else { end_ids };
        if self.min_tokens == 0 || self.stop_token_ids.len() + own.len() < vocab {
            return Ok(());
        }
        let ends: BTreeSet<u32> = self.stop_token_ids.iter().chain(own).copied().collect();
        let left = (0..vocab as u32).any(|id| !ends.contains(&id));
        let value = format!("{} ids long", self.stop_token_ids.len());
        let allowed = "shorter where min_tokens is above 0: no other token would be left";
        require(left, Param::StopTokenIds, value, allowed)
    }

    /// Whether the tokens of the answer change what comes next.
    pub(super) fn penalises_output(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
    }
}

impl SamplingOptions {
    /// Checks every field, against a model with `vocab` logits.
    ///
    /// # Errors
    /// The first field that is out of its range.
    pub fn validate(self, vocab: usize) -> Result<SamplingParams, ParamError> {
        self.check_numbers()?;
        self.check_lists(vocab)?;
        Ok(SamplingParams(self))
    }

    fn check_numbers(&self) -> Result<(), ParamError> {
        let unit = 0.0..=1.0;
        let penalty = -2.0..=2.0;
        let t = self.temperature;
        let finite = t.is_finite() && t >= 0.0;
        require(finite, Param::Temperature, t, "a finite number, at least 0")?;
        let p = self.top_p;
        let allowed = "above 0 and at most 1";
        require(p > 0.0 && p <= 1.0, Param::TopP, p, allowed)?;
        between(Param::MinP, self.min_p, &unit)?;
        let penalties = &REPETITION_PENALTIES;
        between(Param::RepetitionPenalty, self.repetition_penalty, penalties)?;
        between(Param::PresencePenalty, self.presence_penalty, &penalty)?;
        between(Param::FrequencyPenalty, self.frequency_penalty, &penalty)?;
        between(Param::N, self.n, &(1..=N_MAX))?;
        if let Some(top) = self.logprobs {
            between(Param::Logprobs, top, &(0..=LOGPROBS_MAX))?;
        }
        if let Some(top) = self.prompt_logprobs {
            between(Param::PromptLogprobs, top, &(0..=LOGPROBS_MAX))?;
        }
        if let Some(max) = self.max_tokens {
            require(max >= 1, Param::MaxTokens, max, "at least 1")?;
            let allowed = format!("at most max_tokens, which is {max}");
            require(
                self.min_tokens <= max,
                Param::MinTokens,
                self.min_tokens,
                &allowed,
            )?;
        }
        Ok(())
    }

    fn check_lists(&self, vocab: usize) -> Result<(), ParamError> {
        let in_vocab = |id: u32| (id as usize) < vocab;
        let ids_allowed = format!("a token id below {vocab}, the size of the vocabulary");

        at_most(Param::Stop, self.stop.len(), STOP_STRINGS_MAX)?;
        for (i, stop) in self.stop.iter().enumerate() {
            let bytes = stop.len();
            require(
                (1..=STOP_BYTES_MAX).contains(&bytes),
                Param::StopString(i),
                format!("{bytes} bytes long"),
                &format!("1 to {STOP_BYTES_MAX} bytes long"),
            )?;
        }
        at_most(Param::StopTokenIds, self.stop_token_ids.len(), STOP_IDS_MAX)?;
        for (i, &id) in self.stop_token_ids.iter().enumerate() {
            require(in_vocab(id), Param::StopTokenId(i), id, &ids_allowed)?;
        }
        at_most(Param::LogitBias, self.logit_bias.len(), LOGIT_BIAS_MAX)?;
        for &(id, bias) in &self.logit_bias {
            require(in_vocab(id), Param::LogitBiasOf(id), id, &ids_allowed)?;
            between(Param::LogitBiasOf(id), bias, &(-100.0..=100.0))?;
        }
        Ok(())
    }
}

fn between<T: PartialOrd + Display>(
    field: Param,
    value: T,
    range: &RangeInclusive<T>,
) -> Result<(), ParamError> {
    let allowed = format!("between {} and {}", range.start(), range.end());
    require(range.contains(&value), field, value, &allowed)
}

fn at_most(field: Param, len: usize, max: usize) -> Result<(), ParamError> {
    let value = format!("{len} entries long");
    require(
        len <= max,
        field,
        value,
        &format!("at most {max} entries long"),
    )
}

fn require(
    holds: bool,
    field: Param,
    value: impl Display,
    allowed: &str,
) -> Result<(), ParamError> {
    if holds {
        return Ok(());
    }
    Err(ParamError {
        field,
        value: value.to_string(),
        allowed: allowed.to_owned(),
    })
}
