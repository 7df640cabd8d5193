//! What clients check: each notice, and at the end all answers.

use ebb_scheduler::{Config, FinishReason, Notice};

use super::{Clients, Planning};
use crate::sim::model::naive_answer;

impl Clients {
    /// Reads a notice; `planning` if it was given by planning a step.
    pub fn notice(
        &mut self,
        notice: &Notice,
        planning: Option<Planning>,
        config: &Config,
    ) -> Result<(), String> {
        match *notice {
            Notice::Rejected { request, .. } => {
                let record = &mut self.records[request.0 as usize];
                if record.rejected
                    || record.admitted
                    || record.choices.iter().any(|c| c.ended.is_some())
                {
                    return Err(format!("{request} is rejected too late"));
                }
                record.rejected = true;
                // A deadline that has passed counts only if the request is taken.
                self.expected_ends.retain(|(r, _), _| *r != request.0);
            }
            Notice::Admitted {
                request,
                cached_tokens,
            } => {
                let record = &self.records[request.0 as usize];
                let most = if record.request.prompt_logprobs {
                    1
                } else {
                    record.request.prompt.len()
                };
                if record.is_over() || record.admitted || cached_tokens as usize >= most {
                    return Err(format!("{request} is admitted with {cached_tokens} cached"));
                }
                self.check_overtaking(request.0, config)?;
                self.records[request.0 as usize].admitted = true;
                self.last_admission = planning;
            }
            Notice::Preempted { request, choice } => {
                if !self.is_live(request.0, choice) || !self.record(request.0).admitted {
                    return Err(format!("{request} {choice} is preempted without running"));
                }
                let own = &mut self.records[request.0 as usize].choices[choice as usize];
                own.preemptions += 1;
                let yields_max = u32::from(config.priority_margin.is_some());
                if self.preemption_is_a_bug && own.preemptions > yields_max {
                    return Err(format!("{request} is preempted where others could shrink"));
                }
                if let (Some(now), Some(then)) = (planning, self.last_admission)
                    && !config.mode.shrinks()
                    && config.priority_margin.is_none()
                    && then.running > 0
                    && now.step - then.step <= u64::from(config.headroom_tokens)
                {
                    let step = then.step;
                    return Err(format!("{request} pays for the admission at step {step}"));
                }
            }
            Notice::Finished {
                request,
                choice,
                reason,
                bits,
            } => {
                let own = &self.record(request.0).choices[choice as usize];
                let asked = self.record(request.0).request.min_kv_bits;
                let seen = own.lowest.unwrap_or(16);
                if bits.lowest < asked || bits.lowest > seen || bits.mean_centibits > 1600 {
                    return Err(format!(
                        "{request} {choice} read {seen} bits of {asked}, but is told {bits:?}"
                    ));
                }
                let expected = self.expected_ends.remove(&(request.0, choice));
                // Alone, and its blocks cannot be encoded: it does not fit.
                let is_stuck = self.shrinks_fail && planning.is_some() && expected.is_none();
                if expected != Some(reason) && !(is_stuck && reason == FinishReason::Error) {
                    return Err(format!(
                        "{request} {choice} ends with {reason:?}, not {expected:?}"
                    ));
                }
                self.records[request.0 as usize].choices[choice as usize].ended = Some(reason);
            }
        }
        Ok(())
    }

    /// All ends that were expected must have come.
    pub fn check_no_end_missing(&self) -> Result<(), String> {
        match self.expected_ends.first_key_value() {
            None => Ok(()),
            Some(((request, choice), reason)) => Err(format!(
                "request {request} choice {choice} should have ended: {reason:?}"
            )),
        }
    }

    /// A request may be overtaken only within the bound that the scheduler states.
    fn check_overtaking(&self, admitted: u64, config: &Config) -> Result<(), String> {
        let overtaking = self.record(admitted);
        let waiting = self.records[..admitted as usize].iter();
        for waiting_one in waiting.filter(|b| !b.admitted && !b.is_over()) {
            let levels =
                i64::from(waiting_one.request.priority) - i64::from(overtaking.request.priority);
            let window = levels * i64::from(config.aging_steps);
            let later = overtaking.arrival_step - waiting_one.arrival_step;
            if later as i64 >= window {
                let (a, b) = (overtaking.request.id, waiting_one.request.id);
                return Err(format!(
                    "{a} overtakes {b} after {later} steps, beyond {window}"
                ));
            }
        }
        Ok(())
    }

    /// At the end: every request was served once, with the answer of serving one at a time.
    pub fn check_answers(&self) -> Result<(), String> {
        self.check_no_end_missing()?;
        for record in &self.records {
            let request = &record.request;
            let id = request.id;
            if !record.is_over() {
                return Err(format!("{id} was lost"));
            }
            for (choice, own) in record.choices.iter().enumerate() {
                if record.rejected {
                    if !own.tokens.is_empty() || own.ended.is_some() {
                        return Err(format!("{id} was rejected and served"));
                    }
                    continue;
                }
                let naive = naive_answer(
                    &request.prompt,
                    request.max_tokens,
                    record.sampling_seed,
                    choice as u32,
                    self.stop_one_in,
                );
                let answer = &own.tokens[..own.accepted];
                let whole = matches!(own.ended, Some(FinishReason::Stop | FinishReason::Length));
                if !naive.starts_with(answer) || (whole && naive.len() != answer.len()) {
                    return Err(format!(
                        "{id} choice {choice}: {answer:?} instead of {naive:?}"
                    ));
                }
            }
        }
        Ok(())
    }
}
