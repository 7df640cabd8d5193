//! Recurrent layers, and the states of sequences in device memory: launches of
//! `cuda/ops/recurrent.cu`, `convolve.cu`, `rule_chunks.cu`, `delta_prepare.cu` and `mamba.cu`.

mod conv;
mod params;
mod rule;

use std::sync::Arc;

use half::bf16;

use crate::backend::StateCopy;
use crate::cuda::driver::{Device, DeviceBuffer, Kernel, Stream};
use crate::cuda::error::CudaError;
use crate::cuda::params::DevicePtr;
use crate::cuda::recurrence::{RecurrenceStep, chunks_max};
use crate::cuda::step::StepCapacity;
use crate::cuda::weights::Weights;
use crate::model::ops::LinearName;
use crate::model::{LayerSpec, LayerTensor, Mamba2Spec, ModelSpec, RecurrentSpec};
use conv::Conv;
use params::{ConvParams, MambaNormParams, RuleParams, SeqStates};
use rule::{HeadRule, RuleShape};

/// The most of a grid's second dimension.
const GRID_MAX: usize = 65_535;

/// Says which recurrences there are no kernels for.
pub(super) fn check(spec: &ModelSpec) -> Result<(), CudaError> {
    let unsupported = |what| Err(CudaError::Unsupported(what));
    for recurrent in spec.layers.iter().filter_map(LayerSpec::recurrent) {
        if let Some(shape) = RuleShape::of(recurrent)
            && !shape.has_kernel()
        {
            let (k_dim, v_dim) = (shape.k_dim, shape.v_dim);
            return unsupported(format!(
                "states of {k_dim} by {v_dim} channels; the CUDA backend has kernels for up to 256 \
                 channels of either side, and 16384 values in all where those of keys (of Mamba-2 \
                 those of B) are rounded up to 32, 64, 128 or 256; use --device cpu"
            ));
        }
        let channels = recurrent.conv(spec.hidden).0;
        let grid = RuleShape::of(recurrent).map_or(0, |shape| shape.grid());
        if channels / 256 >= GRID_MAX || grid > GRID_MAX {
            return unsupported(format!(
                "a recurrence of {channels} channels that are convolved, in more parts than a \
                 launch has ({GRID_MAX}); use --device cpu"
            ));
        }
        let mut widths = vec![
            recurrent.in_width(spec.hidden),
            recurrent.out_width(spec.hidden),
        ];
        if let RecurrentSpec::Mamba2(mamba) = recurrent {
            widths.extend(mamba.norm_parts.map(|parts| mamba.width() / parts));
        }
        if let Some(width) = widths.iter().find(|width| !width.is_multiple_of(8)) {
            return unsupported(format!(
                "a recurrence of {width} channels, which is not a multiple of 8; use --device cpu"
            ));
        }
    }
    Ok(())
}

/// What a recurrent layer reads and writes in a step.
#[derive(Debug)]
pub(in crate::cuda) struct RecurrentIo<'a> {
    pub(in crate::cuda) rows: usize,
    pub(in crate::cuda) step: RecurrenceStep,
    /// `[rows][in width]`, of which what is convolved is overwritten.
    pub(in crate::cuda) heads: &'a mut DeviceBuffer<bf16>,
    /// `[rows][out width]`.
    pub(in crate::cuda) out: &'a mut DeviceBuffer<bf16>,
}

/// Where a recurrent layer's weights beside its products are. What it has none of is null.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::cuda) struct RecurrentWeights {
    /// `[channels][taps]`.
    pub(in crate::cuda) conv: DevicePtr,
    /// `[channels]`.
    pub(in crate::cuda) conv_bias: DevicePtr,
    /// `[in width]`.
    pub(in crate::cuda) in_bias: DevicePtr,
    /// `[2][v_heads]`, as is the next.
    pub(in crate::cuda) decay: DevicePtr,
    pub(in crate::cuda) decay_bias: DevicePtr,
    /// `[v_dim]`, or of all heads' channels of Mamba-2.
    pub(in crate::cuda) norm: DevicePtr,
    /// `[v_heads]`.
    pub(in crate::cuda) skip: DevicePtr,
}

impl RecurrentWeights {
    /// Those of a model's layer.
    pub(in crate::cuda) fn of(weights: &Weights, spec: &RecurrentSpec, layer: usize) -> Self {
        let vector = |tensor| weights.of_layer(layer, tensor).ptr();
        match spec {
            RecurrentSpec::ShortConv(short) => {
                let in_bias = weights.named(LinearName::Recurrent(layer)).bias();
                Self {
                    conv: vector(LayerTensor::Conv),
                    conv_bias: match short.bias {
                        true => vector(LayerTensor::ConvBias),
                        false => 0,
                    },
                    in_bias: in_bias.map_or(0, DeviceBuffer::ptr),
                    ..Self::default()
                }
            }
            RecurrentSpec::GatedDelta(_) => Self {
                conv: vector(LayerTensor::DeltaConv),
                decay: vector(LayerTensor::DeltaDecay),
                decay_bias: vector(LayerTensor::DeltaDecayBias),
                norm: vector(LayerTensor::DeltaNorm),
                ..Self::default()
            },
            RecurrentSpec::Mamba2(mamba) => Self {
                conv: vector(LayerTensor::MambaConv),
                conv_bias: match mamba.conv_bias {
                    true => vector(LayerTensor::MambaConvBias),
                    false => 0,
                },
                decay: vector(LayerTensor::MambaDecay),
                decay_bias: vector(LayerTensor::MambaDtBias),
                norm: match mamba.norm_parts {
                    Some(_) => vector(LayerTensor::MambaNorm),
                    None => 0,
                },
                skip: vector(LayerTensor::MambaSkip),
                ..Self::default()
            },
        }
    }
}

/// The recurrences of a model, and the states of its sequences.
#[derive(Debug)]
pub(in crate::cuda) struct Recurrent {
    /// Of channels that are convolved in place.
    conv_in_place: Conv,
    conv_short: Conv,
    delta: HeadRule,
    mamba: HeadRule,
    mamba_norm: Kernel<MambaNormParams>,
    /// `[slots][floats]`: those of all layers one behind the other.
    states: DeviceBuffer<f32>,
    /// What a layer keeps of a step's chunks.
    scratch: DeviceBuffer<u32>,
    slots: usize,
    floats: usize,
    /// Where the state of each layer begins.
    layers: Vec<usize>,
    hidden: usize,
}

/// Words of scratch for steps of a capacity.
fn scratch_words(spec: &ModelSpec, capacity: &StepCapacity, in_chunks: bool) -> usize {
    let of_layer = |recurrent: &RecurrentSpec| {
        let of_conv = Conv::chunk_words(recurrent, spec.hidden);
        let shape = RuleShape::of(recurrent);
        of_conv.max(shape.map_or(0, |shape| shape.chunk_words(in_chunks)))
    };
    let layers = spec.layers.iter().filter_map(LayerSpec::recurrent);
    chunks_max(capacity.rows, capacity.seqs) * layers.map(of_layer).max().unwrap_or(0)
}

impl Recurrent {
    /// Of so many slots, for steps up to `capacity`; none if no layer is recurrent. `in_chunks`:
    /// states of heads take prompts in chunks, so that a row's bits depend on where they are cut.
    pub(in crate::cuda) fn new(
        device: &Arc<Device>,
        spec: &ModelSpec,
        slots: usize,
        capacity: &StepCapacity,
        in_chunks: bool,
    ) -> Result<Option<Self>, CudaError> {
        if !spec.is_recurrent() {
            return Ok(None);
        }
        let floats = spec.state_floats();
        let words = scratch_words(spec, capacity, in_chunks);
        let what = "the states of sequences";
        Ok(Some(Self {
            conv_in_place: Conv::in_place(device)?,
            conv_short: Conv::of_short(device)?,
            delta: HeadRule::of_delta(device, in_chunks)?,
            mamba: HeadRule::of_mamba(device, in_chunks)?,
            mamba_norm: device.kernel("mamba_norm", 0)?,
            states: DeviceBuffer::filled(device, slots * floats, 0, what)?,
            scratch: DeviceBuffer::filled(device, words, 0, "chunks of recurrent layers")?,
            slots,
            floats,
            layers: spec.state_places(),
            hidden: spec.hidden,
        }))
    }

    /// Bytes that `new` allocates on the device.
    pub(in crate::cuda) fn bytes(
        spec: &ModelSpec,
        slots: usize,
        capacity: &StepCapacity,
        in_chunks: bool,
    ) -> usize {
        let words = scratch_words(spec, capacity, in_chunks);
        slots * spec.state_floats() * size_of::<f32>() + words * size_of::<u32>()
    }

    /// States that there is room for.
    pub(in crate::cuda) fn slots(&self) -> usize {
        self.slots
    }

    /// The states, to look at or to write.
    pub(in crate::cuda) fn states_mut(&mut self) -> &mut DeviceBuffer<f32> {
        &mut self.states
    }

    /// Enqueues copies of states, which have been checked.
    pub(in crate::cuda) fn copy(
        &mut self,
        stream: &Stream,
        copies: &[StateCopy],
    ) -> Result<(), CudaError> {
        for copy in copies.iter().filter(|copy| copy.src != copy.dst) {
            let [src, dst] = [copy.src, copy.dst].map(|slot| slot as usize * self.floats);
            stream.copy_within(&mut self.states, src, dst, self.floats)?;
        }
        Ok(())
    }

    /// Enqueues a layer's recurrence over the rows of the loaded step.
    pub(in crate::cuda) fn run(
        &self,
        stream: &Stream,
        spec: &RecurrentSpec,
        layer: usize,
        weights: RecurrentWeights,
        io: RecurrentIo<'_>,
    ) -> Result<(), CudaError> {
        let RecurrentIo {
            rows,
            step,
            heads,
            out,
        } = io;
        let (in_width, out_width) = (spec.in_width(self.hidden), spec.out_width(self.hidden));
        assert!(rows * in_width <= heads.len() && rows * out_width <= out.len());
        let (channels, taps) = spec.conv(self.hidden);
        let states = |first: usize| SeqStates {
            seqs: step.seqs,
            seq_count: step.seq_count,
            states: self.states.at(self.layers[layer] + first),
            slot_floats: self.floats as u64,
        };
        let scratch = self.scratch.ptr();
        let params = ConvParams {
            states: states(0),
            heads: heads.ptr(),
            out: out.ptr(),
            weight: weights.conv,
            bias: weights.conv_bias,
            in_bias: weights.in_bias,
            channels: channels as u32,
            taps: taps as u32,
            in_width: in_width as u32,
            reserved: 0,
        };
        let conv = match spec {
            RecurrentSpec::ShortConv(_) => &self.conv_short,
            RecurrentSpec::GatedDelta(_) | RecurrentSpec::Mamba2(_) => &self.conv_in_place,
        };
        // SAFETY: the buffers were sized for the step's capacity of rows and chunks, the
        // weights have the spec's shapes; slots and rows were checked before the step was loaded,
        // and no two sequences of a step have the same slot; work of one stream runs in order, so
        // that the scratch is one launch's after the other's.
        unsafe { conv.run(stream, &step, params, scratch)? };
        let Some(shape) = RuleShape::of(spec) else {
            return Ok(());
        };
        let params = RuleParams {
            states: states((taps - 1) * channels),
            heads: heads.ptr(),
            out: out.ptr(),
            decay: weights.decay,
            decay_bias: weights.decay_bias,
            norm: weights.norm,
            skip: weights.skip,
            k_heads: shape.k_heads as u32,
            v_heads: shape.v_heads as u32,
            k_dim: shape.k_dim as u32,
            v_dim: shape.v_dim as u32,
            in_width: in_width as u32,
            lanes: shape.lanes() as u32,
            eps: shape.norm_eps,
            queries_at: shape.queries_at as u32,
            keys_at: shape.keys_at as u32,
            values_at: shape.values_at as u32,
            least_step: shape.time_steps[0],
            most_step: shape.time_steps[1],
        };
        let rule = match spec {
            RecurrentSpec::Mamba2(_) => &self.mamba,
            RecurrentSpec::GatedDelta(_) | RecurrentSpec::ShortConv(_) => &self.delta,
        };
        // SAFETY: as of the convolution.
        unsafe { rule.run(stream, (&shape, &step), params, scratch)? };
        match spec {
            RecurrentSpec::Mamba2(mamba) => self.norm(stream, mamba, weights.norm, (rows, out)),
            RecurrentSpec::GatedDelta(_) | RecurrentSpec::ShortConv(_) => Ok(()),
        }
    }

    /// Enqueues the norm of what all heads of Mamba-2 have put out, if there is one.
    fn norm(
        &self,
        stream: &Stream,
        mamba: &Mamba2Spec,
        weight: DevicePtr,
        (rows, out): (usize, &mut DeviceBuffer<bf16>),
    ) -> Result<(), CudaError> {
        let Some(parts) = mamba.norm_parts else {
            return Ok(());
        };
        let params = MambaNormParams {
            out: out.ptr(),
            weight,
            parts: parts as u32,
            len: (mamba.width() / parts) as u32,
            eps: mamba.norm_eps,
            reserved: 0,
        };
        let grid = (rows as u32, parts as u32);
        // SAFETY: the rows were found to be in the buffer, the weights have the spec's shape, and
        // work of one stream runs in order.
        unsafe { self.mamba_norm.launch(stream, grid, 256, &params) }
    }
}
