//! What one rendering may do and hold.
//!
//! Everything that a template can make grow goes through here: steps pay for evaluating and for
//! looking at elements and bytes, charges for what is held. A rendering runs on one thread, so its
//! limits are that thread's.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use super::fail::{Fail, Res};
use crate::tokenizer::chat::host::RenderHost;

/// Steps of one rendering, and more for each message and for each byte of the arguments.
const STEPS: u64 = 300_000;
const STEPS_PER_MESSAGE: u64 = 7_500;
const STEPS_PER_BYTE: u64 = 1;
/// Bytes of one text (the output is one), and more for each byte of the arguments.
const TEXT_BYTES: usize = 1 << 20;
const TEXT_BYTES_PER_BYTE: usize = 4;
/// Bytes of all values alive at one time, and more for each byte of the arguments.
const HELD_BYTES: usize = 32 << 20;
const HELD_BYTES_PER_BYTE: usize = 16;
/// Bytes that cost a step where the standard library moves or compares them, and where a loop of
/// ours looks at each character.
const BYTES_PER_STEP: usize = 64;
const CHARS_PER_STEP: usize = 16;

/// Steps after which the host is asked whether the text is still wanted.
const STEPS_PER_QUESTION: u64 = 1024;
/// Bytes that the host is asked for at a time.
const HOST_BYTES: usize = 16 << 10;
/// Filters in each other, as `map` applies them.
const FILTERS_MAX: usize = 200;

thread_local! {
    static HOST: RefCell<Option<Arc<dyn RenderHost>>> = const { RefCell::new(None) };
    /// The host is asked again when fewer steps are left, or more bytes are held.
    static ASK_BELOW: Cell<u64> = const { Cell::new(0) };
    static ASK_ABOVE: Cell<usize> = const { Cell::new(usize::MAX) };
    static FILTERS: Cell<usize> = const { Cell::new(0) };
    static STEPS_LEFT: Cell<u64> = const { Cell::new(0) };
    static HELD: Cell<usize> = const { Cell::new(0) };
    static HELD_MAX: Cell<usize> = const { Cell::new(usize::MAX) };
    static TEXT_MAX: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Asks a host, until this is dropped.
pub(super) struct Hosted(());

impl Hosted {
    pub(super) fn by(host: Arc<dyn RenderHost>) -> Self {
        HOST.set(Some(host));
        ASK_BELOW.set(u64::MAX);
        ASK_ABOVE.set(HELD.get());
        Self(())
    }
}

impl Drop for Hosted {
    fn drop(&mut self) {
        ASK_BELOW.set(0);
        ASK_ABOVE.set(usize::MAX);
        HOST.set(None);
    }
}

/// What the host says, which is there while it is to be asked.
fn ask<T>(question: impl FnOnce(&dyn RenderHost) -> T) -> Option<T> {
    HOST.with_borrow(|host| host.as_deref().map(question))
}

/// Lets arguments be made, which are bounded by whoever sent them.
pub(super) fn unlimited() {
    STEPS_LEFT.set(u64::MAX);
    HELD_MAX.set(usize::MAX);
    TEXT_MAX.set(usize::MAX);
}

/// Begins a rendering whose arguments are made: so many bytes, in so many messages.
pub(super) fn begin(bytes: usize, messages: usize) {
    let steps_of_bytes = STEPS_PER_BYTE.saturating_mul(bytes as u64);
    let steps_of_messages = STEPS_PER_MESSAGE.saturating_mul(messages as u64);
    STEPS_LEFT.set(
        STEPS
            .saturating_add(steps_of_bytes)
            .saturating_add(steps_of_messages),
    );
    FILTERS.set(0);
    if ASK_BELOW.get() > 0 {
        ASK_BELOW.set(STEPS_LEFT.get());
    }
    TEXT_MAX.set(TEXT_BYTES.saturating_add(bytes.saturating_mul(TEXT_BYTES_PER_BYTE)));
    let held = HELD_BYTES.saturating_add(bytes.saturating_mul(HELD_BYTES_PER_BYTE));
    HELD_MAX.set(held.saturating_add(HELD.get()));
}

/// Pays for `count` instructions or elements.
pub(super) fn steps(count: usize) -> Res<()> {
    match STEPS_LEFT.get().checked_sub(count as u64) {
        Some(left) => {
            STEPS_LEFT.set(left);
            if left < ASK_BELOW.get() {
                ASK_BELOW.set(left.saturating_sub(STEPS_PER_QUESTION));
                if ask(|host| host.is_wanted()) == Some(false) {
                    return Err(Fail::called_off());
                }
            }
            Ok(())
        }
        None => Err(Fail::steps()),
    }
}

/// Pays for bytes that the standard library goes over.
pub(super) fn bytes(count: usize) -> Res<()> {
    steps(1 + count / BYTES_PER_STEP)
}

/// Pays for characters that are looked at one by one.
pub(super) fn chars(count: usize) -> Res<()> {
    steps(1 + count / CHARS_PER_STEP)
}

/// Refuses a text of so many bytes if that is too many.
pub(super) fn text(count: usize) -> Res<()> {
    if count > TEXT_MAX.get() {
        return Err(Fail::too_long());
    }
    Ok(())
}

/// Applies a filter, which may apply others.
pub(super) fn filter<T>(apply: impl FnOnce() -> Res<T>) -> Res<T> {
    let depth = FILTERS.get();
    if depth >= FILTERS_MAX {
        let problem = format!("filters are nested more than {FILTERS_MAX} deep");
        return Err(Fail::new(problem));
    }
    FILTERS.set(depth + 1);
    let result = apply();
    FILTERS.set(depth);
    result
}

/// Bytes that something holds, until it is dropped.
#[derive(Debug, Default)]
pub(super) struct Charge(usize);

impl Charge {
    pub(super) fn new(bytes: usize) -> Res<Self> {
        let mut charge = Self(0);
        charge.grow(bytes)?;
        Ok(charge)
    }

    pub(super) fn grow(&mut self, bytes: usize) -> Res<()> {
        let held = HELD.get().saturating_add(bytes);
        if held > HELD_MAX.get() {
            return Err(Fail::memory());
        }
        let counted = ASK_ABOVE.get();
        if held > counted {
            let more = (held - counted).max(HOST_BYTES);
            if ask(|host| host.hold(more)) == Some(false) {
                return Err(Fail::memory());
            }
            ASK_ABOVE.set(counted.saturating_add(more));
        }
        HELD.set(held);
        self.0 += bytes;
        Ok(())
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        // At the end of a thread its values may outlive the count.
        let _ = HELD.try_with(|held| held.set(held.get().saturating_sub(self.0)));
    }
}

/// A text that is counted as it grows.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    text: String,
    charge: Charge,
}

impl Buffer {
    pub(super) fn push(&mut self, piece: &str) -> Res<()> {
        text(self.text.len() + piece.len())?;
        bytes(piece.len())?;
        self.charge.grow(piece.len())?;
        self.text.push_str(piece);
        Ok(())
    }

    pub(super) fn push_char(&mut self, c: char) -> Res<()> {
        self.push(c.encode_utf8(&mut [0; 4]))
    }

    /// `c` so many times.
    pub(super) fn fill(&mut self, c: char, times: usize) -> Res<()> {
        let more = times.saturating_mul(c.len_utf8());
        text(self.text.len().saturating_add(more))?;
        bytes(more)?;
        self.charge.grow(more)?;
        self.text.extend(std::iter::repeat_n(c, times));
        Ok(())
    }

    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    pub(super) fn into_parts(self) -> (String, Charge) {
        (self.text, self.charge)
    }
}
