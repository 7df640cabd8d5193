//! A small fuzzer for stable Rust: the same seed gives the same inputs.

/// Changes inputs at random.
#[derive(Debug)]
pub struct Mutator(u64);

/// Numbers at which readers change their minds.
const NUMBERS: [u64; 16] = [
    0,
    1,
    2,
    15,
    16,
    32,
    127,
    128,
    255,
    4096,
    65_535,
    1 << 24,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 40,
    u64::MAX,
];
/// The same for text.
const WORDS: [&str; 24] = [
    "0",
    "-1",
    "1e308",
    "1e999",
    "18446744073709551615",
    "null",
    "true",
    "{}",
    "[]",
    "\"\"",
    "[[[[[[[[",
    "{\"a\":",
    "\"",
    "\\u0000",
    "\\ud800",
    "{{",
    "}}",
    "{%",
    "%}",
    "{% for x in range(99999) %}",
    "{% endfor %}",
    "|join",
    "*",
    "\u{1F600}",
];

impl Mutator {
    /// Of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Xorshift64*: below `bound`, 0 if that is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let random = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16;
        random as usize % bound.max(1)
    }

    /// One of some.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    /// Changes `bytes` in one to four places; `other` is an input to take parts from.
    pub fn mutate(&mut self, bytes: &mut Vec<u8>, other: &[u8], length_max: usize) {
        for _ in 0..=self.below(4) {
            self.change(bytes, other);
        }
        bytes.truncate(length_max);
    }

    fn change(&mut self, bytes: &mut Vec<u8>, other: &[u8]) {
        let at = self.below(bytes.len() + 1);
        let to = at + self.below((bytes.len() - at + 1).min(64));
        match self.below(9) {
            0 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
            1 if at < bytes.len() => bytes[at] = self.below(256) as u8,
            2 => drop(bytes.drain(at..to)),
            3 => bytes.truncate(at),
            4 => {
                let part = bytes[at..to].to_vec();
                let place = self.below(bytes.len() + 1);
                bytes.splice(place..place, part);
            }
            5 => {
                let word = *self.pick(&WORDS);
                bytes.splice(at..to.min(at + self.below(8)), word.bytes());
            }
            6 => {
                let number = self.pick(&NUMBERS).wrapping_add(self.below(3) as u64);
                let width = 1 << self.below(4);
                let end = (at + width).min(bytes.len());
                bytes.splice(at..end, number.to_le_bytes()[..width].iter().copied());
            }
            7 => {
                let number = self.pick(&NUMBERS).wrapping_sub(self.below(3) as u64);
                let digits = bytes[at..]
                    .iter()
                    .take_while(|b| b.is_ascii_digit())
                    .count();
                bytes.splice(at..at + digits, number.to_string().bytes());
            }
            _ => {
                let start = self.below(other.len() + 1);
                let end = start + self.below((other.len() - start + 1).min(256));
                bytes.splice(at..to, other[start..end].iter().copied());
            }
        }
    }
}
