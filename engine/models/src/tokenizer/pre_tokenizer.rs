//! The pre-tokenizers that GGUF files name: how a text is cut before byte-pair merges.
//!
//! Each is a list of regular expressions; every expression cuts the pieces that the ones before it
//! left, and both what it matches and what lies between are pieces. The expressions are those of
//! the models' own tokenizer.json files, except `default` and those of the first DeepSeek models,
//! Falcon, AFMoE and K-EXAONE, which are llama.cpp's.

use std::sync::LazyLock;

use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{PreTokenizerWrapper, SplitDelimiterBehavior};

use super::TokenizerError;

/// GPT-2's expression (Radford et al. 2019).
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// Qwen 2: contractions in any case, single digits, newlines kept with punctuation.
const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
/// Llama 3: as Qwen 2, with digits in runs of up to three.
const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// Qwen 3.5: as Qwen 2, with marks in words.
const QWEN35: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}",
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
/// GPT-4o: words end where capitals follow small letters, and contractions are part of them.
const GPT4O: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
/// Mistral's Tekken: as GPT-4o, without contractions and with single digits.
const TEKKEN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
/// BLOOM: words end at spaces and at punctuation of several scripts.
const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";
/// DeepSeek V3's last expression; digits and East Asian scripts are cut before.
const DEEPSEEK_V3: &str = concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"##,
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*",
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
);
/// Words of the first DeepSeek LLM: letters that have a case, as its file lists them.
const DEEPSEEK_LLM_WORDS: &str = concat!(
    r"\s?[",
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕ",
    "ἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-",
    "ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃",
    "]+"
);
/// East Asian scripts, as the first DeepSeek models list them.
const ASIAN: &str = "[一-龥\u{800}-一가-\u{d7ff}]+";
/// Scripts without spaces between words, as AFMoE's tokenizer lists them.
const UNSPACED: &str = concat!(
    "[\u{4e00}-\u{9fff}\u{3400}-\u{4dbf}\u{f900}-\u{faff}\u{3040}-\u{309f}\u{30a0}-\u{30ff}",
    "\u{ff65}-\u{ff9f}\u{2f00}-\u{2fdf}\u{e40}-\u{e7f}\u{e80}-\u{eff}\u{1780}-\u{17ff}",
    "\u{1000}-\u{109f}\u{aa60}-\u{aa7f}\u{a9e0}-\u{a9ff}\u{ac00}-\u{d7af}\u{1100}-\u{11ff}]+"
);
/// K-EXAONE: words that single spaces part are one piece.
const EXAONE_MOE: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+",
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
);
const DIGIT: &str = r"\p{N}";
const DIGITS: &str = r"\p{N}+";
/// In a piece of digits alone those that are left over when groups of three count from its end.
const LEADING_DIGITS: &str = r"\A\p{N}{1,2}(?=(?:\p{N}{3})+\z)";
const THREE_DIGITS: &str = r"\p{N}{3}";
/// Runs of newlines.
pub(super) const LINES: &str = r"\n+";

/// A pre-tokenizer of `tokenizer.ggml.pre`: the names that llama.cpp gives it
/// (`llama_vocab::impl::load` in src/llama-vocab.cpp), and what it does.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PreTokenizer {
    names: &'static [&'static str],
    expressions: &'static [&'static str],
    ignores_merges: bool,
    adds_bos: bool,
    composes: bool,
}

const PLAIN: PreTokenizer = PreTokenizer {
    names: &[],
    expressions: &[],
    ignores_merges: false,
    adds_bos: false,
    composes: false,
};

static PRE_TOKENIZERS: &[PreTokenizer] = &[
    PreTokenizer {
        names: &[
            "smollm",
            "starcoder",
            "refact",
            "command-r",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        expressions: &[DIGIT, GPT2],
        ..PLAIN
    },
    PreTokenizer {
        names: &["qwen2"],
        expressions: &[QWEN2],
        composes: true,
        ..PLAIN
    },
    PreTokenizer {
        names: &[
            "llama-bpe",
            "llama-v3",
            "llama3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
        ],
        expressions: &[LLAMA3],
        ignores_merges: true,
        adds_bos: true,
        ..PLAIN
    },
    PreTokenizer {
        names: &["default"],
        expressions: &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, DIGITS, r"[0-9][0-9][0-9]"],
        ..PLAIN
    },
    PreTokenizer {
        names: &[
            "deepseek-r1-qwen",
            "kormo",
            "megrez",
            "stablelm2",
            "hunyuan",
            "solar-open",
            "grok-2",
        ],
        expressions: &[QWEN2],
        ..PLAIN
    },
    PreTokenizer {
        names: &["qwen35"],
        expressions: &[QWEN35],
        composes: true,
        ..PLAIN
    },
    PreTokenizer {
        names: &["smaug-bpe", "dbrx", "chatglm-bpe", "glm4"],
        expressions: &[LLAMA3],
        ..PLAIN
    },
    PreTokenizer {
        names: &[
            "gpt-2",
            "phi-2",
            "jina-es",
            "jina-de",
            "jina-v1-en",
            "jina-v2-es",
            "jina-v2-de",
            "jina-v2-code",
            "roberta-bpe",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "exaone4",
            "mpt",
            "olmo",
            "jais",
            "trillion",
        ],
        expressions: &[GPT2],
        ..PLAIN
    },
    PreTokenizer {
        names: &["gpt-4o", "llama4", "kanana2", "minimax-m2"],
        expressions: &[GPT4O],
        ..PLAIN
    },
    PreTokenizer {
        names: &["tekken"],
        expressions: &[TEKKEN],
        ignores_merges: true,
        adds_bos: true,
        ..PLAIN
    },
    PreTokenizer {
        names: &["bloom", "poro-chat", "gpt3-finnish"],
        expressions: &[BLOOM],
        ..PLAIN
    },
    PreTokenizer {
        names: &["viking"],
        expressions: &[BLOOM, DIGIT],
        ..PLAIN
    },
    PreTokenizer {
        names: &["deepseek-v3", "hunyuan-dense"],
        expressions: &[r"\p{N}{1,3}", "[一-龥\u{3040}-ゟ゠-ヿ]+", DEEPSEEK_V3],
        ..PLAIN
    },
    PreTokenizer {
        names: &["deepseek-llm"],
        expressions: &[
            r"[\r\n]",
            DEEPSEEK_LLM_WORDS,
            "\\s?[!-/:-~！-／：-～‘-‟\u{3000}-。]+",
            r"\s+$",
            ASIAN,
            DIGITS,
        ],
        ..PLAIN
    },
    PreTokenizer {
        names: &["deepseek-coder"],
        expressions: &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", ASIAN, DIGIT],
        ..PLAIN
    },
    PreTokenizer {
        names: &["afmoe"],
        expressions: &[DIGITS, LEADING_DIGITS, THREE_DIGITS, UNSPACED, DEEPSEEK_V3],
        ..PLAIN
    },
    PreTokenizer {
        names: &["exaone-moe"],
        expressions: &[EXAONE_MOE],
        ..PLAIN
    },
    PreTokenizer {
        names: &["falcon"],
        expressions: &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]"],
        ..PLAIN
    },
];

/// Every name, for messages.
static NAMES: LazyLock<String> = LazyLock::new(|| {
    let first = ["smollm", "qwen2", "llama-bpe", "default"];
    let all = PRE_TOKENIZERS.iter().flat_map(|pre| pre.names).copied();
    let others = all.filter(|name| !first.contains(name));
    let names: Vec<&str> = first.into_iter().chain(others).collect();
    names.join(", ")
});

/// Whether some model's pre-tokenizer cuts by this expression.
pub(super) fn is_known(expression: &str) -> bool {
    let expressions = PRE_TOKENIZERS.iter().flat_map(|pre| pre.expressions);
    expressions
        .chain([&LINES])
        .any(|known| *known == expression)
}

/// Whether a known expression cuts around digits alone.
pub(super) fn knows_digits_alone(expression: &str) -> bool {
    let groups = [
        r"\p{N}{1,3}",
        "[0-9][0-9][0-9]",
        LEADING_DIGITS,
        THREE_DIGITS,
    ];
    [DIGIT, DIGITS].contains(&expression) || groups.contains(&expression)
}

/// All of them.
#[cfg(test)]
pub(super) fn all() -> impl Iterator<Item = PreTokenizerWrapper> {
    let build = |pre: &PreTokenizer| pre.build().expect("valid expressions");
    PRE_TOKENIZERS.iter().map(build)
}

impl PreTokenizer {
    /// Looks up the value of `tokenizer.ggml.pre`.
    pub(super) fn from_name(name: &str) -> Result<&'static Self, TokenizerError> {
        let found = PRE_TOKENIZERS.iter().find(|pre| pre.names.contains(&name));
        found.ok_or_else(|| TokenizerError::Unsupported {
            field: "tokenizer.ggml.pre",
            value: format!("{name:?}"),
            supported: NAMES.as_str(),
        })
    }

    /// A piece that is a token as a whole is not built by merges (Llama 3's `ignore_merges`).
    pub(super) fn ignores_merges(&self) -> bool {
        self.ignores_merges
    }

    /// Whether the model expects BOS before every text when its file does not say.
    pub(super) fn adds_bos(&self) -> bool {
        self.adds_bos
    }

    /// Whether the model's own tokenizer composes characters (Unicode NFC) first.
    pub(super) fn composes(&self) -> bool {
        self.composes
    }

    /// Runs of newlines apart from what is between, in no byte alphabet.
    pub(super) fn lines() -> Result<PreTokenizerWrapper, TokenizerError> {
        split(LINES)
    }

    /// The cuts, followed by the spelling of each piece in the byte alphabet.
    pub(super) fn build(&self) -> Result<PreTokenizerWrapper, TokenizerError> {
        let mut steps = Vec::new();
        for expression in self.expressions {
            steps.push(split(expression)?);
        }
        steps.push(PreTokenizerWrapper::ByteLevel(ByteLevel::new(
            false, false, false,
        )));
        Ok(PreTokenizerWrapper::Sequence(Sequence::new(steps)))
    }
}

fn split(expression: &str) -> Result<PreTokenizerWrapper, TokenizerError> {
    let pattern = SplitPattern::Regex(expression.to_owned());
    Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
        .map(PreTokenizerWrapper::Split)
        .map_err(|e| TokenizerError::invalid("tokenizer.ggml.pre", e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::super::byte_level;
    use super::*;
    use std::collections::BTreeMap;
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _};

    fn pieces(cuts: &PreTokenizerWrapper, text: &str) -> Vec<String> {
        let mut pieces = PreTokenizedString::from(text);
        cuts.pre_tokenize(&mut pieces).expect("the cuts apply");
        let pieces = pieces.get_splits(OffsetReferential::Original, OffsetType::None);
        pieces
            .into_iter()
            .filter(|(piece, _, _)| !piece.is_empty())
            .map(|(piece, _, _)| {
                let bytes = byte_level::token_bytes(piece).expect("the byte alphabet");
                String::from_utf8(bytes).expect("whole characters")
            })
            .collect()
    }

    /// Recorded with Hugging Face's tokenizers on another engine (tests/golden/tokenizer).
    #[test]
    fn texts_are_cut_as_recorded() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/golden/tokenizer/pre.json"
        );
        let cases = std::fs::read(path).expect("the recorded cuts");
        let cases: Vec<BTreeMap<String, serde_json::Value>> =
            serde_json::from_slice(&cases).expect("a list of cases");
        for pre in PRE_TOKENIZERS {
            // Those of the same expressions were recorded under one name.
            let same = |other: &&PreTokenizer| other.expressions == pre.expressions;
            let name = PRE_TOKENIZERS.iter().find(same).expect("itself").names[0];
            let cuts = pre.build().expect("valid expressions");
            for case in &cases {
                let text = case["text"].as_str().expect("a text");
                let found = serde_json::json!(pieces(&cuts, text));
                assert_eq!(found, case[name], "{name}: {text:?}");
            }
        }
        assert!(cases.len() > 150);
    }

    /// The expression engine gives up (and leaves the rest in one piece) only after a million
    /// steps back, so after a longer run of spaces than any context has room for.
    #[test]
    fn long_runs_are_cut_too() {
        for pre in PRE_TOKENIZERS {
            let (name, cuts) = (pre.names[0], pre.build().expect("valid expressions"));
            for run in [" ", "\n", "a", "!", "é", "1", " \n"] {
                let text = format!("x{}y", run.repeat(300_000));
                let found = pieces(&cuts, &text);
                assert_eq!(found.concat(), text);
                // DeepSeek LLM's punctuation has the ASCII letters in it, and so cuts `y` off.
                let cuts_y = run == "é" && name == "deepseek-llm";
                let is_word = ["a", "é"].contains(&run) || run == "1" && name == "bloom";
                assert_eq!(
                    found.last().map(String::len).unwrap_or(0) < 3,
                    cuts_y || !is_word,
                    "{name}: {run:?}"
                );
            }
        }
    }

    #[test]
    fn every_name_is_found_and_stands_once() {
        let mut seen = std::collections::HashSet::new();
        for pre in PRE_TOKENIZERS {
            for name in pre.names {
                assert!(seen.insert(*name), "{name}");
                assert_eq!(PreTokenizer::from_name(name).expect("a known name"), pre);
            }
        }
        let adds_bos = |name| PreTokenizer::from_name(name).expect("known").adds_bos();
        assert!(adds_bos("pixtral") && !adds_bos("glm4"));
    }

    #[test]
    fn unknown_names_are_refused_with_the_known_ones() {
        let error = PreTokenizer::from_name("kimi-k2").expect_err("not supported");
        let sentence = error.to_string();
        for word in [
            "tokenizer.ggml.pre",
            "\"kimi-k2\"",
            "smollm, qwen2, llama-bpe, default",
        ] {
            assert!(sentence.contains(word), "{sentence}");
        }
    }
}
