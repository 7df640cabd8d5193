//! The page's contents.

use minijinja::{AutoEscape, Environment, Value, context};

use super::plot::Plot;
use super::{overview, stage};
use crate::record::{OK, Record};
use crate::summary::{Figures, Quantiles, Summary, number};

const TEMPLATE: &str = include_str!("page.html");

/// The page as HTML.
pub(super) fn html(summary: &Summary, records: &[Record]) -> Result<String, minijinja::Error> {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    environment.add_template("page", TEMPLATE)?;
    let unit = load_unit(&summary.stages);
    let stages: Vec<Value> = summary
        .stages
        .iter()
        .enumerate()
        .map(|(index, figures)| {
            let of: Vec<&Record> = records.iter().filter(|r| r.stage == index).collect();
            context! {
                label => &figures.label,
                note => note(figures),
                plots => svgs(&stage::plots(figures, &of, &summary.slo)),
            }
        })
        .collect();
    let target = &summary.target;
    let memory = match target.kv_bytes {
        0 => String::new(),
        bytes => format!("{} MiB of KV cache", bytes >> 20),
    };
    let about = [
        &target.model,
        &target.server,
        &target.device,
        &memory,
        &target.kv_mode,
    ];
    let about: Vec<&str> = about
        .iter()
        .map(|s| s.as_str())
        .filter(|s| !s.is_empty())
        .collect();
    environment.get_template("page")?.render(context! {
        title => &summary.title,
        about => about.join(" · "),
        started => summary.started.replace('T', " ").replace('Z', " UTC"),
        command => &summary.command,
        version => &summary.version,
        slo => format!(
            "first token within {} ms, {} ms between tokens on an answer's mean",
            summary.slo.ttft_ms, summary.slo.itl_ms
        ),
        tiles => tiles(&summary.stages),
        overview => svgs(&overview::plots(&summary.stages, &summary.slo, unit)),
        stages => stages,
        rows => summary.stages.iter().map(row).collect::<Vec<_>>(),
    })
}

/// Plots that the template does not escape again.
fn svgs(plots: &[Plot]) -> Vec<Value> {
    plots
        .iter()
        .map(|plot| Value::from_safe_string(plot.svg()))
        .collect()
}

fn load_unit(stages: &[Figures]) -> &'static str {
    match stages.iter().all(|f| f.label.contains("client")) {
        true => "clients",
        false => "sessions a second",
    }
}

/// The figures that a reader looks for first.
fn tiles(stages: &[Figures]) -> Vec<Value> {
    let most = |of: fn(&Figures) -> f64| {
        stages
            .iter()
            .max_by(|a, b| of(a).total_cmp(&of(b)))
            .map(|f| (of(f), f))
    };
    let tile = |name: &str, value: String, unit: &str, note: String| {
        context! { name => name, value => value, unit => unit, note => note }
    };
    let mut tiles = Vec::new();
    if let Some((value, stage)) = most(|f| f.output_tokens_per_second) {
        tiles.push(tile(
            "Output",
            number(value),
            "tokens/s",
            format!("at {}", stage.label),
        ));
    }
    if let Some((value, stage)) = most(|f| f.goodput) {
        tiles.push(tile(
            "Goodput",
            number(value),
            "requests/s",
            format!("at {}", stage.label),
        ));
        if let (Some(ttft), Some(itl)) = (stage.ttft_ms, stage.itl_ms) {
            let p99 = |q: Quantiles| format!("p99 {} ms, at {}", number(q.p99), stage.label);
            tiles.push(tile(
                "First token",
                number(ttft.p50),
                "ms, median",
                p99(ttft),
            ));
            tiles.push(tile(
                "Between tokens",
                number(itl.p50),
                "ms, median",
                p99(itl),
            ));
        }
    }
    let requests: u64 = stages.iter().map(|f| f.requests).sum();
    let failed: f64 = stages
        .iter()
        .map(|f| f.failed_share * f.requests as f64)
        .sum();
    tiles.push(tile(
        "Failed",
        number(failed.round()),
        "requests",
        format!("of {requests}"),
    ));
    if let Some(bits) = stages.iter().filter_map(|f| f.lowest_kv_bits).min() {
        let means = stages.iter().filter_map(|f| f.mean_kv_bits);
        let note = format!("lowest stage mean {}", number(means.fold(16.0, f64::min)));
        tiles.push(tile("KV cache", bits.to_string(), "bits, lowest", note));
    }
    tiles
}

/// What the plots of a stage do not tell.
fn note(figures: &Figures) -> String {
    let mut parts = vec![format!("{} requests", figures.requests)];
    let others = figures
        .outcomes
        .iter()
        .filter(|(outcome, _)| *outcome != OK);
    parts.extend(others.map(|(outcome, count)| format!("{count} {outcome}")));
    if let Some(q) = figures.refusal_ms {
        parts.push(format!("refused within {} ms (p99)", number(q.p99)));
    }
    if figures.unfit > 0 {
        parts.push(format!(
            "{} longer than the context, left out",
            figures.unfit
        ));
    }
    if figures.cut_short {
        parts.push("cut short".into());
    }
    parts.join(", ")
}

/// A line of the table.
fn row(f: &Figures) -> Vec<String> {
    let three = |q: Option<Quantiles>| match q {
        None => ["–".to_owned(), "–".to_owned(), "–".to_owned()],
        Some(q) => [q.p50, q.p90, q.p99].map(number),
    };
    let mut cells = vec![
        f.label.clone(),
        f.requests.to_string(),
        number(100.0 * f.failed_share),
        number(f.input_tokens_per_second),
        number(f.output_tokens_per_second),
        number(f.goodput),
        number(100.0 * f.good_share),
    ];
    for q in [f.ttft_ms, f.itl_ms, f.tpot_ms, f.e2e_ms] {
        cells.extend(three(q));
    }
    let or_dash = |text: Option<String>| text.unwrap_or("–".into());
    cells.push(or_dash(f.itl_during_prefill_ms.map(|q| number(q.p99))));
    cells.push(or_dash(f.lowest_kv_bits.map(|bits| bits.to_string())));
    cells.push(or_dash(f.mean_kv_bits.map(number)));
    cells
}
