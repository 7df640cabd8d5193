//! Watches one choice while it runs.

/// What became of a choice's KV cache since it last got memory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Life {
    /// Tokens that the prefix cache had, and the lowest bits that those had been computed from.
    pub(crate) cached: (u32, u8),
    /// `[tokens, times in a row]` computed together since.
    pub(crate) steps: Vec<(u32, u32)>,
    /// `(first token that reads it there, block, precision level)`.
    pub(crate) moves: Vec<(u32, u32, u16)>,
    /// Whether a block was exchanged for a wider one.
    pub(crate) exchanged: bool,
    /// Tokens of the answer that an earlier life computed.
    pub(crate) earlier: u32,
}

/// Watches one choice.
#[derive(Debug, Clone, Default)]
pub(crate) struct Follower {
    life: Life,
    /// Tokens computed.
    computed: u32,
    has_begun: bool,
    /// Where its blocks stand.
    at: Vec<u16>,
}

impl Follower {
    /// The choice computes `tokens` from `position` on, reading blocks that stand where `table`
    /// says; `lowest` are the lowest bits that it has read so far. A step that failed comes again,
    /// from the same position or an earlier one.
    pub(crate) fn slice(
        &mut self,
        position: u32,
        tokens: u32,
        table: impl Iterator<Item = u16>,
        lowest: u8,
    ) {
        if !self.has_begun {
            self.has_begun = true;
            self.life.cached = (position, lowest);
            self.computed = position;
        }
        self.rewind(position);
        for (block, to) in table.enumerate() {
            if self.at.len() == block {
                self.at.push(0);
            }
            let from = std::mem::replace(&mut self.at[block], to);
            self.life.exchanged |= to < from;
            if to != from {
                self.life.moves.push((position, block as u32, to));
            }
        }
        match self.life.steps.last_mut() {
            Some((of, times)) if *of == tokens => *times += 1,
            _ => self.life.steps.push((tokens, 1)),
        }
        self.computed = position + tokens;
    }

    /// Takes back what was computed from `position` on. Blocks stay where they have come to, so
    /// that whatever reads them next reads them there.
    fn rewind(&mut self, position: u32) {
        while self.computed > position {
            let Some((tokens, times)) = self.life.steps.last_mut() else {
                break;
            };
            let over = (self.computed - position).min(*tokens);
            self.computed -= over;
            let left = *tokens - over;
            *times -= 1;
            if *times == 0 {
                self.life.steps.pop();
            }
            if left > 0 {
                self.life.steps.push((left, 1));
            }
        }
        for (before, ..) in self.life.moves.iter_mut().rev() {
            if *before <= position {
                break;
            }
            *before = position;
        }
    }

    /// Another choice that has begun with this one's first `position` tokens.
    pub(crate) fn fork(&self, position: u32) -> Self {
        let mut fork = self.clone();
        // What moved afterwards, moved for both, or not for the other: its own table will tell.
        fork.life.moves.retain(|(before, ..)| *before <= position);
        fork.rewind(position);
        fork.at = Vec::new();
        for &(_, block, to) in &fork.life.moves {
            let block = block as usize;
            fork.at.resize(fork.at.len().max(block + 1), 0);
            fork.at[block] = to;
        }
        fork
    }

    /// The choice lost its memory after `generated` tokens of its answer.
    pub(crate) fn restart(&mut self, generated: u32) {
        *self = Self::default();
        self.life.earlier = generated;
    }

    /// Tokens computed since the start or the last loss.
    pub(crate) fn computed(&self) -> u32 {
        self.computed
    }

    /// What became of it.
    pub(crate) fn life(&self) -> &Life {
        &self.life
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(follower: &mut Follower, position: u32, tokens: u32, table: &[u16]) {
        follower.slice(position, tokens, table.iter().copied(), 16);
    }

    #[test]
    fn steps_and_moves_are_told_as_the_tokens_met_them() {
        let mut f = Follower::default();
        slice(&mut f, 0, 256, &[0, 0]);
        slice(&mut f, 256, 40, &[0, 0, 0]);
        slice(&mut f, 296, 1, &[2, 0, 0]);
        slice(&mut f, 297, 1, &[2, 0, 0]);
        slice(&mut f, 298, 1, &[5, 3, 0]);
        assert_eq!(f.life().steps, [(256, 1), (40, 1), (1, 3)]);
        assert_eq!(f.life().moves, [(296, 0, 2), (298, 0, 5), (298, 1, 3)]);
        assert_eq!((f.life().cached, f.computed()), ((0, 16), 299));
        assert!(!f.life().exchanged);
    }

    #[test]
    fn a_step_that_failed_comes_again() {
        let mut f = Follower::default();
        slice(&mut f, 0, 200, &[0, 0]);
        slice(&mut f, 200, 1, &[0, 0]);
        slice(&mut f, 201, 1, &[4, 0]);
        // Both decode steps were lost; meanwhile the block has moved for good.
        slice(&mut f, 200, 1, &[4, 0]);
        assert_eq!(f.life().steps, [(200, 1), (1, 1)]);
        assert_eq!(f.life().moves, [(200, 0, 4)]);
        // So was half of the prompt.
        slice(&mut f, 100, 50, &[4, 0]);
        assert_eq!(f.life().steps, [(100, 1), (50, 1)]);
        assert_eq!((f.life().moves[0].0, f.computed()), (100, 150));
    }

    #[test]
    fn choices_share_a_beginning_and_part() {
        let mut first = Follower::default();
        slice(&mut first, 0, 256, &[0, 0]);
        slice(&mut first, 256, 20, &[1, 0, 0]);
        slice(&mut first, 276, 1, &[1, 2, 0]);
        slice(&mut first, 277, 1, &[3, 2, 0]);
        let mut second = first.fork(276);
        assert_eq!(second.life().steps, [(256, 1), (20, 1)]);
        slice(&mut second, 276, 1, &[3, 2, 0]);
        assert_eq!(second.life().moves, [(256, 0, 1), (276, 1, 2), (276, 0, 3)]);
        assert!(!second.life().exchanged);
    }

    #[test]
    fn what_a_cache_had_and_what_was_lost_is_told() {
        let mut f = Follower::default();
        f.slice(256, 10, [7, 0, 0].into_iter(), 4);
        assert_eq!(f.life().cached, (256, 4));
        assert_eq!(f.life().moves, [(256, 0, 7)]);
        f.restart(5);
        assert_eq!((f.life().earlier, f.computed()), (5, 0));
        slice(&mut f, 0, 271, &[0, 0, 0]);
        assert_eq!(f.life().cached, (0, 16));
        assert!(f.life().moves.is_empty());
        slice(&mut f, 271, 1, &[1, 0, 0]);
        slice(&mut f, 272, 1, &[0, 0, 0]);
        assert!(f.life().exchanged);
    }
}
