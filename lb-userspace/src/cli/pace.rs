//! How often a command reads the tables again.

use std::time::Duration;

/// Readings that are closer together cost more than they show.
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_hours(1);

/// Reads `2s`, `500ms`, `1m`; a bare number is seconds.
pub(super) fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let read = seconds.or_else(|| humantime::parse_duration(text).ok());
    read.filter(|duration| (SHORTEST..=LONGEST).contains(duration))
        .ok_or_else(|| "expected a duration from 100ms to 1h, as 2s or 500ms".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_has_a_unit_or_is_in_seconds() {
        for (text, expected) in [("2", 2_000), ("2s", 2_000), ("0.5", 500), ("100ms", 100), ("1h", 3_600_000)] {
            assert_eq!(interval(text), Ok(Duration::from_millis(expected)), "{text}");
        }
        for text in ["0", "99ms", "2h", "-1", "soon", "", "NaN", "1e30"] {
            assert!(interval(text).expect_err("refused").contains("100ms to 1h"), "{text}");
        }
    }
}
