//! `--active-checks`: where active checks of endpoints may go.

use ipnet::IpNet;

use lb_model::{ValueError, list_option};

/// Where this node may connect to, since an annotation asks for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ActiveChecks {
    #[default]
    Off,
    /// To pods (`--cluster-cidr`, and the `podCIDRs` of this node's Node object), and to these networks besides.
    Pods(Vec<IpNet>),
}

impl ActiveChecks {
    fn from_parts(parts: &[&str]) -> Result<Self, ValueError> {
        let wrong = || ValueError {
            given: parts.join(","),
            what: "a choice of active checks",
            expected: "off, or pods, or pods and networks as 192.0.2.0/24 separated by commas",
        };
        match parts {
            ["off"] => Ok(Self::Off),
            ["pods", networks @ ..] => {
                let networks = networks.iter().map(|text| text.parse::<IpNet>().map_err(|_| wrong()));
                networks.map(|network| network.map(|network| network.trunc())).collect::<Result<_, _>>().map(Self::Pods)
            }
            _ => Err(wrong()),
        }
    }
}

list_option!(ActiveChecks, "off, or pods and networks");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_are_off_or_go_to_pods_and_to_networks_besides() {
        assert_eq!("off".parse(), Ok(ActiveChecks::Off));
        assert_eq!("pods".parse(), Ok(ActiveChecks::Pods(Vec::new())));
        let networks = ["192.0.2.0/24", "fd00::/64"].map(|text| text.parse().expect("a network")).to_vec();
        assert_eq!("pods, 192.0.2.1/24, fd00::/64".parse(), Ok(ActiveChecks::Pods(networks.clone())));
        let list: ActiveChecks = serde_saphyr::from_str("[pods, 192.0.2.0/24, fd00::/64]\n").expect("a list");
        assert_eq!(list, ActiveChecks::Pods(networks));
        for wrong in ["", "on", "192.0.2.0/24", "off,pods", "pods,192.0.2.1.0/24"] {
            let error = wrong.parse::<ActiveChecks>().expect_err("wrong").to_string();
            assert!(error.contains("off, or pods, or pods and networks"), "{error}");
        }
    }
}
