//! What a scene adds for each pod.

use super::{Names, Scene};

/// The rules for a pod behind this link at this address, as `iptables-restore` reads them.
pub(super) fn iptables(scene: Scene, names: &Names, link: &str, address: &str) -> Option<String> {
    match scene {
        Scene::Calico => Some(calico(names, link)),
        Scene::Netpol => Some(netpol(names, link, address)),
        _ => None,
    }
}

/// A chain for each direction. The namespace's profile accepts what no policy decides on.
fn calico(names: &Names, link: &str) -> String {
    let pods = format!("{}pods", names.set_prefix());
    let chain = |name: &str, more: &str| {
        format!(
            ":{name} - [0:0]\n\
             -A {name} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n\
             -A {name} -m conntrack --ctstate INVALID -j DROP\n\
             -A {name} -j MARK --set-xmark 0x0/0x10000\n\
             {more}\
             -A {name} -m set --match-set {pods} src -j MARK --set-xmark 0x10000/0x10000\n\
             -A {name} -m mark --mark 0x10000/0x10000 -j RETURN\n\
             -A {name} -j MARK --set-xmark 0x10000/0x10000\n\
             -A {name} -m mark --mark 0x10000/0x10000 -j RETURN\n\
             -A {name} -j DROP\n"
        )
    };
    let (to, from) = (format!("cali-tw-{link}"), format!("cali-fw-{link}"));
    let tunnels = format!("-A {from} -p udp --dport 4789 -j DROP\n-A {from} -p 4 -j DROP\n");
    format!(
        "*filter\n{}{}\
         -I cali-to-wl-dispatch 1 -o {link} -g {to}\n\
         -I cali-from-wl-dispatch 1 -i {link} -g {from}\n\
         COMMIT\n",
        chain(&to, ""),
        chain(&from, &tunnels)
    )
}

/// A chain for both directions: a policy marks what it allows, and the rest is rejected. The pod's policy allows all that its clients and itself do here.
fn netpol(names: &Names, link: &str, address: &str) -> String {
    let (chain, policy) = (format!("KUBE-POD-FW-{link}"), format!("KUBE-NWPLCY-{link}"));
    let set = names.set_prefix();
    format!(
        "*filter\n\
         :{chain} - [0:0]\n\
         :{policy} - [0:0]\n\
         -A {policy} -m set --match-set {set}allowed src -d {address} -j MARK --set-xmark 0x10000/0x10000\n\
         -A {policy} -s {address} -j MARK --set-xmark 0x10000/0x10000\n\
         -A {chain} -m conntrack --ctstate INVALID -j DROP\n\
         -A {chain} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n\
         -A {chain} -m addrtype --src-type LOCAL -d {address} -j ACCEPT\n\
         -A {chain} -j {policy}\n\
         -A {chain} -m mark ! --mark 0x10000/0x10000 -j REJECT\n\
         -A {chain} -j MARK --set-xmark 0x0/0x10000\n\
         -A {chain} -j MARK --set-xmark 0x20000/0x20000\n\
         -I KUBE-ROUTER-FORWARD 1 -d {address} -j {chain}\n\
         -I KUBE-ROUTER-OUTPUT 1 -d {address} -j {chain}\n\
         -A KUBE-ROUTER-INPUT -s {address} -j {chain}\n\
         -A KUBE-ROUTER-FORWARD -s {address} -j {chain}\n\
         COMMIT\n"
    )
}
