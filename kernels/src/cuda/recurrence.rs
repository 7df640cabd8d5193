//! How a step's recurrent layers take its sequences: rows one after the other, or chunks of them
//! beside each other.

use super::params::DevicePtr;
use crate::backend::SeqRows;

/// Rows of a chunk, at most; one begins at each multiple of that of a sequence's positions.
pub(super) const CHUNK_ROWS: usize = 64;
/// Fewest rows of a sequence that is taken in chunks. One chunk takes about as long as ten rows.
const CHUNKED_ROWS_MIN: usize = 16;
/// Sequences of a step that are taken in chunks, at most: rows of as many fill a device otherwise.
const CHUNKED_SEQS_MAX: usize = 32;

/// A step's sequences that may be taken in chunks, at most.
pub(super) fn chunked_seqs_max(rows: usize, seqs: usize) -> usize {
    seqs.min(rows / CHUNKED_ROWS_MIN).min(CHUNKED_SEQS_MAX)
}

/// Chunks of a step, at most. A sequence's first and last one may be short.
pub(super) fn chunks_max(rows: usize, seqs: usize) -> usize {
    match chunked_seqs_max(rows, seqs) {
        0 => 0,
        seqs => rows / CHUNK_ROWS + 2 * seqs,
    }
}

/// A step's sequences, in the words that kernels read.
#[derive(Debug, Default)]
pub(super) struct RecurrencePlan {
    /// Slot, first row, rows and position of each: those that are walked come first.
    pub(super) seqs: Vec<[u32; 4]>,
    /// How many are walked.
    pub(super) walked: usize,
    /// Of each chunk its place in `seqs`, first row, rows and 0.
    pub(super) chunks: Vec<[u32; 4]>,
    /// Of each sequence in chunks its place in `seqs`, first chunk, chunks and 0.
    pub(super) chunked: Vec<[u32; 4]>,
}

impl RecurrencePlan {
    /// Plans a step of which at most so many sequences may be taken in chunks.
    pub(super) fn plan(&mut self, seqs: &[SeqRows], chunked_max: usize) {
        let words = |seq: &SeqRows| [seq.slot, seq.first_row, seq.rows, seq.position];
        let mut left = chunked_max;
        self.seqs.clear();
        self.chunks.clear();
        self.chunked.clear();
        let mut is_chunked = |seq: &SeqRows| {
            let takes = left > 0 && seq.rows as usize >= CHUNKED_ROWS_MIN;
            left -= usize::from(takes);
            takes
        };
        // `chunked` holds indices into `seqs` of the step until all that are walked are known.
        for (index, seq) in (0..).zip(seqs) {
            if is_chunked(seq) {
                self.chunked.push([index, 0, 0, 0]);
            } else {
                self.seqs.push(words(seq));
            }
        }
        self.walked = self.seqs.len();
        for chunked in &mut self.chunked {
            let seq = &seqs[chunked[0] as usize];
            let place = self.seqs.len() as u32;
            self.seqs.push(words(seq));
            let first_chunk = self.chunks.len() as u32;
            let (mut row, mut left) = (seq.first_row, seq.rows);
            let mut position = seq.position;
            while left > 0 {
                let rows = left.min(CHUNK_ROWS as u32 - position % CHUNK_ROWS as u32);
                self.chunks.push([place, row, rows, 0]);
                (row, left, position) = (row + rows, left - rows, position + rows);
            }
            let chunks = self.chunks.len() as u32 - first_chunk;
            *chunked = [place, first_chunk, chunks, 0];
        }
    }
}

/// Where a planned step is on the device, and what is launched for it.
#[derive(Debug, Clone, Copy)]
pub(in crate::cuda) struct RecurrenceStep {
    pub(super) seqs: DevicePtr,
    pub(super) chunks: DevicePtr,
    pub(super) chunked: DevicePtr,
    /// Sequences, a word.
    pub(super) seq_count: DevicePtr,
    /// Those that are walked, a word.
    pub(super) walked_count: DevicePtr,
    /// Sequences that are walked, those of a recorded step included that are not there.
    pub(super) walked: usize,
    pub(super) chunked_seqs: usize,
    pub(super) chunk_count: usize,
}

impl RecurrenceStep {
    /// Sequences, likewise.
    pub(super) fn seqs_at_most(&self) -> usize {
        self.walked + self.chunked_seqs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seqs(rows: &[(u32, u32)]) -> Vec<SeqRows> {
        let mut first_row = 0;
        let seqs = (0..).zip(rows).map(|(slot, (position, rows))| {
            let seq = SeqRows {
                slot,
                first_row,
                rows: *rows,
                position: *position,
            };
            first_row += rows;
            seq
        });
        seqs.collect()
    }

    #[test]
    fn chunks_begin_at_multiples_of_their_rows() {
        let mut plan = RecurrencePlan::default();
        plan.plan(&seqs(&[(0, 130), (7, 1), (100, 100), (5, 15)]), 8);
        let walked = [[1, 130, 1, 7], [3, 231, 15, 5]];
        let chunked = [[0, 0, 130, 0], [2, 131, 100, 100]];
        assert_eq!(plan.seqs, [walked, chunked].concat());
        assert_eq!(plan.walked, 2);
        assert_eq!(plan.chunked, [[2, 0, 3, 0], [3, 3, 3, 0]]);
        let of_first = [[2, 0, 64, 0], [2, 64, 64, 0], [2, 128, 2, 0]];
        let of_second = [[3, 131, 28, 0], [3, 159, 64, 0], [3, 223, 8, 0]];
        assert_eq!(plan.chunks, [of_first, of_second].concat());
    }

    #[test]
    fn there_is_room_for_the_chunks_of_every_step() {
        let mut plan = RecurrencePlan::default();
        for (rows, each, position) in [(16, 16, 63), (2048, 2048, 1), (2048, 66, 63), (640, 17, 50)]
        {
            let count = rows / each;
            let step = seqs(&vec![(position, each as u32); count]);
            plan.plan(&step, chunked_seqs_max(rows, count));
            assert_eq!(plan.seqs.len(), count);
            assert_eq!(plan.chunked.len(), count.min(CHUNKED_SEQS_MAX));
            assert!(plan.chunks.len() <= chunks_max(rows, count));
        }
        plan.plan(&seqs(&[(0, 500)]), 0);
        assert_eq!((plan.walked, plan.chunks.len()), (1, 0));
        assert_eq!(chunks_max(15, 9), 0);
    }
}
