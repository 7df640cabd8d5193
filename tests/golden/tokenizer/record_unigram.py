#!/usr/bin/env python3
"""Trains a small unigram model and records how Hugging Face tokenizers encodes and decodes texts.

    pip install tokenizers==0.23.3
    python record_unigram.py > unigram.json

The file has the tokenizer.json, and a text a line with its ids, `decoded` where none is unknown.
"""

import json
import pathlib

from texts import HARD, random_texts, repetitive_texts
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

HERE = pathlib.Path(__file__).parent


def corpus():
    licence = (HERE / "../../../LICENSE").read_text().splitlines()
    return licence * 3 + HARD * 5 + random_texts(400, seed=2) + repetitive_texts(300, seed=3)


def main():
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=300, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>"
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    eos = tokenizer.token_to_id("</s>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", eos)]
    )
    unknown = tokenizer.token_to_id("<unk>")
    examples = []
    for text in HARD + random_texts(60, seed=11) + repetitive_texts(40, seed=12):
        ids = tokenizer.encode(text).ids
        example = {"text": text, "ids": ids}
        if unknown not in ids:
            example["decoded"] = tokenizer.decode(ids)
        examples.append(example)
    lines = ",\n".join(json.dumps(example, ensure_ascii=False) for example in examples)
    model = json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False)
    print(f'{{"tokenizer":\n{model},\n"examples": [\n{lines}\n]}}')


if __name__ == "__main__":
    main()
