//! One pass over a row of logits: where it is large, and whether it is sound.

use super::SampleError;

/// Logits per block. Later passes skip every block whose maximum is too small for them.
pub(super) const BLOCK: usize = 128;
const LANES: usize = 16;

/// The maximum of each block of [`BLOCK`] logits, and of all.
#[derive(Debug, Default)]
pub(super) struct Scan {
    blocks: Vec<f32>,
    max: f32,
}

impl Scan {
    /// Scans a whole row.
    pub(super) fn run(&mut self, logits: &[f32]) -> Result<(), SampleError> {
        self.blocks.clear();
        let mut sound = true;
        for block in logits.chunks(BLOCK) {
            let (max, block_sound) = scan_block(block);
            sound &= block_sound;
            self.blocks.push(max);
        }
        self.settle(sound)
    }

    /// Scans the blocks of these ids again after their logits changed.
    pub(super) fn refresh(
        &mut self,
        logits: &[f32],
        changed: impl ExactSizeIterator<Item = u32>,
    ) -> Result<(), SampleError> {
        if changed.len() >= self.blocks.len() {
            return self.run(logits);
        }
        let mut sound = true;
        for id in changed {
            let block = id as usize / BLOCK;
            let end = logits.len().min((block + 1) * BLOCK);
            let (max, block_sound) = scan_block(&logits[block * BLOCK..end]);
            sound &= block_sound;
            self.blocks[block] = max;
        }
        self.settle(sound)
    }

    fn settle(&mut self, sound: bool) -> Result<(), SampleError> {
        if !sound {
            return Err(SampleError::NotFinite);
        }
        self.max = self.blocks.iter().copied().fold(f32::NEG_INFINITY, max);
        if self.max == f32::NEG_INFINITY {
            return Err(SampleError::NoCandidate);
        }
        Ok(())
    }

    /// The largest logit, finite.
    pub(super) fn max(&self) -> f32 {
        self.max
    }

    /// The first id of a largest logit.
    pub(super) fn argmax(&self, logits: &[f32]) -> u32 {
        let block = self.blocks.iter().position(|&m| m == self.max).unwrap_or(0);
        let within = logits[block * BLOCK..].iter().position(|&x| x == self.max);
        (block * BLOCK + within.unwrap_or(0)) as u32
    }

    /// The maximum of each block, in order.
    pub(super) fn blocks(&self) -> &[f32] {
        &self.blocks
    }
}

#[inline(always)]
fn max(a: f32, b: f32) -> f32 {
    if b > a { b } else { a }
}

fn scan_block(block: &[f32]) -> (f32, bool) {
    let mut maxima = [f32::NEG_INFINITY; LANES];
    let mut sound = [1u32; LANES];
    let (lanes, rest) = block.as_chunks::<LANES>();
    for lane in lanes {
        for i in 0..LANES {
            maxima[i] = max(maxima[i], lane[i]);
            // False for NaN and +∞ alone.
            sound[i] &= u32::from(lane[i] < f32::INFINITY);
        }
    }
    for (i, &x) in rest.iter().enumerate() {
        maxima[i] = max(maxima[i], x);
        sound[i] &= u32::from(x < f32::INFINITY);
    }
    let sound = sound.iter().all(|&s| s == 1);
    (maxima.into_iter().fold(f32::NEG_INFINITY, max), sound)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(logits: &[f32]) -> Result<(f32, u32), SampleError> {
        let mut scan = Scan::default();
        scan.run(logits)?;
        Ok((scan.max(), scan.argmax(logits)))
    }

    #[test]
    fn the_first_of_equal_maxima_wins_wherever_it_is() {
        for len in [1, 15, 16, 17, 127, 128, 129, 1000] {
            for at in [0, len / 2, len - 1] {
                let mut logits = vec![-1.0; len];
                logits[at] = 2.0;
                logits[len - 1] = 2.0;
                assert_eq!(scan(&logits), Ok((2.0, at as u32)), "{at} of {len}");
            }
        }
    }

    #[test]
    fn unsound_logits_are_errors_wherever_they_are() {
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY] {
            for at in 0..300 {
                let mut logits = vec![0.5; 300];
                logits[at] = bad;
                assert_eq!(scan(&logits), Err(SampleError::NotFinite), "{bad} at {at}");
            }
        }
        assert_eq!(scan(&[]), Err(SampleError::NoCandidate));
        let none = [f32::NEG_INFINITY; 200];
        assert_eq!(scan(&none), Err(SampleError::NoCandidate));
        assert_eq!(scan(&[f32::NEG_INFINITY, -1e30]), Ok((-1e30, 1)));
    }

    #[test]
    fn refreshing_the_changed_blocks_is_scanning_again() {
        let mut logits: Vec<f32> = (0..1000).map(|i| (i * 37 % 101) as f32).collect();
        let mut partial = Scan::default();
        partial.run(&logits).expect("sound");
        logits[3] = 500.0;
        logits[999] = 501.0;
        partial
            .refresh(&logits, [3, 999].into_iter())
            .expect("sound");
        let mut whole = Scan::default();
        whole.run(&logits).expect("sound");
        assert_eq!(partial.blocks(), whole.blocks());
        assert_eq!((partial.max(), partial.argmax(&logits)), (501.0, 999));
        logits[3] = f32::NAN;
        let unsound = partial.refresh(&logits, [3].into_iter());
        assert_eq!(unsound, Err(SampleError::NotFinite));
    }
}
