"""Texts that tokenizers disagree about: the ones everybody tests, and random ones."""

import random

HARD = [
    "",
    " ",
    "  ",
    "\n",
    "\n\n\n",
    "Hello world",
    "Hello, world! How's it going?",
    " leading",
    "trailing ",
    "  two  spaces   three    four     five ",
    "\ttabs\t\tand\r\nwindows\r\n\r\nlines \n and \n\n mixed \t\n",
    "it's we'll I'VE DON'T they'Re 'tis '' 's",
    "1 12 123 1234 12345 1234567890 3.14159 1,000,000 0x1F 2024-07-26",
    "a1b2c3 v1.2.3 x86_64 H2O 1st 2nd",
    "def f(x):\n    return x**2 + 10  # squared\n\n\nclass A:\n\tpass\n",
    "if (a <= b && c != d || !e) { x += 1; } // ok?",
    '{"a": [1, 22, 333], "b": null, "c": "d\\n"}',
    "https://example.com/?q=1&b=22#x user@example.org C:\\path\\file",
    "na\u00efve caf\u00e9 \u2014 \u201cquotes\u201d \u2026 \u20ac5 \u00bd \u00b2 \u00b5m",
    "cafe\u0301 decomposed, A\u030angstro\u0308m",
    "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8\u3001\u3067\u3059\u3002\u3000\u4e2d\u6587\uff0c\u6c49\u5b57",
    "\ud55c\uad6d\uc5b4 \ubb38\uc7a5\uc785\ub2c8\ub2e4",
    "\u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u0663\u0664\u0665 \u05e9\u05dc\u05d5\u05dd",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! \u0393\u03b5\u03b9\u03ac "
    "\u03c3\u03bf\u03c5",
    "\uff11\uff12\uff13 \u0967\u0968\u0969 \u2160\u2161 \u2460\u2461",
    "\U0001f600 \U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \u2764\ufe0f",
    "nbsp\u00a0here\u2003em\u2028line\u2029para\u200bzero\ufeffbom",
    "\u0000\u0001\u001f\u007f control",
    "a" * 50,
    "ab" * 25,
    "\u00e9" * 20,
    " " * 33 + "x" + " " * 17,
    "\n" * 9 + "x" + "\r" * 3,
    "!" * 13 + "?" * 7 + "." * 20,
    "= == === ==== ~~ ^^ || $$ $5 ++ <<>> `code` ```block```",
    "snake_case camelCase PascalCase SCREAMING_CASE kebab-case",
    "x=1;y=2;z=x+y",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01",
    "The quick brown fox jumps over the lazy dog. 0123456789",
]

ALPHABET = (
    list("abcdefgstmvlrdABCSTD") * 2
    + list("0123456789")
    + list(" \u0020\u0020\u0020\n\n\t\r'''\u2019.,!?-_=+<>()[]{}$^~|`@#%&*/\\\";:")
    + list(
        "\u00e9\u00df\u0301\u00bd\u0663\u65e5\u672c\ud55c\u0448\u03b1\u00a0\u3000\u2028\U0001f600\u200d\u20ac"
    )
)


def random_texts(count, seed):
    rng = random.Random(seed)
    return ["".join(rng.choices(ALPHABET, k=rng.randint(1, 40))) for _ in range(count)]


def repetitive_texts(count, seed):
    """Few different characters: many equal merges to choose among."""
    rng = random.Random(seed)
    texts = []
    for _ in range(count):
        few = rng.choices("aeinorst \u00e9", k=rng.randint(1, 3))
        texts.append("".join(rng.choices(few, k=rng.randint(2, 40))))
    return texts
