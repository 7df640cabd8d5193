//! The formats of compressed-tensors, and its groups of modules.

use safetensors::Dtype;
use serde_json::{Value, json};

use super::{Checkpoint, Layer, Packed, bf16s, f32s, fp8, is_inner, part, words};

/// Integers: their bits, the inputs of a group, and whether zeros are stored.
#[derive(Clone, Copy)]
struct Layout {
    bits: usize,
    group: Option<usize>,
    symmetric: bool,
    by_activation: bool,
}

const PLAIN: Layout = Layout {
    bits: 4,
    group: Some(16),
    symmetric: true,
    by_activation: false,
};

/// As `pack_to_int32` packs: signed codes with an offset, the first in the lowest bits, and the
/// last word not full. `code(line, place)` is signed.
fn packed(
    bits: usize,
    lines: usize,
    places: usize,
    code: impl Fn(usize, usize) -> i32,
) -> Vec<u32> {
    let each = 32 / bits;
    let word_of = |line: usize, word: usize| {
        let mut packed = 0;
        for place in 0..each {
            if word * each + place < places {
                let stored = code(line, word * each + place) + (1 << (bits - 1));
                packed |= (stored as u32) << (bits * place);
            }
        }
        packed
    };
    let words = places.div_ceil(each);
    (0..lines * words)
        .map(|at| word_of(at / words, at % words))
        .collect()
}

/// Signed codes and zeros, scales, and what they stand for.
struct Integers<'a> {
    layer: &'a Layer,
    layout: Layout,
    groups: usize,
}

impl<'a> Integers<'a> {
    fn new(layer: &'a Layer, layout: Layout) -> Self {
        let groups = layer.columns / layout.group.unwrap_or(layer.columns);
        Self {
            layer,
            layout,
            groups,
        }
    }

    fn signed(&self, what: &str, at: usize) -> i32 {
        let bits = self.layout.bits;
        self.layer.pick(what, at, 1 << bits) as i32 - (1 << (bits - 1))
    }

    fn code(&self, row: usize, column: usize) -> i32 {
        self.signed("code", row * self.layer.columns + column)
    }

    fn zero(&self, row: usize, group: usize) -> i32 {
        match self.layout.symmetric {
            true => 0,
            false => self.signed("zero", row * self.groups + group),
        }
    }

    fn group(&self, column: usize) -> usize {
        let size = self.layer.columns / self.groups;
        match self.layout.by_activation {
            true => (column * 5 + 2) % self.layer.columns / size,
            false => column / size,
        }
    }

    fn scales(&self) -> super::Stored {
        let shape = [self.layer.rows, self.groups];
        let scales = (0..shape[0] * shape[1]).map(|at| self.layer.scale(at));
        part("weight_scale", Dtype::BF16, &shape, bf16s(scales))
    }

    fn weights(&self) -> Vec<f32> {
        self.layer.each(|row, column| {
            let group = self.group(column);
            let scale = self.layer.scale(row * self.groups + group);
            (self.code(row, column) - self.zero(row, group)) as f32 * scale
        })
    }

    /// `pack-quantized`.
    fn in_words(&self) -> Packed {
        let Layer { rows, columns, .. } = *self.layer;
        let bits = self.layout.bits;
        let codes = packed(bits, rows, columns, |row, column| self.code(row, column));
        let shape = [rows, codes.len() / rows];
        let mut parts = vec![
            part("weight_packed", Dtype::I32, &shape, words(codes)),
            self.scales(),
            part(
                "weight_shape",
                Dtype::I64,
                &[2],
                [rows, columns]
                    .iter()
                    .flat_map(|n| (*n as i64).to_le_bytes())
                    .collect(),
            ),
        ];
        if !self.layout.symmetric {
            // Packed along the outputs: the transpose of what packing along groups would be.
            let lines = packed(bits, self.groups, rows, |group, row| self.zero(row, group));
            let each_group = lines.len() / self.groups;
            let transposed =
                (0..lines.len()).map(|at| lines[at % self.groups * each_group + at / self.groups]);
            let shape = [each_group, self.groups];
            parts.push(part(
                "weight_zero_point",
                Dtype::I32,
                &shape,
                words(transposed),
            ));
        }
        if self.layout.by_activation {
            let index = (0..columns).map(|column| self.group(column) as u32);
            parts.push(part("weight_g_idx", Dtype::I32, &[columns], words(index)));
        }
        Packed {
            parts,
            weights: self.weights(),
        }
    }

    /// `int-quantized`.
    fn in_bytes(&self) -> Packed {
        let codes = self
            .layer
            .each(|row, column| self.code(row, column) as i8 as u8);
        let shape = [self.layer.rows, self.layer.columns];
        let mut parts = vec![part("weight", Dtype::I8, &shape, codes), self.scales()];
        if !self.layout.symmetric {
            let zeros = (0..self.layer.rows * self.groups)
                .map(|at| self.zero(at / self.groups, at % self.groups) as i8 as u8);
            let shape = [self.layer.rows, self.groups];
            parts.push(part(
                "weight_zero_point",
                Dtype::I8,
                &shape,
                zeros.collect(),
            ));
        }
        Packed {
            parts,
            weights: self.weights(),
        }
    }
}

pub(super) fn plain(layer: &Layer) -> Packed {
    Integers::new(layer, PLAIN).in_words()
}

fn weights_of(layout: Layout) -> Value {
    json!({
        "num_bits": layout.bits,
        "type": "int",
        "symmetric": layout.symmetric,
        "strategy": if layout.group.is_some() { "group" } else { "channel" },
        "group_size": layout.group,
        "dynamic": false,
        "observer": "minmax",
        "actorder": layout.by_activation.then_some("group"),
        "block_structure": null,
    })
}

pub(crate) fn settings(format: &str, weights: Value) -> Value {
    json!({
        "quant_method": "compressed-tensors",
        "format": format,
        "quantization_status": "compressed",
        "global_compression_ratio": null,
        "ignore": ["lm_head"],
        "kv_cache_scheme": null,
        "sparsity_config": {},
        "transform_config": {},
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": weights,
                "input_activations": { "num_bits": 8, "type": "int", "dynamic": true },
                "output_activations": null,
            },
        },
    })
}

fn in_words(layout: Layout) -> Checkpoint {
    let settings = settings("pack-quantized", weights_of(layout));
    Checkpoint::new(settings, is_inner, |layer| {
        Integers::new(layer, layout).in_words()
    })
}

#[test]
fn integers_lie_in_words() {
    for bits in [4, 8] {
        for group in [Some(16), Some(32), None] {
            for symmetric in [true, false] {
                let layout = Layout {
                    bits,
                    group,
                    symmetric,
                    by_activation: false,
                };
                in_words(layout).assert_dequantised();
            }
        }
    }
}

#[test]
fn inputs_may_be_in_groups_by_an_index() {
    let layout = Layout {
        by_activation: true,
        symmetric: false,
        ..PLAIN
    };
    in_words(layout).assert_dequantised();
    let index = "model.layers.1.mlp.up_proj.weight_g_idx";
    let found = in_words(layout).refused(|it| it.remove(index));
    assert!(
        found.starts_with(&format!("tensor `{index}` is missing")),
        "{found}"
    );
    let found = in_words(layout).refused(|it| it.tensor(index).3[0] = 2);
    assert_eq!(
        found,
        format!("`a number in {index}` is 2; expected groups below 2")
    );
    // What was never set.
    let mut unset = in_words(PLAIN);
    let minus_one = part(index, Dtype::I32, &[32], vec![0xFF; 128]);
    unset.files.tensors.push(minus_one);
    unset.assert_dequantised();
}

#[test]
fn integers_lie_in_bytes() {
    for (group, symmetric) in [
        (None, true),
        (None, false),
        (Some(16), true),
        (Some(16), false),
    ] {
        let layout = Layout {
            bits: 8,
            group,
            symmetric,
            by_activation: false,
        };
        for format in ["int-quantized", "naive-quantized"] {
            let settings = settings(format, weights_of(layout));
            let pack = |layer: &Layer| Integers::new(layer, layout).in_bytes();
            Checkpoint::new(settings, is_inner, pack).assert_dequantised();
        }
    }
}

#[test]
fn floats_have_scales_by_strategy() {
    let float = |strategy: &str| {
        settings(
            "float-quantized",
            json!({ "num_bits": 8, "type": "float", "strategy": strategy }),
        )
    };
    Checkpoint::new(float("tensor"), is_inner, fp8::per_tensor).assert_dequantised();
    Checkpoint::new(float("channel"), is_inner, fp8::per_channel).assert_dequantised();
    let mut blocks = float("block");
    blocks["config_groups"]["group_0"]["weights"]["block_structure"] = json!([16, 16]);
    let pack = |layer: &Layer| {
        let tiles = [layer.rows.div_ceil(16), layer.columns / 16];
        let scales = (0..tiles[0] * tiles[1]).map(|tile| layer.scale(tile));
        let scales = part("weight_scale", Dtype::F32, &tiles, f32s(scales));
        fp8::pack(layer, scales, |row, column| {
            layer.scale(row / 16 * tiles[1] + column / 16)
        })
    };
    Checkpoint::new(blocks, is_inner, pack).assert_dequantised();
    let mut powers = float("group");
    powers["format"] = json!("mxfp8-quantized");
    powers["config_groups"]["group_0"]["weights"]["group_size"] = json!(32);
    Checkpoint::new(powers.clone(), is_inner, fp8::per_group_power).assert_dequantised();
    powers["format"] = json!("dense");
    let found = Checkpoint::new(powers, is_inner, fp8::per_group_power).refused(|_| {});
    assert!(
        found.ends_with("config_groups.group_0.targets` says that it is not"),
        "{found}"
    );
}

#[test]
fn a_block_may_be_a_text() {
    let blocks = |structure: Value| {
        let weights = json!({
            "num_bits": 8, "type": "float", "strategy": "block", "block_structure": structure,
        });
        let pack = |layer: &Layer| {
            let tiles = [layer.rows.div_ceil(16), layer.columns / 8];
            let scales = (0..tiles[0] * tiles[1]).map(|tile| layer.scale(tile));
            let scales = part("weight_scale", Dtype::F32, &tiles, f32s(scales));
            fp8::pack(layer, scales, |row, column| {
                layer.scale(row / 16 * tiles[1] + column / 8)
            })
        };
        Checkpoint::new(settings("float-quantized", weights), is_inner, pack)
    };
    blocks(json!("16x8")).assert_dequantised();
    for wrong in ["16", "16x", "0x8", "16x8x8", "ax8", "-1x8"] {
        let found = blocks(json!(wrong)).refused(|_| {});
        assert!(
            found.ends_with("expected two positive whole numbers, or a text such as 128x128"),
            "{found}"
        );
    }
}

#[test]
fn groups_are_bounded() {
    let with = |count: usize| {
        in_words(PLAIN).refused(|it| {
            let groups = &mut it.files.config["quantization_config"]["config_groups"];
            let empty = json!({ "targets": [], "weights": null });
            let all = (0..count).map(|at| (format!("group_{at}"), empty.clone()));
            *groups = all.collect::<serde_json::Map<_, _>>().into();
        })
    };
    assert!(with(256).contains("no group in `config_groups` has it as a target"));
    assert_eq!(
        with(257),
        "`quantization_config.config_groups` is an object of 257 groups; expected at most 256"
    );
}

#[test]
fn each_module_has_the_scheme_of_its_group() {
    let eight = Layout {
        bits: 8,
        group: None,
        ..PLAIN
    };
    let mut mixed = settings("mixed-precision", weights_of(PLAIN));
    let groups = mixed["config_groups"].as_object_mut().expect("an object");
    groups["group_0"]["format"] = json!("pack-quantized");
    groups.insert(
        "group_1".to_owned(),
        json!({
            "targets": ["re:.*mlp\\.(gate|up)_proj$", "model.layers.1.self_attn.q_proj"],
            "weights": weights_of(eight),
            "format": "int-quantized",
        }),
    );
    mixed["ignore"] = json!(["lm_head", "re:.*layers\\.0\\.mlp.*"]);
    let is_eight = |module: &str| {
        module.ends_with("up_proj")
            || module.ends_with("gate_proj")
            || module == "model.layers.1.self_attn.q_proj"
    };
    let pack = |layer: &Layer| match is_eight(&layer.module) {
        true => Integers::new(layer, eight).in_bytes(),
        false => Integers::new(layer, PLAIN).in_words(),
    };
    let which = |module: &str| is_inner(module) && !module.contains("layers.0.mlp");
    Checkpoint::new(mixed.clone(), which, pack).assert_dequantised();
    let found = Checkpoint::new(mixed.clone(), is_inner, pack).refused(|_| {});
    assert_eq!(
        found,
        "tensor `model.layers.0.mlp.gate_proj.weight` is quantised, but \
         `quantization_config.ignore` says that it is not"
    );
    mixed["config_groups"]["group_0"]["targets"] = json!(["re:.*self_attn.*"]);
    let found = Checkpoint::new(mixed, which, pack).refused(|_| {});
    assert_eq!(
        found,
        "tensor `model.layers.1.mlp.down_proj.weight_packed` is quantised, but no group in \
         `config_groups` has it as a target"
    );
}

#[test]
fn a_scheme_for_the_kv_cache_is_told_and_not_used() {
    let mut checkpoint = in_words(PLAIN);
    let scheme = json!({ "num_bits": 8, "type": "float", "symmetric": true });
    checkpoint.files.config["quantization_config"]["kv_cache_scheme"] = scheme;
    for side in ["k", "v"] {
        let name = format!("model.layers.0.self_attn.{side}_scale");
        checkpoint
            .files
            .tensors
            .push(part(&name, Dtype::BF16, &[1], bf16s([0.5])));
    }
    let notes = checkpoint.assert_dequantised().notes;
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert!(notes[1].contains("KV cache"), "{notes:?}");
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let with = |change: &dyn Fn(&mut Value)| {
        in_words(PLAIN).refused(|it| change(&mut it.files.config["quantization_config"]))
    };
    let weights = |key: &str, value: Value| {
        with(&|it| it["config_groups"]["group_0"]["weights"][key] = value.clone())
    };
    assert_eq!(
        weights("num_bits", json!(3)),
        "`quantization_config.config_groups.group_0.weights.num_bits` is 3, which is not \
         supported; supported: 4, 8 with the format pack-quantized"
    );
    assert!(weights("type", json!("float")).contains("int with the format pack-quantized"));
    assert!(weights("type", json!("posit")).ends_with("supported: int, float"));
    assert!(weights("strategy", json!("token")).contains("weights.strategy` is \"token\""));
    assert!(weights("strategy", json!("channel")).contains("because the strategy is channel"));
    assert!(weights("group_size", json!(null)).contains("group_size` is not given"));
    assert!(weights("group_size", json!(24)).starts_with("`group_size` is 24; expected a divisor"));
    assert!(weights("symmetric", json!(false)).contains("q_proj.weight_zero_point` is missing"));
    assert!(weights("actorder", json!("group")).contains("q_proj.weight_g_idx` is missing"));
    assert_eq!(
        with(&|it| it["format"] = json!("marlin-24")),
        "`quantization_config.format` is \"marlin-24\", which is not supported; supported: \
         float-quantized, int-quantized, naive-quantized, pack-quantized, nvfp4-pack-quantized, \
         mxfp4-pack-quantized, mxfp8-quantized, mixed-precision, dense"
    );
    assert!(with(&|it| it["format"] = json!("mixed-precision")).contains("a format in each group"));
    assert_eq!(
        with(&|it| it["sparsity_config"] = json!({ "format": "sparse-24-bitmask" })),
        "`quantization_config.sparsity_config.format` is \"sparse-24-bitmask\", which is not \
         supported; supported: dense"
    );
    let again = with(&|it| {
        let mut other = it["config_groups"]["group_0"].clone();
        other["weights"]["group_size"] = json!(32);
        it["config_groups"]["group_1"] = other;
    });
    assert_eq!(
        again,
        "`quantization_config.config_groups.group_1.targets` is a list with \"Linear\", which \
         `quantization_config.config_groups.group_0.targets` has, too; expected targets that no \
         group with other weights has"
    );
    let again = with(&|it| {
        let mut other = it["config_groups"]["group_0"].clone();
        other["weights"]["group_size"] = json!(32);
        other["targets"] = json!(["re:.*up_proj"]);
        it["config_groups"]["group_0"]["targets"] = json!(["Linear", "re:.*up_proj"]);
        it["config_groups"]["group_1"] = other;
    });
    assert!(
        again.contains("is a list with \"re:.*up_proj\", which"),
        "{again}"
    );
    let rotated = json!({ "config_groups": { "R1": { "type": "hadamard" } } });
    assert_eq!(
        with(&|it| it["transform_config"] = rotated.clone()),
        "`quantization_config.transform_config.config_groups` is R1, which is not supported; \
         supported: no transforms"
    );
    assert!(with(&|it| it["ignore"] = json!(["re:["])).contains("regular expressions"));
    let shape = "model.layers.0.mlp.up_proj.weight_shape";
    assert_eq!(
        in_words(PLAIN).refused(|it| it.tensor(shape).3[0] = 63),
        format!("`{shape}` is [63, 32]; expected [64, 32], which the configuration calls for")
    );
    let zeros = "model.layers.0.mlp.up_proj.weight_zero_point";
    let found = in_words(PLAIN).refused(|it| {
        it.files
            .tensors
            .push(part(zeros, Dtype::I32, &[8, 2], vec![0; 64]));
    });
    assert!(
        found.starts_with(&format!("tensor `{zeros}` has zeros, but")),
        "{found}"
    );
    let scales = "model.layers.0.mlp.up_proj.weight_scale";
    let found = in_words(PLAIN).refused(|it| it.remove(scales));
    assert!(
        found.starts_with(&format!("tensor `{scales}` is missing")),
        "{found}"
    );
}
