//! Sliding-window attention, which this engine does not compute, inside the window.

/// A context no longer than the window sees every token, so up to there full attention is exact.
/// Returns the context length to offer, and a sentence for the user when that is less.
pub(super) fn clamp_to_window(
    context: usize,
    window: Option<usize>,
    field: &str,
) -> (usize, Vec<String>) {
    match window {
        Some(window) if window < context => {
            let note = format!(
                "the context is limited to {window} of the model's {context} tokens, because its \
                 attention window (`{field}`) is not supported beyond its own length"
            );
            (window, vec![note])
        }
        _ => (context, Vec::new()),
    }
}
