//! Random tokens, and the random numbers that everything else is planned from.

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

/// Prompts of ids that no two prompts share by accident.
#[derive(Debug, Clone)]
pub struct Tokens {
    seed: u64,
    vocab: u32,
    left_out: Vec<u32>,
}

/// Tokens, as many as are taken.
#[derive(Debug)]
pub struct Source<'a> {
    of: &'a Tokens,
    rng: ChaCha8Rng,
}

/// What a stream of random numbers is for; each thing has its own, so that none depends on what
/// another drew.
enum Use {
    Plan,
    Session,
    Prefix,
    Arrivals,
}

impl Tokens {
    /// Ids below `vocab` without `left_out`.
    pub(super) fn new(seed: u64, vocab: u32, left_out: &[u32]) -> Self {
        let mut left_out = left_out.to_vec();
        // Leaving out everything would leave nothing to draw.
        left_out.truncate(vocab as usize / 2);
        Self {
            seed,
            vocab: vocab.max(1),
            left_out,
        }
    }

    fn rng(&self, what: Use, number: u64) -> ChaCha8Rng {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        rng.set_stream(number << 2 | what as u64);
        rng
    }

    fn source(&self, what: Use, number: u64) -> Source<'_> {
        Source {
            of: self,
            rng: self.rng(what, number),
        }
    }

    pub(super) fn plan(&self, session: u64) -> ChaCha8Rng {
        self.rng(Use::Plan, session)
    }

    pub(super) fn arrivals(&self, stage: usize) -> ChaCha8Rng {
        self.rng(Use::Arrivals, stage as u64)
    }

    pub(super) fn session(&self, session: u64) -> Source<'_> {
        self.source(Use::Session, session)
    }

    pub(super) fn prefix(&self, group: u32) -> Source<'_> {
        self.source(Use::Prefix, group.into())
    }
}

impl Source<'_> {
    /// The next `count` tokens.
    pub fn take(&mut self, count: u32) -> Vec<u32> {
        (0..count).map(|_| self.one()).collect()
    }

    fn one(&mut self) -> u32 {
        loop {
            let token = self.rng.random_range(0..self.of.vocab);
            if !self.of.left_out.contains(&token) {
                return token;
            }
        }
    }
}
