//! A `ServiceCIDR`, read and checked.

use ipnet::IpNet;

use super::{Converted, Problem, network};
use crate::lean;
use lb_model::{Refusals, ServiceCidr};

/// A `ServiceCIDR`; never refused as a whole: what can be read of it counts. It counts while it is being deleted, too, as for kube-proxy:
/// Services may still have addresses there.
pub fn service_cidr(cidr: &lean::ServiceCidr) -> Converted<ServiceCidr> {
    let name = cidr.metadata.name.clone().unwrap_or_default();
    let object = format!("ServiceCIDR {name}");
    let mut refusals = Refusals::default();
    let texts = cidr.spec.cidrs.iter().flatten();
    let networks = texts.filter_map(|text| {
        let read = network("cidr", text).and_then(is_some_of_all);
        read.map_err(|problem| refusals.push(problem.refuse(object.clone()))).ok()
    });
    let networks = networks.collect();
    Converted { object: Some(ServiceCidr { name, networks }), refusals: refusals.all(&object) }
}

/// Nothing would leave the node if all addresses were services'.
fn is_some_of_all(network: IpNet) -> Result<IpNet, Problem> {
    if network.prefix_len() == 0 {
        return Err(Problem::new(format!("cidr {network} holds all addresses"), "name the network of the cluster IPs"));
    }
    Ok(network)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_of_both_families_are_read_and_bad_ones_refused_by_name() {
        let cidrs = ["10.96.0.0/12", "fd00:96::/112", "10.96.0.0/33", "0.0.0.0/0", "::/0"].map(str::to_owned);
        let spec = lean::ServiceCidrSpec { cidrs: Some(cidrs.into()) };
        let metadata = lean::Metadata { name: Some("kubernetes".into()), ..lean::Metadata::default() };
        let converted = service_cidr(&lean::ServiceCidr { metadata, spec });
        let networks = converted.object.expect("it is never refused as a whole").networks;
        assert_eq!(networks.iter().map(ToString::to_string).collect::<Vec<_>>(), ["10.96.0.0/12", "fd00:96::/112"]);
        let refused: Vec<&str> = converted.refusals.iter().map(|refusal| refusal.reason.as_str()).collect();
        let all = ["cidr 0.0.0.0/0 holds all addresses", "cidr ::/0 holds all addresses"];
        assert!(
            refused[0].starts_with("cidr \"10.96.0.0/33\": expected a network") && refused[1..] == all,
            "{refused:?}"
        );
        assert!(converted.refusals.iter().all(|refusal| refusal.object == "ServiceCIDR kubernetes"));
        let none = service_cidr(&lean::ServiceCidr::default());
        assert_eq!((none.object.expect("the same").networks, none.refusals), (Vec::new(), Vec::new()));
    }
}
