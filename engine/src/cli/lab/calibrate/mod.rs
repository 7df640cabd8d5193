//! `ebb calibrate`: finds out what each page of the KV cache is worth and writes a profile.

mod from_gradients;
mod key_scales;
mod measure;
mod result;

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use ebb_kernels::formats::rotation::Rotation;
use ebb_lab::calibrate::{FormatChoices, Gradients, Losses, kvmix, measured, pmkvq};
use ebb_lab::eval::{CHUNK, read_text};
use ebb_serving::device::Device;
use ebb_serving::kv_profile::Method;
use xxhash_rust::xxh3::xxh3_64;

use super::trial_args::{TrialArgs, tell_notes};
use crate::cli::error::CliError;

/// What to measure and where to write it.
#[derive(Debug, Clone, Args)]
pub(in crate::cli) struct CalibrateArgs {
    /// How a page's worth is found.
    #[arg(long, value_enum, default_value = "measured")]
    method: MethodName,
    /// Plain text to calibrate with, of the kind that the model will see. Not what it will be
    /// judged by.
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    text: Vec<PathBuf>,
    /// Where the profile goes. What is measured is kept beside it, in FILE.losses, and not measured
    /// again.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Mean bits of sealed pages to choose the floors for, by an integer program [default: the
    /// lowest formats; with kvmix --high and --low].
    #[arg(long, value_name = "BITS")]
    budget: Option<f64>,
    /// Formats that pages may take besides 16 bit, such as int8t,int4t,int2t,int8,int4,int2 for
    /// PM-KVQ as published, with keys per token [default: int8, int4, kitty25c, kitty12c, int2c].
    #[arg(long, value_name = "FORMATS")]
    formats: Option<String>,
    /// With --budget: those of --formats, or f16, that the program chooses floors from; pages come
    /// down by all of --formats, such as --floors int4t,int2t,int4,int2 with those above [default:
    /// f16 and all of --formats].
    #[arg(long, value_name = "FORMATS")]
    floors: Option<String>,
    /// With --budget: give the keys and values of a layer the same bits, as PM-KVQ is published;
    /// pages apart lose less.
    #[arg(long)]
    per_layer: bool,
    /// Tokens of a window [default: measured 1024, of which the second half is scored; kvmix and
    /// pmkvq 512].
    #[arg(long, value_name = "TOKENS")]
    ctx: Option<usize>,
    /// Windows, spread evenly over the text [default: measured 1; kvmix and pmkvq 8].
    #[arg(long, value_name = "N")]
    samples: Option<usize>,
    /// Rotate values by a Hadamard matrix: halves the loss of 2-bit values. It is folded into the
    /// weights, which is free, or with packed ones computed in every step.
    #[arg(long)]
    rotate_v: bool,
    /// Rotate keys and queries behind RoPE, in every step: halves the loss of keys of one width, or
    /// better; those of --formats with kitty25c lose more.
    #[arg(long)]
    rotate_k: bool,
    #[command(flatten)]
    run: TrialArgs,
    #[command(flatten)]
    tuning: Tuning,
}

/// What concerns one method only.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Of one method")]
struct Tuning {
    /// Kvmix and pmkvq: distance of neighbouring tokens' positions, so that a short text stands for
    /// a long one [default: kvmix 1, pmkvq 4].
    #[arg(long, value_name = "N")]
    position_stride: Option<usize>,
    /// Pmkvq: find scales of key channels, too, for per-token keys of this format, int4t or int2t;
    /// they are folded into the weights, or with packed ones computed in every step, and do nothing
    /// for keys per channel.
    #[arg(long, value_name = "FORMAT")]
    key_scales: Option<String>,
    /// Pmkvq: windows that --key-scales looks for exponents in; the greatest keys are those of all
    /// windows [default: 2].
    #[arg(long, value_name = "N")]
    key_scale_samples: Option<usize>,
    /// Kvmix: percent of the layers that get the --high formats, for keys and for values apart.
    #[arg(long, value_name = "PERCENT", default_value_t = 20.0)]
    share: f64,
    /// Kvmix: formats of the layers that matter most.
    #[arg(long, value_name = "SPEC", default_value = "k=int3,v=int4")]
    high: String,
    /// Kvmix: formats of the other layers.
    #[arg(long, value_name = "SPEC", default_value = "k=int2,v=int2")]
    low: String,
    /// Kvmix: percent of the recent context that stays at 16 bit, of pages of 3 bits or more and of
    /// the others [default: the paper's 20/10].
    #[arg(long, value_name = "HIGH/LOW")]
    recent: Option<String>,
}

/// How a page's worth is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum MethodName {
    /// KL from the 16-bit run with one page at a format at a time.
    Measured,
    /// Gradient norms of W_k and W_v (KVmix).
    Kvmix,
    /// Gradients of keys and values times what quantising changes in them (PM-KVQ).
    Pmkvq,
}

impl CalibrateArgs {
    /// Runs the command. Blocks until it is done.
    pub(super) fn run(&self) -> Result<(), CliError> {
        self.check()?;
        let mut text = String::new();
        for path in &self.text {
            let read = read_text(path);
            text += &read.map_err(CliError::io(format!("read {}", path.display())))?;
        }
        let device = self.run.device.open()?;
        let mut opened = self.run.open()?;
        if self.method != MethodName::Measured {
            opened.model.limit_to_windows("calibration by gradients");
            tell_notes(&mut opened);
        }
        self.check_positions(opened.model.spec.max_positions)?;
        let tokens = opened.tokenizer.encode(&text, false, true);
        let tokens = tokens.map_err(|e| CliError::Usage(format!("--text: {e}")))?;
        let windows = self.windows(&tokens)?;
        let method = self.described(&windows);
        let model = opened.model.identity();
        let is_packed = opened
            .model
            .is_packed()
            .map_err(ebb_models::OpenError::from)?;
        let mut figures = self.figures(&model, &method, (&device, is_packed))?;
        let geometry = opened.model.spec.kv_geometry();
        let choices = self.format_choices()?;
        let found = match self.method {
            MethodName::Measured => {
                self.measure(&device, &opened, &windows, &choices, &mut figures)?;
                self.chosen(measured::sensitivities(geometry, &choices, &figures)?)?
            }
            MethodName::Kvmix => {
                let mut gradients = Gradients::open(&device, &opened.model, self.threads())?;
                self.gradient_norms(&opened, &mut gradients, &windows, &mut figures)?;
                let scores = kvmix::scores(geometry.layers, self.samples(), &figures)?;
                self.chosen_by_scores(geometry, &choices, &scores)?
            }
            MethodName::Pmkvq => {
                let mut gradients = Gradients::open(&device, &opened.model, self.threads())?;
                self.first_order(&opened, &mut gradients, &windows, &mut figures)?;
                let mut found = self.chosen(pmkvq::sensitivities(
                    geometry,
                    &choices,
                    self.samples(),
                    &figures,
                )?)?;
                self.add_key_scales(&opened, &mut gradients, &windows, &mut found)?;
                found
            }
        };
        self.write(&found, model, method)
    }

    fn ctx(&self) -> usize {
        let usual = match self.method {
            MethodName::Measured => 1024,
            MethodName::Kvmix | MethodName::Pmkvq => 512,
        };
        self.ctx.unwrap_or(usual)
    }

    fn samples(&self) -> usize {
        let usual = match self.method {
            MethodName::Measured => 1,
            MethodName::Kvmix | MethodName::Pmkvq => 8,
        };
        self.samples.unwrap_or(usual)
    }

    fn stride(&self) -> usize {
        let usual = match self.method {
            MethodName::Measured | MethodName::Kvmix => 1,
            MethodName::Pmkvq => 4,
        };
        self.tuning.position_stride.unwrap_or(usual)
    }

    fn check(&self) -> Result<(), CliError> {
        let usage = |text: &str| Err(CliError::Usage(text.to_owned()));
        self.run.check()?;
        if self.samples() == 0 || self.stride() == 0 {
            return usage("--samples and --position-stride must be at least 1");
        }
        if self.key_scales_format()?.is_some() && self.rotate_k {
            return usage(
                "--key-scales balance the channels of keys that are not rotated; leave out \
                 --key-scales or --rotate-k",
            );
        }
        self.recent_shares()?;
        self.floor_choices(&self.format_choices()?)?;
        if self.budget.is_none() && (self.floors.is_some() || self.per_layer) {
            return usage(
                "--floors and --per-layer are about the program that a budget is for; add \
                 --budget BITS",
            );
        }
        match self.tuning.key_scale_samples {
            Some(_) if self.tuning.key_scales.is_none() => {
                return usage("--key-scale-samples is for --key-scales; name their format, too");
            }
            Some(n) if n == 0 || n > self.samples() => {
                return Err(CliError::Usage(format!(
                    "--key-scale-samples {n} must be from 1 to the {} of --samples",
                    self.samples()
                )));
            }
            _ => {}
        }
        let ctx = self.ctx();
        match self.method {
            MethodName::Measured if ctx < 1024 => usage(
                "--ctx must be at least 1024 for --method measured: fewer blocks would hardly be \
                 shrunk",
            ),
            MethodName::Kvmix if ctx < 2 => usage("--ctx must be at least 2"),
            MethodName::Pmkvq if ctx < pmkvq::TOKENS_MIN || !ctx.is_multiple_of(CHUNK) => {
                Err(CliError::Usage(format!(
                    "--ctx {ctx} must be a multiple of {CHUNK} of at least {} for --method pmkvq: \
                     it quantises whole blocks, and leaves out the first",
                    pmkvq::TOKENS_MIN
                )))
            }
            MethodName::Measured if self.tuning.position_stride.is_some() => {
                usage("--position-stride is for --method kvmix and pmkvq")
            }
            MethodName::Measured | MethodName::Pmkvq if self.tuning.recent.is_some() => {
                usage("--recent is for --method kvmix")
            }
            MethodName::Measured | MethodName::Kvmix if self.tuning.key_scales.is_some() => {
                usage("--key-scales is for --method pmkvq")
            }
            _ if !(0.0..=100.0).contains(&self.tuning.share) => {
                usage("--share is a percentage, from 0 to 100")
            }
            _ if self.budget.is_some_and(|b| !(1.0..=16.0).contains(&b)) => {
                usage("--budget is a mean number of bits, from 1 to 16")
            }
            _ => Ok(()),
        }
    }

    fn format_choices(&self) -> Result<FormatChoices, CliError> {
        let named = |names: &String| {
            FormatChoices::named(names).map_err(|e| CliError::Usage(format!("--formats: {e}")))
        };
        self.formats
            .as_ref()
            .map_or(Ok(FormatChoices::default()), named)
    }

    /// What the program may choose.
    fn floor_choices(&self, choices: &FormatChoices) -> Result<FormatChoices, CliError> {
        match &self.floors {
            Some(names) => choices
                .floors(names)
                .map_err(|e| CliError::Usage(format!("--floors {names}: {e}"))),
            None => Ok(choices.clone()),
        }
    }

    fn check_positions(&self, max: usize) -> Result<(), CliError> {
        let (ctx, stride) = (self.ctx(), self.stride());
        match (ctx - 1).checked_mul(stride) {
            Some(last) if last < max => Ok(()),
            _ => Err(CliError::Usage(format!(
                "windows of {ctx} tokens, {stride} positions apart, go beyond the model's context \
                 of {max}; lower --ctx{}",
                if stride > 1 {
                    " or --position-stride"
                } else {
                    ""
                }
            ))),
        }
    }

    /// The windows one after the other.
    fn windows(&self, tokens: &[u32]) -> Result<Vec<u32>, CliError> {
        let (ctx, samples) = (self.ctx(), self.samples());
        let needed = ctx.saturating_mul(samples);
        if tokens.len() < needed {
            return Err(CliError::Usage(format!(
                "--text has {} tokens, fewer than the {needed} of {samples} windows of {ctx}; \
                 give more text or lower --samples",
                tokens.len(),
            )));
        }
        let stride = tokens.len() / samples;
        let starts = (0..samples).map(|i| i * stride);
        Ok(starts.flat_map(|s| tokens[s..s + ctx].to_vec()).collect())
    }

    fn described(&self, windows: &[u32]) -> Method {
        let bytes: Vec<u8> = windows.iter().flat_map(|t| t.to_le_bytes()).collect();
        Method {
            name: match self.method {
                MethodName::Measured => "measured",
                MethodName::Kvmix => "kvmix",
                MethodName::Pmkvq => "pmkvq",
            }
            .to_owned(),
            samples: self.samples(),
            ctx: self.ctx(),
            position_stride: Some(self.stride()).filter(|s| *s != 1),
            text: format!("xxh3-{:016x}", xxh3_64(&bytes)),
        }
    }

    /// What an earlier run of the same calibration has found already. `is_packed`: whether any of
    /// the model's weights can be held packed.
    fn figures(
        &self,
        model: &ebb_models::model::Identity,
        method: &Method,
        (device, is_packed): (&Device, bool),
    ) -> Result<Losses, CliError> {
        let kept = self.out.with_added_extension("losses");
        // Gradients are f32 anywhere. What is measured is rounded as a served model is: activations
        // on a GPU, and with packed weights on a CPU.
        let is_measured = self.method == MethodName::Measured;
        let arithmetic = match device {
            Device::Cuda(_) if is_measured => " activations=bf16",
            _ => "",
        };
        let held = match self.run.model.expand_weights() {
            _ if !is_measured || !is_packed => "",
            true => " held=exact",
            false => " held=packed",
        };
        let rotate_k = if self.rotate_k { " rotate_k=true" } else { "" };
        let what = format!(
            "{} weights={} method={} ctx={} samples={} stride={} rotate_v={}{rotate_k} \
             text={}{arithmetic}{held}",
            model.name,
            model.weights,
            method.name,
            method.ctx,
            method.samples,
            self.stride(),
            self.rotate_v,
            method.text,
        );
        Ok(Losses::kept_in(&kept, &what)?)
    }

    fn rotation(&self) -> Rotation {
        Rotation {
            k: self.rotate_k,
            v: self.rotate_v,
        }
    }

    fn threads(&self) -> usize {
        self.run.threads()
    }
}
