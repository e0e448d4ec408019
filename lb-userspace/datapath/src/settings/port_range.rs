//! `--snat-ports`: the source ports that masqueraded flows get where they cannot keep their client's.

use std::fmt;
use std::str::FromStr;

use lb_common::limits::{NODE_PORT_FIRST, NODE_PORT_LAST};

use lb_model::ValueError;

/// Ports from `first` to `last`, both included: none that needs a privilege, and none of the node ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    pub first: u16,
    pub last: u16,
}

impl PortRange {
    pub const FIRST_UNPRIVILEGED: u16 = 1024;

    /// How many ports these are.
    pub fn count(self) -> u16 {
        self.last - self.first + 1
    }

    /// The ports that both have.
    pub fn common(self, other: Self) -> Option<Self> {
        let common = Self { first: self.first.max(other.first), last: self.last.min(other.last) };
        (common.first <= common.last).then_some(common)
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl FromStr for PortRange {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let wrong = |expected| ValueError { given: text.to_owned(), what: "a range of source ports", expected };
        let ends = text
            .split_once('-')
            .and_then(|(first, last)| Some((first.trim().parse().ok()?, last.trim().parse().ok()?)));
        let Some((first, last)) = ends.filter(|(first, last)| first <= last) else {
            return Err(wrong("FIRST-LAST, as 61000-65535"));
        };
        let range = Self { first, last };
        if first < Self::FIRST_UNPRIVILEGED {
            return Err(wrong("ports from 1024 on: those below belong to services of the node"));
        }
        if range.common(Self { first: NODE_PORT_FIRST, last: NODE_PORT_LAST }).is_some() {
            return Err(wrong("no port from 30000 to 32767: these are node ports"));
        }
        Ok(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_two_ends_and_takes_nothing_that_is_anothers() {
        let range: PortRange = "61000-61063".parse().expect("valid");
        assert_eq!((range.count(), range.to_string().as_str()), (64, "61000-61063"));
        for (text, named) in [
            ("61000", "FIRST-LAST"),
            ("61000-60000", "FIRST-LAST"),
            ("61000-70000", "FIRST-LAST"),
            ("80-2000", "from 1024 on"),
            ("29000-30000", "node ports"),
            ("32767-33000", "node ports"),
        ] {
            let error = text.parse::<PortRange>().expect_err("wrong").to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
