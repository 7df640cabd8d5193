//! Into how many pieces a pre-tokenizer cuts a text at most: each piece costs memory.

use serde_json::Value;

use super::pre_tokenizer;

/// Where a pre-tokenizer may cut.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cuts {
    /// Between any two characters: the rules are not known.
    anywhere: bool,
    /// Around words, digits and runs of one character.
    words: bool,
    /// Between characters of such a run, too.
    runs: bool,
    /// Between the bytes of a character.
    bytes: bool,
    /// So often at each white space.
    spaces: usize,
    /// Between a space and the word behind it.
    behind_spaces: bool,
    /// At each `▁`.
    marks: bool,
    spelled: Spelled,
}

/// What rules have made of the pieces so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Spelled {
    #[default]
    Plainly,
    /// Each byte is a letter.
    AsBytes,
    /// Spaces are other characters, or stand where there were none.
    Otherwise,
}

const MARK: char = '\u{2581}';

impl Cuts {
    pub(super) fn of(pre_tokenizer: &Value) -> Self {
        let mut cuts = Self::default();
        cuts.follow(pre_tokenizer);
        cuts
    }

    fn cuts(&self) -> bool {
        self.words || self.spaces > 0
    }

    fn at_words(&mut self, knows_digits_alone: bool) {
        self.words = true;
        match self.spelled {
            Spelled::Plainly => {}
            // Some bytes are spelled as `²` and the like.
            Spelled::AsBytes if knows_digits_alone => self.bytes = true,
            Spelled::AsBytes | Spelled::Otherwise => self.anywhere = true,
        }
    }

    fn at_spaces(&mut self, times: usize) {
        self.spaces = times;
        self.anywhere |= self.spelled != Spelled::Plainly;
    }

    fn follow(&mut self, rule: &Value) {
        let flag = |field: &str| rule[field].as_bool().unwrap_or(true);
        match rule["type"].as_str() {
            Some("Sequence") => match rule["pretokenizers"].as_array() {
                Some(parts) => parts.iter().for_each(|part| self.follow(part)),
                None => self.anywhere = true,
            },
            Some("ByteLevel") => {
                let puts_spaces = flag("add_prefix_space") && self.cuts();
                if flag("use_regex") {
                    self.at_words(false);
                    self.anywhere |= puts_spaces;
                }
                self.spelled = match self.spelled {
                    Spelled::Plainly if !puts_spaces => Spelled::AsBytes,
                    _ => Spelled::Otherwise,
                };
            }
            Some("Digits") => self.at_words(true),
            Some("Punctuation") => {
                self.at_words(false);
                self.runs |= rule["behavior"] != "Contiguous";
            }
            // No spaces are left.
            Some("Whitespace") => self.at_words(false),
            Some("WhitespaceSplit") => self.at_spaces(self.spaces.max(1)),
            Some("Metaspace") => {
                if flag("split") {
                    let times = if self.behind_spaces { 2 } else { 1 };
                    self.at_spaces(self.spaces.max(times));
                    self.anywhere |= rule["replacement"] != "\u{2581}";
                    self.marks = true;
                }
                self.spelled = Spelled::Otherwise;
            }
            // No behavior leaves more pieces than `Isolated`.
            Some("Split") => {
                let pattern = &rule["pattern"];
                let text = pattern["String"].as_str().or(pattern["Regex"].as_str());
                match text {
                    Some(" ") => {
                        let both = !["MergedWithPrevious", "MergedWithNext", "Removed"]
                            .iter()
                            .any(|behavior| rule["behavior"] == *behavior);
                        let times = if both || rule["invert"] == true { 2 } else { 1 };
                        self.at_spaces(self.spaces + times);
                        self.behind_spaces = true;
                    }
                    Some(expression)
                        if pattern["Regex"].is_string() && pre_tokenizer::is_known(expression) =>
                    {
                        self.at_words(pre_tokenizer::knows_digits_alone(expression));
                    }
                    _ => self.anywhere = true,
                }
            }
            _ => self.anywhere |= !rule.is_null(),
        }
    }

    /// Pieces of a text at most; `None` where each of its bytes may be one.
    pub(super) fn pieces(&self, text: &str) -> Option<usize> {
        let is_cut = |c: &char| c.is_whitespace() || (self.marks && *c == MARK);
        match (self.anywhere, self.words) {
            (true, _) => None,
            (false, true) => Some(self.words(text)),
            (false, false) if self.spaces == 0 => Some(1),
            (false, false) => Some(1 + self.spaces * text.chars().filter(is_cut).count()),
        }
    }

    fn words(&self, text: &str) -> usize {
        let runs = self.runs || self.spaces > 0;
        let mut pieces = 1;
        let (mut last, mut run) = (0, 0);
        for &byte in text.as_bytes() {
            let in_run = byte == last && (!runs || byte.is_ascii_alphabetic());
            let goes_on = match byte {
                b'a'..=b'z' => match last {
                    b' ' => !self.behind_spaces,
                    last => last.is_ascii_alphabetic(),
                },
                b'0'..=b'9' | b'\n' | b'\r' => false,
                0x80..=0xbf => !self.bytes,
                _ => in_run,
            };
            // The last of several spaces goes with what is behind, or is a piece.
            let ends_spaces = byte != last && run > 1 && last <= b' ';
            pieces += usize::from(!goes_on) + usize::from(ends_spaces);
            run = if byte == last { run + 1 } else { 1 };
            last = byte;
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokenizers::{
        OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _, PreTokenizerWrapper,
    };

    use super::*;

    /// Texts of up to three parts, three of them some times over.
    fn texts() -> Vec<String> {
        let parts = [
            "a", "B", " ", "  ", "\t", "\t\t", "\n", "1", "!", "!!", "'s", "é", "²", "\u{2581}",
            "\u{3000}",
        ];
        let longer = |texts: &[String]| -> Vec<String> {
            let longer = |text: &String| parts.map(|part| format!("{text}{part}"));
            texts.iter().flat_map(longer).collect()
        };
        let one = parts.map(str::to_owned);
        let two = longer(&one);
        let three = longer(&two);
        let often = three.iter().map(|text| text.repeat(4));
        one.into_iter().chain(often).chain(two).collect()
    }

    fn check(cuts: &Cuts, rules: &PreTokenizerWrapper, texts: &[String]) {
        for text in texts {
            let mut pieces = PreTokenizedString::from(text.as_str());
            rules.pre_tokenize(&mut pieces).expect("the cuts apply");
            let pieces = pieces.get_splits(OffsetReferential::Original, OffsetType::None);
            let bound = cuts.pieces(text).unwrap_or_else(|| panic!("{rules:?}"));
            assert!(
                pieces.len() <= bound,
                "{cuts:?} {rules:?} {text:?}: {} of {bound}",
                pieces.len()
            );
        }
    }

    #[test]
    fn no_known_pre_tokenizer_cuts_into_more_pieces_than_bound() {
        let texts = texts();
        let cuts = Cuts::of(&json!({"type": "ByteLevel", "add_prefix_space": false}));
        for rules in pre_tokenizer::all() {
            check(&cuts, &rules, &texts);
        }
    }

    fn split(pattern: Value, behavior: &str) -> Value {
        json!({"type": "Split", "pattern": pattern, "behavior": behavior, "invert": false})
    }

    fn sequence(parts: &[Value]) -> Value {
        json!({"type": "Sequence", "pretokenizers": parts})
    }

    #[test]
    fn rules_of_files_cut_into_no_more_pieces_than_bound() {
        let texts = texts();
        let digit = |each: bool| json!({"type": "Digits", "individual_digits": each});
        let bytes = |cuts: bool| {
            json!({"type": "ByteLevel", "add_prefix_space": false,
            "trim_offsets": true, "use_regex": cuts})
        };
        let marks = |cuts: bool| {
            json!({"type": "Metaspace", "replacement": "\u{2581}",
            "prepend_scheme": "always", "split": cuts})
        };
        let punctuation = |behavior: &str| json!({"type": "Punctuation", "behavior": behavior});
        let space = |behavior: &str| split(json!({"String": " "}), behavior);
        let triples = split(json!({"Regex": "[0-9][0-9][0-9]"}), "Isolated");
        let words = json!({"type": "WhitespaceSplit"});
        let mut removed = split(json!({"Regex": r"\p{N}"}), "Removed");
        removed["invert"] = json!(true);
        for rules in [
            json!(null),
            bytes(true),
            bytes(false),
            marks(true),
            marks(false),
            words.clone(),
            json!({"type": "Whitespace"}),
            removed,
            punctuation("Isolated"),
            punctuation("MergedWithPrevious"),
            space("MergedWithPrevious"),
            space("MergedWithNext"),
            space("Removed"),
            space("Isolated"),
            space("Contiguous"),
            split(json!({"Regex": r"\n+"}), "Isolated"),
            sequence(&[words.clone(), marks(true)]),
            sequence(&[space("MergedWithPrevious"), marks(true)]),
            sequence(&[digit(true), bytes(true)]),
            sequence(&[digit(true), marks(true)]),
            sequence(&[punctuation("Isolated"), words.clone(), marks(true)]),
            sequence(&[space("MergedWithPrevious"), bytes(true)]),
            sequence(&[space("Isolated"), digit(true), punctuation("Isolated")]),
            sequence(&[punctuation("Isolated"), bytes(true), digit(true)]),
            // Falcon's.
            sequence(&[
                punctuation("Contiguous"),
                bytes(true),
                digit(false),
                triples,
            ]),
        ] {
            let cuts = Cuts::of(&rules);
            match serde_json::from_value::<Option<PreTokenizerWrapper>>(rules).expect("rules") {
                Some(rules) => check(&cuts, &rules, &texts),
                None => assert_eq!(cuts.pieces("a b"), Some(1)),
            }
        }
    }

    #[test]
    fn unknown_cuts_may_cut_anywhere() {
        let regex = |expression: &str| split(json!({"Regex": expression}), "Isolated");
        let known = sequence(&[
            json!({"type": "Digits", "individual_digits": true}),
            regex(r"\p{N}"),
            json!({"type": "ByteLevel", "add_prefix_space": false}),
        ]);
        let pieces = |rules: &Value| Cuts::of(rules).pieces("a word");
        assert!(pieces(&json!(null)) == Some(1) && pieces(&known).is_some());
        let spaces = json!({"type": "Metaspace", "replacement": "\u{2581}"});
        let others = json!({"type": "Metaspace", "replacement": "a"});
        for unknown in [
            regex("."),
            split(json!({"String": "a"}), "Isolated"),
            json!({"type": "UnicodeScripts"}),
            others,
            sequence(&[
                spaces,
                json!({"type": "Punctuation", "behavior": "Isolated"}),
            ]),
            sequence(&[
                known,
                json!({"type": "Punctuation", "behavior": "Isolated"}),
            ]),
        ] {
            assert_eq!(pieces(&unknown), None, "{unknown}");
        }
    }

    #[test]
    fn usual_texts_have_a_narrow_bound() {
        let text = "some words of a text ".repeat(100);
        for (rules, most) in [
            (
                json!({"type": "Metaspace", "replacement": "\u{2581}", "split": false}),
                1,
            ),
            (json!({"type": "Metaspace", "replacement": "\u{2581}"}), 501),
            (json!({"type": "Punctuation", "behavior": "Isolated"}), 502),
            (split(json!({"String": " "}), "MergedWithPrevious"), 501),
            (
                sequence(&[
                    json!({"type": "WhitespaceSplit"}),
                    json!({"type": "Metaspace", "replacement": "\u{2581}"}),
                ]),
                501,
            ),
        ] {
            assert_eq!(Cuts::of(&rules).pieces(&text), Some(most), "{rules}");
        }
    }
}
