//! Plots of all stages beside each other.

use super::plot::{Axis, Mark, Plot, Series};
use crate::summary::{Figures, Quantiles, Slo};

/// A figure that a stage may lack.
type Of = fn(&Figures) -> Option<f64>;

/// Figures over load; nothing where loads do not rise.
pub(super) fn plots(stages: &[Figures], slo: &Slo, load: &str) -> Vec<Plot> {
    let rising = stages.windows(2).all(|pair| pair[0].load < pair[1].load);
    if stages.len() < 2 || !rising {
        return Vec::new();
    }
    let over = Over { stages, load };
    vec![
        over.counts(
            "Output",
            "tokens/s",
            &[
                ("received", "c", |f| Some(f.output_tokens_per_second)),
                ("in target", "a", |f| Some(f.good_tokens_per_second)),
            ],
        ),
        over.counts(
            "Requests",
            "requests/s",
            &[
                ("answered", "c", |f| Some(f.requests_per_second)),
                ("in target", "a", |f| Some(f.goodput)),
            ],
        ),
        over.latencies("Time to first token", |f| f.ttft_ms, Some(slo.ttft_ms)),
        over.latencies("Time between tokens", |f| f.itl_ms, Some(slo.itl_ms)),
        over.latencies("Time to the end", |f| f.e2e_ms, None),
        over.bits(),
    ]
}

struct Over<'a> {
    stages: &'a [Figures],
    load: &'a str,
}

impl Over<'_> {
    fn x(&self) -> Axis {
        let loads = || self.stages.iter().map(|f| f.load);
        let (first, last) = (
            loads().fold(f64::MAX, f64::min),
            loads().fold(0.0, f64::max),
        );
        let mut axis = Axis::linear(self.load, 0.0, last);
        if first > 0.0 && last > 12.0 * first {
            axis.range = (first / 1.1, last * 1.1);
            axis.log = true;
        }
        axis
    }

    fn series(
        &self,
        label: &str,
        tone: &'static str,
        of: impl Fn(&Figures) -> Option<f64>,
    ) -> Series {
        Series {
            label: label.into(),
            mark: Mark::Dots,
            tone,
            points: self
                .stages
                .iter()
                .filter_map(|f| Some((f.load, of(f)?)))
                .collect(),
        }
    }

    fn plot(&self, title: &str, y: Axis, series: Vec<Series>) -> Plot {
        Plot {
            title: title.into(),
            x: self.x(),
            y,
            series,
            target: None,
        }
    }

    fn counts(&self, title: &str, unit: &str, of: &[(&str, &'static str, Of)]) -> Plot {
        let series: Vec<Series> = of
            .iter()
            .map(|(label, tone, of)| self.series(label, tone, of))
            .collect();
        self.plot(title, Axis::from_zero(unit, values(&series)), series)
    }

    fn latencies(
        &self,
        title: &str,
        of: fn(&Figures) -> Option<Quantiles>,
        target: Option<f64>,
    ) -> Plot {
        let series = vec![
            self.series("p99", "c", |f| Some(of(f)?.p99)),
            self.series("p90", "b", |f| Some(of(f)?.p90)),
            self.series("p50", "a", |f| Some(of(f)?.p50)),
        ];
        let y = Axis::log("milliseconds", values(&series).chain(target));
        Plot {
            target: target.map(|ms| (ms, format!("target {ms} ms"))),
            ..self.plot(title, y, series)
        }
    }

    fn bits(&self) -> Plot {
        let series = vec![
            self.series("mean", "a", |f| f.mean_kv_bits),
            self.series("lowest", "c", |f| f.lowest_kv_bits.map(f64::from)),
        ];
        self.plot(
            "KV cache that answers were computed from",
            kv_axis(),
            series,
        )
    }
}

fn values(series: &[Series]) -> impl Iterator<Item = f64> {
    series.iter().flat_map(|s| s.points.iter().map(|p| p.1))
}

/// From 0 to 16 bits.
pub(super) fn kv_axis() -> Axis {
    let ticks = [2, 4, 8, 16].map(|bits| (f64::from(bits), bits.to_string()));
    Axis {
        ticks: Some(ticks.to_vec()),
        ..Axis::linear("bits", 0.0, 17.0)
    }
}
