//! Parameters of models and workload profiles, whose documentation contains their defaults.

use serde::de::DeserializeOwned;
use sluice_sched::params::{self, ParamError, ParamTable, Parameter, Range, Value};

/// A parameter; its default is written as in a scenario.
pub(crate) const fn parameter(
    name: &'static str,
    kind: &'static str,
    default: &'static str,
    help: &'static str,
) -> Parameter {
    Parameter { name, kind, range: Range::Any, default, help }
}

/// The defaults, replaced by `overrides`. Unknown names stay, and [`parse`] rejects them.
pub(crate) fn with_defaults(parameters: &[Parameter], overrides: &ParamTable) -> ParamTable {
    params::with_defaults(parameters, overrides)
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
