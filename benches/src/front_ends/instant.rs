//! A backend that computes nothing: what remains is what the host does.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ebb_kernels::backend::{Backend, BackendError, SampledToken, StepInput, StepOutput};
use ebb_kernels::model::ModelSpec;

/// Steps take `step`, one after the other, and sample letters.
pub(super) struct Instantly {
    spec: ModelSpec,
    step: Duration,
    /// When each submitted step ends, and how many samples it has.
    in_flight: VecDeque<(Instant, usize)>,
    samples: Vec<SampledToken>,
}

impl Instantly {
    pub(super) fn new(spec: ModelSpec, step: Duration) -> Self {
        Self {
            spec,
            step,
            in_flight: VecDeque::new(),
            samples: Vec::new(),
        }
    }
}

impl Backend for Instantly {
    fn submit(&mut self, input: &StepInput) -> Result<(), BackendError> {
        let now = Instant::now();
        let begin = self.in_flight.back().map_or(now, |(end, _)| now.max(*end));
        self.in_flight
            .push_back((begin + self.step, input.samples.len()));
        Ok(())
    }

    fn wait(&mut self) -> Result<StepOutput<'_>, BackendError> {
        let (end, samples) = self.in_flight.pop_front().expect("a step was submitted");
        std::thread::sleep(end.saturating_duration_since(Instant::now()));
        let letter = SampledToken {
            token: Ok(u32::from(b'a')),
            logprob: 0.0,
            first_top: 0,
            top: 0,
        };
        self.samples.resize(samples, letter);
        Ok(StepOutput {
            logits: &[],
            samples: &self.samples,
            top: &[],
            failed_shrinks: &[],
            shrink_time: Duration::ZERO,
        })
    }

    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn depth(&self) -> usize {
        2
    }

    fn samples(&self) -> bool {
        true
    }
}
