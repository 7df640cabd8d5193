"""A hub on loopback, as Hugging Face's clients know one, with a tiny model."""

import hashlib
import http.server
import json
import random
import struct
import threading
import time
import urllib.parse

COMMIT = "89abcdef0123456789abcdef0123456789abcdef"
# Byte-level vocabularies write each byte as a character: those of Latin-1 that can be seen as
# themselves, the others from 256 on.
SEEN = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
PIECE = 64 << 10
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


def tokenizer():
    """tokenizer.json of a vocabulary that is the bytes, and one token that ends an answer."""
    unseen = [byte for byte in range(256) if byte not in SEEN]
    spelt = [chr(b) if b in SEEN else chr(256 + unseen.index(b)) for b in range(256)]
    end = {"id": 256, "content": "<|end|>", "special": True}
    for flag in ("single_word", "lstrip", "rstrip", "normalized"):
        end[flag] = False
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0",
        "added_tokens": [end],
        "pre_tokenizer": {**level, "use_regex": True},
        "decoder": {**level, "use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": {text: i for i, text in enumerate(spelt)} | {"<|end|>": 256},
            "merges": [],
        },
    }


def safetensors(tensors):
    """A safetensors file of bf16 tensors: {name: shape}, with the same random values each time."""
    values = random.Random(1)
    header, data = {}, b""
    for name, shape in tensors.items():
        count = 1
        for size in shape:
            count *= size
        floats = struct.pack(f"<{count}f", *(values.uniform(-0.1, 0.1) for _ in range(count)))
        halves = b"".join(floats[i + 2 : i + 4] for i in range(0, len(floats), 4))
        end = len(data) + len(halves)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(data), end]}
        data += halves
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def tiny_model():
    """The files of a model that answers: {name: bytes}. Its weights are in two files."""
    width, wide, vocabulary = 128, 256, 257
    layers = {}
    for i in range(4):
        layer = f"model.layers.{i}"
        for name in ("q", "k", "v", "o"):
            layers[f"{layer}.self_attn.{name}_proj.weight"] = [width, width]
        for name in ("gate", "up"):
            layers[f"{layer}.mlp.{name}_proj.weight"] = [wide, width]
        layers[f"{layer}.mlp.down_proj.weight"] = [width, wide]
        for name in ("input", "post_attention"):
            layers[f"{layer}.{name}_layernorm.weight"] = [width]
    first = {"model.embed_tokens.weight": [vocabulary, width], "model.norm.weight": [width]}
    shards = {
        "model-00001-of-00002.safetensors": first,
        "model-00002-of-00002.safetensors": layers,
    }
    places = {name: shard for shard, tensors in shards.items() for name in tensors}
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": width,
        "intermediate_size": wide,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "vocab_size": vocabulary,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "eos_token_id": 256,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    }
    texts = {
        "config.json": config,
        "tokenizer.json": tokenizer(),
        "tokenizer_config.json": {"eos_token": "<|end|>", "chat_template": TEMPLATE},
        "model.safetensors.index.json": {"metadata": {}, "weight_map": places},
    }
    files = {name: json.dumps(text).encode() for name, text in texts.items()}
    return files | {name: safetensors(tensors) for name, tensors in shards.items()}


def is_large(name):
    """Whether a file is kept elsewhere."""
    return name.endswith((".safetensors", ".gguf"))


def git_hash(body):
    """The name that Git has for a file of these bytes."""
    return hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()


class Hub:
    """Serves `files` as the repository org/tiny; large ones by a redirect to a second address. Use
    it as a context manager.
    """

    def __init__(self, files):
        self.files = files
        self.requests = []
        # Seconds between two pieces of a large file.
        self.pause = 0.0
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                hub.answer(self)

            do_HEAD = do_GET

            def log_message(self, *_):
                pass

        self.servers = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) for _ in "12"]
        for server in self.servers:
            threading.Thread(target=server.serve_forever, daemon=True).start()
        self.url, self.store = (f"http://127.0.0.1:{s.server_port}" for s in self.servers)

    def answer(self, call):
        at_hub = call.server is self.servers[0]
        token = call.headers.get("Authorization")
        begin = call.headers.get("Range", "").removeprefix("bytes=").removesuffix("-")
        self.requests.append((at_hub, call.command, call.path, token, begin))
        path = urllib.parse.urlsplit(call.path).path
        headers = {"X-Repo-Commit": COMMIT}
        resolve = f"/org/tiny/resolve/{COMMIT}/"
        if at_hub and path in ("/api/models/org/tiny", "/api/models/org/tiny/revision/main"):
            listed = [{"rfilename": name} for name in self.files]
            body = {"id": "org/tiny", "sha": COMMIT, "siblings": listed}
            return self.send(call, 200, headers, json.dumps(body).encode())
        if at_hub and path == f"/api/models/org/tiny/tree/{COMMIT}":
            return self.send(call, 200, headers, json.dumps(self.tree()).encode())
        name = path.removeprefix(resolve if at_hub else "/")
        if name not in self.files:
            return self.send(call, 404, {"X-Error-Code": "EntryNotFound"}, b"")
        body = self.files[name]
        if at_hub and is_large(name):
            headers["X-Linked-Etag"] = f'"{hashlib.sha256(body).hexdigest()}"'
            headers["X-Linked-Size"] = str(len(body))
            headers["Location"] = f"{self.store}/{name}?signature=x"
            return self.send(call, 302, headers, b"")
        headers["ETag"] = f'"{git_hash(body)}"'
        if not begin.isdecimal():
            return self.send(call, 200, headers, body)
        headers["Content-Range"] = f"bytes {begin}-{len(body) - 1}/{len(body)}"
        return self.send(call, 206, headers, body[int(begin) :])

    def tree(self):
        """What Hugging Face's library asks for in place of each file's headers."""
        entries = []
        for name, body in self.files.items():
            entry = {"type": "file", "path": name, "oid": git_hash(body), "size": len(body)}
            if is_large(name):
                oid = hashlib.sha256(body).hexdigest()
                entry["lfs"] = {"oid": oid, "size": len(body), "pointerSize": 130}
            entries.append(entry)
        return entries

    def send(self, call, status, headers, body):
        call.send_response(status)
        for name, value in {**headers, "Content-Length": len(body)}.items():
            call.send_header(name, value)
        call.end_headers()
        if call.command == "HEAD":
            return
        try:
            for at in range(0, len(body), PIECE):
                call.wfile.write(body[at : at + PIECE])
                if call.server is not self.servers[0]:
                    time.sleep(self.pause)
        except OSError:
            pass  # The client has left.

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for server in self.servers:
            server.shutdown()
            server.server_close()
