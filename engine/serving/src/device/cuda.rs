//! A GPU: its budget, and the backend on it.

use std::sync::Arc;
use std::time::Instant;

use ebb_kernels::BLOCK_TOKENS;
use ebb_kernels::backend::Backend;
use ebb_kernels::cuda::{CudaBackend, CudaConfig, CudaError, Device, Gradients, StepCapacity};
use ebb_kernels::kv::KvLayout;
use ebb_kernels::model::{ModelSpec, Rotated};
use ebb_models::model::LoadedModel;

use super::backend::loading_bar;
use super::budget::gib;
use super::held_weights::HeldWeights;
use super::{BackendOptions, Budget, DeviceChoice, DeviceError, StepSizes};

/// Kept free for what cannot be known: kernels' local memory, the libraries' own, other small users
/// of the device.
const RESERVE_BYTES: u64 = 512 << 20;

/// A GPU that is open. Cheap to clone.
#[derive(Debug, Clone)]
pub struct CudaDevice(Arc<Device>);

impl CudaDevice {
    pub(super) fn open(ordinal: usize) -> Result<Self, DeviceError> {
        let device = || DeviceChoice::Cuda(ordinal).to_string();
        Device::open(ordinal).map(Self).map_err(|e| match e {
            CudaError::NoDriver => DeviceError::NoDriver {
                device: device(),
                why: e.to_string(),
            },
            e => DeviceError::Failed {
                device: format!("--device {}", device()),
                why: e.to_string(),
            },
        })
    }

    pub(super) fn description(&self) -> String {
        match self.0.memory() {
            Ok((_, total)) => format!("{}, {:.1} GiB", self.0.name(), gib(total as u64)),
            Err(_) => self.0.name().to_owned(),
        }
    }

    pub(super) fn check_pages(&self, layout: &KvLayout) -> Result<(), DeviceError> {
        if CudaBackend::supports(layout) {
            return Ok(());
        }
        Err(DeviceError::Pages {
            device: self.0.name().to_owned(),
            head_dim: layout.geometry().head_dim,
        })
    }

    pub(super) fn in_use(&self) -> Option<u64> {
        let (free, total) = self.0.memory().ok()?;
        Some((total - free) as u64)
    }

    pub(super) fn name(&self) -> String {
        self.0.name().to_owned()
    }

    /// What a backend for steps of these sizes leaves to the KV cache.
    ///
    /// # Errors
    /// When the device cannot tell how much memory it has.
    pub fn budget(
        &self,
        model: &LoadedModel,
        expand_weights: bool,
        steps: &StepSizes,
        utilization: f64,
    ) -> Result<Budget, DeviceError> {
        let spec = &model.spec;
        let (free, total) = self.0.memory().map_err(|e| self.failed(&e))?;
        // The tables are made for the pool: as large as it could be.
        let frame_bytes = spec.kv_geometry().frame_layout().frame_bytes;
        let frames = u32::try_from(free / frame_bytes).unwrap_or(u32::MAX);
        let config = config(frames, steps);
        let weights = HeldWeights::of(model, expand_weights)?.weights;
        let needs = CudaBackend::needs(&self.0, spec, &config, &weights)
            .map_err(|e| DeviceError::Weights(e.to_string()))?;
        let weights = needs.weights.iter().map(|(format, bytes)| {
            let what = format!("weights, {format}");
            (what, *bytes as u64)
        });
        let others = [
            (
                "activations, tables and workspaces",
                needs.workspaces as u64,
            ),
            ("recorded steps", needs.graphs as u64),
            ("reserve", RESERVE_BYTES),
        ];
        let others = others.map(|(what, bytes)| (what.to_owned(), bytes));
        Ok(Budget {
            total: total as u64,
            free: free as u64,
            utilization,
            needs: weights.chain(others).collect(),
        })
    }

    /// Of `bytes` for the KV cache, those of its pool: blocks that shrink need scratch beside it.
    pub fn pool_bytes(
        &self,
        spec: &ModelSpec,
        steps: &StepSizes,
        layout: &KvLayout,
        bytes: u64,
    ) -> u64 {
        let frame = layout.frame().frame_bytes as u64;
        let fits = |frames: u64| {
            let frames32 = u32::try_from(frames).unwrap_or(u32::MAX);
            let config = config(frames32, steps);
            let beside = CudaBackend::shrink_bytes(spec, layout, frames32, &config) as u64;
            frames * frame + beside <= bytes
        };
        if layout.levels() == 1 || fits(bytes / frame) {
            return bytes;
        }
        let (mut most, mut too_many) = (0, bytes / frame);
        while too_many - most > 1 {
            let middle = most + (too_many - most) / 2;
            if fits(middle) {
                most = middle;
            } else {
                too_many = middle;
            }
        }
        most * frame
    }

    pub(super) fn backend(
        &self,
        model: &LoadedModel,
        frames: u32,
        options: &BackendOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Box<dyn Backend>, DeviceError> {
        let spec = model.spec.clone();
        let how = HeldWeights::of(model, options.expand_weights)?;
        // In the weights where they can be changed and nothing is between them.
        let folds_v = options.rotation.v && !how.is_packed && spec.can_fold_v();
        let config = CudaConfig {
            rotate_k: options.rotation.k,
            rotate_v_online: options.rotation.v && !folds_v,
            scale_k_online: how.scale_k_online,
            ..config(frames, &options.steps)
        };
        let begin = Instant::now();
        let mut loaded = None;
        let mut progress = |done: u64, total: u64| {
            progress(done, total);
            if done == total {
                loaded = Some((total, begin.elapsed()));
            }
        };
        let failed = |e: &dyn std::fmt::Display| DeviceError::Weights(e.to_string());
        let layout = match &options.layout {
            Some(layout) => layout.clone(),
            None => KvLayout::sixteen_bit(spec.kv_geometry()).map_err(|e| failed(&e))?,
        };
        let (device, progress) = (&self.0, &mut progress);
        let backend = match how.weights.random() {
            _ if folds_v => {
                let weights = Rotated::new(&model.spec, how.weights);
                CudaBackend::with_pages(device, spec, config, &layout, &weights, progress)
                    .map_err(|e| failed(&e))?
            }
            // The device makes them by itself.
            Some((seed, quantisation)) => {
                CudaBackend::random_with_pages(device, spec, config, &layout, seed, quantisation)
                    .map_err(|e| failed(&e))?
            }
            _ => {
                let weights = how.weights;
                CudaBackend::with_pages(device, spec, config, &layout, &weights, progress)
                    .map_err(|e| failed(&e))?
            }
        };
        let all = begin.elapsed();
        if let Some((bytes, read)) = loaded {
            tracing::info!(
                "{:.2} GiB of weights read in {:.2} s; {:.2} s to prepare the steps",
                gib(bytes),
                read.as_secs_f64(),
                (all - read).as_secs_f64()
            );
        }
        if let Ok((free, total)) = self.0.memory() {
            tracing::info!(
                "{:.2} of the device's {:.2} GiB are free after the start",
                gib(free as u64),
                gib(total as u64)
            );
        }
        Ok(Box::new(backend))
    }

    /// The model's weights on the device, to compute loss gradients of them; shows progress on a
    /// terminal.
    ///
    /// # Errors
    /// When they cannot be read, or do not fit.
    pub fn gradients(&self, model: &LoadedModel) -> Result<Gradients, DeviceError> {
        let bar = loading_bar();
        let mut progress = |done: u64, total: u64| {
            bar.set_length(total);
            bar.set_position(done);
        };
        let loaded = Gradients::load(&self.0, &model.spec, &model.weights(), &mut progress);
        bar.finish_and_clear();
        loaded.map_err(|e| DeviceError::Weights(e.to_string()))
    }

    /// With the device's name.
    pub fn failed(&self, error: &CudaError) -> DeviceError {
        DeviceError::Failed {
            device: self.0.name().to_owned(),
            why: error.to_string(),
        }
    }
}

/// Decode batches beyond this are not recorded: launching them takes less than running them.
const GRAPH_ROWS_MAX: usize = 512;

fn config(frames: u32, steps: &StepSizes) -> CudaConfig {
    // Sequences may share blocks, so the pool does not bound how many their tables name together.
    let blocks = steps.seqs * steps.context.div_ceil(BLOCK_TOKENS);
    CudaConfig {
        frames,
        capacity: StepCapacity {
            rows: steps.rows,
            seqs: steps.seqs,
            blocks,
        },
        states: steps.states,
        logit_rows: steps.logit_rows,
        graph_rows_max: steps.decode_rows.min(GRAPH_ROWS_MAX),
        tune: steps.decode_rows > 0,
        batch_invariant: steps.batch_invariant,
        rotate_k: false,
        rotate_v_online: false,
        scale_k_online: None,
        expand_weights: false,
    }
}
