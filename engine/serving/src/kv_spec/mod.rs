//! What the operator says about the formats of the KV cache: `f16`, `k=kitty25,v=int2`,
//! `k=int4,v=int2,layer18.k=int8,protect=f16,rotate=kv`, `profile:FILE@2.5`,
//! `k=int2,v=int2,sink=0,recent.k=0,recent.v=1`, `k=kitty25page,v=int2,protect=f16,sink=32`.
//!
//! Later parts win over earlier ones, so a layer's own format comes after the one for all layers.
//! Rotations add up, a profile's included.

mod error;
mod preset;

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use ebb_kernels::formats::FormatId;
use ebb_kernels::formats::rotation::Rotation;
use ebb_kernels::kv::{KvGeometry, Side};
use ebb_models::model::{KeyScales, LoadedModel};

use crate::kv_pages::{Guards, PageFormats, Protect, RecentGuard, page, protected_formats};
use crate::kv_profile::Profile;

pub use error::KvSpecError;
pub(crate) use error::check_pairs;
pub use preset::{Preset, preset_names};

/// A format for some pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rule {
    /// One layer, or all.
    layer: Option<usize>,
    side: Side,
    format: FormatId,
}

/// A parsed specification; it knows no model yet.
#[derive(Debug, Clone, PartialEq)]
pub struct KvSpec {
    text: String,
    /// What the rules start from, at a width if one is given; otherwise 16 bit.
    profile: Option<(Arc<Profile>, Option<f64>)>,
    rules: Vec<Rule>,
    protect: Option<Protect>,
    rotation: Rotation,
    sink: Option<Sink>,
    /// Of keys and of values.
    recent: [Option<RecentPart>; 2],
    by_length: bool,
}

/// What of a sequence's beginning keeps more than its final formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sink {
    Nothing,
    /// The first block has the protected width.
    Block,
    /// The first 32 tokens are at 16 bit, as in Kitty.
    Tokens,
}

impl Sink {
    /// What a page of the first block becomes whose other blocks' are `sealed`, if the sink is of
    /// tokens and there is such a format.
    fn of_tokens(sealed: FormatId, side: Side) -> Option<FormatId> {
        match (side, sealed) {
            (_, FormatId::F16) => Some(FormatId::F16),
            (Side::K, FormatId::Kitty25Page | FormatId::Kitty25Top | FormatId::Kitty25) => {
                Some(FormatId::Kitty25Sink32)
            }
            (Side::V, FormatId::Int2) => Some(FormatId::Int2Sink32),
            _ => None,
        }
    }
}

/// What `recent=` says: how many of the last sealed blocks keep the protected width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RecentPart {
    Count(usize),
    /// As many as lie wholly within the recent context that KVmix's rule keeps with the profile's
    /// shares.
    OfProfile,
    /// As many as it keeps right after a prompt.
    AfterPrompt,
}

/// The most blocks that `recent=` takes.
const RECENT_BLOCKS_MAX: usize = 64;

impl FromStr for KvSpec {
    type Err = KvSpecError;

    fn from_str(text: &str) -> Result<Self, KvSpecError> {
        let mut spec = Self {
            text: text.trim().to_owned(),
            profile: None,
            rules: Vec::new(),
            protect: None,
            rotation: Rotation::NONE,
            sink: None,
            recent: [None; 2],
            by_length: false,
        };
        for (index, part) in text.split(',').enumerate() {
            match part.trim().strip_prefix("profile:") {
                Some(place) if index == 0 => spec.profile = Some(profile_at(place)?),
                _ => spec.part(part.trim())?,
            }
        }
        Ok(spec)
    }
}

impl fmt::Display for KvSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// `FILE@2.5` or `FILE`.
pub fn profile_at(place: &str) -> Result<(Arc<Profile>, Option<f64>), KvSpecError> {
    let (file, bits) = match place.rsplit_once('@') {
        Some((file, bits)) => {
            let parsed: Option<f64> = bits.parse().ok();
            let parsed = parsed.filter(|bits| (1.0..=16.0).contains(bits));
            let wrong = || KvSpecError::Width {
                bits: bits.to_owned(),
            };
            (file, Some(parsed.ok_or_else(wrong)?))
        }
        None => (place, None),
    };
    Ok((Arc::new(Profile::read(Path::new(file))?), bits))
}

impl KvSpec {
    /// Width of protected blocks.
    pub fn protect(&self) -> Protect {
        let profile = self.profile.as_ref().map(|(profile, _)| profile.protect());
        self.protect.or(profile).unwrap_or_default()
    }

    /// What is rotated.
    pub fn rotation(&self) -> Rotation {
        let of_profile = self.profile.as_ref().map(|(p, _)| p.rotation());
        let of_profile = of_profile.unwrap_or_default();
        Rotation {
            k: self.rotation.k || of_profile.k,
            v: self.rotation.v || of_profile.v,
        }
    }

    /// PM-KVQ's λ.
    pub fn key_scales(&self) -> Option<Arc<KeyScales>> {
        self.profile.as_ref()?.0.key_scales.clone().map(Arc::new)
    }

    /// Whether it fits this model: keys are in pairs only where RoPE rotates whole heads, and the
    /// profile in it, if there is one, was made for the model. Reads the weights if there is one.
    ///
    /// # Errors
    /// When it does not.
    pub fn check_model(&self, model: &LoadedModel) -> Result<(), KvSpecError> {
        if let Some((profile, _)) = &self.profile {
            profile.check_model(&model.identity())?;
        }
        let formats = self.formats(model.spec.kv_geometry())?;
        check_pairs(&model.spec, &formats.sealed)
    }

    fn part(&mut self, part: &str) -> Result<(), KvSpecError> {
        if part.is_empty() {
            return Err(KvSpecError::Empty);
        }
        let Some((key, value)) = part.split_once('=') else {
            // A format alone is for everything.
            for side in [Side::K, Side::V] {
                self.rule(part, None, side, part)?;
            }
            return Ok(());
        };
        match (key.trim(), value.trim()) {
            ("protect", "f16") => self.protect = Some(Protect::F16),
            ("protect", "int8") => self.protect = Some(Protect::Int8),
            ("protect", _) => {
                return Err(KvSpecError::Choice {
                    part: part.to_owned(),
                    choices: "protect=int8 and protect=f16",
                });
            }
            ("rotate", "k") => self.rotation.k = true,
            ("rotate", "v") => self.rotation.v = true,
            ("rotate", "kv") => self.rotation = Rotation { k: true, v: true },
            ("sink", "0") => self.sink = Some(Sink::Nothing),
            ("sink", "1") => self.sink = Some(Sink::Block),
            ("sink", "32") => self.sink = Some(Sink::Tokens),
            ("sink", _) => {
                return Err(KvSpecError::Choice {
                    part: part.to_owned(),
                    choices: "sink=0 and sink=1, of blocks, and sink=32, of tokens",
                });
            }
            ("shrink", "by-length") => self.by_length = true,
            ("shrink", _) => {
                return Err(KvSpecError::Choice {
                    part: part.to_owned(),
                    choices: "shrink=by-length",
                });
            }
            ("recent", count) => self.recent = [Some(self.recent_blocks(part, count)?); 2],
            ("recent.k", count) => self.recent[0] = Some(self.recent_blocks(part, count)?),
            ("recent.v", count) => self.recent[1] = Some(self.recent_blocks(part, count)?),
            ("rotate", _) => {
                return Err(KvSpecError::Choice {
                    part: part.to_owned(),
                    choices: "rotate=k, rotate=v and rotate=kv",
                });
            }
            (key, format) => {
                let (layer, side) = page(key).ok_or_else(|| KvSpecError::Key {
                    part: part.to_owned(),
                })?;
                self.rule(part, layer, side, format)?;
            }
        }
        Ok(())
    }

    fn recent_blocks(&self, part: &str, text: &str) -> Result<RecentPart, KvSpecError> {
        let of_profile = self.profile.as_ref().filter(|(p, _)| p.recent.is_some());
        match text.parse() {
            Ok(count) if count <= RECENT_BLOCKS_MAX => Ok(RecentPart::Count(count)),
            Err(_) if text == "profile" && of_profile.is_some() => Ok(RecentPart::OfProfile),
            Err(_) if text == "share" && of_profile.is_some() => Ok(RecentPart::AfterPrompt),
            _ => Err(KvSpecError::Choice {
                part: part.to_owned(),
                choices: "recent=0 to recent=64 blocks of 128 tokens, and behind a profile of ebb \
                          calibrate --method kvmix recent=profile and recent=share",
            }),
        }
    }

    fn rule(
        &mut self,
        part: &str,
        layer: Option<usize>,
        side: Side,
        format: &str,
    ) -> Result<(), KvSpecError> {
        let wrong = |cause: String| KvSpecError::Format {
            part: part.to_owned(),
            cause,
        };
        let format: FormatId = format
            .parse()
            .map_err(|e: ebb_kernels::formats::FormatError| wrong(e.to_string()))?;
        if !format.is_legal(side) {
            let pages = match side {
                Side::K => "keys",
                Side::V => "values",
            };
            return Err(wrong(format!("{format} cannot hold {pages}")));
        }
        self.rules.push(Rule {
            layer,
            side,
            format,
        });
        Ok(())
    }

    /// The formats of a model's pages.
    ///
    /// A protected page has the protected width where it can shrink from there to its sealed
    /// format, and 16 bit otherwise: static formats are made from 16 bit only.
    ///
    /// # Errors
    /// When a layer is named that the model does not have, the profile is another model's, or
    /// pages have no form with the sink of tokens that is asked for.
    pub fn formats(&self, geometry: KvGeometry) -> Result<PageFormats, KvSpecError> {
        let layers = geometry.layers;
        let mut sealed = match &self.profile {
            Some((profile, bits)) => profile.formats(geometry, *bits, self.protect())?.sealed,
            None => vec![FormatId::F16; layers * 2],
        };
        for rule in &self.rules {
            let range = match rule.layer {
                None => 0..layers,
                Some(layer) if layer < layers => layer..layer + 1,
                Some(layer) => return Err(KvSpecError::Layer { layer, layers }),
            };
            for layer in range {
                sealed[layer * 2 + rule.side as usize] = rule.format;
            }
        }
        Ok(PageFormats {
            protected: protected_formats(&sealed, self.protect()),
            guards: self.guards(&sealed)?,
            sealed,
            max_length: None,
        })
    }

    /// Which blocks keep the protected width, where the final formats are `sealed`.
    fn guards(&self, sealed: &[FormatId]) -> Result<Guards, KvSpecError> {
        let layers = sealed.len() / 2;
        let usual = Guards::usual(layers);
        let share = |page: usize| {
            let recent = self.profile.as_ref().and_then(|(p, _)| p.recent.as_ref());
            recent.map_or(0, |recent| recent.permille(page / 2, Side::of_page(page)))
        };
        let of_page = |page: usize| match self.recent[page % 2] {
            None => usual.recent[page],
            Some(RecentPart::Count(count)) => RecentGuard::Blocks(count),
            Some(RecentPart::OfProfile) => RecentGuard::Rule(share(page)),
            Some(RecentPart::AfterPrompt) => RecentGuard::AfterPrompt(share(page)),
        };
        let with_sink = |(page, &format): (usize, &FormatId)| {
            let side = Side::of_page(page);
            Sink::of_tokens(format, side).ok_or(KvSpecError::Sink {
                layer: page / 2,
                side: match side {
                    Side::K => "k",
                    Side::V => "v",
                },
                format,
            })
        };
        let sink_formats = (self.sink == Some(Sink::Tokens))
            .then(|| sealed.iter().enumerate().map(with_sink).collect())
            .transpose()?;
        Ok(Guards {
            sink: self.sink.map_or(usual.sink, |sink| sink == Sink::Block),
            sink_formats,
            recent: (0..layers * 2).map(of_page).collect(),
        })
    }

    /// Whether blocks come down together on the way to a greatest length, by PM-KVQ's budgets
    /// (`shrink=by-length`). A server in mode progressive has its pool's memory instead.
    pub fn comes_down_by_length(&self) -> bool {
        self.by_length
    }

    /// The profile in it at its width, where nothing else says what pages become.
    pub fn only_profile(&self) -> Option<(&Profile, Option<f64>)> {
        let (profile, bits) = self.profile.as_ref()?;
        self.rules.is_empty().then_some((profile, *bits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use FormatId as F;

    const THREE: KvGeometry = KvGeometry {
        layers: 3,
        kv_heads: 3,
        head_dim: 64,
        windowed: ebb_kernels::kv::WindowedLayers::NONE,
    };

    fn formats(text: &str) -> PageFormats {
        text.parse::<KvSpec>().unwrap().formats(THREE).unwrap()
    }

    #[test]
    fn parts_name_formats_and_later_ones_win() {
        assert_eq!(formats("f16").sealed, [F::F16; 6]);
        assert_eq!(formats("int8").sealed, [F::Int8; 6]);
        assert_eq!(formats("v=int2").sealed, [F::F16, F::Int2].repeat(3));
        let mixed = formats("k=int4, v=int2 ,layer1.k=int8,layer2.v=f16").sealed;
        assert_eq!(mixed, [F::Int4, F::Int2, F::Int8, F::Int2, F::Int4, F::F16]);
        let spec: KvSpec = "k=kitty25,v=int2,protect=f16,rotate=v".parse().unwrap();
        assert_eq!(spec.rotation(), Rotation { k: false, v: true });
        assert_eq!(spec.protect(), Protect::F16);
        assert_eq!(spec.to_string(), "k=kitty25,v=int2,protect=f16,rotate=v");
    }

    #[test]
    fn keys_and_values_rotate_apart_and_together() {
        let rotation = |text: &str| {
            let spec: KvSpec = text.parse().unwrap();
            let again: KvSpec = spec.to_string().parse().unwrap();
            assert_eq!(again, spec);
            (spec.rotation().k, spec.rotation().v)
        };
        assert_eq!(rotation("k=int3,v=int2"), (false, false));
        assert_eq!(rotation("k=int3,rotate=k"), (true, false));
        assert_eq!(rotation("rotate=v,k=int3"), (false, true));
        assert_eq!(rotation("k=int3,v=int2,rotate=kv"), (true, true));
        assert_eq!(rotation("k=int3,rotate=v,rotate=k"), (true, true));
    }

    #[test]
    fn protected_pages_keep_a_width_they_can_shrink_from() {
        let spec = formats("k=kitty25,v=int2,layer0.k=int8,layer1.v=f16,layer2.k=int3");
        assert_eq!(
            spec.protected,
            [F::Int8, F::Int8, F::Int8, F::F16, F::F16, F::Int8]
        );
        assert_eq!(formats("k=int4,protect=f16").protected, [F::F16; 6]);
    }

    #[test]
    fn errors_name_the_part_and_what_would_do() {
        let error = |text: &str| text.parse::<KvSpec>().unwrap_err().to_string();
        assert!(error("k=int9").contains("'k=int9'") && error("k=int9").contains("kitty25"));
        assert!(error("kitty25").contains("cannot hold values"));
        assert!(error("v=polar44").contains("'v=polar44'"));
        assert!(error("q=int4").contains("'q=int4'"));
        assert!(error("layerx.k=int4").contains("layer7.k=FORMAT"));
        assert!(error("protect=int4").contains("protect=f16"));
        assert!(error("rotate=q").contains("rotate=k, rotate=v and rotate=kv"));
        assert!(error("shrink=always").contains("shrink=by-length"));
        assert!(error("k=int2,recent=share").contains("--method kvmix"));
        assert!(error("sink=2").contains("sink=0 and sink=1"));
        assert!(error("sink=2").contains("sink=32, of tokens"));
        assert!(error("recent=65").contains("recent=64"));
        assert!(error("k=int2,recent.k=profile").contains("--method kvmix"));
        assert!(error("k=int4,,v=int2").contains("empty part"));
        assert!(error("profile:no/such.json@2.5").contains("no/such.json"));
        assert!(error("profile:a.json@many").contains("'many'"));
        let layer = "layer3.k=int4".parse::<KvSpec>().unwrap().formats(THREE);
        assert!(layer.unwrap_err().to_string().contains("layers 0 to 2"));
    }

    fn blocks(spec: &str) -> Vec<Vec<F>> {
        let geometry = KvGeometry {
            layers: 1,
            kv_heads: 2,
            head_dim: 64,
            windowed: ebb_kernels::kv::WindowedLayers::NONE,
        };
        let spec: KvSpec = spec.parse().unwrap();
        let formats = spec.formats(geometry).unwrap();
        // A sequence of four sealed blocks.
        (0..4)
            .map(|block| formats.of_block(block == 0, 3 - block, 4))
            .collect()
    }

    #[test]
    fn the_first_and_the_last_block_are_guarded_unless_told_otherwise() {
        let (low, whole) = (vec![F::Int2; 2], vec![F::F16; 2]);
        let usual = blocks("int2,protect=f16");
        assert_eq!(usual, [&whole, &low, &low, &whole].map(Clone::clone));
        let eight = blocks("int2");
        assert_eq!(eight[0], [F::Int8; 2]);
        assert_eq!(blocks("int2,sink=0,recent=0"), vec![low.clone(); 4]);
        // KIVI: the latest values alone.
        let kivi = blocks("int2,protect=f16,sink=0,recent.k=0,recent.v=2");
        let values = vec![F::Int2, F::F16];
        assert_eq!(kivi, [&low, &low, &values, &values].map(Clone::clone));
    }

    #[test]
    fn a_sink_of_tokens_is_in_the_first_block_alone() {
        let (sink, low) = ([F::Kitty25Sink32, F::Int2Sink32], [F::Kitty25Page, F::Int2]);
        let last = [F::Kitty25Page, F::F16];
        let kitty = "k=kitty25page,v=int2,protect=f16,sink=32,recent.k=0,recent.v=1";
        assert_eq!(blocks(kitty), [sink, low, low, last].map(Vec::from));
        let none = blocks("k=kitty25,v=int2,sink=32,recent=0");
        assert_eq!(none[..2], [sink, [F::Kitty25, F::Int2]].map(Vec::from));
        // A block that is recent as well is at 16 bit until it no longer is: the sink's formats are
        // made from there.
        let mixed = "k=kitty25top,layer1.k=f16,v=int2,sink=32,recent.k=0,recent.v=2";
        let mixed = formats(mixed);
        let first = |age| mixed.of_block(true, age, age + 1)[..4].to_vec();
        assert_eq!(first(1), [F::Kitty25Sink32, F::F16, F::F16, F::F16]);
        assert_eq!(first(2), [sink, [F::F16, F::Int2Sink32]].concat());
        let error = |text: &str| {
            let spec: KvSpec = text.parse().unwrap();
            spec.formats(THREE).unwrap_err().to_string()
        };
        let keys = error("k=kitty25page,layer2.k=int4,v=int2,sink=32");
        assert!(
            keys.contains("layer 2's k is int4") && keys.contains("sink=1"),
            "{keys}"
        );
        assert!(error("k=kitty25,v=int4,sink=32").contains("layer 0's v is int4"));
    }
}
