//! What llama.cpp's converters make of a checkpoint: keys, names, and the order of values. By their
//! description, without the reader's code.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use super::checkpoint::{Checkpoint, Tensor};
use super::hybrids;
use crate::gguf_builder::{GgufBuilder, Value, texts};

/// Ends of names, after `model.layers.N.` and before `.weight` or `.bias`.
const NAMES: &[(&str, &str)] = &[
    ("input_layernorm", "attn_norm"),
    ("operator_norm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.out_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("attention_layernorm", "attn_norm"),
    ("feedforward_layernorm", "ffn_norm"),
    ("self_attn.query_layernorm", "attn_q_norm"),
    ("self_attn.key_layernorm", "attn_k_norm"),
    ("mlp.gate.wg", "ffn_gate_inp"),
    ("mlp.shared_mlp.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_mlp.up_proj", "ffn_up_shexp"),
    ("mlp.shared_mlp.down_proj", "ffn_down_shexp"),
    ("self_attn.q_layernorm", "attn_q_norm"),
    ("self_attn.k_layernorm", "attn_k_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
    ("ffn_norm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("feed_forward.w1", "ffn_gate"),
    ("feed_forward.w3", "ffn_up"),
    ("feed_forward.w2", "ffn_down"),
    ("mlp.gate", "ffn_gate_inp"),
    ("mlp.router", "ffn_gate_inp"),
    ("block_sparse_moe.gate", "ffn_gate_inp"),
    ("mlp.router.gate", "ffn_gate_inp"),
    ("feed_forward.gate", "ffn_gate_inp"),
    ("block_sparse_moe.router.layer", "ffn_gate_inp"),
    ("block_sparse_moe.router", "ffn_gate_inp"),
    ("mlp.gate_up_proj", "ffn_up"),
    ("feed_forward.router", "ffn_gate_inp"),
    ("feed_forward.shared_expert.gate_proj", "ffn_gate_shexp"),
    ("feed_forward.shared_expert.up_proj", "ffn_up_shexp"),
    ("feed_forward.shared_expert.down_proj", "ffn_down_shexp"),
    ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
    ("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_expert.up_proj", "ffn_up_shexp"),
    ("mlp.shared_expert.down_proj", "ffn_down_shexp"),
    ("mlp.shared_experts.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_experts.up_proj", "ffn_up_shexp"),
    ("mlp.shared_experts.down_proj", "ffn_down_shexp"),
    ("mlp.shared_mlp.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_mlp.up_proj", "ffn_up_shexp"),
    ("mlp.shared_mlp.down_proj", "ffn_down_shexp"),
    ("shared_mlp.output_linear", "ffn_down_shexp"),
    ("self_attn.gate_proj", "attn_gate"),
    ("pre_mlp_layernorm", "ffn_norm"),
    ("post_mlp_layernorm", "post_ffw_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("per_layer_input_gate", "inp_gate"),
    ("per_layer_projection", "proj"),
    ("post_per_layer_input_norm", "post_norm"),
    ("linear_attn.in_proj_qkv", "attn_qkv"),
    ("linear_attn.in_proj_z", "attn_gate"),
    ("linear_attn.in_proj_b", "ssm_beta"),
    ("linear_attn.in_proj_a", "ssm_alpha"),
    ("linear_attn.in_proj_ba", "ssm_ba"),
    ("linear_attn.conv1d", "ssm_conv1d"),
    ("linear_attn.norm", "ssm_norm"),
    ("linear_attn.out_proj", "ssm_out"),
    ("conv.in_proj", "shortconv.in_proj"),
    ("conv.conv", "shortconv.conv"),
    ("conv.out_proj", "shortconv.out_proj"),
];

/// Architectures whose queries and keys are permuted.
const PERMUTED: &[&str] = &[
    "llama",
    "mistral3",
    "granite",
    "granitemoe",
    "granite_swa",
    "granitehybrid",
    "nemotron_h",
    "nemotron_h_moe",
];

/// Those whose second norm of two is called by what it is before.
const TWO_NORMS: &[&str] = &[
    "llama",
    "mistral3",
    "phimoe",
    "olmoe",
    "ernie4_5-moe",
    "dots1",
    "minimax-m2",
    "exaone-moe",
    "hy_v3",
    "mellum",
    "granite",
    "granitemoe",
    "granitehybrid",
    "granite_swa",
    "chatglm",
    "qwen3vlmoe",
    "hunyuan-moe",
    "llama4",
];

/// Values of `[outer, a, b, inner]` as `[outer, b, a, inner]`.
fn swapped(values: &[f32], [a, b, inner]: [usize; 3]) -> Vec<f32> {
    let mut out = Vec::with_capacity(values.len());
    for block in values.chunks_exact(a * b * inner) {
        for second in 0..b {
            for first in 0..a {
                let at = (first * b + second) * inner;
                out.extend_from_slice(&block[at..at + inner]);
            }
        }
    }
    out
}

/// A checkpoint as a GGUF file of an architecture, in F32.
pub(super) fn convert(checkpoint: &Checkpoint, architecture: &'static str) -> GgufBuilder {
    let mut gguf = keys(checkpoint, architecture);
    let mut converter = Converter {
        checkpoint,
        architecture,
        gguf: &mut gguf,
        numbers: BTreeMap::new(),
    };
    for (name, tensor) in &checkpoint.tensors {
        converter.add(name, tensor.clone());
    }
    for (name, numbers) in std::mem::take(&mut converter.numbers) {
        gguf.set(&format!("xielu.{name}"), Value::F32s(numbers));
    }
    gguf
}

pub(super) struct Converter<'a> {
    pub(super) checkpoint: &'a Checkpoint,
    pub(super) architecture: &'static str,
    gguf: &'a mut GgufBuilder,
    /// Of xIELU: of each layer, by name.
    numbers: BTreeMap<String, Vec<f32>>,
}

impl Converter<'_> {
    fn is(&self, architectures: &[&str]) -> bool {
        architectures.contains(&self.architecture)
    }

    pub(super) fn put(&mut self, name: &str, shape: &[usize], values: &[f32]) {
        self.gguf.f32_tensor(name, shape, values);
    }

    fn add(&mut self, name: &str, tensor: Tensor) {
        let Tensor {
            mut shape,
            mut values,
        } = tensor;
        let counts_from_one = self.is(&["qwen3next", "qwen35", "qwen35moe"]);
        let is_of_delta = name.ends_with("linear_attn.norm.weight");
        if counts_from_one && name.ends_with("norm.weight") && !is_of_delta {
            values.iter_mut().for_each(|value| *value += 1.0);
        }
        let mut prefixes = ["model.layers.", "backbone.layers."].into_iter();
        let Some(rest) = prefixes.find_map(|prefix| name.strip_prefix(prefix)) else {
            let name = match name {
                "model.embed_tokens.weight" | "backbone.embeddings.weight" => "token_embd.weight",
                "model.norm.weight" | "model.final_layernorm.weight" | "backbone.norm_f.weight" => {
                    "output_norm.weight"
                }
                "model.norm.bias" => "output_norm.bias",
                "model.embedding_norm.weight" => "token_embd_norm.weight",
                "lm_head.weight" => "output.weight",
                "model.embed_tokens_per_layer.weight" => "per_layer_token_embd.weight",
                "model.per_layer_model_projection.weight" => "per_layer_model_proj.weight",
                "model.per_layer_projection_norm.weight" => "per_layer_proj_norm.weight",
                other => panic!("{other}"),
            };
            return self.put(name, &shape, &values);
        };
        let (layer, part) = rest.split_once('.').expect("a layer");
        let block = format!("blk.{layer}");
        let is_stacked = part.starts_with("block_sparse_moe.experts.") && self.is(&["granite_swa"]);
        if part.contains("experts.") && !part.contains("shared_experts.") && !is_stacked {
            return self.add_experts(&block, part, &shape, &values);
        }
        if part.contains("linear_attn") {
            self.reorder(part, &mut shape, &mut values);
        }
        if self.is(PERMUTED) {
            for (projection, heads) in [
                ("q_proj", "num_attention_heads"),
                ("k_proj", "num_key_value_heads"),
            ] {
                if part.contains(projection) {
                    let half = shape[0] / self.checkpoint.size(heads) / 2;
                    let columns = shape.get(1).copied().unwrap_or(1);
                    values = swapped(&values, [2, half, columns]);
                }
            }
        }
        if hybrids::add(self, &block, part, &shape, &values) {
            return;
        }
        if let Some(number) = part.strip_prefix("mlp.act_fn.") {
            self.numbers
                .entry(number.to_owned())
                .or_default()
                .extend(values);
            return;
        }
        match part {
            "self_attn.sinks" => self.put(&format!("{block}.attn_sinks.weight"), &shape, &values),
            "layer_scalar" => {
                self.put(
                    &format!("{block}.layer_output_scale.weight"),
                    &shape,
                    &values,
                );
            }
            // What the parameter is called decides whether it is a bias.
            _ if part.ends_with("e_score_correction_bias") || part.ends_with("expert_bias") => {
                let name = match self.is(&["hy_v3"]) {
                    true => format!("{block}.exp_probs_b"),
                    false => format!("{block}.exp_probs_b.bias"),
                };
                self.put(&name, &shape, &values);
            }
            "block_sparse_moe.input_linear.weight" | "block_sparse_moe.experts.gate_up_proj" => {
                let (experts, rows, width) = (shape[0], shape[1] / 2, shape[2]);
                for (at, which) in ["gate", "up"].into_iter().enumerate() {
                    let parts = values.chunks_exact(rows * width).skip(at).step_by(2);
                    let part: Vec<f32> = parts.flatten().copied().collect();
                    let name = format!("{block}.ffn_{which}_exps.weight");
                    self.put(&name, &[experts, rows, width], &part);
                }
            }
            "block_sparse_moe.output_linear.weight" | "block_sparse_moe.experts.down_proj" => {
                self.put(&format!("{block}.ffn_down_exps.weight"), &shape, &values);
            }
            "shared_mlp.input_linear.weight" if self.is(&["granite_swa"]) => {
                self.put(&format!("{block}.ffn_up_shexp.weight"), &shape, &values);
            }
            "shared_mlp.input_linear.weight" => {
                let halves = values.chunks_exact(values.len() / 2);
                for (which, half) in ["gate", "up"].into_iter().zip(halves) {
                    let name = format!("{block}.ffn_{which}_shexp.weight");
                    self.put(&name, &[shape[0] / 2, shape[1]], half);
                }
            }
            "linear_attn.A_log" => {
                let decays: Vec<f32> = values.iter().map(|value| -value.exp()).collect();
                self.put(&format!("{block}.ssm_a"), &shape, &decays);
            }
            "linear_attn.dt_bias" => self.put(&format!("{block}.ssm_dt.bias"), &shape, &values),
            "linear_attn.in_proj_qkvz.weight" => self.add_qkvz(&block, shape[1], &values),
            _ => {
                let (stem, kind) = part.rsplit_once('.').expect("weight or bias");
                let known = NAMES.iter().find(|(hf, _)| *hf == stem);
                let post = match self.is(TWO_NORMS) {
                    true => "ffn_norm",
                    false => "post_attention_norm",
                };
                let name = match stem {
                    "post_attention_layernorm" => post,
                    _ => known.unwrap_or_else(|| panic!("{part}")).1,
                };
                shape.retain(|size| *size != 1 || !stem.contains("conv"));
                self.put(&format!("{block}.{name}.{kind}"), &shape, &values);
            }
        }
    }

    /// Qwen3.5's value heads, which lie by key head, as lists of one for each key head.
    fn reorder(&self, part: &str, shape: &mut [usize], values: &mut Vec<f32>) {
        if !self.is(&["qwen35", "qwen35moe"]) {
            return;
        }
        let k_heads = self.checkpoint.size("linear_num_key_heads");
        let share = self.checkpoint.size("linear_num_value_heads") / k_heads;
        let k_width = k_heads * self.checkpoint.size("linear_key_head_dim");
        let v_dim = self.checkpoint.size("linear_value_head_dim");
        let width: usize = shape[1..].iter().product();
        let part = part.trim_start_matches("linear_attn.");
        let (before, inner) = match part.trim_end_matches(".weight") {
            "in_proj_qkv" | "conv1d" => (2 * k_width * width, v_dim * width),
            "in_proj_z" => (0, v_dim * width),
            "in_proj_a" | "in_proj_b" | "A_log" | "dt_bias" => (0, width),
            "out_proj" => (0, v_dim),
            _ => return,
        };
        let moved = swapped(&values[before..], [k_heads, share, inner]);
        values.truncate(before);
        values.extend(moved);
    }

    /// For each key head its rows of queries, keys, values and z.
    fn add_qkvz(&mut self, block: &str, width: usize, values: &[f32]) {
        let k_heads = self.checkpoint.size("linear_num_key_heads");
        let share = self.checkpoint.size("linear_num_value_heads") / k_heads;
        let k_dim = self.checkpoint.size("linear_key_head_dim");
        let of_values = share * self.checkpoint.size("linear_value_head_dim");
        let sizes = [k_dim, k_dim, of_values, of_values];
        let mut parts: [Vec<f32>; 4] = Default::default();
        let mut rest = values;
        for _ in 0..k_heads {
            for (part, rows) in parts.iter_mut().zip(sizes) {
                let head;
                (head, rest) = rest.split_at(rows * width);
                part.extend_from_slice(head);
            }
        }
        let [q, k, v, z] = parts;
        let qkv = [q, k, v].concat();
        let rows = qkv.len() / width;
        self.put(&format!("{block}.attn_qkv.weight"), &[rows, width], &qkv);
        let rows = z.len() / width;
        self.put(&format!("{block}.attn_gate.weight"), &[rows, width], &z);
    }

    fn add_experts(&mut self, block: &str, part: &str, shape: &[usize], values: &[f32]) {
        let (_, of_experts) = part.split_once("experts.").expect("experts");
        let each = match of_experts.split_once('.') {
            // The first one stands for all.
            Some(("0", which)) => which,
            Some(_) => return,
            None => return self.add_columns(block, of_experts, shape, values),
        };
        let which = match each {
            "gate_proj.weight" | "w1.weight" => "gate",
            "up_proj.weight" | "w3.weight" => "up",
            "down_proj.weight" | "w2.weight" => "down",
            other => panic!("{other}"),
        };
        let layer = block.trim_start_matches("blk.");
        let layers = match self.architecture {
            "nemotron_h_moe" => "backbone.layers",
            _ => "model.layers",
        };
        let prefix = format!(
            "{layers}.{layer}.{}",
            part.trim_end_matches(&format!("0.{each}"))
        );
        let mut all = Vec::new();
        let mut experts = 0;
        while let Some(tensor) = self
            .checkpoint
            .tensors
            .get(&format!("{prefix}{experts}.{each}"))
        {
            all.extend_from_slice(&tensor.values);
            experts += 1;
        }
        let name = format!("{block}.ffn_{which}_exps.weight");
        self.put(&name, &[experts, shape[0], shape[1]], &all);
    }

    /// gpt-oss: `[experts, inputs, outputs]`, in which gate and up take turns; in Llama 4 one is
    /// behind the other.
    fn add_columns(&mut self, block: &str, part: &str, shape: &[usize], values: &[f32]) {
        let is_bias = part.ends_with("_bias");
        let (experts, outputs) = (shape[0], shape[shape.len() - 1]);
        let rows = match is_bias {
            true => values.to_vec(),
            false => swapped(values, [shape[1], outputs, 1]),
        };
        let has_turns = !self.is(&["llama4"]);
        let inputs = if is_bias { 1 } else { shape[1] };
        let kind = if is_bias { "bias" } else { "weight" };
        let mut put = |which: &str, outputs: usize, values: &[f32]| {
            let shape = match is_bias {
                true => vec![experts, outputs],
                false => vec![experts, outputs, inputs],
            };
            let name = format!("{block}.ffn_{which}_exps.{kind}");
            self.put(&name, &shape, values);
        };
        if part.starts_with("down_proj") {
            return put("down", outputs, &rows);
        }
        let together = if has_turns {
            inputs
        } else {
            outputs / 2 * inputs
        };
        let in_turn = |first: usize| -> Vec<f32> {
            let rows = rows.chunks_exact(together).skip(first).step_by(2);
            rows.flatten().copied().collect()
        };
        put("gate", outputs / 2, &in_turn(0));
        put("up", outputs / 2, &in_turn(1));
    }
}

/// The metadata, and a tokenizer of three tokens.
fn keys(checkpoint: &Checkpoint, architecture: &str) -> GgufBuilder {
    let config = &checkpoint.config;
    let mut gguf = GgufBuilder::default();
    let key = |name: &str| format!("{architecture}.{name}");
    gguf.text("general.architecture", architecture)
        .text("general.type", "model")
        .text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", "default")
        .set("tokenizer.ggml.tokens", texts(&["a", "b", "c"]));
    for (hf, name) in [
        ("num_hidden_layers", "block_count"),
        ("max_position_embeddings", "context_length"),
        ("hidden_size", "embedding_length"),
        ("intermediate_size", "feed_forward_length"),
        ("num_attention_heads", "attention.head_count"),
        ("num_key_value_heads", "attention.head_count_kv"),
        ("num_local_experts", "expert_count"),
        ("num_experts", "expert_count"),
        ("n_routed_experts", "expert_count"),
        ("moe_num_experts", "expert_count"),
        ("num_experts_per_tok", "expert_used_count"),
        ("moe_k", "expert_used_count"),
        ("n_group", "expert_group_count"),
        ("topk_group", "expert_group_used_count"),
        ("head_dim", "attention.key_length"),
        ("head_dim", "attention.value_length"),
        ("moe_intermediate_size", "expert_feed_forward_length"),
        (
            "shared_expert_intermediate_size",
            "expert_shared_feed_forward_length",
        ),
        ("linear_conv_kernel_dim", "ssm.conv_kernel"),
        ("linear_key_head_dim", "ssm.state_size"),
        ("linear_num_key_heads", "ssm.group_count"),
        ("linear_num_value_heads", "ssm.time_step_rank"),
        ("conv_L_cache", "shortconv.l_cache"),
        ("moe_topk", "expert_used_count"),
        ("num_experts", "expert_count"),
    ] {
        if let Some(value) = config[hf].as_u64() {
            gguf.u32(&key(name), value as u32);
        }
    }
    for (hf, name) in [
        ("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
        ("norm_eps", "attention.layer_norm_rms_epsilon"),
        ("layer_norm_eps", "attention.layer_norm_epsilon"),
        ("logit_scale", "logit_scale"),
    ] {
        if let Some(number) = config[hf].as_f64() {
            gguf.f32(&key(name), number as f32);
        }
    }
    let rope = &config["rope_parameters"];
    put_rope(
        &mut gguf,
        architecture,
        rope.get("full_attention").unwrap_or(rope),
    );
    if let Some(base) = rope["sliding_attention"]["rope_theta"].as_f64() {
        gguf.f32(&key("rope.freq_base_swa"), base as f32);
    }
    let kinds = config["layer_types"].as_array().into_iter().flatten();
    let kinds: Vec<&str> = kinds.filter_map(Json::as_str).collect();
    match architecture {
        "llama" | "mistral3" => {
            gguf.u32(&key("vocab_size"), checkpoint.size("vocab_size") as u32);
            let head_dim = checkpoint.size("head_dim") as u32;
            gguf.u32(&key("rope.dimension_count"), head_dim);
        }
        "lfm2" => {
            let heads = checkpoint.size("num_key_value_heads") as i32;
            let of_kind = |kind: &&str| if *kind == "conv" { 0 } else { heads };
            let heads = Value::I32s(kinds.iter().map(of_kind).collect());
            // 2/3 of what the configuration has, in whole multiples.
            let multiple = checkpoint.size("block_multiple_of");
            let rows = checkpoint.size("intermediate_size") * 2 / 3;
            let rows = rows.next_multiple_of(multiple) as u32;
            gguf.set(&key("attention.head_count_kv"), heads)
                .u32(&key("vocab_size"), checkpoint.size("vocab_size") as u32)
                .u32(&key("feed_forward_length"), rows);
        }
        "gpt-oss" => {
            let width = checkpoint.size("intermediate_size") as u32;
            let window = checkpoint.size("sliding_window") as u32;
            gguf.u32(&key("expert_feed_forward_length"), width)
                .u32(&key("attention.sliding_window"), window);
        }
        "olmo2" | "exaone4" | "exaone-moe" | "mellum" | "cohere2moe" => {
            put_windows(&mut gguf, checkpoint, architecture, &kinds);
        }
        "gemma4" => {
            put_windows(&mut gguf, checkpoint, architecture, &kinds);
            put_gemma4(&mut gguf, checkpoint, &kinds);
        }
        "granite_swa" => {
            put_windows(&mut gguf, checkpoint, architecture, &kinds);
            put_granite(&mut gguf, checkpoint, architecture);
            let bases = config["layer_rope_theta"].as_array().expect("a list");
            let has_rope = bases
                .iter()
                .map(|base| i32::from(base.as_f64() != Some(0.0)));
            let pattern = Value::I32s(has_rope.collect());
            gguf.set(&key("attention.rope_pattern"), pattern);
        }
        "chatglm" => {
            let part = config["partial_rotary_factor"].as_f64().expect("a number");
            let rotary_dim = checkpoint.size("head_dim") as f64 * part;
            gguf.u32(&key("rope.dimension_count"), rotary_dim as u32)
                .remove(&key("attention.key_length"))
                .remove(&key("attention.value_length"));
        }
        "llama4" => {
            for (hf, name) in [
                ("vocab_size", "vocab_size"),
                ("head_dim", "rope.dimension_count"),
                ("intermediate_size_mlp", "feed_forward_length"),
                ("intermediate_size", "expert_feed_forward_length"),
                ("interleave_moe_layer_step", "interleave_moe_layer_step"),
            ] {
                gguf.u32(&key(name), checkpoint.size(hf) as u32);
            }
        }
        "lfm2moe" => {
            let heads = checkpoint.size("num_key_value_heads") as i32;
            let of_kind = |kind: &&str| if *kind == "conv" { 0 } else { heads };
            let heads = Value::I32s(kinds.iter().map(of_kind).collect());
            gguf.set(&key("attention.head_count_kv"), heads);
        }
        "afmoe" => {
            let window = checkpoint.size("sliding_window") as u32;
            gguf.u32(&key("attention.sliding_window"), window);
        }
        "granitemoe" => put_granite(&mut gguf, checkpoint, architecture),
        "granite" | "granitehybrid" | "nemotron_h" | "nemotron_h_moe" => {
            hybrids::put_keys(&mut gguf, checkpoint, architecture, &kinds);
        }
        "qwen3next" | "qwen35" | "qwen35moe" => {
            let v_width = checkpoint.size("linear_value_head_dim")
                * checkpoint.size("linear_num_value_heads");
            let part = config["partial_rotary_factor"].as_f64().expect("a number");
            let rotary_dim = checkpoint.size("head_dim") as f64 * part;
            gguf.u32(&key("ssm.inner_size"), v_width as u32)
                .u32(&key("full_attention_interval"), 4)
                .u32(&key("rope.dimension_count"), rotary_dim as u32);
            if architecture != "qwen3next" {
                let sections = Value::I32s(vec![11, 11, 10, 0]);
                gguf.set(&key("rope.dimension_sections"), sections);
            }
        }
        _ => {}
    }
    put_experts(&mut gguf, checkpoint, architecture);
    gguf
}

/// A window, and which layers have it.
fn put_windows(
    gguf: &mut GgufBuilder,
    checkpoint: &Checkpoint,
    architecture: &str,
    kinds: &[&str],
) {
    let key = |name: &str| format!("{architecture}.attention.{name}");
    let sliding = kinds
        .iter()
        .map(|kind| u8::from(*kind == "sliding_attention"));
    let sliding: Vec<u8> = sliding.collect();
    let mut pattern = 7u32.to_le_bytes().to_vec();
    pattern.extend((sliding.len() as u64).to_le_bytes());
    pattern.extend(sliding);
    let window = checkpoint.size("sliding_window") as u32;
    gguf.u32(&key("sliding_window"), window)
        .set(&key("sliding_window_pattern"), Value::Raw(9, pattern));
}

/// Multipliers. Heads are as wide as the model divided by them, and experts as dense MLPs.
pub(super) fn put_granite(gguf: &mut GgufBuilder, checkpoint: &Checkpoint, architecture: &str) {
    let key = |name: &str| format!("{architecture}.{name}");
    gguf.remove(&key("attention.key_length"))
        .remove(&key("attention.value_length"))
        .remove(&key("expert_feed_forward_length"));
    for (hf, name) in [
        ("attention_multiplier", "attention.scale"),
        ("embedding_multiplier", "embedding_scale"),
        ("residual_multiplier", "residual_scale"),
        ("logits_scaling", "logit_scale"),
    ] {
        // Bamba has none.
        if let Some(number) = checkpoint.config[hf].as_f64() {
            gguf.f32(&key(name), number as f32);
        }
    }
}

/// What converters of some architectures write about experts.
fn put_experts(gguf: &mut GgufBuilder, checkpoint: &Checkpoint, architecture: &str) {
    let config = &checkpoint.config;
    let key = |name: &str| format!("{architecture}.{name}");
    let sizes: &[(&str, &str)] = match architecture {
        "exaone-moe" => &[
            ("first_k_dense_replace", "leading_dense_block_count"),
            ("num_shared_experts", "expert_shared_count"),
        ],
        "ernie4_5-moe" => &[
            ("moe_layer_interval", "interleave_moe_layer_step"),
            ("moe_layer_start_index", "leading_dense_block_count"),
            ("moe_num_shared_experts", "expert_shared_count"),
        ],
        "lfm2moe" => &[("num_dense_layers", "leading_dense_block_count")],
        "dots1" | "glm4moe" => &[
            ("first_k_dense_replace", "leading_dense_block_count"),
            ("n_shared_experts", "expert_shared_count"),
        ],
        "afmoe" => &[
            ("num_dense_layers", "leading_dense_block_count"),
            ("num_shared_experts", "expert_shared_count"),
        ],
        "minimax-m2" => &[
            ("intermediate_size", "expert_feed_forward_length"),
            ("rotary_dim", "rope.dimension_count"),
        ],
        "cohere2moe" => &[
            ("intermediate_size", "expert_feed_forward_length"),
            ("first_k_dense_replace", "leading_dense_block_count"),
            ("head_dim", "rope.dimension_count"),
        ],
        "granite" | "granitemoe" | "granite_swa" | "granitehybrid" => &[(
            "shared_intermediate_size",
            "expert_shared_feed_forward_length",
        )],
        "nemotron_h_moe" => &[
            ("n_shared_experts", "expert_shared_count"),
            (
                "moe_shared_expert_intermediate_size",
                "expert_shared_feed_forward_length",
            ),
        ],
        _ => &[],
    };
    for (hf, name) in sizes {
        if let Some(size) = config[*hf].as_u64() {
            gguf.u32(&key(name), size as u32);
        }
    }
    let each = || checkpoint.size("moe_intermediate_size");
    let width = match architecture {
        "exaone-moe" | "hy_v3" => each() * checkpoint.size("num_shared_experts"),
        // Which comes to the same in published models.
        "ernie4_5-moe" => {
            checkpoint.size("intermediate_size") / checkpoint.size("num_key_value_heads")
        }
        _ => 0,
    };
    if width > 0 {
        gguf.u32(&key("expert_shared_feed_forward_length"), width as u32);
    }
    let (norm, scale) = match architecture {
        "exaone-moe" | "dots1" | "glm4moe" | "nemotron_h_moe" => {
            ("norm_topk_prob", "routed_scaling_factor")
        }
        "cohere2moe" => ("norm_topk_prob", "none"),
        "afmoe" => ("route_norm", "route_scale"),
        "hy_v3" => ("route_norm", "router_scaling_factor"),
        _ => ("none", "none"),
    };
    if let Some(norm) = config[norm].as_bool() {
        gguf.set(&key("expert_weights_norm"), Value::Bool(norm));
    }
    if let Some(scale) = config[scale].as_f64() {
        gguf.f32(&key("expert_weights_scale"), scale as f32);
    }
    let sigmoids = [
        "lfm2moe",
        "dots1",
        "minimax-m2",
        "afmoe",
        "hy_v3",
        "glm4moe",
        "cohere2moe",
    ];
    if sigmoids.contains(&architecture) {
        gguf.u32(&key("expert_gating_func"), 2);
    }
}

/// Two widths of heads, and frequencies that leave pairs where they are.
fn put_gemma4(gguf: &mut GgufBuilder, checkpoint: &Checkpoint, kinds: &[&str]) {
    let config = &checkpoint.config;
    let key = |name: &str| format!("gemma4.{name}");
    let full = config["global_head_dim"].as_u64().unwrap_or(512) as usize;
    let of_full = &config["rope_parameters"]["full_attention"]["partial_rotary_factor"];
    let rotating = full as f64 / 2.0 * of_full.as_f64().expect("a number");
    let factor = |pair: usize| if pair < rotating as usize { 1.0 } else { 1e30 };
    let factors: Vec<f32> = (0..full / 2).map(factor).collect();
    gguf.f32_tensor("rope_freqs.weight", &[full / 2], &factors);
    for name in [
        "attention.key_length",
        "attention.value_length",
        "rope.dimension_count",
    ] {
        gguf.u32(&key(name), full as u32).u32(
            &key(&format!("{name}_swa")),
            checkpoint.size("head_dim") as u32,
        );
    }
    for (hf, name) in [
        ("num_kv_shared_layers", "attention.shared_kv_layers"),
        (
            "hidden_size_per_layer_input",
            "embedding_length_per_layer_input",
        ),
    ] {
        gguf.u32(&key(name), checkpoint.size(hf) as u32);
    }
    if let Some(cap) = config["final_logit_softcapping"].as_f64() {
        gguf.f32(&key("final_logit_softcapping"), cap as f32);
    }
    let first_shared = kinds.len() - checkpoint.size("num_kv_shared_layers");
    if config["use_double_wide_mlp"] == true {
        let rows = checkpoint.size("intermediate_size") as i32;
        let rows_of = |layer| if layer < first_shared { rows } else { 2 * rows };
        let list = (0..kinds.len()).map(rows_of).collect();
        gguf.set(&key("feed_forward_length"), Value::I32s(list));
    }
    if let Some(heads) = config["num_global_key_value_heads"].as_u64() {
        let of_sliding = checkpoint.size("num_key_value_heads") as i32;
        let heads_of = |kind: &&str| match *kind {
            "full_attention" => heads as i32,
            _ => of_sliding,
        };
        let list = kinds.iter().map(heads_of).collect();
        gguf.set(&key("attention.head_count_kv"), Value::I32s(list));
    }
}

fn put_rope(gguf: &mut GgufBuilder, architecture: &str, rope: &Json) {
    let key = |name: &str| format!("{architecture}.rope.{name}");
    let number = |name: &str| rope[name].as_f64().map(|number| number as f32);
    if let Some(base) = number("rope_theta") {
        gguf.f32(&key("freq_base"), base);
    }
    if rope["rope_type"] != "yarn" {
        return;
    }
    gguf.text(&key("scaling.type"), "yarn");
    for (hf, name) in [
        ("factor", "factor"),
        ("attention_factor", "yarn_attn_factor"),
        ("beta_fast", "yarn_beta_fast"),
        ("beta_slow", "yarn_beta_slow"),
        ("mscale_all_dim", "yarn_log_multiplier"),
    ] {
        if let Some(number) = number(hf) {
            gguf.f32(&key(&format!("scaling.{name}")), number);
        }
    }
    let original = number("original_max_position_embeddings").expect("positions");
    gguf.u32(&key("scaling.original_context_length"), original as u32);
}
