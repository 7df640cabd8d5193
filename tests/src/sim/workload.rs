//! The requests of a seed.

use std::sync::Arc;

use ebb_scheduler::{Millis, Request, RequestId};

use super::model::VOCAB;
use super::rng::Rng;
use super::settings::Settings;

/// Makes requests.
#[derive(Debug)]
pub struct Workload {
    texts: Vec<Vec<u32>>,
    earlier: Vec<Arc<[u32]>>,
    next: u64,
}

/// A request, and what its sampler is seeded with.
#[derive(Clone, Debug)]
pub struct Generated {
    /// The request.
    pub request: Request,
    /// Few seeds, so that equal prompts get equal answers and share pages of them.
    pub sampling_seed: u64,
}

impl Workload {
    /// A source of requests.
    pub fn new(rng: &mut Rng, settings: &Settings) -> Self {
        let texts = (0..settings.shared_prefixes)
            .map(|_| tokens(rng, 400))
            .collect();
        Self {
            texts,
            earlier: Vec::new(),
            next: 0,
        }
    }

    /// Requests made so far; their ids are `0..made()`.
    pub fn made(&self) -> u64 {
        self.next
    }

    /// The next request.
    pub fn request(&mut self, rng: &mut Rng, settings: &Settings, now: Millis) -> Generated {
        let id = RequestId(self.next);
        self.next += 1;
        let prompt = self.prompt(rng, settings);
        let mut request = Request::new(id, prompt, rng.below(settings.answer_max + 1) as u32);
        if request.max_tokens == 0 && !rng.one_in(4) {
            request.max_tokens = 1;
        }
        request.n = rng.range(1, settings.n_max) as u32;
        request.priority =
            (rng.below(2 * settings.priority_max as u64 + 1) as i64 - settings.priority_max) as i32;
        if chance(rng, settings.deadline_one_in) {
            request.deadline = Some(Millis(now.0 + rng.below(1000)));
        }
        request.prompt_logprobs = chance(rng, settings.logprobs_one_in);
        if chance(rng, settings.min_bits_one_in) {
            request.min_kv_bits = rng.pick(&[16, 16, 8, 4, 3, 2]);
        }
        // Some requests are invalid.
        if rng.one_in(60) {
            request.prompt = Arc::from([]);
        }
        if rng.one_in(60) {
            request.n = rng.pick(&[0, settings.scheduler.max_running as u32 + 1]);
        }
        Generated {
            request,
            sampling_seed: rng.below(2),
        }
    }

    fn prompt(&mut self, rng: &mut Rng, settings: &Settings) -> Arc<[u32]> {
        if !self.earlier.is_empty() && chance(rng, settings.repeat_one_in) {
            let at = rng.below(self.earlier.len() as u64) as usize;
            return self.earlier[at].clone();
        }
        let len = rng.range(settings.prompt_min, settings.prompt_max) as usize;
        let mut prompt = Vec::new();
        if !self.texts.is_empty() && !rng.one_in(4) {
            let text = &self.texts[rng.below(self.texts.len() as u64) as usize];
            let shared = rng.range(1, 400) as usize;
            prompt.extend_from_slice(&text[..shared.min(len)]);
        }
        if rng.one_in(4) && !prompt.is_empty() {
            // The same text after another beginning: blocks of equal tokens and different KV.
            let at = rng.below(prompt.len().min(128) as u64) as usize;
            prompt[at] = (prompt[at] + 1) % VOCAB;
        }
        let rest = len - prompt.len();
        prompt.extend(tokens(rng, rest));
        let prompt: Arc<[u32]> = prompt.into();
        self.earlier.push(prompt.clone());
        prompt
    }
}

fn tokens(rng: &mut Rng, len: usize) -> Vec<u32> {
    (0..len)
        .map(|_| rng.below(u64::from(VOCAB)) as u32)
        .collect()
}

/// True once in `one_in` times; never for 0.
pub fn chance(rng: &mut Rng, one_in: u64) -> bool {
    one_in > 0 && rng.one_in(one_in)
}
