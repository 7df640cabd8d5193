//! The choice of the frame size.

use super::{FrameLayout, KvGeometry, Side};
use crate::SUB_BLOCKS;
use crate::formats::{FormatId, RecordShape};

/// Most frames a sub-block may be cut into; bounds the length of a block's frame list.
const MAX_FRAMES_PER_SUB_BLOCK: usize = 64;

/// The number of frames per sub-block to stay near. Fewer frames make shorter tables; more frames
/// waste less when a shrunk block does not fill its last frame.
const TARGET_FRAMES_PER_SUB_BLOCK: f64 = 16.0;

/// What a factor of two away from the target may cost, as a share of a shrunk block's bytes.
const PRICE_OF_AN_OCTAVE: f64 = 0.01;

/// Page formats of K and V that the waste is averaged over: stations of the ladder.
const STATIONS: [(FormatId, FormatId); 5] = [
    (FormatId::Int8, FormatId::Int8),
    (FormatId::Int4, FormatId::Int4),
    (FormatId::Int4, FormatId::Int2),
    (FormatId::Kitty25, FormatId::Int2),
    (FormatId::Int2, FormatId::Int2),
];

impl KvGeometry {
    /// Chooses the frame size. A frame holds whole 16-bit sub-records, at least eight of them (so
    /// that any record fits in one frame) if the model has as many. Among the divisors of the
    /// sub-block into at most 64 frames it is the one that leaves the fewest bytes unused at the
    /// ends of the last frames of shrunk blocks and of what blocks keep behind a window, and is
    /// near 16 frames a sub-block.
    pub fn frame_layout(&self) -> FrameLayout {
        let records = self.records();
        let layout = |n| FrameLayout {
            frame_bytes: self.sub_block_bytes() / n,
            frames_per_sub_block: n,
        };
        let most = MAX_FRAMES_PER_SUB_BLOCK.min((records / SUB_BLOCKS).max(1));
        let price = |n: usize| {
            let octaves = (n as f64 / TARGET_FRAMES_PER_SUB_BLOCK).log2().abs();
            self.waste(layout(n))
                + self.waste_behind_window(layout(n))
                + PRICE_OF_AN_OCTAVE * octaves
        };
        let divisors = (1..=most).filter(|n| records.is_multiple_of(*n));
        layout(
            divisors
                .min_by(|a, b| price(*a).total_cmp(&price(*b)))
                .unwrap_or(1),
        )
    }

    /// Mean share of unused bytes in a shrunk block; zero if the model has no low-bit pages.
    fn waste(&self, frame: FrameLayout) -> f64 {
        self.waste_of(self.layers, frame)
    }

    /// The same of what a block keeps behind a window, at 16 bit as well.
    fn waste_behind_window(&self, frame: FrameLayout) -> f64 {
        if self.windowed.is_empty() {
            return 0.0;
        }
        let per_frame = frame.frame_bytes / self.sub_record_bytes();
        let kept = self.kept_records();
        let at_16_bit = (kept.div_ceil(per_frame) * per_frame) as f64 / kept as f64 - 1.0;
        (at_16_bit + self.waste_of(self.layers - self.windowed.count(), frame)) / 2.0
    }

    fn waste_of(&self, layers: usize, frame: FrameLayout) -> f64 {
        let bytes = |format: FormatId, side| {
            let head_dim = self.head_dim;
            format.record_bytes(RecordShape { side, head_dim }).ok()
        };
        let waste = |(k, v)| -> Option<f64> {
            let (k, v) = (bytes(k, Side::K)?, bytes(v, Side::V)?);
            let used = (k + v) * layers * self.kv_heads;
            let frames = used.div_ceil(frame.frame_bytes);
            Some((frames * frame.frame_bytes) as f64 / used as f64 - 1.0)
        };
        let wastes = STATIONS.map(|s| waste(s).unwrap_or(0.0));
        wastes.iter().sum::<f64>() / wastes.len() as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_is_wasted_at_any_station_of_real_models() {
        for (layers, kv_heads, head_dim) in [
            (30, 3, 64),
            (32, 5, 64),
            (24, 2, 64),
            (28, 2, 128),
            (32, 8, 128),
            (80, 8, 128),
        ] {
            let g = KvGeometry {
                layers,
                kv_heads,
                head_dim,
                windowed: crate::kv::WindowedLayers::NONE,
            };
            let frame = g.frame_layout();
            let waste = g.waste(frame);
            assert!(waste < 0.05, "{g:?}: {waste} with {frame:?}");
            assert!(
                (4..=32).contains(&frame.frames_per_sub_block),
                "{g:?}: {frame:?}"
            );
        }
    }
}
