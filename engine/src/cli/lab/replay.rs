//! `ebb replay`: computes logged answers again.

use std::path::PathBuf;

use clap::Args;
use ebb_kernels::kv::KvGeometry;
use ebb_lab::eval::{Bits, CHUNK, Row};
use ebb_lab::replay::{Feeding, Replayed, Sameness, replay};
use ebb_models::Opened;
use ebb_models::model::KeyScales;
use ebb_serving::device::Device;
use ebb_serving::kv_pages::PageFormats;
use ebb_serving::kv_plan::DEFAULT_FLOOR;
use ebb_serving::kv_spec::{KvSpec, Preset};
use ebb_serving::trajectory::{Header, Trajectory, read};
use serde::Serialize;

use super::trial_args::TrialArgs;
use crate::cli::error::{CliError, printable};
use crate::cli::generate::print;

/// Which log, and what beside.
#[derive(Debug, Clone, Args)]
pub(in crate::cli) struct ReplayArgs {
    /// The log, as `ebb serve --trajectory-log` wrote it.
    #[arg(value_name = "LOG")]
    file: PathBuf,
    /// Formats of the KV cache to run over the same tokens beside the logged trajectory, as in `ebb
    /// eval`. On a GPU the answers then need not come out again.
    #[arg(long, value_name = "SPEC")]
    kv: Vec<String>,
    /// A paper's mode by its name to run beside it, as in `ebb eval`.
    #[arg(long, value_name = "NAME[:FILE]")]
    kv_preset: Vec<String>,
    /// Only answers to the request of this name.
    #[arg(long, value_name = "NAME")]
    request: Option<String>,
    /// One JSON object a choice, with the loss by place in the answer.
    #[arg(long)]
    json: bool,
    /// Tokens of the answer whose losses are averaged, with --json.
    #[arg(
        long,
        value_name = "TOKENS",
        default_value_t = 128,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    bin: u32,
    #[command(flatten)]
    run: TrialArgs,
}

/// A choice computed again, as `--json` prints it.
#[derive(Debug, Serialize)]
struct Report<'a> {
    request: &'a str,
    choice: u32,
    prompt: usize,
    tokens: usize,
    moves: usize,
    /// Null where the log cannot say.
    same: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    runs: Vec<Run<'a>>,
}

/// One KV cache over the answer's tokens, beside 16 bit.
#[derive(Debug, Serialize)]
struct Run<'a> {
    kv: &'a str,
    /// Bits an element over every stored byte, at the end.
    mean_bits: f64,
    /// Mean KL divergence from the 16-bit run, nats a token.
    kl: f64,
    /// Share of tokens at which both hold the same token most likely.
    top1: f64,
    /// Tokens before the first at which they do not: how long both would have answered alike,
    /// greedily, on these tokens.
    agree: usize,
    by_place: Vec<Bin>,
}

#[derive(Debug, Serialize)]
struct Bin {
    from: usize,
    tokens: usize,
    kl: f64,
    top1: f64,
}

impl<'a> Run<'a> {
    fn new(kv: &'a str, rows: &[Row], bits: Bits, bin: usize) -> Self {
        let bins = rows.chunks(bin).enumerate().map(|(i, rows)| Bin {
            from: i * bin,
            tokens: rows.len(),
            kl: mean(rows, |r| r.kl),
            top1: mean(rows, |r| f64::from(u8::from(r.same))),
        });
        Self {
            kv,
            mean_bits: bits.stored,
            kl: mean(rows, |r| r.kl),
            top1: mean(rows, |r| f64::from(u8::from(r.same))),
            agree: rows.iter().take_while(|r| r.same).count(),
            by_place: bins.collect(),
        }
    }
}

fn mean(rows: &[Row], of: impl Fn(&Row) -> f64) -> f64 {
    rows.iter().map(of).sum::<f64>() / rows.len().max(1) as f64
}

/// What came out, as a phrase.
fn phrase(sameness: Sameness) -> String {
    match sameness {
        Sameness::Same => "the same".into(),
        Sameness::Token {
            at,
            logged,
            computed,
        } => format!("token {at} is {computed} instead of {logged}"),
        Sameness::Logprob {
            at,
            logged,
            computed,
        } => format!("token {at} has log-probability {computed} instead of {logged}"),
        Sameness::Unknown(why) => format!("not comparable: {why}"),
    }
}

impl ReplayArgs {
    /// Runs the command.
    pub(super) fn run(&self) -> Result<(), CliError> {
        self.run.check()?;
        let device = self.run.device.open()?;
        let mut opened = self.run.open()?;
        let vocab = opened.model.spec.vocab;
        let (header, rest) = read(&self.file, &opened.model.identity(), vocab)?;
        if header.expand_weights != self.run.model.expand_weights() {
            let log = self.file.display();
            return Err(CliError::Usage(match header.expand_weights {
                true => format!("{log} was logged with --weights exact; add that"),
                false => format!("{log} was logged without --weights exact; leave that out"),
            }));
        }
        let mut trajectories = Vec::new();
        for trajectory in rest {
            let trajectory = match trajectory {
                Ok(trajectory) => trajectory,
                Err(error) if error.is_one_line() => {
                    eprintln!("ebb: skipped: {}", printable(&error));
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            if self
                .request
                .as_ref()
                .is_none_or(|r| *r == trajectory.request)
            {
                trajectories.push(trajectory);
            }
        }
        let Some(context) = trajectories.iter().map(Trajectory::computed).max() else {
            let log = self.file.display();
            return Err(CliError::Usage(format!("{log} has no such answer")));
        };
        let geometry = opened.model.spec.kv_geometry();
        let (names, formats) = self.beside(&device, &opened, &header, geometry)?;
        let fits = opened
            .model
            .fold_key_scales(header.key_scales.clone().map(std::sync::Arc::new));
        fits.map_err(|cause| CliError::Usage(format!("{}: {cause}", self.file.display())))?;
        let logged = header.formats(geometry).map_err(|cause| {
            CliError::Usage(format!(
                "{}: {cause}; is it this model's?",
                self.file.display()
            ))
        })?;
        // Rows of the CPU do not depend on how they are grouped.
        let feeding = match device {
            Device::Cpu => Feeding::InBlocks,
            Device::Cuda(_) if formats.is_empty() => Feeding::AsLogged,
            Device::Cuda(_) => Feeding::InBlocks,
        };
        let step = match feeding {
            Feeding::InBlocks => CHUNK,
            Feeding::AsLogged => {
                let steps = trajectories.iter().flat_map(|t| &t.steps);
                let most = steps.map(|(tokens, _)| *tokens as usize).max();
                most.unwrap_or(1).max(CHUNK)
            }
        };
        let mut prepared = self.run.replays(
            &device,
            &opened,
            logged,
            &formats,
            header.rotation(),
            (context, step),
        )?;
        let can_differ = matches!(device, Device::Cuda(_)) && feeding == Feeding::InBlocks;
        let mut differing = 0;
        for trajectory in &trajectories {
            let mut replayed = replay(
                &mut prepared.trials,
                trajectory,
                &opened.model.end_ids,
                &prepared.levels,
                feeding,
            )?;
            if can_differ && replayed.sameness != Sameness::Same {
                replayed.sameness = Sameness::Unknown(
                    "beside other formats tokens are computed a block at a time, which a GPU \
                     rounds in another way; leave those out",
                );
            }
            let is_same = match replayed.sameness {
                Sameness::Same => Some(true),
                Sameness::Token { .. } | Sameness::Logprob { .. } => Some(false),
                Sameness::Unknown(_) => None,
            };
            differing += usize::from(is_same == Some(false));
            self.show(trajectory, &replayed, is_same, &names)?;
        }
        if differing == 0 {
            return Ok(());
        }
        let all = trajectories.len();
        Err(CliError::Replay(if header.exact {
            format!("{differing} of {all} answers did not come out again as they were logged")
        } else {
            format!(
                "{differing} of {all} answers did not come out again as they were logged; on {} \
                 they need not: serve with --batch-invariant",
                header.device
            )
        }))
    }

    /// What to run beside the logged trajectories: names and formats.
    fn beside(
        &self,
        device: &Device,
        opened: &Opened,
        header: &Header,
        geometry: KvGeometry,
    ) -> Result<(Vec<String>, Vec<PageFormats>), CliError> {
        let kv = self.kv.iter().map(|text| ("--kv", text, text.parse()));
        let presets = self.kv_preset.iter().map(|text| {
            let preset = Preset::named(text, DEFAULT_FLOOR);
            ("--kv-preset", text, preset.map(|p| p.spec))
        });
        let (mut names, mut all) = (Vec::new(), Vec::new());
        for (flag, text, spec) in kv.chain(presets) {
            let spec: KvSpec = spec?;
            spec.check_model(&opened.model)?;
            let scales = spec.key_scales();
            if spec.rotation() != header.rotation()
                || scales.as_deref() != header.key_scales.as_ref().map(|s: &KeyScales| s)
            {
                return Err(CliError::Usage(format!(
                    "{flag} {text}: its weights are not those of the log; both must rotate the \
                     same, keys, values or neither, and have the same key scales, or none"
                )));
            }
            if spec.comes_down_by_length() {
                return Err(CliError::Usage(format!(
                    "{flag} {text}: answers have no greatest length to come down by; leave out \
                     shrink=by-length, or score a text with ebb eval"
                )));
            }
            let formats = spec.formats(geometry)?;
            device
                .check_formats(geometry, &formats)
                .map_err(|e| CliError::Usage(format!("{flag} {text}: {e}")))?;
            names.push(text.clone());
            all.push(formats);
        }
        Ok((names, all))
    }

    fn show(
        &self,
        trajectory: &Trajectory,
        replayed: &Replayed,
        same: Option<bool>,
        names: &[String],
    ) -> Result<(), CliError> {
        let names = std::iter::once("logged").chain(names.iter().map(String::as_str));
        let runs = names.zip(&replayed.rows).zip(&replayed.bits);
        let runs: Vec<Run<'_>> = runs
            .map(|((kv, rows), bits)| Run::new(kv, rows, *bits, self.bin as usize))
            .collect();
        let came = phrase(replayed.sameness);
        let text = if self.json {
            let report = Report {
                request: &trajectory.request,
                choice: trajectory.choice,
                prompt: trajectory.prompt.len(),
                tokens: trajectory.tokens.len(),
                moves: trajectory.moves.len(),
                same,
                why: (same != Some(true)).then_some(came),
                runs,
            };
            serde_json::to_string(&report).map_err(|e| CliError::io("write JSON")(e.into()))? + "\n"
        } else {
            let mut text = format!(
                "{} choice {}: prompt {}, answer {}, {} moves; {came}\n",
                trajectory.request,
                trajectory.choice,
                trajectory.prompt.len(),
                trajectory.tokens.len(),
                trajectory.moves.len(),
            );
            for run in runs {
                text += &format!(
                    "  {:<24} {:>6.3} bits at the end, kl {:.5}, top1 {:.3}, alike for {} tokens\n",
                    run.kv, run.mean_bits, run.kl, run.top1, run.agree
                );
            }
            text
        };
        print(&mut std::io::stdout(), &text)
    }
}
