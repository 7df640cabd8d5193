//! What the rules of a tokenizer.json may be, so that no file makes loading or encoding take what
//! nobody has.

use serde_json::Value;

use super::{TokenizerError, charsmap};

/// The field that holds a character table.
const TABLE: &str = "precompiled_charsmap";
/// Bytes of it, which known ones have some 300,000 of.
const TABLE_BYTES_MAX: usize = 2 << 20;

/// Rules of one part, those in sequences included. The longest known parts have some ten.
const RULES_MAX: usize = 64;
/// Bytes of one pattern or replacement. The longest known pattern has some 1,000.
const RULE_BYTES_MAX: usize = 16 << 10;
/// How much longer than the text all rules together may make it, and all character tables: every
/// byte is kept with where it came from. Known files put three bytes before a piece and in place of
/// a space (12), or spell bytes as letters (2); tables make 33 bytes of three (11).
const GROWTH_MAX: usize = 16;
/// Bytes that a character table may put in place of one character. NFKC's longest has 33.
const CHARSMAP_TEXT_BYTES_MAX: usize = 64;
/// Bytes of one added token, and of all: an automaton is built of them, and several times.
const ADDED_TOKEN_BYTES_MAX: usize = 1 << 10;
const ADDED_BYTES_MAX: usize = 4 << 20;

/// Checks the normalizer and the pre-tokenizer, and gives how many times as long as a text what
/// they make of it can be.
pub(super) fn check_rules(
    normalizer: &Value,
    pre_tokenizer: &Value,
) -> Result<usize, TokenizerError> {
    let mut rules = Rules {
        field: "",
        count: 0,
        growth: 1,
        table_growth: 1,
    };
    for (field, part) in [
        ("normalizer in tokenizer.json", normalizer),
        ("pre_tokenizer in tokenizer.json", pre_tokenizer),
    ] {
        (rules.field, rules.count) = (field, 0);
        rules.enter(part)?;
        rules.check_growth()?;
    }
    Ok(rules.growth.saturating_mul(rules.table_growth))
}

/// Checks the lengths of added tokens, which `field` names.
pub(super) fn check_added(
    field: &'static str,
    lengths: impl Iterator<Item = usize> + Clone,
) -> Result<(), TokenizerError> {
    let longest = lengths.clone().max().unwrap_or(0);
    for (what, bytes, most) in [
        ("a token", longest, ADDED_TOKEN_BYTES_MAX),
        ("tokens", lengths.sum(), ADDED_BYTES_MAX),
    ] {
        if bytes > most {
            let problem = format!("has {what} of {bytes} bytes; at most {most} are supported");
            return Err(TokenizerError::invalid(field, problem));
        }
    }
    Ok(())
}

struct Rules {
    field: &'static str,
    count: usize,
    /// What a piece of one byte can become by all rules so far, and by all character tables.
    growth: usize,
    table_growth: usize,
}

impl Rules {
    fn refused<T>(&self, problem: String) -> Result<T, TokenizerError> {
        Err(TokenizerError::invalid(self.field, problem))
    }

    /// Counts rules, and follows how a text grows by one after another. The JSON reader bounds how
    /// deep this goes.
    fn enter(&mut self, part: &Value) -> Result<(), TokenizerError> {
        let fields = match part {
            Value::Array(parts) => return parts.iter().try_for_each(|p| self.enter(p)),
            Value::String(text) if text.len() > RULE_BYTES_MAX => {
                let bytes = text.len();
                return self.refused(format!(
                    "has a text of {bytes} bytes; at most {RULE_BYTES_MAX} are supported"
                ));
            }
            Value::Object(fields) => fields,
            _ => return Ok(()),
        };
        self.count += usize::from(fields.get("type").is_some_and(Value::is_string));
        if self.count > RULES_MAX {
            return self.refused(format!(
                "has more than {RULES_MAX} rules, which is the most supported"
            ));
        }
        let text = |key: &str| part[key].as_str().map_or(0, str::len);
        match part["type"].as_str() {
            Some("Replace") => {
                self.growth = self.growth.saturating_mul(growth(part));
                self.check_growth()?;
            }
            // Before each piece between added tokens, of which one byte makes one.
            Some("Prepend") => self.growth = self.growth.saturating_add(text("prepend")),
            // A space before each piece, and two bytes for most.
            Some("ByteLevel") => {
                let spaces = part["add_prefix_space"].as_bool().unwrap_or(true);
                let spaced = self.growth.saturating_add(usize::from(spaces));
                self.growth = spaced.saturating_mul(2);
            }
            // Three bytes for a space, and before each piece.
            Some("Metaspace") => self.growth = self.growth.saturating_mul(4),
            // Spaces around each Chinese character.
            Some("BertNormalizer") => self.growth = self.growth.saturating_mul(2),
            _ => {}
        }
        // The one long text there is: a table, which is looked up and not searched for.
        if let Some(table) = fields.get(TABLE).and_then(Value::as_str) {
            self.table_growth = self.table_growth.saturating_mul(self.table(table)?);
        }
        let mut others = fields.iter().filter(|(key, _)| *key != TABLE);
        others.try_for_each(|(_, value)| self.enter(value))
    }

    fn check_growth(&self) -> Result<(), TokenizerError> {
        if self.growth.max(self.table_growth) > GROWTH_MAX {
            return self.refused(format!(
                "can make a text more than {GROWTH_MAX} times as long, which is the most supported"
            ));
        }
        Ok(())
    }

    /// How many times as long a text a character table can make.
    fn table(&self, table: &str) -> Result<usize, TokenizerError> {
        if table.len() > TABLE_BYTES_MAX {
            return self.refused(format!(
                "has a {TABLE} of {} bytes; at most {TABLE_BYTES_MAX} are supported",
                table.len()
            ));
        }
        let read = charsmap::read(table);
        match read.filter(|read| read.text_bytes <= CHARSMAP_TEXT_BYTES_MAX) {
            Some(read) => Ok(read.growth),
            None => self.refused(format!(
                "has a {TABLE} that is damaged, or has a text of more than \
                 {CHARSMAP_TEXT_BYTES_MAX} bytes for a character"
            )),
        }
    }
}

/// How many times as long a text a replacement can make, at most.
fn growth(replace: &Value) -> usize {
    let content = replace["content"].as_str().map_or(0, str::len);
    match replace["pattern"]["String"].as_str() {
        Some(pattern) if !pattern.is_empty() => content.div_ceil(pattern.len()).max(1),
        // Before each byte, as a regular expression may match too.
        _ => 1 + content,
    }
}
