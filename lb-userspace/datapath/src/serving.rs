//! How each link to the outside is served, why not better, and what on this node keeps external clients from being served.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use lb_common::abi::network_flags;
use serde::Serialize;

use super::{
    attach::{Attacher, How},
    net::{Candidate, Net, Part, Wanted},
    point::{Point, Role},
    sources::{self, ANY_LINK, Surroundings},
};
use lb_model::Family;

/// How a link to the outside is served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Served {
    /// `native` or `generic` (XDP), or `tc`.
    pub by: &'static str,
    /// Why not by native XDP; `None`: it is.
    pub reason: Option<String>,
}

/// Links to the outside, by interface.
pub(super) fn served(links: &BTreeMap<u32, Wanted>, attacher: &Attacher) -> BTreeMap<u32, Served> {
    let external = links.values().filter(|link| link.role == Role::External);
    let served = external.map(|link| {
        let by = match xdp(attacher, link.ifindex) {
            Some(How::Native) => return (link.ifindex, Served { by: "native", reason: None }),
            Some(How::Generic) => "generic",
            _ => "tc",
        };
        let reason = if link.ethernet {
            attacher.xdp_reasons.get(&link.ifindex).cloned()
        } else {
            Some("its packets have no Ethernet header, which XDP needs".to_owned())
        };
        (link.ifindex, Served { by, reason })
    });
    served.collect()
}

/// Interfaces whose driver sends what XDP redirects to them: where XDP is native on this interface, or generic everywhere.
pub(super) fn senders(links: &BTreeMap<u32, Wanted>, attacher: &Attacher) -> BTreeSet<u32> {
    let hows: BTreeMap<u32, Option<How>> = links.keys().map(|ifindex| (*ifindex, xdp(attacher, *ifindex))).collect();
    let has = |how| hows.values().any(|found| *found == Some(how));
    // Native XDP redirects to native XDP alone.
    let all_generic = has(How::Generic) && !has(How::Native);
    let external = links.values().filter(|link| link.role == Role::External && link.ethernet);
    let sends = |link: &&Wanted| all_generic || hows.get(&link.ifindex) == Some(&Some(How::Native));
    external.filter(sends).map(|link| link.ifindex).collect()
}

fn xdp(attacher: &Attacher, ifindex: u32) -> Option<How> {
    attacher.attached.get(&(ifindex, Point::Xdp)).map(|attachment| attachment.how)
}

/// What keeps external clients from being served.
pub(super) fn warnings(
    links: &BTreeMap<u32, Wanted>,
    candidates: &[Candidate],
    written: &sources::Wanted,
    surroundings: &Surroundings,
    forwards: impl Fn(&str, Family) -> Option<bool>,
) -> Vec<String> {
    let mut warnings = Vec::new();
    let published = &surroundings.families;
    for link in links.values().filter(|link| link.role == Role::External && link.part != Part::Port) {
        let name = &link.name;
        for family in [Family::V4, Family::V6] {
            let is_of = |found: &&Candidate| found.address.is_ipv4() == (family == Family::V4);
            let has_address =
                candidates.iter().filter(|found| found.ifindex == link.ifindex).any(|found| is_of(&found));
            if has_address && forwards(name, family) == Some(false) {
                let sysctl = if family == Family::V4 { "net.ipv4" } else { "net.ipv6" };
                warnings.push(format!(
                    "{name}: forwarding of {} is off: clients outside reach no pod, and no backend elsewhere; \
                     sysctl {sysctl}.conf.{name}.forwarding=1, or {sysctl}.conf.all.forwarding=1",
                    text(family)
                ));
            }
            if !has_address && published.contains(&family) {
                warnings.push(format!(
                    "{name}: it has no address of {}, in which services are published: node ports are not served on it",
                    text(family)
                ));
            }
        }
    }
    for family in published {
        let has = match family {
            Family::V4 => written.masquerade4.contains_key(&ANY_LINK),
            Family::V6 => written.masquerade6.contains_key(&ANY_LINK),
        };
        if !has {
            warnings.push(format!(
                "no address of {} of this node stands in for clients outside: where the backend is elsewhere they are \
                 dropped; give a link one, or let --snat-addresses admit it",
                text(*family)
            ));
        }
    }
    let knows_peers = written.networks.values().any(|flags| flags & network_flags::PEER != 0);
    if surroundings.is_direct && surroundings.peers.is_some() && !knows_peers {
        warnings.push(
            "direct server return is asked for, and no other node is known: what others send whole to backends of this one is dropped \
             (dropped_no_peer); name them in --dsr-peers, or see that they have Node objects with addresses; a single node needs no \
             --mode but snat"
                .to_owned(),
        );
    }
    warnings
}

/// Links that are served by a name that they had.
pub(super) fn renamed(net: &Net) -> impl Iterator<Item = String> + '_ {
    net.renamed().map(|(option, then, now)| {
        format!(
            "{now}: {option} chose it as {then}; it is served so until the agent restarts, or it has that name again"
        )
    })
}

/// Whether the kernel forwards what arrives on the interface; `None`: it does not say.
pub(super) fn forwards(interface: &str, family: Family) -> Option<bool> {
    let folder = if family == Family::V4 { "ipv4" } else { "ipv6" };
    let path: PathBuf = ["/proc/sys/net", folder, "conf", interface, "forwarding"].iter().collect();
    read(&path).map(|text| text.trim() != "0")
}

fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok()
}

fn text(family: Family) -> &'static str {
    match family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::net::Standing;
    use super::*;

    fn link(ifindex: u32, name: &str) -> (u32, Wanted) {
        let name = name.to_owned();
        let wanted = Wanted {
            ifindex,
            name,
            role: Role::External,
            ethernet: true,
            virtual_pair: false,
            is_veth: false,
            part: Part::All,
            peer_netns_id: -1,
        };
        (ifindex, wanted)
    }

    #[test]
    fn what_keeps_clients_out_is_named_with_the_remedy() {
        let links = BTreeMap::from([link(2, "eth0")]);
        let address = "192.0.2.1".parse().expect("an address");
        let standing = Standing::Primary;
        let candidates = [Candidate { ifindex: 2, address, standing, is_uplink: true, is_loopback: false }];
        let written = sources::Wanted {
            masquerade4: [(ANY_LINK, vec!["192.0.2.1".parse().expect("an address")])].into(),
            ..sources::Wanted::default()
        };
        let warn = |published: &[Family], forwards: bool| {
            let surroundings =
                Surroundings { families: published.iter().copied().collect(), ..Surroundings::default() };
            warnings(&links, &candidates, &written, &surroundings, |_, _| Some(forwards))
        };
        assert!(warn(&[Family::V4], true).is_empty());
        let found = warn(&[Family::V4], false);
        assert!(found.len() == 1 && found[0].contains("net.ipv4.conf.eth0.forwarding=1"), "{found:?}");
        let found = warn(&[Family::V4, Family::V6], true);
        assert!(
            found.len() == 2 && found[0].contains("no address of IPv6") && found[1].contains("--snat-addresses"),
            "{found:?}"
        );
    }
    #[test]
    fn a_node_that_knows_no_other_says_so_where_direct_server_return_is_asked_for() {
        let warn = |surroundings: &Surroundings, written: &sources::Wanted| {
            warnings(&BTreeMap::new(), &[], written, surroundings, |_, _| Some(true))
        };
        let (nobody, all) = (sources::Wanted::default(), "192.0.2.0/24".parse().expect("a network"));
        let peers = sources::Wanted { networks: [(all, network_flags::PEER)].into(), ..sources::Wanted::default() };
        let known = Surroundings { peers: Some(Arc::default()), is_direct: true, ..Surroundings::default() };
        let found = warn(&known, &nobody);
        assert!(found.len() == 1 && found[0].contains("--dsr-peers") && found[0].contains("Node objects"), "{found:?}");
        assert_eq!(warn(&known, &peers), [] as [String; 0]);
        assert_eq!(warn(&Surroundings { is_direct: false, ..known.clone() }, &nobody), [] as [String; 0]);
        let late = Surroundings { peers: None, ..known };
        assert_eq!(warn(&late, &nobody), [] as [String; 0], "the API has not sent them yet");
    }
}
