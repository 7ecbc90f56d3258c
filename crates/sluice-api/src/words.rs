//! Enums that are words in replies.

use std::fmt;

use serde::Deserializer;
use serde::de::Visitor;
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::{RefOr, Schema};

/// Defines an enum of words. A word that is not in the list, as of a newer daemon, is read as the one after `else`.
macro_rules! words {
    (
        $(#[$meta:meta])*
        pub enum $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal,)* }
        $(#[$other_doc:meta])* else $other:ident = $other_word:literal
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$doc])* $variant,)*
            $(#[$other_doc])*
            #[default]
            $other,
        }

        impl $name {
            /// All but the last one, which stands for words that are not known.
            pub const ALL: [$name; [$($word),*].len()] = [$($name::$variant),*];

            /// Name in machine-readable output.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $($name::$variant => $word,)*
                    $name::$other => $other_word,
                }
            }

            /// The word with this name.
            #[must_use]
            pub fn named(name: &str) -> $name {
                match name {
                    $($word => $name::$variant,)*
                    _ => $name::$other,
                }
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }

        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                crate::words::schema(&[$($word,)* $other_word])
            }
        }

        impl utoipa::ToSchema for $name {
            fn name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<$name, D::Error> {
                crate::words::read(deserializer, $name::named)
            }
        }
    };
}

pub(crate) use words;

/// A schema of text. Words may be added, so that these are not all that a later daemon has.
pub(crate) fn schema(words: &[&str]) -> RefOr<Schema> {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .description(Some(format!("One of: {}. Later versions may have more.", words.join(", "))))
        .examples(words.first().copied())
        .into()
}

/// Reads a word.
pub(crate) fn read<'de, D: Deserializer<'de>, T>(deserializer: D, named: fn(&str) -> T) -> Result<T, D::Error> {
    struct Word<T>(fn(&str) -> T);
    impl<T> Visitor<'_> for Word<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a word")
        }

        fn visit_str<E>(self, word: &str) -> Result<T, E> {
            Ok(self.0(word))
        }
    }
    deserializer.deserialize_str(Word(named))
}
