//! Flags that say how the KV cache shrinks.

use clap::{Args, ValueEnum};
use ebb_scheduler::{Admission, Mode};
use ebb_serving::kv_plan::{DEFAULT_FLOOR, KvSource};
use ebb_serving::kv_spec::{Preset, profile_at};

use super::error::CliError;
use super::size::ByteSize;

/// What gives way when the KV memory is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum KvMode {
    /// Old blocks of the KV cache shrink while they are served, step by step; nothing is thrown
    /// out.
    Progressive,
    /// Every block goes to its floor as soon as it is full.
    Static,
    /// The KV cache stays at 16 bit; requests are thrown out and computed again.
    PreemptOnly,
}

impl From<KvMode> for Mode {
    fn from(mode: KvMode) -> Self {
        match mode {
            KvMode::Progressive => Self::Progressive,
            KvMode::Static => Self::Static,
            KvMode::PreemptOnly => Self::PreemptOnly,
        }
    }
}

/// What a request waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum KvAdmission {
    /// Room at the floor: others shrink to let it in.
    Degrade,
    /// Room for all prompts at 16 bit: nothing shrinks to let it in. Running requests still shrink
    /// where they would be preempted otherwise; min_kv_bits and preempt-only rule that out.
    Queue,
}

impl From<KvAdmission> for Admission {
    fn from(admission: KvAdmission) -> Self {
        match admission {
            KvAdmission::Degrade => Self::Degrade,
            KvAdmission::Queue => Self::Queue,
        }
    }
}

/// How the KV cache shrinks.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "KV cache precision")]
pub(super) struct KvArgs {
    /// What gives way when the KV memory is full [default: progressive; preempt-only on a GPU that
    /// has no kernels for these pages].
    #[arg(long, value_enum)]
    kv_mode: Option<KvMode>,
    /// Lowest formats of keys and values: k=FORMAT,v=FORMAT with parts like layer7.k=FORMAT,
    /// protect=int8|f16 (of the first and the last full block) and rotate=k, v or kv.
    ///
    /// Progressive: f16, int8, int4, int2c and for keys kitty25c, kitty12c; or, not clipped, int2,
    /// kitty25, kitty12. Static: any format [default: k=kitty25c,v=int2c].
    #[arg(long, value_name = "SPEC")]
    kv_floor: Option<String>,
    /// Calibrated order in which pages shrink, instead of --kv-floor; FILE@BITS stops at that mean
    /// width.
    #[arg(long, value_name = "FILE[@BITS]", conflicts_with = "kv_floor")]
    kv_profile: Option<String>,
    /// A paper's mode by its name, the one of `ebb eval`: kivi2, kivi4, kitty25, kitty12,
    /// kvmix:FILE, pmkvq:FILE, polarquant44, ebb, ebb:FILE[@BITS] and ablations (a wrong name lists
    /// them all); FILE is a profile of ebb calibrate. Says what --kv-floor or --kv-profile and,
    /// unless that is given, --kv-mode would.
    #[arg(long, value_name = "NAME[:FILE]", conflicts_with_all = ["kv_floor", "kv_profile"])]
    kv_preset: Option<String>,
    /// What a request waits for when memory is short.
    #[arg(long, value_enum, default_value = "degrade")]
    pub(super) kv_admission: KvAdmission,
    /// Share of the KV memory that is promised to running requests, each at its longest and at its
    /// floor. Above 1 bets on answers that end early, and may have to throw requests out.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    kv_overcommit: f64,
    /// KV memory that one step may rewrite to shrink it; bounds what shrinking adds between two
    /// tokens [default: 32MiB on the CPU, 1GiB on a GPU].
    #[arg(long, value_name = "SIZE")]
    pub(super) kv_shrink_rate: Option<ByteSize>,
    /// Progressive: KV memory that running requests fill before their pages shrink though there is
    /// room. Every step reads all of it: a lower limit makes steps faster and takes precision for
    /// it [default: none].
    #[arg(long, value_name = "SIZE")]
    pub(super) kv_live_limit: Option<ByteSize>,
    /// Static mode: tokens of a prompt that read each other at 16 bit before they go to their
    /// formats, a multiple of 128. Longer chunks are faster and lose less, and keep memory for
    /// themselves [default: 2048, or what a sixteenth of the KV memory holds].
    #[arg(long, value_name = "TOKENS")]
    pub(super) kv_static_chunk: Option<u32>,
}

impl KvArgs {
    /// The mode asked for: whoever names a floor or a profile wants the cache to shrink.
    ///
    /// # Errors
    /// [`CliError::Usage`] naming the flag.
    pub(super) fn mode(&self) -> Result<Option<Mode>, CliError> {
        let shrinks = self.kv_floor.is_some() || self.kv_profile.is_some();
        let of_preset = self.preset()?.map(|preset| preset.mode);
        let mode = self.kv_mode.map(Mode::from).or(of_preset);
        Ok(mode.or(shrinks.then_some(Mode::Progressive)))
    }

    fn preset(&self) -> Result<Option<Preset>, CliError> {
        let named = |text: &String| {
            Preset::named(text, DEFAULT_FLOOR)
                .map_err(|e| CliError::Usage(format!("--kv-preset: {e}")))
        };
        self.kv_preset.as_ref().map(named).transpose()
    }

    /// Where the shrink order comes from.
    ///
    /// # Errors
    /// [`CliError::Usage`] naming the flag.
    pub(super) fn source(&self) -> Result<KvSource, CliError> {
        let usage = |flag: &str, e: &dyn std::fmt::Display| CliError::Usage(format!("{flag}: {e}"));
        if let Some(preset) = self.preset()? {
            return Ok(KvSource::Floor(preset.spec));
        }
        match &self.kv_profile {
            Some(place) => {
                let (profile, bits) = profile_at(place).map_err(|e| usage("--kv-profile", &e))?;
                Ok(KvSource::Profile(profile, bits))
            }
            None => {
                let floor = self.kv_floor.as_deref().unwrap_or(DEFAULT_FLOOR);
                let spec = floor.parse().map_err(|e| usage("--kv-floor", &e))?;
                Ok(KvSource::Floor(spec))
            }
        }
    }

    /// The factor in percent.
    ///
    /// # Errors
    /// [`CliError::Usage`] naming the flag.
    pub(super) fn overcommit(&self) -> Result<u32, CliError> {
        let factor = self.kv_overcommit;
        if !(0.1..=100.0).contains(&factor) {
            return Err(CliError::Usage(format!(
                "--kv-overcommit is {factor}; it must be from 0.1 to 100"
            )));
        }
        Ok((factor * 100.0).round() as u32)
    }
}
