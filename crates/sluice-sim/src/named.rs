//! Parameters of models and workload profiles, whose documentation contains their defaults.

use serde::de::DeserializeOwned;
use sluice_sched::params::{self, ParamError, ParamTable, Parameter, Range, Value};

/// A parameter that the parser alone checks; its default is written as in a scenario.
pub(crate) const fn parameter(
    name: &'static str,
    kind: &'static str,
    default: &'static str,
    help: &'static str,
) -> Parameter {
    Parameter { name, kind, range: Range::Any, default, help }
}

/// A parameter with a range. `kind` is what it counts, or its type.
pub(crate) const fn ranged(
    name: &'static str,
    kind: &'static str,
    range: Range,
    default: &'static str,
    help: &'static str,
) -> Parameter {
    Parameter { name, kind, range, default, help }
}

/// The defaults, replaced by `overrides`. Unknown names stay, and [`parse`] rejects them.
pub(crate) fn with_defaults(parameters: &[Parameter], overrides: &ParamTable) -> ParamTable {
    params::with_defaults(parameters, overrides)
}

/// Rejects values outside the ranges of their parameters.
pub(crate) fn check<'a>(
    parameters: impl IntoIterator<Item = &'a Parameter>,
    table: &ParamTable,
) -> Result<(), ParamError> {
    params::check(parameters, table)
}

/// Parses a table with all parameters.
pub(crate) fn parse<T: DeserializeOwned>(table: &ParamTable) -> Result<T, ParamError> {
    params::parse(table)
}

/// A value as written in a scenario: quoted text, a number, true or false.
#[must_use]
pub fn written(text: &str) -> Value {
    params::scalar(text).unwrap_or(Value::Bool(false))
}

/// Values next to the ends of a range, outside.
#[cfg(test)]
pub(crate) fn outside(range: Range) -> Vec<Value> {
    use sluice_sched::units::show_duration;
    use sluice_sched::{Bytes, Iops};

    match range {
        Range::Number(min, max) => [i64::from(min) - 1, i64::from(max) + 1].map(Value::Integer).to_vec(),
        Range::Decimal(min, max) => [min - 0.5, max + 0.5].map(Value::Float).to_vec(),
        Range::Size(_, max) => vec![Value::Text(Bytes(max + 1).to_string())],
        Range::Time(_, max) => vec![Value::Text(show_duration(max + std::time::Duration::from_nanos(1)))],
        Range::Requests(_, max) => vec![Value::Text(Iops::from_milli(max + 1000).to_string())],
        Range::Any | Range::Words(_) | Range::Flag | Range::Rate(..) | Range::Percent(..) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_parsed_as_written() {
        let parameters =
            [parameter("a", "", "\"4KiB\"", ""), parameter("b", "", "0.5", ""), parameter("c", "", "7", "")];
        let overrides = [("c".to_owned(), Value::Integer(8)), ("d".to_owned(), Value::Bool(true))];
        let table = with_defaults(&parameters, &overrides.into());
        let values: Vec<Value> = table.into_values().collect();
        let text = Value::Text("4KiB".to_owned());
        assert_eq!(values, [text, Value::Float(0.5), Value::Integer(8), Value::Bool(true)]);
    }
}
