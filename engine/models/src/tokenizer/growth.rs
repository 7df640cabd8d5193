//! How many bytes a text can have once a normalizer or a pre-tokenizer has gone over it: what
//! encoding takes follows from these.
//!
//! Bytes of a text are told apart by [`Kind`]. A rule turns a byte of each kind into so many bytes
//! of each kind at most, so rules one after another are a product of small matrices.

use serde_json::Value;

use super::charsmap;
use super::limits::{BERT_GROWTH, mapping, replaced};

/// What a byte is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Space,
    /// Of an ASCII character that is visible.
    Ascii,
    /// Of a character that composing does not lengthen, and that is no mark on another.
    Composed,
    /// Of another character.
    Other,
    /// Of what a rule made, which may be any of these.
    Any,
}

/// Those of a text that no rule has gone over.
const KINDS: [Kind; 4] = [Kind::Space, Kind::Ascii, Kind::Composed, Kind::Other];

/// The kind of each byte of a text.
fn kinds(text: &str) -> impl Iterator<Item = Kind> {
    let mut kind = Kind::Other;
    text.bytes().map(move |byte| {
        kind = match byte {
            0x80..=0xbf => kind,
            b' ' => Kind::Space,
            0x21..=0x7e => Kind::Ascii,
            // Latin, Greek, most of Cyrillic, Armenian; ideographs and most of Hangul.
            0xc2..=0xcb | 0xce..=0xd1 | 0xd4..=0xd5 | 0xe4..=0xe9 | 0xeb..=0xed => Kind::Composed,
            _ => Kind::Other,
        };
        kind
    })
}

/// Numbers of bytes by their kind.
#[derive(Clone, Copy, Default)]
struct Bytes([usize; 5]);

impl Bytes {
    fn of(kind: Kind, count: usize) -> Self {
        let mut bytes = Self::default();
        bytes.0[kind as usize] = count;
        bytes
    }

    fn of_text(text: &str) -> Self {
        let mut bytes = Self::default();
        kinds(text).for_each(|kind| bytes.0[kind as usize] += 1);
        bytes
    }

    fn plus(self, other: Self) -> Self {
        let mut sum = self;
        for (count, more) in sum.0.iter_mut().zip(other.0) {
            *count = count.saturating_add(more);
        }
        sum
    }

    fn total(self) -> usize {
        self.0.into_iter().fold(0, usize::saturating_add)
    }

    /// What a rule makes of these, if it makes `rule(kind)` of a byte.
    fn through(self, rule: &impl Fn(Kind) -> Bytes) -> Self {
        let most = KINDS.map(|kind| rule(kind).total()).into_iter().max();
        let any = Self::of(Kind::Any, most.unwrap_or(1));
        let each = KINDS.map(rule).into_iter().chain([any]);
        let made = self.0.into_iter().zip(each).map(|(count, bytes)| {
            let times = bytes.0.map(|made| made.saturating_mul(count));
            Self(times)
        });
        made.fold(Self::default(), Self::plus)
    }
}

/// How bytes are counted that are spelled as letters, of which some have two bytes.
#[derive(Clone, Copy)]
pub(super) enum CountAs {
    Letters,
    Bytes,
}

/// What the rules of a tokenizer make of a text at most.
#[derive(Clone, Copy)]
pub(super) struct Growth {
    /// Of a byte of each kind.
    made: [Bytes; 4],
    /// Before and behind each piece between added tokens.
    around: Bytes,
    /// Before each piece that is cut.
    each: Bytes,
    /// Whether pieces are cut further so far.
    is_cut: bool,
    /// Bytes of the shortest added token.
    added: Option<usize>,
    count_as: CountAs,
    mapped: Option<Mapped>,
}

/// Mappings of characters that follow each other, and what there was before them.
#[derive(Clone, Copy)]
struct Mapped {
    made: [Bytes; 4],
    around: Bytes,
    growth: usize,
    composes: bool,
}

impl Growth {
    /// Of a normalizer or a pre-tokenizer within [limits](super::limits). `added` is the bytes of
    /// the shortest added token that is cut out before.
    pub(super) fn of(rules: &Value, added: Option<usize>, count_as: CountAs) -> Self {
        let mut growth = Self {
            made: KINDS.map(|kind| Bytes::of(kind, 1)),
            around: Bytes::default(),
            each: Bytes::default(),
            is_cut: false,
            added,
            count_as,
            mapped: None,
        };
        growth.follow(rules);
        growth
    }

    /// Bytes that a byte of text may become at most.
    pub(super) fn most(&self) -> usize {
        let most = self.made.map(Bytes::total).into_iter().max();
        let around = self.around.plus(self.each).total();
        most.unwrap_or(1).saturating_add(around)
    }

    /// Bytes by which `text` becomes longer where its spaces do, and by what is put around it.
    pub(super) fn of_spaces(&self, text: &str) -> usize {
        let spaces = text.bytes().filter(|byte| *byte == b' ').count();
        let more = self.made[Kind::Space as usize].total().saturating_sub(1);
        more.saturating_mul(spaces)
            .saturating_add(self.around.total())
    }

    /// Bytes of `text` once all rules have gone over it, at most, if it is cut into so many pieces;
    /// with `None` each byte may be one.
    pub(super) fn bytes(&self, text: &str, cut: Option<usize>) -> usize {
        let counts = Bytes::of_text(text).0;
        let made = self.made.iter().zip(counts);
        let made = made.map(|(made, count)| made.total().saturating_mul(count));
        let pieces = 1 + self.added.map_or(0, |bytes| text.len() / (bytes + 1));
        let around = self.around.total().saturating_mul(pieces);
        let bytes = made.fold(around, usize::saturating_add);
        let each = self.each.total();
        bytes.saturating_add(each.saturating_mul(cut.unwrap_or(bytes)))
    }

    fn apply(&mut self, rule: impl Fn(Kind) -> Bytes) {
        self.made = self.made.map(|made| made.through(&rule));
        self.around = self.around.through(&rule);
        self.each = self.each.through(&rule);
    }

    /// Replaces each byte, and puts a text of so many bytes before each piece.
    fn apply_to_pieces(&mut self, rule: impl Fn(Kind) -> Bytes, before: usize) {
        self.apply(rule);
        let pieces = match self.is_cut {
            true => &mut self.each,
            false => &mut self.around,
        };
        *pieces = pieces.plus(Bytes::of(Kind::Any, before));
    }

    /// Maps characters. Mappings that follow each other make no more than the most of them.
    fn map(&mut self, growth: usize, composes: bool) {
        let mut run = self.mapped.unwrap_or(Mapped {
            made: self.made,
            around: self.around,
            growth: 1,
            composes: true,
        });
        run.growth = run.growth.max(growth);
        run.composes &= composes;
        (self.made, self.around) = (run.made, run.around);
        self.apply(|byte| match byte {
            Kind::Space | Kind::Ascii => Bytes::of(byte, 1),
            Kind::Composed if run.composes => Bytes::of(byte, 1),
            _ => Bytes::of(Kind::Any, run.growth),
        });
        self.mapped = Some(run);
    }

    fn follow(&mut self, rule: &Value) {
        let kind = rule["type"].as_str().unwrap_or_default();
        match (mapping(kind), kind) {
            (Some(growth), _) => self.map(growth, kind == "NFC"),
            // What these leave of a text is as mapped as before.
            (None, "Sequence" | "Strip" | "StripAccents") => {}
            (None, _) => self.mapped = None,
        }
        match kind {
            "Nmt" => self.apply(|byte| match byte {
                Kind::Space | Kind::Ascii => Bytes::of(byte, 1),
                _ => Bytes::of(Kind::Any, 1),
            }),
            "ByteLevel" => {
                let spaced = rule["add_prefix_space"].as_bool().unwrap_or(true);
                let most = match self.count_as {
                    CountAs::Letters => 1,
                    CountAs::Bytes => 2,
                };
                let letter = |byte| match byte {
                    Kind::Ascii => Bytes::of(byte, 1),
                    _ => Bytes::of(Kind::Any, most),
                };
                self.apply_to_pieces(letter, most * usize::from(spaced));
                // Another one spells each byte of these letters.
                self.count_as = CountAs::Bytes;
            }
            "Metaspace" => {
                let replacement = rule["replacement"].as_str().unwrap_or("\u{10ffff}");
                let before = match rule["prepend_scheme"].as_str() {
                    Some("never") => 0,
                    _ => replacement.len(),
                };
                let replaced = |byte| match byte {
                    Kind::Space => Bytes::of_text(replacement),
                    _ => Bytes::of(byte, 1),
                };
                self.apply_to_pieces(replaced, before);
            }
            _ => {}
        }
        if let (Some(pattern), Some(content)) = (rule.get("pattern"), rule["content"].as_str()) {
            match pattern["String"].as_str() {
                Some(" ") => self.apply(|byte| match byte {
                    Kind::Space => match content {
                        "" => Bytes::of(Kind::Any, 1),
                        content => Bytes::of_text(content),
                    },
                    _ => Bytes::of(byte, 1),
                }),
                _ => {
                    let (of_each, at_end) = replaced(rule);
                    self.apply(|_| Bytes::of(Kind::Any, of_each));
                    self.around = self.around.plus(Bytes::of(Kind::Any, at_end));
                }
            }
        }
        if let Some(prepended) = rule["prepend"].as_str() {
            self.around = self.around.plus(Bytes::of_text(prepended));
        }
        if rule.get("handle_chinese_chars").is_some() {
            self.apply(|byte| match byte {
                Kind::Space | Kind::Ascii => Bytes::of(byte, 1),
                _ => Bytes::of(Kind::Any, BERT_GROWTH),
            });
        }
        if let Some(table) = rule[charsmap::FIELD].as_str() {
            let growth = charsmap::growth_of(table, usize::MAX).unwrap_or_default();
            self.apply(|byte| match (byte, growth.of_ascii) {
                (Kind::Space | Kind::Ascii, None) => Bytes::of(byte, 1),
                (Kind::Space | Kind::Ascii, Some(most)) => Bytes::of(Kind::Any, most),
                _ => Bytes::of(
                    Kind::Any,
                    growth.of_others.max(growth.of_ascii.unwrap_or(1)),
                ),
            });
        }
        for part in ["normalizers", "pretokenizers"] {
            rule[part]
                .as_array()
                .into_iter()
                .flatten()
                .for_each(|rule| {
                    self.follow(rule);
                    self.is_cut |= part == "pretokenizers";
                });
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokenizers::{NormalizedString, Normalizer as _, NormalizerWrapper};

    use super::*;

    fn normalized(kind: &str, text: &str) -> String {
        let rule = serde_json::from_value::<NormalizerWrapper>(json!({"type": kind}));
        let mut text = NormalizedString::from(text);
        rule.expect("a rule").normalize(&mut text).expect("a text");
        text.get().to_owned()
    }

    /// Characters that a mark behind them takes apart again are as long as the mark may become.
    #[test]
    fn composing_lengthens_no_composed_character_and_none_is_a_mark() {
        let all: Vec<char> = (0..=u32::from(char::MAX))
            .filter_map(char::from_u32)
            .collect();
        let all: Vec<String> = all.into_iter().map(String::from).collect();
        let is = |c: &&String| kinds(c).next() == Some(Kind::Composed);
        let composed: Vec<&str> = all.iter().filter(is).map(String::as_str).collect();
        assert!(composed.len() > 20_000);
        let one = normalized("NFC", &composed.join("\n"));
        let apart = normalized("NFD", &composed.join("\n"));
        // A mark would go before this one, whose class is the last.
        let behind = normalized("NFD", &composed.join("\n\u{345}"));
        let parts = one
            .split('\n')
            .zip(apart.split('\n'))
            .zip(behind.split('\n'));
        assert_eq!(parts.clone().count(), composed.len());
        for (at, (c, ((one, apart), behind))) in composed.iter().zip(parts).enumerate() {
            assert!(one.len() <= c.len(), "{c:?}");
            // Of two bytes, or of three that lengthen by the least mark's growth.
            assert!(
                apart.len() - one.len() <= 4 || c.as_bytes()[0] >= 0xeb,
                "{c:?}"
            );
            assert!(at == 0 || behind.starts_with('\u{345}'), "{c:?}");
        }
        // Composing again what was taken apart lengthens nothing.
        for part in all.chunks(1 << 14) {
            let part: Vec<&str> = part
                .iter()
                .map(String::as_str)
                .filter(|c| *c != "\n")
                .collect();
            let apart = normalized("NFD", &part.join("\n"));
            let again = normalized("NFC", &apart);
            for (apart, again) in apart.split('\n').zip(again.split('\n')) {
                assert!(again.len() <= apart.len(), "{apart:?}");
            }
        }
    }

    /// What rules make of texts, beside what the library makes of them.
    #[test]
    fn no_text_grows_more_than_its_bound() {
        let spaces = json!({"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "\u{2581}"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"},
        ]});
        let texts = [
            "a",
            " ",
            "   ",
            "words of a text",
            "日本語の文",
            "한국어",
            "é\u{323}\u{301}e\u{323}",
            "ǖ\u{323}ǖ\u{5b0}",
            "\u{1d160}\u{958}\u{390}",
            "\u{fdfa} \u{fdfa}",
            "Ⱥİ",
            "ﬁ½㎓",
            "\n\t",
        ];
        let rule = |kind: &str| json!({"type": kind});
        for normalizer in [
            spaces,
            rule("NFC"),
            rule("NFD"),
            rule("NFKC"),
            rule("Lowercase"),
            rule("ByteLevel"),
            json!({"type": "Sequence", "normalizers": [rule("NFD"), rule("Lowercase"),
                rule("StripAccents"), rule("NFC")]}),
            json!({"type": "Sequence", "normalizers": [rule("NFKC"), rule("ByteLevel")]}),
            json!({"type": "Replace", "pattern": {"String": "o"}, "content": "  "}),
            json!({"type": "Replace", "pattern": {"Regex": "x*"}, "content": "-"}),
            json!({"type": "Replace", "pattern": {"Regex": "o+"}, "content": "-"}),
            json!({"type": "Replace", "pattern": {"String": ""}, "content": "-"}),
        ] {
            let growth = Growth::of(&normalizer, None, CountAs::Bytes);
            let rules: NormalizerWrapper = serde_json::from_value(normalizer).expect("rules");
            for text in texts {
                let mut made = NormalizedString::from(text);
                rules.normalize(&mut made).expect("a text");
                let (bytes, bound) = (made.get().len(), growth.bytes(text, Some(1)));
                assert!(bytes <= bound, "{rules:?} {text:?}: {bytes} of {bound}");
                assert!(bound <= growth.most() * text.len());
            }
        }
    }

    #[test]
    fn usual_texts_have_a_narrow_bound() {
        let composed = Growth::of(&json!({"type": "NFC"}), Some(10), CountAs::Bytes);
        assert_eq!(
            composed.bytes("a word 中文 é", Some(1)),
            "a word 中文 é".len()
        );
        assert_eq!(composed.most(), 3);
        let spelled = json!({"type": "ByteLevel", "add_prefix_space": false});
        let bytes = Growth::of(&spelled, None, CountAs::Bytes);
        // The second and the third spell letters of two bytes: 6, 12, 24.
        let thrice = json!({"type": "Sequence", "pretokenizers": [spelled, spelled, spelled]});
        let letters = Growth::of(&thrice, None, CountAs::Letters);
        assert_eq!(letters.bytes("日本", None), 24);
        let letters = Growth::of(&spelled, None, CountAs::Letters);
        assert_eq!(
            (
                bytes.bytes("words", Some(1)),
                letters.bytes("words", Some(1))
            ),
            (5, 5)
        );
        assert_eq!(
            (
                bytes.bytes("a 中文", Some(1)),
                letters.bytes("a 中文", Some(1))
            ),
            (15, 8)
        );
        let spaces = json!({"type": "Metaspace", "replacement": "\u{2581}", "split": false});
        let growth = Growth::of(&spaces, None, CountAs::Bytes);
        assert_eq!(growth.bytes("a word or two", Some(1)), 13 + 2 * 3 + 3);
    }
}
