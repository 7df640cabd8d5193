//! Asking for memory before it is read: what other threads have just written, and the weights that
//! are multiplied next.

use super::simd::Simd;
use super::threads::Items;
use crate::memory::LINE;

/// Lines that a thread asks for at once.
const LINES_MAX: usize = 512;

/// Where each thread's share of the weights of the next product begins.
pub(crate) type StartOfNext<'a> = &'a (dyn Fn(&Items<'_>) -> *const u8 + Sync);

/// Neighbouring cache lines, 512 at most. They need not be valid memory.
#[derive(Debug, Clone)]
pub(crate) struct Lines {
    next: *const u8,
    count: usize,
}

impl Lines {
    /// Those of a slice.
    pub(crate) fn of<T>(slice: &[T]) -> Self {
        let start = slice.as_ptr().cast::<u8>();
        let before = start.addr() % LINE;
        Self {
            next: start.wrapping_sub(before),
            count: (before + size_of_val(slice)).div_ceil(LINE).min(LINES_MAX),
        }
    }

    /// Where a thread's share of the next product's weights begins; none if no product follows.
    pub(crate) fn of_next(next: Option<StartOfNext<'_>>, share: &Items<'_>) -> Self {
        let (next, count) = match next {
            Some(next) => (next(share), LINES_MAX),
            None => (std::ptr::null(), 0),
        };
        Self { next, count }
    }

    /// Asks for all of them.
    #[inline(always)]
    pub(crate) fn prefetch<S: Simd>(self, s: S) {
        for line in self {
            s.prefetch(line);
        }
    }
}

impl Iterator for Lines {
    type Item = *const u8;

    #[inline(always)]
    fn next(&mut self) -> Option<*const u8> {
        self.count = self.count.checked_sub(1)?;
        let line = self.next;
        self.next = line.wrapping_add(LINE);
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_cover_a_slice_and_nothing_else() {
        let bytes = [0u8; 40 * LINE];
        for (first, len) in [(0, 64), (1, 64), (0, 65), (63, 2), (17, 1000)] {
            let slice = &bytes[first..first + len];
            let lines: Vec<usize> = Lines::of(slice).map(|line| line.addr()).collect();
            let (start, end) = (slice.as_ptr().addr(), slice.as_ptr().addr() + len);
            assert!(lines.iter().all(|line| line % LINE == 0));
            assert!(lines.windows(2).all(|pair| pair[1] == pair[0] + LINE));
            assert_eq!(lines[0], start / LINE * LINE);
            assert_eq!(lines[lines.len() - 1], (end - 1) / LINE * LINE);
        }
        assert_eq!(Lines::of(&[0u64; 10_000]).count(), LINES_MAX);
    }
}
