#!/usr/bin/env python3
"""Records how Hugging Face tokenizers (with the Oniguruma engine) cut texts into pieces.

    pip install tokenizers==0.23.3
    python record_pre.py > pre.json

The cuts are those of the models' tokenizer.json files; `default` is llama.cpp's.
"""

import json

from texts import HARD, random_texts
from tokenizers import Regex, pre_tokenizers

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")


def cut(*expressions):
    steps = [pre_tokenizers.Split(Regex(e), "isolated") for e in expressions]
    return pre_tokenizers.Sequence(steps)


CUTS = {
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), cut(GPT2)]),
    "qwen2": cut(QWEN2),
    "llama-bpe": cut(LLAMA3),
    "default": cut(r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
}


def main():
    texts = HARD + random_texts(120, seed=1)
    cases = []
    for text in texts:
        case = {"text": text}
        for name, cuts in CUTS.items():
            case[name] = [piece for piece, _ in cuts.pre_tokenize_str(text)]
            assert "".join(case[name]) == text
        cases.append(case)
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    print(f"[\n{lines}\n]")


if __name__ == "__main__":
    main()
