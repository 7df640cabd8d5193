//! Computes a logged answer again, and what its trajectory cost beside a 16-bit run of the same
//! tokens.

use std::sync::Arc;

use ebb_serving::sampling::{Sampler, SamplerState};
use ebb_serving::trajectory::Trajectory;

use crate::eval::{Bits, CHUNK, Course, EvalError, Move, Row, Rows, TrialLevels, Trials, score};

/// How tokens are grouped into steps. On the CPU that changes no bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feeding {
    /// As they were: prompts in chunks, the answer token by token.
    AsLogged,
    /// As many of a block as no move comes between. Needed where other specifications are run
    /// beside.
    InBlocks,
}

/// Most that a device's log-probability may differ from the host's of the same logits: both are
/// sums in f32 over a vocabulary, in another order.
pub const DRAWN_LOGPROB_ERROR: f64 = 1e-5;

/// Whether an answer came out again.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Sameness {
    /// Every token; and every log-probability that was logged, to the bit or, where a device
    /// samples and so takes its logarithms itself, within [`DRAWN_LOGPROB_ERROR`].
    Same,
    /// Another token came.
    Token {
        /// Its place in the answer, from 0.
        at: usize,
        /// What was logged.
        logged: u32,
        /// What came.
        computed: u32,
    },
    /// The same token came with another log-probability.
    Logprob {
        /// Its place in the answer, from 0.
        at: usize,
        /// What was logged.
        logged: f64,
        /// What came.
        computed: f64,
    },
    /// The log cannot say what was read.
    Unknown(&'static str),
}

/// An answer computed again.
#[derive(Debug, Clone)]
pub struct Replayed {
    /// Whether it came out as logged.
    pub sameness: Sameness,
    /// Of the logged trajectory and of each specification beside it: every token of the answer
    /// against the 16-bit run.
    pub rows: Vec<Vec<Row>>,
    /// Of each of these, the bits stored at the end.
    pub bits: Vec<Bits>,
}

/// Computes `trajectory` again beside a 16-bit run and `others`; `end_ids` are the model's own end
/// tokens. The answer has at least one token. Logits are compared on rayon's threads.
///
/// # Errors
/// When the pool is full, a page cannot be shrunk, or the backend fails.
pub fn replay(
    trials: &mut Trials,
    trajectory: &Trajectory,
    end_ids: &[u32],
    others: &[TrialLevels],
    feeding: Feeding,
) -> Result<Replayed, EvalError> {
    let moves = trajectory
        .moves
        .iter()
        .map(|&(before, block, to)| Move { before, block, to });
    let logged = Course::Moves(moves.collect());
    let others_courses = others.iter().cloned().map(Course::Sealed);
    trials.restart(std::iter::once(logged).chain(others_courses));
    let vocab = trials.backend().spec().vocab;
    let logprob_error = if trials.backend().samples() {
        DRAWN_LOGPROB_ERROR
    } else {
        0.0
    };
    let mut checking = Checking::new(trajectory, end_ids, vocab, logprob_error);
    let (prompt, end) = (trajectory.prompt.len(), trajectory.computed());
    let mut text = trajectory.prompt.clone();
    text.extend(&trajectory.tokens);
    let mut steps = Steps::new(trajectory);
    let mut rows: Vec<Vec<Row>> = vec![Vec::new(); 1 + others.len()];
    while trials.len() < end {
        let at = trials.len();
        let whole = match feeding {
            Feeding::AsLogged => steps.left_from(at),
            Feeding::InBlocks => CHUNK - at % CHUNK,
        };
        // The prompt's last row alone is looked at.
        let stop = if at < prompt { prompt } else { end };
        let count = whole.min(stop - at);
        let count = trials.until_due().map_or(count, |most| count.min(most));
        let scored = match at + count {
            after if after < prompt => None,
            after if at < prompt && after == prompt => Some(Rows::Last),
            _ => Some(Rows::All),
        };
        let logits = trials.feed(&text[at..at + count], scored)?;
        let Some(which) = scored else { continue };
        let first = if which == Rows::Last {
            at + count - 1
        } else {
            at
        };
        let scored_rows = at + count - first;
        let targets = &text[first + 1..][..scored_rows];
        for (_, of_row) in score(logits, scored_rows, vocab, targets) {
            for (rows, row) in rows.iter_mut().zip(of_row) {
                rows.push(row);
            }
        }
        checking.look(&logits[scored_rows * vocab..][..scored_rows * vocab]);
    }
    Ok(Replayed {
        sameness: checking.finish(),
        rows,
        bits: (0..=others.len()).map(|t| trials.bits(t)).collect(),
    })
}

/// The steps of a trajectory, one by one.
struct Steps<'a> {
    runs: std::slice::Iter<'a, (u32, u32)>,
    /// Tokens of each step, and how many of them are left.
    run: (u32, u32),
    /// Where the step at hand ends.
    end: usize,
    cached: usize,
}

impl<'a> Steps<'a> {
    fn new(trajectory: &'a Trajectory) -> Self {
        let cached = trajectory.cached as usize;
        Self {
            runs: trajectory.steps.iter(),
            run: (0, 0),
            end: cached,
            cached,
        }
    }

    /// Tokens from `at` to the end of the step that computes it; what the prefix cache had comes in
    /// blocks.
    fn left_from(&mut self, at: usize) -> usize {
        if at < self.cached {
            return CHUNK.min(self.cached - at);
        }
        while self.end <= at {
            if self.run.1 == 0 {
                self.run = self.runs.next().copied().unwrap_or((1, 1));
            }
            self.run.1 -= 1;
            self.end += self.run.0 as usize;
        }
        self.end - at
    }
}

/// Samples the answer's tokens again, as long as they are the logged ones.
struct Checking<'a> {
    trajectory: &'a Trajectory,
    sampler: Sampler,
    state: Option<SamplerState>,
    row: Vec<f32>,
    vocab: usize,
    logprob_error: f64,
    /// Tokens looked at.
    done: usize,
    found: Sameness,
}

impl<'a> Checking<'a> {
    fn new(trajectory: &'a Trajectory, end_ids: &[u32], vocab: usize, logprob_error: f64) -> Self {
        let params = trajectory.sampling.clone().validate(vocab);
        let seed = trajectory.sampling.seed;
        let (state, found) = match (params, seed) {
            _ if trajectory.exchanged => (
                None,
                Sameness::Unknown("a block was exchanged for another one"),
            ),
            _ if trajectory.cached_bits < 16 => {
                let why =
                    "its prompt began with cached tokens that were computed from shrunk blocks";
                (None, Sameness::Unknown(why))
            }
            (Ok(params), Some(seed)) => {
                let first = SamplerState::new(Arc::new(params), end_ids, &trajectory.prompt, seed);
                (Some(first.sibling(trajectory.choice)), Sameness::Same)
            }
            _ => (
                None,
                Sameness::Unknown("its sampling parameters are not sound"),
            ),
        };
        Self {
            trajectory,
            sampler: Sampler::new(),
            state,
            row: Vec::new(),
            vocab,
            logprob_error,
            done: 0,
            found,
        }
    }

    /// Looks at the next rows of logits.
    fn look(&mut self, logits: &[f32]) {
        for row in logits.chunks_exact(self.vocab) {
            let at = self.done;
            self.done += 1;
            let Some(state) = &mut self.state else {
                continue;
            };
            let logged = self.trajectory.tokens[at];
            if at < self.trajectory.earlier as usize {
                state.accept(logged);
                continue;
            }
            self.row.clear();
            self.row.extend_from_slice(row);
            let Ok(sampled) = self.sampler.sample(&mut self.row, state) else {
                self.stop(Sameness::Unknown("its logits are not finite this time"));
                continue;
            };
            let computed = sampled.logprobs.map(|l| f64::from(l.logprob));
            if sampled.token != logged {
                self.stop(Sameness::Token {
                    at,
                    logged,
                    computed: sampled.token,
                });
            } else if let (Some(&logged), Some(computed)) =
                (self.trajectory.logprobs.get(at), computed)
                && (f64::from(logged as f32) - computed).abs() > self.logprob_error
            {
                self.stop(Sameness::Logprob {
                    at,
                    logged,
                    computed,
                });
            }
        }
    }

    fn stop(&mut self, found: Sameness) {
        self.found = found;
        self.state = None;
    }

    fn finish(self) -> Sameness {
        self.found
    }
}
