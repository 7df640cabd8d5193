//! Log-probabilities in the three shapes that clients know.

use serde::ser::{Serialize, SerializeMap as _, Serializer};

use crate::core::TokenLogprobs;
use crate::front_end::Engine;

/// What stands for a probability of zero, which JSON cannot write as a logarithm; vLLM's.
const LEAST: f32 = -9999.0;

/// Those of chat.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub(super) struct ChatLogprobs {
    pub(super) content: Vec<ChatToken>,
    refusal: Option<()>,
}

#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub(super) struct ChatToken {
    #[serde(flatten)]
    token: Likelihood,
    top_logprobs: Vec<Likelihood>,
}

#[derive(Debug, Clone, PartialEq, serde::Serialize)]
struct Likelihood {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
}

impl Likelihood {
    fn of<E: Engine>(engine: &E, token: u32, logprob: f32) -> Self {
        Self {
            token: spelled(engine, token),
            logprob: logprob.max(LEAST),
            bytes: engine.token_bytes(token).to_owned(),
        }
    }
}

impl ChatLogprobs {
    pub(super) fn of<E: Engine>(engine: &E, tokens: &[TokenLogprobs]) -> Self {
        let one = |t: &TokenLogprobs| {
            let top = t.top.iter();
            ChatToken {
                token: Likelihood::of(engine, t.token, t.logprob),
                top_logprobs: top.map(|&(id, l)| Likelihood::of(engine, id, l)).collect(),
            }
        };
        Self {
            content: tokens.iter().map(one).collect(),
            refusal: None,
        }
    }
}

/// A token's text; what is not a whole character is U+FFFD.
fn spelled<E: Engine>(engine: &E, token: u32) -> String {
    String::from_utf8_lossy(engine.token_bytes(token)).into_owned()
}

/// Those of completions: lists that have an entry for each token.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize)]
pub(super) struct TextLogprobs {
    /// Where in the choice's text each token begins, in characters.
    text_offset: Vec<usize>,
    /// None for a prompt's first token, which nothing predicts.
    token_logprobs: Vec<Option<f32>>,
    tokens: Vec<String>,
    top_logprobs: Vec<Option<Top>>,
}

/// The likeliest tokens by their text, the one that was chosen included.
#[derive(Debug, Clone, PartialEq)]
struct Top(Vec<(String, f32)>);

impl Serialize for Top {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (token, logprob) in &self.0 {
            map.serialize_entry(token, logprob)?;
        }
        map.end()
    }
}

impl TextLogprobs {
    /// Appends a token that begins at `offset`, which moves behind it.
    pub(super) fn push<E: Engine>(
        &mut self,
        engine: &E,
        offset: &mut usize,
        token: u32,
        logprobs: Option<&TokenLogprobs>,
    ) {
        let text = spelled(engine, token);
        self.text_offset.push(*offset);
        *offset += text.chars().count();
        self.token_logprobs
            .push(logprobs.map(|l| l.logprob.max(LEAST)));
        self.top_logprobs.push(logprobs.map(|l| {
            let mut top: Vec<(String, f32)> = Vec::with_capacity(l.top.len() + 1);
            for (id, logprob) in l.top.iter().copied().chain([(token, l.logprob)]) {
                let text = spelled(engine, id);
                // Of tokens with one text the likeliest counts.
                if top.iter().all(|(other, _)| *other != text) {
                    top.push((text, logprob.max(LEAST)));
                }
            }
            Top(top)
        }));
        self.tokens.push(text);
    }

    /// Appends the tokens of an answer.
    pub(super) fn extend<E: Engine>(
        &mut self,
        engine: &E,
        offset: &mut usize,
        tokens: &[TokenLogprobs],
    ) {
        for token in tokens {
            self.push(engine, offset, token.token, Some(token));
        }
    }

    /// Appends the tokens of a prompt, of which the first has no entry in `logprobs`.
    pub(super) fn prompt<E: Engine>(
        &mut self,
        engine: &E,
        offset: &mut usize,
        first: Option<u32>,
        logprobs: &[TokenLogprobs],
    ) {
        if let Some(first) = first {
            self.push(engine, offset, first, None);
        }
        self.extend(engine, offset, logprobs);
    }
}

/// vLLM's `prompt_logprobs`: one entry per token of the prompt, none for the first.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub(super) struct PromptLogprobs(Vec<Option<ByToken>>);

/// Likelihoods by token id.
#[derive(Debug, Clone, PartialEq)]
struct ByToken(Vec<(u32, Ranked)>);

#[derive(Debug, Clone, PartialEq, serde::Serialize)]
struct Ranked {
    logprob: f32,
    /// 1 is the likeliest; none where it is not among those asked for.
    rank: Option<usize>,
    decoded_token: String,
}

impl Serialize for ByToken {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (id, ranked) in &self.0 {
            map.serialize_entry(&id.to_string(), ranked)?;
        }
        map.end()
    }
}

impl PromptLogprobs {
    pub(super) fn of<E: Engine>(engine: &E, logprobs: &[TokenLogprobs]) -> Self {
        let ranked = |id, logprob: f32, rank| {
            let decoded_token = spelled(engine, id);
            let logprob = logprob.max(LEAST);
            let ranked = Ranked {
                logprob,
                rank,
                decoded_token,
            };
            (id, ranked)
        };
        let one = |l: &TokenLogprobs| {
            let top = l.top.iter().zip(1..);
            let mut all: Vec<_> = top
                .map(|(&(id, logprob), rank)| ranked(id, logprob, Some(rank)))
                .collect();
            if all.iter().all(|(id, _)| *id != l.token) {
                all.insert(0, ranked(l.token, l.logprob, None));
            }
            Some(ByToken(all))
        };
        Self([None].into_iter().chain(logprobs.iter().map(one)).collect())
    }
}
