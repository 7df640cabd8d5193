//! Model files: parsing, dequantisation, every family, and hostile input.

mod converted;
mod dequant;
mod dummy;
mod ends;
mod fetching;
mod gguf_builder;
mod gguf_contents;
mod gguf_damage;
mod gguf_families;
mod gguf_hostile;
mod gguf_refusals;
mod gguf_split;
mod hf_builder;
mod hf_families;
mod hf_fields;
mod hf_hostile;
mod hf_hybrids;
mod hf_text_parts;
mod hub;
mod hub_server;
mod locating;
mod packed;
mod quantised;
mod real_model;
mod templates;
mod tiny;
