//! What the rules of a tokenizer.json may be, so that no file makes loading or encoding take more
//! memory or stack than there is.
//!
//! Known limit: time is not bounded where the file brings a regular expression of its own (`Split`,
//! `Replace`). One search takes at most a million steps back, or goes over the rest of the piece
//! once; a search begins at each character, so a text of n bytes may take n² steps, and a caller
//! that leaves is noticed only when all pieces are cut. The same goes for added tokens that are
//! normalised by such an expression. Expressions of known models stay linear in practice. Nor is it
//! where tokens of a Unigram model begin with each other: with `a`, `aa` and so on up to 256 bytes,
//! each byte of a piece is the begin of 256 tokens that are looked at.

use serde_json::Value;

use super::TokenizerError;
use super::charsmap::{self, FIELD as TABLE};

/// Bytes of all of them, in base64. Known ones have some 300,000.
const TABLE_BYTES_MAX: usize = 2 << 20;

/// Rules of one part, those in sequences included. The longest known parts have some ten.
const RULES_MAX: usize = 64;
/// Bytes of one pattern or replacement. The longest known pattern has some 1,000.
const RULE_BYTES_MAX: usize = 16 << 10;
/// How much longer than the text all rules together may make it, and all that is done to each
/// character: every byte is kept with where it came from. Known files put three bytes before a
/// piece and in place of a space (12), or spell bytes as letters (2); tables and NFKC make 33 bytes
/// of three (11).
const GROWTH_MAX: usize = 16;
/// Bytes that a character table may put in place of one character. NFKC's longest has 33.
const CHARSMAP_TEXT_BYTES_MAX: usize = 64;
/// Bytes of one added token, and of all as the normalizer makes them: an automaton is built of
/// them, and several times.
const ADDED_TOKEN_BYTES_MAX: usize = 1 << 10;
const ADDED_BYTES_MAX: usize = 4 << 20;
/// Bytes of one token of a Unigram model. They are kept in a tree that is taken apart by
/// recursion, on any thread. SentencePiece's own have 16 characters at most.
const UNIGRAM_TOKEN_BYTES_MAX: usize = 256;

/// Checks the normalizer and the pre-tokenizer, and gives how many times as long as a text what the
/// normalizer makes of it can be.
pub(super) fn check_rules(
    normalizer: &Value,
    pre_tokenizer: &Value,
) -> Result<usize, TokenizerError> {
    let mut rules = Rules {
        field: "normalizer in tokenizer.json",
        count: 0,
        growth: 1,
        characters: 1,
        mapping: 1,
        table_bytes: 0,
    };
    rules.enter(normalizer)?;
    rules.check_growth()?;
    let normalized = rules.growth.saturating_mul(rules.characters);
    (rules.field, rules.count) = ("pre_tokenizer in tokenizer.json", 0);
    rules.enter(pre_tokenizer)?;
    rules.check_growth()?;
    Ok(normalized)
}

/// Checks added tokens, which `field` names: the bytes of each, and what the normalizer can make of
/// them.
pub(super) fn check_added(
    field: &'static str,
    tokens: impl Iterator<Item = (usize, usize)> + Clone,
) -> Result<(), TokenizerError> {
    let longest = tokens.clone().map(|(bytes, _)| bytes).max().unwrap_or(0);
    let plain = tokens.clone().map(|(bytes, _)| bytes).sum();
    let normalized = tokens.map(|(_, normalized)| normalized).sum();
    for (what, bytes, most) in [
        ("a token of", longest, ADDED_TOKEN_BYTES_MAX),
        ("tokens of", plain, ADDED_BYTES_MAX),
        (
            "tokens that the normalizer can turn into",
            normalized,
            ADDED_BYTES_MAX,
        ),
    ] {
        if bytes > most {
            let problem = format!("has {what} {bytes} bytes; at most {most} are supported");
            return Err(TokenizerError::invalid(field, problem));
        }
    }
    Ok(())
}

/// Checks the tokens of a Unigram model.
pub(super) fn check_unigram<'a>(
    mut tokens: impl Iterator<Item = &'a str>,
) -> Result<(), TokenizerError> {
    match tokens.find(|token| token.len() > UNIGRAM_TOKEN_BYTES_MAX) {
        Some(token) => Err(TokenizerError::invalid(
            "model.vocab in tokenizer.json",
            format!(
                "has a token of {} bytes; at most {UNIGRAM_TOKEN_BYTES_MAX} are supported",
                token.len()
            ),
        )),
        None => Ok(()),
    }
}

struct Rules {
    field: &'static str,
    count: usize,
    /// What a piece of one byte can become by rules so far, and by what is done to each character.
    growth: usize,
    characters: usize,
    /// The part in `characters` of mappings that follow each other.
    mapping: usize,
    /// Bytes of character tables.
    table_bytes: usize,
}

impl Rules {
    fn refused<T>(&self, problem: String) -> Result<T, TokenizerError> {
        Err(TokenizerError::invalid(self.field, problem))
    }

    /// Counts rules, and follows how a text grows by one after another. The JSON reader bounds how
    /// deep this goes.
    fn enter(&mut self, rule: &Value) -> Result<(), TokenizerError> {
        let fields = match rule {
            Value::Null => return Ok(()),
            Value::Object(fields) => fields,
            // The library reads a list as the fields of a rule.
            _ => return self.refused("has a rule that is no object".to_owned()),
        };
        self.count += 1;
        if self.count > RULES_MAX {
            return self.refused(format!(
                "has more than {RULES_MAX} rules, which is the most supported"
            ));
        }
        for (key, value) in fields {
            match (key.as_str(), value) {
                // The one long text there is: a table, which is looked up and not searched for.
                (TABLE, Value::String(_)) => {}
                ("normalizers" | "pretokenizers", Value::Array(_)) => {}
                (_, value) => self.check_texts(value)?,
            }
        }
        self.grow(rule)?;
        for key in ["normalizers", "pretokenizers"] {
            for rule in rule[key].as_array().into_iter().flatten() {
                self.enter(rule)?;
            }
        }
        Ok(())
    }

    fn check_texts(&self, part: &Value) -> Result<(), TokenizerError> {
        match part {
            Value::String(text) if text.len() > RULE_BYTES_MAX => self.refused(format!(
                "has a text of {} bytes; at most {RULE_BYTES_MAX} are supported",
                text.len()
            )),
            Value::Array(parts) => parts.iter().try_for_each(|part| self.check_texts(part)),
            Value::Object(fields) => fields.values().try_for_each(|part| self.check_texts(part)),
            _ => Ok(()),
        }
    }

    /// Follows how one rule makes a text grow. Rules that the library knows by their fields,
    /// whatever their type says, are known by them here, too.
    fn grow(&mut self, rule: &Value) -> Result<(), TokenizerError> {
        let text = |key: &str| rule[key].as_str().map(str::len);
        let kind = rule["type"].as_str().unwrap_or_default();
        match (mapping(kind), kind) {
            (Some(mapping), _) => {
                let all = self.mapping.max(mapping);
                self.characters = (self.characters / self.mapping).saturating_mul(all);
                self.mapping = all;
            }
            // What these leave of a text is as mapped as before.
            (None, "Sequence" | "Strip" | "StripAccents" | "Nmt") => {}
            (None, _) => self.mapping = 1,
        }
        if kind == "ByteLevel" {
            // A space before each piece, and two bytes for most.
            let spaces = rule["add_prefix_space"].as_bool().unwrap_or(true);
            let spaced = self.growth.saturating_add(usize::from(spaces));
            self.growth = spaced.saturating_mul(2);
        }
        if kind == "Metaspace" {
            // In place of a space, and before each piece.
            let replacement = text("replacement").unwrap_or(char::MAX.len_utf8());
            self.growth = self.growth.saturating_mul(1 + replacement);
        }
        if rule.get("pattern").is_some() && rule.get("content").is_some() {
            let (of_each, at_end) = replaced(rule);
            self.growth = self.growth.saturating_mul(of_each).saturating_add(at_end);
        }
        if let Some(prepended) = text("prepend") {
            // Before each piece between added tokens, of which one byte makes one.
            self.growth = self.growth.saturating_add(prepended);
        }
        if rule.get("handle_chinese_chars").is_some() {
            self.characters = self.characters.saturating_mul(BERT_GROWTH);
        }
        if let Some(table) = rule[TABLE].as_str() {
            self.characters = self.characters.saturating_mul(self.table(table)?);
        }
        // One that adds is checked with the next that multiplies, or at the end.
        match text("prepend") {
            Some(_) => Ok(()),
            None => self.check_growth(),
        }
    }

    fn check_growth(&self) -> Result<(), TokenizerError> {
        if self.growth.max(self.characters) > GROWTH_MAX {
            return self.refused(format!(
                "can make a text more than {GROWTH_MAX} times as long, which is the most supported"
            ));
        }
        Ok(())
    }

    /// How many times as long a text a character table can make.
    fn table(&mut self, table: &str) -> Result<usize, TokenizerError> {
        self.table_bytes = self.table_bytes.saturating_add(table.len());
        if self.table_bytes > TABLE_BYTES_MAX {
            return self.refused(format!(
                "has a {TABLE} of {} bytes; at most {TABLE_BYTES_MAX} are supported, of all such \
                 tables together",
                table.len()
            ));
        }
        match charsmap::growth_of(table, CHARSMAP_TEXT_BYTES_MAX) {
            Some(growth) => Ok(growth.of_all),
            None => self.refused(format!(
                "has a {TABLE} that is damaged, or has a text of more than \
                 {CHARSMAP_TEXT_BYTES_MAX} bytes for a character"
            )),
        }
    }
}

/// What a replacement can make of a text at most: how many bytes of each byte, and at the end.
pub(super) fn replaced(replace: &Value) -> (usize, usize) {
    let content = replace["content"].as_str().map_or(0, str::len);
    let pattern = &replace["pattern"];
    match (pattern["String"].as_str(), pattern["Regex"].as_str()) {
        (Some(pattern), _) if !pattern.is_empty() => (content.div_ceil(pattern.len()).max(1), 0),
        (_, Some(pattern)) if takes_characters(pattern) => (content.max(1), 0),
        // Before each byte, and at the end.
        _ => (1 + content, content),
    }
}

/// Whether a regular expression is so plain that it matches no empty text.
fn takes_characters(pattern: &str) -> bool {
    let classes = [r"\s", r"\S", r"\d", r"\w", r"\n", r"\r", r"\t"];
    let plain = classes
        .iter()
        .fold(pattern.to_owned(), |plain, class| plain.replace(class, "x"));
    let is_special = |c| "|()*?^$\\".contains(c);
    !(plain.is_empty()
        || plain.contains(is_special)
        || plain.contains("{0")
        || plain.contains("{,"))
}

/// How many times as long a text Unicode's mappings of characters can make, rounded up. It is the
/// most of any, however many follow each other.
pub(super) fn mapping(kind: &str) -> Option<usize> {
    match kind {
        // Ⱥ has two bytes, and ⱥ three.
        "Lowercase" => Some(2),
        // ΐ has two bytes, and six in three parts.
        "NFC" | "NFD" => Some(3),
        // A ligature of Arabic words has three bytes, and 33 in letters.
        "NFKC" | "NFKD" => Some(11),
        _ => None,
    }
}

/// The same of BERT's normalizer: spaces around Chinese characters of three bytes or more, accents
/// taken apart and away, and lower case.
pub(super) const BERT_GROWTH: usize = 8;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use serde_json::json;
    use tokenizers::{NormalizedString, Normalizer as _, NormalizerWrapper};

    use super::*;

    /// What a rule makes of each text. None of them has line ends.
    fn mapped<'a>(rule: &Value, texts: impl Iterator<Item = &'a str>) -> Vec<String> {
        let texts: Vec<&str> = texts.collect();
        let rule: NormalizerWrapper = serde_json::from_value(rule.clone()).expect("a rule");
        let mut text = NormalizedString::from(texts.join("\n"));
        rule.normalize(&mut text).expect("a text");
        let mapped: Vec<String> = text.get().split('\n').map(str::to_owned).collect();
        assert_eq!(mapped.len(), texts.len());
        mapped
    }

    fn characters() -> Vec<String> {
        let all = (0..=u32::from(char::MAX)).filter_map(char::from_u32);
        all.filter(|c| *c != '\n').map(String::from).collect()
    }

    #[test]
    fn expressions_that_take_characters_are_known() {
        for takes in [" {2,}", r"\s+", "[a-z]", " ", "a{1,2}b+"] {
            assert!(takes_characters(takes), "{takes}");
        }
        for may_not in [
            "", "a*", "a?", "a|", "a{0,2}", "a{,2}", "(?=a)", r"\b", "^", r"\\s*",
        ] {
            assert!(!takes_characters(may_not), "{may_not}");
        }
    }

    /// Each character, and all that mappings make of it in any order, until there is nothing new.
    #[test]
    fn no_character_grows_more_than_mappings_may_make_it() {
        let kinds = ["Lowercase", "NFC", "NFD", "NFKC", "NFKD"];
        let rules = kinds.map(|kind| json!({"type": kind}));
        let mut changed = HashSet::new();
        for part in characters().chunks(1 << 14) {
            for rule in &rules {
                let mapped = mapped(rule, part.iter().map(String::as_str));
                let pairs = part.iter().zip(mapped).filter(|(c, mapped)| *c != mapped);
                changed.extend(pairs.map(|(c, _)| c.clone()));
            }
        }
        for count in [1, 3, 5] {
            let most = kinds[..count].iter().filter_map(|kind| mapping(kind)).max();
            let most = most.expect("a mapping");
            let mut seen: HashSet<(String, String)> = HashSet::new();
            let mut new: Vec<(String, String)> =
                changed.iter().map(|c| (c.clone(), c.clone())).collect();
            let mut longest = 0;
            while !new.is_empty() {
                let mut next = Vec::new();
                for rule in &rules[..count] {
                    let mapped = mapped(rule, new.iter().map(|(_, text)| text.as_str()));
                    for ((c, _), text) in new.iter().zip(mapped) {
                        longest = longest.max(text.len().div_ceil(c.len()));
                        if seen.insert((c.clone(), text.clone())) {
                            next.push((c.clone(), text));
                        }
                    }
                }
                new = next;
            }
            assert_eq!(longest, most, "{:?}", &kinds[..count]);
        }
    }

    #[test]
    fn no_character_grows_more_than_berts_normalizer_may_make_it() {
        let rule = json!({
            "type": "BertNormalizer", "clean_text": false, "handle_chinese_chars": true,
            "strip_accents": false, "lowercase": true,
        });
        let (spaced, apart) = (&rule, &json!({"type": "NFD"}));
        let mut longest: f64 = 1.0;
        for part in characters().chunks(1 << 14) {
            // Its accents are taken apart before they are taken away.
            let all = mapped(spaced, part.iter().map(String::as_str));
            let all = mapped(apart, all.iter().map(String::as_str));
            for (c, text) in part.iter().zip(all) {
                longest = longest.max(text.len() as f64 / c.len() as f64);
            }
        }
        assert!(longest <= BERT_GROWTH as f64, "{longest}");
    }
}
