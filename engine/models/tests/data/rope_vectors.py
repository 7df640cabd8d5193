#!/usr/bin/env python3
"""Reference RoPE frequencies by an independent implementation: transformers 4.57.6.

    pip download --no-deps -d D transformers==4.57.6
    unzip D/*.whl transformers/modeling_rope_utils.py -d D
    python3 rope_vectors.py D/transformers/modeling_rope_utils.py > rope_vectors.json   # numpy

Runs that file's own functions, with numpy standing in for the few torch operations they use.
"""

import json
import sys
import types

import numpy as np


class Tensor(np.ndarray):
    def to(self, device=None, dtype=None):
        return self if dtype is None else self.astype(dtype)

    def float(self):
        return self.astype(np.float32)


def wrap(array):
    return np.asarray(array).view(Tensor)


torch = types.SimpleNamespace(
    int64=np.int64,
    float=np.float32,
    float32=np.float32,
    arange=lambda *args, dtype=None: wrap(np.arange(*args, dtype=dtype)),
    where=lambda *args: wrap(np.where(*args)),
    clamp=lambda x, low, high: wrap(np.clip(x, low, high)),
)
utils = types.ModuleType("pkg.utils")
utils.is_torch_available = lambda: False
utils.logging = types.SimpleNamespace(get_logger=lambda name: None)
configuration = types.ModuleType("pkg.configuration_utils")
configuration.PretrainedConfig = object
package = types.ModuleType("pkg")
package.__path__ = []
sys.modules.update({"pkg": package, "pkg.utils": utils, "pkg.configuration_utils": configuration})
scope = {"__name__": "pkg.rope", "__package__": "pkg"}
exec(open(sys.argv[1]).read(), scope)
scope["torch"] = torch

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
# max_position_embeddings is original times factor for YaRN, where this version takes the ratio.
CASES = [
    (10000.0, 64, 4096, None),
    (100000.0, 64, 8192, None),
    (10000.0, 128, 4096, {"rope_type": "linear", "factor": 4.0}),
    (500000.0, 64, 131072, LLAMA3),
    (500000.0, 128, 131072, LLAMA3 | {"factor": 8.0}),
    (
        1000000.0,
        128,
        131072,
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    ),
    (
        10000.0,
        64,
        65536,
        {
            "rope_type": "yarn",
            "factor": 16.0,
            "original_max_position_embeddings": 4096,
            "beta_fast": 48.0,
            "beta_slow": 2.0,
            "attention_factor": 0.75,
        },
    ),
    (
        150000.0,
        64,
        131072,
        {
            "rope_type": "yarn",
            "factor": 32.0,
            "original_max_position_embeddings": 4096,
            "truncate": False,
        },
    ),
]
NAMES = {
    "linear": "_compute_linear_scaling_rope_parameters",
    "llama3": "_compute_llama3_parameters",
    "yarn": "_compute_yarn_parameters",
}
out = []
for theta, head_dim, positions, scaling in CASES:
    config = types.SimpleNamespace(
        rope_theta=theta,
        head_dim=head_dim,
        max_position_embeddings=positions,
        hidden_size=head_dim,
        num_attention_heads=1,
        rope_scaling=scaling,
    )
    name = NAMES[scaling["rope_type"]] if scaling else "_compute_default_rope_parameters"
    inv_freq, scale = scope[name](config, None)
    out.append(
        {
            "rope_theta": theta,
            "head_dim": head_dim,
            "max_position_embeddings": positions,
            "rope_scaling": scaling,
            "scale": float(scale),
            "inv_freq": [float(f) for f in inv_freq],
        }
    )
print(json.dumps({"source": "transformers 4.57.6, rope_vectors.py", "cases": out}, indent=1))
