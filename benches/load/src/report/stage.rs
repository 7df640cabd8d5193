//! Plots of what happened in one stage.

use super::overview::kv_axis;
use super::plot::{Axis, Mark, Plot, Series};
use crate::record::{CANCELLED, Class, Record};
use crate::summary::{Figures, Slo};

/// Columns that time is cut into, at most, and the seconds of one, at least.
const BINS_MAX: f64 = 120.0;
const BIN_SECONDS_MIN: f64 = 0.5;

/// Over time: tokens, requests at the server, first tokens, KV bits; and how latencies are
/// distributed.
pub(super) fn plots(figures: &Figures, records: &[&Record], slo: &Slo) -> Vec<Plot> {
    let stage = Stage { figures, records };
    let mut plots = vec![
        stage.tokens(),
        stage.in_flight(),
        stage.first_tokens(slo),
        stage.quantiles("Time to first token, by rank", slo.ttft_ms, |r| {
            r.ttft_us().into_iter().map(|us| us as f64 / 1e3).collect()
        }),
        stage.quantiles("Time between tokens, by rank", slo.itl_ms, |r| {
            let gaps = r.gaps_us();
            gaps.map(|(from, to, n)| (to - from) as f64 / 1e3 / f64::from(n))
                .collect()
        }),
    ];
    if records.iter().any(|r| r.mean_kv_bits.is_some()) {
        plots.push(stage.bits());
    }
    plots
}

struct Stage<'a> {
    figures: &'a Figures,
    records: &'a [&'a Record],
}

impl Stage<'_> {
    /// Seconds since the stage began.
    fn at(&self, us: u64) -> f64 {
        us as f64 / 1e6 - self.figures.begin_s
    }

    fn x(&self) -> Axis {
        Axis::linear("seconds since the stage began", 0.0, self.figures.seconds)
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

    fn bins(&self) -> usize {
        (self.figures.seconds / BIN_SECONDS_MIN).clamp(1.0, BINS_MAX) as usize
    }

    fn bin(&self, seconds: f64) -> usize {
        let bins = self.bins();
        ((seconds / self.figures.seconds * bins as f64).max(0.0) as usize).min(bins - 1)
    }

    /// The middle of each bin, and its value.
    fn over_bins(&self, values: &[f64]) -> Vec<(f64, f64)> {
        let width = self.figures.seconds / self.bins() as f64;
        let middles = values.iter().enumerate();
        middles
            .map(|(bin, value)| ((bin as f64 + 0.5) * width, *value))
            .collect()
    }

    fn tokens(&self) -> Plot {
        let mut tokens = vec![0.0; self.bins()];
        for (at, n) in self.records.iter().flat_map(|r| &r.arrivals_us) {
            tokens[self.bin(self.at(*at))] += f64::from(*n);
        }
        let width = self.figures.seconds / self.bins() as f64;
        let rates: Vec<f64> = tokens.iter().map(|n| n / width).collect();
        let series = Series {
            label: String::new(),
            mark: Mark::Area,
            tone: "a",
            points: self.over_bins(&rates),
        };
        self.plot(
            "Tokens received",
            Axis::from_zero("tokens/s", rates.into_iter()),
            vec![series],
        )
    }

    fn in_flight(&self) -> Plot {
        // Counted at the middle of each bin.
        let mut changes: Vec<(f64, f64)> = Vec::with_capacity(2 * self.records.len());
        for record in self.records {
            changes.push((self.at(record.sent_us), 1.0));
            changes.push((self.at(record.end_us), -1.0));
        }
        changes.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut counts = self.over_bins(&vec![0.0; self.bins()]);
        let (mut next, mut now) = (0, 0.0);
        for (at, count) in &mut counts {
            while let Some((_, change)) = changes.get(next).filter(|(when, _)| when <= at) {
                now += change;
                next += 1;
            }
            *count = now;
        }
        let y = Axis::from_zero("requests", counts.iter().map(|c| c.1).chain([4.0]));
        let series = Series {
            label: String::new(),
            mark: Mark::Area,
            tone: "a",
            points: counts,
        };
        self.plot("Requests at the server", y, vec![series])
    }

    fn first_tokens(&self, slo: &Slo) -> Plot {
        let steady = |r: &&&Record| r.class == Class::Steady;
        let ttft = |r: &&Record| Some((self.at(r.intended_us), r.ttft_us()? as f64 / 1e3));
        let series = |label: &str, mark, tone, points| Series {
            label: label.to_owned(),
            mark,
            tone,
            points,
        };
        let came: Vec<_> = self
            .records
            .iter()
            .filter(steady)
            .filter_map(ttft)
            .collect();
        let others = self.records.iter().filter(|r| !steady(r));
        let others: Vec<_> = others.filter_map(ttft).collect();
        let failed = self
            .records
            .iter()
            .filter(|r| !r.ok() && r.outcome != CANCELLED);
        let failed: Vec<_> = failed.map(|r| (self.at(r.intended_us), 0.0)).collect();
        let y = Axis::log(
            "milliseconds from the intended time",
            came.iter().chain(&others).map(|p| p.1).chain([slo.ttft_ms]),
        );
        let failures = format!("{} failed", failed.len());
        let plot = self.plot(
            "First tokens",
            y,
            vec![
                series(&failures, Mark::Rug, "d", failed),
                series("cancelling or slow clients", Mark::Cloud, "c", others),
                series("", Mark::Cloud, "a", came),
            ],
        );
        Plot {
            target: Some((slo.ttft_ms, format!("target {} ms", slo.ttft_ms))),
            ..plot
        }
    }

    /// Latency over the share of values above it, by factors of ten: the tail has as much room as
    /// the rest.
    fn quantiles(&self, title: &str, target: f64, of: impl Fn(&Record) -> Vec<f64>) -> Plot {
        let timed = self
            .records
            .iter()
            .filter(|r| r.ok() && r.class == Class::Steady);
        let mut values: Vec<f64> = timed.flat_map(|r| of(r)).collect();
        values.sort_by(f64::total_cmp);
        let count = values.len() as f64;
        // Nines: 0 for the median, 1 for the 90th percentile, 2 for the 99th.
        let nines = |share: f64| -(1.0 - share).log10() - 0.301;
        let mut points = Vec::new();
        let mut step = 0.0_f64;
        loop {
            let share = 1.0 - 10f64.powf(-step);
            let rank = (share * count) as usize;
            // Beyond the last value there is nothing to tell.
            if rank + 1 >= values.len() {
                break;
            }
            points.push((nines(share), values[rank]));
            step += 0.02;
        }
        let last = points.last().map_or(1.0, |p| p.0);
        let ticks = [
            (0.0, "0"),
            (0.5, "p50"),
            (0.9, "p90"),
            (0.99, "p99"),
            (0.999, "p99.9"),
            (0.9999, "p99.99"),
        ];
        let ticks = ticks.map(|(share, text)| (nines(share), text.to_owned()));
        let low = nines(0.0);
        let x = Axis {
            ticks: Some(
                ticks
                    .into_iter()
                    .filter(|t| t.0 <= last.max(0.75))
                    .collect(),
            ),
            ..Axis::linear("share of the values that are lower", low, last.max(0.75))
        };
        let y = Axis::log("milliseconds", points.iter().map(|p| p.1).chain([target]));
        Plot {
            x,
            target: Some((target, format!("target {target} ms"))),
            ..self.plot(
                title,
                y,
                vec![Series {
                    label: String::new(),
                    mark: Mark::Line,
                    tone: "a",
                    points,
                }],
            )
        }
    }

    fn bits(&self) -> Plot {
        let series = |label: &str, tone, of: fn(&Record) -> Option<f64>| Series {
            label: label.into(),
            mark: Mark::Cloud,
            tone,
            points: self
                .records
                .iter()
                .filter_map(|r| Some((self.at(r.end_us), of(r)?)))
                .collect(),
        };
        self.plot(
            "KV bits of each answer",
            kv_axis(),
            vec![
                series("lowest", "c", |r| r.lowest_kv_bits.map(f64::from)),
                series("mean", "a", |r| r.mean_kv_bits.map(f64::from)),
            ],
        )
    }
}
