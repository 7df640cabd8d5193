//! Sampling on the device, so that only the ids of sampled tokens come back.
//!
//! A device samples the token that the engine's sampler would from the same logits, bit for bit.
//! Logits are edited. Tokens get weights relative to the most likely one, integers of 2⁻³⁰. Min-p,
//! top-k and top-p cut them. The sampled token is where random bits point to in the sum of the
//! weights, in order of ids; the bits come from the Philox stream of `ebb_serving::sampling`.

use std::ops::RangeInclusive;

use super::StepInputError as E;

/// Set in an entry of [`StepInput::tokens`](super::StepInput::tokens) that is not known yet.
const PENDING: u32 = 1 << 31;

/// An entry of [`StepInput::tokens`](super::StepInput::tokens) that is not known yet: sample
/// `sample` of the step submitted just before. Only for backends with a
/// [`depth`](super::Backend::depth) above 1.
pub const fn pending_sample(sample: u32) -> u32 {
    PENDING | sample
}

/// The sample that an entry stands for; `None` if its token is known.
pub const fn pending_sample_of(token: u32) -> Option<u32> {
    if token & PENDING == 0 {
        None
    } else {
        Some(token & !PENDING)
    }
}

/// The lowest temperature that divides.
pub const TEMPERATURE_MIN: f32 = 1e-5;

/// What a repetition penalty may be. Anything beyond makes every penalised token the next one, or
/// none of them; ordinary ones are between 1 and 2.
pub const REPETITION_PENALTIES: RangeInclusive<f32> = 0.01..=100.0;

/// Alternatives that a sample may report.
pub const TOP_MAX: u32 = 20;

/// A token to sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SampleRequest {
    /// Row of the step whose logits it is sampled from. Samples of one row stand beside each other
    /// and have the same edits.
    pub row: u32,
    /// Divides the logits; 0 takes the largest, of equals the lowest id. At least
    /// [`TEMPERATURE_MIN`] otherwise.
    pub temperature: f32,
    /// Keeps the k most likely tokens; 0 keeps all.
    pub top_k: u32,
    /// Keeps the fewest most likely tokens whose weights reach this share; 1 keeps all.
    pub top_p: f32,
    /// Drops tokens less likely than this share of the most likely one.
    pub min_p: f32,
    /// Random bits: the point of the cumulative weights at which the token is.
    pub bits: u64,
    /// Report the token's log-probability in the unedited distribution, and that of this many of
    /// the most likely tokens.
    pub logprobs: Option<u32>,
    /// What changes the logits first.
    pub edits: Edits,
}

impl SampleRequest {
    /// The most likely token of a row.
    pub const fn greedy(row: u32) -> Self {
        Self {
            row,
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            bits: 0,
            logprobs: None,
            edits: Edits::NONE,
        }
    }
}

/// How the logits of a row are edited before tokens are sampled from it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Edits {
    /// First entry, into [`StepInput::edits`](super::StepInput::edits).
    pub first: u32,
    /// Entries, ascending by id.
    pub len: u32,
    /// Divides positive and multiplies negative logits of tokens in the prompt or the answer.
    pub repetition: f32,
    /// Subtracted for each time a token is in the answer.
    pub frequency: f32,
    /// Subtracted for tokens in the answer.
    pub presence: f32,
    /// The sample of the step submitted just before whose token is in the answer once more than the
    /// entries count.
    pub also: Option<u32>,
}

impl Edits {
    /// Logits stay as they are.
    pub const NONE: Self = Self {
        first: 0,
        len: 0,
        repetition: 1.0,
        frequency: 0.0,
        presence: 0.0,
        also: None,
    };

    /// Whether any logit may change.
    pub const fn is_none(&self) -> bool {
        self.len == 0 && self.also.is_none()
    }
}

/// The edit of one logit: masked, or `logit + bias`, then the penalties.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogitEdit {
    /// The token; ids that the model has no logit for are passed over.
    pub id: u32,
    /// Added first.
    pub bias: f32,
    /// Times that it is in the answer.
    pub count: u32,
    /// Must not be sampled.
    pub masked: bool,
    /// Is in the prompt.
    pub in_prompt: bool,
}

/// Why no token was sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SampleFailure {
    /// A logit is NaN or +∞.
    NotFinite,
    /// Every logit is -∞.
    NoCandidate,
}

/// A sampled token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SampledToken {
    /// Its id.
    pub token: Result<u32, SampleFailure>,
    /// Natural logarithm of its probability in the unedited distribution; meaningless unless asked
    /// for.
    pub logprob: f32,
    /// Alternatives, into [`StepOutput::top`](super::StepOutput::top).
    pub first_top: u32,
    /// How many there are.
    pub top: u32,
}

/// Checks the samples of a step of `rows` rows, the one before having `before` samples.
pub(crate) fn check(
    samples: &[SampleRequest],
    edits: &[LogitEdit],
    rows: usize,
    before: u32,
) -> Result<(), E> {
    let mut previous: Option<&SampleRequest> = None;
    for (sample, d) in samples.iter().enumerate() {
        let wrong = |what| Err(E::Sample { sample, what });
        if d.row as usize >= rows {
            return wrong("names a row beyond the step");
        }
        if let Some(p) = previous {
            if d.row < p.row {
                return wrong("is out of order");
            }
            if d.row == p.row && d.edits != p.edits {
                return wrong("edits its row differently from the sample before");
            }
        }
        let share = |v: f32| (0.0..=1.0).contains(&v);
        let t = d.temperature;
        let temperature = t == 0.0 || (t.is_finite() && t >= TEMPERATURE_MIN);
        if !(temperature && d.top_p > 0.0 && share(d.top_p) && share(d.min_p)) {
            return wrong("has a parameter out of range");
        }
        if d.logprobs.is_some_and(|top| top > TOP_MAX) {
            return wrong("asks for too many alternatives");
        }
        let e = &d.edits;
        let subtracted = e.frequency.is_finite() && e.presence.is_finite();
        if !(subtracted && REPETITION_PENALTIES.contains(&e.repetition)) {
            return wrong("has a penalty out of range");
        }
        if e.also.is_some_and(|also| also >= before) {
            return wrong("counts a token that the step before does not sample");
        }
        let end = u64::from(e.first) + u64::from(e.len);
        let own = edits.get(e.first as usize..end.min(usize::MAX as u64) as usize);
        let Some(own) = own.filter(|_| end <= edits.len() as u64) else {
            return wrong("names edits beyond the end of the list");
        };
        let first_of_row = previous.is_none_or(|p| p.row != d.row);
        if first_of_row && !own.windows(2).all(|w| w[0].id < w[1].id) {
            return wrong("has edits that are not ascending");
        }
        previous = Some(d);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edit(id: u32) -> LogitEdit {
        LogitEdit {
            id,
            bias: 0.5,
            count: 0,
            masked: false,
            in_prompt: false,
        }
    }

    #[test]
    fn tokens_and_pending_samples_are_told_apart() {
        for sample in [0, 1, 255, (1 << 31) - 1] {
            assert_eq!(pending_sample_of(pending_sample(sample)), Some(sample));
            assert_eq!(pending_sample_of(sample), None);
        }
    }

    type Change<'a> = &'a dyn Fn(&mut [SampleRequest; 3]);

    #[test]
    fn hostile_samples_are_refused() {
        let edits = [edit(3), edit(5), edit(5)];
        let run = |change: Change<'_>| {
            let mut samples = [
                SampleRequest::greedy(1),
                SampleRequest::greedy(4),
                SampleRequest::greedy(4),
            ];
            samples[0].edits.len = 2;
            change(&mut samples);
            check(&samples, &edits, 5, 2)
        };
        assert_eq!(run(&|_| ()), Ok(()));
        assert_eq!(run(&|d| d[0].edits.also = Some(1)), Ok(()));
        let refused: [Change<'_>; 14] = [
            &|d| d[2].row = 5,
            &|d| d[0].row = 4,
            &|d| d[2].row = 3,
            &|d| d[2].edits.len = 1,
            &|d| d[0].temperature = f32::NAN,
            &|d| d[0].temperature = -1.0,
            &|d| d[0].temperature = 1e-30,
            &|d| d[0].top_p = 1.5,
            &|d| d[0].top_p = 0.0,
            &|d| d[0].min_p = f32::NAN,
            &|d| d[1].logprobs = Some(TOP_MAX + 1),
            &|d| d[0].edits.also = Some(2),
            &|d| d[0].edits.len = 3, // 5 comes twice
            &|d| d[0].edits.first = u32::MAX,
        ];
        for (i, change) in refused.into_iter().enumerate() {
            assert!(matches!(run(change), Err(E::Sample { .. })), "case {i}");
        }
    }
}
