//! Model files and tokenizers: what is on disk, as the engine wants it.

pub mod model;
mod open;
mod python_json;
mod stack;
pub mod tokenizer;

pub use open::{OpenError, Opened, open, open_as};
pub use stack::{KNOWN_STACK_BYTES, spawn_with_known_stack, with_known_stack};
