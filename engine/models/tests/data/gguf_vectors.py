#!/usr/bin/env python3
"""Reference vectors for dequantisation, by an independent implementation (PyPI `gguf`, numpy).

    python3 -m venv V && V/bin/pip install gguf==0.19.0
    V/bin/python gguf_vectors.py > gguf_vectors.json

For each type: a few encoded blocks and what they decode to, rounded to bf16 (nearest, ties to
even), both as hexadecimal bytes. Types that the package can quantise are quantised from random
numbers; for the others the blocks are random bytes with finite scales.
"""

import json

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T

rng = np.random.default_rng(20240817)


def to_bf16_bytes(values):
    """f32 -> bf16, nearest, ties to even; finite input only."""
    assert np.isfinite(values).all()
    bits = np.ascontiguousarray(values, dtype="<f4").view("<u4").astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return rounded.astype("<u2").tobytes()


def halves(*values):
    return np.array(values, dtype="<f2").view(np.uint8)


def random_k_blocks(kind, count):
    _, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for block, scale in zip(blocks, [3e-3, -0.7, 6e-8, 90.0]):
        if kind in (T.Q3_K, T.Q6_K):
            block[-2:] = halves(scale)
        elif kind == T.Q2_K:
            block[-4:] = halves(scale, scale * 1.7)
        elif kind in (T.IQ4_NL, T.IQ4_XS):
            block[:2] = halves(scale)
        elif kind == T.MXFP4:
            pass
        else:
            block[:4] = halves(scale, scale * 1.7)
    if kind == T.MXFP4:
        # Exponents: subnormal powers, ordinary ones, and the largest whose values are finite in
        # bf16.
        blocks[:, 0] = [0, 1, 120, 251]
    return blocks


def blocks_of(kind):
    if kind in RANDOM:
        return random_k_blocks(kind, 4)
    values = rng.normal(0, 0.05, (4, 32)).astype(np.float32)
    values[1] *= 1e4  # large
    values[2] *= 1e-6  # scales become subnormal in fp16
    values[3] = 0.25  # constant
    if kind == T.F32:
        # Exact ties, to an even and to an odd neighbour, and values just beside them.
        ties = np.array(
            [
                0x3F808000,
                0x3F818000,
                0x3F808001,
                0x3F817FFF,
                0xBF818000,
                0x00000001,
                0x7F7F0000,
                0x80000000,
            ],
            dtype="<u4",
        ).view("<f4")
        values[0, :8] = ties
        return values.view(np.uint8)
    if kind == T.F16:
        values = values.astype("<f2")
        values[0, :4] = np.array([0x0001, 0x83FF, 0x7BFF, 0x8000], dtype="<u2").view("<f2")
        return values.view(np.uint8)
    return gguf.quants.quantize(values, kind)


# New types come last, so that the vectors of older ones stay.
RANDOM = (T.Q4_K, T.Q5_K, T.Q6_K, T.Q2_K, T.Q3_K, T.IQ4_NL, T.IQ4_XS, T.MXFP4)
cases = {}
for kind in (T.F32, T.F16, T.BF16, T.Q8_0, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, *RANDOM):
    data = blocks_of(kind)
    if kind == T.F32:
        decoded = data.view("<f4")
    elif kind == T.F16:
        decoded = data.view("<f2").astype(np.float32)
    else:
        decoded = gguf.quants.dequantize(data, kind)
    cases[kind.name] = {"encoded": data.tobytes().hex(), "bf16": to_bf16_bytes(decoded).hex()}
print(json.dumps({"source": "PyPI gguf, gguf_vectors.py", "cases": cases}, indent=1))
