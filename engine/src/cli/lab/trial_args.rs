//! Flags of commands that run a model over a text with several KV caches side by side.

use clap::Args;
use ebb_kernels::formats::FormatId;
use ebb_kernels::formats::rotation::Rotation;
use ebb_lab::eval::{CHUNK, TrialLevels, Trials, frames_needed, lay_out, lay_out_beside};
use ebb_models::Opened;
use ebb_serving::device::{BackendOptions, Device, StepSizes};
use ebb_serving::kv_pages::PageFormats;
use ebb_serving::{CPU_KV_MEMORY_BYTES, GPU_MEMORY_UTILIZATION, StartError};

use crate::cli::engine_args::{DeviceArgs, ModelArgs, cores};
use crate::cli::error::CliError;
use crate::cli::size::ByteSize;

/// The model and what it may use.
#[derive(Debug, Clone, Args)]
pub(super) struct TrialArgs {
    #[command(flatten)]
    pub(super) model: ModelArgs,
    #[command(flatten)]
    pub(super) device: DeviceArgs,
    /// Memory for the KV cache, such as 2GiB or 512MiB [default: 1GiB on the CPU; on a GPU what is
    /// needed].
    #[arg(long, value_name = "SIZE")]
    kv_memory: Option<ByteSize>,
    /// KV caches side by side in one step; each takes memory for a window and for a block's logits
    /// [default: as many as fit].
    #[arg(long, value_name = "N")]
    batch: Option<usize>,
    /// Threads that compute [default: all cores].
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
}

/// Trials with their formats, ready to run a few at a time.
pub(super) struct Prepared {
    /// Of the layout of all trials; none to begin with.
    pub(super) trials: Trials,
    /// Where the blocks of each go.
    pub(super) levels: Vec<TrialLevels>,
    /// How many may run at once.
    pub(super) batch: usize,
}

/// Tells the log what the user should know of a model, once.
pub(super) fn tell_notes(opened: &mut Opened) {
    for note in opened.model.notes.drain(..) {
        tracing::warn!("{note}");
    }
}

impl TrialArgs {
    /// Refuses numbers that mean nothing.
    ///
    /// # Errors
    /// [`CliError::Usage`] naming the flags.
    pub(super) fn check(&self) -> Result<(), CliError> {
        if self.threads == Some(0) || self.batch == Some(0) {
            let sentence = "--threads and --batch must be at least 1";
            return Err(CliError::Usage(sentence.into()));
        }
        Ok(())
    }

    /// Opens the model, without its weights.
    ///
    /// # Errors
    /// When it cannot be used.
    pub(super) fn open(&self) -> Result<Opened, CliError> {
        let cache_dir = self.model.cache_dir.clone();
        let (format, quantisation) = (self.model.load_format(), self.model.quantization());
        let mut opened = ebb_models::open_as(self.model.name(), cache_dir, format, quantisation)?;
        tell_notes(&mut opened);
        Ok(opened)
    }

    pub(super) fn threads(&self) -> usize {
        self.threads.unwrap_or_else(cores)
    }

    /// What the backend is made with to feed so many sequences, each up to `context` tokens, a
    /// block at a time. 16-bit pages.
    fn options(&self, device: &Device, seqs: usize, context: usize) -> BackendOptions {
        BackendOptions {
            device: device.clone(),
            expand_weights: self.model.expand_weights(),
            steps: StepSizes {
                rows: seqs * CHUNK,
                seqs,
                context,
                states: seqs,
                logit_rows: CHUNK,
                decode_rows: 0,
                // Figures of a trial do not depend on which others it runs with.
                batch_invariant: true,
            },
            ..BackendOptions::cpu(self.threads())
        }
    }

    /// For one sequence at 16 bit: the options, and bytes of KV memory.
    pub(super) fn single(
        &self,
        device: &Device,
        opened: &Opened,
        context: usize,
    ) -> (BackendOptions, u64) {
        let block = opened.model.spec.kv_geometry().block_bytes() as u64;
        let needed = (context.div_ceil(CHUNK) as u64 + 1).max(2) * block;
        let bytes = match (self.kv_memory, device) {
            (Some(given), _) => given.0,
            (None, Device::Cpu) => CPU_KV_MEMORY_BYTES,
            (None, Device::Cuda(_)) => needed,
        };
        (self.options(device, 1, context), bytes)
    }

    /// Loads the model for trials with these formats, at least one.
    ///
    /// # Errors
    /// When the model or the device cannot have such pages, or memory or the weights fail.
    pub(super) fn trials(
        &self,
        device: &Device,
        opened: &Opened,
        formats: &[PageFormats],
        rotation: Rotation,
        context: usize,
    ) -> Result<Prepared, CliError> {
        let model = &opened.model;
        let (layout, levels) =
            lay_out(model.spec.kv_geometry(), formats, context).map_err(StartError::from)?;
        let of = |at: &TrialLevels| frames_needed(&layout, at, context);
        let each: Vec<u64> = levels.iter().map(of).collect();
        // Of the 16-bit run and the batch that takes most.
        let frames = |batch: usize| {
            let most = each.chunks(batch).map(|b| b.iter().sum::<u64>()).max();
            of(&TrialLevels::whole()) + most.unwrap_or(0)
        };
        let frame_bytes = layout.frame().frame_bytes as u64;
        let mut batch = self.batch_max(device, model.spec.vocab).min(each.len());
        let options = loop {
            let options = BackendOptions {
                layout: Some(layout.clone()),
                rotation,
                ..self.options(device, 1 + batch, context)
            };
            let needed = frames(batch) * frame_bytes;
            match self.lack(&options, opened, needed)? {
                None => break options,
                Some(_) if batch > 1 => batch -= 1,
                Some(lack) => {
                    return Err(CliError::Usage(format!(
                        "windows of {context} tokens need {} of KV memory, at 16 bit and shrunk \
                         side by side; {lack}, or lower --ctx",
                        ByteSize(needed)
                    )));
                }
            }
        };
        let frames = u32::try_from(frames(batch)).unwrap_or(u32::MAX);
        let backend = options.start(model, frames)?;
        Ok(Prepared {
            trials: Trials::new(backend, frames, layout, Vec::new()),
            levels,
            batch,
        })
    }

    /// Loads the model to run sequences of `context` tokens whose blocks move between `logged`
    /// levels, each the formats of all pages, beside trials with these formats, all in one step
    /// of so many tokens each.
    ///
    /// # Errors
    /// As [`TrialArgs::trials`].
    pub(super) fn replays(
        &self,
        device: &Device,
        opened: &Opened,
        logged: Vec<Vec<FormatId>>,
        formats: &[PageFormats],
        rotation: Rotation,
        (context, step): (usize, usize),
    ) -> Result<Prepared, CliError> {
        let model = &opened.model;
        let laid = lay_out_beside(model.spec.kv_geometry(), logged, formats, context);
        let (layout, levels) = laid.map_err(StartError::from)?;
        let seqs = 2 + formats.len();
        let blocks = context.div_ceil(CHUNK) as u64;
        // A logged sequence's blocks may all move in one step, from frames to frames.
        let whole = 3 * blocks * u64::from(layout.frames(0));
        let of = |at| frames_needed(&layout, at, context);
        let frames = whole + levels.iter().map(of).sum::<u64>();
        let mut options = BackendOptions {
            layout: Some(layout.clone()),
            rotation,
            ..self.options(device, seqs, context)
        };
        options.steps.rows = seqs * step;
        let needed = frames * layout.frame().frame_bytes as u64;
        if let Some(lack) = self.lack(&options, opened, needed)? {
            return Err(CliError::Usage(format!(
                "answers of {context} tokens, prompts included, need {} of KV memory, at 16 bit \
                 and shrunk side by side; {lack}",
                ByteSize(needed)
            )));
        }
        let frames = u32::try_from(frames).unwrap_or(u32::MAX);
        let backend = options.start(model, frames)?;
        Ok(Prepared {
            trials: Trials::new(backend, frames, layout, Vec::new()),
            levels,
            batch: formats.len(),
        })
    }

    /// Trials whose logits, and those of the 16-bit run, the host should hold at once.
    fn batch_max(&self, device: &Device, vocab: usize) -> usize {
        let bytes = match device {
            Device::Cpu => 512 << 20,
            // The more rows share a step, the faster they are; the buffer is there twice.
            Device::Cuda(_) => 2 << 30,
        };
        let of_seq = CHUNK * vocab * size_of::<f32>();
        let fitting = (bytes / of_seq).saturating_sub(1).max(1);
        self.batch.unwrap_or(fitting)
    }

    /// What to do about too little memory for a pool of `needed` bytes, if there is too little.
    fn lack(
        &self,
        options: &BackendOptions,
        opened: &Opened,
        needed: u64,
    ) -> Result<Option<String>, CliError> {
        let raise = "raise --kv-memory".to_owned();
        let (device, asked) = (&options.device, self.kv_memory.map(|size| size.0));
        let Device::Cuda(gpu) = device else {
            let room = asked.unwrap_or(CPU_KV_MEMORY_BYTES);
            return Ok((room < needed).then_some(raise));
        };
        let steps = &options.steps;
        let expand = options.expand_weights;
        let budget = gpu.budget(&opened.model, expand, steps, GPU_MEMORY_UTILIZATION)?;
        // Blocks that shrink need scratch beside the pool.
        let fits = |bytes: u64| {
            let spec = &opened.model.spec;
            let pool = |layout| gpu.pool_bytes(spec, steps, layout, bytes);
            options.layout.as_ref().map_or(bytes, pool) >= needed
        };
        Ok(match asked {
            Some(asked) if !fits(asked) => Some(raise),
            _ if fits(budget.left().unwrap_or(0)) => None,
            _ => Some(format!(
                "{} has too little:\n{budget}\nuse a larger GPU or --device cpu",
                device.description()
            )),
        })
    }
}
