//! `--nodeport-addresses`: where node ports are served.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::ValueError;

/// The node's addresses that node ports are served on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// All of its links.
    #[default]
    All,
    /// The first `InternalIP` of each family, else the first `ExternalIP`, as the API has it.
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

crate::list_option!(NodePortAddresses, "all, primary, or networks");

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
}
