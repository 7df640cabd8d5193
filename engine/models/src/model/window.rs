//! Sliding-window attention.

use ebb_kernels::model::{Mixer, ModelSpec};

/// Gives layers a window, and the last RoPE. A window at least as long as the context is left out.
pub(super) fn put_windows(
    spec: &mut ModelSpec,
    window: Option<usize>,
    has_window: impl Fn(usize) -> bool,
) {
    let window = window.filter(|window| *window < spec.max_positions);
    for (index, layer) in spec.layers.iter_mut().enumerate() {
        if !has_window(index) {
            continue;
        }
        let Mixer::Attention(attention) = &mut layer.mixer else {
            continue;
        };
        attention.window = window;
        if let Some(rope) = &mut attention.rope {
            *rope = spec.ropes.len() - 1;
        }
    }
}

/// Takes the windows out of a spec for a device that does not compute them: a context no longer
/// than the smallest sees every token. The sentence for the user says so.
pub(super) fn limit_to_windows(spec: &mut ModelSpec, device: &str) -> Option<String> {
    let layers = spec.layers.iter_mut();
    let windows = layers.filter_map(|layer| match &mut layer.mixer {
        Mixer::Attention(attention) => {
            attention.chunked = false;
            attention.window.take()
        }
        Mixer::Recurrent(_) | Mixer::None => None,
    });
    let window = windows.min()?;
    let context = std::mem::replace(&mut spec.max_positions, window);
    Some(format!(
        "the context is limited to {window} of the model's {context} tokens, because {device} does \
         not compute attention windows (`sliding_window`) beyond their own length"
    ))
}
