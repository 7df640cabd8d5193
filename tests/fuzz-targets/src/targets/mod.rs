//! The targets.

pub(crate) mod config_json;
mod engine;
pub(crate) mod gguf;
pub(crate) mod grpc_frames;
pub(crate) mod hub_listing;
pub(crate) mod kv_profile;
mod model;
pub(crate) mod protobuf;
pub(crate) mod safetensors;
pub(crate) mod template;
pub(crate) mod tokenizer_json;
pub(crate) mod trajectory;
