//! What people read when something is refused.

use std::fmt::Display;

/// Bytes that a sentence may have. It may quote a name of a file's, but not the file.
const SENTENCE_BYTES: usize = 32 << 10;

/// Asserts that an error reads as a sentence does.
#[track_caller]
pub(crate) fn assert_sentence(error: &dyn Display) {
    let text = error.to_string();
    let bytes = text.len();
    assert!(bytes <= SENTENCE_BYTES, "an error of {bytes} bytes");
    assert!(text.trim().contains(' '), "no sentence: {text:?}");
}
