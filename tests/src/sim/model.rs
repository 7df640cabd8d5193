//! A language model that is a hash: the next token depends on the whole context and nothing else.

use super::rng::mix;

/// Token ids are below this.
pub const VOCAB: u32 = 1000;

/// Fingerprint of a context: the result of attending to every token before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Context(u64);

impl Context {
    /// The context with one more token.
    #[must_use]
    pub fn then(self, token: u32) -> Self {
        Self(mix(
            self.0 ^ u64::from(token).wrapping_add(0x9e37_79b9_7f4a_7c15)
        ))
    }

    /// What a KV page stores of it.
    pub fn fingerprint(self) -> u32 {
        self.0 as u32
    }
}

/// A token, and whether the choice ends with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sampled {
    /// The token.
    pub token: u32,
    /// Whether it is a stop.
    pub finish: bool,
}

/// Samples for one choice of a request whose sampling seed is `seed`. One token in `stop_one_in`
/// is a stop; 0: none.
pub fn sample(context: Context, seed: u64, choice: u32, stop_one_in: u64) -> Sampled {
    let bits = mix(context.0 ^ mix(seed << 8 | u64::from(choice)));
    let token = (bits % u64::from(VOCAB)) as u32;
    Sampled {
        token,
        finish: stop_one_in > 0 && (bits >> 32).is_multiple_of(stop_one_in),
    }
}

/// The answer that serving one request at a time would give.
pub fn naive_answer(
    prompt: &[u32],
    max_tokens: u32,
    seed: u64,
    choice: u32,
    stop: u64,
) -> Vec<u32> {
    let mut context = prompt.iter().fold(Context::default(), |c, &t| c.then(t));
    let mut answer = Vec::new();
    while answer.len() < max_tokens as usize {
        let next = sample(context, seed, choice, stop);
        answer.push(next.token);
        if next.finish {
            break;
        }
        context = context.then(next.token);
    }
    answer
}
