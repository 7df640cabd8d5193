#!/usr/bin/env python3
"""Trains two small SentencePiece BPE models and records how SentencePiece itself encodes texts.

    pip install sentencepiece==0.2.3 protobuf tokenizers==0.23.3
    python record_spm.py          # writes spm_bytes.json, spm_unknown.json, llama2_tokenizer.json
                                  # and llama2_expected.json beside itself

`spm_bytes` is made like Llama 2's: byte fallback, a space put before the text. `spm_unknown` has
an unknown token instead of bytes, no space, and a symbol defined by the user. `llama2_tokenizer`
is the first model as Hugging Face converts it (ranked merges), with that library's own ids.
"""

import io
import json
import pathlib

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from texts import HARD, random_texts, repetitive_texts
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

HERE = pathlib.Path(__file__).parent


def corpus():
    licence = (HERE / "../../../LICENSE").read_text().splitlines()
    return licence * 3 + HARD * 5 + random_texts(400, seed=2) + repetitive_texts(300, seed=3)


def train(**options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(t for t in corpus() if t.strip() and "\0" not in t),
        model_writer=model,
        model_type="bpe",
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        split_digits=True,
        num_threads=1,
        minloglevel=2,
        **options,
    )
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(model.getvalue())
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue()), proto


def examples(processor, texts):
    unknown = processor.unk_id()
    for text in texts:
        ids = processor.encode(text)
        example = {"text": text, "ids": ids}
        # SentencePiece shows an unknown token as ⁇; that is not part of the vocabulary.
        if unknown not in ids:
            example["decoded"] = processor.decode(ids)
        yield example


def write(name, value):
    # One entry of each list a line.
    parts = []
    for key, part in value.items():
        if isinstance(part, list):
            lines = ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in part)
            parts.append(f"{json.dumps(key)}: [\n{lines}\n]")
        else:
            parts.append(f"{json.dumps(key)}: {json.dumps(part, ensure_ascii=False)}")
    (HERE / name).write_text("{\n" + ",\n".join(parts) + "\n}\n")


def record(name, processor, proto, prefix):
    texts = [t for t in HARD if "\0" not in t]
    texts += [t for t in random_texts(100, seed=4)] + repetitive_texts(100, seed=5)
    write(
        name,
        {
            "add_space_prefix": prefix,
            "unknown": processor.unk_id(),
            "bos": processor.bos_id(),
            "eos": processor.eos_id(),
            "pieces": [[p.piece, p.score, p.type] for p in proto.pieces],
            "examples": list(examples(processor, texts)),
        },
    )


def merges(vocab, scores):
    """As transformers' converters generate them: every split of every piece, best score first."""
    found = []
    for piece, score in scores.items():
        splits = [(piece[:i], piece[i:]) for i in range(1, len(piece))]
        splits = [(l, r) for l, r in splits if l in vocab and r in vocab]
        splits.sort(key=lambda s: (vocab[s[0]], vocab[s[1]]))
        found += [(l, r, score) for l, r in splits]
    found.sort(key=lambda m: m[2], reverse=True)
    return [(l, r) for l, r, _ in found]


def hugging_face(proto):
    vocab = {p.piece: i for i, p in enumerate(proto.pieces)}
    scores = {p.piece: p.score for p in proto.pieces}
    tokenizer = Tokenizer(
        models.BPE(
            vocab, merges(vocab, scores), unk_token="<unk>", fuse_unk=True, byte_fallback=True
        )
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    special = [AddedToken(t, normalized=False, special=True) for t in ["<unk>", "<s>", "</s>"]]
    tokenizer.add_special_tokens(special)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", vocab["<s>"])]
    )
    return tokenizer


def main():
    processor, proto = train(
        vocab_size=700, byte_fallback=True, character_coverage=0.98, unk_surface=" \u2047 "
    )
    record("spm_bytes.json", processor, proto, prefix=True)

    tokenizer = hugging_face(proto)
    (HERE / "llama2_tokenizer.json").write_text(tokenizer.to_str())
    expected = []
    differing = 0
    for text in HARD + random_texts(60, seed=6) + ["</s>a<s> b</s>"]:
        ids = tokenizer.encode(text).ids
        expected.append(
            {"text": text, "ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=False)}
        )
        differing += ids[1:] != processor.encode(text)
    write("llama2_expected.json", {"examples": expected})

    many = repetitive_texts(5000, seed=7)
    differing = sum(tokenizer.encode(t).ids[1:] != processor.encode(t) for t in many)
    print(f"ranked merges differ from SentencePiece on {differing} of {len(many)} repetitive texts")

    processor, proto = train(
        vocab_size=400,
        byte_fallback=False,
        character_coverage=0.98,
        add_dummy_prefix=False,
        user_defined_symbols=["<tool>"],
    )
    for piece in proto.pieces[20:]:
        if piece.type == 1 and len(piece.piece) == 2:
            piece.type = 5
            break
    processor = sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())
    record("spm_unknown.json", processor, proto, prefix=False)


main()
