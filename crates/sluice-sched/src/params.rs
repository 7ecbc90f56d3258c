//! Parameters of a scheduler: a flat table of named scalars, read into the scheduler's own `Params` type.
//!
//! The core knows no file format. Whoever has one (the host file, a command line, a scenario) hands over a
//! [`ParamTable`]; unknown names are refused, and times and sizes carry their unit.

use std::collections::BTreeMap;

use serde::de::value::{Error as ValueError, MapDeserializer};
use serde::de::{DeserializeOwned, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;

/// A scalar.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// `true` or `false`
    Bool(bool),
    /// A whole number.
    Integer(i64),
    /// A decimal number.
    Float(f64),
    /// Text, for example a quantity with its unit.
    Text(String),
}

/// Names and values.
pub type ParamTable = BTreeMap<String, Value>;

/// A parameter that does not exist or cannot have this value; the text says what is accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParamError(pub String);

/// What the documentation says of one parameter.
#[derive(Debug, Clone, Copy)]
pub struct Parameter {
    /// Its name in the host file.
    pub name: &'static str,
    /// Its type and unit in words.
    pub kind: &'static str,
    /// Its default, as it would be written.
    pub default: &'static str,
    /// What it does.
    pub help: &'static str,
}

impl<'de> IntoDeserializer<'de, ValueError> for Value {
    type Deserializer = Value;

    fn into_deserializer(self) -> Value {
        self
    }
}

impl<'de> serde::Deserializer<'de> for Value {
    type Error = ValueError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        match self {
            Value::Bool(value) => visitor.visit_bool(value),
            Value::Integer(value) => visitor.visit_i64(value),
            Value::Float(value) => visitor.visit_f64(value),
            Value::Text(value) => visitor.visit_string(value),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        visitor.visit_some(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ValueError> {
        match self {
            Value::Text(value) => visitor.visit_enum(value.into_deserializer()),
            other => other.deserialize_any(visitor),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        newtype_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

/// Reads a table into a `Params` type.
pub fn parse<T: DeserializeOwned>(table: &ParamTable) -> Result<T, ParamError> {
    let entries = table.iter().map(|(name, value)| (name.clone(), value.clone()));
    T::deserialize(MapDeserializer::<_, ValueError>::new(entries)).map_err(|error| ParamError(error.to_string()))
}

/// Of parameters that are refused together, those that are at fault: each is refused alone, and with each of the others, of which
/// some need another beside them. None if only all of them together are too much, or if nothing at all is refused the same way.
pub fn culprits<'a>(
    params: &'a ParamTable,
    accept: &dyn Fn(&ParamTable) -> Result<(), ParamError>,
) -> Vec<(&'a str, ParamError)> {
    let refused = |names: &[&String]| {
        let some = params.iter().filter(|(known, _)| names.contains(known));
        accept(&some.map(|(name, value)| (name.clone(), value.clone())).collect()).err()
    };
    let nothing = refused(&[]);
    let at_fault = |name: &'a String| {
        let alone = refused(&[name]).filter(|alone| nothing.as_ref() != Some(alone))?;
        params.keys().all(|other| refused(&[name, other]).is_some()).then_some((name.as_str(), alone))
    };
    let mut culprits: Vec<_> = params.keys().filter_map(at_fault).collect();
    // What is wrong with a single one may be another thing beside those that it needs.
    if let ([(_, error)], Err(of_all)) = (&mut culprits[..], accept(params)) {
        *error = of_all;
    }
    culprits
}

/// Refuses a whole number outside its range; `unit` is what it counts.
pub fn within(name: &str, value: u32, min: u32, max: u32, unit: &str) -> Result<(), ParamError> {
    match (min..=max).contains(&value) {
        true => Ok(()),
        false => Err(ParamError(format!("{name} is {value}; it must be from {min} to {max} {unit}"))),
    }
}

/// A duration written with its unit, for use as `#[serde(with = "params::duration")]`.
pub mod duration {
    use core::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use crate::units::{parse_duration, show_duration};

    /// Reads `"1s"`.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_duration(&text).map_err(D::Error::custom)
    }

    /// Writes `"1s"`.
    pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&show_duration(*duration))
    }
}

/// A duration that may be left out, for use as `#[serde(with = "params::optional_duration")]`.
pub mod optional_duration {
    use core::time::Duration;

    use serde::{Deserializer, Serializer};

    /// Reads `"1s"`.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        super::duration::deserialize(deserializer).map(Some)
    }

    /// Writes `"1s"`, or nothing.
    pub fn serialize<S: Serializer>(duration: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        match duration {
            Some(duration) => super::duration::serialize(duration, serializer),
            None => serializer.serialize_none(),
        }
    }
}
