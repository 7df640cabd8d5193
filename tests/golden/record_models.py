"""Records a tiny model of tests/golden/models with transformers: models/README.md says what it has.

usage: record_models.py [--norms-around C] [--seed N] [--bf16-cache] [--out FILE]
                        [--transposed PART] MODEL_TYPE [FIELD=JSON ...]
       record_models.py --inside OUTER_TYPE --vision JSON MODEL_TYPE [FIELD=JSON ...]
       record_models.py --again FILE.json [--out FILE]

The first writes models/MODEL_TYPE.json, of a configuration with small sizes and the fields named.
The second does for the text part of a model that also reads images, whose configuration of those is
given too. Tensors with PART in their name are stored transposed, where transformers reads either.
The third records the configuration of a file anew, and says how far the two are apart. With
--bf16-cache, answers of keys and values that are rounded to bf16 are recorded, too.
(pip install torch transformers==5.17.0)
"""

import argparse
import contextlib
import json
import pathlib
import sys
import tempfile

import numpy as np
import safetensors
import torch
import transformers
from safetensors.torch import save_file

MODELS = pathlib.Path(__file__).parent / "models"
# Prompts are the same in all files.
PROMPTS = MODELS / "llama.json"
GREEDY = 16

# What a configuration class does not know it keeps, and writes.
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 320,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def fnv1a64(name):
    hash = 0xCBF29CE484222325
    for byte in name.encode():
        hash = (hash ^ byte) * 0x100000001B3 % 2**64
    return hash


def splitmix64(seed, index):
    """Of an array of indices; unsigned numbers of numpy wrap."""
    z = (np.uint64(seed) + index + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def weights(name, shape, seed, norms_around, embeddings):
    """A tensor of the formula, in bf16."""
    index = np.arange(int(np.prod(shape)), dtype=np.uint64)
    bits = splitmix64(fnv1a64(name) ^ seed, index) >> np.uint64(40)
    u = bits.astype(np.float64) / 2**23 - 1
    if len(shape) == 1 and "norm" in name and name.endswith("weight"):
        values = u * 0.1 + (1 if "linear_attn" in name else norms_around)
    elif len(shape) <= 1:
        values = u * 0.3
    elif "embed" in name:
        values = u * np.sqrt(3.0) * embeddings
    else:
        values = u * 1.6 * np.sqrt(3.0) / np.sqrt(float(shape[-1]))
    values = torch.from_numpy(values.astype(np.float32))
    return values.reshape(shape).to(torch.bfloat16)


def shapes(directory):
    """Names and shapes of the tensors that a checkpoint has."""
    found = {}
    for path in directory.glob("*.safetensors"):
        with safetensors.safe_open(path, "pt") as file:
            for name in file.keys():
                found[name] = list(file.get_slice(name).get_shape())
    return dict(sorted(found.items()))


def logits(model, ids):
    """[tokens, vocab], in double."""
    with torch.no_grad():
        answer = model(torch.tensor([ids]), use_cache=False)
    return answer.logits[0].double()


def prompt(model, ids):
    rows = logits(model, ids)
    logprobs = torch.log_softmax(rows, -1)
    of_next = [round(logprobs[at, token].item(), 4) for at, token in enumerate(ids[1:])]
    top = []
    for row in logprobs[-4:]:
        best = torch.topk(row, 5)
        pairs = zip(best.indices.tolist(), best.values.tolist())
        top.append([[token, round(value, 5)] for token, value in pairs])
    greedy = []
    tokens = list(ids)
    for _ in range(GREEDY):
        best = torch.topk(logits(model, tokens)[-1], 2)
        margin = (best.values[0] - best.values[1]).item()
        tokens.append(best.indices[0].item())
        greedy.append([tokens[-1], round(margin, 4)])
    return {
        "ids": ids,
        "logprobs": of_next,
        "top5_of_last_4": top,
        "greedy_and_margin": greedy,
    }


@contextlib.contextmanager
def bf16_cache(model):
    """Attention reads keys and values as a cache of bf16 has them."""
    module = sys.modules[type(model).__module__]
    exact = module.eager_attention_forward

    def rounded(of, query, key, value, *args, **fields):
        key, value = (x.to(torch.bfloat16).to(x.dtype) for x in (key, value))
        return exact(of, query, key, value, *args, **fields)

    module.eager_attention_forward = rounded
    try:
        yield
    finally:
        module.eager_attention_forward = exact


def answers(model, ids, has_bf16_cache):
    found = prompt(model, ids)
    if has_bf16_cache:
        with bf16_cache(model):
            rounded = prompt(model, ids)
        found["bf16_cache"] = {key: rounded[key] for key in ("logprobs", "greedy_and_margin")}
    return found


def record(architecture, config, seed, norms_around, has_bf16_cache, tensors=None, transposed=None):
    """Of the tensors given, or else those that transformers writes."""
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        is_part = hasattr(config, "text_config")
        model_class = transformers.AutoModelForCausalLM
        if is_part:
            model_class = transformers.AutoModelForImageTextToText
        model = model_class.from_config(config, dtype=torch.bfloat16)
        model.save_pretrained(directory)
        tensors = tensors or shapes(directory)
        for name, shape in tensors.items():
            if transposed and transposed in name:
                tensors[name] = shape[:-2] + [shape[-1], shape[-2]]
        embeddings = 0.1 if architecture.startswith("gemma") else 1.0
        made = {
            name: weights(name, shape, seed, norms_around, embeddings)
            for name, shape in tensors.items()
        }
        for path in directory.glob("*.safetensors*"):
            path.unlink()
        save_file(made, directory / "model.safetensors", {"format": "pt"})
        model, info = model_class.from_pretrained(
            directory,
            dtype=torch.float32,
            attn_implementation="eager",
            experts_implementation="eager",
            output_loading_info=True,
        )
        wrong = {key: value for key, value in info.items() if value}
        assert not wrong, wrong
        model.eval()
        written = json.loads((directory / "config.json").read_text())
        prompts = json.loads(PROMPTS.read_text())["prompts"]
        return {
            "architecture": architecture,
            "seed": seed,
            "transformers": transformers.__version__,
            "norm_weights_around": norms_around,
            "config": dict(sorted(written.items())),
            "tensors": tensors,
            "prompts": [answers(model, entry["ids"], has_bf16_cache) for entry in prompts],
        }


def compare(before, after):
    """Says what differs between two recordings."""
    for key in before.keys() | after.keys():
        if key != "prompts" and before.get(key) != after.get(key):
            print(f"{key} differ: {before.get(key)}\nand {after.get(key)}")
    for one, other in zip(before["prompts"], after["prompts"]):
        pairs = list(zip(one["logprobs"], other["logprobs"]))
        most = max(abs(a - b) for a, b in pairs)
        tokens = [[token for token, _ in entry["greedy_and_margin"]] for entry in (one, other)]
        greedy = "the same" if tokens[0] == tokens[1] else "other"
        print(f"{len(one['ids'])} tokens: at most {most:.4f} apart, {greedy} greedy tokens")
        if "bf16_cache" in one:
            pairs = zip(one["bf16_cache"]["logprobs"], other["bf16_cache"]["logprobs"])
            most = max(abs(a - b) for a, b in pairs)
            print(f"{len(one['ids'])} tokens, a cache of bf16: at most {most:.4f} apart")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--again", type=pathlib.Path)
    parser.add_argument("--transposed")
    parser.add_argument("--inside")
    parser.add_argument("--vision", type=json.loads)
    parser.add_argument("--norms-around", type=int, default=1)
    parser.add_argument("--seed", type=int, default=4)
    parser.add_argument("--bf16-cache", action="store_true")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("model_type", nargs="?")
    parser.add_argument("fields", nargs="*")
    args = parser.parse_intermixed_args()
    torch.set_num_threads(1)
    if args.again:
        before = json.loads(args.again.read_text())
        fields = dict(before["config"])
        config = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
        around = before["norm_weights_around"]
        has_bf16_cache = "bf16_cache" in before["prompts"][0]
        shapes_before = before["tensors"]
        golden = record(
            before["architecture"], config, before["seed"], around, has_bf16_cache, shapes_before
        )
        compare(before, golden)
    else:
        assert args.model_type, "name a model type"
        pairs = [field.split("=", 1) for field in args.fields]
        fields = SIZES | {name: json.loads(value) for name, value in pairs}
        model_type = args.model_type
        if args.inside:
            fields = {
                "text_config": fields | {"model_type": model_type},
                "vision_config": args.vision,
                "tie_word_embeddings": fields["tie_word_embeddings"],
            }
            model_type = args.inside
        config = transformers.AutoConfig.for_model(model_type, **fields)
        around = args.norms_around
        golden = record(
            args.model_type, config, args.seed, around, args.bf16_cache, None, args.transposed
        )
        args.out = args.out or MODELS / f"{args.model_type}.json"
    if args.out:
        args.out.write_text(json.dumps(golden, separators=(",", ":")))


if __name__ == "__main__":
    main()
