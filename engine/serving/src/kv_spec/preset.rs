//! The papers' modes by name: one name says formats, guarded blocks and how blocks come down, for
//! `ebb eval` and `ebb serve` alike.

use ebb_scheduler::Mode;

use super::{KvSpec, KvSpecError};

/// Whether a preset starts from a profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Profile {
    No,
    Maybe,
    Yes,
}

/// A name, whether a profile comes with it, how blocks come down, and what they become: a KV
/// specification, or what comes behind the profile in one.
type Entry = (&'static str, Profile, Mode, &'static str);

// The papers' guards, in blocks:
// - KIVI keeps the latest 128 values at full precision; keys are quantised whenever 128 have come
//   together.
// - Kitty does, too, and keeps the first 32 tokens; here the block of them (sink=32 keeps them
//   alone, where nothing is served).
// - PM-KVQ keeps one token, and what has not filled a window of 128; so the open block is its
//   window.
// - KVmix keeps what its shares say, which right after a prompt is more than in a long answer.
// - PolarQuant keeps what has not filled a residual of 128 (64 for m4n2): the open block is that.
const PRESETS: &[Entry] = {
    use Mode::{Progressive, Static};
    use Profile::{Maybe, No, Yes};
    &[
        (
            "kivi4",
            No,
            Static,
            "k=int4g32,v=int4g32,protect=f16,sink=0,recent.k=0,recent.v=1",
        ),
        (
            "kivi2",
            No,
            Static,
            "k=int2g32,v=int2g32,protect=f16,sink=0,recent.k=0,recent.v=1",
        ),
        (
            "kivi2-128",
            No,
            Static,
            "k=int2,v=int2,protect=f16,sink=0,recent.k=0,recent.v=1",
        ),
        (
            "kitty25",
            No,
            Static,
            "k=kitty25,v=int2,protect=f16,recent.k=0,recent.v=1",
        ),
        (
            "kitty25-page",
            No,
            Static,
            "k=kitty25page,v=int2,protect=f16,recent.k=0,recent.v=1",
        ),
        (
            "kitty25-top",
            No,
            Static,
            "k=kitty25top,v=int2,protect=f16,recent.k=0,recent.v=1",
        ),
        (
            "kitty25-variance",
            No,
            Static,
            "k=kitty25var,v=int2,protect=f16,recent.k=0,recent.v=1",
        ),
        (
            "kitty25-random",
            No,
            Static,
            "k=kitty25rnd,v=int2,protect=f16,recent.k=0,recent.v=1",
        ),
        (
            "kitty12",
            No,
            Static,
            "k=kitty12,v=int2,protect=f16,recent.k=0,recent.v=1",
        ),
        (
            "kitty12-page",
            No,
            Static,
            "k=kitty12page,v=int2,protect=f16,recent.k=0,recent.v=1",
        ),
        (
            "kitty12-variance",
            No,
            Static,
            "k=kitty12var,v=int2,protect=f16,recent.k=0,recent.v=1",
        ),
        (
            "kitty12-random",
            No,
            Static,
            "k=kitty12rnd,v=int2,protect=f16,recent.k=0,recent.v=1",
        ),
        ("kvmix", Yes, Static, "protect=f16,sink=0,recent=profile"),
        (
            "pmkvq",
            Yes,
            Progressive,
            "protect=f16,recent=0,shrink=by-length",
        ),
        (
            "pmkvq-token4",
            Yes,
            Static,
            "k=int4t,v=int4,protect=f16,recent=0",
        ),
        (
            "pmkvq-token2",
            Yes,
            Static,
            "k=int2t,v=int2,protect=f16,recent=0",
        ),
        (
            "pmkvq-shift4",
            No,
            Static,
            "k=int4,v=int4,protect=f16,recent=0",
        ),
        (
            "pmkvq-direct4",
            No,
            Static,
            "k=int4direct,v=int4direct,protect=f16,recent=0",
        ),
        (
            "pmkvq-modified4",
            No,
            Static,
            "k=int4modified,v=int4modified,protect=f16,recent=0",
        ),
        (
            "pmkvq-shift2",
            No,
            Static,
            "k=int2,v=int2,protect=f16,recent=0",
        ),
        (
            "pmkvq-direct2",
            No,
            Static,
            "k=int2direct,v=int2direct,protect=f16,recent=0",
        ),
        (
            "pmkvq-modified2",
            No,
            Static,
            "k=int2modified,v=int2modified,protect=f16,recent=0",
        ),
        (
            "pmkvq-shift4-token",
            No,
            Static,
            "k=int4t,v=int4,protect=f16,recent=0",
        ),
        (
            "pmkvq-direct4-token",
            No,
            Static,
            "k=int4tdirect,v=int4direct,protect=f16,recent=0",
        ),
        (
            "pmkvq-modified4-token",
            No,
            Static,
            "k=int4tmodified,v=int4modified,protect=f16,recent=0",
        ),
        (
            "pmkvq-shift2-token",
            No,
            Static,
            "k=int2t,v=int2,protect=f16,recent=0",
        ),
        (
            "pmkvq-direct2-token",
            No,
            Static,
            "k=int2tdirect,v=int2direct,protect=f16,recent=0",
        ),
        (
            "pmkvq-modified2-token",
            No,
            Static,
            "k=int2tmodified,v=int2modified,protect=f16,recent=0",
        ),
        (
            "polarquant44",
            No,
            Static,
            "k=polar44,protect=f16,sink=0,recent=0",
        ),
        (
            "polarquant42",
            No,
            Static,
            "k=polar42,protect=f16,sink=0,recent=0",
        ),
        (
            "polarquant44-grid",
            No,
            Static,
            "k=polar44grid,protect=f16,sink=0,recent=0",
        ),
        (
            "polarquant44-paper",
            No,
            Static,
            "k=polar44g64,protect=f16,sink=0,recent=0",
        ),
        (
            "polarquant42-paper",
            No,
            Static,
            "k=polar42g64,protect=f16,sink=0,recent=0",
        ),
        (
            "polarquant44-page",
            No,
            Static,
            "k=polar44g128,protect=f16,sink=0,recent=0",
        ),
        ("ebb", Maybe, Progressive, ""),
    ]
};

/// A preset with its profile, if it has one.
#[derive(Debug, Clone, PartialEq)]
pub struct Preset {
    /// How blocks come down when they are served.
    pub mode: Mode,
    /// What they become.
    pub spec: KvSpec,
}

/// Names of all presets, those with a profile as `NAME:FILE`.
pub fn preset_names() -> String {
    let name = |(name, profile, ..): &Entry| match profile {
        Profile::No => (*name).to_owned(),
        Profile::Maybe => format!("{name}, {name}:FILE"),
        Profile::Yes => format!("{name}:FILE"),
    };
    PRESETS.iter().map(name).collect::<Vec<_>>().join(", ")
}

impl Preset {
    /// `NAME`, or `NAME:FILE[@BITS]` with a profile of `ebb calibrate`. `floor` is what `ebb`
    /// without a profile comes down to.
    ///
    /// # Errors
    /// When there is no such preset, or its profile is missing, not wanted, or damaged.
    pub fn named(text: &str, floor: &str) -> Result<Self, KvSpecError> {
        let (name, file) = match text.split_once(':') {
            Some((name, file)) => (name, Some(file)),
            None => (text, None),
        };
        let found = PRESETS.iter().find(|entry| entry.0 == name);
        let (name, profile, mode, rest) = *found.ok_or_else(|| KvSpecError::Preset {
            name: name.to_owned(),
            names: preset_names(),
        })?;
        let spec = match (profile, file) {
            (Profile::Yes, None) | (Profile::No, Some(_)) => {
                return Err(KvSpecError::PresetProfile {
                    name,
                    wants: profile == Profile::Yes,
                });
            }
            (_, Some(file)) => format!("profile:{file},{rest}"),
            (Profile::Maybe, None) => floor.to_owned(),
            (Profile::No, None) => rest.to_owned(),
        };
        Ok(Self {
            mode,
            spec: spec.trim_end_matches(',').parse()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        Preset::named(text, "k=int4,v=int2")
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn names_are_unlike_and_their_specifications_say_something() {
        for (index, (name, profile, _, rest)) in PRESETS.iter().enumerate() {
            assert!(PRESETS[..index].iter().all(|e| e.0 != *name));
            assert!(
                *profile == Profile::Maybe || rest.parse::<KvSpec>().is_ok() || *name == "kvmix"
            );
            assert!(preset_names().contains(name));
        }
    }

    /// The specifications of PolarQuant's modes, in full, and the table that says them.
    #[test]
    fn polarquants_presets_shrink_keys_alone_and_guard_no_block() {
        let table = include_str!("../../../../deploy/presets.md");
        for (name, keys) in [
            ("polarquant44", "polar44"),
            ("polarquant42", "polar42"),
            ("polarquant44-grid", "polar44grid"),
            ("polarquant44-paper", "polar44g64"),
            ("polarquant42-paper", "polar42g64"),
            ("polarquant44-page", "polar44g128"),
        ] {
            let preset = Preset::named(name, "").unwrap();
            let text = format!("k={keys},protect=f16,sink=0,recent=0");
            assert_eq!((preset.spec.to_string(), preset.mode), (text, Mode::Static));
            let says = |row: &&str| {
                row.contains(&format!("`{name}`")) && row.contains(&format!("`k={keys}`"))
            };
            let row = table.lines().find(says);
            assert!(row.is_some_and(|row| row.contains("static")), "{name}");
        }
        let rows = table.lines().filter(|row| row.starts_with("| `polarquant"));
        let first = rows.into_iter().next().unwrap();
        assert!(first.contains("`protect=f16,sink=0,recent=0`"), "{first}");
    }

    #[test]
    fn what_is_no_preset_is_answered_with_those_there_are() {
        assert!(error("kivi3").contains("kivi2, ") && error("").contains("kvmix:FILE"));
        assert!(error("kivi2:a.json").contains("takes no profile"));
        assert!(error("kvmix").contains("kvmix:FILE"));
        assert!(error("kvmix:no/such.json").contains("no/such.json"));
        assert!(error("ebb:no/such.json@x").contains("'x'"));
    }
}
