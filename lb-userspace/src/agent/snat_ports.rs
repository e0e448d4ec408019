//! Service ports whose new connections have found no SNAT port lately, as the event ring says.

use std::collections::BTreeMap;
use std::time::Duration;

use lb_model::PortKey;
use tokio::time::Instant;

/// How long a service port is named after the last connection that found none.
const NAMED_FOR: Duration = Duration::from_mins(1);
/// As many are named at most.
const NAMED: usize = 256;

/// When each one's last connection found none.
#[derive(Debug, Default)]
pub(super) struct SnatPorts(BTreeMap<PortKey, Instant>);

impl SnatPorts {
    /// A connection of this service port found none.
    pub fn missed(&mut self, service: &PortKey, now: Instant) {
        if self.0.len() < NAMED || self.0.contains_key(service) {
            self.0.insert(service.clone(), now);
        }
    }

    /// The service ports that are short of SNAT ports at present.
    pub fn short(&mut self, now: Instant) -> Vec<String> {
        self.0.retain(|_, missed| now.saturating_duration_since(*missed) < NAMED_FOR);
        self.0.keys().map(ToString::to_string).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lb_model::{ObjectName, Protocol};

    #[tokio::test(start_paused = true)]
    async fn a_service_is_named_for_a_minute_and_no_tenant_makes_the_list_long() {
        let key = |nth: u16| {
            let service = ObjectName::new("demo", "web");
            PortKey { service, port: nth, protocol: Protocol::Tcp }
        };
        let (mut ports, start) = (SnatPorts::default(), Instant::now());
        assert!(ports.short(start).is_empty());
        ports.missed(&key(80), start);
        ports.missed(&key(81), start + NAMED_FOR / 2);
        assert_eq!(ports.short(start + NAMED_FOR / 2), ["demo/web:80/TCP", "demo/web:81/TCP"]);
        assert_eq!(ports.short(start + NAMED_FOR), ["demo/web:81/TCP"]);
        for nth in 0..1_000 {
            ports.missed(&key(nth), start);
        }
        assert_eq!(ports.short(start).len(), NAMED);
    }
}
