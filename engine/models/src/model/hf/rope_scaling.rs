//! RoPE in config.json: `rope_theta` and `rope_scaling`, or both inside `rope_parameters`.

use super::config::{FULL, HfDefaults, RopeScalings, SLIDING};
use super::json::Object;
use crate::model::error::Refusal;
use crate::model::rope::{LongFactors, Scaling, Yarn};

/// The rotary position embedding that config.json asks for.
pub(super) struct RopeConfig {
    pub(super) base: f64,
    pub(super) scaling: Scaling,
    /// Context length: `max_position_embeddings`, or what YaRN extends it to.
    pub(super) positions: usize,
    /// Share of a head's channels that rotate.
    partial: f64,
    /// How many rotate, where the file says that instead (MiniMax-M2).
    rotary_dim: Option<usize>,
    /// What the user should know.
    pub(super) notes: Vec<String>,
}

impl RopeConfig {
    /// Channels of a head that rotate.
    pub(super) fn rotary_dim(&self, head_dim: usize) -> Result<usize, Refusal> {
        let share = (self.partial * head_dim as f64) as usize;
        let channels = self.rotary_dim.unwrap_or(share);
        if channels > 0 && channels <= head_dim {
            return Ok(channels);
        }
        if let Some(rotary_dim) = self.rotary_dim {
            let expected = format!("at most a head's channels, {head_dim}, and above 0");
            return Err(Refusal::invalid(ROTARY_DIM, rotary_dim, expected));
        }
        let expected = "a part of a head, above 0 and at most 1";
        Err(Refusal::invalid(PARTIAL, self.partial, expected))
    }
}

const DEFAULT_BASE: f64 = 10_000.0;
const PARTIAL: &str = "partial_rotary_factor";
const ROTARY_DIM: &str = "rotary_dim";

/// YaRN's fields; the last two are of families whose queries grow, one of which a family reads, and
/// the other of which is the context length once more.
const YARN_KEYS: [&str; 10] = [
    "factor",
    "original_max_position_embeddings",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "truncate",
    "mscale",
    "mscale_all_dim",
    "llama_4_scaling_beta",
    "max_position_embeddings",
];

/// The base of the RoPE of layers with a window, which is not scaled: `default`, or that of the
/// others without it, unless `rope_parameters` says otherwise.
pub(super) fn read_sliding_base(config: &Object, default: Option<f64>) -> Result<f64, Refusal> {
    let theta = config.number("rope_theta")?;
    let outer = default.or(theta).unwrap_or(DEFAULT_BASE);
    let Some(all) = config.object("rope_parameters")? else {
        return Ok(outer);
    };
    let Some(own) = all.object(SLIDING)? else {
        let theta = all.number("rope_theta")?;
        return Ok(default.or(theta).unwrap_or(outer));
    };
    match own.text("rope_type")? {
        None | Some("default") => match own.number(PARTIAL)? {
            Some(factor) if factor != 1.0 => {
                let key = format!("rope_parameters.{SLIDING}.{PARTIAL}");
                Err(Refusal::unsupported(key, factor, "1"))
            }
            _ => Ok(own.number("rope_theta")?.unwrap_or(outer)),
        },
        Some(other) => {
            let key = format!("rope_parameters.{SLIDING}.rope_type");
            Err(Refusal::unsupported(key, format!("{other:?}"), "default"))
        }
    }
}

/// The object that says how RoPE is scaled, under its new name or its old one.
pub(super) fn rope_parameters(config: &Object) -> Result<Option<Object>, Refusal> {
    match config.object("rope_parameters")? {
        Some(parameters) => Ok(Some(parameters)),
        None => config.object("rope_scaling"),
    }
}

/// Reads the RoPE fields; `positions` is `max_position_embeddings`.
pub(super) fn read_rope(
    config: &Object,
    positions: usize,
    defaults: &HfDefaults,
) -> Result<RopeConfig, Refusal> {
    let outer_base = config.number("rope_theta")?;
    let outer_partial = config.number(PARTIAL)?;
    let rotary_dim = match defaults.rotates_part_of_a_head {
        true => config.size(ROTARY_DIM)?,
        false => None,
    };
    let parameters = rope_parameters(config)?;
    // Where kinds of layers have ropes of their own, this is that of those that see everything.
    let parameters = match parameters {
        Some(all) if defaults.has_ropes_by_kind && all.get(FULL).is_some() => all.object(FULL)?,
        parameters => parameters,
    };
    // An empty object says as much as none.
    let parameters = parameters.filter(|parameters| parameters.keys().next().is_some());
    let Some(parameters) = parameters else {
        let base = outer_base.unwrap_or(DEFAULT_BASE);
        return Ok(RopeConfig {
            base,
            scaling: Scaling::None,
            positions,
            partial: partial(outer_partial, defaults)?,
            rotary_dim,
            notes: Vec::new(),
        });
    };
    let mut notes = Vec::new();
    let base = parameters
        .number("rope_theta")?
        .or(outer_base)
        .unwrap_or(DEFAULT_BASE);
    let scaling = read_scaling(config, &parameters, positions, defaults, &mut notes)?;
    let partial = match scaling {
        Scaling::Proportional { .. } => 1.0,
        _ => partial(parameters.number(PARTIAL)?.or(outer_partial), defaults)?,
    };
    // Files for YaRN often keep the length before scaling in max_position_embeddings.
    let positions = match &scaling {
        Scaling::Yarn(yarn) => positions.max(yarn.positions() as usize),
        _ => positions,
    };
    Ok(RopeConfig {
        base,
        scaling,
        positions,
        partial,
        rotary_dim,
        notes,
    })
}

/// The share of a head that rotates, where a family may rotate less than all of it.
fn partial(found: Option<f64>, defaults: &HfDefaults) -> Result<f64, Refusal> {
    match found {
        Some(factor) if factor != 1.0 && !defaults.rotates_part_of_a_head => {
            Err(Refusal::unsupported(PARTIAL, factor, "1"))
        }
        found => Ok(found.unwrap_or(1.0)),
    }
}

fn read_scaling(
    config: &Object,
    parameters: &Object,
    positions: usize,
    defaults: &HfDefaults,
    notes: &mut Vec<String>,
) -> Result<Scaling, Refusal> {
    let supported = match defaults.rope_scalings {
        RopeScalings::None => "default",
        RopeScalings::Common | RopeScalings::WithAlpha | RopeScalings::WithQueryGrowth => {
            "default, linear, dynamic, llama3, yarn, mrope"
        }
        RopeScalings::WithLong => "default, linear, dynamic, llama3, yarn, longrope, mrope",
        RopeScalings::Proportional => "default, proportional",
    };
    let kind_key = if parameters.get("rope_type").is_some() {
        "rope_type"
    } else {
        "type"
    };
    let kind = parameters.text(kind_key)?;
    let kind = parameters.required("rope_type", kind)?;
    let unsupported = || {
        let field = parameters.name(kind_key);
        Refusal::unsupported(field, format!("{kind:?}"), supported)
    };
    if defaults.rope_scalings == RopeScalings::None && kind != "default" {
        return Err(unsupported());
    }
    let is_proportional = defaults.rope_scalings == RopeScalings::Proportional;
    if is_proportional && !["default", "proportional"].contains(&kind) {
        return Err(unsupported());
    }
    const ALPHA: &str = "alpha";
    let can_have_alpha = defaults.rope_scalings == RopeScalings::WithAlpha;
    let has_alpha = can_have_alpha && parameters.get(ALPHA).is_some();
    let has_growth = defaults.rope_scalings == RopeScalings::WithQueryGrowth;
    let own_keys: &[&str] = match kind {
        "proportional" if is_proportional => &["factor"],
        // Positions in time and space (Qwen2-VL) are the same three numbers for each token of a
        // text.
        "default" | "mrope" => &["mrope_section", "mrope_interleaved"],
        "linear" => &["factor"],
        // HunYuan's files have YaRN's fields beside `alpha`.
        "dynamic" if has_alpha => &[
            ALPHA,
            "factor",
            "original_max_position_embeddings",
            "beta_fast",
            "beta_slow",
            "mscale",
            "mscale_all_dim",
        ],
        "dynamic" => &["factor", "original_max_position_embeddings"],
        "llama3" => &[
            "factor",
            "low_freq_factor",
            "high_freq_factor",
            "original_max_position_embeddings",
        ],
        "yarn" => &YARN_KEYS[..if has_growth { 10 } else { 8 }],
        // The first name that it had.
        "longrope" | "su" if defaults.rope_scalings == RopeScalings::WithLong => &[
            "short_factor",
            "long_factor",
            "original_max_position_embeddings",
            "attention_factor",
            "factor",
        ],
        _ => return Err(unsupported()),
    };
    let common = ["rope_type", "type", "rope_theta", PARTIAL];
    let known = |key| own_keys.contains(&key) || common.contains(&key);
    let unknown: Vec<&str> = parameters.keys().filter(|key| !known(key)).collect();
    if !unknown.is_empty() {
        let names: Vec<String> = unknown.iter().map(|key| parameters.name(key)).collect();
        notes.push(format!(
            "{} in config.json is left out of account: RoPE scaling of type {kind} does not have \
             it",
            names.join(", ")
        ));
    }
    let positive = |key: &str, at_least: f64| -> Result<Option<f64>, Refusal> {
        match parameters.number(key)? {
            Some(value) if value < at_least || value <= 0.0 => {
                let expected = format!("a number above 0 and at least {at_least}");
                Err(Refusal::invalid(parameters.name(key), value, expected))
            }
            value => Ok(value),
        }
    };
    let needed = |key: &str, at_least| {
        positive(key, at_least).and_then(|value| parameters.required(key, value))
    };
    match kind {
        "linear" => Ok(Scaling::Linear {
            factor: needed("factor", 1.0)?,
        }),
        "proportional" => {
            let rotated = positive(PARTIAL, 0.0)?.unwrap_or(1.0);
            if rotated > 1.0 {
                let expected = "a part of a head, above 0 and at most 1";
                return Err(Refusal::invalid(
                    parameters.name(PARTIAL),
                    rotated,
                    expected,
                ));
            }
            Ok(Scaling::Proportional {
                rotated,
                factor: positive("factor", 1.0)?.unwrap_or(1.0),
            })
        }
        "dynamic" if has_alpha => Ok(Scaling::Alpha(needed(ALPHA, 0.0)?)),
        // NTK-aware scaling grows with the text, and only once that is longer than
        // max_position_embeddings. That is the longest context here, so nothing is scaled.
        "dynamic" => {
            needed("factor", 1.0)?;
            notes.push(format!(
                "{} `dynamic` extends no context: at most max_position_embeddings, {positions} \
                 tokens, are served, for which it scales nothing",
                parameters.name(kind_key)
            ));
            Ok(Scaling::None)
        }
        "llama3" => {
            let low_freq = needed("low_freq_factor", 0.0)?;
            let high_freq = needed("high_freq_factor", 0.0)?;
            if high_freq < low_freq {
                let field = parameters.name("high_freq_factor");
                let expected = format!("no less than low_freq_factor, {low_freq}");
                return Err(Refusal::invalid(field, high_freq, expected));
            }
            Ok(Scaling::Llama3 {
                factor: needed("factor", 1.0)?,
                low_freq,
                high_freq,
                original_positions: positive("original_max_position_embeddings", 1.0)?
                    .unwrap_or(positions as f64),
            })
        }
        "yarn" => {
            let original = positive("original_max_position_embeddings", 1.0)?;
            let mut yarn = Yarn::new(
                needed("factor", 1.0)?,
                original.unwrap_or(positions.max(1) as f64),
            );
            yarn.beta_fast = positive("beta_fast", 0.0)?.unwrap_or(yarn.beta_fast);
            yarn.beta_slow = positive("beta_slow", 0.0)?.unwrap_or(yarn.beta_slow);
            // 0 counts as absent, and one without the other as neither.
            let weight = |key| -> Result<Option<f64>, Refusal> {
                Ok(parameters.number(key)?.filter(|weight| *weight != 0.0))
            };
            let mscale = weight("mscale")?.zip(weight("mscale_all_dim")?);
            if let Some((mscale, mscale_all_dim)) = mscale {
                yarn.attention_factor = Yarn::attention(yarn.factor, mscale)
                    / Yarn::attention(yarn.factor, mscale_all_dim);
            }
            yarn.attention_factor =
                positive("attention_factor", 0.0)?.unwrap_or(yarn.attention_factor);
            yarn.truncate = parameters.bool("truncate")?.unwrap_or(true);
            if yarn.beta_fast <= yarn.beta_slow {
                let field = parameters.name("beta_fast");
                let expected = format!("more than beta_slow, {}", yarn.beta_slow);
                return Err(Refusal::invalid(field, yarn.beta_fast, expected));
            }
            Ok(Scaling::Yarn(yarn))
        }
        "longrope" | "su" => {
            const ORIGINAL: &str = "original_max_position_embeddings";
            let original = match config.size(ORIGINAL)? {
                Some(original) => original as f64,
                None => needed(ORIGINAL, 1.0)?,
            };
            let factors = |key: &str| {
                let factors = parameters.numbers(key)?;
                parameters.required(key, factors)
            };
            let extension = positions as f64 / original;
            Ok(Scaling::Long(LongFactors {
                short: factors("short_factor")?,
                long: factors("long_factor")?,
                original_positions: original,
                attention_factor: match positive("attention_factor", 0.0)? {
                    Some(factor) => factor,
                    None => LongFactors::attention_factor(extension, original),
                },
            }))
        }
        _ => Ok(Scaling::None),
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::{Value, json};

    use super::*;
    use crate::model::rope::rope;

    #[derive(Deserialize)]
    struct Vectors {
        cases: Vec<Case>,
    }

    #[derive(Deserialize)]
    struct Case {
        rope_theta: f64,
        head_dim: usize,
        max_position_embeddings: usize,
        rope_scaling: Value,
        scale: f32,
        inv_freq: Vec<f32>,
    }

    fn read(config: &Value, positions: usize) -> Result<RopeConfig, Refusal> {
        let bytes = serde_json::to_vec(config).expect("JSON");
        let config = Object::parse(&bytes).expect("an object");
        read_rope(&config, positions, &HfDefaults::default())
    }

    #[test]
    fn frequencies_are_those_of_transformers() {
        let vectors = include_str!("../../../tests/data/rope_vectors.json");
        let vectors: Vectors = serde_json::from_str(vectors).expect("valid vectors");
        assert_eq!(vectors.cases.len(), 8);
        for case in vectors.cases {
            let positions = case.max_position_embeddings;
            let old = json!({ "rope_theta": case.rope_theta, "rope_scaling": case.rope_scaling });
            let mut new = json!({ "rope_parameters": case.rope_scaling });
            if case.rope_scaling.is_null() {
                new["rope_parameters"] = json!({ "rope_type": "default" });
            }
            new["rope_parameters"]["rope_theta"] = json!(case.rope_theta);
            for config in [old, new] {
                let read = read(&config, positions).expect("supported");
                assert_eq!(read.positions, positions);
                let rope = rope(read.base, case.head_dim, &read.scaling).expect("valid");
                assert!((rope.scale - case.scale).abs() < 1e-6, "{config}");
                assert_eq!(rope.inv_freq.len(), case.inv_freq.len());
                for (ours, theirs) in rope.inv_freq.iter().zip(&case.inv_freq) {
                    // The reference computes in f32.
                    let relative = (ours - theirs).abs() / theirs;
                    assert!(relative < 1e-6, "{config}: {ours} and {theirs}");
                }
            }
        }
    }

    #[test]
    fn yarn_extends_the_context_and_other_scalings_do_not() {
        let yarn = json!({ "rope_scaling": { "type": "yarn", "factor": 4.0 } });
        assert_eq!(read(&yarn, 32768).expect("supported").positions, 131_072);
        let linear = json!({ "rope_scaling": { "type": "linear", "factor": 4.0 } });
        assert_eq!(read(&linear, 16384).expect("supported").positions, 16384);
    }

    #[test]
    fn an_empty_object_and_a_null_are_no_scaling() {
        for nothing in [json!({}), json!({ "type": null }), Value::Null] {
            let config = json!({ "rope_theta": 5000.0, "rope_scaling": nothing });
            let read = read(&config, 64).expect("supported");
            assert_eq!(
                (read.base, read.scaling),
                (5000.0, Scaling::None),
                "{config}"
            );
        }
    }

    #[test]
    fn dynamic_scales_nothing_within_the_original_length() {
        let dynamic = json!({ "rope_scaling": { "type": "dynamic", "factor": 4.0 } });
        let read = read(&dynamic, 4096).expect("supported");
        assert_eq!((read.positions, read.scaling), (4096, Scaling::None));
        assert!(read.notes[0].contains("at most max_position_embeddings, 4096"));
    }

    #[test]
    fn unknown_keys_are_named_in_a_note() {
        let config = json!({ "rope_scaling": { "rope_type": "linear", "factor": 2.0,
            "finetuned": true, "mrope_section": [1] } });
        let read = read(&config, 64).expect("supported");
        assert_eq!(read.scaling, Scaling::Linear { factor: 2.0 });
        assert_eq!(
            read.notes,
            [
                "rope_scaling.finetuned, rope_scaling.mrope_section in config.json is left out of \
              account: RoPE scaling of type linear does not have it"
            ]
        );
    }

    /// `_compute_yarn_parameters` of transformers 4.57.
    #[test]
    fn yarn_weighs_its_attention_factor() {
        let scale = |fields: Value| {
            let mut scaling = json!({ "rope_type": "yarn", "factor": 40.0,
                "original_max_position_embeddings": 4096 });
            scaling
                .as_object_mut()
                .unwrap()
                .extend(fields.as_object().unwrap().clone());
            match read(&json!({ "rope_scaling": scaling }), 163_840)
                .expect("supported")
                .scaling
            {
                Scaling::Yarn(yarn) => yarn.attention_factor,
                other => panic!("{other:?}"),
            }
        };
        let plain = 0.1 * 40.0f64.ln() + 1.0;
        for (fields, expected) in [
            (json!({}), plain),
            (json!({ "mscale": 0.707 }), plain),
            (json!({ "mscale": 0.707, "mscale_all_dim": 0 }), plain),
            (json!({ "mscale": 1.0, "mscale_all_dim": 1.0 }), 1.0),
            (
                json!({ "mscale": 1.0, "mscale_all_dim": 0.5 }),
                plain / (0.05 * 40.0f64.ln() + 1.0),
            ),
            (
                json!({ "mscale": 1.0, "mscale_all_dim": 1.0, "attention_factor": 1.5 }),
                1.5,
            ),
        ] {
            assert!((scale(fields.clone()) - expected).abs() < 1e-12, "{fields}");
        }
    }

    #[test]
    fn what_is_not_understood_is_named() {
        let sentence = |scaling: Value| {
            read(&json!({ "rope_scaling": scaling }), 64)
                .err()
                .expect("refused")
                .to_string()
        };
        assert_eq!(
            sentence(json!({ "type": "ntk", "factor": 2.0 })),
            "`rope_scaling.type` is \"ntk\", which is not supported; \
             supported: default, linear, dynamic, llama3, yarn, mrope"
        );
        assert_eq!(
            sentence(json!({ "factor": 2.0 })),
            "`rope_scaling.rope_type` is missing"
        );
        assert_eq!(
            sentence(json!({ "type": "linear" })),
            "`rope_scaling.factor` is missing"
        );
        for wrong in [
            json!({ "type": "linear", "factor": 0.5 }),
            json!({ "type": "linear", "factor": "2" }),
            json!({ "type": "yarn", "factor": 2.0, "beta_fast": 1.0, "beta_slow": 1.0 }),
            json!({ "type": "yarn", "factor": 2.0, "attention_factor": -1.0 }),
            json!({ "type": "llama3", "factor": 2.0, "low_freq_factor": 4.0,
                "high_freq_factor": 3.0 }),
        ] {
            assert!(sentence(wrong.clone()).contains("expected"), "{wrong}");
        }
    }
}
