//! Loss gradients of a model with respect to what its KV cache holds, in f32 on the device.
//!
//! The reverse pass is written out, layer by layer, over kernels of `cuda/gradients` and cuBLASLt.
//! The library that the CPU's autograd comes from (candle) binds CUDA when a program is linked, so
//! that one which has it could not start without a driver.
//!
//! A layer's input is kept, everything else of it is computed again on the way back. Memory, for a
//! text of n tokens: 4 bytes × (`layers` × n × `hidden`, some ten activations of a layer, two
//! blocks of attention scores `q_heads` × 512 × n, the weights of the widest layer or of the output
//! projection, and 256 rows of logits), beside the weights at 16 bit.

mod layer;
mod ops;
mod work;

use std::sync::Arc;

use super::driver::{Device, DeviceBuffer};
use super::error::CudaError;
use super::weights::{LoadError, Weights};
use crate::model::ops::LinearName;
use crate::model::{Feature, ModelSpec, TensorName, WeightSource};
use ops::{Matrix, Ops};
use work::{Wide, Work};

/// What these passes compute beyond a plain layer.
const FEATURES: [Feature; 2] = [Feature::NoRope, Feature::WholeQkNorm];

/// Rows of tokens whose logits are computed at once.
const LOGIT_ROWS: usize = 256;

/// Values that a cache holds, and the loss gradient with respect to each;
/// `[kv_heads][tokens][head_dim]`.
#[derive(Debug, Clone, PartialEq)]
pub struct CachedGradients {
    /// Keys after RoPE, or values.
    pub values: Vec<f32>,
    /// dL/dK or dL/dV.
    pub gradients: Vec<f32>,
}

/// What is found of a layer.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerGradients {
    /// dL/dW_k, `[kv_heads * head_dim][hidden]`.
    pub w_k: Vec<f32>,
    /// dL/dW_v, the same.
    pub w_v: Vec<f32>,
    /// Keys.
    pub k: CachedGradients,
    /// Values.
    pub v: CachedGradients,
}

/// A model on the device, to be differentiated.
#[derive(Debug)]
pub struct Gradients {
    spec: ModelSpec,
    weights: Weights,
    ops: Ops,
    /// Weights of one layer at a time, or of the output projection, as f32.
    wide: Wide,
}

impl Gradients {
    /// Loads the weights. `progress(done, total)` counts bytes.
    ///
    /// # Errors
    /// When the model's shapes are impossible, its weights cannot be read, or the device has too
    /// little memory.
    pub fn load<W: WeightSource>(
        device: &Arc<Device>,
        spec: &ModelSpec,
        source: &W,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, LoadError<W::Error>> {
        spec.validate()?;
        spec.refuse_beyond("calibration on a GPU", &FEATURES)?;
        device.bind()?;
        Ok(Self {
            ops: Ops::new(device)?,
            wide: Wide::new(device, spec)?,
            weights: Weights::load(device, spec, source, true, progress)?,
            spec: spec.clone(),
        })
    }

    /// Runs one text there and back, its tokens at positions 0, `stride`, 2 `stride`, …. L is the
    /// mean cross entropy of each token given those before it. `visit` gets each layer's index and
    /// gradients, the last layer first. Returns L, in nats a token. Panics if the text has fewer
    /// than 2 tokens, or one beyond the vocabulary.
    ///
    /// # Errors
    /// When the device fails or has too little memory.
    pub fn run(
        &mut self,
        tokens: &[u32],
        stride: usize,
        visit: &mut dyn FnMut(usize, LayerGradients),
    ) -> Result<f64, CudaError> {
        assert!(tokens.len() >= 2, "a text has a token to predict");
        self.ops.device().bind()?;
        let mut work = Work::new(self.ops.device(), &self.spec, tokens, stride)?;
        let mut x = self.embed(&work)?;
        let mut inputs = Vec::with_capacity(self.spec.layers.len());
        for index in 0..self.spec.layers.len() {
            self.widen_layer(index)?;
            let mut out = work.activation()?;
            self.forward(index, &mut work, &x, &mut out)?;
            inputs.push(std::mem::replace(&mut x, out));
        }
        // From here on `x` is the gradient of a layer's output.
        let loss = self.loss(&mut work, &mut x)?;
        while let Some(input) = inputs.pop() {
            let index = inputs.len();
            self.widen_layer(index)?;
            visit(index, self.backward(index, &mut work, &input, &mut x)?);
        }
        Ok(loss)
    }

    /// Runs some texts forwards: `visit` gets each layer's index and its attention over them, to be
    /// computed again with other keys. Positions as for [`Self::run`].
    ///
    /// # Errors
    /// The device's, or what `visit` returns.
    pub fn attentions<E: From<CudaError>>(
        &mut self,
        texts: &[&[u32]],
        stride: usize,
        visit: &mut dyn FnMut(usize, &mut Attentions<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.ops.device().bind()?;
        let mut works = Vec::with_capacity(texts.len());
        let mut inputs = Vec::with_capacity(texts.len());
        for text in texts {
            let work = Work::new(self.ops.device(), &self.spec, text, stride)?;
            inputs.push((self.embed(&work)?, work.activation()?));
            works.push(work);
        }
        for index in 0..self.spec.layers.len() {
            self.widen_layer(index)?;
            let mut keys = Vec::with_capacity(texts.len());
            for (work, (x, out)) in works.iter_mut().zip(&mut inputs) {
                self.forward(index, work, x, out)?;
                std::mem::swap(x, out);
                let [k, _] = self.read_cached(&work.qkv, work.tokens)?;
                keys.push(k);
            }
            let mut attentions = Attentions {
                model: self,
                works: &mut works,
                keys,
            };
            visit(index, &mut attentions)?;
        }
        Ok(())
    }

    /// Embeddings, `[tokens][hidden]`.
    fn embed(&self, work: &Work) -> Result<DeviceBuffer<f32>, CudaError> {
        let mut x = work.activation()?;
        let vocab = self.spec.vocab;
        assert!(work.ids.iter().all(|t| (*t as usize) < vocab));
        self.ops
            .embed(&work.device_ids, self.weights.embedding(), &mut x)?;
        Ok(x)
    }

    /// L of the last layer's output `x`, which becomes its gradient.
    fn loss(&mut self, work: &mut Work, x: &mut DeviceBuffer<f32>) -> Result<f64, CudaError> {
        let (hidden, vocab, eps) = (self.spec.hidden, self.spec.vocab, self.spec.norm_eps);
        let scored = work.tokens - 1;
        let device = self.ops.device().clone();
        let mut logits =
            DeviceBuffer::new(&device, LOGIT_ROWS.min(scored) * vocab, "rows of logits")?;
        let mut nats = DeviceBuffer::new(&device, scored, "the losses of tokens")?;
        let lm_head = self.weights.expanded(LinearName::LmHead).ptr();
        self.ops
            .widen(lm_head, vocab * hidden, self.wide.buffer_mut(), 0)?;
        let head = Matrix::new(self.wide.buffer(), 0, hidden);
        let norm = self
            .weights
            .vector(self.weights.vector_index(TensorName::FinalNorm));
        self.ops.norm(
            Matrix::new(x, 0, hidden),
            norm,
            0,
            Matrix::new(&work.normed, 0, hidden),
            (work.tokens, 1, hidden),
            eps,
        )?;
        // The last token predicts nothing.
        self.ops.clear(&mut work.d_normed)?;
        for first in (0..scored).step_by(LOGIT_ROWS) {
            let rows = LOGIT_ROWS.min(scored - first);
            let normed = Matrix::new(&work.normed, first * hidden, hidden);
            let of_rows = Matrix::new(&logits, 0, vocab);
            self.ops
                .product((rows, hidden, vocab), 1.0, normed, head.t(), None, of_rows)?;
            self.ops.loss(
                &mut logits,
                work.device_ids.at(first + 1),
                &mut nats,
                first,
                (rows, vocab),
                1.0 / scored as f32,
            )?;
            let back = Matrix::new(&work.d_normed, first * hidden, hidden);
            self.ops
                .product((rows, vocab, hidden), 1.0, of_rows, head, None, back)?;
        }
        let (x, back) = (
            Matrix::new(x, 0, hidden),
            Matrix::new(&work.d_normed, 0, hidden),
        );
        self.ops
            .norm_back(x, norm, 0, back, None, x, (work.tokens, 1, hidden), eps)?;
        self.ops.wait()?;
        let mut of_tokens = vec![0f32; scored];
        nats.read(0, &mut of_tokens)?;
        Ok(of_tokens.iter().map(|n| f64::from(*n)).sum::<f64>() / scored as f64)
    }

    fn widen_layer(&mut self, index: usize) -> Result<(), CudaError> {
        self.wide.layer(&self.ops, &self.weights, index)
    }
}

/// A layer's attention over some texts.
#[derive(Debug)]
pub struct Attentions<'a> {
    model: &'a mut Gradients,
    works: &'a mut [Work],
    keys: Vec<Vec<f32>>,
}

impl Attentions<'_> {
    /// A text's keys after RoPE, `[kv_heads][tokens][head_dim]`.
    pub fn keys(&self, text: usize) -> &[f32] {
        &self.keys[text]
    }

    /// What attention over a text adds to the residual stream, `[tokens][hidden]`, if the cache
    /// held these keys. Panics if they are not as many as [`Self::keys`].
    ///
    /// # Errors
    /// When the device fails or has too little memory.
    pub fn output(&mut self, text: usize, keys: &[f32]) -> Result<Vec<f32>, CudaError> {
        assert_eq!(keys.len(), self.keys[text].len());
        self.model.attention_with(&mut self.works[text], keys)
    }
}
