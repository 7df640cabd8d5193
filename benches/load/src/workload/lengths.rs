//! Distributions of lengths.

use std::fmt;
use std::str::FromStr;

use rand::{Rng, RngExt as _};
use rand_distr::{Distribution as _, LogNormal};

/// A number of tokens, or of turns, at least 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Lengths {
    /// Always this.
    Fixed(u32),
    /// From the first to the last, each as likely.
    Uniform(u32, u32),
    /// exp(N(ln median, sigma²)), rounded, at most `most`.
    LogNormal {
        /// As many are shorter as longer.
        median: u32,
        /// Of the logarithm.
        sigma: f64,
        /// Longer ones count as this.
        most: u32,
    },
}

impl Lengths {
    /// One of them.
    pub fn draw(&self, rng: &mut impl Rng) -> u32 {
        match *self {
            Self::Fixed(n) => n,
            Self::Uniform(low, high) => rng.random_range(low..=high),
            Self::LogNormal {
                median,
                sigma,
                most,
            } => {
                let normal = LogNormal::new(f64::from(median).ln(), sigma);
                // Parsing has checked sigma; the median is what no spread leaves.
                let drawn = normal.map_or(f64::from(median), |normal| normal.sample(rng));
                (drawn.round() as u32).clamp(1, most)
            }
        }
    }
}

impl FromStr for Lengths {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| {
            text.trim()
                .parse()
                .ok()
                .filter(|n| (1..=1 << 24).contains(n))
        };
        let parse = || match text.split_once(':') {
            None => Some(Self::Fixed(number(text)?)),
            Some(("uniform", range)) => {
                let (low, high) = range.split_once("..")?;
                let (low, high) = (number(low)?, number(high)?);
                (low <= high).then_some(Self::Uniform(low, high))
            }
            Some(("lognormal", list)) => {
                let mut cells = list.split(',');
                let median = number(cells.next()?)?;
                let sigma: f64 = cells.next()?.trim().parse().ok()?;
                let most = cells.next().map_or(Some(1 << 24), number)?;
                let sound = (0.0..=5.0).contains(&sigma) && cells.next().is_none();
                (sound && median <= most).then_some(Self::LogNormal {
                    median,
                    sigma,
                    most,
                })
            }
            Some(_) => None,
        };
        parse().ok_or_else(|| {
            format!(
                "{text:?} is no distribution; write 128, uniform:64..512, or \
                 lognormal:MEDIAN,SIGMA or lognormal:MEDIAN,SIGMA,MOST (SIGMA from 0 to 5)"
            )
        })
    }
}

impl fmt::Display for Lengths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(n) => write!(f, "{n}"),
            Self::Uniform(low, high) => write!(f, "uniform:{low}..{high}"),
            Self::LogNormal {
                median,
                sigma,
                most,
            } => write!(f, "lognormal:{median},{sigma},{most}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng as _;
    use rand_chacha::ChaCha8Rng;

    fn draws(text: &str) -> Vec<u32> {
        let lengths: Lengths = text.parse().unwrap();
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut drawn: Vec<u32> = (0..20_000).map(|_| lengths.draw(&mut rng)).collect();
        drawn.sort_unstable();
        drawn
    }

    #[test]
    fn uniform_lengths_reach_both_ends_and_have_their_mean() {
        let drawn = draws("uniform:10..20");
        assert_eq!((drawn[0], drawn[19_999]), (10, 20));
        let mean = f64::from(drawn.iter().sum::<u32>()) / 2e4;
        assert!((mean - 15.0).abs() < 0.1, "{mean}");
    }

    #[test]
    fn lognormal_lengths_have_their_median_and_spread() {
        let drawn = draws("lognormal:200,0.5,2000");
        assert!(drawn[10_000].abs_diff(200) < 5, "{}", drawn[10_000]);
        // One sigma above the median: 200 exp(0.5) = 329.7.
        let above = drawn[16_827];
        assert!(above.abs_diff(330) < 10, "{above}");
        assert!(*draws("lognormal:200,2,300").last().unwrap() == 300);
        assert!(draws("lognormal:7,0").iter().all(|n| *n == 7));
    }

    #[test]
    fn what_is_no_distribution_is_refused() {
        for wrong in [
            "",
            "0",
            "-1",
            "uniform:5",
            "uniform:9..5",
            "uniform:0..5",
            "lognormal:5",
            "lognormal:5,9",
            "lognormal:5,NaN",
            "lognormal:5,1,4",
            "lognormal:5,1,9,9",
            "normal:5,1",
            "99999999999",
        ] {
            assert!(wrong.parse::<Lengths>().is_err(), "{wrong}");
        }
        for right in ["7", "uniform:1..2", "lognormal:5,1,9"] {
            assert_eq!(right.parse::<Lengths>().unwrap().to_string(), right);
        }
    }
}
