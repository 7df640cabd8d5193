//! The prompts of a completion: a text, token ids, or a list of either.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};

use super::common::TokenId;
use crate::core::Prompt;

/// Prompts of one call. Each is a request of its own and takes a place in the queue.
pub(super) const PROMPTS_MAX: usize = 1024;

/// What the field `prompt` holds.
#[derive(Debug)]
pub(super) struct Prompts {
    pub(super) prompts: Vec<Prompt>,
    /// Whether it was one, not a list.
    pub(super) single: bool,
}

/// An entry of a list.
enum Entry {
    Text(String),
    Id(u32),
    Ids(Vec<u32>),
}

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visit;
        impl<'de> Visitor<'de> for Visit {
            type Value = Entry;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, a token id, or a list of token ids")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Entry, E> {
                Ok(Entry::Text(text.to_owned()))
            }

            fn visit_string<E: Error>(self, text: String) -> Result<Entry, E> {
                Ok(Entry::Text(text))
            }

            fn visit_u64<E: Error>(self, id: u64) -> Result<Entry, E> {
                let wrong = |_| E::custom(format!("{id} is not a token id"));
                u32::try_from(id).map(Entry::Id).map_err(wrong)
            }

            fn visit_i64<E: Error>(self, id: i64) -> Result<Entry, E> {
                Err(E::custom(format!("{id} is not a token id")))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Entry, A::Error> {
                let mut ids = Vec::new();
                while let Some(TokenId(id)) = list.next_element()? {
                    ids.push(id);
                }
                Ok(Entry::Ids(ids))
            }
        }
        deserializer.deserialize_any(Visit)
    }
}

impl<'de> Deserialize<'de> for Prompts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visit;
        impl<'de> Visitor<'de> for Visit {
            type Value = Prompts;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, a list of strings, or token ids")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Prompts, E> {
                self.visit_string(text.to_owned())
            }

            fn visit_string<E: Error>(self, text: String) -> Result<Prompts, E> {
                Ok(Prompts {
                    prompts: vec![Prompt::Text(text)],
                    single: true,
                })
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Prompts, A::Error> {
                read_list(list)
            }
        }
        deserializer.deserialize_any(Visit)
    }
}

fn read_list<'de, A: SeqAccess<'de>>(mut list: A) -> Result<Prompts, A::Error> {
    let mixed = || A::Error::custom("texts and token ids cannot be in one list");
    let mut prompts = Vec::new();
    let mut ids = Vec::new();
    while let Some(entry) = list.next_element()? {
        match entry {
            Entry::Id(id) if prompts.is_empty() => ids.push(id),
            Entry::Text(text) if ids.is_empty() => prompts.push(Prompt::Text(text)),
            Entry::Ids(own) if ids.is_empty() => prompts.push(Prompt::Tokens(own)),
            _ => return Err(mixed()),
        }
        if prompts.len() > PROMPTS_MAX {
            let why = format!("it has more than {PROMPTS_MAX} prompts; send fewer at once");
            return Err(A::Error::custom(why));
        }
    }
    if prompts.is_empty() {
        return Ok(Prompts {
            prompts: vec![Prompt::Tokens(ids)],
            single: true,
        });
    }
    Ok(Prompts {
        prompts,
        single: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::json::parse;

    #[test]
    fn a_prompt_is_a_text_ids_or_a_list_of_either() {
        let read = |text: &str| {
            let prompts: Prompts = parse(text.as_bytes()).unwrap();
            (format!("{:?}", prompts.prompts), prompts.single)
        };
        assert_eq!(read("\"a\""), ("[Text(\"a\")]".into(), true));
        assert_eq!(read("[1, 2]"), ("[Tokens([1, 2])]".into(), true));
        assert_eq!(read("[\"a\"]"), ("[Text(\"a\")]".into(), false));
        assert_eq!(read("[[1], [2, 3]]").0, "[Tokens([1]), Tokens([2, 3])]");
        // The engine says that it is empty.
        assert_eq!(read("[]"), ("[Tokens([])]".into(), true));
    }

    #[test]
    fn anything_else_is_refused_at_its_place() {
        let param = |text: &str| parse::<Prompts>(text.as_bytes()).unwrap_err().param;
        for (text, place) in [
            ("7", None),
            ("{}", None),
            ("[\"a\", 1]", None),
            ("[1, -1]", Some("[1]")),
            ("[1, 2.5]", Some("[1]")),
            ("[[1], [2, \"a\"]]", Some("[1][1]")),
            ("[4294967296]", Some("[0]")),
        ] {
            assert_eq!(param(text).as_deref(), place, "{text}");
        }
        let many = format!("[{}\"\"]", "\"\",".repeat(PROMPTS_MAX));
        assert_eq!(param(&many), None);
    }
}
