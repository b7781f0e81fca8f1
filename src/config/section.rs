//! A declarative macro for a section of the config file: `section!` takes each key with its documentation, unit,
//! variable, rule and default, and generates the struct, its `Default`, and the list of keys that validation, the
//! environment layer and the commented file go by. One declaration, so that these cannot drift apart.

use serde::de::{self, Deserialize, DeserializeSeed, Deserializer, SeqAccess, Visitor};
use toml::Value;

/// The longest time a key takes: far enough for "never", near enough to be added to a clock without overflow.
pub(super) const YEAR: f64 = 365.0 * 86_400.0;

/// A key as the file has it.
pub(super) struct Key {
    pub(super) name: &'static str,
    /// What the commented file says about it, line by line. One without is explained with the key before it.
    pub(super) doc: &'static [&'static str],
    /// Sets it, too.
    pub(super) variable: Option<&'static str>,
    /// Its value has this type. Computed on demand, like the rule: a command that only has to find its few keys must
    /// not pay for writing all defaults as TOML, which is most of what resolving the configuration would take.
    pub(super) default: fn() -> Value,
    pub(super) rule: fn() -> Rule,
    #[cfg(test)]
    pub(super) field: &'static str,
}

/// What a value may be beyond its type. Every number has a range.
pub(super) enum Rule {
    Any,
    Between(f64, f64),
    /// Of a list: each of its members.
    OneOf(&'static [&'static str]),
    /// Of a list: each of its members.
    Filled,
    Paths,
    /// Set beside that other key, it is refused.
    NotWith(&'static str),
    /// A section.
    Keys(Vec<Key>),
    /// A table whose keys are names that the user gave. Its values are like this one and follow that rule.
    Each(Value, Box<Rule>),
    /// A table by names of models.
    Prices,
}

impl Rule {
    pub(super) fn each(like: impl Into<Value>, rule: Rule) -> Rule {
        Rule::Each(like.into(), Box::new(rule))
    }

    /// That of a key that says nothing about it: the words of an enum, where its type is one.
    pub(super) fn of_type<'a, T: Deserialize<'a>>() -> Rule {
        let mut words = None;
        // The error is expected, there is no value to read. What counts is what the type asked for on the way.
        let _ = T::deserialize(Words(&mut words));
        words.map_or(Rule::Any, Rule::OneOf)
    }
}

/// `name: Type = default` is a key, `name: Type` a section. Docs are the text of the commented file.
///
/// - `#[written("key", "unit")]`: the file's name for it, and the module of `units` that reads and writes it
/// - `#[variable("NAME")]`: the variable that sets it as well
/// - `#[rule(…)]`: what it may be; without, an enum is one of its words, and anything else is free
macro_rules! section {
    ($(#[$attribute:meta])* pub struct $name:ident { $(
        $(#[doc = $doc:literal])*
        $(#[written($key:literal, $unit:literal)])?
        $(#[variable($variable:literal)])?
        $(#[rule($rule:expr)])?
        $field:ident: $type:ty $(= $default:expr)?
    ),+ $(,)? }) => {
        $(#[$attribute])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name {$(
            $(#[serde(rename = $key, with = $unit)])?
            pub $field: $type,
        )+}

        impl Default for $name {
            fn default() -> $name {
                $name { $($field: section!(@default $type $(, $default)?),)+ }
            }
        }

        impl $name {
            pub(super) fn keys() -> Vec<$crate::config::section::Key> {
                vec![$({
                    const NAME: &str = [$($key,)? stringify!($field)][0];
                    $crate::config::section::Key {
                        name: NAME,
                        doc: &[$($doc),*],
                        variable: None$(.or(Some($variable)))?,
                        default: || section!(@value $name, NAME, [$($default)?]),
                        rule: || section!(@rule $type, [$($default)?] [$($rule)?]),
                        #[cfg(test)]
                        field: stringify!($field),
                    }
                }),+]
            }
        }
    };
    (@default $type:ty) => { <$type>::default() };
    (@default $type:ty, $default:expr) => { $default };
    // Of a section only the type counts.
    (@value $name:ident, $key:ident, []) => { toml::Value::Table(toml::Table::new()) };
    // From the struct's own default, written by its own serialiser: in the units of the file. `None` is left out of
    // TOML; such a key is a text.
    (@value $name:ident, $key:ident, [$default:expr]) => {{
        let defaults = toml::Table::try_from($name::default());
        let mut defaults = defaults.expect("the defaults can be written as TOML");
        defaults.remove($key).unwrap_or_else(|| "".into())
    }};
    (@rule $type:ty, [] []) => { $crate::config::section::Rule::Keys(<$type>::keys()) };
    (@rule $type:ty, [$default:expr] []) => { $crate::config::section::Rule::of_type::<$type>() };
    (@rule $type:ty, [$default:expr] [$rule:expr]) => { $rule };
}
pub(super) use section;

/// Reflection by way of serde: a deserialiser without a value, which learns from a type the names of its enum variants,
/// also for the members of a list.
struct Words<'a>(&'a mut Option<&'static [&'static str]>);

impl<'de> Deserializer<'de> for Words<'_> {
    type Error = de::value::Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
        Err(de::Error::custom("there is no value"))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        words: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        // Names as serde knows them, after `rename_all`: the words that stand in the file.
        *self.0 = Some(words);
        self.deserialize_any(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_some(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_seq(self)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct newtype_struct tuple tuple_struct map struct identifier ignored_any
    }
}

impl<'de> SeqAccess<'de> for Words<'_> {
    type Error = de::value::Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        member: T,
    ) -> Result<Option<T::Value>, Self::Error> {
        member.deserialize(Words(self.0)).map(Some)
    }
}

impl Key {
    /// A key of a table that is no declared section, such as a price.
    pub(super) fn number(name: &'static str, rule: fn() -> Rule) -> Key {
        Key {
            name,
            doc: &[],
            variable: None,
            default: || Value::Float(0.0),
            rule,
            #[cfg(test)]
            field: name,
        }
    }
}
