//! From values to pixels, and the ticks beside them.

/// What an axis shows.
#[derive(Debug, Clone)]
pub(in crate::report) struct Axis {
    /// Quantity and unit.
    pub(in crate::report) label: String,
    /// Lowest and highest value.
    pub(in crate::report) range: (f64, f64),
    /// Whether equal distances are equal factors.
    pub(in crate::report) log: bool,
    /// Ticks in place of those that the range suggests.
    pub(in crate::report) ticks: Option<Vec<(f64, String)>>,
}

impl Axis {
    /// From 0 to the highest of `values`, or somewhat more.
    pub(in crate::report) fn from_zero(label: &str, values: impl Iterator<Item = f64>) -> Self {
        let most = values.filter(|v| v.is_finite()).fold(0.0, f64::max);
        let most = if most > 0.0 { most } else { 1.0 };
        let step = step(most / 4.0);
        Self {
            label: label.to_owned(),
            range: (0.0, (most / step).ceil() * step),
            log: false,
            ticks: None,
        }
    }

    /// From the lowest to the highest of the positive `values`, by factors; at least a decade.
    pub(in crate::report) fn log(label: &str, values: impl Iterator<Item = f64>) -> Self {
        let values = values.filter(|v| v.is_finite() && *v > 0.0);
        let (low, high) = values.fold((f64::MAX, 0.0_f64), |(low, high), v| {
            (low.min(v), high.max(v))
        });
        let (low, high) = if high > 0.0 { (low, high) } else { (1.0, 10.0) };
        let low = below(low);
        Self {
            label: label.to_owned(),
            range: (low, (high * 1.1).max(low * 10.0)),
            log: true,
            ticks: None,
        }
    }

    /// Exactly this range.
    pub(in crate::report) fn linear(label: &str, low: f64, high: f64) -> Self {
        Self {
            label: label.to_owned(),
            range: (low, if high > low { high } else { low + 1.0 }),
            log: false,
            ticks: None,
        }
    }

    pub(super) fn scale(&self, pixels: (f64, f64)) -> Scale<'_> {
        Scale { axis: self, pixels }
    }
}

/// An axis on its way across the plot.
#[derive(Debug, Clone, Copy)]
pub(in crate::report) struct Scale<'a> {
    axis: &'a Axis,
    pixels: (f64, f64),
}

impl Scale<'_> {
    /// The pixel of a value; values beyond the axis lie at its ends.
    pub(super) fn at(&self, value: f64) -> f64 {
        let (low, high) = self.axis.range;
        let share = if self.axis.log {
            (value.max(low) / low).ln() / (high / low).ln()
        } else {
            (value - low) / (high - low)
        };
        self.pixels.0 + share.clamp(0.0, 1.0) * (self.pixels.1 - self.pixels.0)
    }

    pub(super) fn holds(&self, value: f64) -> bool {
        (self.axis.range.0..=self.axis.range.1).contains(&value)
    }

    /// Values and their texts.
    pub(super) fn ticks(&self) -> Vec<(f64, String)> {
        if let Some(ticks) = &self.axis.ticks {
            return ticks.clone();
        }
        let (low, high) = self.axis.range;
        let mut ticks = Vec::new();
        if self.axis.log {
            let decades = (high / low).log10();
            let factors: &[f64] = match decades {
                d if d < 2.0 => &[1.0, 2.0, 5.0],
                _ => &[1.0],
            };
            let mut power = 10f64.powf(low.log10().floor());
            while power <= high {
                ticks.extend(factors.iter().map(|f| f * power));
                power *= 10.0;
            }
        } else {
            let step = step((high - low) / 5.0);
            let mut at = (low / step).ceil();
            while at * step <= high + step * 1e-6 {
                ticks.push(at * step);
                at += 1.0;
            }
        }
        ticks.retain(|v| *v >= low * 0.999_999 && *v <= high * 1.000_001);
        ticks.into_iter().map(|v| (v, text(v))).collect()
    }
}

/// The least of 1, 2 or 5 times a power of ten that is not below `rough`.
fn step(rough: f64) -> f64 {
    let power = 10f64.powf(rough.log10().floor());
    let factor = [1.0, 2.0, 5.0]
        .into_iter()
        .find(|f| f * power >= rough * 0.999_999);
    factor.unwrap_or(10.0) * power
}

/// The greatest of 1, 2 or 5 times a power of ten that is not above `value`.
fn below(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    let factor = [5.0, 2.0].into_iter().find(|f| f * power <= value);
    factor.unwrap_or(1.0) * power
}

/// With a narrow space between thousands, and no more digits than it takes.
fn text(value: f64) -> String {
    let mut text = format!("{value:.3}");
    text.truncate(text.trim_end_matches('0').trim_end_matches('.').len());
    let digits = text.find('.').unwrap_or(text.len());
    if digits > 4 {
        for at in (1..digits).rev().filter(|at| (digits - at) % 3 == 0) {
            text.insert(at, '\u{202f}');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(axis: &Axis) -> Vec<String> {
        axis.scale((0.0, 100.0))
            .ticks()
            .into_iter()
            .map(|t| t.1)
            .collect()
    }

    #[test]
    fn ticks_are_round_and_cover_the_values() {
        assert_eq!(
            ticks(&Axis::from_zero("", [37.0].into_iter())),
            ["0", "10", "20", "30", "40"]
        );
        assert_eq!(
            ticks(&Axis::from_zero("", [0.7].into_iter())),
            ["0", "0.2", "0.4", "0.6", "0.8"]
        );
        assert_eq!(ticks(&Axis::from_zero("", std::iter::empty()))[0], "0");
        let big = Axis::from_zero("", [81_000.0].into_iter());
        assert_eq!(ticks(&big).last().unwrap(), "100\u{202f}000");
        assert_eq!(
            ticks(&Axis::log("", [3.0, 4200.0].into_iter())),
            ["10", "100", "1000"]
        );
        assert_eq!(
            ticks(&Axis::log("", [30.0, 70.0].into_iter())),
            ["20", "50", "100", "200"]
        );
    }

    #[test]
    fn values_go_where_they_belong() {
        let linear = Axis::linear("", 10.0, 20.0);
        assert_eq!(linear.scale((0.0, 100.0)).at(15.0), 50.0);
        assert_eq!(linear.scale((100.0, 0.0)).at(99.0), 0.0);
        let log = Axis::log("", [1.0, 100.0 / 1.1].into_iter());
        assert!((log.scale((0.0, 100.0)).at(10.0) - 50.0).abs() < 1e-9);
        assert_eq!(log.scale((0.0, 100.0)).at(0.0), 0.0);
    }
}
