//! What is asked of the engine.

use std::fmt;
use std::str::FromStr;

/// Requests of equal lengths, all submitted at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Workload {
    /// Requests.
    pub n: usize,
    /// Tokens of each prompt.
    pub input: usize,
    /// Tokens of each answer.
    pub output: usize,
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (n, lengths) = text.split_once('x')?;
            let (input, output) = lengths.split_once('/')?;
            let number = |s: &str| s.parse().ok().filter(|n| *n > 0);
            Some(Self {
                n: number(n)?,
                input: number(input)?,
                output: number(output)?,
            })
        };
        parse().ok_or_else(|| {
            format!("{text:?} is not a workload; write REQUESTSxPROMPT/ANSWER, such as 64x1024/256")
        })
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}/{}", self.n, self.input, self.output)
    }
}

impl Workload {
    /// Tokens of a sequence at its end.
    pub fn context(&self) -> usize {
        self.input + self.output
    }

    /// Random prompts, no two of which begin alike; `seed` tells workloads apart.
    pub fn prompts(&self, vocab: usize, seed: u64) -> Vec<Vec<u32>> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut token = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            ((state >> 32) % vocab as u64) as u32
        };
        (0..self.n)
            .map(|_| (0..self.input).map(|_| token()).collect())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workloads_are_read_as_they_are_shown() {
        let w: Workload = "64x1024/256".parse().unwrap();
        assert_eq!((w.n, w.input, w.output, w.context()), (64, 1024, 256, 1280));
        assert_eq!(w.to_string(), "64x1024/256");
        for wrong in [
            "", "64", "64x1024", "0x1/1", "1x0/1", "1x1/0", "ax1/1", "1x1/1/1",
        ] {
            assert!(wrong.parse::<Workload>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn prompts_are_random_and_differ() {
        let w: Workload = "3x50/1".parse().unwrap();
        let prompts = w.prompts(1000, 7);
        assert_eq!((prompts.len(), prompts[2].len()), (3, 50));
        assert_ne!(prompts[0], prompts[1]);
        assert_ne!(prompts, w.prompts(1000, 8));
        let all: Vec<u32> = prompts.concat();
        assert!(all.iter().all(|t| *t < 1000) && all.iter().any(|t| *t >= 900));
    }
}
