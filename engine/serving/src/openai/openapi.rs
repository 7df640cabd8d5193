//! `GET /openapi.json`: this API, told in the form that tools read.

use axum::http::{HeaderValue, header};
use axum::response::IntoResponse;

/// The document. A test compares its fields with those of the request types.
const DOCUMENT: &str = include_str!("openapi.json");

pub(super) async fn document() -> impl IntoResponse {
    let json = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, json)], DOCUMENT)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde::Deserialize;
    use serde::de::{self, Deserializer, Visitor, value};
    use serde_json::Value;

    use super::super::{chat, common, completions, responses, tokens};
    use super::*;

    /// Learns the names of a struct's fields instead of reading any.
    struct Names<'a>(&'a mut BTreeSet<String>);

    impl<'de> Deserializer<'de> for Names<'_> {
        type Error = value::Error;

        fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
            Err(de::Error::custom("not a struct"))
        }

        fn deserialize_struct<V: Visitor<'de>>(
            self,
            _: &'static str,
            fields: &'static [&'static str],
            _: V,
        ) -> Result<V::Value, Self::Error> {
            self.0.extend(fields.iter().map(|&name| name.to_owned()));
            Err(de::Error::custom("its names are known"))
        }

        serde::forward_to_deserialize_any! {
            bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit
            unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
        }
    }

    fn names<T: for<'de> Deserialize<'de>>(into: &mut BTreeSet<String>) {
        assert!(T::deserialize(Names(into)).is_err());
    }

    /// The names of the parts that a body is read as.
    fn fields<const N: usize>(parts: [fn(&mut BTreeSet<String>); N]) -> BTreeSet<String> {
        let mut all = BTreeSet::new();
        parts.iter().for_each(|names| names(&mut all));
        all
    }

    fn document() -> Value {
        serde_json::from_str(DOCUMENT).expect("JSON")
    }

    #[test]
    fn every_field_of_a_request_is_told_and_no_other() {
        use common::Common;

        use crate::http::messages::Rendering;
        let document = document();
        let anthropic = fields([names::<crate::anthropic::Fields>]);
        let (common, rendering) = (names::<Common>, names::<Rendering>);
        for (schema, fields) in [
            (
                "ChatCompletionRequest",
                fields([names::<chat::Chat>, common, rendering]),
            ),
            (
                "CompletionRequest",
                fields([names::<completions::Completions>, common]),
            ),
            (
                "ResponseRequest",
                fields([names::<responses::Fields>, common]),
            ),
            ("MessagesRequest", anthropic.clone()),
            ("CountTokensRequest", anthropic),
            (
                "TokenizeRequest",
                fields([names::<tokens::Tokenize>, rendering]),
            ),
            ("DetokenizeRequest", fields([names::<tokens::Detokenize>])),
        ] {
            let told = &document["components"]["schemas"][schema]["properties"];
            let told = told.as_object().expect(schema).keys().cloned();
            assert_eq!(told.collect::<BTreeSet<_>>(), fields, "{schema}");
        }
    }

    #[test]
    fn every_reference_leads_somewhere_and_the_version_is_this_ones() {
        let document = document();
        assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
        let mut left = vec![&document];
        while let Some(value) = left.pop() {
            match value {
                Value::Array(list) => left.extend(list),
                Value::Object(map) => left.extend(map.values()),
                _ => {}
            }
            if let Some(place) = value.get("$ref").and_then(Value::as_str) {
                let pointer = place.strip_prefix('#').expect("a place in the document");
                assert!(document.pointer(pointer).is_some(), "{place}");
            }
        }
    }
}
