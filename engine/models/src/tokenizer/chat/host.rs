//! Who a conversation is rendered for.

/// Whoever wants a rendering: asked while it goes on.
pub trait RenderHost: Send + Sync {
    /// Whether the text is still wanted. Asked every thousand steps.
    fn is_wanted(&self) -> bool;

    /// Whether the rendering may hold so many bytes more than before.
    fn hold(&self, bytes: usize) -> bool;
}
