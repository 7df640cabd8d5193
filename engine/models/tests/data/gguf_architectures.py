#!/usr/bin/env python3
"""Tiny GGUF files of architectures, by an independent writer (PyPI `gguf`, numpy).

    python3 -m venv V && V/bin/pip install gguf==0.19.0
    V/bin/python gguf_architectures.py ../../../../tests/fuzz/corpus/gguf

Keys, names and shapes are those that llama.cpp's converters write. Matrices are random f16, what
converters keep in f32 is f32. The files are read by tests/model/converted, and are seeds of the
fuzz target `gguf`.
"""

import pathlib
import sys

import gguf
import numpy as np

HIDDEN, VOCAB, HEADS, KV_HEADS, HEAD_DIM, ROWS = 16, 16, 2, 1, 8, 16
EXPERTS, EXPERT_ROWS = 2, 8
QUERIES, KEYS = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
# Heads of keys and of values, channels of each, and taps of the delta rule.
K_HEADS, V_HEADS, K_DIM, V_DIM, TAPS = 2, 4, 2, 2, 2
# Of Mamba-2: heads, channels of each, groups of heads, and channels of a state.
M_HEADS, M_DIM, M_GROUPS, M_STATE = 4, 8, 2, 4

rng = np.random.default_rng(20251127)


class File:
    """A file in the making: the keys that all architectures have, and tensors."""

    def __init__(
        self,
        folder,
        architecture,
        name,
        layers,
        head_dim=HEAD_DIM,
        feed_forward=ROWS,
        context=64,
    ):
        writer = gguf.GGUFWriter(folder / f"of-{name}", architecture)
        writer.add_type("model")
        writer.add_block_count(layers)
        writer.add_context_length(context)
        writer.add_embedding_length(HIDDEN)
        writer.add_feed_forward_length(feed_forward)
        writer.add_head_count(HEADS)
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_rope_freq_base(10_000.0)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(["a", "b", "<|im_end|>"])
        writer.add_token_types([1, 1, 3])
        self.writer = writer
        self.add("token_embd.weight", VOCAB, HIDDEN)

    def add(self, name, *shape, f32=False):
        values = rng.standard_normal(shape).astype(np.float32) / 4
        is_matrix = len(shape) > 1 and not f32
        self.writer.add_tensor(name, values.astype(np.float16) if is_matrix else values)

    def attention(self, block, gated=False, biases=False, norm=None):
        sizes = {"q": QUERIES * (2 if gated else 1), "k": KEYS, "v": KEYS}
        for part, rows in sizes.items():
            self.add(f"{block}.attn_{part}.weight", rows, HIDDEN)
            if biases:
                self.add(f"{block}.attn_{part}.bias", rows)
        self.add(f"{block}.attn_output.weight", HIDDEN, QUERIES)
        if biases:
            self.add(f"{block}.attn_output.bias", HIDDEN)
        if norm == "head":
            self.add(f"{block}.attn_q_norm.weight", HEAD_DIM)
            self.add(f"{block}.attn_k_norm.weight", HEAD_DIM)
        elif norm == "whole":
            self.add(f"{block}.attn_q_norm.weight", QUERIES)
            self.add(f"{block}.attn_k_norm.weight", KEYS)

    def delta_rule(self, block, is_next):
        values = V_HEADS * V_DIM
        channels = 2 * K_HEADS * K_DIM + values
        self.add(f"{block}.attn_qkv.weight", channels, HIDDEN)
        self.add(f"{block}.attn_gate.weight", values, HIDDEN)
        if is_next:
            self.add(f"{block}.ssm_ba.weight", 2 * V_HEADS, HIDDEN)
        else:
            self.add(f"{block}.ssm_beta.weight", V_HEADS, HIDDEN)
            self.add(f"{block}.ssm_alpha.weight", V_HEADS, HIDDEN)
        self.add(f"{block}.ssm_conv1d.weight", channels, TAPS, f32=True)
        decays = -np.exp(rng.standard_normal(V_HEADS))
        self.writer.add_tensor(f"{block}.ssm_a", decays.astype(np.float32))
        self.add(f"{block}.ssm_dt.bias", V_HEADS)
        self.add(f"{block}.ssm_norm.weight", V_DIM)
        self.add(f"{block}.ssm_out.weight", HIDDEN, values)

    def mamba_2(self, block):
        width, states = M_HEADS * M_DIM, 2 * M_GROUPS * M_STATE
        self.add(f"{block}.ssm_in.weight", 2 * width + states + M_HEADS, HIDDEN)
        self.add(f"{block}.ssm_conv1d.weight", width + states, TAPS, f32=True)
        self.add(f"{block}.ssm_conv1d.bias", width + states)
        rates = -np.exp(rng.standard_normal((M_HEADS, 1)))
        self.writer.add_tensor(f"{block}.ssm_a", rates.astype(np.float32))
        self.add(f"{block}.ssm_d", M_HEADS, 1, f32=True)
        self.add(f"{block}.ssm_dt.bias", M_HEADS)
        self.add(f"{block}.ssm_norm.weight", M_GROUPS, width // M_GROUPS, f32=True)
        self.add(f"{block}.ssm_out.weight", HIDDEN, width)

    def mamba_2_keys(self):
        self.writer.add_ssm_conv_kernel(TAPS)
        self.writer.add_ssm_state_size(M_STATE)
        self.writer.add_ssm_group_count(M_GROUPS)
        self.writer.add_ssm_inner_size(M_HEADS * M_DIM)
        self.writer.add_ssm_time_step_rank(M_HEADS)
        self.writer.add_rope_dimension_count(HEAD_DIM)
        self.writer.add_rope_scaling_finetuned(False)
        self.writer.add_vocab_size(VOCAB)

    def convolution(self, block):
        self.add(f"{block}.shortconv.in_proj.weight", 3 * HIDDEN, HIDDEN)
        self.add(f"{block}.shortconv.conv.weight", HIDDEN, 3, f32=True)
        self.add(f"{block}.shortconv.out_proj.weight", HIDDEN, HIDDEN)

    def dense(self, block):
        self.add(f"{block}.ffn_gate.weight", ROWS, HIDDEN)
        self.add(f"{block}.ffn_up.weight", ROWS, HIDDEN)
        self.add(f"{block}.ffn_down.weight", HIDDEN, ROWS)

    def experts(self, block, biases=False, shared=False, shared_gate=True, gates=True):
        self.add(f"{block}.ffn_gate_inp.weight", EXPERTS, HIDDEN, f32=True)
        shapes = {
            "gate": (EXPERT_ROWS, HIDDEN),
            "up": (EXPERT_ROWS, HIDDEN),
            "down": (HIDDEN, EXPERT_ROWS),
        }
        if not gates:
            del shapes["gate"]
        for part, shape in shapes.items():
            self.add(f"{block}.ffn_{part}_exps.weight", EXPERTS, *shape)
            if biases:
                self.add(f"{block}.ffn_{part}_exps.bias", EXPERTS, shape[0], f32=True)
            if shared:
                self.add(f"{block}.ffn_{part}_shexp.weight", *shape)
        if biases:
            self.add(f"{block}.ffn_gate_inp.bias", EXPERTS)
        if shared and shared_gate:
            self.add(f"{block}.ffn_gate_inp_shexp.weight", HIDDEN)

    def norms(self, block, *names, bias=False):
        for name in names:
            self.add(f"{block}.{name}.weight", HIDDEN)
            if bias:
                self.add(f"{block}.{name}.bias", HIDDEN)

    def yarn(self):
        self.writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        self.writer.add_rope_scaling_factor(4.0)
        self.writer.add_rope_scaling_orig_ctx_len(16)
        self.writer.add_rope_scaling_yarn_beta_fast(32.0)
        self.writer.add_rope_scaling_yarn_beta_slow(1.0)

    def expert_keys(self, used=1):
        self.writer.add_expert_count(EXPERTS)
        self.writer.add_expert_used_count(used)

    def close(self, norm="output_norm", bias=False):
        self.add(f"{norm}.weight", HIDDEN)
        if bias:
            self.add(f"{norm}.bias", HIDDEN)
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()


def with_delta_rule(folder, architecture):
    is_next, has_experts = architecture == "qwen3next", architecture != "qwen35"
    file = File(folder, architecture, architecture, 2)
    writer = file.writer
    writer.add_head_count_kv(KV_HEADS)
    writer.add_ssm_conv_kernel(TAPS)
    writer.add_ssm_state_size(K_DIM)
    writer.add_ssm_group_count(K_HEADS)
    writer.add_ssm_time_step_rank(V_HEADS)
    writer.add_ssm_inner_size(V_HEADS * V_DIM)
    writer.add_full_attention_interval(2)
    writer.add_rope_dimension_count(4)
    if not is_next:
        writer.add_rope_dimension_sections([1, 1, 0, 0])
    if has_experts:
        file.expert_keys()
        writer.add_expert_feed_forward_length(EXPERT_ROWS)
        writer.add_expert_shared_feed_forward_length(EXPERT_ROWS)
    for layer in range(2):
        block = f"blk.{layer}"
        file.norms(block, "attn_norm", "post_attention_norm")
        if layer == 0:
            file.delta_rule(block, is_next)
        else:
            file.attention(block, gated=True, norm="head")
        if has_experts:
            file.experts(block, shared=True)
        else:
            file.dense(block)
    file.close()


def lfm2(folder):
    file = File(folder, "lfm2", "lfm2", 2)
    file.writer.add_head_count_kv([0, KV_HEADS])
    file.writer.add_shortconv_l_cache(3)
    file.writer.add_vocab_size(VOCAB)
    file.convolution("blk.0")
    file.attention("blk.1", norm="head")
    for layer in range(2):
        file.norms(f"blk.{layer}", "attn_norm", "ffn_norm")
        file.dense(f"blk.{layer}")
    file.close("token_embd_norm")


def gpt_oss(folder):
    file = File(folder, "gpt-oss", "gpt-oss", 2)
    file.writer.add_head_count_kv(KV_HEADS)
    file.writer.add_sliding_window(8)
    file.yarn()
    file.expert_keys()
    file.writer.add_expert_feed_forward_length(EXPERT_ROWS)
    for layer in range(2):
        block = f"blk.{layer}"
        file.norms(block, "attn_norm", "post_attention_norm")
        file.attention(block, biases=True)
        file.add(f"{block}.attn_sinks.weight", HEADS)
        file.experts(block, biases=True)
    file.close()


def phimoe(folder):
    file = File(folder, "phimoe", "phimoe", 1)
    file.writer.add_head_count_kv(KV_HEADS)
    file.writer.add_rope_dimension_count(HEAD_DIM)
    file.writer.add_sliding_window(0)
    file.expert_keys(2)
    file.norms("blk.0", "attn_norm", "ffn_norm", bias=True)
    file.attention("blk.0")
    file.experts("blk.0")
    file.close(bias=True)


def olmo3(folder):
    file = File(folder, "olmo2", "olmo3", 2)
    file.writer.add_head_count_kv(KV_HEADS)
    file.writer.add_sliding_window(8)
    file.writer.add_sliding_window_pattern([True, False])
    file.yarn()
    file.writer.add_rope_scaling_yarn_attn_factor(1.25)
    for layer in range(2):
        block = f"blk.{layer}"
        file.norms(block, "post_attention_norm", "post_ffw_norm")
        file.attention(block, norm="whole")
        file.dense(block)
    file.close()


def mistral3(folder):
    file = File(folder, "mistral3", "mistral3", 1)
    file.writer.add_head_count_kv(KV_HEADS)
    file.writer.add_rope_dimension_count(HEAD_DIM)
    file.writer.add_vocab_size(VOCAB)
    file.yarn()
    file.writer.add_rope_scaling_yarn_log_mul(1.0)
    file.norms("blk.0", "attn_norm", "ffn_norm")
    file.attention("blk.0")
    file.dense("blk.0")
    file.close()


def gemma4(folder):
    """Layers of both kinds, each of which has keys and values that a later one reads."""
    file = File(folder, "gemma4", "gemma4", 4, 2 * HEAD_DIM)
    writer = file.writer
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(2 * HEAD_DIM)
    writer.add_key_length_swa(HEAD_DIM)
    writer.add_value_length_swa(HEAD_DIM)
    writer.add_rope_dimension_count_swa(HEAD_DIM)
    writer.add_rope_freq_base_swa(10_000.0)
    writer.add_sliding_window(8)
    writer.add_sliding_window_pattern([True, False, True, False])
    writer.add_shared_kv_layers(2)
    writer.add_embedding_length_per_layer_input(4)
    writer.add_final_logit_softcapping(30.0)
    factors = np.array([1.0] * 2 + [1e30] * 6, dtype=np.float32)
    writer.add_tensor("rope_freqs.weight", factors)
    file.add("per_layer_token_embd.weight", VOCAB, 4 * 4)
    file.add("per_layer_model_proj.weight", 4 * 4, HIDDEN)
    file.add("per_layer_proj_norm.weight", 4)
    for layer in range(4):
        block = f"blk.{layer}"
        file.norms(block, "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
        width = HEAD_DIM * (1 + layer % 2)
        file.add(f"{block}.attn_q.weight", HEADS * width, HIDDEN)
        file.add(f"{block}.attn_k.weight", KV_HEADS * width, HIDDEN)
        file.add(f"{block}.attn_v.weight", KV_HEADS * width, HIDDEN)
        file.add(f"{block}.attn_output.weight", HIDDEN, HEADS * width)
        file.add(f"{block}.attn_q_norm.weight", width)
        file.add(f"{block}.attn_k_norm.weight", width)
        file.dense(block)
        file.add(f"{block}.inp_gate.weight", 4, HIDDEN)
        file.add(f"{block}.proj.weight", HIDDEN, 4)
        file.norms(block, "post_norm")
        file.add(f"{block}.layer_output_scale.weight", 1)
    file.close()


def exaone_moe(folder):
    file = File(folder, "exaone-moe", "exaone-moe", 2)
    writer = file.writer
    writer.add_head_count_kv(KV_HEADS)
    writer.add_sliding_window(8)
    writer.add_sliding_window_pattern([True, False])
    file.expert_keys()
    writer.add_expert_feed_forward_length(EXPERT_ROWS)
    writer.add_expert_shared_count(1)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_expert_weights_norm(True)
    writer.add_expert_weights_scale(2.5)
    writer.add_expert_group_count(1)
    writer.add_expert_group_used_count(1)
    writer.add_leading_dense_block_count(1)
    for layer in range(2):
        block = f"blk.{layer}"
        file.norms(block, "attn_norm", "ffn_norm")
        file.attention(block, norm="head")
    file.dense("blk.0")
    file.experts("blk.1", shared=True, shared_gate=False)
    file.add("blk.1.exp_probs_b.bias", EXPERTS)
    file.close()


def granite_hybrid(folder):
    file = File(folder, "granitehybrid", "granitehybrid", 2)
    writer = file.writer
    writer.add_head_count_kv([0, KV_HEADS])
    file.mamba_2_keys()
    file.expert_keys()
    writer.add_expert_shared_feed_forward_length(EXPERT_ROWS)
    writer.add_attention_scale(0.25)
    writer.add_embedding_scale(12.0)
    writer.add_residual_scale(0.5)
    writer.add_logit_scale(8.0)
    file.mamba_2("blk.0")
    file.attention("blk.1")
    for layer in range(2):
        block = f"blk.{layer}"
        file.norms(block, "attn_norm", "ffn_norm")
        file.experts(block, shared=True, shared_gate=False)
    file.close()


def nemotron_h(folder, architecture):
    has_experts = architecture == "nemotron_h_moe"
    rows = EXPERT_ROWS if has_experts else ROWS
    file = File(folder, architecture, architecture, 3, feed_forward=[0, rows, 0])
    writer = file.writer
    writer.add_head_count_kv([0, 0, KV_HEADS])
    writer.add_layer_norm_eps(1e-5)
    file.mamba_2_keys()
    file.mamba_2("blk.0")
    if has_experts:
        file.expert_keys()
        writer.add_expert_feed_forward_length(EXPERT_ROWS)
        writer.add_expert_shared_feed_forward_length(EXPERT_ROWS)
        writer.add_expert_shared_count(1)
        writer.add_expert_weights_norm(True)
        writer.add_expert_weights_scale(2.5)
        writer.add_expert_group_count(1)
        writer.add_expert_group_used_count(1)
        file.experts("blk.1", shared=True, shared_gate=False, gates=False)
        file.add("blk.1.exp_probs_b.bias", EXPERTS)
    else:
        file.add("blk.1.ffn_up.weight", ROWS, HIDDEN)
        file.add("blk.1.ffn_down.weight", HIDDEN, ROWS)
    file.attention("blk.2")
    for layer in range(3):
        file.norms(f"blk.{layer}", "attn_norm")
    file.close()


def llama4(folder):
    """Chunks in three layers of four, experts in two, dense MLPs of another width between."""
    file = File(folder, "llama4", "llama4", 4, feed_forward=2 * ROWS, context=16384)
    writer = file.writer
    writer.add_head_count_kv(KV_HEADS)
    writer.add_vocab_size(VOCAB)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_interleave_moe_layer_step(2)
    writer.add_expert_feed_forward_length(EXPERT_ROWS)
    file.expert_keys()
    for layer in range(4):
        block = f"blk.{layer}"
        file.norms(block, "attn_norm", "ffn_norm")
        file.attention(block)
        if layer % 2 == 1:
            file.experts(block, shared=True, shared_gate=False)
            continue
        file.add(f"{block}.ffn_gate.weight", 2 * ROWS, HIDDEN)
        file.add(f"{block}.ffn_up.weight", 2 * ROWS, HIDDEN)
        file.add(f"{block}.ffn_down.weight", HIDDEN, 2 * ROWS)
    file.close()


def main():
    folder = pathlib.Path(sys.argv[1])
    for architecture in ("qwen3next", "qwen35", "qwen35moe"):
        with_delta_rule(folder, architecture)
    for write in (lfm2, gpt_oss, phimoe, olmo3, mistral3, gemma4, exaone_moe):
        write(folder)
    granite_hybrid(folder)
    for architecture in ("nemotron_h", "nemotron_h_moe"):
        nemotron_h(folder, architecture)
    llama4(folder)


if __name__ == "__main__":
    main()
