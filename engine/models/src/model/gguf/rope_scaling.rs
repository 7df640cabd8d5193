//! RoPE scaling in GGUF: `rope.scaling.*` keys, or Llama 3's factors as a tensor.

use super::file::GgufFile;
use super::ggml_type::GgmlType;
use super::keys::Keys;
use crate::model::error::Refusal;
use crate::model::rope::{LongFactors, Scaling, Yarn};

/// The frequency factors of Llama 3's RoPE scaling, `[head_dim / 2]`.
const ROPE_FACTORS: &str = "rope_freqs.weight";
/// Those of LongRoPE, for short contexts and for long ones, `[rotary_dim / 2]` each.
const LONG_ROPE_FACTORS: [&str; 2] = ["rope_factors_short.weight", "rope_factors_long.weight"];

/// Whether a tensor holds frequency factors and no weights.
pub(super) fn is_rope_factors(name: &str) -> bool {
    name == ROPE_FACTORS || LONG_ROPE_FACTORS.contains(&name)
}

/// A tensor of LongRoPE's factors that a file has.
pub(super) fn has_long_factors(file: &GgufFile) -> Option<&'static str> {
    let mut names = LONG_ROPE_FACTORS.into_iter();
    names.find(|name| file.tensor(name).is_some())
}

/// LongRoPE's factors of a file that has them.
pub(super) fn long_factors(
    keys: &Keys<'_>,
    file: &GgufFile,
    rotary_dim: usize,
) -> Result<Option<LongFactors>, Refusal> {
    let [short, long] = LONG_ROPE_FACTORS;
    let factors = |name| rope_factors(name, file, rotary_dim);
    let (Some(short), Some(long)) = (factors(short)?, factors(long)?) else {
        return Ok(None);
    };
    let wide = |factors: Vec<f32>| factors.into_iter().map(f64::from).collect();
    let original = keys.size("rope.scaling.original_context_length")?.max(2) as f64;
    let attention_factor = keys.name("rope.scaling.attn_factor");
    Ok(Some(LongFactors {
        short: wide(short),
        long: wide(long),
        original_positions: original,
        attention_factor: match keys.metadata.f32(&attention_factor)? {
            Some(factor) => factor.into(),
            None => {
                let extension = keys.size("context_length")? as f64 / original;
                LongFactors::attention_factor(extension, original)
            }
        },
    }))
}

/// How RoPE is scaled, and the context that the scaling was made for if it says so.
pub(super) fn scaling(
    keys: &Keys<'_>,
    file: &GgufFile,
    head_dim: usize,
) -> Result<(Scaling, Option<f64>), Refusal> {
    let kind_name = keys.name("rope.scaling.type");
    let kind = keys.metadata.text(&kind_name)?;
    let factor_name = keys.name("rope.scaling.factor");
    let factor = match keys.metadata.f32(&factor_name)? {
        // Written by converters for models without scaling.
        Some(0.0) => None,
        Some(factor) if factor >= 1.0 => Some(f64::from(factor)),
        Some(factor) => return Err(Refusal::invalid(factor_name, factor, "at least 1")),
        None => None,
    };
    let old_name = keys.name("rope.scale_linear");
    let old_factor = keys
        .metadata
        .f32(&old_name)?
        .filter(|factor| *factor != 1.0);
    if let Some(factor) = old_factor
        && (factor < 1.0 || kind.is_some())
    {
        let expected = "at least 1, and no rope.scaling.type beside it";
        return Err(Refusal::invalid(old_name, factor, expected));
    }
    let needed = |factor: Option<f64>| factor.ok_or(Refusal::Missing(factor_name.clone()));
    let scaling = match (kind, old_factor) {
        (None, Some(factor)) => Scaling::Linear {
            factor: factor.into(),
        },
        (None, None) if factor.is_some_and(|factor| factor != 1.0) => {
            return Err(Refusal::Missing(kind_name));
        }
        (None | Some("none"), _) => Scaling::None,
        (Some("linear"), _) => Scaling::Linear {
            factor: needed(factor)?,
        },
        (Some("yarn"), _) => {
            let original = match keys
                .metadata
                .u32(&keys.name("rope.scaling.original_context_length"))?
            {
                Some(positions) => positions as usize,
                None => keys.size("context_length")?,
            };
            Scaling::Yarn(Yarn::new(needed(factor)?, original.max(1) as f64))
        }
        (Some(other), _) => {
            let supported = "none, linear, yarn, and Llama 3's factors in rope_freqs.weight";
            return Err(Refusal::unsupported(
                kind_name,
                format!("{other:?}"),
                supported,
            ));
        }
    };
    let positions = if let Scaling::Yarn(yarn) = &scaling {
        Some(yarn.positions())
    } else {
        None
    };
    match (scaling, rope_factors(ROPE_FACTORS, file, head_dim)?) {
        (scaling, None) => Ok((scaling, positions)),
        (Scaling::None, Some(factors)) => Ok((Scaling::Factors(factors), None)),
        (_, Some(_)) => {
            let supported = "none beside rope_freqs.weight";
            Err(Refusal::unsupported(
                kind_name,
                format!("{:?}", kind.unwrap_or("linear")),
                supported,
            ))
        }
    }
}

/// The contents of a tensor of factors.
fn rope_factors(name: &str, file: &GgufFile, head_dim: usize) -> Result<Option<Vec<f32>>, Refusal> {
    let Some(tensor) = file.tensor(name) else {
        return Ok(None);
    };
    if tensor.kind != GgmlType::F32 {
        return Err(Refusal::unsupported(
            name,
            format!("{:?}", tensor.kind),
            "F32",
        ));
    }
    if tensor.shape != [head_dim / 2] {
        return Err(Refusal::Shape {
            tensor: name.to_owned(),
            found: tensor.shape.clone(),
            expected: vec![head_dim / 2],
        });
    }
    let (words, _) = file.data(tensor).as_chunks();
    let factors: Vec<f32> = words.iter().map(|word| f32::from_le_bytes(*word)).collect();
    match factors
        .iter()
        .find(|factor| !(factor.is_finite() && **factor > 0.0))
    {
        Some(wrong) => Err(Refusal::invalid(name, wrong, "finite factors above 0")),
        None => Ok(Some(factors)),
    }
}
