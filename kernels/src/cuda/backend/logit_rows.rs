//! Whose logits a step computes: first the rows that tokens are sampled from, each once, then those
//! that only come back.

use std::ops::Range;

use crate::backend::SampleRequest;

/// The rows of one step; reused between steps.
#[derive(Debug, Default)]
pub(super) struct LogitRows {
    /// Rows of the step in the order in which their logits are computed.
    pub(super) all: Vec<u32>,
    /// How many of them, from the first on, are sampled from.
    pub(super) sampled: usize,
    /// (place in `all`, place in what comes back) of the rows that come back, ascending by the
    /// first.
    back: Vec<(usize, usize)>,
}

/// Neighbouring rows that come back together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    /// First place in [`LogitRows::all`].
    pub(super) from: usize,
    /// First place in what comes back.
    pub(super) to: usize,
    pub(super) rows: usize,
}

impl LogitRows {
    /// Plans for `samples` and for the rows that come back, both ascending.
    pub(super) fn plan(&mut self, samples: &[SampleRequest], back: &[u32]) {
        self.all.clear();
        self.back.clear();
        self.all.extend(samples.iter().map(|d| d.row));
        self.all.dedup();
        self.sampled = self.all.len();
        for (to, row) in back.iter().enumerate() {
            let sampled = self.all[..self.sampled].binary_search(row);
            let from = sampled.unwrap_or_else(|_| {
                self.all.push(*row);
                self.all.len() - 1
            });
            self.back.push((from, to));
        }
        self.back.sort_unstable();
    }

    /// The rows of `part` that come back, in as few runs as there are.
    pub(super) fn back(&self, part: Range<usize>) -> impl Iterator<Item = Run> + '_ {
        let begin = self.back.partition_point(|b| b.0 < part.start);
        let end = self.back.partition_point(|b| b.0 < part.end);
        let next_to = |a: &(usize, usize), b: &(usize, usize)| b.0 == a.0 + 1 && b.1 == a.1 + 1;
        let runs = self.back[begin..end].chunk_by(next_to);
        runs.map(|run| Run {
            from: run[0].0,
            to: run[0].1,
            rows: run.len(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sampled_rows_come_first_and_every_row_once() {
        let mut rows = LogitRows::default();
        let samples = [2, 2, 5, 9].map(SampleRequest::greedy);
        rows.plan(&samples, &[1, 2, 6, 7, 8, 9]);
        assert_eq!(rows.all, [2, 5, 9, 1, 6, 7, 8]);
        assert_eq!(rows.sampled, 3);
        let run = |from, to, rows| Run { from, to, rows };
        let all: Vec<_> = rows.back(0..7).collect();
        let want = [run(0, 1, 1), run(2, 5, 1), run(3, 0, 1), run(4, 2, 3)];
        assert_eq!(all, want);
        // In parts, as when not all fit.
        let parts: Vec<_> = rows.back(0..5).chain(rows.back(5..7)).collect();
        assert_eq!(parts[3..], [run(4, 2, 1), run(5, 3, 2)]);
        rows.plan(&[], &[]);
        assert_eq!(
            (rows.all.len(), rows.sampled, rows.back(0..0).count()),
            (0, 0, 0)
        );
    }
}
