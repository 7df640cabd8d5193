//! Samples from logits that the host gives.

use std::sync::Arc;

use super::ProbeError;
use crate::backend::{BackendError, LogitEdit, SampleRequest, SampledToken, check_samples};
use crate::cuda::driver::{Device, DeviceBuffer, Event, Stream};
use crate::cuda::error::CudaError;
use crate::cuda::sample::Sampling;

/// The tokens of a run, and the alternatives of all of them.
pub type SampleOutput = (Vec<SampledToken>, Vec<(u32, f32)>);

/// Sampling without a model: rows of logits in, tokens out.
#[derive(Debug)]
pub struct SampleProbe {
    stream: Stream,
    sampling: Sampling,
    logits: DeviceBuffer<f32>,
    vocab: usize,
    /// Samples of the run before.
    before: u32,
    turn: usize,
}

impl SampleProbe {
    /// For up to `samples` samples from up to `rows` rows of `vocab` logits.
    pub fn new(
        device: &Arc<Device>,
        vocab: usize,
        rows: usize,
        samples: usize,
    ) -> Result<Self, CudaError> {
        Ok(Self {
            stream: Stream::new(device)?,
            sampling: Sampling::new(device, vocab, rows, samples)?,
            logits: DeviceBuffer::filled(device, rows * vocab, 0xff, "logits")?,
            vocab,
            before: 0,
            turn: 0,
        })
    }

    /// Samples from `logits`, `[rows][vocab]`: the rows that `samples` name, in order.
    pub fn run(
        &mut self,
        logits: &[f32],
        samples: &[SampleRequest],
        edits: &[LogitEdit],
    ) -> Result<SampleOutput, ProbeError> {
        self.check(samples, edits)?;
        let mut rows: Vec<usize> = samples.iter().map(|d| d.row as usize).collect();
        rows.dedup();
        for (place, row) in rows.into_iter().enumerate() {
            let row = &logits[row * self.vocab..][..self.vocab];
            self.logits.write(place * self.vocab, row)?;
        }
        self.turn ^= 1;
        let (stream, turn) = (&self.stream, self.turn);
        self.sampling
            .run(stream, turn, &self.logits, samples, edits)?;
        self.stream.synchronize()?;
        self.before = samples.len() as u32;
        let (sampled, top) = self.sampling.results(turn);
        Ok((sampled.to_vec(), top.to_vec()))
    }

    /// Microseconds of each of `repeats` runs over the logits of the last one, sorted; edits apply
    /// again each time.
    pub fn time(
        &mut self,
        samples: &[SampleRequest],
        edits: &[LogitEdit],
        repeats: usize,
    ) -> Result<Vec<f64>, ProbeError> {
        self.check(samples, edits)?;
        let (start, end) = (
            Event::new(self.stream.device())?,
            Event::new(self.stream.device())?,
        );
        let mut times = Vec::with_capacity(repeats);
        for _ in 0..repeats {
            start.record(&self.stream)?;
            self.sampling
                .run(&self.stream, self.turn, &self.logits, samples, edits)?;
            end.record(&self.stream)?;
            self.stream.synchronize()?;
            times.push(end.micros_since(&start)?);
        }
        times.sort_by(f64::total_cmp);
        Ok(times)
    }

    /// Fills all rows with the same logits, each begun at another place.
    pub fn fill(&mut self, row: &[f32]) -> Result<(), CudaError> {
        for place in 0..self.logits.len() / self.vocab {
            let shift = place * 37 % self.vocab;
            self.logits.write(place * self.vocab, &row[shift..])?;
            self.logits
                .write((place + 1) * self.vocab - shift, &row[..shift])?;
        }
        Ok(())
    }

    /// As a backend checks a step.
    fn check(&self, samples: &[SampleRequest], edits: &[LogitEdit]) -> Result<(), ProbeError> {
        let rows = samples
            .iter()
            .map(|d| d.row as usize + 1)
            .max()
            .unwrap_or(0);
        let checked = check_samples(samples, edits, rows, self.before);
        checked.map_err(|e| BackendError::from(e).into())
    }
}
