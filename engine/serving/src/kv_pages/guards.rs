//! Which blocks of a sequence keep more than their final formats.

use ebb_kernels::formats::FormatId;

/// Blocks at the protected width. The open block is at 16 bit beside them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guards {
    /// Whether the first block is one: it holds the attention sink.
    pub sink: bool,
    /// How many of the last sealed blocks are, by page, `[layer * 2 + side]`.
    pub recent: Vec<usize>,
}

impl Guards {
    /// Ebb's own: the first and the last sealed block, on both sides.
    pub fn usual(layers: usize) -> Self {
        Self {
            sink: true,
            recent: vec![1; layers * 2],
        }
    }
}

/// What a specification means for a model: the formats of all pages, `[layer * 2 + side]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageFormats {
    /// Of sealed blocks that nothing protects.
    pub sealed: Vec<FormatId>,
    /// Of guarded ones.
    pub protected: Vec<FormatId>,
    /// Which those are.
    pub guards: Guards,
}

impl PageFormats {
    /// Formats of a sealed block behind which `age` blocks have been sealed since.
    pub fn of_block(&self, is_first: bool, age: usize) -> Vec<FormatId> {
        let sink = is_first && self.guards.sink;
        let pages = self.sealed.iter().zip(&self.protected);
        let pages = pages.zip(&self.guards.recent);
        pages
            .map(
                |((sealed, protected), recent)| match sink || age < *recent {
                    true => *protected,
                    false => *sealed,
                },
            )
            .collect()
    }

    /// From this age on a block's formats no longer change.
    pub fn settled_age(&self) -> usize {
        self.guards.recent.iter().copied().max().unwrap_or(0)
    }
}
