//! From sensitivities to a written profile, and what to say about it.

use ebb_block_manager::BLOCK_TOKENS;
use ebb_kernels::formats::FormatId;
use ebb_kernels::kv::{KvGeometry, Side};
use ebb_lab::calibrate::budget::{Allocation, BudgetError, allocate, allocate_per_layer};
use ebb_lab::calibrate::kvmix::{self, Levels};
use ebb_lab::calibrate::measured::page_name;
use ebb_lab::calibrate::{FormatChoices, Sensitivities, shrink_order};
use ebb_models::model::{Identity, KeyScales};
use ebb_scheduler::recent_tokens;
use ebb_serving::kv_profile::{
    Method, Profile, ProfileChange, RecentContext, RecentShares, Sides, permille, width,
};
use ebb_serving::kv_spec::KvSpec;

use super::CalibrateArgs;
use crate::cli::error::CliError;

/// Prompt after which KVmix's recent context is shown.
const PROMPT_TOKENS: u32 = 4096;

/// What a calibration comes to.
pub(super) struct Found {
    sensitivities: Sensitivities,
    floors: Vec<FormatId>,
    recent: Option<RecentContext>,
    pub(super) key_scales: Option<KeyScales>,
    /// Sentences about how the floors came about.
    pub(super) notes: Vec<String>,
}

impl CalibrateArgs {
    /// Floors for the budget, or the lowest formats.
    pub(super) fn chosen(&self, sensitivities: Sensitivities) -> Result<Found, CliError> {
        let (floors, notes) = match self.budget {
            Some(bits) => self.within(&sensitivities, bits)?,
            None => (sensitivities.lowest(), Vec::new()),
        };
        Ok(Found {
            sensitivities,
            floors,
            recent: None,
            key_scales: None,
            notes,
        })
    }

    /// Floors of at most `bits`, and what to say about them.
    fn within(
        &self,
        sensitivities: &Sensitivities,
        bits: f64,
    ) -> Result<(Vec<FormatId>, Vec<String>), CliError> {
        let elements = sensitivities.geometry().block_bytes() as f64 / 2.0;
        let bits_of = |bytes: u64| bytes as f64 * 8.0 / elements;
        let budget = (bits * elements / 8.0) as u64;
        let pages = match &self.floors {
            Some(_) => sensitivities.pages_of(&self.floor_choices(&self.format_choices()?)?),
            None => sensitivities.pages().to_vec(),
        };
        if pages.iter().any(Vec::is_empty) {
            return Err(CliError::Usage(format!(
                "--floors: this model's heads of {} channels have none of these formats",
                sensitivities.geometry().head_dim
            )));
        }
        let found = match self.per_layer {
            true => allocate_per_layer(&pages, budget),
            false => allocate(&pages, budget),
        };
        let found = found.map_err(|error| {
            CliError::Usage(match error {
                BudgetError::Infeasible { least, .. } => format!(
                    "--budget {bits} cannot be met: with every page at its lowest format this \
                     model's pages take {:.3} bits; give at least that",
                    bits_of(least)
                ),
                BudgetError::NoCommonWidth { .. } => {
                    format!("--per-layer: {error}; name formats of both with --floors")
                }
                BudgetError::Solver(_) => format!("--budget {bits}: {error}"),
            })
        })?;
        let floors: Vec<FormatId> = found.choices.iter().map(|c| c.format).collect();
        let notes = notes(&found, bits, bits_of(found.bytes), self.per_layer);
        Ok((floors, notes))
    }

    /// KVmix: floors for the budget, or the paper's two levels, and shares of recent context.
    pub(super) fn chosen_by_scores(
        &self,
        geometry: KvGeometry,
        choices: &FormatChoices,
        scores: &[f64],
    ) -> Result<Found, CliError> {
        let levels = self.levels(geometry)?;
        let mut found = if self.budget.is_some() {
            self.chosen(kvmix::sensitivities(geometry, choices, &[], scores))?
        } else {
            let formats: Vec<FormatId> = levels.iter().flat_map(|l| [l.high, l.low]).collect();
            let sensitivities = kvmix::sensitivities(geometry, choices, &formats, scores);
            Found {
                floors: kvmix::floors(scores, self.tuning.share / 100.0, levels),
                sensitivities,
                recent: None,
                key_scales: None,
                notes: Vec::new(),
            }
        };
        let shares = self.recent_shares()?;
        let ratios = |side: Side| {
            let floors = found.floors.iter().skip(side as usize).step_by(2);
            floors.map(|f| shares.of(*f)).collect::<Vec<f64>>()
        };
        let ratios = Sides {
            k: ratios(Side::K),
            v: ratios(Side::V),
        };
        found.notes.extend(recent_notes(&ratios));
        found.recent = Some(RecentContext::new(ratios));
        Ok(found)
    }

    /// `--recent`.
    pub(super) fn recent_shares(&self) -> Result<RecentShares, CliError> {
        let Some(text) = &self.tuning.recent else {
            return Ok(RecentShares::PAPER);
        };
        let percent = |text: &str| {
            let percent: Option<f64> = text.trim().parse().ok();
            percent.filter(|p| (0.0..=90.0).contains(p))
        };
        let shares = text.split_once('/');
        let shares = shares.and_then(|(high, low)| Some((percent(high)?, percent(low)?)));
        match shares {
            Some((high, low)) => Ok(RecentShares {
                high: high / 100.0,
                low: low / 100.0,
            }),
            None => Err(CliError::Usage(format!(
                "--recent {text}: give two percentages from 0 to 90, of pages of 3 bits or more \
                 and of the others, such as 20/10"
            ))),
        }
    }

    /// `--high` and `--low`, for keys and for values.
    fn levels(&self, geometry: KvGeometry) -> Result<[Levels; 2], CliError> {
        let one = KvGeometry {
            layers: 1,
            ..geometry
        };
        let formats = |flag: &str, text: &str| {
            let usage = |e: &dyn std::fmt::Display| CliError::Usage(format!("{flag}: {e}"));
            let spec: KvSpec = text.parse().map_err(|e| usage(&e))?;
            let sealed = spec.formats(one).map_err(|e| usage(&e))?.sealed;
            width(one, &sealed).map_err(|e| usage(&e))?;
            Ok::<_, CliError>(sealed)
        };
        let high = formats("--high", &self.tuning.high)?;
        let low = formats("--low", &self.tuning.low)?;
        Ok([0, 1].map(|side| Levels {
            high: high[side],
            low: low[side],
        }))
    }

    pub(super) fn write(
        &self,
        found: &Found,
        model: Identity,
        method: Method,
    ) -> Result<(), CliError> {
        let geometry = found.sensitivities.geometry();
        let steps = shrink_order(&found.sensitivities, &found.floors);
        let steps = steps.into_iter().map(|step| ProfileChange {
            page: page_name(step.page / 2, Side::of_page(step.page)),
            to: step.to.name().to_owned(),
            loss: Some(step.loss),
        });
        let mut profile = Profile::new(
            model,
            geometry,
            method,
            self.rotation(),
            &found.floors,
            steps.collect(),
        );
        profile.budget_bits = self.budget;
        profile.sensitivities = Sides {
            k: found.sensitivities.table(Side::K),
            v: found.sensitivities.table(Side::V),
        };
        profile.recent = found.recent.clone();
        profile.key_scales = found.key_scales.clone();
        let path = self.out.display();
        let json = serde_json::to_string_pretty(&profile)
            .map_err(|e| CliError::io("write JSON")(e.into()))?;
        std::fs::write(&self.out, json + "\n").map_err(CliError::io(format!("write {path}")))?;
        for note in &found.notes {
            eprintln!("{note}");
        }
        let bits = width(geometry, &found.floors).map_err(CliError::Usage)?;
        eprintln!(
            "wrote {path}: {} steps to floors of {bits:.3} bits. See it: ebb profile show {path}; \
             serve with it: ebb serve --kv-profile {path}; score it: ebb eval --kv profile:{path}",
            profile.shrink_order().len()
        );
        Ok(())
    }
}

fn notes(found: &Allocation, asked: f64, got: f64, is_per_layer: bool) -> Vec<String> {
    let what = if is_per_layer { "layers" } else { "pages" };
    let mut notes = Vec::new();
    if found.loss == 0.0 {
        notes.push(format!(
            "a budget of {asked} bits is enough for floors that lose nothing ({got:.3} bits)"
        ));
    } else if found.proven {
        notes.push(format!(
            "the floors take {got:.3} of {asked} bits and lose {:.3e} in all; no others within \
             the budget lose less",
            found.loss
        ));
    } else {
        notes.push(format!(
            "the floors take {got:.3} of {asked} bits and lose {:.3e} in all; the solver ran out \
             of time to prove them best, but none within the budget lose less than {:.3e}",
            found.loss, found.bound
        ));
    }
    if found.ties > 0 {
        notes.push(format!(
            "{} pairs of {what} could trade formats at the same loss; of those the earlier layer \
             has the more bits",
            found.ties
        ));
    }
    notes
}

/// What KVmix's shares keep, one sentence a share.
fn recent_notes(ratios: &Sides<Vec<f64>>) -> Vec<String> {
    let mut shares: Vec<f64> = ratios.k.iter().chain(&ratios.v).copied().collect();
    shares.sort_by(f64::total_cmp);
    shares.dedup();
    let note = |share: f64| {
        let of = |all: &[f64]| all.iter().filter(|r| **r == share).count();
        let kept = |blocks: u32| {
            let computed = PROMPT_TOKENS + blocks * BLOCK_TOKENS as u32;
            recent_tokens(permille(share), PROMPT_TOKENS, PROMPT_TOKENS, computed)
        };
        format!(
            "recent share {share} (keys of {} layers, values of {}): KVmix keeps {} tokens at full \
             precision after a prompt of {PROMPT_TOKENS}, {} after a block of the answer and {} \
             after two",
            of(&ratios.k),
            of(&ratios.v),
            kept(0),
            kept(1),
            kept(2)
        )
    };
    shares.into_iter().map(note).collect()
}
