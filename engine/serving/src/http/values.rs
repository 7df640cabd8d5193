//! Values as clients write them: lenient where the meaning is clear, and with a sentence where it
//! is not.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Unexpected, Visitor};

use super::Problem;

/// A whole number; `16.0` is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Whole(pub(crate) i64);

impl Whole {
    /// The number as `T`.
    ///
    /// # Errors
    /// When it is too small or too large for that.
    pub(crate) fn get<T: TryFrom<i64>>(self, param: &str, allowed: &str) -> Result<T, Problem> {
        let wrong = |_| Problem::invalid(param, format!("it is {}; it must be {allowed}", self.0));
        T::try_from(self.0).map_err(wrong)
    }
}

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visit;
        impl Visitor<'_> for Visit {
            type Value = Whole;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number")
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Whole, E> {
                Ok(Whole(number))
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Whole, E> {
                let wrong = |_| E::invalid_value(Unexpected::Unsigned(number), &self);
                i64::try_from(number).map(Whole).map_err(wrong)
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<Whole, E> {
                // Beyond this not every whole number is one of its kind.
                const EXACT: f64 = 9_007_199_254_740_992.0;
                if number.fract() == 0.0 && number.abs() <= EXACT {
                    Ok(Whole(number as i64))
                } else {
                    Err(E::invalid_type(Unexpected::Float(number), &self))
                }
            }
        }
        deserializer.deserialize_any(Visit)
    }
}

/// Any number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Number(pub(crate) f32);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visit;
        impl Visitor<'_> for Visit {
            type Value = Number;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number")
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Number, E> {
                Ok(Number(number as f32))
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Number, E> {
                Ok(Number(number as f32))
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<Number, E> {
                Ok(Number(number as f32))
            }
        }
        deserializer.deserialize_any(Visit)
    }
}

/// One text or a list of texts, of which there are at most `MOST`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Texts<const MOST: usize> {
    pub(crate) texts: Vec<String>,
    /// Whether it was one, not a list.
    pub(crate) single: bool,
}

impl<'de, const MOST: usize> Deserialize<'de> for Texts<MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visit<const MOST: usize>;
        impl<'de, const MOST: usize> Visitor<'de> for Visit<MOST> {
            type Value = Texts<MOST>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a list of strings")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
                self.visit_string(text.to_owned())
            }

            fn visit_string<E: Error>(self, text: String) -> Result<Self::Value, E> {
                Ok(Texts {
                    texts: vec![text],
                    single: true,
                })
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut texts = Vec::new();
                while let Some(text) = list.next_element()? {
                    if texts.len() == MOST {
                        let why = format!("it has more than {MOST} entries; send fewer");
                        return Err(A::Error::custom(why));
                    }
                    texts.push(text);
                }
                Ok(Texts {
                    texts,
                    single: false,
                })
            }
        }
        deserializer.deserialize_any(Visit)
    }
}

/// A field that asks for what Ebb does not have, unless it asks for nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Absent, null, false, or an empty list, object or text.
    #[default]
    Nothing,
    /// A text.
    Word(String),
    /// Anything else.
    Something,
}

impl Asked {
    /// Refuses whatever is not nothing, nor one of these words.
    pub(crate) fn refuse(&self, param: &str, what: &str, harmless: &[&str]) -> Result<(), Problem> {
        match self {
            Self::Nothing => Ok(()),
            Self::Word(word) if harmless.contains(&word.as_str()) => Ok(()),
            _ => Err(Problem::unsupported(param, what)),
        }
    }
}

impl<'de> Deserialize<'de> for Asked {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visit;
        impl<'de> Visitor<'de> for Visit {
            type Value = Asked;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("anything")
            }

            fn visit_unit<E: Error>(self) -> Result<Asked, E> {
                Ok(Asked::Nothing)
            }

            fn visit_bool<E: Error>(self, flag: bool) -> Result<Asked, E> {
                Ok(if flag {
                    Asked::Something
                } else {
                    Asked::Nothing
                })
            }

            fn visit_i64<E: Error>(self, _: i64) -> Result<Asked, E> {
                Ok(Asked::Something)
            }

            fn visit_u64<E: Error>(self, _: u64) -> Result<Asked, E> {
                Ok(Asked::Something)
            }

            fn visit_f64<E: Error>(self, _: f64) -> Result<Asked, E> {
                Ok(Asked::Something)
            }

            fn visit_str<E: Error>(self, word: &str) -> Result<Asked, E> {
                Ok(match word {
                    "" => Asked::Nothing,
                    word => Asked::Word(word.to_owned()),
                })
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Asked, A::Error> {
                let mut asked = Asked::Nothing;
                while list.next_element::<IgnoredAny>()?.is_some() {
                    asked = Asked::Something;
                }
                Ok(asked)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Asked, A::Error> {
                let mut asked = Asked::Nothing;
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
                    asked = Asked::Something;
                }
                Ok(asked)
            }
        }
        deserializer.deserialize_any(Visit)
    }
}

/// A value that is an object; serde would take a list of its fields, too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Object<T>(pub(crate) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visit<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Visit<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }
        deserializer.deserialize_any(Visit(PhantomData))
    }
}

/// An object of which the `type` alone is looked at.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Typed {
    pub(crate) r#type: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse<T: for<'de> Deserialize<'de>>(text: &str) -> Result<T, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn whole_numbers_are_read_however_they_are_written() {
        for (text, number) in [("16", 16), ("16.0", 16), ("1e3", 1000), ("-1", -1)] {
            assert_eq!(parse(text), Ok(Whole(number)));
        }
        for text in [
            "1.5",
            "\"16\"",
            "1e300",
            "18446744073709551615",
            "true",
            "[]",
        ] {
            let error = parse::<Whole>(text).unwrap_err();
            assert!(error.contains("a whole number"), "{error}");
        }
        assert_eq!(Whole(7).get::<u32>("n", "at least 0").unwrap(), 7);
        let error = Whole(-1).get::<u32>("n", "at least 0").unwrap_err();
        assert_eq!(error.message, "n: it is -1; it must be at least 0");
        assert_eq!(parse("1"), Ok(Number(1.0)));
        assert!(parse::<Number>("\"hot\"").is_err());
    }

    #[test]
    fn one_text_is_a_list_of_one() {
        let list = |text| parse::<Texts<2>>(text).map(|t| (t.texts, t.single));
        assert_eq!(list("\"a\""), Ok((vec!["a".into()], true)));
        assert_eq!(
            list("[\"a\", \"b\"]"),
            Ok((vec!["a".into(), "b".into()], false))
        );
        assert!(
            list("[\"a\", \"b\", \"c\"]")
                .unwrap_err()
                .contains("more than 2")
        );
        assert!(list("[1]").is_err() && list("{}").is_err());
    }

    #[test]
    fn what_asks_for_nothing_is_not_refused() {
        for text in ["null", "false", "[]", "{}", "\"\""] {
            assert_eq!(parse(text), Ok(Asked::Nothing), "{text}");
        }
        for text in ["true", "1", "-1", "0.5", "[0]", "{\"a\": {}}"] {
            assert_eq!(parse(text), Ok(Asked::Something), "{text}");
        }
        let word: Asked = parse("\"none\"").unwrap();
        assert!(word.refuse("tool_choice", "tools are", &["none"]).is_ok());
        let refused = word.refuse("tool_choice", "tools are", &[]).unwrap_err();
        assert_eq!(refused.param.as_deref(), Some("tool_choice"));
    }
}
