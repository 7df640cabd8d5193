//! `ebb-load compare`.

use std::path::PathBuf;

use super::within;
use crate::compare::{Verdict, differences, read, table};
use crate::error::LoadError;

/// Tell what got better and what got worse between two tests.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Args {
    /// The first test: the folder that --out named
    a: PathBuf,
    /// The second
    b: PathBuf,
    /// Changes of less mean nothing
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0)]
    noise: f64,
    /// Exit with an error when something got worse
    #[arg(long)]
    fail_if_worse: bool,
}

impl Args {
    pub(super) fn run(&self) -> Result<(), LoadError> {
        within("--noise", self.noise, 0.0, 1e6)?;
        let (a, b) = (read(&self.a)?, read(&self.b)?);
        let all = differences(&a, &b, self.noise / 100.0);
        if all.is_empty() {
            return Err(LoadError::Missed(
                "the tests have no stage in common".into(),
            ));
        }
        print!("{}", table(&a, &b, &all));
        let worse = all.iter().filter(|d| d.verdict == Verdict::Worse).count();
        if self.fail_if_worse && worse > 0 {
            return Err(LoadError::Missed(format!("{worse} figures got worse")));
        }
        Ok(())
    }
}
