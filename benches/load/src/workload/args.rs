//! Flags of the workload.

use std::time::Duration;

use super::Lengths;
use crate::error::LoadError;

/// What is asked.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Workload")]
pub struct WorkloadArgs {
    /// Tokens that each prompt adds: N, uniform:LOW..HIGH or lognormal:MEDIAN,SIGMA[,MOST]
    #[arg(long, value_name = "LENGTHS", default_value = "256")]
    pub prompt_tokens: Lengths,
    /// Tokens of each answer, likewise
    #[arg(long, value_name = "LENGTHS", default_value = "64")]
    pub output_tokens: Lengths,
    /// Requests of a conversation, likewise; each repeats what was said before
    #[arg(long, value_name = "LENGTHS", default_value = "1")]
    pub turns: Lengths,
    /// Seconds between an answer and its client's next request
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    pub think: f64,
    /// Tokens that prompts may begin with in common
    #[arg(long, value_name = "TOKENS", default_value_t = 0)]
    pub prefix_tokens: u32,
    /// How many such beginnings there are
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub prefix_groups: u32,
    /// Share of the sessions that have one
    #[arg(long, value_name = "SHARE", default_value_t = 1.0)]
    pub prefix_share: f64,
    /// Share of the sessions whose clients cancel in the middle of an answer
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub cancel: f64,
    /// Share of the sessions whose clients pause before each piece of an answer
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub slow: f64,
    /// Milliseconds that they pause
    #[arg(long, value_name = "MS", default_value_t = 100)]
    pub slow_pause_ms: u64,
    /// Factor on the lengths of a trace
    #[arg(long, value_name = "F", default_value_t = 1.0)]
    pub length_scale: f64,
    /// Temperature; 0 is greedy
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    pub temperature: f32,
    /// Lowest bits of keys and values that will do: 16, 8, 4 or 2 [default: as low as the server
    /// goes]
    #[arg(long, value_name = "BITS")]
    pub min_kv_bits: Option<u32>,
    /// Milliseconds after which the server is to give up a request [default: never]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..))]
    pub timeout_ms: Option<u64>,
    /// Equal seeds give equal prompts, lengths, arrivals and classes
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

impl WorkloadArgs {
    /// # Errors
    /// A sentence naming the flag at fault.
    pub fn check(&self) -> Result<(), LoadError> {
        let wrong = |flag: &str, value: f64, range: &str| {
            Err(LoadError::Usage(format!(
                "{flag} is {value}; it must be {range}"
            )))
        };
        for (flag, share) in [
            ("--prefix-share", self.prefix_share),
            ("--cancel", self.cancel),
            ("--slow", self.slow),
        ] {
            if !(0.0..=1.0).contains(&share) {
                return wrong(flag, share, "from 0 to 1");
            }
        }
        if self.cancel + self.slow > 1.0 {
            return wrong(
                "--cancel and --slow together",
                self.cancel + self.slow,
                "at most 1",
            );
        }
        if !(0.0..=3600.0).contains(&self.think) {
            return wrong("--think", self.think, "from 0 to 3600 seconds");
        }
        if !(1e-3..=1e3).contains(&self.length_scale) {
            return wrong("--length-scale", self.length_scale, "from 0.001 to 1000");
        }
        if !(0.0..=100.0).contains(&self.temperature) {
            return wrong("--temperature", self.temperature.into(), "from 0 to 100");
        }
        Ok(())
    }

    /// Time after which the server is to give up.
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout_ms.map(Duration::from_millis)
    }

    /// Time that slow readers pause.
    pub fn slow_pause(&self) -> Duration {
        Duration::from_millis(self.slow_pause_ms)
    }
}
