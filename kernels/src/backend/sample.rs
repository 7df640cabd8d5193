//! Draws: tokens that a step chooses from its own logits, so that only their ids come back.
//!
//! A backend that draws chooses the token that the engine's sampler would choose from the same
//! logits, bit for bit: logits are edited, tokens are weighed relative to the most likely one in
//! integers of 2⁻³⁰, cut by min-p, top-k and top-p, and drawn in id order at the point that random
//! bits name. See `ebb_serving::sampling`, whose Philox stream the bits are.

use super::StepInputError as E;

/// Set in an entry of [`StepInput::tokens`](super::StepInput::tokens) whose token the step before
/// has yet to draw.
const DRAWN: u32 = 1 << 31;

/// An entry of [`StepInput::tokens`](super::StepInput::tokens): whatever draw `draw` of the step
/// submitted just before gives. Only for backends with a [`depth`](super::Backend::depth) above 1.
pub const fn drawn_token(draw: u32) -> u32 {
    DRAWN | draw
}

/// The draw that a row's token comes from; `None` if the token is known.
pub const fn draw_of(token: u32) -> Option<u32> {
    if token & DRAWN == 0 {
        None
    } else {
        Some(token & !DRAWN)
    }
}

/// The lowest temperature that divides.
pub const TEMPERATURE_MIN: f32 = 1e-5;

/// Alternatives that a draw may report.
pub const TOP_MAX: u32 = 20;

/// One token to choose.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Draw {
    /// Row of the step from whose logits it is drawn. Draws of one row stand beside each other and
    /// have the same edits.
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

impl Draw {
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

/// How the logits of a row are edited before tokens are drawn from it.
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
    /// The draw of the step submitted just before whose token is in the answer once more than the
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
    /// Must not be drawn.
    pub masked: bool,
    /// Is in the prompt.
    pub in_prompt: bool,
}

/// Why no token was drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrawError {
    /// A logit is NaN or +∞.
    NotFinite,
    /// Every logit is -∞.
    NoCandidate,
}

/// A token drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Drawn {
    /// Its id.
    pub token: Result<u32, DrawError>,
    /// Natural logarithm of its probability in the unedited distribution; meaningless unless asked
    /// for.
    pub logprob: f32,
    /// Alternatives, into [`StepOutput::top`](super::StepOutput::top).
    pub first_top: u32,
    /// How many there are.
    pub top: u32,
}

/// Checks the draws of a step of `rows` rows, the one before having `before` draws.
pub(crate) fn check(
    draws: &[Draw],
    edits: &[LogitEdit],
    rows: usize,
    before: u32,
) -> Result<(), E> {
    let mut previous: Option<&Draw> = None;
    for (draw, d) in draws.iter().enumerate() {
        let wrong = |what| Err(E::Draw { draw, what });
        if d.row as usize >= rows {
            return wrong("names a row beyond the step");
        }
        if let Some(p) = previous {
            if d.row < p.row {
                return wrong("is out of order");
            }
            if d.row == p.row && d.edits != p.edits {
                return wrong("edits its row differently from the draw before");
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
        if e.also.is_some_and(|also| also >= before) {
            return wrong("counts a token that the step before does not draw");
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
    fn tokens_and_places_of_draws_are_told_apart() {
        for draw in [0, 1, 255, (1 << 31) - 1] {
            assert_eq!(draw_of(drawn_token(draw)), Some(draw));
            assert_eq!(draw_of(draw), None);
        }
    }

    type Change<'a> = &'a dyn Fn(&mut [Draw; 3]);

    #[test]
    fn hostile_draws_are_refused() {
        let edits = [edit(3), edit(5), edit(5)];
        let run = |change: Change<'_>| {
            let mut draws = [Draw::greedy(1), Draw::greedy(4), Draw::greedy(4)];
            draws[0].edits.len = 2;
            change(&mut draws);
            check(&draws, &edits, 5, 2)
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
            assert!(matches!(run(change), Err(E::Draw { .. })), "case {i}");
        }
    }
}
