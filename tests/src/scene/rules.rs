//! The rules of a node before it has any pod, as `iptables-restore` or `nft` reads them.

use lb_common::family::Family;

use super::{Names, Scene};

/// The tables of iptables that this scene writes, one text for each program that does so.
pub(super) fn iptables(scene: Scene, names: &Names) -> Vec<String> {
    let mut texts = match scene {
        Scene::Bare => return Vec::new(),
        Scene::Kubelet | Scene::Firewalld => Vec::new(),
        Scene::Flannel => vec![flannel(names)],
        Scene::Aws => vec![aws(names)],
        Scene::Calico => vec![calico(names)],
        Scene::Netpol => vec![flannel(names), netpol()],
        Scene::Docker => vec![flannel(names), docker(names)],
        Scene::Cloud => vec![cloud(names)],
        Scene::NodeLocalDns => vec![local_dns(names), bridge_plugin(names)],
    };
    texts.push(kubelet(names));
    texts
}

/// Empty chains that tell the kubelet whether somebody has flushed the tables, and its guard of the loopback network.
fn kubelet(names: &Names) -> String {
    let canary = ":KUBE-KUBELET-CANARY - [0:0]\n";
    let guard = match names.family {
        Family::V4 => {
            ":KUBE-FIREWALL - [0:0]\n\
             -A INPUT -j KUBE-FIREWALL\n\
             -A OUTPUT -j KUBE-FIREWALL\n\
             -A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP\n"
        }
        Family::V6 => "",
    };
    format!("*mangle\n{canary}COMMIT\n*nat\n{canary}COMMIT\n*filter\n{canary}{guard}COMMIT\n")
}

fn flannel(names: &Names) -> String {
    let Names { cluster, own, multicast, .. } = names;
    format!(
        "*nat\n\
         :FLANNEL-POSTRTG - [0:0]\n\
         -A POSTROUTING -j FLANNEL-POSTRTG\n\
         -A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -j RETURN\n\
         -A FLANNEL-POSTRTG -s {own} -d {cluster} -j RETURN\n\
         -A FLANNEL-POSTRTG -s {cluster} -d {own} -j RETURN\n\
         -A FLANNEL-POSTRTG ! -s {cluster} -d {own} -j RETURN\n\
         -A FLANNEL-POSTRTG -s {cluster} ! -d {multicast} -j MASQUERADE --random-fully\n\
         -A FLANNEL-POSTRTG ! -s {cluster} -d {cluster} -j MASQUERADE --random-fully\n\
         COMMIT\n\
         *filter\n\
         :FLANNEL-FWD - [0:0]\n\
         -A FORWARD -j FLANNEL-FWD\n\
         -A FLANNEL-FWD -s {cluster} -j ACCEPT\n\
         -A FLANNEL-FWD -d {cluster} -j ACCEPT\n\
         COMMIT\n"
    )
}

/// Connections that came by the first interface leave by it: they are marked as they come, and their replies by that mark. What pods begin with hosts
/// outside the VPC leaves by it as well.
fn aws(names: &Names) -> String {
    let Names { cluster, node, multicast, .. } = names;
    let subnet = match names.family {
        Family::V4 => "192.0.2.0/24",
        Family::V6 => "2001:db8:1::/64",
    };
    format!(
        "*mangle\n\
         -A PREROUTING -i eth0 -m addrtype --dst-type LOCAL --limit-iface-in -j CONNMARK --set-xmark 0x80/0x80\n\
         -A PREROUTING -i veth+ -j CONNMARK --restore-mark --nfmask 0x80 --ctmask 0x80\n\
         COMMIT\n\
         *nat\n\
         :AWS-SNAT-CHAIN-0 - [0:0]\n\
         :AWS-CONNMARK-CHAIN-0 - [0:0]\n\
         -A PREROUTING -i veth+ -j AWS-CONNMARK-CHAIN-0\n\
         -A PREROUTING -j CONNMARK --restore-mark --nfmask 0x80 --ctmask 0x80\n\
         -A POSTROUTING -j AWS-SNAT-CHAIN-0\n\
         -A AWS-CONNMARK-CHAIN-0 -d {cluster} -j RETURN\n\
         -A AWS-CONNMARK-CHAIN-0 -d {subnet} -j RETURN\n\
         -A AWS-CONNMARK-CHAIN-0 -j CONNMARK --set-xmark 0x80/0x80\n\
         -A AWS-SNAT-CHAIN-0 -d {cluster} -j RETURN\n\
         -A AWS-SNAT-CHAIN-0 -d {subnet} -j RETURN\n\
         -A AWS-SNAT-CHAIN-0 -d {multicast} -j RETURN\n\
         -A AWS-SNAT-CHAIN-0 ! -o vlan+ -m addrtype ! --dst-type LOCAL -j SNAT --to-source {node} --random-fully\n\
         COMMIT\n"
    )
}

/// Without policies: what comes from or goes to a pod passes the chains of its link, which the pods add.
fn calico(names: &Names) -> String {
    let set = names.set_prefix();
    format!(
        "*raw\n\
         :cali-PREROUTING - [0:0]\n\
         -A PREROUTING -j cali-PREROUTING\n\
         -A cali-PREROUTING -j MARK --set-xmark 0x0/0xf0000\n\
         -A cali-PREROUTING -i veth+ -j MARK --set-xmark 0x40000/0x40000\n\
         -A cali-PREROUTING -m mark --mark 0x40000/0x40000 -m rpfilter --validmark --invert -j DROP\n\
         COMMIT\n\
         *mangle\n\
         :cali-PREROUTING - [0:0]\n\
         -A PREROUTING -j cali-PREROUTING\n\
         -A cali-PREROUTING -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n\
         COMMIT\n\
         *nat\n\
         :cali-POSTROUTING - [0:0]\n\
         -A POSTROUTING -j cali-POSTROUTING\n\
         -A cali-POSTROUTING -m set --match-set {set}masq-ipam-pools src -m set ! --match-set {set}all-ipam-pools dst \
            -j MASQUERADE --random-fully\n\
         COMMIT\n\
         *filter\n\
         :cali-FORWARD - [0:0]\n\
         :cali-INPUT - [0:0]\n\
         :cali-from-wl-dispatch - [0:0]\n\
         :cali-to-wl-dispatch - [0:0]\n\
         :cali-wl-to-host - [0:0]\n\
         -A FORWARD -j cali-FORWARD\n\
         -A FORWARD -m mark --mark 0x10000/0x10000 -j ACCEPT\n\
         -A INPUT -j cali-INPUT\n\
         -A cali-FORWARD -j MARK --set-xmark 0x0/0xe0000\n\
         -A cali-FORWARD -i veth+ -j cali-from-wl-dispatch\n\
         -A cali-FORWARD -o veth+ -j cali-to-wl-dispatch\n\
         -A cali-INPUT -i veth+ -g cali-wl-to-host\n\
         -A cali-wl-to-host -j cali-from-wl-dispatch\n\
         -A cali-wl-to-host -j ACCEPT\n\
         -A cali-from-wl-dispatch -j DROP\n\
         -A cali-to-wl-dispatch -j DROP\n\
         COMMIT\n"
    )
}

/// The chains that those of pods hang in. What passes them is accepted by its mark.
fn netpol() -> String {
    let chains = ["INPUT", "FORWARD", "OUTPUT"].map(|hook| {
        format!(
            ":KUBE-ROUTER-{hook} - [0:0]\n\
             -I {hook} 1 -j KUBE-ROUTER-{hook}\n\
             -I {hook} 2 -m mark --mark 0x20000/0x20000 -j ACCEPT\n"
        )
    });
    format!("*filter\n{}COMMIT\n", chains.concat())
}

fn docker(names: &Names) -> String {
    let (masquerade, loopback) = match names.family {
        Family::V4 => ("-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE\n", "127.0.0.0/8"),
        Family::V6 => ("", "::1/128"),
    };
    format!(
        "*nat\n\
         :DOCKER - [0:0]\n\
         -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER\n\
         -A OUTPUT ! -d {loopback} -m addrtype --dst-type LOCAL -j DOCKER\n\
         {masquerade}\
         COMMIT\n\
         *filter\n\
         :FORWARD DROP [0:0]\n\
         :DOCKER - [0:0]\n\
         :DOCKER-USER - [0:0]\n\
         :DOCKER-FORWARD - [0:0]\n\
         :DOCKER-CT - [0:0]\n\
         :DOCKER-BRIDGE - [0:0]\n\
         -I FORWARD 1 -j DOCKER-USER\n\
         -I FORWARD 2 -j DOCKER-FORWARD\n\
         -A DOCKER-FORWARD -j DOCKER-CT\n\
         -A DOCKER-FORWARD -j DOCKER-BRIDGE\n\
         -A DOCKER-FORWARD -i docker0 -j ACCEPT\n\
         -A DOCKER-CT -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n\
         -A DOCKER-BRIDGE -o docker0 -j DOCKER\n\
         -A DOCKER ! -i docker0 -o docker0 -j DROP\n\
         COMMIT\n"
    )
}

fn cloud(names: &Names) -> String {
    let private: Vec<String> = names.private.iter().map(|net| format!("-A IP-MASQ -d {net} -j RETURN\n")).collect();
    format!(
        "*nat\n\
         :IP-MASQ - [0:0]\n\
         -A POSTROUTING -m addrtype ! --dst-type LOCAL -j IP-MASQ\n\
         {}\
         -A IP-MASQ -j MASQUERADE\n\
         COMMIT\n",
        private.concat()
    )
}

/// The addresses that the cache listens at: a link-local one, and the cluster IP of the cluster's DNS.
pub(super) fn cache_addresses(family: Family) -> [&'static str; 2] {
    match family {
        Family::V4 => ["169.254.20.10", "10.96.0.200"],
        Family::V6 => ["fd00:20::10", "fd00:96::200"],
    }
}

fn local_dns(names: &Names) -> String {
    let each = |text: fn(&str, &str) -> String| {
        let addresses = cache_addresses(names.family).into_iter();
        addresses.flat_map(|address| ["udp", "tcp"].map(|protocol| text(address, protocol))).collect::<String>()
    };
    let raw = each(|address, protocol| {
        format!(
            "-A PREROUTING -d {address} -p {protocol} --dport 53 -j NOTRACK\n\
             -A OUTPUT -d {address} -p {protocol} --dport 53 -j NOTRACK\n\
             -A OUTPUT -s {address} -p {protocol} --sport 53 -j NOTRACK\n"
        )
    });
    let filter = each(|address, protocol| {
        format!(
            "-A INPUT -d {address} -p {protocol} --dport 53 -j ACCEPT\n\
             -A OUTPUT -s {address} -p {protocol} --sport 53 -j ACCEPT\n"
        )
    });
    format!("*raw\n{raw}COMMIT\n*filter\n{filter}COMMIT\n")
}

/// The plugin makes a chain for each pod; this is one for all.
fn bridge_plugin(names: &Names) -> String {
    let Names { cluster, own, multicast, .. } = names;
    format!(
        "*nat\n\
         :CNI-PODS - [0:0]\n\
         -A POSTROUTING -s {own} -j CNI-PODS\n\
         -A CNI-PODS -d {cluster} -j ACCEPT\n\
         -A CNI-PODS ! -d {multicast} -j MASQUERADE\n\
         COMMIT\n"
    )
}

/// Both families at once. The zone `trusted` has the pods, by their addresses; `public` has the uplink, with the ports of a cluster open, and
/// those of backends with the host's network: Ballast has translated a packet before netfilter sees it, so none has the status `dnat`.
pub(super) const FIREWALLD: &str = "
table inet firewalld {
    chain filter_PREROUTING {
        type filter hook prerouting priority filter + 10; policy accept;
        icmpv6 type { nd-router-advert, nd-neighbor-solicit } accept
        meta nfproto ipv6 fib saddr . mark . iif oif missing drop
    }
    chain nat_POSTROUTING {
        type nat hook postrouting priority srcnat + 10; policy accept;
        ip daddr 10.244.0.0/16 return
        ip6 daddr fd00:244::/32 return
        oifname \"eth0\" ip saddr 10.244.0.0/16 masquerade
        oifname \"eth0\" ip6 saddr fd00:244::/32 masquerade
    }
    chain filter_INPUT {
        type filter hook input priority filter + 10; policy accept;
        ct state { established, related } accept
        ct status dnat accept
        iifname \"lo\" accept
        ct state invalid drop
        jump trusted
        meta l4proto { icmp, icmpv6 } accept
        tcp dport { 22, 8080, 10250, 30000-32767 } accept
        udp dport { 4789, 5353, 8472, 30000-32767 } accept
        reject with icmpx admin-prohibited
    }
    chain filter_FORWARD {
        type filter hook forward priority filter + 10; policy accept;
        ct state { established, related } accept
        ct status dnat accept
        iifname \"lo\" accept
        ct state invalid drop
        meta l4proto icmpv6 accept
        jump trusted
        reject with icmpx admin-prohibited
    }
    chain trusted {
        ip saddr 10.244.0.0/16 accept
        ip daddr 10.244.0.0/16 accept
        ip6 saddr fd00:244::/32 accept
        ip6 daddr fd00:244::/32 accept
    }
}
";
