//! The figures that are compared.

use crate::summary::{Figures, Quantiles};

/// Which way is up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Better {
    More,
    Less,
}

/// A figure that a stage may lack.
pub(super) struct Metric {
    pub(super) name: &'static str,
    pub(super) better: Better,
    pub(super) of: fn(&Figures) -> Option<f64>,
}

const fn more(name: &'static str, of: fn(&Figures) -> Option<f64>) -> Metric {
    let better = Better::More;
    Metric { name, better, of }
}

const fn less(name: &'static str, of: fn(&Figures) -> Option<f64>) -> Metric {
    let better = Better::Less;
    Metric { name, better, of }
}

fn p50(q: Option<Quantiles>) -> Option<f64> {
    q.map(|q| q.p50)
}

fn p99(q: Option<Quantiles>) -> Option<f64> {
    q.map(|q| q.p99)
}

pub(super) const METRICS: [Metric; 17] = [
    more("requests/s", |f| Some(f.requests_per_second)),
    more("input tokens/s", |f| Some(f.input_tokens_per_second)),
    more("output tokens/s", |f| Some(f.output_tokens_per_second)),
    more("goodput, requests/s", |f| Some(f.goodput)),
    more("goodput, tokens/s", |f| Some(f.good_tokens_per_second)),
    less("failed, share", |f| Some(f.failed_share)),
    less("TTFT p50, ms", |f| p50(f.ttft_ms)),
    less("TTFT p99, ms", |f| p99(f.ttft_ms)),
    less("ITL p50, ms", |f| p50(f.itl_ms)),
    less("ITL p99, ms", |f| p99(f.itl_ms)),
    less("ITL p99 while others prefill, ms", |f| {
        p99(f.itl_during_prefill_ms)
    }),
    less("TPOT p50, ms", |f| p50(f.tpot_ms)),
    less("TPOT p99, ms", |f| p99(f.tpot_ms)),
    less("E2E p50, ms", |f| p50(f.e2e_ms)),
    less("E2E p99, ms", |f| p99(f.e2e_ms)),
    more("KV bits, mean", |f| f.mean_kv_bits),
    more("KV bits, lowest", |f| f.lowest_kv_bits.map(f64::from)),
];
