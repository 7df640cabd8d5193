//! When requests are to be sent in an open loop.

use std::time::Duration;

use clap::ValueEnum;
use rand::Rng;
use rand_distr::{Distribution as _, Exp1, Gamma};

/// How the times between requests are distributed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Process {
    /// Independent clients: exponential distances.
    Poisson,
    /// Bursts: gamma distances of the variation --cv.
    Gamma,
    /// Like clockwork.
    Constant,
}

/// A stage's arrivals: the rate goes in a line from the first to the last.
#[derive(Debug, Clone, Copy)]
pub struct Arrivals {
    /// Of the distances.
    pub process: Process,
    /// Coefficient of variation of gamma distances: standard deviation over mean. 1 is Poisson,
    /// more is burstier.
    pub cv: f64,
    /// Requests a second in the beginning.
    pub from: f64,
    /// Requests a second in the end.
    pub to: f64,
    /// Over this time.
    pub duration: Duration,
}

impl Arrivals {
    /// The times of at most `most` requests since the stage began, in order.
    ///
    /// Distances of mean 1 are drawn and mapped through the inverse of Λ(t) = ∫ rate, so that a
    /// rate that changes keeps the process' character.
    pub fn times(&self, most: usize, rng: &mut impl Rng) -> Vec<Duration> {
        let seconds = self.duration.as_secs_f64();
        let slope = (self.to - self.from) / seconds;
        let expected = (self.from + self.to) / 2.0 * seconds;
        let shape = 1.0 / (self.cv * self.cv);
        // The caller has checked cv.
        let gamma = Gamma::new(shape, 1.0 / shape).ok();
        let mut sum = 0.0;
        let mut times = Vec::new();
        while times.len() < most {
            sum += match (self.process, gamma) {
                (Process::Gamma, Some(gamma)) => gamma.sample(rng),
                (Process::Constant, _) => 1.0,
                _ => Exp1.sample(rng),
            };
            if sum > expected {
                break;
            }
            // Solves from t + slope t²/2 = sum, in the form that is exact for slope 0.
            let root = (self.from * self.from + 2.0 * slope * sum).max(0.0).sqrt();
            times.push(Duration::from_secs_f64(2.0 * sum / (self.from + root)));
        }
        times
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng as _;
    use rand_chacha::ChaCha8Rng;

    fn times(process: Process, cv: f64, from: f64, to: f64) -> Vec<f64> {
        let arrivals = Arrivals {
            process,
            cv,
            from,
            to,
            duration: Duration::from_secs(1000),
        };
        let times = arrivals.times(usize::MAX, &mut ChaCha8Rng::seed_from_u64(3));
        assert!(times.is_sorted());
        times.iter().map(Duration::as_secs_f64).collect()
    }

    /// Mean, and standard deviation over mean.
    fn gaps(times: &[f64]) -> (f64, f64) {
        let gaps: Vec<f64> = times.windows(2).map(|w| w[1] - w[0]).collect();
        let n = gaps.len() as f64;
        let mean = gaps.iter().sum::<f64>() / n;
        let variance = gaps.iter().map(|g| (g - mean) * (g - mean)).sum::<f64>() / n;
        (mean, variance.sqrt() / mean)
    }

    #[test]
    fn each_process_has_its_rate_and_variation() {
        for (process, cv, expected) in [
            (Process::Poisson, 1.0, 1.0),
            (Process::Gamma, 3.0, 3.0),
            (Process::Gamma, 0.5, 0.5),
            (Process::Constant, 1.0, 0.0),
        ] {
            let (mean, variation) = gaps(&times(process, cv, 50.0, 50.0));
            assert!((mean - 0.02).abs() < 0.0006, "{process:?}: {mean}");
            assert!(
                (variation - expected).abs() < 0.06,
                "{process:?} {cv}: {variation}"
            );
        }
    }

    #[test]
    fn a_ramp_climbs_in_a_line() {
        for process in [Process::Poisson, Process::Constant] {
            let times = times(process, 1.0, 0.0, 100.0);
            assert!((times.len() as f64 - 50_000.0).abs() < 700.0);
            // Half way in time: a quarter of the requests.
            let half = times.iter().filter(|t| **t < 500.0).count() as f64;
            assert!((half - 12_500.0).abs() < 350.0, "{half}");
            assert!(times.iter().all(|t| *t <= 1000.001));
        }
    }

    #[test]
    fn the_count_is_bounded() {
        let arrivals = Arrivals {
            process: Process::Poisson,
            cv: 1.0,
            from: 1e6,
            to: 1e6,
            duration: Duration::from_secs(1000),
        };
        assert_eq!(
            arrivals.times(10, &mut ChaCha8Rng::seed_from_u64(3)).len(),
            10
        );
    }
}
