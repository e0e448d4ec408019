//! `--flow-timeouts`: after how long without a packet a flow is forgotten, by its state.

use lb_common::state::Timeouts;

use super::durations::Bounds;
use lb_model::named_option;
use lb_model::values::named::{Named, NamedError};

/// Timeouts as they are loaded with the programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowTimeouts(pub Timeouts);

/// Shorter ones would forget a flow between two retransmits of its SYN (1 s, then 2 s).
const HALF_OPEN: Bounds = Bounds::of_seconds(4, 600, "a SYN is sent again after 1s and 2s");
/// The longest is conntrack's five days.
const OPEN: Bounds = Bounds::of_seconds(60, 5 * 24 * 3_600, "an idle connection that is forgotten is refused");
const CLOSING: Bounds = Bounds::of_seconds(1, 3_600, "the last segments must get through");
const UDP: Bounds = Bounds::of_seconds(1, 3_600, "no packet ends a UDP flow");

/// One of the timeouts: its name, what it may be, and its place among all of them.
pub(super) struct FlowTimeout {
    pub name: &'static str,
    pub bounds: Bounds,
    pub of: fn(&mut Timeouts) -> &mut u32,
}

pub(super) const ALL: [FlowTimeout; 6] = [
    FlowTimeout { name: "half-open", bounds: HALF_OPEN, of: |timeouts| &mut timeouts.half_open_s },
    FlowTimeout { name: "open", bounds: OPEN, of: |timeouts| &mut timeouts.open_s },
    FlowTimeout { name: "closing", bounds: CLOSING, of: |timeouts| &mut timeouts.closing_s },
    FlowTimeout { name: "udp-unreplied", bounds: UDP, of: |timeouts| &mut timeouts.udp_unreplied_s },
    FlowTimeout { name: "udp-replied", bounds: UDP, of: |timeouts| &mut timeouts.udp_replied_s },
    FlowTimeout { name: "udp-stream", bounds: UDP, of: |timeouts| &mut timeouts.udp_stream_s },
];

impl Named for FlowTimeouts {
    const WHAT: &'static str = "the timeout of a flow";
    const WRITTEN: &'static str = "NAME=DURATION, as open=2h";

    fn set(&mut self, name: &str, value: &str) -> Result<(), NamedError> {
        let names = || ALL.map(|timeout| timeout.name).join(", ");
        let timeout = ALL.iter().find(|timeout| timeout.name == name);
        let timeout = timeout.ok_or_else(|| NamedError::new(name, Self::WHAT, &names()))?;
        let wrong = |expected: String| NamedError::new(&format!("{name}={value}"), Self::WHAT, &expected);
        let duration = timeout.bounds.parse(value).map_err(&wrong)?;
        if duration.subsec_nanos() != 0 {
            return Err(wrong("whole seconds".into()));
        }
        *(timeout.of)(&mut self.0) = u32::try_from(duration.as_secs()).map_err(|error| wrong(error.to_string()))?;
        Ok(())
    }
}

named_option!(FlowTimeouts);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_named_keeps_its_default() {
        let FlowTimeouts(timeouts) = "open=2h, udp-stream=5m".parse().expect("valid");
        assert_eq!(timeouts, Timeouts { open_s: 7_200, udp_stream_s: 300, ..Timeouts::DEFAULT });
        let FlowTimeouts(timeouts) =
            serde_saphyr::from_str("half-open: 30s\nclosing: 10s\n").expect("a mapping does as well");
        assert_eq!(timeouts, Timeouts { half_open_s: 30, closing_s: 10, ..Timeouts::DEFAULT });
    }

    #[test]
    fn a_wrong_timeout_is_named_with_what_would_do() {
        for (text, hint) in [
            ("opened=1h", "half-open, open, closing"),
            ("open", "NAME=DURATION"),
            ("open=30s", "1m to 5days"),
            ("half-open=3s", "4s to 10m"),
            ("closing=2h", "1s to 1h"),
            ("udp-stream=0s", "1s to 1h"),
            ("udp-replied=1500ms", "whole seconds"),
            ("udp-unreplied=soon", "a duration like"),
        ] {
            let error = text.parse::<FlowTimeouts>().expect_err("wrong").to_string();
            assert!(error.contains(hint), "{text}: {error}");
        }
    }
}
