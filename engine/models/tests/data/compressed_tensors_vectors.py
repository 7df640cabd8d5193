#!/usr/bin/env python3
"""Reference vectors for quantised weights, packed by the library of their format.

    python3 -m venv V && V/bin/pip install compressed-tensors==0.20.0
    V/bin/python compressed_tensors_vectors.py > compressed_tensors_vectors.json

For each format: the settings of the weights, a layer's tensors as the library stores them (type of
safetensors, shape, hexadecimal bytes), and the weights that the library makes of them in f32,
rounded to bf16 (nearest, ties to even).
"""

import json

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize

ROWS, COLUMNS = 32, 32
torch.manual_seed(20261126)

DTYPES = {
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.int8: "I8",
    torch.uint8: "U8",
}


def hexadecimal(tensor):
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes().hex()


def stored(tensor):
    shape = list(tensor.shape)
    return {"dtype": DTYPES[tensor.dtype], "shape": shape, "data": hexadecimal(tensor)}


def groups(args):
    """Rows and columns that share a scale."""
    if args.strategy in ("group", "tensor_group"):
        return [1, args.group_size]
    if args.strategy == "channel":
        return [1, COLUMNS]
    return args.block_structure or [ROWS, COLUMNS]


def parameters(weight, args):
    """Scales that bf16 has exactly, and zeros, by the range of each group."""
    tile = groups(args)
    tiles = [ROWS // tile[0], COLUMNS // tile[1]]
    parts = weight.reshape(tiles[0], tile[0], tiles[1], tile[1])
    low, high = parts.amin((1, 3)), parts.amax((1, 3))
    most = torch.maximum(low.abs(), high.abs())
    if args.type == "float":
        scale, zero = most / 448.0, None
    elif args.symmetric:
        scale, zero = most / (2 ** (args.num_bits - 1) - 0.5), None
    else:
        steps = 2**args.num_bits - 1
        scale = (high - low) / steps
        zero = (-(2 ** (args.num_bits - 1)) - (low / scale).round()).to(torch.int8)
    return scale.bfloat16().float(), zero


def case(layout, **settings):
    args = QuantizationArgs(**settings)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    weight = torch.randn(ROWS, COLUMNS) * torch.logspace(-2, 0, ROWS)[:, None]
    compressor = BaseCompressor.get_value_from_registry(layout)
    state = {"weight": weight}
    if layout == "nvfp4-pack-quantized":
        most = weight.reshape(ROWS, -1, 16).abs().amax(-1)
        factor = 448.0 * 6.0 / weight.abs().max()
        scale = (most / 6.0 * factor).to(torch.float8_e4m3fn).float()
        state |= {"weight_scale": scale, "weight_global_scale": factor.reshape(1)}
        packed = compressor.compress(state, scheme)
        codes = packed["weight_packed"]
        # The library would multiply in bf16.
        values = unpack_fp4_from_uint8(codes, ROWS, COLUMNS, dtype=torch.float32)
        back = dequantize(values, scale, args=args, global_scale=factor, dtype=torch.float32)
    else:
        scale, zero = parameters(weight, args)
        state["weight_scale"] = scale
        if zero is not None:
            state["weight_zero_point"] = zero
        packed = compressor.compress(state, scheme)
        back = compressor.decompress(packed, scheme)["weight"]
    assert back.dtype == torch.float32
    error = (back - weight).abs().max() / weight.abs().max()
    assert error < 0.2, error
    return {
        "format": layout,
        "weights": settings,
        "tensors": {name: stored(tensor) for name, tensor in packed.items()},
        "bf16": hexadecimal(back.bfloat16()),
    }


def integers(bits, strategy, **settings):
    return {"num_bits": bits, "type": "int", "strategy": strategy, **settings}


def floats(bits, strategy, **settings):
    return {"num_bits": bits, "type": "float", "strategy": strategy, **settings}


PACKED, NVFP4 = "pack-quantized", "nvfp4-pack-quantized"
cases = [
    case(PACKED, **integers(4, "group", group_size=16, symmetric=True)),
    case(PACKED, **integers(4, "group", group_size=16, symmetric=False)),
    case(PACKED, **integers(8, "channel", symmetric=True)),
    case(PACKED, **integers(8, "group", group_size=8, symmetric=False)),
    case("int-quantized", **integers(8, "channel", symmetric=True)),
    case("int-quantized", **integers(8, "channel", symmetric=False)),
    case("float-quantized", **floats(8, "channel")),
    case("float-quantized", **floats(8, "tensor")),
    case("float-quantized", **floats(8, "block", block_structure=[16, 8])),
    case(NVFP4, **floats(4, "tensor_group", group_size=16)),
]
source = "PyPI compressed-tensors, compressed_tensors_vectors.py"
print(json.dumps({"source": source, "cases": cases}, indent=1))
