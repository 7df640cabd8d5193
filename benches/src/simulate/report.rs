//! Outcomes as a table, as CSV and as JSON.

use std::fmt::Write as _;

use super::outcome::Outcome;

/// A column: its heading in tables and its cell.
type Column = (&'static str, fn(&Outcome) -> String);

const TABLE: [Column; 17] = [
    ("mode", |o| o.mode.to_owned()),
    ("KV GiB", |o| format!("{}", o.kv_gib)),
    ("req/s", |o| format!("{:.2}", o.rate)),
    ("served", |o| o.served.to_string()),
    ("in target", |o| format!("{:.1} %", 100.0 * o.attained)),
    ("goodput", |o| format!("{:.2}", o.goodput)),
    ("TTFT p50/p99 s", |o| {
        format!("{:.2}/{:.2}", o.ttft_p50, o.ttft_p99)
    }),
    ("TPOT p50/p99 ms", |o| {
        format!("{:.1}/{:.1}", 1e3 * o.tpot_p50, 1e3 * o.tpot_p99)
    }),
    ("tok/s", |o| format!("{:.0}", o.output_tokens_per_second)),
    ("resident mean/max", |o| {
        format!("{:.1}/{}", o.resident_mean, o.resident_max)
    }),
    ("preempted", |o| o.preemptions.to_string()),
    ("lost", |o| o.preempted_tokens.to_string()),
    ("bits stored", |o| format!("{:.2}", o.bits_stored)),
    ("read", |o| format!("{:.2}", o.bits_read)),
    ("told", |o| format!("{:.2}", o.bits_told)),
    ("frag.", |o| format!("{:.1} %", 100.0 * o.fragmentation)),
    ("plan us mean/max", |o| {
        format!("{:.0}/{:.0}", o.host_plan_us_mean, o.host_plan_us_max)
    }),
];

/// Lines for people.
pub fn table(outcomes: &[Outcome]) -> String {
    let mut rows = vec![TABLE.map(|(name, _)| name.to_owned())];
    rows.extend(outcomes.iter().map(|o| TABLE.map(|(_, cell)| cell(o))));
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max();
    let widths: [usize; TABLE.len()] = std::array::from_fn(|c| width(c).unwrap_or(0));
    let mut text = String::new();
    for row in &rows {
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            let gap = if column == 0 { "" } else { "  " };
            // Writing to a String cannot fail.
            let _ = match column {
                0 => write!(text, "{cell:<width$}"),
                _ => write!(text, "{gap}{cell:>width$}"),
            };
        }
        text.push('\n');
    }
    text
}

/// Columns that come first in CSV; the others follow by name.
const FIRST: [&str; 7] = [
    "mode", "kv_gib", "rate", "requests", "served", "attained", "goodput",
];

/// One line for each outcome below a line of names, those of [`Outcome`]'s fields.
///
/// # Errors
/// Never, for outcomes that replays gave.
pub fn csv(outcomes: &[Outcome]) -> Result<String, serde_json::Error> {
    let mut text = String::new();
    for outcome in outcomes {
        let value = serde_json::to_value(outcome)?;
        let mut fields: Vec<_> = value.as_object().into_iter().flatten().collect();
        let first = |name: &str| FIRST.iter().position(|f| *f == name).unwrap_or(FIRST.len());
        fields.sort_by_key(|(name, _)| (first(name), name.as_str()));
        if text.is_empty() {
            let names: Vec<&str> = fields.iter().map(|(name, _)| name.as_str()).collect();
            text = names.join(",") + "\n";
        }
        let cells = fields.iter().map(|(_, value)| cell(value));
        text += &(cells.collect::<Vec<_>>().join(",") + "\n");
    }
    Ok(text)
}

fn cell(value: &serde_json::Value) -> String {
    match (value.as_str(), value.as_f64()) {
        (Some(text), _) => text.to_owned(),
        (None, Some(number)) if value.is_f64() => {
            let text = format!("{number:.5}");
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        }
        _ => value.to_string(),
    }
}
