//! VaultGemma: Gemma 2 without norms behind attention and MLP.

use ebb_kernels::model::NormPlace;

use super::{Family, TextType, gemma2};

pub(super) static FAMILY: Family = Family {
    name: "vaultgemma",
    hf_class: "VaultGemmaForCausalLM",
    hf_text: &[TextType {
        model_types: &["vaultgemma"],
        ..gemma2::TEXT
    }],
    hf_spec: |config| {
        let mut spec = gemma2::hf_spec_with_caps(config)?;
        for layer in &mut spec.layers {
            (layer.mixer_norm, layer.mlp_norm) = (NormPlace::Before, NormPlace::Before);
        }
        Ok(spec)
    },
    hf_tensor: gemma2::hf_tensor,
    gguf: None,
};
