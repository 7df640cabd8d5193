//! Names of a request's fields, as `ebb.v1` spells them.

use crate::core::Field;

/// The field's path in the message.
pub(super) fn path(field: Field) -> String {
    match field {
        Field::RequestId => "request_id".into(),
        Field::Prompt => "prompt".into(),
        Field::Text => "text".into(),
        Field::TokenIds => "token_ids".into(),
        Field::TokenId(i) => format!("token_ids[{i}]"),
        Field::Chat => "chat".into(),
        Field::ChatMessages => "chat.messages".into(),
        Field::ChatRole(i) => format!("chat.messages[{i}].role"),
        Field::Timeout => "timeout_ms".into(),
        Field::MinKvBits => "min_kv_bits".into(),
        // Of these the message has the names that sampling has.
        Field::Sampling(param) => format!("sampling.{param}"),
    }
}
