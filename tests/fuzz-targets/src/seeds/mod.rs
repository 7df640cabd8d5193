//! Inputs to begin with: sound ones of every kind, and what has failed before.

mod calls;
mod gguf;
mod json;
mod models;
mod templates;

pub(crate) use models::tiny_configs;

/// A target's name, an input's, and the input.
pub type Seed = (&'static str, String, Vec<u8>);

/// All of them.
pub fn all() -> Vec<Seed> {
    let mut seeds = Vec::new();
    let mut add = |target, inputs: Vec<(String, Vec<u8>)>| {
        let named = inputs.into_iter();
        seeds.extend(named.map(|(name, bytes)| (target, format!("seed-{name}"), bytes)));
    };
    add("protobuf", calls::messages());
    add("grpc_frames", calls::connections());
    add("gguf", gguf::files());
    add("safetensors", models::safetensors());
    add("config_json", models::configs());
    add("tokenizer_json", json::tokenizers());
    add("hub_listing", json::listings());
    add("kv_profile", json::profiles());
    add("trajectory", json::logs());
    add("template", templates::all());
    seeds
}
