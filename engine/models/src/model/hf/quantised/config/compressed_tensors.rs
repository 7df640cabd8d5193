//! `quant_method: compressed-tensors` of LLM Compressor.

use super::modules::{ModuleList, RegexBudget, Syntax};
use super::{Quantisation, block, one_of, positive};
use crate::model::error::Refusal;
use crate::model::hf::json::Object;
use crate::model::hf::quantised::formats::{Fp4, Packed, Scheme};
use crate::model::hf::quantised::scales::Sharing;

const FORMATS: [&str; 9] = [
    "float-quantized",
    "int-quantized",
    "naive-quantized",
    "pack-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mxfp8-quantized",
    MIXED,
    DENSE,
];

/// The groups say which.
const MIXED: &str = "mixed-precision";

/// The most groups. Every module is compared with each.
const GROUPS_MAX: usize = 256;

/// Weights are plain.
const DENSE: &str = "dense";

pub(super) fn read(settings: &Object) -> Result<Quantisation, Refusal> {
    refuse_transforms(settings)?;
    let groups = settings.object("config_groups")?;
    let groups = settings.required("config_groups", groups)?;
    let count = groups.keys().count();
    if count > GROUPS_MAX {
        let expected = format!("at most {GROUPS_MAX}");
        let found = format!("an object of {count} groups");
        return Err(Refusal::invalid(
            settings.name("config_groups"),
            found,
            expected,
        ));
    }
    let mut budget = RegexBudget::new();
    let mut list = |settings: &Object, key| {
        ModuleList::read(settings, key, Syntax::NamesAndClasses, &mut budget)
    };
    let mut quantisation = Quantisation {
        method: "",
        ignored: list(settings, "ignore")?,
        groups: Vec::new(),
        others: None,
        has_kv_cache: settings.get("kv_cache_scheme").is_some(),
        has_head: false,
    };
    for name in groups.keys() {
        let group = groups.object(name)?.unwrap_or_default();
        let targets = list(&group, "targets")?;
        // Without weights a group is about activations alone.
        let scheme = match group.object("weights")? {
            Some(weights) => {
                let format = match group.get("format") {
                    Some(_) => one_of(&group, "format", &FORMATS)?,
                    None => {
                        let format = settings.get("format");
                        settings.required("format", format)?;
                        one_of(settings, "format", &FORMATS)?
                    }
                };
                match format {
                    DENSE => None,
                    format => Some(scheme(&weights, format)?),
                }
            }
            None => None,
        };
        refuse_contradiction(&quantisation.groups, &targets, &scheme)?;
        quantisation.groups.push((targets, scheme));
    }
    Ok(quantisation)
}

/// A target of two groups that say otherwise of its weights.
fn refuse_contradiction(
    groups: &[(ModuleList, Option<Scheme>)],
    targets: &ModuleList,
    scheme: &Option<Scheme>,
) -> Result<(), Refusal> {
    let differs = |other: &Option<Scheme>| other.is_some() && scheme.is_some() && other != scheme;
    for (other, _) in groups.iter().filter(|(_, other)| differs(other)) {
        if let Some(target) = targets.common(other) {
            let found = format!("a list with {target:?}, which `{}` has, too", other.field());
            let expected = "targets that no group with other weights has";
            return Err(Refusal::invalid(targets.field(), found, expected));
        }
    }
    Ok(())
}

/// Sparse weights and rotations of activations are computed otherwise.
fn refuse_transforms(settings: &Object) -> Result<(), Refusal> {
    if let Some(sparsity) = settings.object("sparsity_config")? {
        one_of(&sparsity, "format", &["dense"])?;
    }
    let Some(transforms) = settings.object("transform_config")? else {
        return Ok(());
    };
    match transforms.object("config_groups")? {
        Some(groups) if groups.keys().next().is_some() => {
            let found = groups.keys().collect::<Vec<_>>().join(", ");
            let found = found.chars().take(80).collect::<String>();
            let field = transforms.name("config_groups");
            Err(Refusal::unsupported(field, found, "no transforms"))
        }
        _ => Ok(()),
    }
}

fn scheme(weights: &Object, format: &str) -> Result<Scheme, Refusal> {
    let kind = one_of(weights, "type", &["int", "float"])?;
    let bits = weights.size("num_bits")?.unwrap_or(8);
    let symmetric = weights.bool("symmetric")?.unwrap_or(true);
    let sharing = sharing(weights)?;
    let unsupported = |field, found: String, supported: &str| {
        let supported = format!("{supported} with the format {format}");
        Refusal::unsupported(weights.name(field), found, &supported)
    };
    let expects = |float: bool, all: &[usize]| {
        let expected = if float { "float" } else { "int" };
        if kind != expected {
            return Err(unsupported("type", format!("{kind:?}"), expected));
        }
        if !all.contains(&bits) {
            let all: Vec<_> = all.iter().map(usize::to_string).collect();
            return Err(unsupported("num_bits", bits.to_string(), &all.join(", ")));
        }
        if float && !symmetric {
            return Err(unsupported("symmetric", "false".to_owned(), "true"));
        }
        Ok(())
    };
    let in_groups_of = |size: usize| match sharing {
        Sharing::Group(found) if found == size => Ok(()),
        Sharing::Group(found) => Err((found.to_string(), "group_size", size.to_string())),
        _ => Err((name(sharing).to_owned(), "strategy", "group".to_owned())),
    };
    let in_groups_of = |size| {
        in_groups_of(size).map_err(|(found, field, known)| unsupported(field, found, &known))
    };
    match format {
        "float-quantized" => {
            expects(true, &[8])?;
            Ok(Scheme::Fp8(sharing))
        }
        "naive-quantized" if kind == "float" => {
            expects(true, &[8])?;
            Ok(Scheme::Fp8(sharing))
        }
        "int-quantized" | "naive-quantized" => {
            expects(false, &[8])?;
            Ok(Scheme::Int8 { sharing, symmetric })
        }
        "pack-quantized" => {
            expects(false, &[4, 8])?;
            if !symmetric && !matches!(sharing, Sharing::Group(_) | Sharing::Channel) {
                return Err(unsupported(
                    "strategy",
                    name(sharing).to_owned(),
                    "group, channel",
                ));
            }
            Ok(Scheme::Packed(Packed {
                bits,
                sharing,
                symmetric,
                indexed: is_by_activation(weights)?,
            }))
        }
        "nvfp4-pack-quantized" => {
            expects(true, &[4])?;
            in_groups_of(16)?;
            Ok(Scheme::Fp4(Fp4::NvPacked))
        }
        "mxfp4-pack-quantized" => {
            expects(true, &[4])?;
            in_groups_of(32)?;
            Ok(Scheme::Fp4(Fp4::MxPacked))
        }
        "mxfp8-quantized" => {
            expects(true, &[8])?;
            in_groups_of(32)?;
            Ok(Scheme::Fp8(sharing))
        }
        _ => {
            let supported = format!("a format in each group where the whole is {MIXED}");
            Err(Refusal::unsupported(
                weights.name("format"),
                "absent",
                &supported,
            ))
        }
    }
}

/// Whether groups are by an index: `actorder` is `group`, `dynamic` or true.
fn is_by_activation(weights: &Object) -> Result<bool, Refusal> {
    if let Some(order) = weights.get("actorder").and_then(serde_json::Value::as_bool) {
        return Ok(order);
    }
    let known = ["weight", "static", "group", "dynamic"];
    Ok(["group", "dynamic"].contains(&one_of(weights, "actorder", &known)?))
}

/// Which weights share a scale.
fn sharing(weights: &Object) -> Result<Sharing, Refusal> {
    let size = match weights.get("group_size") {
        Some(_) => Some(super::group_size(weights, "group_size")?),
        None => None,
    };
    let inferred = match size {
        None => "tensor",
        Some(None) => "channel",
        Some(Some(_)) => "group",
    };
    let known = ["tensor", "channel", "group", "tensor_group", "block"];
    let strategy = match weights.get("strategy") {
        Some(_) => one_of(weights, "strategy", &known)?,
        None => inferred,
    };
    let group = size.flatten();
    match (strategy, group) {
        ("group" | "tensor_group", Some(size)) => Ok(Sharing::Group(size)),
        ("group" | "tensor_group", None) => {
            let field = weights.name("group_size");
            Err(Refusal::invalid(
                field,
                "not given",
                "the size of its groups",
            ))
        }
        (strategy, Some(size)) if strategy != "block" => {
            let expected = format!("none, because the strategy is {strategy}");
            Err(Refusal::invalid(weights.name("group_size"), size, expected))
        }
        ("tensor", _) => Ok(Sharing::Tensor),
        ("channel", _) => Ok(Sharing::Channel),
        _ => {
            let block = block_structure(weights)?;
            Ok(Sharing::Block(weights.required("block_structure", block)?))
        }
    }
}

/// Rows and columns of a block: two numbers, or an older text such as `128x128`.
fn block_structure(weights: &Object) -> Result<Option<[usize; 2]>, Refusal> {
    const KEY: &str = "block_structure";
    if !weights.get(KEY).is_some_and(serde_json::Value::is_string) {
        return block(weights, KEY);
    }
    let expected = "two positive whole numbers, or a text such as 128x128";
    weights.typed(KEY, expected, |text| {
        let (rows, columns) = text.as_str()?.split_once('x')?;
        positive([rows.parse().ok()?, columns.parse().ok()?])
    })
}

fn name(sharing: Sharing) -> &'static str {
    match sharing {
        Sharing::TensorOrChannel | Sharing::Tensor => "tensor",
        Sharing::Channel => "channel",
        Sharing::Group(_) => "group",
        Sharing::Block(_) => "block",
    }
}
