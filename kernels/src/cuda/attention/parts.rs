//! Attention of layers whose heads are several records, or are not as many as those that other
//! kernels are loaded for: launches of `cuda/attention/parts.cu`.

use std::sync::Arc;

use half::bf16;

use super::scores::{ScoreParams, ScoredLayer};
use crate::cuda::arena::DeviceArena;
use crate::cuda::driver::{Device, DeviceBuffer, Kernel, Stream};
use crate::cuda::error::CudaError;
use crate::cuda::params::{DevicePtr, KernelParams};
use crate::cuda::plan::Windows;
use crate::cuda::step::{PageTable, StepBuffers};
use crate::model::{AttentionSpec, HeadShape, KvPlace, LayerSpec, ModelSpec};

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct PartsParams {
    pages: PageTable,
    q: DevicePtr,
    out: DevicePtr,
    units: DevicePtr,
    unit_count: DevicePtr,
    rows: DevicePtr,
    row_count: DevicePtr,
    partial_o: DevicePtr,
    partial_ml: DevicePtr,
    tiles: DevicePtr,
    layer: u32,
    records: u32,
    parts: u32,
    q_heads: u32,
    kv_heads: u32,
    head_dim: u32,
    scale_log2: f32,
    tile_groups: u32,
    scores: ScoreParams,
}
// SAFETY: field for field `ebb::PartsParams` of attention/parts.cuh.
unsafe impl KernelParams for PartsParams {}

/// Queries that a CTA attends.
const QUERIES: usize = 8;
const THREADS: u32 = 256;

/// The widest head.
pub(in crate::cuda) const PARTS_HEAD_DIM_MAX: usize = 512;

/// The heads of most layers whose heads are the records of a layer of the KV cache, if any are:
/// what the other kernels attend with.
pub(in crate::cuda) fn whole_heads(spec: &ModelSpec) -> Option<HeadShape> {
    let places = spec.kv_places();
    let is_whole = |layer: usize| places[layer].is_some_and(|place| place.is_whole());
    let whole = spec.attentions().filter(|(layer, _)| is_whole(*layer));
    let shapes: Vec<_> = whole.map(|(_, attention)| attention.heads()).collect();
    let count = |shape| shapes.iter().filter(|other| **other == shape).count();
    // Of as many the first.
    shapes
        .iter()
        .copied()
        .rev()
        .max_by_key(|shape| count(*shape))
}

/// Which layers of a model attend by these kernels.
fn in_parts(spec: &ModelSpec) -> Vec<bool> {
    let (places, whole) = (spec.kv_places(), whole_heads(spec));
    let is_in_parts = |(layer, attention): (usize, Option<&AttentionSpec>)| {
        let is_whole = places[layer].is_some_and(|place| place.is_whole());
        attention.is_some_and(|attention| !is_whole || Some(attention.heads()) != whole)
    };
    let attentions = spec.layers.iter().map(LayerSpec::attention);
    attentions.enumerate().map(is_in_parts).collect()
}

/// The attention of those.
fn layers(spec: &ModelSpec) -> impl Iterator<Item = &AttentionSpec> {
    let layers = spec.layers.iter().zip(in_parts(spec));
    layers.filter_map(|(layer, is_in_parts)| layer.attention().filter(|_| is_in_parts))
}

/// Floats of the partial results of a unit, in the layer that has most.
fn partial_floats(spec: &ModelSpec) -> usize {
    let floats = layers(spec).map(|a| a.q_heads * a.head_dim);
    floats.max().unwrap_or(0)
}

/// A layer to attend in.
#[derive(Debug, Clone, Copy)]
pub(in crate::cuda) struct PartsLayer<'a> {
    pub(in crate::cuda) attention: &'a AttentionSpec,
    pub(in crate::cuda) place: KvPlace,
    pub(in crate::cuda) scored: ScoredLayer,
    pub(in crate::cuda) scale_log2: f32,
}

/// The kernels, and room for results of cut sequences.
#[derive(Debug)]
pub(in crate::cuda) struct Parts {
    decode: Kernel<PartsParams>,
    merge: Kernel<PartsParams>,
    prefill: Kernel<PartsParams>,
    partial_o: DeviceBuffer<f32>,
    partial_ml: DeviceBuffer<f32>,
    multiprocessors: usize,
    /// Which layers attend so.
    layers: Vec<bool>,
}

impl Parts {
    /// For steps that have up to `units` units in a decode plan; `None` if no layer attends so.
    pub(in crate::cuda) fn new(
        device: &Arc<Device>,
        spec: &ModelSpec,
        units: usize,
    ) -> Result<Option<Self>, CudaError> {
        let Some(head_dim) = layers(spec).map(|a| a.head_dim).max() else {
            return Ok(None);
        };
        if head_dim > PARTS_HEAD_DIM_MAX {
            return Err(CudaError::Unsupported(format!(
                "head_dim {head_dim}: the CUDA backend has kernels for up to {PARTS_HEAD_DIM_MAX}"
            )));
        }
        // `PartsShared` of attention/parts.cuh.
        let rows = 32 * (2 * head_dim + 16) + 32 * 2 * head_dim;
        let shared = 4 * QUERIES * head_dim + rows + 8 * QUERIES;
        let heads = layers(spec).map(|a| a.q_heads).max().unwrap_or(0);
        let what = "partial attention results";
        Ok(Some(Self {
            decode: device.kernel("parts_decode", shared)?,
            merge: device.kernel("parts_merge", 0)?,
            prefill: device.kernel("parts_prefill", shared)?,
            partial_o: DeviceBuffer::new(device, units * partial_floats(spec), what)?,
            partial_ml: DeviceBuffer::new(device, units * heads * 2, what)?,
            multiprocessors: device.multiprocessors(),
            layers: in_parts(spec),
        }))
    }

    /// Whether a layer attends so.
    pub(in crate::cuda) fn attends(&self, layer: usize) -> bool {
        self.layers[layer]
    }

    /// Bytes that `new` allocates on the device, at most.
    pub(in crate::cuda) fn bytes(spec: &ModelSpec, units: usize) -> usize {
        let heads = layers(spec).map(|a| a.q_heads).max().unwrap_or(0);
        4 * units * (partial_floats(spec) + 2 * heads)
    }

    fn params(
        &self,
        (step, arena, windows): (&StepBuffers, &DeviceArena, &Windows),
        layer: &PartsLayer<'_>,
        q: &DeviceBuffer<bf16>,
        out: &mut DeviceBuffer<bf16>,
    ) -> PartsParams {
        let PartsLayer {
            attention, place, ..
        } = layer;
        let plan = step.decode(windows.plan(attention.seen()));
        let geometry = arena.geometry();
        PartsParams {
            pages: step.page_table(arena),
            q: q.ptr(),
            out: out.ptr(),
            units: plan.units,
            unit_count: plan.unit_count,
            rows: plan.rows,
            row_count: plan.row_count,
            partial_o: self.partial_o.ptr(),
            partial_ml: self.partial_ml.ptr(),
            tiles: 0,
            layer: geometry.layer_place(place.first_layer) as u32,
            records: geometry.kv_heads as u32,
            parts: place.parts() as u32,
            q_heads: attention.q_heads as u32,
            kv_heads: attention.kv_heads as u32,
            head_dim: attention.head_dim as u32,
            scale_log2: layer.scale_log2,
            tile_groups: 0,
            scores: layer.scored.params(),
        }
    }

    // SAFETY of every launch below: the step was checked against the pool before it was loaded, so
    // every block, frame and row is in range of the arena, q and out; partial results have room for
    // the units of any plan. Work of one stream runs in order.

    /// Enqueues the attention of up to `seqs` sequences of the loaded step that decode; `cut`: some
    /// may be several units.
    pub(in crate::cuda) fn decode(
        &mut self,
        stream: &Stream,
        (seqs, cut): (usize, bool),
        on: (&StepBuffers, &DeviceArena, &Windows),
        layer: &PartsLayer<'_>,
        q: &DeviceBuffer<bf16>,
        out: &mut DeviceBuffer<bf16>,
    ) -> Result<(), CudaError> {
        let params = self.params(on, layer, q, out);
        let grid = (2 * self.multiprocessors as u32, 1);
        // SAFETY: see above.
        unsafe { self.decode.launch(stream, grid, THREADS, &params)? };
        if !cut {
            return Ok(());
        }
        let grid = (seqs as u32, params.q_heads);
        // SAFETY: see above.
        unsafe { self.merge.launch(stream, grid, THREADS, &params) }
    }

    /// Enqueues the attention of all tiles of one turn of the loaded step.
    pub(in crate::cuda) fn prefill(
        &mut self,
        stream: &Stream,
        turn: usize,
        on: (&StepBuffers, &DeviceArena, &Windows),
        layer: &PartsLayer<'_>,
        q: &DeviceBuffer<bf16>,
        out: &mut DeviceBuffer<bf16>,
    ) -> Result<(), CudaError> {
        let step = on.0;
        let tiles = &step.plan.tiles[step.plan.turns[turn].clone()];
        let Some(rows) = tiles.iter().map(|tile| tile.rows as usize).max() else {
            return Ok(());
        };
        let group = layer.attention.heads().group();
        let tile_groups = rows.div_ceil((QUERIES / group).max(1));
        let params = PartsParams {
            tiles: step.tiles(turn),
            tile_groups: tile_groups as u32,
            ..self.params(on, layer, q, out)
        };
        let sets = layer.attention.kv_heads * group.div_ceil(QUERIES);
        let grid = ((tiles.len() * tile_groups) as u32, sets as u32);
        // SAFETY: see above.
        unsafe { self.prefill.launch(stream, grid, THREADS, &params) }
    }
}
