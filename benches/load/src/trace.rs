//! Requests over time: arrival, prompt tokens, generated tokens.

use std::path::{Path, PathBuf};

/// One request of a trace.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Arrival {
    /// Seconds since the replay began.
    pub at: f64,
    /// Tokens of the prompt.
    pub prompt: u32,
    /// Tokens generated.
    pub generated: u32,
}

/// A trace, repeated or cut to a number of requests and stretched to a rate. Takes memory for the
/// recorded requests only, however often they repeat.
#[derive(Debug, Clone)]
pub struct Trace {
    recorded: Vec<Arrival>,
    /// Seconds after which the trace repeats.
    period: f64,
    requests: usize,
    stretch: f64,
}

/// The Azure conversation trace of 2023; see `benches/data`.
pub fn azure() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/azure_conv_2023.csv")
}

impl Trace {
    /// Reads a CSV file whose first line names its columns and whose rows are arrival in
    /// milliseconds, prompt tokens and generated tokens.
    ///
    /// # Errors
    /// A sentence with the line at fault.
    pub fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path)
            .map_err(|e| format!("cannot read the trace {}: {e}", path.display()))?;
        Self::parse(&text).map_err(|e| format!("{}: {e}", path.display()))
    }

    /// The same from text.
    ///
    /// # Errors
    /// A sentence with the line at fault.
    pub fn parse(text: &str) -> Result<Self, String> {
        let lines = text.lines().enumerate().skip(1);
        let lines = lines.filter(|(_, line)| !line.trim().is_empty());
        let recorded = lines.map(|(index, line)| {
            row(line).ok_or_else(|| {
                format!(
                    "line {} is {line:?}; rows are arrival_ms,prompt_tokens,generated_tokens, \
                     tokens at least 1",
                    index + 1
                )
            })
        });
        Self::new(recorded.collect::<Result<_, _>>()?)
    }

    /// A trace of these requests, at its own rate.
    ///
    /// # Errors
    /// When there are none, or they are not in the order of their arrivals.
    pub fn new(recorded: Vec<Arrival>) -> Result<Self, String> {
        let Some(last) = recorded.last() else {
            return Err("the trace is empty; give one with at least one request".into());
        };
        if let Some(at) = recorded.windows(2).position(|w| w[0].at > w[1].at) {
            return Err(format!(
                "request {} arrives before the one it follows; sort the trace by arrival",
                at + 2
            ));
        }
        // The next repetition begins a mean distance after the last request.
        let gaps = (recorded.len() - 1).max(1) as f64;
        let period = (last.at * (1.0 + 1.0 / gaps)).max(1e-3);
        Ok(Self {
            requests: recorded.len(),
            recorded,
            period,
            stretch: 1.0,
        })
    }

    /// The first `requests` requests, from the beginning again as often as it takes.
    #[must_use]
    pub fn with_requests(mut self, requests: usize) -> Self {
        self.requests = requests.max(1);
        self
    }

    /// The same requests, arriving `rate` a second on average.
    #[must_use]
    pub fn with_rate(mut self, rate: f64) -> Self {
        self.stretch = 1.0;
        self.stretch = self.rate() / rate;
        self
    }

    /// Requests in it.
    pub fn len(&self) -> usize {
        self.requests
    }

    /// Never: a trace has at least one request.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// A request; they are in the order of their arrivals.
    pub fn get(&self, index: usize) -> Arrival {
        let (lap, at) = (index / self.recorded.len(), index % self.recorded.len());
        let recorded = self.recorded[at];
        Arrival {
            at: (lap as f64 * self.period + recorded.at) * self.stretch,
            ..recorded
        }
    }

    /// Seconds over which requests arrive: to the last one, and a mean distance more.
    pub fn seconds(&self) -> f64 {
        let gaps = (self.requests - 1).max(1) as f64;
        let last = self.get(self.requests - 1).at;
        (last * (1.0 + 1.0 / gaps)).max(1e-3)
    }

    /// Requests a second.
    pub fn rate(&self) -> f64 {
        self.requests as f64 / self.seconds()
    }

    /// All requests, in order.
    pub fn iter(&self) -> impl Iterator<Item = Arrival> + '_ {
        (0..self.requests).map(|index| self.get(index))
    }
}

fn row(line: &str) -> Option<Arrival> {
    let mut cells = line.split(',').map(str::trim);
    let at: f64 = cells.next()?.parse().ok()?;
    let prompt = cells.next()?.parse().ok().filter(|n| *n > 0)?;
    let generated = cells.next()?.parse().ok().filter(|n| *n > 0)?;
    let whole = cells.next().is_none() && at.is_finite() && at >= 0.0;
    whole.then_some(Arrival {
        at: at / 1000.0,
        prompt,
        generated,
    })
}
