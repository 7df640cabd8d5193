//! Orders of rows in which checkpoints have tensors, and models do not.

use ebb_kernels::model::{GatedDeltaSpec, Mixer, ModelSpec, RecurrentSpec};

/// Where a checkpoint has rows that lie in another order than the model's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowOrder {
    /// Interleaved heads, which become half-split ones.
    Interleaved {
        head_dim: usize,
        /// Channels that rotate, the first of a head.
        rotary_dim: usize,
    },
    /// Value heads that lie in turn, which come to lie by key head.
    InTurn {
        /// Rows before those of value heads.
        before: usize,
        /// Rows of a value head.
        rows: usize,
        k_heads: usize,
        /// Value heads of a key head.
        share: usize,
    },
}

impl RowOrder {
    /// Of a layer's interleaved queries and keys. Without RoPE any order will do, if both have it.
    pub(super) fn of(spec: &ModelSpec, layer: usize) -> Self {
        let attention = spec.attention(layer);
        let rotary_dim = attention.rope.map(|rope| spec.ropes[rope].rotary_dim());
        Self::Interleaved {
            head_dim: attention.head_dim,
            rotary_dim: rotary_dim.unwrap_or(attention.head_dim),
        }
    }

    /// Of a layer of the delta rule: `rows` says how many rows are before those of value heads, and
    /// how many a head has.
    pub(super) fn in_turn(
        spec: &ModelSpec,
        layer: usize,
        rows: impl Fn(&GatedDeltaSpec) -> (usize, usize),
    ) -> Option<Self> {
        let Mixer::Recurrent(RecurrentSpec::GatedDelta(delta)) = &spec.layers[layer].mixer else {
            return None;
        };
        let (before, rows) = rows(delta);
        Some(Self::InTurn {
            before,
            rows,
            k_heads: delta.k_heads,
            share: delta.v_heads / delta.k_heads,
        })
    }

    /// The row of the file that is `row` in the model. Of interleaved heads: within the part of a
    /// head that rotates, row `2j + p` of the file (pair `j`, first or second channel) is row `p ·
    /// rotary_dim / 2 + j`. Of heads in turn: head `j · k_heads + k` of the file is value head `j`
    /// of key head `k`, which is head `k · share + j`.
    pub(crate) fn stored(self, row: usize) -> usize {
        match self {
            Self::Interleaved {
                head_dim,
                rotary_dim,
            } => {
                let (channel, half) = (row % head_dim, rotary_dim / 2);
                if channel >= rotary_dim {
                    return row;
                }
                row - channel + 2 * (channel % half) + channel / half
            }
            Self::InTurn { before, .. } if row < before => row,
            Self::InTurn {
                before,
                rows,
                k_heads,
                share,
            } => {
                let (head, within) = ((row - before) / rows, (row - before) % rows);
                let head = head % share * k_heads + head / share;
                before + head * rows + within
            }
        }
    }

    /// How many neighbours stay neighbours: rows of a head, where heads lie in turn.
    pub(crate) fn unbroken(self) -> usize {
        match self {
            Self::Interleaved { .. } => 1,
            Self::InTurn { rows, .. } => rows,
        }
    }

    /// The order of groups of so many neighbours, which stay together.
    pub(crate) fn of_groups(self, group: usize) -> Self {
        match self {
            Self::InTurn {
                before,
                rows,
                k_heads,
                share,
            } => Self::InTurn {
                before: before / group,
                rows: rows / group,
                k_heads,
                share,
            },
            interleaved @ Self::Interleaved { .. } => interleaved,
        }
    }
}
