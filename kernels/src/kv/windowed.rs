//! Which layers have a sliding window, for the layout of blocks.

/// Most layers that are told apart. In a longer model all layers keep everything.
const LAYERS_MAX: usize = 128;

/// Layers whose pages are not read behind a sliding window.
///
/// Their pages are the last of a block, so that what a block keeps behind the window are its first
/// frames. There is always a layer that is not among them: a block never gives back all its frames,
/// and so there are never more blocks than frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct WindowedLayers {
    /// A bit for each layer, from the lowest.
    mask: [u64; 2],
    tokens: u32,
}

impl WindowedLayers {
    /// No layer has a window.
    pub const NONE: Self = Self {
        mask: [0; 2],
        tokens: 0,
    };

    /// Of layers, by the tokens that a token sees in each, if there is a limit. Where all layers
    /// have one, the first counts as one without.
    pub fn of(layers: impl ExactSizeIterator<Item = Option<u32>> + Clone) -> Self {
        let count = layers.len();
        if count > LAYERS_MAX {
            return Self::NONE;
        }
        let all = layers.clone().all(|window| window.is_some());
        let mut this = Self::NONE;
        for (layer, window) in layers.enumerate() {
            let keeps_all = all && layer == 0;
            if let Some(tokens) = window.filter(|_| !keeps_all) {
                this.mask[layer / 64] |= 1 << (layer % 64);
                this.tokens = this.tokens.max(tokens);
            }
        }
        this
    }

    /// Tokens that a token sees in these layers, itself included; the most of all.
    pub fn tokens(self) -> u32 {
        self.tokens
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.mask == [0; 2]
    }

    /// Whether a layer is among them.
    pub fn contains(self, layer: usize) -> bool {
        layer < LAYERS_MAX && self.mask[layer / 64] >> (layer % 64) & 1 == 1
    }

    /// How many.
    pub fn count(self) -> usize {
        self.mask
            .iter()
            .map(|part| part.count_ones() as usize)
            .sum()
    }

    /// Where the pages of `layer` lie among those of `layers` layers.
    pub(super) fn place(self, layer: usize, layers: usize) -> usize {
        if self.is_empty() {
            return layer;
        }
        let before = (0..layer).filter(|before| self.contains(*before)).count();
        match self.contains(layer) {
            true => layers - self.count() + before,
            false => layer - before,
        }
    }

    /// The layer whose pages lie at `place`.
    pub(super) fn layer_at(self, place: usize, layers: usize) -> usize {
        if self.is_empty() {
            return place;
        }
        let kept = layers - self.count();
        let (wanted, nth) = match place.checked_sub(kept) {
            Some(nth) => (true, nth),
            None => (false, place),
        };
        let mut of_kind = (0..layers).filter(|layer| self.contains(*layer) == wanted);
        of_kind.nth(nth).expect("a place is below the layers")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windowed_layers_come_last_and_never_all_of_them() {
        for (layers, every, kept) in [(6, 2, 3), (12, 6, 2), (5, 100, 1), (7, 1, 7), (128, 3, 42)] {
            let window = |layer: usize| (layer % every != every - 1).then_some(layer as u32 + 1);
            let windowed = WindowedLayers::of((0..layers).map(window));
            assert_eq!(layers - windowed.count(), kept);
            let longest = (0..layers).filter_map(window).max();
            assert_eq!(windowed.tokens(), longest.unwrap_or(0));
            let mut order: Vec<usize> = (0..layers).collect();
            order.sort_by_key(|layer| windowed.contains(*layer));
            for (place, layer) in order.into_iter().enumerate() {
                assert_eq!(windowed.place(layer, layers), place);
                assert_eq!(windowed.layer_at(place, layers), layer);
            }
        }
        let too_many = WindowedLayers::of((0..129).map(|layer| (layer > 5).then_some(1)));
        assert_eq!(too_many, WindowedLayers::NONE);
    }
}
