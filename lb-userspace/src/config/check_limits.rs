//! `--check-limits`: how many active checks this node makes at most, whatever the annotations ask for.

use std::num::NonZeroU32;

use lb_model::named_option;
use lb_model::values::named::{Named, NamedError};

/// Bounds of the active checks of all services together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckLimits {
    /// Checks begun in a second. What is due beyond waits, and comes later than its interval asks.
    pub per_second: NonZeroU32,
    /// Checks under way at the same time: connections, and so descriptors, of the agent.
    pub in_flight: NonZeroU32,
}

/// A connect costs some 30 µs of CPU at both ends; so many keep one percent of a CPU busy.
const PER_SECOND: NonZeroU32 = NonZeroU32::new(200).expect("not zero");
const IN_FLIGHT: NonZeroU32 = NonZeroU32::new(128).expect("not zero");
/// The most that either may be.
pub(super) const MOST: u32 = 10_000;

impl Default for CheckLimits {
    fn default() -> Self {
        Self { per_second: PER_SECOND, in_flight: IN_FLIGHT }
    }
}

impl Named for CheckLimits {
    const WHAT: &'static str = "a limit of active checks";
    const WRITTEN: &'static str = "NAME=NUMBER, as per-second=200";

    fn set(&mut self, name: &str, value: &str) -> Result<(), NamedError> {
        let field = match name {
            "per-second" => &mut self.per_second,
            "in-flight" => &mut self.in_flight,
            _ => return Err(NamedError::new(name, Self::WHAT, "per-second or in-flight")),
        };
        let number = value.parse().ok().filter(|number: &NonZeroU32| number.get() <= MOST);
        let wrong = || NamedError::new(&format!("{name}={value}"), Self::WHAT, &format!("1 to {MOST}"));
        *field = number.ok_or_else(wrong)?;
        Ok(())
    }
}

named_option!(CheckLimits);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_numbers_by_name() {
        let limits: CheckLimits = "per-second=7".parse().expect("valid");
        assert_eq!((limits.per_second.get(), limits.in_flight), (7, IN_FLIGHT));
        let limits: CheckLimits = serde_saphyr::from_str("in-flight: 9\n").expect("a mapping does as well");
        assert_eq!((limits.per_second, limits.in_flight.get()), (PER_SECOND, 9));
        for (text, hint) in
            [("rate=1", "per-second or in-flight"), ("per-second=0", "1 to 10000"), ("in-flight=10001", "1 to 10000")]
        {
            let error = text.parse::<CheckLimits>().expect_err("wrong").to_string();
            assert!(error.contains(hint), "{text}: {error}");
        }
    }
}
