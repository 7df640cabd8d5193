//! The loss: final norm, output projection, cross entropy.

use candle_core::{Device, Result, Tensor, Var};
use ebb_kernels::model::ModelSpec;

use crate::layer::{gradient, vector};
use crate::ops::{Frozen, rms_norm};

/// Rows whose logits are computed at once.
const ROWS: usize = 128;

/// What follows the last layer.
pub(crate) struct Head {
    norm: Tensor,
    projection: Frozen,
    eps: f32,
}

impl Head {
    pub(crate) fn new(model: &ModelSpec, norm: Vec<f32>, projection: Vec<f32>) -> Result<Self> {
        Ok(Self {
            norm: vector(norm)?,
            projection: Frozen::new(projection, model.hidden)?,
            eps: model.norm_eps,
        })
    }

    /// `[rows][vocab]`.
    pub(crate) fn logits(&self, x: &Tensor) -> Result<Tensor> {
        self.projection.of(&rms_norm(x, &self.norm, self.eps)?)
    }

    /// Mean cross entropy of each token given those before it, in nats, and its gradient with
    /// respect to `x`, `[tokens][hidden]`. The last row predicts nothing and gets none.
    pub(crate) fn loss(&self, x: &Tensor, tokens: &[u32]) -> Result<(f64, Tensor)> {
        let scored = tokens.len() - 1;
        let mut sum = 0.0;
        let mut parts = Vec::new();
        for first in (0..scored).step_by(ROWS) {
            let rows = ROWS.min(scored - first);
            let part = Var::from_tensor(&x.narrow(0, first, rows)?.contiguous()?)?;
            let logits = self.logits(&part)?;
            let targets = &tokens[first + 1..first + 1 + rows];
            let targets = Tensor::from_slice(targets, (rows, 1), &Device::Cpu)?;
            let of_target = logits.gather(&targets, 1)?.squeeze(1)?;
            let nats = (logits.log_sum_exp(1)? - of_target)?;
            sum += f64::from(nats.sum_all()?.to_scalar::<f32>()?);
            let grads = (nats.sum_all()? / scored as f64)?.backward()?;
            parts.push(gradient(&grads, &part)?);
        }
        parts.push(x.narrow(0, scored, 1)?.zeros_like()?);
        Ok((sum / scored as f64, Tensor::cat(&parts, 0)?))
    }
}
