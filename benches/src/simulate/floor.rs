//! What a trace's KV cache takes when everything that may shrink stands at the floor.

use ebb_block_manager::precision::MinBits;
use ebb_block_manager::{BLOCK_TOKENS, PoolConfig};
use serde::Serialize;

use super::trace::Trace;

/// Bits of a token's elements at the floor, without a scheduler: each request is in the cache from
/// its first generated token to its last, its first and last full block at the protected width,
/// those between at the floor, the rest at 16 bit.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AtFloor {
    /// A block between the first and the last: the schedule's width.
    pub bits_middle: f64,
    /// The first and the last full block.
    pub bits_edge: f64,
    /// Bytes held x 16, over the bytes of the same tokens at 16 bit; both summed over every
    /// generated token of every request. Each stored token counts as often as it is read.
    pub bits_stored: f64,
    /// The same quotient taken for each request on its own, then averaged: short requests count
    /// like long ones.
    pub bits_by_request: f64,
    /// Of the tokens stored, the share in blocks between the first and the last.
    pub share_middle: f64,
    /// ... in the first and the last full block.
    pub share_edge: f64,
    /// ... in the open block.
    pub share_open: f64,
    /// Of `bits_stored`, the part that blocks between the first and the last make up.
    pub part_middle: f64,
    /// ... the first and the last full block.
    pub part_edge: f64,
    /// ... the open block.
    pub part_open: f64,
    /// `bits_stored` of requests by their tokens at the end: up to 512, 1024, 2048, 4096 and
    /// longer; and the share of stored tokens that they are.
    pub by_length: Vec<(Option<u32>, f64, f64)>,
}

/// Tokens stored, summed over steps.
#[derive(Debug, Clone, Copy, Default)]
struct Stored {
    middle: f64,
    first: f64,
    last: f64,
    open: f64,
}

impl Stored {
    fn tokens(self) -> f64 {
        self.middle + self.edge() + self.open
    }

    fn edge(self) -> f64 {
        self.first + self.last
    }

    fn add(&mut self, other: Self) {
        self.middle += other.middle;
        self.first += other.first;
        self.last += other.last;
        self.open += other.open;
    }
}

/// Upper ends of the classes by length.
const LENGTHS: [u32; 4] = [512, 1024, 2048, 4096];

impl AtFloor {
    /// Of a trace, in a pool whose blocks shrink.
    pub fn of(trace: &Trace, pool: &PoolConfig) -> Self {
        let levels = &pool.levels;
        let bits = |bound| {
            let position = levels.floor(bound);
            let bytes = |level| levels.level(level).size.bytes as f64;
            bytes(position) * 16.0 / bytes(0)
        };
        let (middle, first, last) = (bits(MinBits::ANY), bits(pool.sink), bits(pool.protected));
        let edge = |s: Stored| s.first * first + s.last * last;
        let mean = |s: Stored| (s.middle * middle + edge(s) + s.open * 16.0) / s.tokens();
        let (mut all, mut by_request) = (Stored::default(), 0.0);
        let mut classes = [Stored::default(); LENGTHS.len() + 1];
        for request in trace.iter() {
            let mut own = Stored::default();
            for tokens in request.prompt..request.prompt + request.generated {
                own.add(stored(tokens));
            }
            let end = request.prompt + request.generated;
            classes[LENGTHS.partition_point(|length| *length < end)].add(own);
            all.add(own);
            by_request += mean(own);
        }
        let tokens = all.tokens();
        let ends = LENGTHS.into_iter().map(Some).chain([None]);
        let classes = ends.zip(classes).filter(|(_, s)| s.tokens() > 0.0);
        Self {
            bits_middle: middle,
            bits_edge: match all.edge() {
                0.0 => first,
                tokens => edge(all) / tokens,
            },
            bits_stored: mean(all),
            bits_by_request: by_request / trace.len() as f64,
            share_middle: all.middle / tokens,
            share_edge: all.edge() / tokens,
            share_open: all.open / tokens,
            part_middle: all.middle * middle / tokens,
            part_edge: edge(all) / tokens,
            part_open: all.open * 16.0 / tokens,
            by_length: classes
                .map(|(end, s)| (end, mean(s), s.tokens() / tokens))
                .collect(),
        }
    }

    /// Lines for people.
    pub fn text(&self, limit: f64) -> String {
        let mut text = format!(
            "Everything unprotected at the floor, over every generated token of the trace:\n\
             \x20 {:.3} bits of a stored token, each counted as often as it is stored while a \
             token is generated\n\
             \x20 {:.3} bits, the same for each request on its own, then averaged over requests\n\
             \x20 middle blocks: {:4.1} % of stored tokens at {:6.3} bits make up {:.3}\n\
             \x20 first and last: {:3.1} % of stored tokens at {:6.3} bits make up {:.3}\n\
             \x20 open block:    {:4.1} % of stored tokens at 16.000 bits make up {:.3}\n",
            self.bits_stored,
            self.bits_by_request,
            100.0 * self.share_middle,
            self.bits_middle,
            self.part_middle,
            100.0 * self.share_edge,
            self.bits_edge,
            self.part_edge,
            100.0 * self.share_open,
            self.part_open,
        );
        for (end, bits, share) in &self.by_length {
            let name = end.map_or("longer".to_owned(), |end| format!("up to {end} tokens"));
            text += &format!(
                "  requests {name:<18} {bits:6.3} bits, {:4.1} % of stored tokens\n",
                100.0 * share
            );
        }
        let beyond = self.bits_stored - limit;
        text += &match beyond > 0.0 {
            true => format!("  above the limit of {limit} bits by {beyond:.3}\n"),
            false => format!("  within the limit of {limit} bits, {:.3} below\n", -beyond),
        };
        text
    }
}

/// Where the tokens of a sequence of that length are.
fn stored(tokens: u32) -> Stored {
    let block = BLOCK_TOKENS as u32;
    let (full, open) = (tokens / block, tokens % block);
    Stored {
        middle: f64::from(full.saturating_sub(2) * block),
        first: f64::from(full.min(1) * block),
        last: f64::from(full.saturating_sub(1).min(1) * block),
        open: f64::from(open),
    }
}
