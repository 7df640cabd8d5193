//! What flows between the kernels of a step.

use std::sync::Arc;

use half::bf16;

use crate::cuda::driver::{Device, DeviceBuffer, Pinned};
use crate::cuda::error::CudaError;
use crate::cuda::products::squares_len;
use crate::model::{LayerSpec, ModelSpec};

/// Buffers of `rows` rows each, all allocated at start.
#[derive(Debug)]
pub(super) struct Activations {
    /// `[rows][hidden]`.
    pub(super) residual: DeviceBuffer<f32>,
    /// `[rows][hidden]`.
    pub(super) normed: DeviceBuffer<bf16>,
    /// `[rows][q_width + 2 * kv_width]`, or what a recurrence reads.
    pub(super) qkv: DeviceBuffer<bf16>,
    /// `[rows][q_width]`.
    pub(super) q: DeviceBuffer<bf16>,
    /// `[rows][q_width]`: what opens what attention puts out, if anything does.
    pub(super) output_gate: DeviceBuffer<bf16>,
    /// `[rows][q_width]`, or what a recurrence puts out.
    pub(super) attended: DeviceBuffer<bf16>,
    /// `[rows][2 * intermediate]`, of layers that have gates.
    pub(super) gate_up: DeviceBuffer<bf16>,
    /// `[rows][intermediate]`.
    pub(super) mlp: DeviceBuffer<bf16>,
    /// `[rows][hidden]`: what the next norm adds to the residual.
    pub(super) delta: DeviceBuffer<bf16>,
    /// `[rows][hidden]`: what a router reads that has a norm of its own, if one has.
    pub(super) router_input: DeviceBuffer<bf16>,
    /// `[rows][hidden]`: what chosen experts put out, where that is a branch by itself.
    pub(super) chosen: DeviceBuffer<bf16>,
    /// `[rows][layers * width]`: what layers get beside the residual stream, if they do.
    pub(super) layer_inputs: DeviceBuffer<bf16>,
    /// `[rows][width]`: what a layer makes of that.
    pub(super) layer_input: DeviceBuffer<bf16>,
    /// Sums of the residual stream's squares, where products take part in norms.
    pub(super) squares: DeviceBuffer<f32>,
    /// `[rows][head_dim / 2]` pairs of cosine and sine, for each RoPE of the model.
    pub(super) ropes: Vec<DeviceBuffer<f32>>,
    /// `[logit_rows_max][vocab]`.
    pub(super) logits: DeviceBuffer<f32>,
    /// Logits that come back, for two steps by turns; only steps that score prompts have any.
    pub(super) host_logits: [Pinned<f32>; 2],
    pub(super) logit_rows_max: usize,
}

/// Tables of cosines and sines. Attention names one where a model knows no RoPE at all.
fn rope_tables(spec: &ModelSpec) -> usize {
    spec.ropes.len().max(1)
}

/// Channels of the queries, in the layer that has most.
fn q_width(spec: &ModelSpec) -> usize {
    let widths = spec
        .attentions()
        .map(|(_, attention)| attention.heads().q_width());
    widths.max().unwrap_or(0)
}

/// Channels of the widest head.
fn head_dim_max(spec: &ModelSpec) -> usize {
    let widths = spec.attentions().map(|(_, attention)| attention.head_dim);
    widths.max().unwrap_or(0)
}

/// Values of a row of queries, keys and values, of the gates of attention's output, and of what
/// attention puts out; each has room for what recurrences have in its place.
fn mixer_widths(spec: &ModelSpec) -> [usize; 3] {
    let attentions = || spec.attentions().map(|(_, attention)| attention);
    let heads = attentions().map(|attention| attention.heads_width());
    let q_width = q_width(spec);
    let has_gate = spec.has_output_gates();
    let recurrent = || spec.layers.iter().filter_map(LayerSpec::recurrent);
    let read = recurrent().map(|recurrent| recurrent.in_width(spec.hidden));
    let out = recurrent().map(|recurrent| recurrent.out_width(spec.hidden));
    [
        read.chain(heads).fold(0, usize::max),
        if has_gate { q_width } else { 0 },
        out.fold(q_width, usize::max),
    ]
}

/// Values of a row that a router of its own norm reads, and of a branch of chosen experts.
fn branch_widths(spec: &ModelSpec) -> [usize; 2] {
    let experts = || spec.layers.iter().filter_map(LayerSpec::experts);
    let has_router_norm = experts().any(|experts| experts.router_norm.is_some());
    let has_branch_norms = experts().any(|experts| experts.branch_norms);
    [has_router_norm, has_branch_norms].map(|is_there| if is_there { spec.hidden } else { 0 })
}

/// Channels of the gates and what they open, in the layer that has most.
fn gate_up_width(spec: &ModelSpec) -> usize {
    let layers = spec.layers.iter();
    let gated = layers.filter(|l| l.plain_mlp().is_none() && !l.is_shared_plain());
    gated.map(|l| 2 * l.intermediate()).max().unwrap_or(0)
}

impl Activations {
    pub(super) fn new(
        device: &Arc<Device>,
        spec: &ModelSpec,
        rows: usize,
        logit_rows_max: usize,
    ) -> Result<Self, CudaError> {
        let narrow =
            |columns: usize| DeviceBuffer::<bf16>::filled(device, rows * columns, 0, "activations");
        let single = |values: usize| DeviceBuffer::<f32>::filled(device, values, 0, "activations");
        let [qkv, output_gate, attended] = mixer_widths(spec);
        let [router_input, chosen] = branch_widths(spec);
        Ok(Self {
            residual: single(rows * spec.hidden)?,
            normed: narrow(spec.hidden)?,
            qkv: narrow(qkv)?,
            q: narrow(q_width(spec))?,
            output_gate: narrow(output_gate)?,
            attended: narrow(attended)?,
            gate_up: narrow(gate_up_width(spec))?,
            mlp: narrow(spec.intermediate_max())?,
            delta: narrow(spec.hidden)?,
            router_input: narrow(router_input)?,
            chosen: narrow(chosen)?,
            layer_inputs: narrow(spec.per_layer_width())?,
            layer_input: narrow(spec.input_width())?,
            squares: single(squares_len(spec.hidden))?,
            ropes: (0..rope_tables(spec))
                .map(|_| single(rows * head_dim_max(spec)))
                .collect::<Result<_, _>>()?,
            logits: single(logit_rows_max * spec.vocab)?,
            host_logits: [Pinned::new(device, 0)?, Pinned::new(device, 0)?],
            logit_rows_max,
        })
    }

    /// Bytes that `new` allocates on the device.
    pub(super) fn bytes(spec: &ModelSpec, rows: usize, logit_rows_max: usize) -> usize {
        let widths = 2 * spec.hidden
            + q_width(spec)
            + spec.per_layer_width()
            + spec.input_width()
            + mixer_widths(spec).iter().sum::<usize>()
            + branch_widths(spec).iter().sum::<usize>()
            + gate_up_width(spec)
            + spec.intermediate_max();
        4 * squares_len(spec.hidden)
            + rows * (2 * widths + 4 * (spec.hidden + rope_tables(spec) * head_dim_max(spec)))
            + logit_rows_max * 4 * spec.vocab
    }

    /// Makes the host's copy of the logits large enough. The step that used it last has been waited
    /// for.
    pub(super) fn reserve_host_logits(
        &mut self,
        device: &Arc<Device>,
        turn: usize,
        values: usize,
    ) -> Result<(), CudaError> {
        if values > self.host_logits[turn].len() {
            self.host_logits[turn] = Pinned::new(device, values)?;
        }
        Ok(())
    }
}
