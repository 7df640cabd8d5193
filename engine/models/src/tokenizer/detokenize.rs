//! Streams the text of tokens that arrive one at a time.

use std::borrow::Cow;
use std::fmt;
use std::str;
use std::sync::Arc;

use super::Tokenizer;

/// Turns ids into text as they come, and never splits a character: bytes that may still become
/// one are held back (at most three of them) until the next token or [`Self::finish`] decides.
///
/// The pieces of a text, put together, are exactly [`Tokenizer::decode`] of all its ids; or, for
/// the text that continues a prompt, the same with its leading space kept.
pub struct IncrementalDetokenizer {
    tokenizer: Arc<Tokenizer>,
    skip_special: bool,
    /// The beginning of a character that is not complete yet.
    held: Vec<u8>,
    /// The next character begins the text, where one space is not part of it.
    strip: bool,
}

impl IncrementalDetokenizer {
    /// For a text that begins with the next id.
    pub fn new(tokenizer: Arc<Tokenizer>, skip_special: bool) -> Self {
        let strip = tokenizer.strips_space;
        Self {
            tokenizer,
            skip_special,
            held: Vec::new(),
            strip,
        }
    }

    /// For a text that continues another one (the answer to a prompt): a leading space is kept,
    /// because it separates the two.
    pub fn continuing(tokenizer: Arc<Tokenizer>, skip_special: bool) -> Self {
        Self {
            strip: false,
            ..Self::new(tokenizer, skip_special)
        }
    }

    /// The text of a token that [`Self::push`] leaves out because it is special; else empty.
    pub fn hidden_text(&self, id: u32) -> Cow<'_, str> {
        let is_hidden = self.skip_special && self.tokenizer.is_special(id);
        let bytes = self.tokenizer.token_bytes(id).filter(|_| is_hidden);
        String::from_utf8_lossy(bytes.unwrap_or(b""))
    }

    /// Appends to `text` whatever the next token makes certain.
    pub fn push(&mut self, id: u32, text: &mut String) {
        self.held
            .extend_from_slice(self.tokenizer.text_bytes(id, self.skip_special));
        self.emit(text, false);
    }

    /// Appends what was held back: no more tokens will come. The text may then begin anew.
    pub fn finish(&mut self, text: &mut String) {
        self.emit(text, true);
        self.held.clear();
    }

    /// Moves whole characters from `held` to `text`; invalid bytes become U+FFFD, one for each
    /// longest run that could have begun a character (as `String::from_utf8_lossy` does).
    fn emit(&mut self, text: &mut String, last: bool) {
        let start = text.len();
        let mut rest = self.held.as_slice();
        loop {
            match str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    rest = b"";
                    break;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    text.push_str(str::from_utf8(valid).unwrap_or_default());
                    match error.error_len() {
                        Some(len) => {
                            text.push(char::REPLACEMENT_CHARACTER);
                            rest = &after[len..];
                        }
                        None if last => {
                            text.push(char::REPLACEMENT_CHARACTER);
                            rest = b"";
                            break;
                        }
                        None => {
                            rest = after;
                            break;
                        }
                    }
                }
            }
        }
        let kept = self.held.len() - rest.len();
        self.held.drain(..kept);
        if self.strip && text.len() > start {
            self.strip = false;
            if text[start..].starts_with(' ') {
                text.remove(start);
            }
        }
    }
}

impl fmt::Debug for IncrementalDetokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IncrementalDetokenizer")
            .field("skip_special", &self.skip_special)
            .field("held", &self.held)
            .field("strip", &self.strip)
            .finish_non_exhaustive()
    }
}
