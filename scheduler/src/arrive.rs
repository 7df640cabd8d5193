//! Arrivals: a request is rejected or joins the queue.

use ebb_block_manager::{BLOCK_TOKENS, SeqBits, SeqOptions, precision::MinBits};

use crate::group::{Choice, Group};
use crate::scheduler::Scheduler;
use crate::seq::Seq;
use crate::states::StateMarks;
use crate::urgency::Urgency;
use crate::{FinishReason, Notice, RejectReason, Request};

impl Scheduler {
    pub(crate) fn arrive(&mut self, request: Request) {
        let id = request.id;
        assert!(!self.requests.contains_key(&id), "{id} arrived twice");
        self.counters.requests += 1;
        if let Some(reason) = self.rejection(&request) {
            self.counters.requests_rejected += 1;
            self.notices.push(Notice::Rejected {
                request: id,
                reason,
            });
            return;
        }
        if request
            .deadline
            .is_some_and(|deadline| deadline <= self.now)
        {
            self.counters.choices_finished += u64::from(request.n);
            let reason = FinishReason::DeadlineExceeded;
            let notices = (0..request.n).map(|choice| Notice::Finished {
                request: id,
                choice,
                reason,
                bits: SeqBits::default(),
            });
            self.notices.extend(notices);
            return;
        }

        let step = self.counters.steps;
        let frames = self.frames_at_longest(&request, request.min_kv_bits);
        let pool = self.blocks.config();
        let promised_frames = self.policy.promise(pool, frames, request.n);
        let Request {
            priority,
            max_tokens,
            n,
            deadline,
            prompt,
            prompt_logprobs,
            min_kv_bits,
            ..
        } = request;
        let urgency = Urgency::new(priority, self.config.aging_steps, step, self.arrivals);
        self.arrivals += 1;
        let prompt_len = prompt.len() as u32;
        let group = self.groups.insert(Group {
            id,
            prompt,
            deadline,
            urgency,
            logits_delivered: 0,
            leader: None,
            choices: vec![Choice::Sharing; n as usize],
            active: n,
            admitted: false,
        });
        let seq = self.seqs.insert(Seq {
            group,
            request: id,
            choice: 0,
            urgency,
            priority,
            prompt_len,
            max_tokens,
            sharing: n,
            logprobs: prompt_logprobs,
            generated: Vec::new(),
            resident: None,
            computed: 0,
            committed: 0,
            reserved: 0,
            pending: 0,
            in_flight: 0,
            epoch: 0,
            failures: 0,
            has_yielded: false,
            preempted: false,
            options: SeqOptions {
                min_bits: MinBits(min_kv_bits),
                priority,
                is_private: self.is_private(MinBits(min_kv_bits)),
            },
            promised_frames,
            bits: SeqBits::default(),
            at_floor: (0, 0),
            states: StateMarks::default(),
            restarted_at: 0,
        });
        let record = &mut self.groups[group];
        if n == 1 {
            record.choices[0] = Choice::Own(seq);
        } else {
            record.leader = Some(seq);
        }
        self.requests.insert(id, group);
        if let Some(deadline) = deadline {
            self.deadlines.insert((deadline, group));
        }
        self.waiting_choices += n as usize;
        self.enqueue(seq);
    }

    /// Why a request is rejected, if it is. What can never be served comes first, so that a client
    /// does not retry in vain.
    fn rejection(&self, request: &Request) -> Option<RejectReason> {
        let prompt_tokens = request.prompt.len();
        let max_tokens = request.max_tokens;
        if prompt_tokens == 0 {
            return Some(RejectReason::EmptyPrompt);
        }
        let limit = self.config.max_running;
        if request.n == 0 || request.n as usize > limit {
            return Some(RejectReason::Choices {
                n: request.n,
                limit,
            });
        }
        let pool = self.blocks.config();
        let limit_tokens = u64::from(pool.max_blocks_per_seq) * BLOCK_TOKENS as u64;
        let tokens = prompt_tokens as u64 + u64::from(max_tokens);
        if tokens > limit_tokens {
            let reason = RejectReason::TooLong {
                prompt_tokens,
                max_tokens,
                tokens,
                limit_tokens,
            };
            return Some(reason);
        }
        let frames_needed = self.frames_to_run_alone(request, request.min_kv_bits);
        let frames_total = u64::from(self.policy.capacity);
        if frames_needed > frames_total {
            let bytes_needed = frames_needed * pool.frame_bytes;
            let bytes_total = frames_total * pool.frame_bytes;
            let reason = match self.frames_to_run_alone(request, 0) <= frames_total {
                true => RejectReason::NeverFitsAtBits {
                    min_kv_bits: request.min_kv_bits,
                    frames_needed,
                    bytes_needed,
                    frames_total,
                    bytes_total,
                },
                false => RejectReason::NeverFits {
                    prompt_tokens,
                    max_tokens,
                    frames_needed,
                    bytes_needed,
                    frames_total,
                    bytes_total,
                },
            };
            return Some(reason);
        }
        let (waiting, limit) = (self.waiting.len(), self.config.max_waiting);
        let is_taken = self.queue_capacity().take(request.n);
        (!is_taken).then_some(RejectReason::QueueFull { waiting, limit })
    }

    fn frames_to_run_alone(&self, request: &Request, min_kv_bits: u8) -> u64 {
        let frames = self.frames_at_longest(request, min_kv_bits);
        self.policy.frames_to_run_alone(frames)
    }

    /// Frames of one choice at its longest. The last token sampled is never computed.
    fn frames_at_longest(&self, request: &Request, min_kv_bits: u8) -> u64 {
        let computed =
            request.prompt.len() as u64 + u64::from(request.max_tokens.saturating_sub(1));
        let min_bits = MinBits(min_kv_bits);
        let recent_blocks = self.config.recent_blocks(request.prompt.len());
        self.policy
            .frames_at_longest(self.blocks.config(), computed, min_bits, recent_blocks)
    }
}
