//! Rotary position embedding, half-split form: of `r` channels that rotate, channel `i` pairs with
//! `i + r / 2`.

use crate::model::Rope;

/// Cosines and sines of a step's rows; every layer and head uses them.
#[derive(Debug, Default)]
pub(crate) struct RopeTable {
    /// `[rows][2][r / 2]`: cosines, then sines, both times the scale.
    values: Vec<f32>,
    half: usize,
}

impl RopeTable {
    /// Fills the table for rows at these positions of a model that is served with contexts of up to
    /// `max_positions`.
    pub(crate) fn fill(
        &mut self,
        rope: &Rope,
        max_positions: usize,
        positions: impl Iterator<Item = u32>,
    ) {
        let inv_freq = rope.frequencies(max_positions);
        self.half = inv_freq.len();
        self.values.clear();
        for position in positions {
            // The angle in f32, as the reference implementations round it; the functions of it
            // in f64, so that they are the same on every platform.
            let angle = |f: &f32| f64::from(position as f32 * f);
            let scale = f64::from(rope.scale);
            let cos = inv_freq.iter().map(|f| (angle(f).cos() * scale) as f32);
            self.values.extend(cos);
            let sin = inv_freq.iter().map(|f| (angle(f).sin() * scale) as f32);
            self.values.extend(sin);
        }
    }

    /// Cosines and sines of a row.
    #[inline(always)]
    pub(super) fn row(&self, row: usize) -> (&[f32], &[f32]) {
        let row = &self.values[row * 2 * self.half..][..2 * self.half];
        row.split_at(self.half)
    }
}

/// Rotates the first channels of one head in place, two for each angle.
#[inline(always)]
pub(super) fn rotate(head: &mut [f32], (cos, sin): (&[f32], &[f32])) {
    let (low, high) = head.split_at_mut(cos.len());
    for (((a, b), c), s) in low.iter_mut().zip(high).zip(cos).zip(sin) {
        (*a, *b) = (*a * c - *b * s, *b * c + *a * s);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotates_pairs_by_position_times_frequency() {
        let rope = Rope::new(vec![1.0, 0.1, 0.01, 0.001], 1.25);
        let mut table = RopeTable::default();
        table.fill(&rope, 2000, [0, 7, 1000].into_iter());
        for (row, position) in [(0, 0.0f64), (1, 7.0), (2, 1000.0)] {
            let mut head = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
            let before = head.map(f64::from);
            rotate(&mut head, table.row(row));
            for i in 0..4 {
                let (sin, cos) = (position * f64::from(rope.inv_freq[i])).sin_cos();
                let low = 1.25 * (before[i] * cos - before[i + 4] * sin);
                let high = 1.25 * (before[i + 4] * cos + before[i] * sin);
                assert!((f64::from(head[i]) - low).abs() < 1e-4, "{position} {i}");
                assert!((f64::from(head[i + 4]) - high).abs() < 1e-4);
            }
        }
    }
}
