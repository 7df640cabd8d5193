//! Samples on the device: launches of `cuda/sample`, and what goes to and fro for them.

use std::sync::Arc;

use bytemuck::{Pod, Zeroable};

use super::driver::{Device, DeviceBuffer, Kernel, Pinned, Stream};
use super::error::CudaError;
use super::params::{DevicePtr, KernelParams};
use crate::backend::{LogitEdit, SampleFailure, SampleRequest, SampledToken, TOP_MAX};

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

/// `ebb::SampleJob` of sample/row.cuh.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct SampleJob {
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
    samples: DevicePtr,
    row_samples: DevicePtr,
    edits: DevicePtr,
    saved: DevicePtr,
    saved_also: DevicePtr,
    maxima: DevicePtr,
    row_max: DevicePtr,
    sums: DevicePtr,
    sampled: DevicePtr,
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
    samples: Pinned<SampleJob>,
    row_samples: Pinned<u32>,
    edits: Pinned<SampleEdit>,
    results: Pinned<SampleResult>,
    top: Pinned<TokenLogit>,
    /// Samples of the step, and which of them report log-probabilities.
    count: usize,
    reports: Vec<bool>,
}

/// Kernels and buffers that sample tokens from logits.
#[derive(Debug)]
pub(super) struct Sampling {
    scan: Kernel<SampleParams>,
    report: Kernel<SampleParams>,
    settle: Kernel<SampleParams>,
    sum: Kernel<SampleParams>,
    pick: Kernel<SampleParams>,
    vocab: usize,
    rows_max: usize,
    samples_max: usize,
    samples: DeviceBuffer<SampleJob>,
    row_samples: DeviceBuffer<u32>,
    edits: DeviceBuffer<SampleEdit>,
    saved: DeviceBuffer<f32>,
    saved_also: DeviceBuffer<TokenLogit>,
    maxima: DeviceBuffer<f32>,
    row_max: DeviceBuffer<f32>,
    sums: DeviceBuffer<u64>,
    sampled: DeviceBuffer<u32>,
    results: DeviceBuffer<SampleResult>,
    top: DeviceBuffer<TokenLogit>,
    hosts: [Host; 2],
    // What `wait` lends.
    told: Vec<SampledToken>,
    told_top: Vec<(u32, f32)>,
}

fn blocks(vocab: usize) -> usize {
    vocab.div_ceil(BLOCK)
}

impl Sampling {
    /// For steps of up to `samples` samples from up to `rows` rows of `vocab` logits.
    pub(super) fn new(
        device: &Arc<Device>,
        vocab: usize,
        rows: usize,
        samples: usize,
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
                samples: Pinned::new(device, samples)?,
                row_samples: Pinned::new(device, rows)?,
                edits: Pinned::new(device, 0)?,
                results: Pinned::new(device, samples)?,
                top: Pinned::new(device, samples * TOP_MAX as usize)?,
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
            samples_max: samples,
            samples: DeviceBuffer::filled(device, samples, 0, what)?,
            row_samples: DeviceBuffer::filled(device, rows, 0, what)?,
            edits: DeviceBuffer::filled(device, 0, 0, what)?,
            saved: DeviceBuffer::filled(device, 0, 0, what)?,
            saved_also: DeviceBuffer::filled(device, rows, 0, what)?,
            maxima: DeviceBuffer::new(device, rows * blocks(vocab), what)?,
            row_max: DeviceBuffer::new(device, rows, what)?,
            sums: DeviceBuffer::new(device, samples * blocks(vocab), what)?,
            sampled: DeviceBuffer::filled(device, samples, 0, "sampled tokens")?,
            results: DeviceBuffer::filled(device, samples, 0, what)?,
            top: DeviceBuffer::filled(device, samples * TOP_MAX as usize, 0, what)?,
            hosts: [host()?, host()?],
            told: Vec::new(),
            told_top: Vec::new(),
        })
    }

    /// Bytes that `new` allocates on the device. Steps with many edits allocate 20 bytes for each.
    pub(super) fn bytes(vocab: usize, rows: usize, samples: usize) -> usize {
        let per_sample = size_of::<SampleJob>() + 4 + size_of::<SampleResult>();
        rows * (4 * blocks(vocab) + 16)
            + samples * (8 * blocks(vocab) + per_sample + 8 * TOP_MAX as usize)
    }

    /// Where the tokens of the last step's samples stand; at least one value.
    pub(super) fn sampled(&self) -> DevicePtr {
        self.sampled.ptr()
    }

    /// Enqueues a checked step's samples: those of the rows that `samples` name lie at the
    /// beginning of `logits`, in order. They are edited in place. `turn` names the host's buffers;
    /// the step that used them last has been waited for.
    pub(super) fn run(
        &mut self,
        stream: &Stream,
        turn: usize,
        logits: &DeviceBuffer<f32>,
        samples: &[SampleRequest],
        edits: &[LogitEdit],
    ) -> Result<(), CudaError> {
        let host = &mut self.hosts[turn];
        host.count = 0;
        host.reports.clear();
        if samples.is_empty() {
            return Ok(());
        }
        if samples.len() > self.samples_max {
            return Err(CudaError::Unsupported(format!(
                "a step of {} samples, but this backend was started for {}",
                samples.len(),
                self.samples_max
            )));
        }
        let mut rows = 0;
        for (i, sample) in samples.iter().enumerate() {
            if i == 0 || samples[i - 1].row != sample.row {
                assert!(rows < self.rows_max, "the caller counts the rows");
                host.row_samples[rows] = i as u32;
                rows += 1;
            }
            host.samples[i] = lower(sample, rows as u32 - 1, self.vocab);
            host.reports.push(sample.logprobs.is_some());
        }
        assert!(rows * self.vocab <= logits.len());
        host.count = samples.len();
        self.load_edits(stream, turn, edits)?;
        let host = &mut self.hosts[turn];
        // SAFETY: the step that used these buffers of the host last has been waited for, and they
        // live as long as `self`, whose owner waits for the stream before it drops them.
        unsafe {
            stream.upload(&mut self.samples, 0, &host.samples, samples.len())?;
            stream.upload(&mut self.row_samples, 0, &host.row_samples, rows)?;
        }
        let params = SampleParams {
            logits: logits.ptr(),
            samples: self.samples.ptr(),
            row_samples: self.row_samples.ptr(),
            edits: self.edits.ptr(),
            saved: self.saved.ptr(),
            saved_also: self.saved_also.ptr(),
            maxima: self.maxima.ptr(),
            row_max: self.row_max.ptr(),
            sums: self.sums.ptr(),
            sampled: self.sampled.ptr(),
            results: self.results.ptr(),
            top: self.top.ptr(),
            vocab: self.vocab as u32,
            blocks: blocks(self.vocab) as u32,
        };
        let (rows, count) = (rows as u32, samples.len() as u32);
        let parts = blocks(self.vocab).div_ceil(BLOCKS_PER_CTA) as u32;
        let reports = host.reports.contains(&true);
        let sums = host.samples[..samples.len()]
            .iter()
            .any(|d| d.whole != 0 && d.inverse_temperature != 0.0);
        // SAFETY: every buffer has room for the rows and samples counted above; samples name rows
        // below `rows`, edits were checked to be in their list, and tokens of the step before are
        // below its samples. Work of one stream runs in order.
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
            stream.download(&mut host.results, 0, &self.results, samples.len())?;
            if reports {
                let all = samples.len() * TOP_MAX as usize;
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

    /// What the samples of the step that used the host's buffers `turn` came to: tokens, and
    /// alternatives of all. The stream must have run them.
    pub(super) fn results(&mut self, turn: usize) -> (&[SampledToken], &[(u32, f32)]) {
        let host = &self.hosts[turn];
        self.told.clear();
        self.told_top.clear();
        for (i, result) in host.results[..host.count].iter().enumerate() {
            let log_sum = f64::from(result.max) + result.sum.ln();
            let logprob = |logit: f32| (f64::from(logit) - log_sum) as f32;
            let first_top = self.told_top.len() as u32;
            let token = match result.token {
                NOT_FINITE => Err(SampleFailure::NotFinite),
                NO_CANDIDATE => Err(SampleFailure::NoCandidate),
                token => Ok(token),
            };
            let reports = host.reports[i] && token.is_ok();
            if reports {
                let top = &host.top[i * TOP_MAX as usize..][..result.top as usize];
                self.told_top
                    .extend(top.iter().map(|t| (t.id, logprob(t.logit))));
            }
            self.told.push(SampledToken {
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

/// A sample as the kernels take it, from row `row` of the logits.
fn lower(sample: &SampleRequest, row: u32, vocab: usize) -> SampleJob {
    let edits = &sample.edits;
    let top_k = if sample.top_k as usize >= vocab {
        0
    } else {
        sample.top_k
    };
    SampleJob {
        bits: sample.bits,
        row,
        inverse_temperature: if sample.temperature == 0.0 {
            0.0
        } else {
            1.0 / sample.temperature
        },
        top_k,
        top_p: sample.top_p,
        floor: if sample.min_p > 0.0 {
            sample.min_p.ln().max(ZERO_BELOW)
        } else {
            ZERO_BELOW
        },
        whole: u32::from(top_k == 0 && sample.min_p <= 0.0),
        report: sample.logprobs.map_or(0, |top| top + 1),
        first_edit: edits.first,
        edits: edits.len,
        also: edits.also.unwrap_or(NONE),
        repetition: edits.repetition,
        frequency: edits.frequency,
        presence: edits.presence,
        reserved: 0,
    }
}
