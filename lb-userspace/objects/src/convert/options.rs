//! What annotations of a Service ask of this load balancer. A bad one is refused by name and counts as not given.

use std::{collections::BTreeMap, fmt::Display, net::IpAddr, ops::RangeInclusive, str::FromStr, time::Duration};

use lb_common::limits::RATE_MAX;

use super::{super::lean::ANNOTATION_PREFIX as PREFIX, Problem};
use lb_model::{Check, CheckMethod, MAGLEV_SIZES, RateLimit, ServiceOptions, WEIGHT_MAX, Weighed};

/// Every annotation, without the prefix.
const NAMES: [&str; 15] = [
    "scheduler",
    "mode",
    "weights",
    "maglev-size",
    "drain-period",
    "drain-max",
    "retry",
    "rate-limit",
    "check",
    "check-port",
    "check-path",
    "check-interval",
    "check-timeout",
    "check-failures",
    "check-successes",
];
/// How many weights a service may have.
const WEIGHTS_MAX: usize = 1_024;
/// The bound of `--drain-period` and `--drain-max`: deadlines are kept in tenths of a second in 32 bits, and a drain must end.
const DRAIN_LONGEST: Duration = Duration::from_hours(24);
const CHECK_INTERVAL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_hours(1));
const CHECK_TIMEOUT: (Duration, Duration) = (Duration::from_millis(100), Duration::from_mins(1));
const DEFAULT_CHECK_INTERVAL: Duration = Duration::from_secs(5);
const DEFAULT_CHECK_TIMEOUT: Duration = Duration::from_secs(1);
const CHECK_COUNT_MAX: u8 = 100;
const DEFAULT_CHECK_FAILURES: u8 = 3;
const DEFAULT_CHECK_SUCCESSES: u8 = 2;
const CHECK_PATH_MAX: usize = 1_024;
/// How much of a bad value is shown.
const SHOWN_MAX: usize = 60;

const AS_IF_ABSENT: &str = "correct the annotation; until then it counts as not given";
const NO_CHECK: &str = "correct the annotation; until then the service is not checked";

/// Reads the annotations of a Service; `None`: they say nothing.
pub(super) fn read(
    annotations: &BTreeMap<String, String>,
    refuse: &mut impl FnMut(Problem),
) -> Option<Box<ServiceOptions>> {
    let ours = annotations.range(PREFIX.to_owned()..).map_while(|(key, text)| Some((key.strip_prefix(PREFIX)?, text)));
    let mut given = Given { texts: ours.map(|(name, text)| (name, text.trim())).collect(), refuse };
    if given.texts.is_empty() {
        return None;
    }
    given.refuse_unknown();
    let options = ServiceOptions {
        scheduler: given
            .take("scheduler", AS_IF_ABSENT, |text| text.parse().map_err(|error| format!("{error}")))
            .good(),
        mode: given.take("mode", AS_IF_ABSENT, |text| text.parse().map_err(|error| format!("{error}"))).good(),
        maglev_size: given.take("maglev-size", AS_IF_ABSENT, maglev_size).good(),
        weights: given.weights(),
        drain_period: given
            .take("drain-period", AS_IF_ABSENT, |text| duration(text, (Duration::ZERO, DRAIN_LONGEST)))
            .good(),
        drain_max: given.take("drain-max", AS_IF_ABSENT, |text| duration(text, (Duration::ZERO, DRAIN_LONGEST))).good(),
        retry: given.take("retry", AS_IF_ABSENT, switch).good(),
        check: given.check(),
        rate_limit: given.take("rate-limit", AS_IF_ABSENT, rate_limit).good(),
    };
    (options != ServiceOptions::default()).then(|| Box::new(options))
}

/// What one annotation came to.
enum Taken<T> {
    Absent,
    Bad,
    Good(T),
}

impl<T> Taken<T> {
    fn good(self) -> Option<T> {
        if let Self::Good(value) = self { Some(value) } else { None }
    }

    fn optional(self) -> Result<Option<T>, Bad> {
        match self {
            Self::Absent => Ok(None),
            Self::Bad => Err(Bad),
            Self::Good(value) => Ok(Some(value)),
        }
    }
}

/// It was given, and refused.
struct Bad;

struct Given<'a, R> {
    texts: BTreeMap<&'a str, &'a str>,
    refuse: R,
}

impl<R: FnMut(Problem)> Given<'_, R> {
    fn problem(&mut self, name: &str, reason: &str, remedy: &'static str) {
        (self.refuse)(Problem::new(format!("annotation {PREFIX}{name}: {reason}"), remedy));
    }

    fn refuse_unknown(&mut self) {
        let unknown: Vec<String> =
            self.texts.keys().filter(|name| !NAMES.contains(*name)).map(|name| shown(name)).collect();
        for name in unknown {
            self.problem(&name, "there is none of this name", "correct its name, or remove it");
        }
    }

    fn take<T>(&mut self, name: &str, remedy: &'static str, read: impl FnOnce(&str) -> Result<T, String>) -> Taken<T> {
        let Some(text) = self.texts.get(name).copied() else { return Taken::Absent };
        match read(text) {
            Ok(value) => Taken::Good(value),
            Err(reason) => {
                self.problem(name, &reason, remedy);
                Taken::Bad
            }
        }
    }

    /// A weight that is bad is left out, the others count.
    fn weights(&mut self) -> Vec<(Weighed, u16)> {
        const NAME: &str = "weights";
        let Some(text) = self.texts.get(NAME).copied() else { return Vec::new() };
        let mut weights: Vec<(Weighed, u16)> = Vec::new();
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            if weights.len() == WEIGHTS_MAX {
                let reason = format!("there are more than {WEIGHTS_MAX} weights");
                self.problem(NAME, &reason, "weigh zones instead of addresses; weights beyond that are left out");
                break;
            }
            let read = weight(item).and_then(|(whose, weight)| {
                let is_known = weights.iter().any(|(known, _)| *known == whose);
                if is_known { Err(format!("{:?} is weighed before", shown(item))) } else { Ok((whose, weight)) }
            });
            match read {
                Ok(read) => weights.push(read),
                Err(reason) => self.problem(NAME, &reason, "correct this weight; until then it is left out"),
            }
        }
        weights.sort_unstable();
        weights
    }

    /// A check that would ask something else than what was meant is none: it would condemn backends that are well.
    fn check(&mut self) -> Option<Check> {
        let kind = self.take("check", NO_CHECK, check_kind);
        let port = self.take("check-port", NO_CHECK, |text| bounded(text, &(1..=u16::MAX))).optional();
        let path = self.take("check-path", NO_CHECK, path).optional();
        let interval = self.take("check-interval", AS_IF_ABSENT, |text| duration(text, CHECK_INTERVAL)).good();
        let timeout = self.take("check-timeout", AS_IF_ABSENT, |text| duration(text, CHECK_TIMEOUT)).good();
        let failures = self.take("check-failures", AS_IF_ABSENT, |text| bounded(text, &(1..=CHECK_COUNT_MAX))).good();
        let successes = self.take("check-successes", AS_IF_ABSENT, |text| bounded(text, &(1..=CHECK_COUNT_MAX))).good();
        let method = match (kind, path.ok()?) {
            (Taken::Bad | Taken::Good(CheckKind::Off), _) => return None,
            (Taken::Absent, _) => {
                let details: Vec<&str> = self
                    .texts
                    .keys()
                    .copied()
                    .filter(|name| name.starts_with("check-") && NAMES.contains(name))
                    .collect();
                for name in details {
                    self.problem(name, "nothing is checked", "add the annotation ballast.dev/check: tcp or http");
                }
                return None;
            }
            (Taken::Good(CheckKind::Tcp), None) => CheckMethod::Tcp,
            (Taken::Good(CheckKind::Tcp), Some(_)) => {
                self.problem("check-path", "a check by tcp has no path", "remove it, or check by http");
                CheckMethod::Tcp
            }
            (Taken::Good(CheckKind::Http), path) => CheckMethod::Http { path: path.unwrap_or_else(|| "/".to_owned()) },
        };
        let interval = interval.unwrap_or(DEFAULT_CHECK_INTERVAL);
        if timeout.is_some_and(|timeout| timeout > interval) {
            let reason = format!("it is longer than the interval, {}", humantime::format_duration(interval));
            self.problem("check-timeout", &reason, "shorten it; until then the interval is the timeout");
        }
        Some(Check {
            method,
            port: port.ok()?,
            interval,
            timeout: timeout.unwrap_or(DEFAULT_CHECK_TIMEOUT).min(interval),
            failures: failures.unwrap_or(DEFAULT_CHECK_FAILURES),
            successes: successes.unwrap_or(DEFAULT_CHECK_SUCCESSES),
        })
    }
}

enum CheckKind {
    Tcp,
    Http,
    Off,
}

fn check_kind(text: &str) -> Result<CheckKind, String> {
    match text {
        "tcp" => Ok(CheckKind::Tcp),
        "http" => Ok(CheckKind::Http),
        "off" => Ok(CheckKind::Off),
        other => Err(format!("{:?}: expected tcp, http or off", shown(other))),
    }
}

fn switch(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        other => Err(format!("{:?}: expected on or off", shown(other))),
    }
}

fn maglev_size(text: &str) -> Result<u32, String> {
    let size = text.parse().ok().filter(|size| MAGLEV_SIZES.contains(size));
    size.ok_or_else(|| format!("{:?}: expected 251, 1021, 16381 or 131071", shown(text)))
}

/// `100`: so many new flows in a second, and as many at once; `100/500`: so many at once.
fn rate_limit(text: &str) -> Result<RateLimit, String> {
    let number = |text: &str| text.trim().parse().ok().filter(|number| (1..=RATE_MAX).contains(number));
    let (rate, burst) = text.split_once('/').unwrap_or((text, text));
    let read = number(rate).zip(number(burst)).map(|(rate, burst)| RateLimit { rate, burst });
    let expected = || format!("new flows per second, or those / how many at once, each 1 to {RATE_MAX}");
    read.ok_or_else(|| format!("{:?}: expected {}", shown(text), expected()))
}

fn duration(text: &str, (min, max): (Duration, Duration)) -> Result<Duration, String> {
    let read = humantime::parse_duration(text).ok().filter(|duration| (min..=max).contains(duration));
    let (min, max) = (humantime::format_duration(min), humantime::format_duration(max));
    read.ok_or_else(|| format!("{:?}: expected a duration like 30s or 5m, {min} to {max}", shown(text)))
}

fn bounded<T>(text: &str, bounds: &RangeInclusive<T>) -> Result<T, String>
where
    T: FromStr + PartialOrd + Display,
{
    let read = text.parse::<T>().ok().filter(|number| bounds.contains(number));
    let expected = || format!("a number from {} to {}", bounds.start(), bounds.end());
    read.ok_or_else(|| format!("{:?}: expected {}", shown(text), expected()))
}

/// It is written into a request as it stands.
fn path(text: &str) -> Result<String, String> {
    let is_good =
        text.starts_with('/') && text.len() <= CHECK_PATH_MAX && text.bytes().all(|byte| byte.is_ascii_graphic());
    if is_good {
        Ok(text.to_owned())
    } else {
        let expected = format!("a path of at most {CHECK_PATH_MAX} visible ASCII characters that begins with /");
        Err(format!("{:?}: expected {expected}", shown(text)))
    }
}

/// `10.0.0.1=3`, `2001:db8::1=3`, `zone:eu-1=2`.
fn weight(item: &str) -> Result<(Weighed, u16), String> {
    let expected = || format!("{:?}: expected an address or zone:NAME, =, and 1 to {WEIGHT_MAX}", shown(item));
    let (whose, weight) = item.rsplit_once('=').ok_or_else(expected)?;
    let weight = weight.trim().parse().ok().filter(|weight| (1..=WEIGHT_MAX).contains(weight)).ok_or_else(expected)?;
    let whose = match whose.trim().strip_prefix("zone:") {
        Some("") => return Err(expected()),
        Some(zone) => Weighed::Zone(zone.to_owned()),
        None => Weighed::Address(whose.trim().parse::<IpAddr>().map_err(|_| expected())?),
    };
    Ok((whose, weight))
}

/// The beginning of a text that may be long.
fn shown(text: &str) -> String {
    let mut short: String = text.chars().take(SHOWN_MAX).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

#[cfg(test)]
#[path = "options_tests.rs"]
mod tests;
