//! Everything between the matrix products and the attention: launches of `cuda/ops`.

mod heads;
mod layer_inputs;
mod open_attended;
mod recurrent;
mod rotate_back;

use std::sync::Arc;

use half::bf16;

use super::attention::PARTS_HEAD_DIM_MAX;
use super::driver::{Device, DeviceBuffer, Kernel, Stream};
use super::error::CudaError;
use super::params::{DevicePtr, KernelParams};
use super::step::StepBuffers;
use crate::formats::rotation::Rotation;
use crate::model::{
    Activation, AttentionSpec, KvPlace, LayerSpec, ModelSpec, NormKind, OnlineKeyScales, QkNorm,
};
pub(super) use heads::{
    HEAD_DIM_MAX, HeadOps, HeadParams, HeadParts, HeadSpec, RopeWeights, Rotary,
};
use layer_inputs::LayerInputs;
use open_attended::OpenAttended;
pub(super) use recurrent::{Recurrent, RecurrentIo, RecurrentWeights};
pub(super) use rotate_back::RotateBack;

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct EmbedParams {
    tokens: DevicePtr,
    sampled: DevicePtr,
    table: DevicePtr,
    residual: DevicePtr,
    hidden: u32,
    multiplier: f32,
    eps: f32,
    normed: u32,
}
// SAFETY: field for field `ebb::EmbedParams` of ops/embed.cu.
unsafe impl KernelParams for EmbedParams {}

/// How a model's norms are computed: `ebb::NormForm` of ops/norm_form.cuh.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct NormForm {
    eps: f32,
    from: f32,
    delta_scale: f32,
    layer: u32,
}

impl NormForm {
    pub(super) fn of(spec: &ModelSpec) -> Self {
        Self {
            eps: spec.norm_eps,
            from: if spec.norms.from_one { 1.0 } else { 0.0 },
            delta_scale: spec.residual_multiplier,
            layer: u32::from(spec.norms.kind == NormKind::Layer),
        }
    }
}

/// Weights of a norm, and its bias or null.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct NormWeights {
    pub(super) weight: DevicePtr,
    pub(super) bias: DevicePtr,
}

/// What is added to the residual stream, and a bias that is added to that, or null.
#[derive(Debug, Clone, Copy)]
pub(super) struct Delta<'a> {
    pub(super) values: &'a DeviceBuffer<bf16>,
    pub(super) bias: DevicePtr,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct NormParams {
    delta: DevicePtr,
    delta_bias: DevicePtr,
    residual: DevicePtr,
    weight: DevicePtr,
    bias: DevicePtr,
    out: DevicePtr,
    selected: DevicePtr,
    form: NormForm,
    hidden: u32,
    reserved: u32,
}
// SAFETY: field for field `ebb::NormParams` of ops/norm.cu.
unsafe impl KernelParams for NormParams {}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct PostNormParams {
    delta: DevicePtr,
    delta_bias: DevicePtr,
    post: DevicePtr,
    post_bias: DevicePtr,
    residual: DevicePtr,
    weight: DevicePtr,
    bias: DevicePtr,
    out: DevicePtr,
    form: NormForm,
    hidden: u32,
    reserved: u32,
}
// SAFETY: field for field `ebb::PostNormParams` of ops/post_norm.cu.
unsafe impl KernelParams for PostNormParams {}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct JoinParams {
    branch: DevicePtr,
    other: DevicePtr,
    weights: [DevicePtr; 2],
    form: NormForm,
    hidden: u32,
    reserved: u32,
}
// SAFETY: field for field `ebb::JoinParams` of ops/join_branches.cu.
unsafe impl KernelParams for JoinParams {}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct GateParams {
    gate_up: DevicePtr,
    out: DevicePtr,
    intermediate: u32,
    activation: u32,
}
// SAFETY: field for field `ebb::GateParams` of ops/gate.cu.
unsafe impl KernelParams for GateParams {}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct ActivateParams {
    x: DevicePtr,
    bias: DevicePtr,
    width: u32,
    activation: u32,
}
// SAFETY: field for field `ebb::ActivateParams` of ops/activate.cu.
unsafe impl KernelParams for ActivateParams {}

/// An activation as kernels know it; 0 is none. Of common/activation.cuh.
pub(super) fn activation_code(activation: Activation) -> u32 {
    match activation {
        Activation::Silu => 1,
        Activation::GeluTanh => 2,
        Activation::Relu2 => 3,
        Activation::Xielu => unreachable!("refused, by name"),
    }
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct LogitParams {
    logits: DevicePtr,
    bias: DevicePtr,
    vocab: u32,
    multiplier: f32,
    cap: f32,
    reserved: u32,
}
// SAFETY: field for field `ebb::LogitParams` of ops/logits.cu.
unsafe impl KernelParams for LogitParams {}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct FillParams {
    out: DevicePtr,
    count: u64,
    seed: u64,
    amplitude: f32,
    offset: f32,
}
// SAFETY: field for field `ebb::FillParams` of ops/fill.cu.
unsafe impl KernelParams for FillParams {}

/// Fills memory with random bf16 values.
#[derive(Debug)]
pub(super) struct Fill(Kernel<FillParams>);

impl Fill {
    pub(super) fn new(device: &Arc<Device>) -> Result<Self, CudaError> {
        device.kernel("fill_random", 0).map(Self)
    }

    /// Enqueues filling `values` values at `out` with values uniform in `offset ± amplitude`, a
    /// function of `seed` and index.
    ///
    /// # Safety
    /// `out` must be the address of that many bf16 values, alive until the stream has run this.
    pub(super) unsafe fn run(
        &self,
        stream: &Stream,
        out: DevicePtr,
        values: usize,
        seed: u64,
        amplitude: f32,
        offset: f32,
    ) -> Result<(), CudaError> {
        let params = FillParams {
            out,
            count: values as u64,
            seed,
            amplitude,
            offset,
        };
        let grid_max = 32 * stream.device().multiprocessors();
        let grid = values.div_ceil(256).min(grid_max) as u32;
        // SAFETY: the caller's.
        unsafe { self.0.launch(stream, (grid, 1), 256, &params) }
    }
}

/// The small kernels of one model.
#[derive(Debug)]
pub(super) struct Ops {
    embed: Kernel<EmbedParams>,
    norm: Kernel<NormParams>,
    post_norm: Kernel<PostNormParams>,
    join_branches: Kernel<JoinParams>,
    gate: Kernel<GateParams>,
    activate: Kernel<ActivateParams>,
    finish_logits: Kernel<LogitParams>,
    /// What finishes heads.
    pub(super) heads: HeadOps,
    rotate_back: RotateBack,
    /// What layers get beside the residual stream.
    pub(super) layer_inputs: LayerInputs,
    open_attended: OpenAttended,
    /// Of each layer with attention, if keys are scaled in every step.
    key_factors: Vec<DeviceBuffer<f32>>,
    rotary: Vec<Rotary>,
    /// Of each layer, if it has attention.
    head_specs: Vec<Option<HeadSpec>>,
    /// Of each layer, if it has attention: where its keys and values lie.
    kv_places: Vec<Option<KvPlace>>,
    hidden: usize,
    vocab: usize,
    form: NormForm,
    embedding_multiplier: f32,
    embedding_norm: bool,
    logit_multiplier: f32,
    logit_soft_cap: Option<f32>,
}

impl Ops {
    /// `rotation` and `key_scales`: of what every step computes.
    pub(super) fn new(
        device: &Arc<Device>,
        spec: &ModelSpec,
        rotation: Rotation,
        key_scales: Option<&OnlineKeyScales>,
    ) -> Result<Self, CudaError> {
        let unsupported = |what: String| Err(CudaError::Unsupported(what));
        let norms = [
            (2048, "norm_2048"),
            (4096, "norm_4096"),
            (8192, "norm_8192"),
            (16384, "norm_16384"),
        ];
        let Some((_, norm)) = norms.into_iter().find(|n| spec.hidden <= n.0) else {
            return unsupported(format!(
                "hidden size {}; the CUDA backend supports up to 16384",
                spec.hidden
            ));
        };
        let [post_norm, join_branches] = match spec.hidden {
            ..=4096 => ["post_norm_4096", "join_branches_4096"],
            _ => ["post_norm_16384", "join_branches_16384"],
        };
        let of_layers = spec.layers.iter().map(|layer| layer.intermediate());
        let of_experts = spec.layers.iter().filter_map(LayerSpec::experts);
        let of_layers = of_layers.chain(of_experts.map(|experts| experts.intermediate));
        let intermediates = of_layers.map(|value| ("intermediate", value));
        let others = [
            ("hidden", spec.hidden),
            ("per-layer input", spec.input_width()),
        ];
        for (name, value) in intermediates.chain(others) {
            if value % 8 != 0 {
                return unsupported(format!("{name} size {value} is not a multiple of 8"));
            }
        }
        let kv_places = spec.kv_places();
        let mut head_specs = vec![None; spec.layers.len()];
        let mut scale = None;
        for (layer, attention) in spec.attentions() {
            let heads = HeadSpec::of(attention, &spec.ropes);
            let parts = kv_places[layer].and_then(|place| HeadParts::of(attention, place));
            heads.check(match parts {
                Some(_) => PARTS_HEAD_DIM_MAX,
                None => HEAD_DIM_MAX,
            })?;
            let beyond_parts = match heads.norm {
                QkNorm::Whole => Some("norms of whole projections"),
                QkNorm::PerHeadBehindRope => Some("norms behind RoPE"),
                QkNorm::None | QkNorm::PerHead => heads.growth.map(|_| "growing queries"),
            };
            if let Some(what) = beyond_parts.filter(|_| parts.is_some()) {
                return unsupported(format!("{what} of heads in parts"));
            }
            if let Some(chunk) = attention.window.filter(|_| attention.chunked)
                && !chunk.is_power_of_two()
            {
                return unsupported(format!(
                    "chunks of {chunk} tokens: the CUDA backend has kernels for powers of two"
                ));
            }
            if *scale.get_or_insert(heads.scale_log2()) != heads.scale_log2() {
                return unsupported("attention scales that differ between layers".to_owned());
            }
            head_specs[layer] = Some(heads);
        }
        if let Err(error) = rotation.check(spec.kv_geometry().head_dim) {
            return unsupported(error.to_string());
        }
        recurrent::check(spec)?;
        let mut key_factors = Vec::new();
        if let Some(scales) = key_scales {
            if let Err(error) = scales.check(spec) {
                return unsupported(error.to_string());
            }
            for kv_layer in 0..spec.attentions().count() {
                let factors = scales.factors(spec, kv_layer);
                key_factors.push(DeviceBuffer::from_slice(device, &factors, "key scales")?);
            }
        }
        Ok(Self {
            embed: device.kernel("embed", 0)?,
            norm: device.kernel(norm, 0)?,
            post_norm: device.kernel(post_norm, 0)?,
            join_branches: device.kernel(join_branches, 0)?,
            gate: device.kernel("gate", 0)?,
            activate: device.kernel("activate_rows", 0)?,
            finish_logits: device.kernel("finish_logits", 0)?,
            heads: HeadOps::new(device, (spec.norm_eps, spec.norms.from_one), rotation)?,
            rotate_back: RotateBack::new(device, spec.kv_geometry().head_dim)?,
            layer_inputs: LayerInputs::new(device, spec)?,
            open_attended: OpenAttended::new(device)?,
            key_factors,
            rotary: spec
                .ropes
                .iter()
                .map(|rope| Rotary::new(device, rope.frequencies(spec.max_positions), rope.scale))
                .collect::<Result<_, _>>()?,
            head_specs,
            kv_places,
            hidden: spec.hidden,
            vocab: spec.vocab,
            form: NormForm::of(spec),
            embedding_multiplier: spec.embedding_multiplier,
            embedding_norm: spec.embedding_norm,
            logit_multiplier: spec.logit_multiplier,
            logit_soft_cap: spec.logit_soft_cap,
        })
    }

    // SAFETY of every launch below: the buffers are those of the backend, sized for the step's
    // capacity of rows; the step was checked against vocabulary and pool before it was loaded; work
    // of one stream runs in order.

    /// `residual[row] = table[token of row]`, times the multiplier, normalised if the model's are;
    /// tokens to come are looked up in `sampled`, the step before's.
    pub(super) fn embed(
        &self,
        stream: &Stream,
        rows: usize,
        step: &StepBuffers,
        sampled: DevicePtr,
        table: &DeviceBuffer<bf16>,
        residual: &mut DeviceBuffer<f32>,
    ) -> Result<(), CudaError> {
        assert!(rows * self.hidden <= residual.len());
        let params = EmbedParams {
            tokens: step.tokens(),
            sampled,
            table: table.ptr(),
            residual: residual.ptr(),
            hidden: self.hidden as u32,
            multiplier: self.embedding_multiplier,
            eps: self.form.eps,
            normed: u32::from(self.embedding_norm),
        };
        // SAFETY: see above.
        unsafe { self.embed.launch(stream, (rows as u32, 1), 256, &params) }
    }

    /// How the model's norms are computed.
    pub(super) fn norm_form(&self) -> NormForm {
        self.form
    }

    /// What norms add to the mean of squares.
    pub(super) fn eps(&self) -> f32 {
        self.form.eps
    }

    /// `residual += delta` (if any), times its multiplier, then `out = norm(residual)`, for all
    /// `rows` rows, or for `rows` selected ones.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn norm(
        &self,
        stream: &Stream,
        rows: usize,
        delta: Option<Delta<'_>>,
        residual: &mut DeviceBuffer<f32>,
        NormWeights { weight, bias }: NormWeights,
        out: &mut DeviceBuffer<bf16>,
        selected: Option<DevicePtr>,
    ) -> Result<(), CudaError> {
        assert!(rows * self.hidden <= out.len());
        let params = NormParams {
            delta: delta.map_or(0, |d| d.values.ptr()),
            delta_bias: delta.map_or(0, |d| d.bias),
            residual: residual.ptr(),
            weight,
            bias,
            out: out.ptr(),
            selected: selected.unwrap_or(0),
            form: self.form,
            hidden: self.hidden as u32,
            reserved: 0,
        };
        // SAFETY: see above.
        unsafe { self.norm.launch(stream, (rows as u32, 1), 256, &params) }
    }

    /// `residual += norm(delta)` (delta as it is where `post` is null), times its multiplier, then
    /// `out = norm(residual)`, or the residual where its weight is null; if there is an `out`.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn post_norm(
        &self,
        stream: &Stream,
        rows: usize,
        delta: Option<Delta<'_>>,
        residual: &mut DeviceBuffer<f32>,
        [post, weight]: [NormWeights; 2],
        out: Option<&mut DeviceBuffer<bf16>>,
    ) -> Result<(), CudaError> {
        assert!(rows * self.hidden <= residual.len());
        assert!(
            out.as_ref()
                .is_none_or(|out| rows * self.hidden <= out.len())
        );
        let params = PostNormParams {
            delta: delta.map_or(0, |d| d.values.ptr()),
            delta_bias: delta.map_or(0, |d| d.bias),
            post: post.weight,
            post_bias: post.bias,
            residual: residual.ptr(),
            weight: weight.weight,
            bias: weight.bias,
            out: out.map_or(0, |out| out.ptr()),
            form: self.form,
            hidden: self.hidden as u32,
            reserved: 0,
        };
        // SAFETY: see above.
        unsafe {
            self.post_norm
                .launch(stream, (rows as u32, 1), 256, &params)
        }
    }

    /// `branch = norm(branch) + norm(other)`, by `weights` in that order.
    pub(super) fn join_branches(
        &self,
        stream: &Stream,
        rows: usize,
        branch: &mut DeviceBuffer<bf16>,
        other: &DeviceBuffer<bf16>,
        weights: [&DeviceBuffer<bf16>; 2],
    ) -> Result<(), CudaError> {
        assert!(rows * self.hidden <= branch.len().min(other.len()));
        let params = JoinParams {
            branch: branch.ptr(),
            other: other.ptr(),
            weights: weights.map(DeviceBuffer::ptr),
            form: self.form,
            hidden: self.hidden as u32,
            reserved: 0,
        };
        let (grid, kernel) = ((rows as u32, 1), &self.join_branches);
        // SAFETY: see above.
        unsafe { kernel.launch(stream, grid, 256, &params) }
    }

    /// What a layer does with its heads.
    ///
    /// # Panics
    /// If it has no attention.
    pub(super) fn head_spec(&self, layer: usize) -> HeadSpec {
        self.head_specs[layer].expect("a layer with attention")
    }

    /// Where the keys and values that a layer reads lie.
    ///
    /// # Panics
    /// If it has no attention.
    pub(super) fn kv_place(&self, layer: usize) -> KvPlace {
        self.kv_places[layer].expect("a layer with attention")
    }

    /// Bytes of the factors that queries and keys are scaled by, if they are.
    pub(super) fn key_factor_bytes(spec: &ModelSpec) -> usize {
        let heads = spec.heads();
        let pairs = (heads.q_heads + heads.kv_heads) * heads.head_dim / 2;
        spec.kv_geometry().layers * pairs * size_of::<f32>()
    }

    /// What pairs of channels of the queries and keys of a layer of the KV cache are multiplied by,
    /// or null.
    pub(super) fn key_factors(&self, kv_layer: usize) -> DevicePtr {
        self.key_factors.get(kv_layer).map_or(0, DeviceBuffer::ptr)
    }

    /// Cosines and sines of every row's position, `[rows][rotary_dim / 2]` pairs, for each RoPE of
    /// the model.
    pub(super) fn rope_tables(
        &self,
        stream: &Stream,
        rows: usize,
        step: &StepBuffers,
        tables: &mut [DeviceBuffer<f32>],
    ) -> Result<(), CudaError> {
        for (rotary, table) in self.rotary.iter().zip(tables) {
            self.heads.rope_table(stream, rows, step, rotary, table)?;
        }
        Ok(())
    }

    /// Multiplies a layer's output of attention, record by record, by the Hadamard matrix that
    /// values were multiplied by.
    pub(super) fn rotate_back(
        &self,
        stream: &Stream,
        (layer, rows): (usize, usize),
        attended: &mut DeviceBuffer<bf16>,
    ) -> Result<(), CudaError> {
        let heads = self.head_spec(layer);
        let channels = rows * heads.q_heads * heads.head_dim;
        self.rotate_back.run(stream, channels, attended)
    }

    /// Multiplies a layer's output of attention by its gates.
    pub(super) fn open_attended(
        &self,
        stream: &Stream,
        (rows, attention): (usize, &AttentionSpec),
        gates: &DeviceBuffer<bf16>,
        attended: &mut DeviceBuffer<bf16>,
    ) -> Result<(), CudaError> {
        let Some(gate) = attention.output_gate else {
            unreachable!("an operation of layers with gates");
        };
        let heads = (rows, attention.heads());
        self.open_attended.run(stream, heads, gate, gates, attended)
    }

    /// `out = activation(gate) * up`, from rows of gate and up beside each other.
    pub(super) fn gate(
        &self,
        stream: &Stream,
        (rows, intermediate): (usize, usize),
        activation: Activation,
        gate_up: &DeviceBuffer<bf16>,
        out: &mut DeviceBuffer<bf16>,
    ) -> Result<(), CudaError> {
        assert!(rows * intermediate * 2 <= gate_up.len() && rows * intermediate <= out.len());
        let params = GateParams {
            gate_up: gate_up.ptr(),
            out: out.ptr(),
            intermediate: intermediate as u32,
            activation: activation_code(activation),
        };
        let grid = (rows as u32, intermediate.div_ceil(2048) as u32);
        // SAFETY: see above.
        unsafe { self.gate.launch(stream, grid, 256, &params) }
    }

    /// `x = activation(x + bias)` of rows of an MLP without gates; `bias` may be null.
    pub(super) fn activate(
        &self,
        stream: &Stream,
        (rows, width): (usize, usize),
        activation: Activation,
        bias: DevicePtr,
        x: &mut DeviceBuffer<bf16>,
    ) -> Result<(), CudaError> {
        assert!(rows * width <= x.len());
        let params = ActivateParams {
            x: x.ptr(),
            bias,
            width: width as u32,
            activation: activation_code(activation),
        };
        let grid = (rows as u32, width.div_ceil(2048) as u32);
        // SAFETY: see above.
        unsafe { self.activate.launch(stream, grid, 256, &params) }
    }

    /// Adds a bias to `rows` rows of logits, unless it is null, multiplies and caps them, if the
    /// model does.
    pub(super) fn finish_logits(
        &self,
        stream: &Stream,
        rows: usize,
        bias: DevicePtr,
        logits: &mut DeviceBuffer<f32>,
    ) -> Result<(), CudaError> {
        if bias == 0 && self.logit_multiplier == 1.0 && self.logit_soft_cap.is_none() {
            return Ok(());
        }
        assert!(rows * self.vocab <= logits.len());
        let params = LogitParams {
            logits: logits.ptr(),
            bias,
            vocab: self.vocab as u32,
            multiplier: self.logit_multiplier,
            cap: self.logit_soft_cap.unwrap_or(0.0),
            reserved: 0,
        };
        let grid_max = (16 * stream.device().multiprocessors()).div_ceil(rows);
        let columns = self.vocab.div_ceil(256 * 4).min(grid_max);
        let grid = (rows as u32, columns as u32);
        // SAFETY: see above.
        unsafe { self.finish_logits.launch(stream, grid, 256, &params) }
    }
}
