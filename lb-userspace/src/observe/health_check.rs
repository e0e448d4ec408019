//! What a health-check node port answers: pure, so that the server only carries it.

use axum::http::StatusCode;
use serde::Serialize;

use crate::plan::HealthCheck;

/// Header with the count, by which load balancers weigh nodes.
pub const WEIGHT_HEADER: &str = "X-Load-Balancing-Endpoint-Weight";

/// What of the node matters to its health-check node ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeHealth {
    /// No fault of this node's own.
    pub healthy: bool,
    /// It is being deleted, or the autoscaler is about to.
    pub leaving: bool,
}

/// Body of the answer, as kube-proxy's.
#[derive(Debug, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct CheckAnswer {
    pub service: CheckedService,
    pub local_endpoints: usize,
    pub service_proxy_healthy: bool,
}

/// The Service that the port belongs to.
#[derive(Debug, Serialize, PartialEq, Eq)]
pub struct CheckedService {
    pub namespace: String,
    pub name: String,
}

/// Whether new clients may be sent here, and why (not).
pub fn answer(check: &HealthCheck, node: NodeHealth) -> (StatusCode, CheckAnswer) {
    let serves = check.local_ready > 0 && node.healthy && !node.leaving;
    let code = if serves { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let service =
        CheckedService { namespace: check.service.namespace.to_string(), name: check.service.name.to_string() };
    (code, CheckAnswer { service, local_endpoints: check.local_ready, service_proxy_healthy: node.healthy })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ObjectName;

    fn code(local_ready: usize, healthy: bool, leaving: bool) -> u16 {
        let check = HealthCheck { service: ObjectName::new("demo", "web"), local_ready };
        answer(&check, NodeHealth { healthy, leaving }).0.as_u16()
    }

    #[test]
    fn only_a_healthy_node_that_stays_and_has_endpoints_is_chosen() {
        assert_eq!(code(2, true, false), 200);
        assert_eq!(code(0, true, false), 503);
        assert_eq!(code(2, false, false), 503);
        assert_eq!(code(2, true, true), 503);
    }

    #[test]
    fn json_is_kube_proxys() {
        let check = HealthCheck { service: ObjectName::new("demo", "web"), local_ready: 2 };
        let (_, body) = answer(&check, NodeHealth { healthy: true, leaving: false });
        assert_eq!(
            serde_json::to_value(body).expect("plain data"),
            serde_json::json!({
                "service": {"namespace": "demo", "name": "web"}, "localEndpoints": 2, "serviceProxyHealthy": true,
            })
        );
    }
}
