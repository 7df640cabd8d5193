//! From a device and a model to a backend.

use ebb_kernels::backend::Backend;
use ebb_kernels::cpu::{CpuBackend, CpuOptions};
use ebb_kernels::formats::rotation::Rotation;
use ebb_kernels::kv::{KvArena, KvLayout};
use ebb_models::model::LoadedModel;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::held_weights::HeldWeights;
use super::{Device, DeviceError};

/// The largest step that a backend is prepared for. The CPU's takes any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepSizes {
    /// Rows (tokens).
    pub rows: usize,
    /// Sequences.
    pub seqs: usize,
    /// Tokens of each.
    pub context: usize,
    /// Slots of states, those of sequences first, where a model has recurrent layers.
    pub states: usize,
    /// Rows of logits computed at once.
    pub logit_rows: usize,
    /// Largest batch of single-token sequences that is worth preparing for, beyond being possible.
    pub decode_rows: usize,
    /// Whether a GPU computes a row the same to the bit in any company. The CPU always does.
    pub batch_invariant: bool,
}

/// What a backend is made with besides its model.
#[derive(Debug, Clone)]
pub struct BackendOptions {
    /// Where it computes.
    pub device: Device,
    /// Compute threads of the CPU.
    pub threads: usize,
    /// Where pages lie at every precision level; when absent, blocks stay at 16 bit.
    pub layout: Option<KvLayout>,
    /// What is rotated.
    pub rotation: Rotation,
    /// Whether packed weights are expanded to bf16: larger, and computed on as plain weights are.
    pub expand_weights: bool,
    /// The largest step.
    pub steps: StepSizes,
}

impl BackendOptions {
    /// 16-bit pages on so many threads of the CPU.
    pub fn cpu(threads: usize) -> Self {
        Self {
            device: Device::Cpu,
            threads,
            layout: None,
            rotation: Rotation::NONE,
            expand_weights: false,
            steps: StepSizes {
                rows: 0,
                seqs: 0,
                context: 0,
                states: 0,
                logit_rows: 0,
                decode_rows: 0,
                batch_invariant: false,
            },
        }
    }

    /// Loads the weights into a backend with a pool of `frames` frames of the model's geometry;
    /// shows progress on a terminal.
    ///
    /// # Errors
    /// When the device has no kernels for the pages, or memory or the weights fail.
    pub fn start(self, model: &LoadedModel, frames: u32) -> Result<Box<dyn Backend>, DeviceError> {
        if let Some(layout) = &self.layout {
            self.device.check_pages(layout)?;
        }
        let bar = loading_bar();
        let mut progress = |done: u64, total: u64| {
            bar.set_length(total);
            bar.set_position(done);
        };
        let backend: Box<dyn Backend> = match &self.device {
            Device::Cpu => {
                let arena = KvArena::new(model.spec.kv_geometry().frame_layout(), frames)?;
                let how = HeldWeights::of(model, self.expand_weights)?;
                let options = CpuOptions {
                    layout: self.layout,
                    rotation: self.rotation,
                    rotate_v_online: how.is_packed,
                    scale_k_online: how.scale_k_online,
                    ..CpuOptions::new(self.threads)
                };
                let (spec, weights) = (model.spec.clone(), how.weights);
                let backend =
                    CpuBackend::with_options(spec, &weights, arena, options, &mut progress);
                Box::new(backend?)
            }
            Device::Cuda(device) => device.backend(model, frames, &self, &mut progress)?,
        };
        bar.finish_and_clear();
        Ok(backend)
    }
}

/// Bytes of weights, on a terminal.
pub(super) fn loading_bar() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    bar.set_style(
        ProgressStyle::with_template("loading {wide_bar} {bytes}/{total_bytes}")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    bar
}
