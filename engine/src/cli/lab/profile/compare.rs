//! `ebb profile compare`: do two methods agree?

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use ebb_kernels::kv::Side;
use ebb_lab::calibrate::spearman;
use ebb_serving::kv_profile::Profile;

use super::title;
use crate::cli::error::CliError;
use crate::cli::generate::print;

/// Which profiles.
#[derive(Debug, Clone, Args)]
pub(super) struct CompareArgs {
    /// The profile that others are compared with.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Those others, of the same model.
    #[arg(value_name = "OTHER", required = true, num_args = 1..)]
    others: Vec<PathBuf>,
}

impl CompareArgs {
    pub(super) fn run(&self) -> Result<(), CliError> {
        let reference = Profile::read(&self.file)?;
        let mut text = format!(
            "Spearman's rank correlation over layers with {}: {}\n",
            self.file.display(),
            title(&reference)
        );
        for path in &self.others {
            let other = Profile::read(path)?;
            other.check_model(&reference.model)?;
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{}: {}", path.display(), title(&other));
            for (side, name) in [(Side::K, "keys"), (Side::V, "values")] {
                let correlations = correlations(&reference, &other, side);
                if correlations.is_empty() {
                    return Err(CliError::Usage(format!(
                        "{} and {} have no format of {name} in common that both know \
                         sensitivities of",
                        self.file.display(),
                        path.display()
                    )));
                }
                let _ = write!(text, "  {name:<6}");
                for (format, correlation) in correlations {
                    let _ = match correlation {
                        Some(r) => write!(text, "  {format} {r:.3}"),
                        None => write!(text, "  {format} -"),
                    };
                }
                text.push('\n');
            }
        }
        print(&mut std::io::stdout(), &text)
    }
}

/// By format that both profiles know, the most bits first.
fn correlations<'a>(a: &'a Profile, b: &Profile, side: Side) -> Vec<(&'a str, Option<f64>)> {
    let known = a.sensitivities.of(side);
    let mut names: Vec<&str> = known.keys().map(String::as_str).collect();
    let rank = |name: &str| {
        let all = ebb_kernels::formats::FormatId::ALL;
        all.iter().position(|f| f.name() == name)
    };
    names.sort_by_key(|name| rank(name));
    let pairs = names.into_iter().filter_map(|name| {
        let other = b.sensitivities.of(side).get(name)?;
        Some((name, spearman(&known[name], other)))
    });
    pairs.collect()
}
