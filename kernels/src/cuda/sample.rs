//! Draws on the device: launches of `cuda/sample`, and what goes to and fro for them.

use std::sync::Arc;

use bytemuck::{Pod, Zeroable};

use super::driver::{Device, DeviceBuffer, Kernel, Pinned, Stream};
use super::error::CudaError;
use super::params::{DevicePtr, KernelParams};
use crate::backend::{Draw, DrawError, Drawn, LogitEdit, TOP_MAX};

/// Logits of a block.
const BLOCK: usize = 128;
/// Blocks of the largest vocabulary.
const BLOCKS_MAX: usize = 8192;
/// Blocks that one CTA of the passes over all logits reads.
const BLOCKS_PER_CTA: usize = 32;
/// Scaled logits below this weigh nothing.
const ZERO_BELOW: f32 = -22.0;
const NONE: u32 = u32::MAX;
const NOT_FINITE: u32 = u32::MAX;
const NO_CANDIDATE: u32 = u32::MAX - 1;

/// `ebb::SampleDraw` of sample/row.cuh.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct SampleDraw {
    bits: u64,
    row: u32,
    inverse_temperature: f32,
    top_k: u32,
    top_p: f32,
    floor: f32,
    whole: u32,
    report: u32,
    first_edit: u32,
    edits: u32,
    also: u32,
    repetition: f32,
    frequency: f32,
    presence: f32,
    reserved: u32,
}

/// `ebb::LogitEdit` of sample/row.cuh.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct SampleEdit {
    id: u32,
    bias: f32,
    count: u32,
    flags: u32,
}

/// `ebb::SampleResult` of sample/row.cuh.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct SampleResult {
    token: u32,
    logit: f32,
    max: f32,
    top: u32,
    sum: f64,
}

/// `ebb::TokenLogit` of sample/row.cuh.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct TokenLogit {
    id: u32,
    logit: f32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct SampleParams {
    logits: DevicePtr,
    draws: DevicePtr,
    row_draws: DevicePtr,
    edits: DevicePtr,
    saved: DevicePtr,
    saved_also: DevicePtr,
    maxima: DevicePtr,
    row_max: DevicePtr,
    sums: DevicePtr,
    drawn: DevicePtr,
    results: DevicePtr,
    top: DevicePtr,
    vocab: u32,
    blocks: u32,
}
// SAFETY: field for field `ebb::SampleParams` of sample/row.cuh.
unsafe impl KernelParams for SampleParams {}

/// The host's side of one step; two are in use by turns.
#[derive(Debug)]
struct Host {
    draws: Pinned<SampleDraw>,
    row_draws: Pinned<u32>,
    edits: Pinned<SampleEdit>,
    results: Pinned<SampleResult>,
    top: Pinned<TokenLogit>,
    /// Draws of the step, and which of them report log-probabilities.
    count: usize,
    reports: Vec<bool>,
}

/// Kernels and buffers that draw tokens from logits.
#[derive(Debug)]
pub(super) struct Sampling {
    scan: Kernel<SampleParams>,
    report: Kernel<SampleParams>,
    settle: Kernel<SampleParams>,
    sum: Kernel<SampleParams>,
    pick: Kernel<SampleParams>,
    vocab: usize,
    rows_max: usize,
    draws_max: usize,
    draws: DeviceBuffer<SampleDraw>,
    row_draws: DeviceBuffer<u32>,
    edits: DeviceBuffer<SampleEdit>,
    saved: DeviceBuffer<f32>,
    saved_also: DeviceBuffer<TokenLogit>,
    maxima: DeviceBuffer<f32>,
    row_max: DeviceBuffer<f32>,
    sums: DeviceBuffer<u64>,
    drawn: DeviceBuffer<u32>,
    results: DeviceBuffer<SampleResult>,
    top: DeviceBuffer<TokenLogit>,
    hosts: [Host; 2],
    // What `wait` lends.
    told: Vec<Drawn>,
    told_top: Vec<(u32, f32)>,
}

fn blocks(vocab: usize) -> usize {
    vocab.div_ceil(BLOCK)
}

impl Sampling {
    /// For steps of up to `draws` draws from up to `rows` rows of `vocab` logits.
    pub(super) fn new(
        device: &Arc<Device>,
        vocab: usize,
        rows: usize,
        draws: usize,
    ) -> Result<Self, CudaError> {
        if blocks(vocab) > BLOCKS_MAX {
            return Err(CudaError::Unsupported(format!(
                "a vocabulary of {vocab}; the CUDA backend supports up to {}",
                BLOCKS_MAX * BLOCK
            )));
        }
        let what = "sampling";
        let host = || -> Result<Host, CudaError> {
            Ok(Host {
                draws: Pinned::new(device, draws)?,
                row_draws: Pinned::new(device, rows)?,
                edits: Pinned::new(device, 0)?,
                results: Pinned::new(device, draws)?,
                top: Pinned::new(device, draws * TOP_MAX as usize)?,
                count: 0,
                reports: Vec::new(),
            })
        };
        Ok(Self {
            scan: device.kernel("sample_scan", 0)?,
            report: device.kernel("sample_report", 0)?,
            settle: device.kernel("sample_settle", 0)?,
            sum: device.kernel("sample_sum", 0)?,
            pick: device.kernel("sample_pick", 0)?,
            vocab,
            rows_max: rows,
            draws_max: draws,
            draws: DeviceBuffer::filled(device, draws, 0, what)?,
            row_draws: DeviceBuffer::filled(device, rows, 0, what)?,
            edits: DeviceBuffer::filled(device, 0, 0, what)?,
            saved: DeviceBuffer::filled(device, 0, 0, what)?,
            saved_also: DeviceBuffer::filled(device, rows, 0, what)?,
            maxima: DeviceBuffer::new(device, rows * blocks(vocab), what)?,
            row_max: DeviceBuffer::new(device, rows, what)?,
            sums: DeviceBuffer::new(device, draws * blocks(vocab), what)?,
            drawn: DeviceBuffer::filled(device, draws, 0, "drawn tokens")?,
            results: DeviceBuffer::filled(device, draws, 0, what)?,
            top: DeviceBuffer::filled(device, draws * TOP_MAX as usize, 0, what)?,
            hosts: [host()?, host()?],
            told: Vec::new(),
            told_top: Vec::new(),
        })
    }

    /// Bytes that `new` allocates on the device. Steps with many edits allocate 20 bytes for each.
    pub(super) fn bytes(vocab: usize, rows: usize, draws: usize) -> usize {
        let per_draw = size_of::<SampleDraw>() + 4 + size_of::<SampleResult>();
        rows * (4 * blocks(vocab) + 16)
            + draws * (8 * blocks(vocab) + per_draw + 8 * TOP_MAX as usize)
    }

    /// Where the tokens of the last step's draws stand; at least one value.
    pub(super) fn drawn(&self) -> DevicePtr {
        self.drawn.ptr()
    }

    /// Enqueues a checked step's draws: those of the rows that `draws` name lie at the beginning of
    /// `logits`, in order. They are edited in place. `turn` names the host's buffers; the step that
    /// used them last has been waited for.
    pub(super) fn run(
        &mut self,
        stream: &Stream,
        turn: usize,
        logits: &DeviceBuffer<f32>,
        draws: &[Draw],
        edits: &[LogitEdit],
    ) -> Result<(), CudaError> {
        let host = &mut self.hosts[turn];
        host.count = 0;
        host.reports.clear();
        if draws.is_empty() {
            return Ok(());
        }
        if draws.len() > self.draws_max {
            return Err(CudaError::Unsupported(format!(
                "a step of {} draws, but this backend was started for {}",
                draws.len(),
                self.draws_max
            )));
        }
        let mut rows = 0;
        for (i, draw) in draws.iter().enumerate() {
            if i == 0 || draws[i - 1].row != draw.row {
                assert!(rows < self.rows_max, "the caller counts the rows");
                host.row_draws[rows] = i as u32;
                rows += 1;
            }
            host.draws[i] = lower(draw, rows as u32 - 1, self.vocab);
            host.reports.push(draw.logprobs.is_some());
        }
        assert!(rows * self.vocab <= logits.len());
        host.count = draws.len();
        self.load_edits(stream, turn, edits)?;
        let host = &mut self.hosts[turn];
        // SAFETY: the step that used these buffers of the host last has been waited for, and they
        // live as long as `self`, whose owner waits for the stream before it drops them.
        unsafe {
            stream.upload(&mut self.draws, 0, &host.draws, draws.len())?;
            stream.upload(&mut self.row_draws, 0, &host.row_draws, rows)?;
        }
        let params = SampleParams {
            logits: logits.ptr(),
            draws: self.draws.ptr(),
            row_draws: self.row_draws.ptr(),
            edits: self.edits.ptr(),
            saved: self.saved.ptr(),
            saved_also: self.saved_also.ptr(),
            maxima: self.maxima.ptr(),
            row_max: self.row_max.ptr(),
            sums: self.sums.ptr(),
            drawn: self.drawn.ptr(),
            results: self.results.ptr(),
            top: self.top.ptr(),
            vocab: self.vocab as u32,
            blocks: blocks(self.vocab) as u32,
        };
        let (rows, count) = (rows as u32, draws.len() as u32);
        let parts = blocks(self.vocab).div_ceil(BLOCKS_PER_CTA) as u32;
        let reports = host.reports.contains(&true);
        let sums = host.draws[..draws.len()]
            .iter()
            .any(|d| d.whole != 0 && d.inverse_temperature != 0.0);
        // SAFETY: every buffer has room for the rows and draws counted above; draws name rows below
        // `rows`, edits were checked to be in their list, and tokens of the step before are below
        // its draws. Work of one stream runs in order.
        unsafe {
            self.scan.launch(stream, (parts, rows), 256, &params)?;
            if reports {
                self.report.launch(stream, (count, 1), 512, &params)?;
            }
            self.settle.launch(stream, (rows, 1), 512, &params)?;
            if sums {
                self.sum.launch(stream, (parts, count), 256, &params)?;
            }
            self.pick.launch(stream, (count, 1), 512, &params)?;
            stream.download(&mut host.results, 0, &self.results, draws.len())?;
            if reports {
                let all = draws.len() * TOP_MAX as usize;
                stream.download(&mut host.top, 0, &self.top, all)?;
            }
        }
        Ok(())
    }

    fn load_edits(
        &mut self,
        stream: &Stream,
        turn: usize,
        edits: &[LogitEdit],
    ) -> Result<(), CudaError> {
        let device = stream.device();
        let host = &mut self.hosts[turn];
        let room = edits.len().next_power_of_two().max(1024);
        if edits.len() > host.edits.len() {
            host.edits = Pinned::new(device, room)?;
        }
        if edits.len() > self.edits.len() {
            // Dropping the old ones waits for the steps that read them.
            stream.synchronize()?;
            self.edits = DeviceBuffer::filled(device, room, 0, "edits of logits")?;
            self.saved = DeviceBuffer::filled(device, room, 0, "edits of logits")?;
        }
        for (to, edit) in host.edits.iter_mut().zip(edits) {
            *to = SampleEdit {
                id: edit.id,
                bias: edit.bias,
                count: edit.count,
                flags: u32::from(edit.masked) | u32::from(edit.in_prompt) << 1,
            };
        }
        // SAFETY: as in `run`.
        unsafe { stream.upload(&mut self.edits, 0, &host.edits, edits.len()) }
    }

    /// What the draws of the step that used the host's buffers `turn` came to: tokens, and
    /// alternatives of all. The stream must have run them.
    pub(super) fn results(&mut self, turn: usize) -> (&[Drawn], &[(u32, f32)]) {
        let host = &self.hosts[turn];
        self.told.clear();
        self.told_top.clear();
        for (i, result) in host.results[..host.count].iter().enumerate() {
            let log_sum = f64::from(result.max) + result.sum.ln();
            let logprob = |logit: f32| (f64::from(logit) - log_sum) as f32;
            let first_top = self.told_top.len() as u32;
            let token = match result.token {
                NOT_FINITE => Err(DrawError::NotFinite),
                NO_CANDIDATE => Err(DrawError::NoCandidate),
                token => Ok(token),
            };
            let reports = host.reports[i] && token.is_ok();
            if reports {
                let top = &host.top[i * TOP_MAX as usize..][..result.top as usize];
                self.told_top
                    .extend(top.iter().map(|t| (t.id, logprob(t.logit))));
            }
            self.told.push(Drawn {
                token,
                logprob: if reports {
                    logprob(result.logit)
                } else {
                    f32::NAN
                },
                first_top,
                top: self.told_top.len() as u32 - first_top,
            });
        }
        (&self.told, &self.told_top)
    }
}

/// A draw as the kernels take it, from row `row` of the logits.
fn lower(draw: &Draw, row: u32, vocab: usize) -> SampleDraw {
    let edits = &draw.edits;
    let top_k = if draw.top_k as usize >= vocab {
        0
    } else {
        draw.top_k
    };
    SampleDraw {
        bits: draw.bits,
        row,
        inverse_temperature: if draw.temperature == 0.0 {
            0.0
        } else {
            1.0 / draw.temperature
        },
        top_k,
        top_p: draw.top_p,
        floor: if draw.min_p > 0.0 {
            draw.min_p.ln().max(ZERO_BELOW)
        } else {
            ZERO_BELOW
        },
        whole: u32::from(top_k == 0 && draw.min_p <= 0.0),
        report: draw.logprobs.map_or(0, |top| top + 1),
        first_edit: edits.first,
        edits: edits.len,
        also: edits.also.unwrap_or(NONE),
        repetition: edits.repetition,
        frequency: edits.frequency,
        presence: edits.presence,
        reserved: 0,
    }
}
