//! Texts, and what to say when an undefined value is used.

use std::rc::Rc;

use super::super::budget::{self, Buffer, Charge};
use super::super::fail::Res;
use super::{OBJECT_BYTES, Seq, Value};

/// What to say when an undefined value is used.
pub(in super::super) struct Message {
    text: Box<str>,
    _charge: Charge,
}

impl From<&Message> for String {
    fn from(message: &Message) -> Self {
        message.text.as_ref().to_owned()
    }
}

pub(in super::super) struct Text {
    text: String,
    /// Whether each character is a byte.
    is_ascii: bool,
    /// Whether it is HTML, which what is added to it is escaped for.
    is_markup: bool,
    _charge: Charge,
}

impl Text {
    pub(in super::super) fn as_str(&self) -> &str {
        &self.text
    }

    /// Number of characters.
    pub(in super::super) fn len(&self) -> Res<usize> {
        if self.is_ascii {
            return Ok(self.text.len());
        }
        budget::bytes(self.text.len())?;
        Ok(self.text.chars().count())
    }

    pub(in super::super) fn is_markup(&self) -> bool {
        self.is_markup
    }

    pub(in super::super) fn is_ascii(&self) -> bool {
        self.is_ascii
    }
}

impl Value {
    pub(in super::super) fn text(text: impl Into<String>) -> Res<Self> {
        let text = text.into();
        budget::text(text.len())?;
        budget::bytes(text.len())?;
        let charge = Charge::new(text.len() + 64)?;
        Ok(Self::of_text(text, charge))
    }

    fn of_text(text: String, charge: Charge) -> Self {
        Self::Text(Rc::new(Text {
            is_ascii: text.is_ascii(),
            text,
            is_markup: false,
            _charge: charge,
        }))
    }

    /// A text as HTML: Python's `Markup`.
    pub(in super::super) fn marked(self) -> Res<Self> {
        match self {
            Self::Text(text) if !text.is_markup => match Rc::try_unwrap(text) {
                Ok(text) => Ok(Self::Text(Rc::new(Text {
                    is_markup: true,
                    ..text
                }))),
                Err(shared) => Self::text(shared.as_str())?.marked(),
            },
            other => Ok(other),
        }
    }

    /// Marks a text, and those in a list, if `is_markup`.
    pub(in super::super) fn marked_if(self, is_markup: bool) -> Res<Self> {
        let each = |seq: &Seq| {
            let items = seq.items.iter().cloned().map(Self::marked);
            Seq::new(items.collect::<Res<_>>()?)
        };
        match self {
            value if !is_markup => Ok(value),
            Self::List(seq) => Ok(Self::List(each(&seq)?)),
            Self::Tuple(seq) => Ok(Self::Tuple(each(&seq)?)),
            value => value.marked(),
        }
    }

    pub(in super::super) fn buffer(buffer: Buffer) -> Self {
        let (text, charge) = buffer.into_parts();
        Self::of_text(text, charge)
    }

    /// An undefined value, with what to say when it is used. Names in it are
    /// [cut](super::super::fail::Named).
    pub(in super::super) fn undefined(message: impl Into<Box<str>>) -> Res<Self> {
        let text = message.into();
        let _charge = Charge::new(OBJECT_BYTES + text.len())?;
        Ok(Self::Undefined(Rc::new(Message { text, _charge })))
    }
}
