//! How many descriptors the agent may have open, and how many of them Services may take by their health-check node ports.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use lb_model::ObjectName;

/// A listener for each family.
const LISTENERS_PER_PORT: u64 = 2;
/// Listeners of health-check node ports may take one descriptor in so many.
const LISTENERS_SHARE: u64 = 4;
/// Connections to these ports may take one in so many.
const CONNECTIONS_SHARE: u64 = 8;
/// Connections of all ports at a time, however many descriptors there are; a quarter of them for one source.
const CONNECTIONS_MAX: u64 = 512;

/// Raises the limit to the hard one, which needs no rights. The programs that the agent runs inherit it.
pub(super) fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })
    {
        tracing::warn!(limit = ?limit.current, "the limit of descriptors stays: it cannot be raised to the hard one: {error}");
    }
}

/// What health-check node ports may take. The rest is for what all Services need: the API, maps and programs, and the agent's own listeners.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    /// How many descriptors the agent may have open.
    pub limit: u64,
    /// How many ports are served.
    pub ports: usize,
    /// How many connections they have at a time.
    pub connections: usize,
}

impl Share {
    /// By the limit of this process.
    pub fn of_process() -> Self {
        Self::of(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX))
    }

    pub fn of(limit: u64) -> Self {
        let ports = limit / LISTENERS_SHARE / LISTENERS_PER_PORT;
        let connections = (limit / CONNECTIONS_SHARE).clamp(1, CONNECTIONS_MAX);
        let count = |many: u64| usize::try_from(many).unwrap_or(usize::MAX);
        Self { limit, ports: count(ports), connections: count(connections) }
    }

    /// Why a port is not served for which there are no descriptors.
    pub fn refusal(&self, port: u16, service: &ObjectName) -> String {
        let Self { limit, ports, .. } = self;
        format!(
            "healthCheckNodePort {port} of Service {service} is refused: the agent may open {limit} descriptors, and serves such ports of the \
             {ports} oldest Services; raise its hard limit (RLIMIT_NOFILE) by {} for each further one",
            LISTENERS_SHARE * LISTENERS_PER_PORT
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_and_their_connections_leave_most_descriptors() {
        let share = |limit| (Share::of(limit).ports, Share::of(limit).connections);
        assert_eq!([share(0), share(64)], [(0, 1), (8, 8)]);
        assert_eq!(share(1_024), (128, 128));
        assert_eq!(share(1 << 20), (131_072, 512), "more than there are ports");
    }
}
