//! What commands write: `-o`, the same data as a table, JSON or YAML; and errors.

use std::io::Write as _;

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

/// Writes to standard output. A reader that has seen enough (`| head`) is no error.
pub fn print(text: &str) -> anyhow::Result<()> {
    printed(text).map(|_| ())
}

/// Writes to standard output. False: its reader has seen enough.
pub fn printed(text: &str) -> anyhow::Result<bool> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        result => Ok(result.map(|()| true)?),
    }
}

/// Writes a sentence to standard error. `eprintln!` would abort the process where standard error is a terminal that is gone.
pub fn complain(sentence: impl std::fmt::Display) {
    // Nothing is left to report the failure to.
    let _ = writeln!(std::io::stderr(), "ballast: {sentence}");
}

/// The error and its causes; one that its effect has already named is not said again.
pub fn sentence(error: &anyhow::Error) -> String {
    error
        .chain()
        .skip(1)
        .map(ToString::to_string)
        .fold(error.to_string(), |said, cause| if said.contains(&cause) { said } else { format!("{said}: {cause}") })
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

    #[test]
    fn no_cause_is_said_twice() {
        let cause = || std::io::Error::other("no room");
        let error = anyhow::Error::new(cause()).context("cannot write: no room; delete something");
        assert_eq!(sentence(&error), "cannot write: no room; delete something");
        let error = anyhow::Error::new(cause()).context("cannot write");
        assert_eq!(sentence(&error), "cannot write: no room");
    }
}
