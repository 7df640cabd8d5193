//! Model files and tokenizers: what is on disk, as the engine wants it.

pub mod model;
mod open;
pub mod tokenizer;

pub use open::{OpenError, Opened, open, open_as};
