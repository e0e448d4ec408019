//! `--nodeport-addresses`, and the name of the proxy that a Service asks for.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Deserializer};

use lb_model::{ValueError, values::list};

/// The longest value of a label (Kubernetes' own bound).
pub const MAX_LABEL_LENGTH: usize = 63;

/// The node's addresses that node ports are served on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// All of its links.
    #[default]
    All,
    /// The first `InternalIP` of each family, as the API has it.
    Primary,
    /// Those in one of these networks.
    Cidrs(Vec<IpNet>),
}

impl NodePortAddresses {
    /// Whether node ports are reached at loopback, in IPv4 and in IPv6: all addresses have it among them, networks may.
    pub fn loopback(&self) -> [bool; 2] {
        let loopback = [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)];
        loopback.map(|address| match self {
            Self::All => true,
            Self::Primary => false,
            Self::Cidrs(networks) => networks.iter().any(|network| network.contains(&address)),
        })
    }

    fn from_parts(parts: &[&str]) -> Result<Self, ValueError> {
        let wrong = || ValueError {
            given: parts.join(","),
            what: "a choice of node addresses",
            expected: "all or primary alone, or networks as 10.0.0.0/8 separated by commas",
        };
        match parts {
            ["all"] => Ok(Self::All),
            ["primary"] => Ok(Self::Primary),
            [] => Err(wrong()),
            networks => {
                networks.iter().map(|text| text.parse().map_err(|_| wrong())).collect::<Result<_, _>>().map(Self::Cidrs)
            }
        }
    }
}

impl FromStr for NodePortAddresses {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        Self::from_parts(&list::parts(text))
    }
}

impl<'de> Deserialize<'de> for NodePortAddresses {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        list::deserialize(deserializer, "all, primary, or networks", Self::from_parts)
    }
}

/// A value of the label `service.kubernetes.io/service-proxy-name`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyName(pub String);

impl FromStr for ProxyName {
    type Err = ValueError;

    /// Kubernetes' rule for values of labels; an empty one would select nothing that the API server lets exist as a name.
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let is_alphanumeric = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
        let ends = is_alphanumeric(text.chars().next()) && is_alphanumeric(text.chars().last());
        let middle = text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
        if ends && middle && text.len() <= MAX_LABEL_LENGTH {
            return Ok(Self(text.to_owned()));
        }
        Err(ValueError {
            given: text.into(),
            what: "the value of a label",
            expected: "1 to 63 letters, digits, -, _ and ., beginning and ending with a letter or digit",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stand_alone_and_networks_in_a_list() {
        assert_eq!("all".parse(), Ok(NodePortAddresses::All));
        assert_eq!("primary".parse(), Ok(NodePortAddresses::Primary));
        let networks = "10.0.0.0/8, fd00::/8".parse::<NodePortAddresses>().expect("valid");
        assert!(matches!(networks, NodePortAddresses::Cidrs(cidrs) if cidrs.len() == 2));
        for wrong in ["", "all,10.0.0.0/8", "10.0.0.1", "primary,all"] {
            let error = wrong.parse::<NodePortAddresses>().expect_err("wrong").to_string();
            assert!(error.contains("all or primary alone"), "{error}");
        }
    }

    #[test]
    fn a_proxy_name_is_a_labels_value() {
        assert!("ballast-2.x_y".parse::<ProxyName>().is_ok());
        for wrong in ["", "-a", "a-", "a b", &"a".repeat(64)] {
            assert!(wrong.parse::<ProxyName>().is_err(), "{wrong}");
        }
    }
}
