"""What the rows share: a tiny model, cheap clients, load from ebb-load, memory of a process."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))

from api import Api, Result, collect, greedy
from certificates import Authority
from server import ROOT, Server, binary, eventually

__all__ = [
    "ROOT",
    "Api",
    "Authority",
    "Link",
    "Result",
    "Server",
    "binary",
    "collect",
    "eventually",
    "greedy",
    "load",
    "memory_beside",
    "slow",
    "tiny",
]

# A model so small that thousands of tokens a second come out of a debug build: what is tested is
# everything but the arithmetic. Its vocabulary is the bytes.
TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 512,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
}


def dummy(name, config, *flags, **more):
    """A server of a model that is only a configuration."""
    folder = pathlib.Path(tempfile.gettempdir()) / f"ebb-{name}-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    file = folder / f"config.json.{os.getpid()}"
    file.write_text(json.dumps(config))
    file.replace(folder / "config.json")
    return Server("--load-format", "dummy", "--model", folder, *flags, **more)


def tiny(*flags, kv_memory="16MiB", **more):
    """A server of the tiny model."""
    return dummy("tiny", TINY, *flags, kv_memory=kv_memory, **more)


def slow(*flags, width=1536, **more):
    """A server whose steps take long beside what the network and Python take."""
    config = {**TINY, "hidden_size": width, "intermediate_size": 4 * width}
    config |= {"num_hidden_layers": 6, "num_attention_heads": width // 64}
    config |= {"num_key_value_heads": 4}
    return dummy(f"slow-{width}", config, "--threads", "1", *flags, **more)


class Link(Api):
    """A connection of its own that knows the messages from another one."""

    def __init__(self, api, address, options=(), credentials=None):
        import grpc

        options = [("grpc.use_local_subchannel_pool", 1), *options]
        if credentials is None:
            self.channel = grpc.insecure_channel(address, options=options)
        else:
            self.channel = grpc.secure_channel(address, credentials, options=options)
        self.pool, self.service, self.metadata = api.pool, api.service, api.metadata


def memory_beside(server, pool_mib):
    """MiB that the process has in memory, without the mapping of the KV memory: pages there are
    in memory once they have been used.
    """
    total, size = 0, 0
    for line in pathlib.Path(f"/proc/{server.process.pid}/smaps").read_text().splitlines():
        first, *rest = line.split()
        if not first.endswith(":"):
            start, end = first.split("-")
            size = int(end, 16) - int(start, 16)
        elif first == "Rss:" and size < pool_mib << 20:
            total += int(rest[0])
    return total / 1024


def load(server, kind, *flags, timeout=600, wait=True):
    """The summaries of `ebb-load KIND FLAGS`, a stage each; the process when not waited for."""
    out = tempfile.mkdtemp(prefix="ebb-load-")
    command = [binary("ebb-load", "EBB_LOAD_BIN"), kind, "--target", f"http://{server.address}"]
    command += ["--out", out, *flags]
    command = [str(part) for part in command]
    if not wait:
        return subprocess.Popen(command, stdout=subprocess.DEVNULL)
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr
    return json.loads((pathlib.Path(out) / "summary.json").read_text())
