//! A layer of experts with the norms around it against its definition, in f64.

use std::sync::Arc;

use half::bf16;

use super::{LIMIT, Layer, Started};
use crate::cuda::driver::{Device, DeviceBuffer};
use crate::cuda::experts::{ExpertNorms, ExpertsIo, NormBefore};
use crate::cuda::ops::{Delta, NormForm, NormWeights};
use crate::cuda::probe::ProbeError;
use crate::cuda::selftest::reference::relative_error;
use crate::cuda::selftest::rng::Rng;
use crate::cuda::selftest::table::Report;
use crate::model::{ExpertsSpec, ModelSpec, NormKind, Norms, Routing, SharedExpert};

/// Hidden sizes: one for each kernel of norms, the last of a kernel without the norm before.
const HIDDEN: [usize; 5] = [72, 2048, 2880, 4112, 8200];

/// A norm's weights and, of LayerNorm, its bias.
struct Norm {
    weight: Vec<bf16>,
    bias: Option<Vec<bf16>>,
}

impl Norm {
    fn new(hidden: usize, spec: &ModelSpec, rng: &mut Rng) -> Self {
        let bias = (spec.norms.kind == NormKind::Layer).then(|| rng.values(hidden, 1.0));
        let weight = rng.values(hidden, 1.0);
        Self { weight, bias }
    }

    fn of(&self, spec: &ModelSpec, x: &[f64]) -> Vec<f64> {
        let mean_of = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / x.len() as f64;
        let mean = match spec.norms.kind {
            NormKind::Layer => mean_of(&mut x.iter().copied()),
            NormKind::Rms => 0.0,
        };
        let square = mean_of(&mut x.iter().map(|x| (x - mean).powi(2)));
        let inverse = 1.0 / (square + f64::from(spec.norm_eps)).sqrt();
        let from = if spec.norms.from_one { 1.0 } else { 0.0 };
        let value = |at: usize| {
            let bias = self.bias.as_ref().map_or(0.0, |bias| bias[at].to_f64());
            (x[at] - mean) * inverse * (from + self.weight[at].to_f64()) + bias
        };
        (0..x.len()).map(value).collect()
    }
}

/// What is checked of a layer.
struct Case<'a> {
    layer: &'a Layer,
    model: ModelSpec,
    /// Whether the norm before is joined.
    before: bool,
}

pub(super) fn check(
    device: &Arc<Device>,
    quick: bool,
    report: &mut Report,
) -> Result<(), ProbeError> {
    let mut rng = Rng(37);
    let hidden = if quick { &HIDDEN[..2] } else { &HIDDEN[..] };
    for (index, &hidden) in hidden.iter().enumerate() {
        // More choices than are added up at once.
        let mut spec = ExpertsSpec::plain(12, 9, 16, Routing::SOFTMAX_OF_CHOSEN);
        for before in [true, false] {
            if !before {
                spec.shared = Some(SharedExpert {
                    intermediate: 8,
                    gated: true,
                });
            }
            let layer = Layer::new(spec.clone(), hidden, &mut rng);
            let mut model = crate::cuda::selftest::model::spec(64, 1, 1, false);
            model.hidden = hidden;
            model.residual_multiplier = 0.5;
            model.norms = Norms {
                kind: [NormKind::Rms, NormKind::Layer][index % 2],
                from_one: index % 2 == 0,
                bias: index % 2 == 1,
            };
            let case = Case {
                layer: &layer,
                model,
                before,
            };
            for rows in [1, 4, 9] {
                case.check(device, rows, &mut rng, report)?;
            }
        }
    }
    Ok(())
}

impl Case<'_> {
    fn check(
        &self,
        device: &Arc<Device>,
        rows: usize,
        rng: &mut Rng,
        report: &mut Report,
    ) -> Result<(), ProbeError> {
        let (layer, hidden) = (self.layer, self.layer.hidden);
        let mut started = Started::new(device, layer, rows)?;
        let shape = crate::cuda::experts::Experts::router_shape(&layer.spec, hidden, rows);
        started.products.prepare(shape)?;
        let before = self.before && started.experts.joins_norm_before(rows);
        let norms = [(); 2].map(|()| Norm::new(hidden, &self.model, rng));
        let residual: Vec<f32> = rng
            .values(rows * hidden, 2.0)
            .iter()
            .map(|x| x.to_f32())
            .collect();
        let [x, delta, shared] = [(); 3].map(|()| rng.values(rows * hidden, 1.0));
        let delta_bias = rng.values(hidden, 1.0);

        let wide = |values: &[f32]| DeviceBuffer::from_slice(device, values, "a test");
        let narrow = |values: &[bf16]| DeviceBuffer::from_slice(device, values, "a test");
        let of_norm = |norm: &Norm| -> Result<_, ProbeError> {
            let bias = norm.bias.as_ref().map(|bias| narrow(bias)).transpose()?;
            Ok((narrow(&norm.weight)?, bias))
        };
        let [first, second] = [of_norm(&norms[0])?, of_norm(&norms[1])?];
        let weights = |(weight, bias): &(DeviceBuffer<bf16>, Option<DeviceBuffer<bf16>>)| {
            let bias = bias.as_ref().map_or(0, |bias| bias.ptr());
            let weight = weight.ptr();
            NormWeights { weight, bias }
        };
        let on_device = (wide(&residual)?, narrow(&x)?, narrow(&delta)?);
        let (device_residual, normed, device_delta) = &on_device;
        let (mut out, bias) = (narrow(&shared)?, narrow(&delta_bias)?);
        let io = ExpertsIo {
            rows,
            x: normed,
            router: normed,
            out: (!self.before).then_some(&mut out),
            norms: Some(ExpertNorms {
                before: before.then(|| NormBefore {
                    delta: Some(Delta {
                        values: device_delta,
                        bias: bias.ptr(),
                    }),
                    weights: weights(&first),
                }),
                after: weights(&second),
                form: NormForm::of(&self.model),
                residual: device_residual,
                normed,
            }),
        };
        let Started {
            stream,
            products,
            experts,
            weights,
        } = &mut started;
        experts.run(stream, products, &layer.spec, weights, io)?;
        stream.synchronize()?;
        let (mut got_residual, mut got) = (residual.clone(), x.clone());
        device_residual.read(0, &mut got_residual)?;
        normed.read(0, &mut got)?;

        let scale = f64::from(self.model.residual_multiplier);
        let mut worst: f64 = 0.0;
        for row in 0..rows {
            let at = row * hidden..(row + 1) * hidden;
            let mut stream: Vec<f64> = residual[at.clone()].iter().map(|x| f64::from(*x)).collect();
            let mut read = x[at.clone()].to_vec();
            if before {
                for (at, value) in stream.iter_mut().enumerate() {
                    let delta = delta[row * hidden + at].to_f64() + delta_bias[at].to_f64();
                    *value += scale * delta;
                }
                let values = norms[0].of(&self.model, &stream).into_iter();
                read = values.map(bf16::from_f64).collect();
            }
            let put_out = layer.row(&read, &shared[at.clone()]);
            for (value, put_out) in stream.iter_mut().zip(put_out) {
                *value += scale * put_out;
            }
            let of_row = got_residual[at.clone()].iter().map(|x| f64::from(*x));
            worst = worst.max(relative_error(of_row, &stream));
            let want = norms[1].of(&self.model, &stream);
            let of_row = got[at].iter().map(|x| x.to_f64());
            worst = worst.max(relative_error(of_row, &want));
        }
        let around = match (self.before, before) {
            (true, true) => "before and after",
            (true, false) => "after",
            (false, _) => "after, a shared one",
        };
        let name = format!("experts: norms {around}, {hidden} channels, {rows} rows");
        report.check(&name, worst, LIMIT);
        Ok(())
    }
}
