//! Plots as inline SVG.

mod axis;

use std::fmt::Write as _;

pub(super) use axis::{Axis, Scale};

/// Pixels of a plot, which the page scales.
const SIZE: (f64, f64) = (372.0, 240.0);
/// Of the frame: left, top, right, bottom.
const FRAME: (f64, f64, f64, f64) = (46.0, 44.0, 318.0, 200.0);
/// Points of a cloud that are drawn, at most; of more an even choice.
const POINTS_MAX: usize = 4000;

/// How a series is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    /// A line with a dot at each point.
    Dots,
    /// A line.
    Line,
    /// A line with its area filled.
    Area,
    /// Dots alone.
    Cloud,
    /// Ticks at the lower edge; y does not matter.
    Rug,
}

/// One set of points.
#[derive(Debug, Clone)]
pub(super) struct Series {
    /// At the end of a line, or in the corner; may be empty.
    pub(super) label: String,
    pub(super) mark: Mark,
    /// Class of the page's style: `a` for the accent, `b` and `c` for what stands back.
    pub(super) tone: &'static str,
    pub(super) points: Vec<(f64, f64)>,
}

/// A plot.
#[derive(Debug, Clone)]
pub(super) struct Plot {
    pub(super) title: String,
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) series: Vec<Series>,
    /// A level to compare with, and its name.
    pub(super) target: Option<(f64, String)>,
}

impl Plot {
    /// The SVG element.
    pub(super) fn svg(&self) -> String {
        let (left, top, right, bottom) = FRAME;
        let x = self.x.scale((left, right));
        let y = self.y.scale((bottom, top));
        // Writing to a String cannot fail.
        let mut svg = String::new();
        let _ = write!(
            svg,
            "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{title}\"><text class=\"title\" \
             x=\"0\" y=\"14\">{title}</text>",
            SIZE.0,
            SIZE.1,
            title = escape(&self.title)
        );
        for (value, text) in y.ticks() {
            let at = y.at(value);
            let _ = write!(
                svg,
                "<path class=\"grid\" d=\"M{left} {at:.1}H{right}\"/><text class=\"tick\" \
                 x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>",
                left - 7.0,
                at + 3.5
            );
        }
        for (value, text) in x.ticks() {
            let _ = write!(
                svg,
                "<path class=\"axis\" d=\"M{at:.1} {bottom}v4\"/><text class=\"tick\" \
                 x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{text}</text>",
                bottom + 16.0,
                at = x.at(value)
            );
        }
        let _ = write!(
            svg,
            "<path class=\"axis\" d=\"M{left} {bottom}H{right}\"/><text class=\"label\" \
             x=\"{right}\" y=\"{:.1}\" text-anchor=\"end\">{}</text><text class=\"label\" \
             x=\"0\" y=\"30\">{}</text>",
            bottom + 32.0,
            escape(&self.x.label),
            escape(&self.y.label)
        );
        if let Some((value, name)) = self.target.as_ref().filter(|(v, _)| y.holds(*v)) {
            let at = y.at(*value);
            let _ = write!(
                svg,
                "<path class=\"target\" d=\"M{left} {at:.1}H{right}\"/><text class=\"tick\" \
                 x=\"{right}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                at - 4.0,
                escape(name)
            );
        }
        for series in &self.series {
            self.draw(&mut svg, series, &x, &y);
        }
        self.names(&mut svg, &x, &y);
        svg + "</svg>"
    }

    fn draw(&self, svg: &mut String, series: &Series, x: &Scale<'_>, y: &Scale<'_>) {
        let tone = series.tone;
        let step = series.points.len().div_ceil(POINTS_MAX).max(1);
        let points: Vec<(f64, f64)> = match series.mark {
            Mark::Cloud | Mark::Rug => series.points.iter().copied().step_by(step).collect(),
            _ => series.points.clone(),
        };
        let points: Vec<(f64, f64)> = points.iter().map(|(a, b)| (x.at(*a), y.at(*b))).collect();
        let (Some(first), Some(last)) = (points.first(), points.last()) else {
            return;
        };
        let line = || {
            let steps: Vec<String> = points
                .iter()
                .map(|(x, y)| format!("{x:.1} {y:.1}"))
                .collect();
            format!("M{}", steps.join("L"))
        };
        let each = |mark: &str| {
            let marks: Vec<String> = points
                .iter()
                .map(|(x, y)| format!("M{x:.1} {y:.1}{mark}"))
                .collect();
            marks.concat()
        };
        let bottom = FRAME.3;
        // Writing to a String cannot fail.
        let _ = match series.mark {
            Mark::Line => write!(svg, "<path class=\"line {tone}\" d=\"{}\"/>", line()),
            Mark::Dots => write!(
                svg,
                "<path class=\"line {tone}\" d=\"{}\"/><path class=\"dots {tone}\" d=\"{}\"/>",
                line(),
                each("h0")
            ),
            Mark::Area => write!(
                svg,
                "<path class=\"area {tone}\" d=\"{}L{:.1} {bottom}L{:.1} {bottom}Z\"/><path \
                 class=\"line {tone}\" d=\"{}\"/>",
                line(),
                last.0,
                first.0,
                line()
            ),
            Mark::Cloud => write!(svg, "<path class=\"cloud {tone}\" d=\"{}\"/>", each("h0")),
            Mark::Rug => {
                let ticks: Vec<String> = points
                    .iter()
                    .map(|(x, _)| format!("M{x:.1} {bottom}v-7"))
                    .collect();
                write!(svg, "<path class=\"rug {tone}\" d=\"{}\"/>", ticks.concat())
            }
        };
    }

    /// Names of the series beside their last points, apart from each other; those of clouds in the
    /// corner.
    fn names(&self, svg: &mut String, x: &Scale<'_>, y: &Scale<'_>) {
        let lines = |s: &&Series| !s.label.is_empty() && !matches!(s.mark, Mark::Cloud | Mark::Rug);
        let mut names: Vec<(f64, f64, &Series)> = Vec::new();
        for series in self.series.iter().filter(lines) {
            if let Some((a, b)) = series.points.last() {
                names.push((x.at(*a), y.at(*b), series));
            }
        }
        names.sort_by(|a, b| a.1.total_cmp(&b.1));
        let mut lowest = FRAME.1 - 12.0;
        for (at, height, series) in names {
            lowest = height.max(lowest + 12.0);
            let _ = write!(
                svg,
                "<text class=\"name {}\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                series.tone,
                at + 7.0,
                lowest + 3.5,
                escape(&series.label)
            );
        }
        let corner = |s: &&Series| {
            !s.label.is_empty() && !s.points.is_empty() && matches!(s.mark, Mark::Cloud | Mark::Rug)
        };
        for (row, series) in self.series.iter().filter(corner).enumerate() {
            let _ = write!(
                svg,
                "<text class=\"name {}\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
                series.tone,
                SIZE.0,
                14 + 13 * row,
                escape(&series.label)
            );
        }
    }
}

/// As text or attribute of XML.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests;
