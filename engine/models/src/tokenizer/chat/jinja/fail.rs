//! Why a rendering ended.

use std::fmt;

/// Bytes of a message, and of a name or a value in one: templates make texts of any length.
const MESSAGE_BYTES_MAX: usize = 1000;
const NAME_BYTES_MAX: usize = 100;

/// What the renderer's functions give.
pub(super) type Res<T> = Result<T, Fail>;

/// A failure, with the line it happened in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::tokenizer::chat) struct Fail(Box<(u32, Why)>);

/// The kinds of failures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::tokenizer::chat) enum Why {
    /// The template does something that Python refuses.
    Error(String),
    /// `raise_exception`, with these words.
    Raised(String),
    /// More steps than a rendering may take.
    Steps,
    /// A longer text than a rendering may make.
    TooLong,
    /// More values at a time than a rendering may hold.
    Memory,
    /// Nobody wants the text any more.
    CalledOff,
}

impl Fail {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self(Box::new((0, Why::Error(short(message.into())))))
    }

    pub(super) fn raised(message: String) -> Self {
        Self(Box::new((0, Why::Raised(short(message)))))
    }

    pub(super) fn steps() -> Self {
        Self(Box::new((0, Why::Steps)))
    }

    pub(super) fn too_long() -> Self {
        Self(Box::new((0, Why::TooLong)))
    }

    pub(super) fn memory() -> Self {
        Self(Box::new((0, Why::Memory)))
    }

    pub(super) fn called_off() -> Self {
        Self(Box::new((0, Why::CalledOff)))
    }

    /// Whether a limit is reached, which is not the template's own error.
    pub(super) fn is_limit(&self) -> bool {
        !matches!(self.0.1, Why::Error(_) | Why::Raised(_))
    }

    /// With the line, if none is known.
    pub(super) fn at(mut self, line: u32) -> Self {
        if self.0.0 == 0 {
            self.0.0 = line;
        }
        self
    }

    /// The line, 0 if it is not known, and the reason.
    pub(in crate::tokenizer::chat) fn into_parts(self) -> (u32, Why) {
        *self.0
    }
}

/// At most so many bytes of a text, in whole characters.
fn beginning(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

fn short(mut message: String) -> String {
    let kept = beginning(&message, MESSAGE_BYTES_MAX).len();
    if kept < message.len() {
        message.truncate(kept);
        message.push('…');
        message.shrink_to_fit();
    }
    message
}

/// A name or a value in a message, cut where it is long.
pub(super) struct Named<'a>(pub(super) &'a str);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kept = beginning(self.0, NAME_BYTES_MAX);
        f.write_str(kept)?;
        f.write_str(if kept.len() < self.0.len() { "…" } else { "" })
    }
}

/// An error of the template.
pub(super) fn fail<T>(message: impl Into<String>) -> Res<T> {
    Err(Fail::new(message))
}
