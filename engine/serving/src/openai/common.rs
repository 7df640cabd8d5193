//! The fields that chat and completions share.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};

use super::error::Spelling;
use crate::core::{Prompt, Request};
use crate::front_end::new_name;
use crate::http::Problem;
use crate::http::values::{Asked, Number, Object, Texts, Typed, Whole};
use crate::sampling::{STOP_STRINGS_MAX, SamplingOptions};

/// Beside their own fields, both kinds of request have these. A body is parsed once for each part,
/// which passes over the fields of the other.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Common {
    pub(super) model: Option<String>,
    pub(super) stream: Option<bool>,
    stream_options: Option<Object<StreamOptions>>,
    n: Option<Whole>,
    seed: Option<Whole>,
    pub(super) stop: Option<Texts<STOP_STRINGS_MAX>>,
    pub(super) stop_token_ids: Option<Vec<TokenId>>,
    include_stop_str_in_output: Option<bool>,
    ignore_eos: Option<bool>,
    min_tokens: Option<Whole>,
    pub(super) max_tokens: Option<Whole>,
    logit_bias: Option<LogitBias>,
    presence_penalty: Option<Number>,
    frequency_penalty: Option<Number>,
    repetition_penalty: Option<Number>,
    temperature: Option<Number>,
    top_p: Option<Number>,
    top_k: Option<Whole>,
    min_p: Option<Number>,
    priority: Option<Whole>,
    min_kv_bits: Option<Whole>,
    pub(super) return_token_ids: Option<bool>,
    pub(super) prompt_logprobs: Option<Whole>,
    skip_special_tokens: Option<bool>,
    response_format: Option<Object<Typed>>,
    structured_outputs: Asked,
    guided_json: Asked,
    guided_regex: Asked,
    guided_choice: Asked,
    guided_grammar: Asked,
    use_beam_search: Asked,
    logits_processors: Asked,
    bad_words: Asked,
    allowed_token_ids: Asked,
    truncate_prompt_tokens: Asked,
}

#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(default)]
struct StreamOptions {
    include_usage: Option<bool>,
    continuous_usage_stats: Option<bool>,
}

/// Which chunks of a stream have `usage`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UsageIn {
    Nothing,
    /// The last chunk, which has no choices.
    Last,
    /// That and every other one.
    All,
}

impl Common {
    pub(super) fn streams(&self) -> bool {
        self.stream.unwrap_or(false)
    }

    /// Where a stream tells its usage.
    pub(super) fn usage_in(&self) -> Result<UsageIn, Problem> {
        let Some(Object(options)) = self.stream_options else {
            return Ok(UsageIn::Nothing);
        };
        if !self.streams() {
            let why = "it is for streams alone; set stream to true, or leave it out";
            return Err(Problem::invalid("stream_options", why));
        }
        Ok(match options.include_usage {
            Some(true) if options.continuous_usage_stats == Some(true) => UsageIn::All,
            Some(true) => UsageIn::Last,
            _ => UsageIn::Nothing,
        })
    }

    /// Choices of each prompt.
    pub(super) fn n(&self) -> Result<u32, Problem> {
        self.n.map_or(Ok(1), |n| n.get("n", "at least 1"))
    }

    pub(super) fn stop_token_ids(&self) -> Vec<u32> {
        let ids = self.stop_token_ids.iter().flatten();
        ids.map(|&TokenId(id)| id).collect()
    }

    /// Refuses what Ebb does not have.
    pub(super) fn check_supported(&self) -> Result<(), Problem> {
        let format = self.response_format.as_ref();
        let format = format.and_then(|Object(format)| format.r#type.as_deref());
        if format.is_some_and(|format| format != "text") {
            let what = "formats other than text are";
            return Err(Problem::unsupported("response_format", what));
        }
        let structured = "structured outputs are";
        for (asked, param, what) in [
            (&self.structured_outputs, "structured_outputs", structured),
            (&self.guided_json, "guided_json", structured),
            (&self.guided_regex, "guided_regex", structured),
            (&self.guided_choice, "guided_choice", structured),
            (&self.guided_grammar, "guided_grammar", structured),
            (&self.use_beam_search, "use_beam_search", "beam search is"),
            (
                &self.logits_processors,
                "logits_processors",
                "logits processors are",
            ),
            (&self.bad_words, "bad_words", "bad words are"),
            (
                &self.allowed_token_ids,
                "allowed_token_ids",
                "allowed tokens are",
            ),
            (
                &self.truncate_prompt_tokens,
                "truncate_prompt_tokens",
                "cutting prompts is",
            ),
        ] {
            asked.refuse(param, what, &[])?;
        }
        Ok(())
    }

    /// The sampling parameters, over the model's defaults; the engine checks their ranges.
    pub(super) fn sampling(
        &mut self,
        defaults: SamplingOptions,
        max_tokens: (&str, Option<Whole>),
    ) -> Result<SamplingOptions, Problem> {
        let d = defaults;
        let number = |number: Option<Number>, default| number.map_or(default, |Number(x)| x);
        let count = |param, number: Option<Whole>| {
            let get = |number: Whole| number.get(param, "at least 0");
            number.map(get).transpose()
        };
        let all = |param, number: Option<Whole>, default| match number {
            // vLLM's word for no limit.
            Some(Whole(-1)) => Ok(0),
            number => Ok(count(param, number)?.unwrap_or(default)),
        };
        Ok(SamplingOptions {
            temperature: number(self.temperature, d.temperature),
            top_k: all("top_k", self.top_k, d.top_k)?,
            top_p: number(self.top_p, d.top_p),
            min_p: number(self.min_p, d.min_p),
            repetition_penalty: number(self.repetition_penalty, d.repetition_penalty),
            presence_penalty: number(self.presence_penalty, d.presence_penalty),
            frequency_penalty: number(self.frequency_penalty, d.frequency_penalty),
            logit_bias: self.logit_bias.take().unwrap_or_default().0,
            // Any number names a seed, negative ones too.
            seed: self.seed.map(|Whole(seed)| seed as u64).or(d.seed),
            max_tokens: count(max_tokens.0, max_tokens.1)?.or(d.max_tokens),
            min_tokens: count("min_tokens", self.min_tokens)?.unwrap_or(d.min_tokens),
            stop: self.stop.take().unwrap_or_default().texts,
            include_stop: self.include_stop_str_in_output.unwrap_or(false),
            skip_special_tokens: self.skip_special_tokens.unwrap_or(true),
            stop_token_ids: self.stop_token_ids(),
            ignore_eos: self.ignore_eos.unwrap_or(false),
            logprobs: None,
            prompt_logprobs: count("prompt_logprobs", self.prompt_logprobs)?,
            n: self.n()?,
        })
    }

    /// A request for one of the call's prompts.
    pub(super) fn request(
        &self,
        prompt: Prompt,
        sampling: SamplingOptions,
    ) -> Result<Request, Problem> {
        let priority = self
            .priority
            .map(|p| p.get("priority", "between -2^31 and 2^31 - 1"));
        let bits = self
            .min_kv_bits
            .map(|bits| bits.get("min_kv_bits", "16, 8, 4 or 2"));
        Ok(Request {
            request_id: new_name("ebb-"),
            priority: priority.transpose()?.unwrap_or(0),
            min_kv_bits: bits.transpose()?,
            ..Request::new(prompt, sampling)
        })
    }

    /// How the fields of the request that this call makes are spelled.
    pub(super) fn spelling(
        &self,
        prompt: &'static str,
        max_tokens: &'static str,
        logprobs: &'static str,
    ) -> Spelling {
        Spelling {
            prompt,
            index: None,
            max_tokens,
            logprobs,
            single_stop: self.stop.as_ref().is_some_and(|stop| stop.single),
        }
    }
}

/// A token's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TokenId(pub(super) u32);

impl<'de> Deserialize<'de> for TokenId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Whole(number) = Whole::deserialize(deserializer)?;
        let wrong = |_| D::Error::custom(format!("{number} is not a token id"));
        u32::try_from(number).map(TokenId).map_err(wrong)
    }
}

/// Biases by token id, which JSON writes as a text.
#[derive(Debug, Default)]
struct LogitBias(Vec<(u32, f32)>);

impl<'de> Deserialize<'de> for LogitBias {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visit;
        impl<'de> Visitor<'de> for Visit {
            type Value = LogitBias;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of token ids and numbers")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<LogitBias, A::Error> {
                let mut biases = Vec::new();
                while let Some((id, Number(bias))) = map.next_entry::<String, Number>()? {
                    let wrong = |_| A::Error::custom(format!("{id:?} is not a token id"));
                    biases.push((id.parse().map_err(wrong)?, bias));
                }
                Ok(LogitBias(biases))
            }
        }
        deserializer.deserialize_map(Visit)
    }
}
