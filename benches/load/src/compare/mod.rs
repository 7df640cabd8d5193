//! What changed between two tests.

mod metrics;

use std::path::Path;

use metrics::{Better, METRICS};

use crate::error::LoadError;
use crate::summary::{Figures, Summary, aligned, number};

/// Two values of one figure.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    /// The stage that both tests have.
    pub stage: String,
    /// The figure and its unit.
    pub figure: &'static str,
    /// In the first test.
    pub before: f64,
    /// In the second.
    pub after: f64,
    /// What that means.
    pub verdict: Verdict,
}

/// What a difference means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Within the noise.
    Same,
    /// The second test did better.
    Better,
    /// The second test did worse.
    Worse,
}

impl Difference {
    /// The second over the first, less 1; infinite when the first is 0.
    pub fn change(&self) -> f64 {
        match (self.before, self.after) {
            (b, a) if b == a => 0.0,
            (b, a) => a / b - 1.0,
        }
    }
}

/// Reads a summary: the file, or `summary.json` in a folder.
///
/// # Errors
/// When there is none, or it is something else.
pub fn read(path: &Path) -> Result<Summary, LoadError> {
    let path = if path.is_dir() {
        path.join("summary.json")
    } else {
        path.to_owned()
    };
    let text = std::fs::read_to_string(&path).map_err(LoadError::file("read", &path))?;
    serde_json::from_str(&text).map_err(|error| LoadError::Content {
        why: format!("it is no summary of ebb-load ({error}); give the folder that --out named"),
        path,
    })
}

/// The differences of all figures of the stages that both have, by their labels. Changes of less
/// than `noise`, a share, mean nothing.
pub fn differences(before: &Summary, after: &Summary, noise: f64) -> Vec<Difference> {
    let mut all = Vec::new();
    for a in &before.stages {
        let Some(b) = after.stages.iter().find(|b| b.label == a.label) else {
            continue;
        };
        all.extend(METRICS.iter().filter_map(|metric| {
            let (before, after) = ((metric.of)(a)?, (metric.of)(b)?);
            let mut difference = Difference {
                stage: a.label.clone(),
                figure: metric.name,
                before,
                after,
                verdict: Verdict::Same,
            };
            let change = difference.change();
            if change.abs() > noise {
                let better = (change > 0.0) == (metric.better == Better::More);
                difference.verdict = if better {
                    Verdict::Better
                } else {
                    Verdict::Worse
                };
            }
            Some(difference)
        }));
    }
    all
}

/// A table of the differences, and what was not compared.
pub fn table(before: &Summary, after: &Summary, differences: &[Difference]) -> String {
    let mut text = String::new();
    for (what, a, b) in [
        ("model", &before.target.model, &after.target.model),
        ("device", &before.target.device, &after.target.device),
        ("server", &before.target.server, &after.target.server),
    ] {
        if a != b {
            text += &format!("note: another {what}: {a}, then {b}\n");
        }
    }
    if before.slo != after.slo {
        text += "note: the targets of goodput differ\n";
    }
    let mut rows = vec![["", "A", "B", "change", ""].map(String::from).to_vec()];
    let mut stage = None;
    for difference in differences {
        if stage != Some(&difference.stage) {
            stage = Some(&difference.stage);
            rows.push(vec![difference.stage.clone()]);
        }
        rows.push(vec![
            format!("  {}", difference.figure),
            number(difference.before),
            number(difference.after),
            percent(difference.change()),
            match difference.verdict {
                Verdict::Same => String::new(),
                Verdict::Better => "better".into(),
                Verdict::Worse => "WORSE".into(),
            },
        ]);
    }
    text += &aligned(&rows);
    for (name, of, other) in [("A", before, after), ("B", after, before)] {
        let alone = |f: &&Figures| other.stages.iter().all(|o| o.label != f.label);
        let alone: Vec<&str> = of
            .stages
            .iter()
            .filter(alone)
            .map(|f| f.label.as_str())
            .collect();
        if !alone.is_empty() {
            text += &format!("only in {name}: {}\n", alone.join(", "));
        }
    }
    text
}

fn percent(change: f64) -> String {
    match change {
        c if c.is_infinite() => "from 0".into(),
        c => format!("{:+.1} %", 100.0 * c),
    }
}

#[cfg(test)]
mod tests;
