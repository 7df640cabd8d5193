//! The tokenizer and chat templates against recorded answers and real vocabularies.

mod byte_level;
mod chat;
mod chat_bounds;
mod chat_hostile;
mod detokenize;
mod errors;
mod files;
mod golden;
mod sentencepiece;
mod speed;
