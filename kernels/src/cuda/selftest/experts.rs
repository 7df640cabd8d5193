//! A layer of experts against its definition, in f64.

mod many;
mod norms;

use std::sync::Arc;

use half::bf16;

use super::Rng;
use super::reference::relative_error;
use super::table::Report;
use crate::cuda::driver::{Device, DeviceBuffer, Stream};
use crate::cuda::error::CudaError;
use crate::cuda::experts::{ExpertWeights, Experts, ExpertsIo};
use crate::cuda::linear::Weight;
use crate::cuda::packed::DeviceFormat;
use crate::cuda::probe::ProbeError;
use crate::cuda::products::Products;
use crate::cuda::weights::pack_experts;
use crate::model::routing::{Choice, OfExperts, route};
use crate::model::{
    ExpertActivation, ExpertGroups, ExpertsSpec, Mlp, RouterNorm, RouterScores, Routing,
    SharedExpert,
};
use crate::weight_formats::PackedTensor;

/// Gates, outputs and their sum, each rounded to bf16.
const LIMIT: f64 = 3.0 / 256.0;

/// Rows of a step: one, few, more than a tile has of an expert, and more.
const ROWS: [usize; 5] = [1, 3, 16, 64, 300];

/// A layer, as the host has it.
struct Layer {
    spec: ExpertsSpec,
    hidden: usize,
    /// Router, its bias and its correction.
    router: [Vec<bf16>; 3],
    scales: Vec<bf16>,
    score: Vec<bf16>,
    /// Gate, up and down, and their biases.
    matrices: [Vec<bf16>; 3],
    biases: [Vec<bf16>; 3],
    /// What `matrices` are rounded from, if they are packed: each expert's gate and up, and down.
    packed: Option<[Vec<PackedTensor>; 2]>,
}

impl Layer {
    fn new(spec: ExpertsSpec, hidden: usize, rng: &mut Rng) -> Self {
        let (experts, inner) = (spec.experts, spec.intermediate);
        let mut matrix = |rows: usize, inputs: usize| {
            rng.values(experts * rows * inputs, (3.0 / inputs as f32).sqrt())
        };
        let matrices = [
            matrix(inner, hidden),
            matrix(inner, hidden),
            matrix(hidden, inner),
        ];
        let router = matrix(1, hidden);
        let mut vector = |len: usize| rng.values(len, 0.5);
        Self {
            router: [router, vector(experts), vector(2 * experts)],
            score: vector(hidden),
            scales: vector(experts),
            biases: [
                vector(experts * inner),
                vector(experts * inner),
                vector(experts * hidden),
            ],
            spec,
            hidden,
            matrices,
            packed: None,
        }
    }

    fn upload(&self, device: &Arc<Device>) -> Result<ExpertWeights, CudaError> {
        let buffer = |values: &[bf16]| DeviceBuffer::from_slice(device, values, "a test");
        let maybe = |values: &[bf16], is_there: bool| is_there.then(|| buffer(values)).transpose();
        let (spec, [gate, up, down]) = (&self.spec, &self.matrices);
        let [gate_bias, up_bias, down_bias] = &self.biases;
        let [router, router_bias, correction] = &self.router;
        let packed = |which: usize, gated| match &self.packed {
            Some(tensors) => {
                let part = pack_experts(device, &tensors[which], spec.experts, gated)?;
                let missing = || CudaError::Unsupported("a format without kernels".to_owned());
                Ok(Some(Weight::Packed(vec![part.ok_or_else(missing)?])))
            }
            None => Ok::<_, CudaError>(None),
        };
        let gated = spec.activation.is_gated();
        // Without gates all is of what they would open.
        let both = |gate: &[bf16], up: &[bf16]| match gated {
            true => [gate, up].concat(),
            false => up.to_vec(),
        };
        let gate_up = match packed(0, gated)? {
            Some(packed) => packed,
            None => Weight::Plain(buffer(&both(gate, up))?),
        };
        let down = match packed(1, false)? {
            Some(packed) => packed,
            None => Weight::Plain(buffer(down)?),
        };
        Ok(ExpertWeights {
            gated,
            router: buffer(router)?,
            router_bias: maybe(router_bias, spec.router_bias)?,
            correction: maybe(correction, spec.routing.correction)?,
            scales: maybe(&self.scales, spec.weight_scales)?,
            score: maybe(&self.score, spec.shared.is_some_and(|shared| shared.gated))?,
            gate_up,
            gate_up_bias: maybe(&both(gate_bias, up_bias), spec.biases)?,
            down,
            down_bias: maybe(down_bias, spec.biases)?,
        })
    }

    /// What becomes of a row, `shared` being what the shared expert has put out.
    fn row(&self, x: &[bf16], shared: &[bf16]) -> Vec<f64> {
        let (spec, hidden, inner) = (&self.spec, self.hidden, self.spec.intermediate);
        let dot =
            |a: &[bf16], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| a.to_f64() * b).sum() };
        let x: Vec<f64> = x.iter().map(|x| x.to_f64()).collect();
        let [router, router_bias, correction] = &self.router;
        let scores = router.chunks_exact(hidden).zip(router_bias);
        let bias = |bias: &bf16| if spec.router_bias { bias.to_f64() } else { 0.0 };
        let multiplier = spec
            .router_norm
            .map_or(1.0, |norm| f64::from(norm.multiplier));
        let scores = scores.map(|(row, own)| (dot(row, &x) * multiplier + bias(own)) as f32);
        let mut scores: Vec<f32> = scores.collect();
        let (rounded, rest) = correction.split_at(spec.experts);
        let correction = rounded.iter().zip(rest);
        let correction: Vec<f32> = correction.map(|(a, b)| a.to_f32() + b.to_f32()).collect();
        let correction = spec.routing.correction.then_some(&correction[..]);
        let scales: Vec<f32> = self.scales.iter().map(|scale| scale.to_f32()).collect();
        let of_experts = OfExperts {
            correction,
            scales: spec.weight_scales.then_some(&scales[..]),
        };
        let mut chosen = vec![Choice::default(); spec.per_token];
        route(spec, &mut scores, of_experts, &mut chosen);
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let mut out = vec![0.0; hidden];
        if let Some(of) = spec.shared.filter(|_| spec.adds_to_shared()) {
            let share = if of.gated {
                sigmoid(dot(&self.score, &x))
            } else {
                1.0
            };
            let values = shared.iter().map(|value| value.to_f64() * share);
            out = values.collect();
        }
        let [gate, up, down] = &self.matrices;
        let of_bias = |which: usize, at: usize| match spec.biases {
            true => self.biases[which][at].to_f64(),
            false => 0.0,
        };
        for Choice { expert, weight } in chosen {
            // What an expert reads is rounded, too.
            let weighted = |x: &f64| bf16::from_f32(*x as f32 * weight).to_f64();
            let (x, weight) = match spec.weighted_input {
                true => (x.iter().map(weighted).collect(), 1.0),
                false => (x.clone(), weight),
            };
            let first = expert as usize * inner;
            let act: Vec<f64> = (first..first + inner)
                .map(|at| {
                    let row = |matrix: &[bf16]| dot(&matrix[at * hidden..][..hidden], &x);
                    let up = row(up) + of_bias(1, at);
                    let gate = match spec.activation.is_gated() {
                        true => row(gate) + of_bias(0, at),
                        false => 0.0,
                    };
                    match spec.activation {
                        ExpertActivation::SwiGlu => gate * sigmoid(gate) * up,
                        ExpertActivation::Relu2 => up.max(0.0).powi(2),
                        ExpertActivation::GeGlu => {
                            let root = (8.0 / std::f64::consts::PI).sqrt();
                            gate * sigmoid(root * (gate + 0.044715 * gate.powi(3))) * up
                        }
                        ExpertActivation::Clamped { limit, alpha } => {
                            let limit = f64::from(limit);
                            let (gate, up) = (gate.min(limit), up.clamp(-limit, limit));
                            (up + 1.0) * gate * sigmoid(f64::from(alpha) * gate)
                        }
                    }
                })
                .collect();
            for (o, out) in out.iter_mut().enumerate() {
                let at = expert as usize * hidden + o;
                let sum = dot(&down[at * inner..][..inner], &act) + of_bias(2, at);
                *out += f64::from(weight) * sum;
            }
        }
        out
    }
}

/// A layer on the device.
struct Started {
    stream: Stream,
    products: Products,
    experts: Experts,
    weights: ExpertWeights,
}

impl Started {
    fn new(device: &Arc<Device>, layer: &Layer, rows: usize) -> Result<Self, ProbeError> {
        let mut model = super::model::spec(64, 1, 1, false);
        model.hidden = layer.hidden;
        for of_model in &mut model.layers {
            of_model.mlp = Mlp::Experts(layer.spec.clone());
        }
        let weights = layer.upload(device)?;
        let formats = [&weights.gate_up, &weights.down].map(format_of).into_iter();
        let experts = Experts::new(device, &model, rows, formats)?;
        let missing = || CudaError::Unsupported("a model without experts".to_owned());
        Ok(Self {
            stream: Stream::new(device)?,
            // A router's scores must not depend on how many rows there are.
            products: Products::new(device, true)?,
            experts: experts.ok_or_else(missing)?,
            weights,
        })
    }

    /// What becomes of rows.
    fn run(
        &mut self,
        device: &Arc<Device>,
        layer: &Layer,
        x: &[bf16],
        shared: &[bf16],
    ) -> Result<Vec<bf16>, ProbeError> {
        let rows = x.len() / layer.hidden;
        let shape = Experts::router_shape(&layer.spec, layer.hidden, rows);
        self.products.prepare(shape)?;
        let x = DeviceBuffer::from_slice(device, x, "a test")?;
        let mut out = DeviceBuffer::from_slice(device, shared, "a test")?;
        let io = ExpertsIo {
            rows,
            x: &x,
            router: &x,
            out: Some(&mut out),
            norms: None,
        };
        let Self {
            stream,
            products,
            experts,
            weights,
        } = self;
        experts.run(stream, products, &layer.spec, weights, io)?;
        stream.synchronize()?;
        let mut values = vec![bf16::ZERO; shared.len()];
        out.read(0, &mut values)?;
        Ok(values)
    }
}

fn format_of(weight: &Weight) -> Option<DeviceFormat> {
    weight.parts().first().map(|part| part.format)
}

fn specs() -> Vec<(&'static str, ExpertsSpec)> {
    let plain = ExpertsSpec::plain(12, 3, 40, Routing::SOFTMAX_OF_CHOSEN);
    let shared = |gated| {
        Some(SharedExpert {
            intermediate: 8,
            gated,
        })
    };
    let grouped = Routing {
        scores: RouterScores::Sigmoid,
        correction: true,
        groups: Some(ExpertGroups {
            groups: 4,
            chosen: 2,
        }),
        renormalised: true,
        scale: 2.5,
    };
    let sigmoid = Routing {
        scores: RouterScores::Sigmoid,
        renormalised: false,
        ..Routing::SOFTMAX_OF_CHOSEN
    };
    let of_all = Routing {
        renormalised: false,
        ..Routing::SOFTMAX_OF_CHOSEN
    };
    let corrected = Routing {
        correction: true,
        ..Routing::SOFTMAX_OF_CHOSEN
    };
    let mixer = Routing {
        scores: RouterScores::SparseMixer { jitter: 0.1 },
        ..Routing::SOFTMAX_OF_CHOSEN
    };
    vec![
        ("softmax of those chosen", plain.clone()),
        (
            "softmax of all, a shared one with a gate",
            ExpertsSpec {
                routing: of_all,
                shared: shared(true),
                ..plain.clone()
            },
        ),
        (
            "groups and a correction, a shared one",
            ExpertsSpec {
                routing: grouped,
                shared: shared(false),
                ..plain.clone()
            },
        ),
        (
            "a softmax with a correction",
            ExpertsSpec {
                routing: corrected,
                ..plain.clone()
            },
        ),
        (
            "biases and clamped gates",
            ExpertsSpec {
                router_bias: true,
                biases: true,
                activation: ExpertActivation::Clamped {
                    limit: 0.7,
                    alpha: 1.702,
                },
                ..plain.clone()
            },
        ),
        (
            "no gates, with biases, beside a shared one",
            ExpertsSpec {
                biases: true,
                activation: ExpertActivation::Relu2,
                shared: shared(false),
                ..plain.clone()
            },
        ),
        (
            "of 128, 8 chosen, softmax of all",
            ExpertsSpec::plain(128, 8, 8, of_all),
        ),
        (
            "of 60, sigmoids with a correction",
            ExpertsSpec::plain(
                60,
                4,
                8,
                Routing {
                    correction: true,
                    renormalised: true,
                    ..sigmoid
                },
            ),
        ),
        (
            "of 300, 10 chosen",
            ExpertsSpec::plain(300, 10, 8, Routing::SOFTMAX_OF_CHOSEN),
        ),
        (
            "of 320 in 40 groups",
            ExpertsSpec::plain(
                320,
                3,
                8,
                Routing {
                    groups: Some(ExpertGroups {
                        groups: 40,
                        chosen: 5,
                    }),
                    ..grouped
                },
            ),
        ),
        (
            "a sparse mixer",
            ExpertsSpec {
                per_token: 2,
                routing: mixer,
                ..plain.clone()
            },
        ),
        (
            "weighted inputs, sigmoids of capped scores, beside a shared one",
            ExpertsSpec {
                routing: sigmoid,
                shared: shared(false),
                biases: true,
                router_cap: Some(1.5),
                weighted_input: true,
                ..plain.clone()
            },
        ),
        (
            "GELU, scaled weights of a router with a norm, beside a shared one",
            ExpertsSpec {
                activation: ExpertActivation::GeGlu,
                shared: shared(false),
                router_norm: Some(RouterNorm { multiplier: 0.3 }),
                weight_scales: true,
                branch_norms: true,
                ..plain
            },
        ),
    ]
}

/// Compares rows with their definition, and with themselves alone.
pub(super) fn check(
    device: &Arc<Device>,
    quick: bool,
    report: &mut Report,
) -> Result<(), ProbeError> {
    let mut rng = Rng(36);
    for (what, spec) in specs() {
        let hidden = 72;
        let mut layer = Layer::new(spec, hidden, &mut rng);
        for crowded in [false, true] {
            if crowded {
                // All rows go to the second expert, and to the last none.
                layer.spec.router_bias = true;
                layer.router[1][1] = bf16::from_f32(50.0);
                layer.router[1][layer.spec.experts - 1] = bf16::from_f32(-50.0);
            }
            let counts = if quick { &ROWS[..3] } else { &ROWS[..] };
            let mut started = Started::new(device, &layer, counts[counts.len() - 1])?;
            for &rows in counts {
                let x = rng.values(rows * hidden, 1.0);
                let shared = rng.values(rows * hidden, 1.0);
                let got = started.run(device, &layer, &x, &shared)?;
                let row = |values: &[bf16], row: usize| values[row * hidden..][..hidden].to_vec();
                let mut worst: f64 = 0.0;
                for index in 0..rows {
                    let want = layer.row(&row(&x, index), &row(&shared, index));
                    let of_row = row(&got, index);
                    let of_row = of_row.iter().map(|value| value.to_f64());
                    worst = worst.max(relative_error(of_row, &want));
                }
                let where_to = if crowded { ", all to one" } else { "" };
                let name = format!("experts: {what}, {rows} rows{where_to}");
                report.check(&name, worst, LIMIT);
                let index = rng.below(rows);
                let (x, shared) = (row(&x, index), row(&shared, index));
                let alone = started.run(device, &layer, &x, &shared)?;
                let is_same = alone == row(&got, index);
                let apart = if is_same { 0.0 } else { f64::INFINITY };
                report.check(&format!("{name}: a row alone"), apart, 0.0);
            }
        }
    }
    norms::check(device, quick, report)?;
    many::check(device, quick, report)
}

#[cfg(all(test, feature = "cuda-emulator"))]
mod tests {
    use super::*;

    /// Work that a layer enqueues for a step beside its router's product.
    fn enqueued(device: &Arc<Device>, layer: &Layer, rows: usize) -> Result<usize, ProbeError> {
        let hidden = layer.hidden;
        let mut started = Started::new(device, layer, rows)?;
        let shape = Experts::router_shape(&layer.spec, hidden, rows);
        started.products.prepare(shape)?;
        let x = DeviceBuffer::from_slice(device, &vec![bf16::ONE; rows * hidden], "a test")?;
        let mut out = DeviceBuffer::from_slice(device, &vec![bf16::ONE; rows * hidden], "a test")?;
        let scores = DeviceBuffer::<f32>::filled(device, rows * layer.spec.experts, 0, "a test")?;
        let Started {
            stream,
            products,
            experts,
            weights,
        } = &mut started;
        let io = ExpertsIo {
            rows,
            x: &x,
            router: &x,
            out: Some(&mut out),
            norms: None,
        };
        let all = stream.capture(|| experts.run(stream, products, &layer.spec, weights, io))?;
        let router = weights.router.ptr();
        // SAFETY: nothing recorded runs.
        let product = stream
            .capture(|| unsafe { products.run(stream, shape, x.ptr(), router, scores.ptr()) })?;
        Ok(all.len() - product.len())
    }

    #[test]
    fn a_step_is_routed_and_sorted_once() {
        let device = Device::open(0).unwrap();
        let (_, spec) = specs().swap_remove(0);
        let few = Layer::new(spec.clone(), 64, &mut Rng(1));
        let many_experts = ExpertsSpec {
            experts: 300,
            ..spec
        };
        let many = Layer::new(many_experts, 64, &mut Rng(1));
        // Routing and sorting, in one launch or two, both products and their sum.
        for (layer, rows, want) in [(&few, 1, 4), (&few, 32, 4), (&few, 33, 5), (&many, 1, 5)] {
            assert_eq!(enqueued(&device, layer, rows).unwrap(), want, "{rows} rows");
        }
    }
}
