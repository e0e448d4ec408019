//! `-o`: the same data as a table, JSON or YAML.

use clap::ValueEnum;
use serde::Serialize;

/// How to print.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    #[default]
    Table,
    /// A table with more columns
    Wide,
    Json,
    Yaml,
}

/// The text to print. `table` makes the table; its argument says whether a wide one is wanted.
pub fn render<T: Serialize>(format: Format, data: &T, table: impl FnOnce(bool) -> String) -> anyhow::Result<String> {
    Ok(match format {
        Format::Table => table(false),
        Format::Wide => table(true),
        Format::Json => serde_json::to_string_pretty(data)? + "\n",
        Format::Yaml => serde_saphyr::to_string(data)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_and_yaml_say_the_same() {
        let data = serde_json::json!({"items": [{"address": "fd00::1", "port": 80, "deadlineSeconds": null}]});
        let json = render(Format::Json, &data, |_| String::new()).expect("plain data");
        let yaml = render(Format::Yaml, &data, |_| String::new()).expect("plain data");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&json).expect("JSON"), data);
        assert_eq!(serde_saphyr::from_str::<serde_json::Value>(&yaml).expect("YAML"), data);
    }
}
