//! Service ports whose new connections were lately refused for want of room, as the event ring says.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use lb_common::outcome::Outcome;
use lb_model::PortKey;
use tokio::time::Instant;

use crate::observe::report::ShortageReport;

/// How long a service port is named after the last connection that was refused.
const NAMED_FOR: Duration = Duration::from_mins(1);
/// As many are named at most.
const NAMED: usize = 256;

/// Whether new connections meet this outcome where room is short.
pub(super) const fn is_shortage(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::DroppedNoPort | Outcome::DroppedTableFull | Outcome::RefusedClientShare)
}

/// When each service port's last connection was refused, by what it met, and whose the first one was: one client, so that the log names a shortage
/// once.
#[derive(Debug, Default)]
pub(super) struct Shortages(BTreeMap<(Outcome, PortKey), (Instant, IpAddr)>);

impl Shortages {
    /// A connection of this service port was refused.
    pub fn refused(&mut self, outcome: Outcome, service: &PortKey, client: IpAddr, now: Instant) {
        let key = (outcome, service.clone());
        if self.0.len() < NAMED || self.0.contains_key(&key) {
            self.0.entry(key).or_insert((now, client)).0 = now;
        }
    }

    /// Those of the last minute.
    pub fn of_late(&mut self, now: Instant) -> Vec<ShortageReport> {
        self.0.retain(|_, (refused, _)| now.saturating_duration_since(*refused) < NAMED_FOR);
        let named = self.0.iter().map(|((outcome, service), (_, client))| ShortageReport {
            service: service.to_string(),
            outcome: outcome.name().to_owned(),
            client: *client,
        });
        named.collect()
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
        let (mut shortages, start) = (Shortages::default(), Instant::now());
        let client = IpAddr::from([198, 51, 100, 7]);
        let named = |shortages: &mut Shortages, now| {
            shortages.of_late(now).into_iter().map(|one| (one.service, one.outcome)).collect::<Vec<_>>()
        };
        let whose = |shortages: &mut Shortages| shortages.of_late(start)[0].client;
        let no_port = |service: &str| (service.to_owned(), "dropped_no_port".to_owned());
        assert!(named(&mut shortages, start).is_empty());
        shortages.refused(Outcome::DroppedNoPort, &key(80), client, start);
        shortages.refused(Outcome::DroppedNoPort, &key(80), IpAddr::from([198, 51, 100, 8]), start);
        assert_eq!(whose(&mut shortages), client, "the first one, while the shortage lasts");
        shortages.refused(Outcome::DroppedNoPort, &key(81), client, start + NAMED_FOR / 2);
        let both = [no_port("demo/web:80/TCP"), no_port("demo/web:81/TCP")];
        assert_eq!(named(&mut shortages, start + NAMED_FOR / 2), both);
        assert_eq!(named(&mut shortages, start + NAMED_FOR), both[1..]);
        for nth in 0..1_000 {
            shortages.refused(Outcome::DroppedTableFull, &key(nth), client, start);
        }
        assert_eq!(shortages.of_late(start).len(), NAMED);
    }
}
