//! The highest rate that a setup serves.

use super::outcome::Outcome;
use super::replay::replay;
use super::setup::Setup;
use super::trace::Trace;

/// Rates tried first, requests a second, and the ends of the search.
const FIRST: f64 = 8.0;
const RATES: (f64, f64) = (0.125, 512.0);
/// The search ends when the rate that fails is at most this many times the one that is served.
const NEAR: f64 = 1.02;

/// The outcome at the highest rate found at which at least the share `attain` of all requests meets
/// the targets, by bisection: a rate 2 % higher was tried and failed. At the lowest rate tried if
/// that fails as well.
///
/// # Errors
/// A sentence when the setup is impossible.
pub fn highest_rate(setup: &Setup, trace: &Trace, attain: f64) -> Result<Outcome, String> {
    let misses_max = ((1.0 - attain) * trace.len() as f64).floor() as usize;
    let at = |rate: f64| {
        let outcome = replay(setup, &trace.clone().with_rate(rate), Some(misses_max))?;
        let served = outcome.served + outcome.rejected == trace.len();
        Ok::<_, String>((served && outcome.attained >= attain).then_some(outcome))
    };
    let (mut low, mut high, mut best) = (RATES.0, RATES.1, None);
    let mut rate = FIRST;
    while high / low > NEAR {
        if let Some(outcome) = at(rate)? {
            (low, best) = (rate, Some(outcome));
        } else {
            high = rate;
        }
        rate = match (low == RATES.0, high == RATES.1) {
            (false, true) => (rate * 2.0).min(RATES.1),
            (true, false) => (rate / 2.0).max(RATES.0),
            _ => (low * high).sqrt(),
        };
        if rate >= high || rate <= low {
            break;
        }
    }
    match best {
        Some(best) => Ok(best),
        None => replay(setup, &trace.clone().with_rate(RATES.0), None),
    }
}
