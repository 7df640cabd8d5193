//! Pages below 16 bit on the device: launches of `cuda/formats`, and what goes to and fro for them.
//!
//! Shrinks run before a step's rows. Decode attention reads shrunk blocks as they are, prefill
//! attention knows 16-bit pages only: before each layer's, the shrunk blocks that it reads are
//! dequantised into scratch frames behind the pool's, which entries of the tables name that are
//! made for the step.

mod rewrite;
mod tables;

use std::sync::Arc;
use std::time::Duration;

use super::arena::DeviceArena;
use super::driver::{Device, DeviceBuffer, Event, Kernel, Pinned, Stream};
use super::error::CudaError;
use super::params::{DevicePtr, KernelParams};
use super::plan::InScratch;
use super::tables::DeviceTables;
use crate::backend::{BlockTables, ShrinkFailure, StepInput, any_frame};
use crate::kv::KvLayout;
pub(super) use rewrite::Scratch;
use rewrite::{DEQUANTISE_WORDS, Rewrite, Rule};
pub(super) use tables::{PagePlaces, PageTable, supports};

/// `ebb::KvPool` of formats/pool.cuh.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct KvPool {
    arena: DevicePtr,
    pages: DevicePtr,
    frames: DevicePtr,
    frame_bytes: u64,
    page_count: u32,
    kv_heads: u32,
    frames_per_sub_block: u32,
    records_per_frame: u32,
}
const _: () = assert!(size_of::<KvPool>() == 48);

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct ShrinkParams {
    pool: KvPool,
    jobs: DevicePtr,
    failures: DevicePtr,
}
// SAFETY: field for field `ebb::ShrinkParams` of formats/shrink.cuh.
unsafe impl KernelParams for ShrinkParams {}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct DequantiseParams {
    pool: KvPool,
    jobs: DevicePtr,
    shrinks: DevicePtr,
    failures: DevicePtr,
    layer: u32,
    scratch_slots: u32,
}
// SAFETY: field for field `ebb::DequantiseParams` of formats/dequantise.cu.
unsafe impl KernelParams for DequantiseParams {}

/// Words of a `ebb::ShrinkJob`: precision levels from and to, first frames of source and target,
/// records.
const SHRINK_WORDS: usize = 5;
/// What a shrink reports when nothing failed.
const SOUND: u64 = u64::MAX;
/// Blocks of one launch: the rows of a grid.
const LAUNCH_MAX: usize = 65_535;

/// The host's side of one step; two are in use by turns.
#[derive(Debug)]
struct Host {
    /// Shrinks, blocks to dequantise, and frames.
    words: Pinned<u32>,
    failures: Pinned<u64>,
    shrinks: usize,
    /// Around the shrinks.
    began: Event,
    ended: Event,
}

/// Kernels and buffers for the shrunk blocks of one pool.
#[derive(Debug)]
pub(super) struct Codecs {
    transcode: Kernel<ShrinkParams>,
    /// Makes the pages of the formats that `transcode` leaves out, if the layout has any.
    encode: Option<Kernel<ShrinkParams>>,
    dequantise: Kernel<DequantiseParams>,
    layout: KvLayout,
    threads: u32,
    scratch: Scratch,
    /// Frames of the pool: where scratch begins.
    pool_frames: u32,
    /// Whether decode attention reads shrunk blocks.
    reads: bool,
    pages: PageTable,
    words: DeviceBuffer<u32>,
    failures: DeviceBuffer<u64>,
    hosts: [Host; 2],
    rewrite: Rewrite,
    /// Shrinks of the step that is being enqueued; its blocks to dequantise are `rewrite`'s.
    shrinks: usize,
    // What `wait` lends.
    told: Vec<ShrinkFailure>,
}

/// What a step can ask for.
#[derive(Debug, Clone, Copy)]
struct Most {
    shrinks: usize,
    words: usize,
}

impl Most {
    /// No frame is named by two shrinks or two blocks, and a shrink names two frames at least. A
    /// block may be dequantised in many turns.
    fn of(frames: u32, scratch: Scratch) -> Self {
        let shrinks = frames as usize / 2;
        Self {
            shrinks,
            words: SHRINK_WORDS * shrinks
                + DEQUANTISE_WORDS * scratch.shape.entries
                + 2 * frames as usize,
        }
    }
}

impl Codecs {
    /// For a pool of `frames` frames, `scratch` behind it; `None` if its blocks never shrink.
    /// `reads`: decode attention reads shrunk blocks as they are.
    pub(super) fn new(
        device: &Arc<Device>,
        layout: &KvLayout,
        frames: u32,
        scratch: Scratch,
        reads: bool,
    ) -> Result<Option<Self>, CudaError> {
        if layout.levels() == 1 {
            return Ok(None);
        }
        let head_dim = layout.geometry().head_dim;
        if !supports(layout) {
            return Err(CudaError::Unsupported(format!(
                "a KV cache of {head_dim} channels a head that shrinks"
            )));
        }
        // page_shared_bytes of formats/page.cuh
        let shared = 256 * head_dim + 64 * head_dim.max(128);
        let (transcode, encode, dequantise) = match head_dim {
            64 => (
                "transcode_d64",
                Some("encode_pages_d64"),
                "dequantise_pages_d64",
            ),
            128 => (
                "transcode_d128",
                Some("encode_pages_d128"),
                "dequantise_pages_d128",
            ),
            // `supports` lets no page be encoded.
            _ => ("transcode_d256", None, "dequantise_pages_d256"),
        };
        let encode = encode.filter(|_| tables::encodes(layout));
        let encode = encode.map(|name| device.kernel(name, shared));
        let most = Most::of(frames, scratch);
        let host = || -> Result<Host, CudaError> {
            Ok(Host {
                words: Pinned::new(device, most.words)?,
                failures: Pinned::new(device, most.shrinks)?,
                shrinks: 0,
                began: Event::new(device)?,
                ended: Event::new(device)?,
            })
        };
        let what = "shrinks";
        Ok(Some(Self {
            transcode: device.kernel(transcode, shared)?,
            encode: encode.transpose()?,
            dequantise: device.kernel(dequantise, shared)?,
            threads: 2 * head_dim as u32,
            scratch,
            pool_frames: frames,
            reads,
            pages: PageTable::new(device, layout)?,
            words: DeviceBuffer::filled(device, most.words, 0, what)?,
            failures: DeviceBuffer::new(device, most.shrinks, what)?,
            hosts: [host()?, host()?],
            rewrite: Rewrite::default(),
            shrinks: 0,
            told: Vec::new(),
            layout: layout.clone(),
        }))
    }

    /// Bytes that `new` allocates on the device. The scratch frames are the arena's.
    pub(super) fn bytes(layout: &KvLayout, frames: u32, scratch: Scratch) -> usize {
        if layout.levels() == 1 {
            return 0;
        }
        let most = Most::of(frames, scratch);
        PageTable::bytes(layout) + 4 * most.words + 8 * most.shrinks
    }

    /// Enqueues the shrinks of a checked step, and what dequantising its shrunk blocks to scratch
    /// reads; the tables get entries for the sequences that read them there. `turn` names the
    /// host's buffers; the step that used them last has been waited for.
    pub(super) fn begin(
        &mut self,
        stream: &Stream,
        turn: usize,
        arena: &mut DeviceArena,
        input: &StepInput,
        tables: (&BlockTables, &mut DeviceTables),
    ) -> Result<(), CudaError> {
        let rule = Rule {
            scratch: self.scratch,
            first: self.pool_frames,
            reads: self.reads,
        };
        self.rewrite.plan(rule, input, tables)?;
        self.shrinks = input.shrinks.len();
        self.hosts[turn].shrinks = self.shrinks;
        let dequantised = self.rewrite.jobs.len();
        if self.shrinks + dequantised == 0 {
            return Ok(());
        }
        let end = self.load(turn, input);
        let host = &mut self.hosts[turn];
        host.failures[..self.shrinks].fill(SOUND);
        // SAFETY: the step that used these buffers of the host last has been waited for, and they
        // live as long as `self`, whose owner waits for the stream before it drops them.
        unsafe {
            stream.upload(&mut self.words, 0, &host.words, end)?;
            stream.upload(&mut self.failures, 0, &host.failures, self.shrinks)?;
        }
        if self.shrinks == 0 {
            return Ok(());
        }
        self.hosts[turn].began.record(stream)?;
        let records = self.layout.geometry().records() as u32;
        for first in (0..self.shrinks).step_by(LAUNCH_MAX) {
            let part = LAUNCH_MAX.min(self.shrinks - first);
            let params = ShrinkParams {
                pool: self.pool(arena),
                jobs: self.words.at(SHRINK_WORDS * first),
                failures: self.failures.at(first),
            };
            let grid = (records, part as u32);
            // SAFETY: the step was checked: levels exist, frames are in the pool, and no frame
            // is a target and anything else. Work of one stream runs in order.
            unsafe {
                self.transcode.launch(stream, grid, self.threads, &params)?;
                if let Some(encode) = &self.encode {
                    encode.launch(stream, grid, self.threads, &params)?;
                }
            }
        }
        let host = &mut self.hosts[turn];
        host.ended.record(stream)?;
        // SAFETY: as of the uploads.
        unsafe { stream.download(&mut host.failures, 0, &self.failures, self.shrinks) }
    }

    /// Writes shrinks, blocks to dequantise and their frames into the host's buffer; how many words
    /// that is.
    fn load(&mut self, turn: usize, input: &StepInput) -> usize {
        let frames = self.first_frame_word();
        let words = &mut self.hosts[turn].words;
        let mut end = frames;
        let mut put = |words: &mut [u32], list: &[u32]| {
            let first = end - frames;
            let places = words[end..end + list.len()].iter_mut().zip(list);
            places.for_each(|(word, frame)| *word = any_frame(*frame));
            end += list.len();
            first as u32
        };
        for (i, shrink) in input.shrinks.iter().enumerate() {
            let (source, target) = shrink.frames(&self.layout, input);
            let firsts = [source, target].map(|list| put(words, list));
            let [from, to] = [shrink.from, shrink.to].map(u32::from);
            let geometry = self.layout.geometry();
            let records = match shrink.is_trimmed(&self.layout, input) {
                true => geometry.kept_records(),
                false => geometry.records(),
            };
            let job = [from, to, firsts[0], firsts[1], records as u32];
            words[SHRINK_WORDS * i..][..SHRINK_WORDS].copy_from_slice(&job);
        }
        let first = put(words, &self.rewrite.sources);
        for (i, [level, source, target, shrink]) in self.rewrite.jobs.iter().enumerate() {
            let job = [*level, first + source, *target, *shrink];
            words[SHRINK_WORDS * self.shrinks + DEQUANTISE_WORDS * i..][..DEQUANTISE_WORDS]
                .copy_from_slice(&job);
        }
        end
    }

    /// Where frames begin in the words of the step.
    fn first_frame_word(&self) -> usize {
        SHRINK_WORDS * self.shrinks + DEQUANTISE_WORDS * self.rewrite.jobs.len()
    }

    /// Whether decoding sequences of the step that was begun last read shrunk blocks as they are.
    pub(super) fn mixed(&self) -> bool {
        self.rewrite.mixed
    }

    /// Whether decode attention reads shrunk blocks as they are.
    pub(super) fn reads(&self) -> bool {
        self.reads
    }

    /// The table of formats and places, `[level - 1][layer * 2 + side]`.
    pub(super) fn pages(&self) -> PagePlaces {
        self.pages.places()
    }

    /// Whether the step that was begun last has blocks in scratch.
    pub(super) fn dequantises(&self) -> bool {
        !self.rewrite.jobs.is_empty()
    }

    /// Which sequences of the step that was begun last are read in scratch, and when.
    pub(super) fn in_scratch(&self) -> &[Option<InScratch>] {
        &self.rewrite.in_scratch
    }

    /// Tells the tables where scratch lies.
    pub(super) fn place_scratch(&self, tables: &mut DeviceTables) {
        let (layout, first) = (&self.layout, self.pool_frames);
        tables.place_scratch(|index| self.scratch.block_frames(layout, first, index));
    }

    /// Enqueues dequantising one layer of the shrunk blocks that the step that was begun last reads
    /// in scratch in one turn.
    pub(super) fn dequantise_layer(
        &mut self,
        stream: &Stream,
        arena: &mut DeviceArena,
        layer: usize,
        turn: usize,
    ) -> Result<(), CudaError> {
        let Some(jobs) = self.rewrite.turns.get(turn).cloned() else {
            return Ok(());
        };
        let heads = 2 * self.layout.geometry().kv_heads as u32;
        for first in jobs.clone().step_by(LAUNCH_MAX) {
            let params = DequantiseParams {
                pool: self.pool(arena),
                jobs: self
                    .words
                    .at(SHRINK_WORDS * self.shrinks + DEQUANTISE_WORDS * first),
                shrinks: self.words.ptr(),
                failures: self.failures.ptr(),
                layer: self.layout.geometry().layer_place(layer) as u32,
                scratch_slots: self.scratch.slots,
            };
            let grid = (heads, LAUNCH_MAX.min(jobs.end - first) as u32);
            // SAFETY: the step was checked, scratch frames are in the arena behind the pool's and
            // no job of a turn shares them. Work of one stream runs in order, and prefill
            // attention, which alone reads scratch, waits for what is before it.
            unsafe {
                self.dequantise
                    .launch(stream, grid, self.threads, &params)?
            };
        }
        Ok(())
    }

    fn pool(&self, arena: &DeviceArena) -> KvPool {
        let geometry = self.layout.geometry();
        KvPool {
            arena: arena.ptr(),
            pages: self.pages.ptr(),
            frames: self.words.at(self.first_frame_word()),
            frame_bytes: arena.layout().frame_bytes as u64,
            page_count: geometry.layers as u32 * 2,
            kv_heads: geometry.kv_heads as u32,
            frames_per_sub_block: arena.layout().frames_per_sub_block as u32,
            records_per_frame: arena.records_per_frame(),
        }
    }

    /// Which shrinks of the step that used the host's buffers `turn` failed, and what all of them
    /// took. The stream must have run them.
    pub(super) fn results(
        &mut self,
        turn: usize,
    ) -> Result<(&[ShrinkFailure], Duration), CudaError> {
        let host = &self.hosts[turn];
        self.told.clear();
        if host.shrinks == 0 {
            return Ok((&self.told, Duration::ZERO));
        }
        for (shrink, word) in host.failures[..host.shrinks].iter().enumerate() {
            if *word != SOUND {
                let failure = tables::failure(self.layout.geometry(), shrink, *word);
                self.told.push(failure);
            }
        }
        let micros = host.ended.micros_since(&host.began)?;
        Ok((&self.told, Duration::from_secs_f64(micros.max(0.0) * 1e-6)))
    }
}
