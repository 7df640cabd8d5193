#!/usr/bin/env python3
"""What each code of the small floating-point formats is, by an independent implementation.

    python3 -m venv V && V/bin/pip install ml_dtypes==0.6.0
    V/bin/python float_codes.py > float_codes.json

Numbers are the bits of f32, as hexadecimal; `nan` where a code is none.
"""

import json

import ml_dtypes
import numpy as np


def numbers(dtype, codes):
    values = np.arange(codes, dtype=np.uint8).view(dtype).astype(np.float32)
    bits = values.view(np.uint32)
    return " ".join(
        "nan" if np.isnan(value) else f"{bit:08x}" for value, bit in zip(values, bits, strict=True)
    )


formats = {
    "E2M1": numbers(ml_dtypes.float4_e2m1fn, 16),
    "E4M3": numbers(ml_dtypes.float8_e4m3fn, 256),
    "E8M0": numbers(ml_dtypes.float8_e8m0fnu, 256),
}
print(json.dumps({"source": "PyPI ml_dtypes, float_codes.py", **formats}, indent=1))
