//! `quantization_config` → which scheme the weight of each module is stored in.
//!
//! Every method comes down to the same: modules that are left alone, groups of modules with a
//! scheme each, and a scheme for the rest.

mod awq;
mod compressed_tensors;
mod fp8;
mod gptq;
mod modelopt;
mod modules;
mod mxfp4;

use ebb_kernels::weight_formats::WeightFormat;

use super::formats::Scheme;
use crate::model::error::Refusal;
use crate::model::hf::json::Object;
pub(crate) use modules::{Class, Module};
use modules::{ModuleList, Specificity};

/// Where config.json says how weights are quantised; the second is an older name.
pub(crate) const QUANTIZATION_KEYS: [&str; 2] = ["quantization_config", "compression_config"];

/// How a checkpoint's weights are quantised.
#[derive(Clone, Debug)]
pub(crate) struct Quantisation {
    /// `quant_method`.
    method: &'static str,
    /// Modules that are not quantised.
    ignored: ModuleList,
    /// Modules with a scheme of their own. Without a scheme their weights are not quantised.
    groups: Vec<(ModuleList, Option<Scheme>)>,
    /// What the others have. Where it is `None`, they are not quantised.
    others: Option<Scheme>,
    /// Whether the configuration has scales for a KV cache.
    has_kv_cache: bool,
    /// Whether the output projection is quantised unless it is left alone.
    has_head: bool,
}

/// Reads a method's settings.
type Reader = fn(&Object) -> Result<Quantisation, Refusal>;

const METHODS: [(&str, Reader); 8] = [
    ("awq", awq::read),
    ("compressed-tensors", compressed_tensors::read),
    ("fbgemm_fp8", fp8::read),
    ("fp8", fp8::read),
    ("gptq", gptq::read),
    ("modelopt", modelopt::read),
    ("modelopt_fp4", modelopt::read),
    ("mxfp4", mxfp4::read),
];

/// Reads how the weights of a checkpoint are quantised, if they are.
///
/// # Errors
/// [`Refusal`], naming the field that is missing, unknown or contradictory.
pub(in crate::model::hf) fn read_quantisation(
    config: &Object,
) -> Result<Option<Quantisation>, Refusal> {
    for key in QUANTIZATION_KEYS {
        if let Some(settings) = config.object(key)? {
            return read_settings(&settings).map(Some);
        }
    }
    Ok(None)
}

/// Reads ModelOpt's own file, hf_quant_config.json.
///
/// # Errors
/// As [`read_quantisation`]'s.
pub(crate) fn read_modelopt_file(bytes: &[u8]) -> Result<Quantisation, Refusal> {
    const KEY: &str = "quantization";
    let file = Object::parse(bytes)?;
    let settings = file.object(KEY)?;
    let quantisation = modelopt::read(&file.required(KEY, settings)?)?;
    Ok(Quantisation {
        method: "modelopt",
        has_head: true,
        ..quantisation
    })
}

fn read_settings(settings: &Object) -> Result<Quantisation, Refusal> {
    const KEY: &str = "quant_method";
    let method = settings.text(KEY)?;
    let method = settings.required(KEY, method)?;
    match METHODS.iter().find(|(name, _)| *name == method) {
        Some((name, read)) => Ok(Quantisation {
            method: name,
            // Others do so if they say it, whatever their lists have.
            has_head: match *name {
                "compressed-tensors" | "modelopt" | "modelopt_fp4" => true,
                _ => settings.bool("lm_head")?.unwrap_or(false),
            },
            ..read(settings)?
        }),
        None => {
            let names = METHODS.map(|(name, _)| name).join(", ");
            let found = format!("{method:?}");
            Err(Refusal::unsupported(settings.name(KEY), found, &names))
        }
    }
}

impl Quantisation {
    /// One scheme for all but the ignored modules.
    fn of_all(scheme: Scheme, ignored: ModuleList) -> Self {
        Self {
            method: "",
            ignored,
            groups: Vec::new(),
            others: Some(scheme),
            has_kv_cache: false,
            has_head: false,
        }
    }

    /// Whether a checkpoint with these settings has its output projection quantised, unless they
    /// leave it alone by name.
    pub(in crate::model::hf) fn has_head(&self) -> bool {
        self.has_head
    }

    /// The scheme of a module whose weight is stored in codes.
    pub(super) fn scheme(&self, codes: &str, module: &Module) -> Result<&Scheme, Refusal> {
        self.find(module)?
            .map_err(|problem| Refusal::Contradiction {
                tensor: codes.to_owned(),
                problem: format!("is quantised, but {problem}"),
            })
    }

    /// The form that the rows of a module with so many inputs are packed in, if it is quantised and
    /// can be packed.
    pub(in crate::model::hf) fn format(
        &self,
        module: &Module,
        inputs: usize,
    ) -> Result<Option<WeightFormat>, Refusal> {
        let scheme = self.find(module)?.ok();
        Ok(scheme.and_then(|scheme| scheme.format(inputs)))
    }

    /// The scheme of a module, or a clause that says why it has none.
    fn find(&self, module: &Module) -> Result<Result<&Scheme, String>, Refusal> {
        let says_no = |list: &ModuleList| format!("`{}` says that it is not", list.field());
        if self.ignored.has(module, None)? {
            return Ok(Err(says_no(&self.ignored)));
        }
        for specificity in Specificity::ALL {
            for (targets, scheme) in &self.groups {
                if targets.has(module, Some(specificity))? {
                    return Ok(scheme.as_ref().ok_or_else(|| says_no(targets)));
                }
            }
        }
        let none = || match self.groups.first() {
            None => "`quantization_config` says of no weights that they are".to_owned(),
            Some((layers, _)) if layers.field().ends_with(modelopt::LAYERS) => {
                format!("`{}` does not have it", layers.field())
            }
            Some(_) => "no group in `config_groups` has it as a target".to_owned(),
        };
        Ok(self.others.as_ref().ok_or_else(none))
    }

    /// Sentences for the user: whether weights are quantised, and whether a KV cache has scales.
    pub(crate) fn notes(&self, has_weights: bool, has_kv_scales: bool) -> Vec<String> {
        let method = self.method;
        let weights = format!(
            "the weights are quantised ({method}); they are kept packed where the device computes \
             on that, and expanded to bf16 elsewhere"
        );
        let kv_cache = "the checkpoint's scales for a KV cache are not used; Ebb's formats have \
                        their own";
        let notes = [
            has_weights.then_some(weights),
            (self.has_kv_cache || has_kv_scales).then(|| kv_cache.to_owned()),
        ];
        notes.into_iter().flatten().collect()
    }
}

/// A number of bits, out of those that are supported.
fn bits(settings: &Object, key: &str, supported: &[usize]) -> Result<usize, Refusal> {
    let bits = settings.size(key)?;
    let bits = settings.required(key, bits)?;
    if supported.contains(&bits) {
        return Ok(bits);
    }
    let names: Vec<_> = supported.iter().map(usize::to_string).collect();
    Err(Refusal::unsupported(
        settings.name(key),
        bits,
        &names.join(", "),
    ))
}

/// The inputs of a group; `None` where a group is a row.
fn group_size(settings: &Object, key: &str) -> Result<Option<usize>, Refusal> {
    let size = settings.typed(key, "a positive whole number, or -1", |size| {
        match size.as_i64()? {
            -1 => Some(None),
            size => Some(Some(usize::try_from(size).ok().filter(|size| *size > 0)?)),
        }
    })?;
    settings.required(key, size)
}

/// A text out of `supported`, which differs from none of them but in case; the first where the
/// field is absent.
fn one_of<'a>(settings: &Object, key: &str, supported: &[&'a str]) -> Result<&'a str, Refusal> {
    let Some(found) = settings.text(key)? else {
        return Ok(supported[0]);
    };
    let same = |known: &&&str| known.eq_ignore_ascii_case(found);
    match supported.iter().find(same) {
        Some(known) => Ok(known),
        None => Err(Refusal::unsupported(
            settings.name(key),
            format!("{found:?}"),
            &supported.join(", "),
        )),
    }
}

/// Rows and columns of a block.
fn block(settings: &Object, key: &str) -> Result<Option<[usize; 2]>, Refusal> {
    settings.typed(key, "two positive whole numbers", |block| {
        let size = |size: &serde_json::Value| usize::try_from(size.as_u64()?).ok();
        let [rows, columns] = block.as_array()?.as_slice() else {
            return None;
        };
        positive([size(rows)?, size(columns)?])
    })
}

fn positive(block: [usize; 2]) -> Option<[usize; 2]> {
    (!block.contains(&0)).then_some(block)
}
