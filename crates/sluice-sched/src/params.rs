//! Parameters of a scheduler: a flat table of named scalars, parsed into the scheduler's own `Params` type.
//!
//! The core knows no file format. Its caller (host file, command line, scenario) passes a [`ParamTable`]. Unknown names
//! are rejected, and times and sizes carry their unit.

use core::time::Duration;
use std::collections::BTreeMap;

use serde::de::value::{Error as ValueError, MapDeserializer};
use serde::de::{DeserializeOwned, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;

use crate::units::{ByteRate, Bytes, Iops, Percent, parse_duration, show_duration};

/// A scalar.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// `true` or `false`
    Bool(bool),
    /// A whole number.
    Integer(i64),
    /// A decimal number.
    Float(f64),
    /// Text, such as a quantity with its unit.
    Text(String),
}

/// Values by parameter name.
pub type ParamTable = BTreeMap<String, Value>;

/// An unknown parameter or a value that is not accepted. The text says what is accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParamError(pub String);

/// Description of a parameter; the manual, the schema, the reader and the bounds are generated from it.
#[derive(Debug, Clone, Copy)]
pub struct Parameter {
    /// Name in the host file.
    pub name: &'static str,
    /// Type and unit in words.
    pub kind: &'static str,
    /// Accepted values.
    pub range: Range,
    /// Default, as written in the host file.
    pub default: &'static str,
    /// Effect, in one sentence.
    pub help: &'static str,
}

/// Accepted values of a parameter. Both ends of a range are included.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Range {
    /// Checked by the parser alone.
    Any,
    /// One of these.
    Words(&'static [&'static str]),
    /// `true` or `false`.
    Flag,
    /// A whole number.
    Number(u32, u32),
    /// A decimal number.
    Decimal(f64, f64),
    /// A time.
    Time(Duration, Duration),
    /// Bytes.
    Size(u64, u64),
    /// Bytes per second.
    Rate(u64, u64),
    /// Thousandths of a request per second.
    Requests(u64, u64),
    /// Hundredths of a percent.
    Percent(u16, u16),
}

impl Range {
    /// The two ends, as written in the host file; `None` if the range has no ends.
    #[must_use]
    pub fn ends(&self) -> Option<[Value; 2]> {
        let text = |ends: [String; 2]| Some(ends.map(Value::Text));
        match *self {
            Range::Any | Range::Words(_) | Range::Flag => None,
            Range::Number(min, max) => Some([min, max].map(|end| Value::Integer(end.into()))),
            Range::Decimal(min, max) => Some([min, max].map(Value::Float)),
            Range::Time(min, max) => text([min, max].map(written)),
            Range::Size(min, max) => text([min, max].map(|end| Bytes(end).to_string())),
            Range::Rate(min, max) => text([min, max].map(|end| ByteRate::per_second(end).to_string())),
            Range::Requests(min, max) => text([min, max].map(|end| Iops::from_milli(end).to_string())),
            Range::Percent(min, max) => text([min, max].map(|end| Percent::from_hundredths(end).to_string())),
        }
    }

    /// Whether `value` lies outside the range. A value that cannot be parsed does not: the parser rejects it.
    fn excludes(&self, value: &Value) -> bool {
        let Value::Text(text) = value else {
            return match (*self, value) {
                (Range::Number(min, max), Value::Integer(number)) => {
                    !(i64::from(min)..=i64::from(max)).contains(number)
                }
                (Range::Decimal(min, max), Value::Integer(number)) => !(min..=max).contains(&(*number as f64)),
                (Range::Decimal(min, max), Value::Float(number)) => !(min..=max).contains(number),
                _ => false,
            };
        };
        match *self {
            Range::Any | Range::Words(_) | Range::Flag | Range::Number(..) | Range::Decimal(..) => false,
            Range::Time(min, max) => parse_duration(text).is_ok_and(|time| !(min..=max).contains(&time)),
            Range::Size(min, max) => text.parse::<Bytes>().is_ok_and(|size| !(min..=max).contains(&size.0)),
            Range::Rate(min, max) => {
                text.parse::<ByteRate>().is_ok_and(|rate| !(min..=max).contains(&rate.bytes_per_second()))
            }
            Range::Requests(min, max) => text.parse::<Iops>().is_ok_and(|rate| !(min..=max).contains(&rate.milli())),
            Range::Percent(min, max) => {
                let (min, max) = (Percent::from_hundredths(min), Percent::from_hundredths(max));
                text.parse::<Percent>().is_ok_and(|percent| !(min..=max).contains(&percent))
            }
        }
    }
}

/// A time in the largest unit that is usual for the end of a range.
fn written(time: Duration) -> String {
    match time.as_nanos() {
        0 => "0s".to_owned(),
        nanos if nanos.is_multiple_of(3_600_000_000_000) => format!("{}h", nanos / 3_600_000_000_000),
        _ => show_duration(time),
    }
}

impl Parameter {
    /// The accepted values in words: type, unit and range.
    #[must_use]
    pub fn accepts(&self) -> String {
        if let Range::Words(words) = self.range {
            let quoted: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
            return match quoted.split_last() {
                Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
                _ => quoted.concat(),
            };
        }
        match self.range.ends() {
            Some([min, max]) => format!("{}, {min} to {max}", self.kind),
            None => self.kind.to_owned(),
        }
    }

    /// Rejects a value outside the range.
    fn check(&self, value: &Value) -> Result<(), ParamError> {
        let ends = self.range.ends().filter(|_| self.range.excludes(value));
        let Some([min, max]) = ends else { return Ok(()) };
        let unit = match self.range {
            Range::Number(..) if self.kind != "number" => format!(" {}", self.kind),
            _ => String::new(),
        };
        Err(ParamError(format!("{} is {value}; it must be from {min} to {max}{unit}", self.name)))
    }
}

/// As in the host file, without quotes.
impl core::fmt::Display for Value {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Value::Bool(value) => value.fmt(f),
            Value::Integer(value) => value.fmt(f),
            Value::Float(value) => value.fmt(f),
            Value::Text(value) => value.fmt(f),
        }
    }
}

/// Rejects values outside the ranges of their parameters. Unknown names are left to the parser.
///
/// # Errors
/// If a value is outside its range; the text says what is accepted.
pub fn check<'a>(parameters: impl IntoIterator<Item = &'a Parameter>, table: &ParamTable) -> Result<(), ParamError> {
    let stated = |parameter: &Parameter| table.get(parameter.name).map_or(Ok(()), |value| parameter.check(value));
    parameters.into_iter().try_for_each(stated)
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

/// A default as it is written in the table of parameters: quoted text, a number, true or false. `None` if it is stated
/// in words, because it depends on something else.
#[must_use]
pub fn scalar(text: &str) -> Option<Value> {
    if let Some(text) = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')) {
        return (!text.contains('"')).then(|| Value::Text(text.to_owned()));
    }
    let number = || text.parse().map(Value::Integer).or_else(|_| text.parse().map(Value::Float)).ok();
    text.parse().map(Value::Bool).ok().or_else(number)
}

/// The defaults that are values, replaced by what `stated` has. Unknown names stay, and the parser rejects them.
pub fn with_defaults<'a>(parameters: impl IntoIterator<Item = &'a Parameter>, stated: &ParamTable) -> ParamTable {
    let default = |known: &Parameter| Some((known.name.to_owned(), scalar(known.default)?));
    let defaults = parameters.into_iter().filter_map(default);
    defaults.chain(stated.iter().map(|(name, value)| (name.clone(), value.clone()))).collect()
}

/// Parses a table into a `Params` type; what it does not state has the default of `parameters`.
pub fn read<T: DeserializeOwned>(parameters: &[Parameter], table: &ParamTable) -> Result<T, ParamError> {
    parse(&with_defaults(parameters, table))
}

/// The defaults of `parameters`.
///
/// # Panics
/// If the type does not accept them.
#[must_use]
pub fn defaults<T: DeserializeOwned>(parameters: &[Parameter]) -> T {
    read(parameters, &ParamTable::new()).expect("the defaults are valid")
}

/// Parses a table with all parameters into a `Params` type.
pub fn parse<T: DeserializeOwned>(table: &ParamTable) -> Result<T, ParamError> {
    let entries = table.iter().map(|(name, value)| (name.clone(), value.clone()));
    T::deserialize(MapDeserializer::<_, ValueError>::new(entries)).map_err(|error| ParamError(error.to_string()))
}

/// Returns the parameters that cause a rejection. A parameter is a cause if it is rejected alone and in combination
/// with each other parameter; the second test excludes parameters that merely require another one. Empty if only all
/// parameters together are rejected, or if no single one is.
pub fn offending_params<'a>(
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
    let mut offending_params: Vec<_> = params.keys().filter_map(at_fault).collect();
    // Alone, a parameter may be rejected for lack of another one that it requires, so the error of all together is
    // shown.
    if let ([(_, error)], Err(of_all)) = (&mut offending_params[..], accept(params)) {
        *error = of_all;
    }
    offending_params
}

/// A duration written with its unit; for `#[serde(with = "params::duration")]`.
pub mod duration {
    use core::time::Duration;

    use serde::{Deserialize, Deserializer, de::Error};

    use crate::units::parse_duration;

    /// Reads `"1s"`.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_duration(&text).map_err(D::Error::custom)
    }
}

/// An optional duration; for `#[serde(with = "params::optional_duration")]`.
pub mod optional_duration {
    use core::time::Duration;

    use serde::Deserializer;

    /// Reads `"1s"`.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        super::duration::deserialize(deserializer).map(Some)
    }
}
