//! Byte geometry of 16-bit blocks.

use super::WindowedLayers;
use crate::{SUB_BLOCK_TOKENS, SUB_BLOCKS};

/// Keys or values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// Keys, stored after RoPE.
    K,
    /// Values.
    V,
}

impl Side {
    /// The side of page `layer * 2 + side`.
    pub fn of_page(page: usize) -> Self {
        match page % 2 {
            0 => Self::K,
            _ => Self::V,
        }
    }
}

/// The shape of a model's KV cache: everything that decides how many bytes a token takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KvGeometry {
    /// Transformer layers.
    pub layers: usize,
    /// KV heads per layer held by this device.
    pub kv_heads: usize,
    /// Channels per head; a multiple of 8.
    pub head_dim: usize,
    /// Layers that do not read behind a sliding window.
    pub windowed: WindowedLayers,
}

/// A geometry that no cache can have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// A dimension is zero.
    #[error("a KV cache needs at least one layer, one KV head and one channel, got {0:?}")]
    Empty(KvGeometry),
    /// The head dimension is not a multiple of 8.
    #[error("head_dim must be a multiple of 8, got {0}")]
    HeadDim(usize),
    /// A block's size does not fit the address space.
    #[error("a KV block of {0:?} is too large for this machine")]
    TooLarge(KvGeometry),
}

/// How a 16-bit sub-block is cut into frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FrameLayout {
    /// Bytes of a frame: a multiple of [`KvGeometry::sub_record_bytes`].
    pub frame_bytes: usize,
    /// Frames in a 16-bit sub-block.
    pub frames_per_sub_block: usize,
}

/// Where the bytes of a sub-record lie: a frame of the sub-block and an offset in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubRecordPlace {
    /// Frame, counted within the sub-block.
    pub frame: usize,
    /// Byte offset in the frame.
    pub offset: usize,
}

impl FrameLayout {
    /// Frames of a full 16-bit block.
    pub fn frames_per_block(&self) -> usize {
        self.frames_per_sub_block * SUB_BLOCKS
    }
}

impl KvGeometry {
    /// Refuses geometries with zero or oversized dimensions; every other method assumes a valid
    /// one.
    pub fn validate(&self) -> Result<(), GeometryError> {
        if self.layers == 0 || self.kv_heads == 0 || self.head_dim == 0 {
            return Err(GeometryError::Empty(*self));
        }
        if !self.head_dim.is_multiple_of(8) {
            return Err(GeometryError::HeadDim(self.head_dim));
        }
        let block = [
            self.layers,
            self.kv_heads,
            self.head_dim,
            4,
            crate::BLOCK_TOKENS,
        ]
        .into_iter()
        .try_fold(1usize, usize::checked_mul);
        match block {
            Some(bytes) if bytes <= isize::MAX as usize => Ok(()),
            _ => Err(GeometryError::TooLarge(*self)),
        }
    }

    /// Bytes of a sub-record: the 16 rows of one (layer, side, head) in a 16-bit sub-block.
    pub fn sub_record_bytes(&self) -> usize {
        SUB_BLOCK_TOKENS * self.head_dim * 2
    }

    /// Records in a block, one per (layer, side, head).
    pub fn records(&self) -> usize {
        self.layers * 2 * self.kv_heads
    }

    /// The index of a record: layers outermost, those with a window last, then K before V, then
    /// heads.
    pub fn record(&self, layer: usize, side: Side, kv_head: usize) -> usize {
        (self.layer_place(layer) * 2 + side as usize) * self.kv_heads + kv_head
    }

    /// Where the pages of a layer lie among those of all layers.
    pub fn layer_place(&self, layer: usize) -> usize {
        self.windowed.place(layer, self.layers)
    }

    /// Layer, side and KV head of a record.
    pub fn of_record(&self, record: usize) -> (usize, Side, usize) {
        let page = record / self.kv_heads;
        let layer = self.windowed.layer_at(page / 2, self.layers);
        (layer, Side::of_page(page), record % self.kv_heads)
    }

    /// Records of layers without a window, which are the first.
    pub fn kept_records(&self) -> usize {
        (self.layers - self.windowed.count()) * 2 * self.kv_heads
    }

    /// Bytes of a 16-bit sub-block of 16 tokens.
    pub fn sub_block_bytes(&self) -> usize {
        self.records() * self.sub_record_bytes()
    }

    /// Bytes of a 16-bit block of 128 tokens.
    pub fn block_bytes(&self) -> usize {
        self.sub_block_bytes() * SUB_BLOCKS
    }

    /// Bytes one token takes at 16 bit.
    pub fn token_bytes(&self) -> usize {
        self.records() * self.head_dim * 2
    }

    /// Where record `record` lies in each 16-bit sub-block: `[16 tokens][head_dim]` bf16.
    pub fn sub_record_place(&self, layout: FrameLayout, record: usize) -> SubRecordPlace {
        let bytes = self.sub_record_bytes();
        let per_frame = layout.frame_bytes / bytes;
        SubRecordPlace {
            frame: record / per_frame,
            offset: record % per_frame * bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smollm2_135m() {
        let g = KvGeometry {
            layers: 30,
            kv_heads: 3,
            head_dim: 64,
            windowed: crate::kv::WindowedLayers::NONE,
        };
        assert_eq!(g.token_bytes(), 23_040);
        assert_eq!(g.sub_block_bytes(), 16 * 23_040);
        assert_eq!(g.block_bytes(), 128 * 23_040);
        let layout = g.frame_layout();
        assert_eq!(
            layout,
            FrameLayout {
                frame_bytes: 24_576,
                frames_per_sub_block: 15
            }
        );
    }

    #[test]
    fn frames_hold_whole_sub_records() {
        for layers in 1..70 {
            for (kv_heads, head_dim) in [(1, 8), (2, 128), (3, 64), (8, 128), (5, 72)] {
                let g = KvGeometry {
                    layers,
                    kv_heads,
                    head_dim,
                    windowed: crate::kv::WindowedLayers::NONE,
                };
                let l = g.frame_layout();
                assert!(l.frames_per_sub_block <= 64);
                assert_eq!(l.frame_bytes * l.frames_per_sub_block, g.sub_block_bytes());
                assert_eq!(l.frame_bytes % g.sub_record_bytes(), 0);
                // In order, back to back, and the last one ends the last frame.
                for r in 0..g.records() {
                    let place = g.sub_record_place(l, r);
                    let byte = place.frame * l.frame_bytes + place.offset;
                    assert_eq!(byte, r * g.sub_record_bytes());
                    assert!(place.offset + g.sub_record_bytes() <= l.frame_bytes);
                }
            }
        }
    }

    #[test]
    fn refuses_impossible_shapes() {
        let g = |layers, kv_heads, head_dim| {
            KvGeometry {
                layers,
                kv_heads,
                head_dim,
                windowed: crate::kv::WindowedLayers::NONE,
            }
            .validate()
        };
        assert!(matches!(g(0, 1, 8), Err(GeometryError::Empty(_))));
        assert!(matches!(g(1, 1, 12), Err(GeometryError::HeadDim(12))));
        assert!(matches!(
            g(usize::MAX / 2, 3, 8),
            Err(GeometryError::TooLarge(_))
        ));
        assert_eq!(g(30, 3, 64), Ok(()));
    }
}
