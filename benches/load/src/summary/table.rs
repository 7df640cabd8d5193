//! Figures as a table for the terminal.

use super::{Figures, Quantiles, Summary};

/// A column: its name, its unit, and a stage's cell.
type Column = (&'static str, &'static str, fn(&Figures) -> String);

const COLUMNS: [Column; 16] = [
    ("load", "", |f| f.label.clone()),
    ("requests", "", |f| f.requests.to_string()),
    ("failed", "%", |f| number(100.0 * f.failed_share)),
    ("in", "tok/s", |f| number(f.input_tokens_per_second)),
    ("out", "tok/s", |f| number(f.output_tokens_per_second)),
    ("goodput", "req/s", |f| number(f.goodput)),
    ("good", "%", |f| number(100.0 * f.good_share)),
    ("TTFT", "p50 ms", |f| of(f.ttft_ms, |q| q.p50)),
    ("", "p99", |f| of(f.ttft_ms, |q| q.p99)),
    ("ITL", "p50 ms", |f| of(f.itl_ms, |q| q.p50)),
    ("", "p99", |f| of(f.itl_ms, |q| q.p99)),
    ("prefill", "p99", |f| of(f.itl_during_prefill_ms, |q| q.p99)),
    ("TPOT", "p50 ms", |f| of(f.tpot_ms, |q| q.p50)),
    ("E2E", "p50 ms", |f| of(f.e2e_ms, |q| q.p50)),
    ("", "p99", |f| of(f.e2e_ms, |q| q.p99)),
    ("KV bits", "low mean", |f| {
        let low = f.lowest_kv_bits.map_or("-".into(), |bits| bits.to_string());
        format!("{low} {}", f.mean_kv_bits.map_or("-".into(), number))
    }),
];

/// Three digits, or all before the point.
pub(crate) fn number(value: f64) -> String {
    let digits = match value.abs() {
        x if x < 0.0005 => 0,
        x if x < 1.0 => 3,
        x if x < 10.0 => 2,
        x if x < 100.0 => 1,
        _ => 0,
    };
    format!("{value:.digits$}")
}

fn of(quantiles: Option<Quantiles>, which: fn(&Quantiles) -> f64) -> String {
    quantiles.as_ref().map_or("-".into(), |q| number(which(q)))
}

/// One line a stage, and below what went wrong.
pub fn table(summary: &Summary) -> String {
    let mut rows: Vec<Vec<String>> = vec![
        COLUMNS.iter().map(|c| c.0.to_owned()).collect(),
        COLUMNS.iter().map(|c| c.1.to_owned()).collect(),
    ];
    rows.extend(
        summary
            .stages
            .iter()
            .map(|f| COLUMNS.iter().map(|c| c.2(f)).collect()),
    );
    let mut text = aligned(&rows);
    for stage in &summary.stages {
        let mut notes: Vec<String> = Vec::new();
        for (outcome, count) in &stage.outcomes {
            if outcome != crate::record::OK {
                notes.push(format!("{count} {outcome}"));
            }
        }
        if let Some(q) = &stage.refusal_ms {
            notes.push(format!("refused within {} ms (p99)", number(q.p99)));
        }
        if stage.unfit > 0 {
            notes.push(format!("{} left out: longer than the context", stage.unfit));
        }
        if stage.cut_short {
            notes.push("cut short".into());
        }
        if !notes.is_empty() {
            text += &format!("{}: {}\n", stage.label, notes.join(", "));
        }
    }
    text
}

/// Columns as wide as their cells; the first to the left, the others to the right.
pub(crate) fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate();
        let cells: Vec<String> = cells
            .map(|(column, (cell, &width))| match column {
                0 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            })
            .collect();
        text += cells.join("  ").trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        for (value, text) in [
            (0.0, "0"),
            (0.0123, "0.012"),
            (1.234, "1.23"),
            (12.34, "12.3"),
            (1234.5, "1234"),
            (-2.5, "-2.50"),
        ] {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn columns_line_up() {
        let row = |cells: [&str; 3]| cells.map(String::from).to_vec();
        let text = aligned(&[row(["a", "bb", "c"]), row(["aaa", "b", "ccc"])]);
        assert_eq!(text, "a    bb    c\naaa   b  ccc\n");
    }
}
