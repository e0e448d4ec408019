//! Durations among the options, each with its bounds: what a deadline, a threshold or a period may be.

use std::fmt::Display;
use std::time::Duration;

use serde::{Deserialize, Deserializer, de};

/// What an option of time may be.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub min: Duration,
    pub max: Duration,
    /// Why not longer or shorter.
    pub because: &'static str,
}

const HOUR: u64 = 3_600;
const DAY: u64 = 24 * HOUR;

/// Deadlines are kept in tenths of a second in 32 bits, and a drain must end.
pub const DRAIN_PERIOD: Bounds = Bounds::of_seconds(0, DAY, "a drain must end");
pub const DRAIN_MAX: Bounds = Bounds::of_seconds(0, DAY, "a drain must end");
pub const TERMINATING_MAX: Bounds = Bounds::of_seconds(1, DAY, "a terminating endpoint must end some day");
pub const ADOPTION_WINDOW: Bounds =
    Bounds::of_seconds(0, DAY, "until it ends, whoever sends on a connection that nobody knows gets no answer");
pub const AUDIT_INTERVAL: Bounds =
    Bounds::of_seconds(1, HOUR, "an audit reads every table, and what it finds is served wrongly until then");
pub const RESYNC_INTERVAL: Bounds = Bounds::of_seconds(1, DAY, "each comparison lists everything from the API");
pub const WATCH_SILENCE: Bounds = Bounds::of_seconds(1, 600, "it is how long endpoints may be out of date unnoticed");
/// A runtime runs its heartbeat at least every five seconds.
pub const STUCK_AFTER: Bounds = Bounds::of_seconds(
    10,
    600,
    "an agent has a heartbeat every 5s, and load balancers must learn soon that it stopped",
);
pub const BEHIND_AFTER: Bounds = Bounds::of_seconds(1, HOUR, "a failed write is tried again within 30s");
pub const FIRST_SYNC_GRACE: Bounds =
    Bounds::of_seconds(0, HOUR, "a node that never lists serves what was true before it started");
pub const NODE_WAIT: Bounds = Bounds::of_seconds(0, 600, "nothing new is served until then");
pub const FAIL_STALE: Bounds = Bounds::of_seconds(1, DAY, "it must outlast the API's restarts");

impl Bounds {
    pub(super) const fn of_seconds(min: u64, max: u64, because: &'static str) -> Self {
        Self { min: Duration::from_secs(min), max: Duration::from_secs(max), because }
    }

    /// Reads `30s`, `5m`, `1h30m`.
    pub(super) fn parse(self, text: &str) -> Result<Duration, String> {
        match humantime::parse_duration(text) {
            Ok(duration) if (self.min..=self.max).contains(&duration) => Ok(duration),
            Ok(duration) => Err(format!(
                "{} is not {} to {}: {}",
                humantime::format_duration(duration),
                humantime::format_duration(self.min),
                humantime::format_duration(self.max),
                self.because
            )),
            Err(error) => Err(format!("expected a duration like 30s or 5m: {error}")),
        }
    }
}

/// A period, or never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Period {
    Off,
    Every(Duration),
}

impl Period {
    /// `None`: off.
    pub const fn duration(self) -> Option<Duration> {
        match self {
            Self::Off => None,
            Self::Every(duration) => Some(duration),
        }
    }
}

fn period(bounds: Bounds, text: &str) -> Result<Period, String> {
    if text == "off" { Ok(Period::Off) } else { bounds.parse(text).map(Period::Every) }
}

fn from_yaml<'de, D, T, E: Display>(deserializer: D, parse: fn(&str) -> Result<T, E>) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
{
    let text = Option::<String>::deserialize(deserializer)?;
    text.map(|text| parse(&text).map_err(de::Error::custom)).transpose()
}

/// For each option: a function for clap, and a module of the same name for serde.
macro_rules! option {
    ($name:ident, $type:ty, $parse:expr) => {
        pub mod $name {
            use super::*;

            pub fn parse(text: &str) -> Result<$type, String> {
                let parse: fn(&str) -> Result<$type, String> = $parse;
                parse(text)
            }

            pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<$type>, D::Error> {
                from_yaml(deserializer, parse)
            }
        }
    };
}

option!(drain_period, Duration, |text| DRAIN_PERIOD.parse(text));
option!(drain_max, Duration, |text| DRAIN_MAX.parse(text));
option!(terminating_max, Duration, |text| TERMINATING_MAX.parse(text));
option!(adoption_window, Duration, |text| ADOPTION_WINDOW.parse(text));
option!(watch_silence, Duration, |text| WATCH_SILENCE.parse(text));
option!(stuck_after, Duration, |text| STUCK_AFTER.parse(text));
option!(behind_after, Duration, |text| BEHIND_AFTER.parse(text));
option!(first_sync_grace, Duration, |text| FIRST_SYNC_GRACE.parse(text));
option!(node_wait, Duration, |text| NODE_WAIT.parse(text));
option!(audit_interval, Period, |text| period(AUDIT_INTERVAL, text));
option!(resync_interval, Period, |text| period(RESYNC_INTERVAL, text));
option!(fail_stale, Period, |text| period(FAIL_STALE, text));
