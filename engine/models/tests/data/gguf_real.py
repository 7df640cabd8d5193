#!/usr/bin/env python3
"""What real GGUF models hold, by an independent implementation (PyPI `gguf` 0.19.0, numpy).

    gguf_real.py SmolLM2-135M-Instruct.Q4_1.gguf all > smollm2_tensors.json
    gguf_real.py qwen2.5-coder-1.5b-instruct-q4_k_m.gguf some > qwen2.5_tensors.json

For each tensor: name in the file, shape (slowest dimension first), first values, and the SHA-256
of the whole tensor in bf16 (nearest, ties to even, little-endian) in Hugging Face order. `all`
adds the SHA-256 of every tensor's hash in a row.
"""

import hashlib
import json
import sys

import gguf
import numpy as np

path, which = sys.argv[1:]
reader = gguf.GGUFReader(path)


def field(name):
    return reader.fields[name].contents()


arch = field("general.architecture")
heads = {
    "attn_q": field(f"{arch}.attention.head_count"),
    "attn_k": field(f"{arch}.attention.head_count_kv"),
}
SOME = [
    "token_embd.weight",
    "output_norm.weight",
    "blk.0.attn_q.weight",
    "blk.0.attn_k.weight",
    "blk.0.attn_k.bias",
    "blk.0.attn_v.weight",
    "blk.0.attn_norm.weight",
    "blk.3.attn_output.weight",
    "blk.3.ffn_gate.weight",
    "blk.7.ffn_down.weight",
    "blk.11.ffn_up.weight",
    "blk.27.attn_v.weight",
]


def bf16(values):
    bits = np.ascontiguousarray(values, dtype="<f4").view("<u4")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


tensors, every = [], hashlib.sha256()
for tensor in sorted(reader.tensors, key=lambda t: t.name):
    if which == "some" and tensor.name not in SOME:
        continue
    shape = [int(size) for size in reversed(tensor.shape)]
    values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(shape)
    part = tensor.name.split(".")[-2]
    if arch == "llama" and part in heads:
        # As transformers undoes the converter's permutation.
        values = (
            values.reshape(heads[part], shape[0] // heads[part] // 2, 2, *shape[1:])
            .swapaxes(1, 2)
            .reshape(shape)
        )
    words = bf16(values)
    sha = hashlib.sha256(words.tobytes()).hexdigest()
    every.update(sha.encode())
    if tensor.name in SOME:
        first = (words.ravel()[:4].astype("<u4") << 16).view("<f4")
        tensors.append(
            {"name": tensor.name, "shape": shape, "first": [float(v) for v in first], "sha256": sha}
        )
print(
    json.dumps(
        {
            "source": f"PyPI gguf, gguf_real.py {which}",
            "tensors": tensors,
            **(
                {"every": every.hexdigest(), "count": len(reader.tensors)} if which == "all" else {}
            ),
        },
        indent=1,
    )
)
