//! Goodput over KV memory as SVG.

use std::fmt::Write as _;

use super::outcome::Outcome;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 420.0;
/// Of the plot itself: left, top, right, bottom.
const FRAME: (f64, f64, f64, f64) = (70.0, 56.0, 690.0, 350.0);

/// Colours of the series, told apart in light and dark and by those who see few colours; marks
/// differ as well.
const COLOURS: [&str; 6] = [
    "#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9",
];

/// Lines of goodput over KV memory, one for each mode (and rate, if there are several).
pub fn svg(outcomes: &[Outcome], title: &str, by_rate: bool) -> String {
    let label = |o: &Outcome| match by_rate {
        true => format!("{} at {:.4} req/s", o.mode, o.rate),
        false => o.mode.to_owned(),
    };
    let mut labels: Vec<String> = Vec::new();
    let mut memories: Vec<f64> = Vec::new();
    for outcome in outcomes {
        if !labels.contains(&label(outcome)) {
            labels.push(label(outcome));
        }
        if !memories.contains(&outcome.kv_gib) {
            memories.push(outcome.kv_gib);
        }
    }
    memories.sort_by(f64::total_cmp);
    let most = outcomes.iter().map(|o| o.goodput).fold(0.0, f64::max);
    let tick = tick_of(most);
    let top = ((most / tick).ceil() * tick).max(tick);
    let (left, upper, right, lower) = FRAME;
    let x = |gib: f64| {
        let at = memories.iter().position(|m| *m == gib).unwrap_or(0) as f64;
        left + (at + 0.5) / memories.len().max(1) as f64 * (right - left)
    };
    let y = |goodput: f64| lower - goodput / top * (lower - upper);

    // Writing to a String cannot fail.
    let mut svg = String::new();
    let _ = write!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
         font-family=\"system-ui, sans-serif\" font-size=\"13\">\n\
         <title>{0}</title>\n\
         <style>.ink{{fill:#1f2328}}.line{{stroke:#8c959f}}.grid{{stroke:#8c959f;stroke-opacity:.3}}.back{{fill:#fff}}\
         @media (prefers-color-scheme:dark){{.ink{{fill:#e6edf3}}.back{{fill:#0d1117}}}}</style>\n\
         <rect class=\"back\" width=\"{WIDTH}\" height=\"{HEIGHT}\"/>\n\
         <text class=\"ink\" x=\"{left}\" y=\"24\" font-weight=\"600\">{0}</text>\n",
        escape(title)
    );
    let mut value = 0.0;
    while value <= top * 1.0001 {
        let at = y(value);
        let text = format!("{value:.2}");
        let text = text.trim_end_matches('0').trim_end_matches('.');
        let _ = writeln!(
            svg,
            "<path class=\"{}\" d=\"M{left} {at:.1}H{right}\"/>\
             <text class=\"ink\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>",
            if value == 0.0 { "line" } else { "grid" },
            left - 8.0,
            at + 4.0
        );
        value += tick;
    }
    for &gib in &memories {
        let _ = writeln!(
            svg,
            "<text class=\"ink\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{gib}</text>",
            x(gib),
            lower + 20.0
        );
    }
    let middle = (upper + lower) / 2.0;
    let _ = writeln!(
        svg,
        "<text class=\"ink\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">KV memory, \
         GiB</text>\n\
         <text class=\"ink\" transform=\"translate(22 {middle:.1}) rotate(-90)\" \
         text-anchor=\"middle\">goodput, requests/s within target</text>",
        (left + right) / 2.0,
        lower + 44.0
    );
    for (series, name) in labels.iter().enumerate() {
        let colour = COLOURS[series % COLOURS.len()];
        let mut points: Vec<(f64, f64)> = outcomes
            .iter()
            .filter(|o| label(o) == *name)
            .map(|o| (x(o.kv_gib), y(o.goodput)))
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let line: Vec<String> = points
            .iter()
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2.5\"/>",
            line.join(" ")
        );
        for (x, y) in points {
            mark(&mut svg, series, x, y, colour);
        }
        let columns = 3;
        let (column, row) = (series % columns, series / columns);
        let at = (
            left + column as f64 * (right - left) / columns as f64 + 6.0,
            44.0 + row as f64 * 16.0,
        );
        mark(&mut svg, series, at.0, at.1 - 4.0, colour);
        let _ = writeln!(
            svg,
            "<text class=\"ink\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            at.0 + 12.0,
            at.1,
            escape(name)
        );
    }
    svg + "</svg>\n"
}

fn mark(svg: &mut String, series: usize, x: f64, y: f64, colour: &str) {
    let _ = match series % 3 {
        0 => writeln!(
            svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5\" fill=\"{colour}\"/>"
        ),
        1 => writeln!(
            svg,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"9\" height=\"9\" fill=\"{colour}\"/>",
            x - 4.5,
            y - 4.5
        ),
        _ => writeln!(
            svg,
            "<path d=\"M{x:.1} {:.1}l6 10h-12z\" fill=\"{colour}\"/>",
            y - 6.0
        ),
    };
}

/// A distance between ticks of 1, 2 or 5 times a power of ten that gives four to ten of them.
fn tick_of(most: f64) -> f64 {
    let rough = (most / 8.0).max(1e-2);
    let power = 10f64.powf(rough.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .find(|f| f * power >= rough);
    factor.unwrap_or(10.0) * power
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
