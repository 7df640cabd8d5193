//! Recurrent layers, the states of sequences in device memory, and the gates of what attention puts
//! out: launches of `cuda/ops/recurrent.cu`.

use std::sync::Arc;

use half::bf16;

use super::super::driver::{Device, DeviceBuffer, Kernel, Stream};
use super::super::error::CudaError;
use super::super::params::{DevicePtr, KernelParams};
use super::super::step::StepBuffers;
use super::super::weights::Weights;
use crate::backend::StateCopy;
use crate::model::ops::LinearName;
use crate::model::{GatedDeltaSpec, LayerSpec, LayerTensor, ModelSpec, RecurrentSpec};

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct OpenParams {
    attended: DevicePtr,
    gates: DevicePtr,
    count: u64,
}
// SAFETY: field for field `ebb::OpenParams` of ops/recurrent.cu.
unsafe impl KernelParams for OpenParams {}

/// `ebb::SeqStates` of ops/recurrent.cu.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct SeqStates {
    seqs: DevicePtr,
    seq_count: DevicePtr,
    states: DevicePtr,
    slot_floats: u64,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct ConvParams {
    states: SeqStates,
    heads: DevicePtr,
    out: DevicePtr,
    weight: DevicePtr,
    bias: DevicePtr,
    in_bias: DevicePtr,
    channels: u32,
    taps: u32,
    in_width: u32,
    reserved: u32,
}
// SAFETY: field for field `ebb::ConvParams` of ops/recurrent.cu.
unsafe impl KernelParams for ConvParams {}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct DeltaParams {
    states: SeqStates,
    heads: DevicePtr,
    out: DevicePtr,
    decay: DevicePtr,
    decay_bias: DevicePtr,
    norm: DevicePtr,
    k_heads: u32,
    v_heads: u32,
    k_dim: u32,
    v_dim: u32,
    in_width: u32,
    lanes: u32,
    eps: f32,
    reserved: u32,
}
// SAFETY: field for field `ebb::DeltaParams` of ops/recurrent.cu.
unsafe impl KernelParams for DeltaParams {}

/// Threads of a CTA of the delta rule that own columns of the state, and all: two warps more.
const DELTA_OWNERS: usize = 512;
const DELTA_THREADS: u32 = DELTA_OWNERS as u32 + 64;
/// Values of a column that a thread owns.
const DELTA_ROWS: usize = 32;
/// Channels of queries, keys and values, at most.
const DELTA_DIM: usize = 256;

/// Threads that share a column.
fn lanes(delta: &GatedDeltaSpec) -> usize {
    delta.k_dim.div_ceil(DELTA_ROWS).next_power_of_two()
}

/// Says which recurrences there are no kernels for.
pub(super) fn check(spec: &ModelSpec) -> Result<(), CudaError> {
    let unsupported = |what| Err(CudaError::Unsupported(what));
    for recurrent in spec.layers.iter().filter_map(LayerSpec::recurrent) {
        if let RecurrentSpec::GatedDelta(delta) = recurrent {
            let (k_dim, v_dim) = (delta.k_dim, delta.v_dim);
            if k_dim.max(v_dim) > DELTA_DIM || lanes(delta) * v_dim > DELTA_OWNERS {
                return unsupported(format!(
                    "states of {k_dim} by {v_dim} channels; the CUDA backend has kernels for the \
                     delta rule of up to 256 channels, and 16384 values in all where those of keys \
                     are rounded up to 32, 64, 128 or 256; use --device cpu"
                ));
            }
        }
        let widths = [
            recurrent.in_width(spec.hidden),
            recurrent.out_width(spec.hidden),
        ];
        if let Some(width) = widths.iter().find(|width| !width.is_multiple_of(8)) {
            return unsupported(format!(
                "a recurrence of {width} channels, which is not a multiple of 8; use --device cpu"
            ));
        }
    }
    Ok(())
}

/// Opens what attention puts out.
#[derive(Debug)]
pub(super) struct OpenAttended(Kernel<OpenParams>);

impl OpenAttended {
    pub(super) fn new(device: &Arc<Device>) -> Result<Self, CudaError> {
        device.kernel("open_attended", 0).map(Self)
    }

    /// Multiplies the first `count` values by the sigmoids of `gates`.
    pub(super) fn run(
        &self,
        stream: &Stream,
        count: usize,
        gates: &DeviceBuffer<bf16>,
        attended: &mut DeviceBuffer<bf16>,
    ) -> Result<(), CudaError> {
        assert!(count.is_multiple_of(8) && count <= gates.len().min(attended.len()));
        let params = OpenParams {
            attended: attended.ptr(),
            gates: gates.ptr(),
            count: count as u64,
        };
        let grid = (count.div_ceil(2048) as u32, 1);
        // SAFETY: the buffers are the backend's and hold that many values; work of one stream runs
        // in order.
        unsafe { self.0.launch(stream, grid, 256, &params) }
    }
}

/// What a recurrent layer reads and writes in a step.
#[derive(Debug)]
pub(in crate::cuda) struct RecurrentIo<'a> {
    pub(in crate::cuda) rows: usize,
    /// Sequences, those of a recorded step included that are not there.
    pub(in crate::cuda) seqs: usize,
    pub(in crate::cuda) step: &'a StepBuffers,
    /// `[rows][in width]`, of which what is convolved is overwritten.
    pub(in crate::cuda) heads: &'a mut DeviceBuffer<bf16>,
    /// `[rows][out width]`.
    pub(in crate::cuda) out: &'a mut DeviceBuffer<bf16>,
}

/// The recurrences of a model, and the states of its sequences.
#[derive(Debug)]
pub(in crate::cuda) struct Recurrent {
    conv_delta: Kernel<ConvParams>,
    conv_short: Kernel<ConvParams>,
    delta: Kernel<DeltaParams>,
    /// `[slots][floats]`: those of all layers one behind the other.
    states: DeviceBuffer<f32>,
    slots: usize,
    floats: usize,
    /// Where the state of each layer begins.
    layers: Vec<usize>,
    hidden: usize,
    eps: f32,
}

impl Recurrent {
    /// Of so many slots; none if no layer is recurrent.
    pub(in crate::cuda) fn new(
        device: &Arc<Device>,
        spec: &ModelSpec,
        slots: usize,
    ) -> Result<Option<Self>, CudaError> {
        if !spec.is_recurrent() {
            return Ok(None);
        }
        let floats = spec.state_floats();
        let what = "the states of sequences";
        Ok(Some(Self {
            conv_delta: device.kernel("conv_delta", 0)?,
            conv_short: device.kernel("conv_short", 0)?,
            delta: device.kernel("delta_rule", 0)?,
            states: DeviceBuffer::filled(device, slots * floats, 0, what)?,
            slots,
            floats,
            layers: spec.state_places(),
            hidden: spec.hidden,
            eps: spec.norm_eps,
        }))
    }

    /// Bytes that `new` allocates on the device.
    pub(in crate::cuda) fn bytes(spec: &ModelSpec, slots: usize) -> usize {
        slots * spec.state_floats() * size_of::<f32>()
    }

    /// States that there is room for.
    pub(in crate::cuda) fn slots(&self) -> usize {
        self.slots
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
        weights: &Weights,
        io: RecurrentIo<'_>,
    ) -> Result<(), CudaError> {
        let RecurrentIo {
            rows,
            seqs,
            step,
            heads,
            out,
        } = io;
        let (in_width, out_width) = (spec.in_width(self.hidden), spec.out_width(self.hidden));
        assert!(rows * in_width <= heads.len() && rows * out_width <= out.len());
        let (channels, taps) = spec.conv(self.hidden);
        let states = |first: usize| SeqStates {
            seqs: step.seqs(),
            seq_count: step.seq_count(),
            states: self.states.at(self.layers[layer] + first),
            slot_floats: self.floats as u64,
        };
        let vector = |tensor| weights.of_layer(layer, tensor).ptr();
        let conv = ConvParams {
            states: states(0),
            heads: heads.ptr(),
            out: out.ptr(),
            weight: 0,
            bias: 0,
            in_bias: 0,
            channels: channels as u32,
            taps: taps as u32,
            in_width: in_width as u32,
            reserved: 0,
        };
        let grid = (seqs as u32, channels.div_ceil(256) as u32);
        // SAFETY of every launch below: the buffers were sized for the step's capacity of rows, the
        // weights have the spec's shapes; slots and rows were checked before the step was loaded,
        // and no two sequences of a step have the same slot; work of one stream runs in order.
        match spec {
            RecurrentSpec::ShortConv(short) => {
                let in_bias = weights.named(LinearName::Recurrent(layer)).bias();
                let params = ConvParams {
                    weight: vector(LayerTensor::Conv),
                    bias: if short.bias {
                        vector(LayerTensor::ConvBias)
                    } else {
                        0
                    },
                    in_bias: in_bias.map_or(0, DeviceBuffer::ptr),
                    ..conv
                };
                // SAFETY: see above.
                unsafe { self.conv_short.launch(stream, grid, 256, &params) }
            }
            RecurrentSpec::GatedDelta(delta) => {
                let params = ConvParams {
                    weight: vector(LayerTensor::DeltaConv),
                    ..conv
                };
                // SAFETY: see above.
                unsafe { self.conv_delta.launch(stream, grid, 256, &params)? };
                let params = DeltaParams {
                    states: states((taps - 1) * channels),
                    heads: heads.ptr(),
                    out: out.ptr(),
                    decay: vector(LayerTensor::DeltaDecay),
                    decay_bias: vector(LayerTensor::DeltaDecayBias),
                    norm: vector(LayerTensor::DeltaNorm),
                    k_heads: delta.k_heads as u32,
                    v_heads: delta.v_heads as u32,
                    k_dim: delta.k_dim as u32,
                    v_dim: delta.v_dim as u32,
                    in_width: in_width as u32,
                    lanes: lanes(delta) as u32,
                    eps: self.eps,
                    reserved: 0,
                };
                let grid = (seqs as u32, delta.v_heads as u32);
                // SAFETY: see above.
                unsafe { self.delta.launch(stream, grid, DELTA_THREADS, &params) }
            }
        }
    }
}
