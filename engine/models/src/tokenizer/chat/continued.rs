//! Prompts that end in the middle of the last message, which the model is to continue.
//!
//! As transformers does it: the message is rendered with a tag at its end, and the text is cut
//! there.

use serde_json::Value;

use super::ChatError;

const TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// Puts the tag behind the last message's text, or behind the last text among its parts.
///
/// # Errors
/// When it has no text.
pub(super) fn put_tag(messages: &mut [Value]) -> Result<(), ChatError> {
    let content = messages.last_mut().and_then(|last| last.get_mut("content"));
    let text = match content {
        Some(Value::Array(parts)) => {
            let mut texts = parts
                .iter_mut()
                .rev()
                .filter_map(|part| part.get_mut("text"));
            texts.next()
        }
        content => content,
    };
    let Some(Value::String(text)) = text else {
        let why = "the last message has no text that could be continued";
        return Err(ChatError::Failed(why.to_owned()));
    };
    text.push_str(TAG);
    Ok(())
}

/// Cuts a rendered conversation where the last message ends.
///
/// # Errors
/// When the template has left that message out.
pub(super) fn cut_at_tag(mut rendered: String) -> Result<String, ChatError> {
    let Some(at) = rendered.rfind(TAG.trim_end()) else {
        let why = "the chat template does not write the last message, so that it cannot be \
                   continued";
        return Err(ChatError::Failed(why.to_owned()));
    };
    let keeps_spaces = rendered[at..].starts_with(TAG);
    rendered.truncate(at);
    if !keeps_spaces {
        // The template trims messages; without the tag it would have trimmed this one here.
        rendered.truncate(rendered.trim_end().len());
    }
    Ok(rendered)
}
