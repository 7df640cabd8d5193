//! KVmix's recent context in a profile: the shares that its rule goes by.

use ebb_kernels::formats::FormatId;
use ebb_kernels::kv::Side;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};

use super::Sides;

/// Shares of the recent context that stay at full precision, by KVmix's rule
/// ([`ebb_scheduler::recent_tokens`]).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecentContext {
    /// One a layer, from 0 to 0.9.
    pub ratios: Sides<Vec<f64>>,
    /// Written by earlier versions, and not read.
    #[serde(default, skip_serializing, deserialize_with = "unread")]
    group: (),
    /// The same.
    #[serde(default, skip_serializing, deserialize_with = "unread")]
    tokens: (),
}

impl RecentContext {
    /// These shares.
    pub fn new(ratios: Sides<Vec<f64>>) -> Self {
        Self {
            ratios,
            group: (),
            tokens: (),
        }
    }

    /// The share of a page, in thousandths.
    pub fn permille(&self, layer: usize, side: Side) -> u32 {
        let ratio = self.ratios.of(side).get(layer).copied();
        ratio.map_or(0, permille)
    }
}

fn unread<'de, D: Deserializer<'de>>(any: D) -> Result<(), D::Error> {
    IgnoredAny::deserialize(any).map(|_| ())
}

/// A share in thousandths.
pub fn permille(ratio: f64) -> u32 {
    (ratio * 1000.0).round().clamp(0.0, 999.0) as u32
}

/// The two shares of KVmix: of pages with more bits, and of the others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RecentShares {
    /// Of pages of 3 bits or more.
    pub high: f64,
    /// Of pages of less.
    pub low: f64,
}

impl RecentShares {
    /// The paper's (Table 1, Appendix D).
    pub const PAPER: Self = Self {
        high: 0.2,
        low: 0.1,
    };

    /// The share of a page of this format.
    pub fn of(self, format: FormatId) -> f64 {
        match format.nominal_bits() {
            bits if bits < 3.0 => self.low,
            _ => self.high,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Table 1: 20 % for 3 and 4 bits, 10 % for 2 bits.
    #[test]
    fn shares_follow_the_bits() {
        let formats = [
            FormatId::Int2,
            FormatId::Kvmix11,
            FormatId::Int3,
            FormatId::Int4,
        ];
        let shares = formats.map(|f| RecentShares::PAPER.of(f));
        assert_eq!(shares, [0.1, 0.2, 0.2, 0.2]);
    }
}
