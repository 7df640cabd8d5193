#!/usr/bin/env python3
"""Records how Hugging Face tokenizers (with the Oniguruma engine) cut texts into pieces.

    pip install tokenizers==0.23.3
    python record_pre.py > pre.json

The cuts are those of the models' tokenizer.json files; `default` and those of the first
DeepSeek models, Falcon, AFMoE and K-EXAONE are llama.cpp's.
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


QWEN35 = QWEN2.replace(r"]?\p{L}+", r"]?[\p{L}\p{M}]+").replace(
    r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]"
)
CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
CAPITAL, SMALL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{CAPITAL}*{SMALL}+{CONTRACTION}"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{CAPITAL}+{SMALL}*{CONTRACTION}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = GPT4O.replace(CONTRACTION, "").replace("{1,3}", "")
BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
DEEPSEEK_V3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# The letters that DeepSeek LLM's tokenizer.json lists.
CASED = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕ"
    "ἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-"
    "ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
# Runs of digits in groups of three from their end, in one expression (Ebb has three).
GROUPED = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"
UNSPACED = (
    "[一-\u9fff㐀-\u4dbf\uf900-\ufaff\u3040-ゟ゠-ヿ･-ﾟ\u2f00-\u2fdfเ-\u0e7f\u0e80-\u0eff"
    "\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff가-\ud7af\u1100-\u11ff]+"
)
EXAONE_MOE = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
ASIAN = "[一-龥\u0800-一가-\ud7ff]+"


def cut(*expressions):
    steps = [pre_tokenizers.Split(Regex(e), "isolated") for e in expressions]
    return pre_tokenizers.Sequence(steps)


CUTS = {
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), cut(GPT2)]),
    "qwen2": cut(QWEN2),
    "llama-bpe": cut(LLAMA3),
    "default": cut(r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
    "qwen35": cut(QWEN35),
    "gpt-2": cut(GPT2),
    "gpt-4o": cut(GPT4O),
    "tekken": cut(TEKKEN),
    "bloom": cut(BLOOM),
    "viking": cut(BLOOM, r"\p{N}"),
    "deepseek-v3": cut(r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+", DEEPSEEK_V3),
    "deepseek-llm": cut(
        r"[\r\n]",
        rf"\s?[{CASED}]+",
        "\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+",
        r"\s+$",
        ASIAN,
        r"\p{N}+",
    ),
    "deepseek-coder": cut(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", ASIAN, r"\p{N}"),
    "afmoe": cut(GROUPED, UNSPACED, DEEPSEEK_V3),
    "exaone-moe": cut(EXAONE_MOE),
    "falcon": cut(r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"),
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
