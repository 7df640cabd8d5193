"""What gemma3-270m.json has: Gemma 3 in float32 with numpy, from a GGUF file.

usage: gemma3_reference.py MODEL.gguf TEXTS.json OUT.json   (pip install numpy gguf)

TEXTS: a list of {"ids": token ids, "greedy": how many of them greedy tokens follow, or 0}.
"""

import json
import sys

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

# A layer of so many sees everything, and its RoPE has the base that the file names.
FULL_INTERVAL = 6
LOCAL_BASE = 1e4
GREEDY = 24


class Model:
    def __init__(self, path):
        reader = GGUFReader(path)
        self.tensors = {tensor.name: tensor for tensor in reader.tensors}

        def field(key):
            return reader.fields[f"gemma3.{key}"].contents()

        self.hidden = field("embedding_length")
        self.head_dim = field("attention.key_length")
        self.q_heads = field("attention.head_count")
        self.kv_heads = field("attention.head_count_kv")
        self.eps = field("attention.layer_norm_rms_epsilon")
        self.window = field("attention.sliding_window")
        self.base = field("rope.freq_base")
        self.embedding = self.weight("token_embd")
        self.final = self.weight("output_norm")
        parts = "attn_q attn_k attn_v attn_output attn_q_norm attn_k_norm attn_norm"
        parts += " post_attention_norm ffn_norm ffn_gate ffn_up ffn_down post_ffw_norm"
        self.layers = [
            {part: self.weight(f"blk.{layer}.{part}") for part in parts.split()}
            for layer in range(field("block_count"))
        ]
        # Rounded to bf16, as the published model has it.
        bits = np.array([np.sqrt(self.hidden)], dtype=np.float32).view(np.uint32)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        self.multiplier = bits.view(np.float32)[0]

    def weight(self, name):
        tensor = self.tensors[f"{name}.weight"]
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        return values.reshape(tuple(reversed(tensor.shape)))

    def norm(self, x, weight):
        # The file has 1 + w.
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + self.eps) * weight

    def rope(self, x, base):
        half = self.head_dim // 2
        frequencies = base ** (-np.arange(half, dtype=np.float64) * 2 / self.head_dim)
        angles = np.arange(x.shape[0])[:, None] * frequencies[None]
        cos = np.cos(angles).astype(np.float32)[:, None]
        sin = np.sin(angles).astype(np.float32)[:, None]
        first, second = x[..., :half], x[..., half:]
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)

    def attend(self, x, layer, part):
        is_full = layer % FULL_INTERVAL == FULL_INTERVAL - 1
        base = self.base if is_full else LOCAL_BASE
        n, at = len(x), np.arange(len(x))

        def heads(name, count):
            return (x @ part[name].T).reshape(n, count, self.head_dim)

        q = self.rope(self.norm(heads("attn_q", self.q_heads), part["attn_q_norm"]), base)
        k = self.rope(self.norm(heads("attn_k", self.kv_heads), part["attn_k_norm"]), base)
        v = heads("attn_v", self.kv_heads)
        seen = at[None] <= at[:, None]
        if not is_full:
            seen &= at[None] > at[:, None] - self.window
        out = np.empty((n, self.q_heads, self.head_dim), np.float32)
        for head in range(self.q_heads):
            group = head * self.kv_heads // self.q_heads
            scores = q[:, head] @ k[:, group].T / np.sqrt(np.float32(self.head_dim))
            scores = np.where(seen, scores, -np.inf)
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            out[:, head] = scores / scores.sum(-1, keepdims=True) @ v[:, group]
        return out.reshape(n, -1) @ part["attn_output"].T

    def logits(self, ids, last=None):
        x = self.embedding[ids] * self.multiplier
        for layer, part in enumerate(self.layers):
            attended = self.attend(self.norm(x, part["attn_norm"]), layer, part)
            x = x + self.norm(attended, part["post_attention_norm"])
            h = self.norm(x, part["ffn_norm"])
            gate = h @ part["ffn_gate"].T
            gate = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
            down = (gate * (h @ part["ffn_up"].T)) @ part["ffn_down"].T
            x = x + self.norm(down, part["post_ffw_norm"])
        x = self.norm(x if last is None else x[-last:], self.final)
        return (x @ self.embedding.T).astype(np.float64)


def main(model, texts, out):
    model = Model(model)
    results = []
    for text in json.load(open(texts)):
        ids = np.array(text["ids"])
        logits = model.logits(ids)
        most = logits.max(-1, keepdims=True)
        logprobs = logits - most - np.log(np.exp(logits - most).sum(-1, keepdims=True))
        of_text = [float(logprobs[at, ids[at + 1]]) for at in range(len(ids) - 1)]
        result = {
            "ids": text["ids"],
            "logprobs": [round(value, 5) for value in of_text],
            "perplexity": float(np.exp(-np.mean(of_text))),
        }
        if text["greedy"]:
            tokens, steps = list(text["ids"][: text["greedy"]]), []
            for _ in range(GREEDY):
                row = model.logits(np.array(tokens), 1)[0]
                best, second = np.argsort(row)[::-1][:2]
                steps.append([int(best), float(row[best] - row[second])])
                tokens.append(int(best))
            result |= {"greedy_from": text["greedy"], "greedy_and_margin": steps}
        print(len(ids), result["perplexity"], flush=True)
        results.append(result)
    json.dump(results, open(out, "w"))


if __name__ == "__main__":
    main(*sys.argv[1:4])
