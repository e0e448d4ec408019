//! What a health-check node port answers: pure, so that the server only carries it.

use axum::http::StatusCode;
use serde::Serialize;

use lb_plan::plan::HealthCheck;

/// Header with the count, by which load balancers weigh nodes.
pub const WEIGHT_HEADER: &str = "X-Load-Balancing-Endpoint-Weight";

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

/// Whether new clients may be sent here, and why (not). `healthy`: no fault of this node's own. That the node is tainted or being deleted is
/// none: kube-proxy says so by `/healthz` alone.
pub fn answer(check: &HealthCheck, healthy: bool) -> (StatusCode, CheckAnswer) {
    let serves = check.local_ready > 0 && healthy;
    let code = if serves { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let service =
        CheckedService { namespace: check.service.namespace.to_string(), name: check.service.name.to_string() };
    (code, CheckAnswer { service, local_endpoints: check.local_ready, service_proxy_healthy: healthy })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lb_model::ObjectName;

    fn code(local_ready: usize, healthy: bool) -> u16 {
        let check = HealthCheck { service: ObjectName::new("demo", "web"), local_ready };
        answer(&check, healthy).0.as_u16()
    }

    #[test]
    fn only_a_healthy_node_that_has_endpoints_is_chosen() {
        assert_eq!([code(2, true), code(0, true), code(2, false)], [200, 503, 503]);
    }

    #[test]
    fn json_is_kube_proxys() {
        let check = HealthCheck { service: ObjectName::new("demo", "web"), local_ready: 2 };
        let (_, body) = answer(&check, true);
        assert_eq!(
            serde_json::to_value(body).expect("plain data"),
            serde_json::json!({
                "service": {"namespace": "demo", "name": "web"}, "localEndpoints": 2, "serviceProxyHealthy": true,
            })
        );
    }
}
