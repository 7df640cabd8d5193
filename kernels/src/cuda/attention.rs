//! Paged attention: launches of `cuda/attention`.

mod mixed;
mod parts;
mod scores;
mod variants;

use std::sync::Arc;

use half::bf16;

use super::arena::DeviceArena;
use super::codecs::PagePlaces;
use super::driver::{Device, DeviceBuffer, Kernel, Stream, TensorMap};
use super::error::CudaError;
use super::ops::{HEAD_DIM_MAX, HeadParams, HeadSpec};
use super::params::{DevicePtr, KernelParams};
use super::plan::{SplitRule, Spread, UnitColumns, Windows};
use super::prefill::{Prefill, PrefillVariant};
use super::step::{PageTable, StepBuffers};
use crate::kv::{KvGeometry, KvLayout};
use mixed::{Mixed, MixedShape};
pub(super) use parts::{PARTS_HEAD_DIM_MAX, Parts, PartsLayer, whole_heads};
pub use scores::ScoreSpec;
pub(super) use scores::{ScoreParams, Scored, ScoredLayer};
pub use variants::{DECODE_VARIANTS, DecodeVariant};
use variants::{DEEP_VARIANTS, DecodeWay};

/// Query heads that one decode unit serves: the n = 8 side of its matrix instructions.
const UNIT_HEADS: usize = 8;

/// Bytes from one row of a tile in shared memory to the next, in all; `Tile` of attention/tile.cuh.
pub(super) fn tile_row_bytes(head_dim: usize) -> usize {
    match head_dim.is_multiple_of(64) {
        true => 2 * head_dim,
        false => 2 * head_dim + 16,
    }
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct DecodeParams {
    pages: PageTable,
    q: DevicePtr,
    out: DevicePtr,
    units: DevicePtr,
    unit_count: DevicePtr,
    partial_o: DevicePtr,
    partial_ml: DevicePtr,
    counters: DevicePtr,
    work: DevicePtr,
    layer: u32,
    q_heads: u32,
    kv_heads: u32,
    q_stride: u32,
    scale_log2: f32,
    units_max: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct RingDecodeParams {
    decode: DecodeParams,
    scores: ScoreParams,
}
// SAFETY: field for field `ebb::RingDecodeParams` of attention/decode.cuh.
unsafe impl KernelParams for RingDecodeParams {}

/// L2 policies as `createpolicy` encodes them, of all that is copied.
const EVICT_FIRST: u64 = 0x12f0_0000_0000_0000;
const EVICT_NORMAL: u64 = 0x1000_0000_0000_0000;

/// Sequences, at least, whose KV leaves L2 first, so that what else a step uses stays there: that
/// is 1 % of the time of a step of 64, 2 % where blocks have shrunk, and costs a single stream 1 %.
/// KV of long ones, which are cut, is nearly all that a step moves, and does not: nothing is gained
/// there, and where L2 has much to write back such copies are 3 % slower.
const STREAMED_SEQS: usize = 32;

#[repr(C, align(64))]
#[derive(Debug, Clone, Copy)]
struct BulkDecodeParams {
    records: TensorMap,
    decode: DecodeParams,
    heads: HeadParams,
    policy: u64,
    scores: ScoreParams,
    reserved: [u32; 10],
}
const _: () = assert!(size_of::<BulkDecodeParams>() == 384);
// SAFETY: field for field `ebb::BulkDecodeParams` of attention/decode_bulk.cuh.
unsafe impl KernelParams for BulkDecodeParams {}

#[repr(C, align(64))]
#[derive(Debug, Clone, Copy)]
struct MixedDecodeParams {
    records: TensorMap,
    decode: DecodeParams,
    levels: DevicePtr,
    pages: DevicePtr,
    page_count: u32,
    group: u32,
    level_count: u32,
    reserved: u32,
    policy: u64,
    scores: ScoreParams,
}
const _: () = assert!(size_of::<MixedDecodeParams>() == 320);
// SAFETY: field for field `ebb::MixedDecodeParams` of attention/decode_pieces.cuh.
unsafe impl KernelParams for MixedDecodeParams {}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct DecodeMergeParams {
    rows: DevicePtr,
    row_count: DevicePtr,
    partial_o: DevicePtr,
    partial_ml: DevicePtr,
    out: DevicePtr,
    q_heads: u32,
    reserved: u32,
    scores: ScoreParams,
}
// SAFETY: field for field `ebb::DecodeMergeParams` of attention/decode_bulk.cuh.
unsafe impl KernelParams for DecodeMergeParams {}

/// The kernels that merge the units of cut sequences.
type Merge = Scored<Kernel<DecodeMergeParams>>;

/// For 64 and 128 channels a head.
fn load_merge(device: &Arc<Device>, head_dim: usize, any: bool) -> Result<Merge, CudaError> {
    let [plain, of_any] = match head_dim {
        128 => ["decode_merge_d128", "decode_merge_d128_any"],
        _ => ["decode_merge_d64", "decode_merge_d64_any"],
    };
    Scored::load(any, |is_plain| {
        device.kernel(if is_plain { plain } else { of_any }, 0)
    })
}

/// Units of a multiprocessor that are few.
const DEEP_UNITS: usize = 4;

#[derive(Debug)]
enum DecodeKernel {
    Ring(Kernel<RingDecodeParams>),
    Bulk(Kernel<BulkDecodeParams>),
}

/// A kernel with its persistent grid.
#[derive(Debug)]
struct Launch {
    kernel: DecodeKernel,
    grid: u32,
}

impl Launch {
    fn new(
        device: &Arc<Device>,
        variant: DecodeVariant,
        name: &'static str,
    ) -> Result<Self, CudaError> {
        let (shared, threads) = (variant.shared_bytes(), variant.threads());
        let (kernel, ctas) = match variant.way {
            DecodeWay::Ring { .. } => {
                let kernel: Kernel<RingDecodeParams> = device.kernel(name, shared)?;
                let ctas = kernel.ctas_per_multiprocessor(threads)?;
                (DecodeKernel::Ring(kernel), ctas)
            }
            DecodeWay::Bulk => {
                let kernel: Kernel<BulkDecodeParams> = device.kernel(name, shared)?;
                let ctas = kernel.ctas_per_multiprocessor(threads)?;
                (DecodeKernel::Bulk(kernel), ctas)
            }
        };
        Ok(Self {
            kernel,
            grid: (ctas * device.multiprocessors()) as u32,
        })
    }
}

/// The decode kernels of a shape.
#[derive(Debug)]
struct Decoder {
    launches: Scored<Launch>,
    variant: DecodeVariant,
}

impl Decoder {
    fn new(device: &Arc<Device>, variant: DecodeVariant, any: bool) -> Result<Self, CudaError> {
        let launches = Scored::load(any, |is_plain| {
            let name = if is_plain {
                variant.name
            } else {
                variant.any()?
            };
            Launch::new(device, variant, name)
        })?;
        Ok(Self { launches, variant })
    }
}

/// What a step asks of the decode kernels, known before its lengths are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct DecodeWork {
    /// Rows, at most: sequences, where each has one.
    pub(super) seqs: usize,
    /// Whether one may be cut into several units.
    pub(super) cut: bool,
    /// Whether those are all under way at once ([`Attention::spread`]).
    pub(super) at_once: bool,
    /// Whether they may read shrunk blocks.
    pub(super) mixed: bool,
}

/// Queries of a decode step, and its newest keys and values.
#[derive(Debug, Clone, Copy)]
pub(super) enum Queries<'a> {
    /// `[rows][q_heads * head_dim]`, keys and values in their pages.
    Finished(&'a DeviceBuffer<bf16>),
    /// For the kernel to finish and to append; only where [`Attention::finishes`].
    Projected(&'a HeadSpec, HeadParams),
}

/// Decode and prefill attention of one model shape, with the scratch of split sequences.
#[derive(Debug)]
pub struct Attention {
    decode: Decoder,
    /// For few units; none if the kernel was chosen by the caller.
    deep: Option<Decoder>,
    /// For shrunk blocks, if there is a kernel for the shape.
    mixed: Option<Mixed>,
    /// For sequences that were cut, where decode kernels leave that to another.
    merge: Option<Merge>,
    multiprocessors: usize,
    windows: Windows,
    /// Units of each decode plan, at most.
    rooms: Vec<usize>,
    /// Of the kernel over shrunk blocks that has most units.
    narrowest: UnitColumns,
    prefill: Prefill,
    geometry: KvGeometry,
    heads: HeadSpec,
    partial_o: DeviceBuffer<f32>,
    partial_ml: DeviceBuffer<f32>,
    counters: DeviceBuffer<u32>,
    work: DeviceBuffer<u32>,
}

impl Attention {
    /// Prepares for steps of up to `seqs` sequences with `blocks` blocks in all, of which those
    /// that may read shrunk blocks decode with up to `rows` rows (drafted tokens to be checked),
    /// the others with one. `heads` are those of every layer, but for what is done before scores,
    /// and `scores` what each layer does with these. `variant` and `prefill` are the first that fit
    /// if `None`.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn new(
        device: &Arc<Device>,
        geometry: KvGeometry,
        heads: HeadSpec,
        scores: &[ScoreSpec],
        (seqs, blocks): (usize, usize),
        rows: usize,
        rule: SplitRule,
        (variant, prefill): (Option<DecodeVariant>, Option<PrefillVariant>),
    ) -> Result<Self, CudaError> {
        heads.check(HEAD_DIM_MAX)?;
        assert!(heads.head_dim == geometry.head_dim && heads.kv_heads == geometry.kv_heads);
        let (head_dim, q_heads) = (heads.head_dim, heads.q_heads);
        let fits = |v: &&DecodeVariant| v.head_dim == head_dim && v.runs_on(device);
        let deep = match variant {
            Some(_) => None,
            None => DEEP_VARIANTS.iter().find(fits).copied(),
        };
        let variant = variant
            .or_else(|| DECODE_VARIANTS.iter().find(fits).copied())
            .ok_or_else(|| {
                CudaError::Unsupported(format!(
                    "{} has too little shared memory per CTA",
                    device.name()
                ))
            })?;
        if rows > 1 && scores.iter().any(|layer| layer.seen.chunked) {
            let what = "chunks, of which a sequence's rows may see several";
            return Err(CudaError::Unsupported(what.to_owned()));
        }
        let columns = unit_columns(geometry, q_heads, rows);
        let windows = ScoreSpec::windows(scores);
        let room = |plan| windows.room(plan, rule, (seqs, blocks), columns);
        let rooms: Vec<_> = (0..windows.len()).map(room).collect();
        // Those of the first plan are the most.
        let units = rooms[0];
        let unit_heads = unit_heads(geometry, q_heads);
        let any = scores.iter().any(|layer| !layer.is_plain());
        let merges = variant.way == DecodeWay::Bulk;
        let decoder = |variant| Decoder::new(device, variant, any);
        Ok(Self {
            decode: decoder(variant)?,
            deep: deep.map(decoder).transpose()?,
            mixed: Mixed::new(device, MixedShape::of(head_dim, rows, columns.group), any)?,
            merge: merges
                .then(|| load_merge(device, head_dim, any))
                .transpose()?,
            multiprocessors: device.multiprocessors(),
            windows,
            rooms,
            narrowest: columns,
            prefill: Prefill::new(device, heads, prefill, any)?,
            geometry,
            heads,
            partial_o: DeviceBuffer::new(
                device,
                units * q_heads * head_dim,
                "partial attention results",
            )?,
            partial_ml: DeviceBuffer::new(device, units * q_heads * 2, "partial attention sums")?,
            counters: DeviceBuffer::filled(device, seqs * unit_heads, 0, "attention counters")?,
            work: DeviceBuffer::filled(device, 2, 0, "the work counter")?,
        })
    }

    fn unit_heads(&self) -> usize {
        unit_heads(self.geometry, self.heads.q_heads)
    }

    /// How steps that may read shrunk blocks must be planned; to be asked once formats have been
    /// taken.
    pub(super) fn columns(&self) -> UnitColumns {
        let narrowest = self.narrowest;
        let of_unit = self
            .mixed
            .as_ref()
            .map_or(narrowest.of_unit, Mixed::columns);
        UnitColumns {
            of_unit,
            ..narrowest
        }
    }

    /// What rows of the layers see.
    pub(super) fn windows(&self) -> &Windows {
        &self.windows
    }

    /// Units that a step has room for in a decode plan, those of the kernel that has most: kernels
    /// ask for one before they know whether it is there.
    pub(super) fn room(&self, plan: usize) -> usize {
        self.rooms[plan]
    }

    /// The prefill kernel in use; steps must be planned for its tiles.
    pub fn prefill_variant(&self) -> PrefillVariant {
        self.prefill.variant()
    }

    /// The decode kernel in use.
    pub fn variant(&self) -> DecodeVariant {
        self.decode.variant
    }

    /// Bytes of scratch that `new` allocates on the device.
    pub(super) fn scratch_bytes(
        geometry: KvGeometry,
        q_heads: usize,
        windows: &Windows,
        (seqs, blocks): (usize, usize),
    ) -> usize {
        let columns = unit_columns(geometry, q_heads, 1);
        let units = windows.room(0, SplitRule::default(), (seqs, blocks), columns);
        4 * (units * q_heads * (geometry.head_dim + 2) + seqs * q_heads + 2)
    }

    /// Partial results of the units of cut sequences as the last decode left them,
    /// `[partials][q_heads][head_dim]`, not divided by their sums, and of each its maximum (base 2)
    /// and its sum.
    pub(super) fn partials(&self) -> (&DeviceBuffer<f32>, &DeviceBuffer<f32>) {
        (&self.partial_o, &self.partial_ml)
    }

    /// Whether shrunk blocks of these formats are read as they are. To be asked before steps run:
    /// from here on there are no others.
    pub(super) fn take_formats(&mut self, layout: &KvLayout) -> bool {
        self.mixed.as_mut().is_some_and(|m| m.take(layout))
    }

    /// Whether the kernel that reads shrunk blocks knows polar keys; `None` if there is no such
    /// kernel.
    pub(super) fn knows_polar(&self) -> Option<bool> {
        self.mixed.as_ref().map(Mixed::knows_polar)
    }

    /// How sequences of steps of few are best cut: into units that are all under way at once, in
    /// the kernel for few if there is one.
    pub(super) fn spread(&self) -> Spread {
        let ctas = match (&self.deep, self.decode.variant.way) {
            (Some(_), _) => self.multiprocessors,
            (None, DecodeWay::Ring { .. }) => self.decode.launches.of(true).grid as usize,
            (None, DecodeWay::Bulk) => 0,
        };
        Spread {
            units: ctas / self.unit_heads(),
            blocks: self.decode.variant.blocks_in_ring(),
            last_merges: self.merge.is_none(),
        }
    }

    fn decoder(&self, work: DecodeWork) -> &Decoder {
        let units = work.seqs * self.unit_heads();
        let few = match work.cut {
            true => work.at_once,
            false => units <= DEEP_UNITS * self.multiprocessors,
        };
        self.deep.as_ref().filter(|_| few).unwrap_or(&self.decode)
    }

    /// What a layer's decode plan asks, where the first one asks `work`.
    pub(super) fn work_in(
        &self,
        step: &StepBuffers,
        work: DecodeWork,
        scores: &ScoreSpec,
    ) -> DecodeWork {
        step.work_of(self.windows.plan(scores.seen), work, self.spread().units)
    }

    /// Whether decode attention takes a layer's heads as their projection left them, in steps of
    /// one row a sequence. Where several units share tokens of a KV head, each would append it.
    pub(super) fn finishes(
        &self,
        step: &StepBuffers,
        work: DecodeWork,
        heads: &HeadSpec,
        scores: &ScoreSpec,
    ) -> bool {
        let work = self.work_in(step, work, scores);
        let one_unit = self.unit_heads() == self.geometry.kv_heads;
        heads.is_tuned() && one_unit && !work.mixed && self.decoder(work).variant.finishes()
    }

    /// Enqueues the attention of all sequences of the loaded step that decode; the number of units
    /// is read on the device. `work`: of the first decode plan. `pages`: the device's table of
    /// formats and places, if `work` may read shrunk blocks.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn decode(
        &mut self,
        stream: &Stream,
        work: DecodeWork,
        step: &StepBuffers,
        arena: &DeviceArena,
        pages: Option<PagePlaces>,
        layer: &ScoredLayer,
        queries: Queries<'_>,
        out: &mut DeviceBuffer<bf16>,
    ) -> Result<(), CudaError> {
        let (q, heads) = match queries {
            Queries::Finished(q) => (q.ptr(), HeadParams::NONE),
            Queries::Projected(spec, heads) => {
                assert!(
                    self.finishes(step, work, spec, &layer.scores),
                    "a kernel that cannot finish heads"
                );
                (0, heads)
            }
        };
        let work = self.work_in(step, work, &layer.scores);
        let plan = step.decode(self.windows.plan(layer.scores.seen));
        let (is_plain, scores) = (layer.scores.is_plain(), layer.params());
        let width = self.heads.q_heads * self.heads.head_dim;
        let params = DecodeParams {
            pages: step.page_table(arena),
            q,
            out: out.ptr(),
            units: plan.units,
            unit_count: plan.unit_count,
            partial_o: self.partial_o.ptr(),
            partial_ml: self.partial_ml.ptr(),
            counters: self.counters.ptr(),
            work: self.work.ptr(),
            layer: arena.geometry().layer_place(layer.index) as u32,
            q_heads: self.heads.q_heads as u32,
            kv_heads: self.heads.kv_heads as u32,
            q_stride: width as u32,
            scale_log2: self.heads.scale_log2(),
            units_max: plan.room as u32,
        };
        let merge_grid = (width.div_ceil(MERGE_VALUES) as u32, work.seqs as u32);
        let merge_params = DecodeMergeParams {
            rows: plan.rows,
            row_count: plan.row_count,
            partial_o: params.partial_o,
            partial_ml: params.partial_ml,
            out: params.out,
            q_heads: params.q_heads,
            reserved: 0,
            scores,
        };
        let policy = match work.seqs >= STREAMED_SEQS && !work.cut {
            true => EVICT_FIRST,
            false => EVICT_NORMAL,
        };
        if let (true, Some(mixed), Some(pages)) = (work.mixed, &self.mixed, pages) {
            let params = MixedDecodeParams {
                records: match mixed.copies {
                    true => arena.maps().ok_or_else(no_copies)?.whole,
                    false => TensorMap::NONE,
                },
                decode: params,
                levels: step.block_levels(),
                pages: pages.ptr,
                page_count: 2 * self.geometry.layers as u32,
                group: self.narrowest.group as u32,
                level_count: pages.levels,
                reserved: 0,
                policy,
                scores,
            };
            // SAFETY: as below; positions and the pages of each were checked with the step.
            return unsafe {
                let (launch, threads) = (mixed.instance().launches.of(is_plain), mixed.threads());
                let grid = (launch.grid, 1);
                launch.kernel.launch(stream, grid, threads, &params)?;
                match work.cut {
                    true => mixed.merge.of(is_plain).launch(
                        stream,
                        merge_grid,
                        MERGE_THREADS,
                        &merge_params,
                    ),
                    false => Ok(()),
                }
            };
        }
        let decoder = self.decoder(work);
        // SAFETY: the step was checked against the pool before it was loaded, so every block, frame
        // and row is in range of the arena, q and out; the scratch was sized for the step's
        // capacity. Work of one stream runs in order.
        unsafe {
            let launch = decoder.launches.of(is_plain);
            let (grid, threads) = ((launch.grid, 1), decoder.variant.threads());
            match &launch.kernel {
                DecodeKernel::Ring(kernel) => {
                    let decode = params;
                    let params = RingDecodeParams { decode, scores };
                    kernel.launch(stream, grid, threads, &params)
                }
                DecodeKernel::Bulk(kernel) => {
                    let params = BulkDecodeParams {
                        records: arena.maps().ok_or_else(no_copies)?.whole,
                        decode: params,
                        heads,
                        policy,
                        scores,
                        reserved: [0; 10],
                    };
                    kernel.launch(stream, grid, threads, &params)?;
                    match &self.merge {
                        Some(merge) if work.cut => merge.of(is_plain).launch(
                            stream,
                            merge_grid,
                            MERGE_THREADS,
                            &merge_params,
                        ),
                        _ => Ok(()),
                    }
                }
            }
        }
    }

    /// Enqueues the attention of all tiles of one turn of the loaded step.
    pub(super) fn prefill(
        &mut self,
        stream: &Stream,
        step: &StepBuffers,
        arena: &DeviceArena,
        layer: (&ScoredLayer, usize),
        q: &DeviceBuffer<bf16>,
        out: &mut DeviceBuffer<bf16>,
    ) -> Result<(), CudaError> {
        self.prefill.run(stream, step, arena, layer, q, out)
    }
}

/// Units of work that a range of a sequence's tokens is: KV heads, times the groups of query heads
/// that one unit serves.
fn unit_heads(geometry: KvGeometry, q_heads: usize) -> usize {
    geometry.kv_heads * (q_heads / geometry.kv_heads).div_ceil(UNIT_HEADS)
}

/// Of the narrowest kernel over shrunk blocks, which has most units, for sequences of up to `rows`
/// rows.
pub(super) fn unit_columns(geometry: KvGeometry, q_heads: usize, rows: usize) -> UnitColumns {
    let group = (q_heads / geometry.kv_heads).max(1);
    UnitColumns {
        rows,
        group,
        of_unit: MixedShape::of(geometry.head_dim, rows, group)
            .narrow()
            .columns(),
    }
}

fn no_copies() -> CudaError {
    CudaError::Unsupported("this device has no copy engine for the kernel chosen".into())
}

/// Outputs that a CTA merges, and its threads; grid and block of `decode_merge`.
const MERGE_VALUES: usize = 256;
const MERGE_THREADS: u32 = 256;

#[cfg(test)]
mod tests {
    use super::mixed::Needs;
    use super::*;
    use crate::formats::gpu::Reader;
    use crate::formats::{FormatId, precision_levels};
    use crate::kv::Side;

    #[test]
    fn one_page_that_the_kernel_does_not_know_at_any_position_is_enough_to_read_scratch() {
        let geometry = KvGeometry {
            layers: 2,
            kv_heads: 2,
            head_dim: 64,
            windowed: crate::kv::WindowedLayers::NONE,
        };
        for side in [Side::K, Side::V] {
            for format in FormatId::ALL.iter().filter(|f| f.is_legal(side)) {
                let mut pages = [vec![FormatId::Int8; 4], vec![FormatId::Int4; 4]];
                pages[1][2 + side as usize] = *format;
                let layout = KvLayout::new(geometry, geometry.frame_layout(), &pages).unwrap();
                use FormatId as F;
                let is_known = matches!(format, F::Int3 | F::Polar44 | F::Polar42 | F::Polar44Grid)
                    || precision_levels(side).any(|level| level == *format)
                        && !matches!(format, F::Int8t | F::Int4t | F::Int2t);
                let needs = match format.gpu_reader() {
                    Reader::Polar => Needs::Polar,
                    _ => Needs::Codes,
                };
                assert_eq!(
                    needs == Needs::Polar,
                    matches!(format, F::Polar44 | F::Polar42 | F::Polar44Grid),
                    "{format}"
                );
                assert_eq!(Needs::of(&layout), is_known.then_some(needs), "{format}");
            }
        }
    }
}
