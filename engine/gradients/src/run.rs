//! One text through the whole model and back.

use std::collections::HashMap;

use candle_core::{Device, Tensor};
use ebb_kernels::model::{ModelSpec, SpecError, TensorName};
use thiserror::Error;

use crate::head::Head;
use crate::layer::{Attention, Layer};
use crate::ops::Angles;
use crate::{FEATURES, Weights};

/// Values that a cache holds, and the loss gradient with respect to each;
/// `[kv_heads][tokens][head_dim]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Cached {
    /// Keys after RoPE, or values.
    pub values: Vec<f32>,
    /// dL/dK or dL/dV.
    pub gradients: Vec<f32>,
}

/// What is wanted of a layer.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerGradients {
    /// dL/dW_k, `[kv_heads * head_dim][hidden]`.
    pub w_k: Vec<f32>,
    /// dL/dW_v, the same.
    pub w_v: Vec<f32>,
    /// Keys.
    pub k: Cached,
    /// Values.
    pub v: Cached,
}

/// Why there are no gradients.
#[derive(Debug, Error)]
pub enum Error<E: std::error::Error + 'static> {
    /// The weights cannot be read.
    #[error(transparent)]
    Weights(E),
    /// Arithmetic failed: shapes that do not fit, or memory.
    #[error("the gradients cannot be computed: {0}")]
    Compute(#[from] candle_core::Error),
    /// The model needs something that these passes do not compute.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// A text without a token to predict.
    #[error("a text needs at least 2 tokens to have a loss")]
    TooShort,
    /// Threads cannot be started.
    #[error("the threads that compute gradients cannot be started: {0}")]
    Threads(#[from] rayon::ThreadPoolBuildError),
}

/// Gradients of the loss of `tokens`, at positions 0, `stride`, 2 `stride`, …, on `threads`
/// threads. `visit` gets each layer's index and gradients, the last layer first. Returns the loss,
/// in nats a token.
///
/// # Errors
/// When the text is too short, the weights cannot be read, or do not have the model's shapes.
pub fn gradients<W: Weights>(
    model: &ModelSpec,
    weights: &W,
    tokens: &[u32],
    stride: usize,
    threads: usize,
    visit: &mut (dyn FnMut(usize, LayerGradients) + Send),
) -> Result<f64, Error<W::Error>> {
    if tokens.len() < 2 {
        return Err(Error::TooShort);
    }
    model.refuse_beyond("calibration on the CPU", &FEATURES)?;
    pool(threads)?.install(|| {
        let angles = angles(model, tokens.len(), stride)?;
        let (mut inputs, x) = forward(model, weights, &angles, tokens)?;
        let (loss, mut grad) = head(model, weights)?.loss(&x, tokens)?;
        while let Some(x) = inputs.pop() {
            let index = inputs.len();
            let layer = load(model, weights, &angles, index)?;
            let (next, found) = layer.backward(&x, &grad)?;
            visit(index, found);
            grad = next;
        }
        Ok(loss)
    })
}

/// Every layer's attention over some texts, as [`gradients`] has them, the first layer first:
/// `visit` gets a layer's index and one [`Attention`] a text.
///
/// # Errors
/// When a text is empty, the weights cannot be read, or do not have the model's shapes.
pub fn attentions<W: Weights>(
    model: &ModelSpec,
    weights: &W,
    texts: &[&[u32]],
    stride: usize,
    threads: usize,
    visit: &mut (dyn FnMut(usize, &[Attention<'_>]) + Send),
) -> Result<(), Error<W::Error>> {
    let longest = texts.iter().map(|t| t.len()).max().unwrap_or(0);
    if texts.iter().any(|t| t.is_empty()) {
        return Err(Error::TooShort);
    }
    model.refuse_beyond("calibration on the CPU", &FEATURES)?;
    pool(threads)?.install(|| {
        let angles = angles(model, longest, stride)?;
        let embedded = texts.iter().map(|t| embed(model, weights, t));
        let mut inputs = embedded.collect::<Result<Vec<_>, _>>()?;
        for index in 0..model.layers.len() {
            let layer = load(model, weights, &angles, index)?;
            let probes = inputs.iter().map(|x| layer.probe(x));
            visit(index, &probes.collect::<candle_core::Result<Vec<_>>>()?);
            for x in &mut inputs {
                *x = layer.forward(x)?.detach();
            }
        }
        Ok(())
    })
}

fn embed<W: Weights>(
    model: &ModelSpec,
    weights: &W,
    tokens: &[u32],
) -> Result<Tensor, Error<W::Error>> {
    let embedded = weights.embed(tokens).map_err(Error::Weights)?;
    let shape = (tokens.len(), model.hidden);
    Ok(Tensor::from_vec(embedded, shape, &Device::Cpu)?)
}

/// Logits of every token, `[tokens][vocab]`.
///
/// # Errors
/// As for [`gradients`].
pub fn logits<W: Weights>(
    model: &ModelSpec,
    weights: &W,
    tokens: &[u32],
    threads: usize,
) -> Result<Vec<f32>, Error<W::Error>> {
    model.refuse_beyond("calibration on the CPU", &FEATURES)?;
    pool(threads)?.install(|| {
        let angles = angles(model, tokens.len(), 1)?;
        let (_, x) = forward(model, weights, &angles, tokens)?;
        let logits = head(model, weights)?.logits(&x)?;
        Ok(logits.flatten_all()?.to_vec1()?)
    })
}

fn pool(threads: usize) -> Result<rayon::ThreadPool, rayon::ThreadPoolBuildError> {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build()
}

/// One for each rotary embedding of the model.
fn angles(model: &ModelSpec, tokens: usize, stride: usize) -> candle_core::Result<Vec<Angles>> {
    let ropes = model.ropes.iter();
    ropes
        .map(|rope| Angles::new(rope, model.max_positions, tokens, stride))
        .collect()
}

fn load<'a, W: Weights>(
    model: &'a ModelSpec,
    weights: &W,
    angles: &'a [Angles],
    index: usize,
) -> Result<Layer<'a>, Error<W::Error>> {
    let mut tensors = HashMap::new();
    for name in TensorName::all(model) {
        if let TensorName::Layer(layer, tensor) = name
            && layer == index
        {
            tensors.insert(tensor, weights.tensor(name).map_err(Error::Weights)?);
        }
    }
    Ok(Layer::new(model, angles, index, tensors)?)
}

fn head<W: Weights>(model: &ModelSpec, weights: &W) -> Result<Head, Error<W::Error>> {
    let tensor = |name| weights.tensor(name).map_err(Error::Weights);
    let projection = match model.tied_embeddings {
        true => TensorName::Embedding,
        false => TensorName::LmHead,
    };
    let (norm, projection) = (tensor(TensorName::FinalNorm)?, tensor(projection)?);
    Ok(Head::new(model, norm, projection)?)
}

/// Every layer's input, `[tokens][hidden]`, and the last one's output.
fn forward<W: Weights>(
    model: &ModelSpec,
    weights: &W,
    angles: &[Angles],
    tokens: &[u32],
) -> Result<(Vec<Tensor>, Tensor), Error<W::Error>> {
    let mut x = embed(model, weights, tokens)?;
    let mut inputs = Vec::with_capacity(model.layers.len());
    for index in 0..model.layers.len() {
        let next = load(model, weights, angles, index)?.forward(&x)?.detach();
        inputs.push(std::mem::replace(&mut x, next));
    }
    Ok((inputs, x))
}
