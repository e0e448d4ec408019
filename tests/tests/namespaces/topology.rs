//! The networks of the tests carry traffic by themselves, without Ballast, and vanish.

use std::net::{IpAddr, SocketAddr};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};
use lb_tests::peers::{Datagrams, Server, Stream};
use lb_tests::topology::{Families, NetNs, NodeOptions, PREFIX, RUN_ROOT, Topology, sweep};

fn reachable(from: &NetNs, to: &NetNs, addresses: Vec<IpAddr>) -> Result<()> {
    for address in addresses {
        let at = SocketAddr::new(address, 8080);
        let _servers = Server::all(to, "there", &[at])?;
        let answer = Stream::connect(from, at)
            .and_then(|mut stream| stream.ask("hello"))
            .with_context(|| format!("{} to {} at {at}", from.name(), to.name()))?;
        assert_eq!((answer.server.as_str(), answer.local), ("there", at));
        assert_eq!(Datagrams::connected(from, 0, at)?.ask("hello")?.local, at);
    }
    Ok(())
}

#[test]
fn everyone_reaches_everyone() -> Result<()> {
    for families in Families::ALL {
        let topology = Topology::new("reach")?;
        let node = || topology.node_with(NodeOptions { families, ..NodeOptions::default() });
        let (one, two) = (node()?, node()?);
        one.route_to(&two)?;
        two.route_to(&one)?;
        let outside = topology.outside("outside", &one)?;
        let (routed, bridged, far) = (one.pod("routed")?, one.bridged_pod("bridged")?, two.pod("far")?);
        reachable(routed.netns(), bridged.netns(), bridged.ips())?;
        reachable(bridged.netns(), routed.netns(), routed.ips())?;
        reachable(routed.netns(), far.netns(), far.ips())?;
        reachable(outside.netns(), routed.netns(), routed.ips())?;
        reachable(one.netns(), bridged.netns(), bridged.ips())?;
        reachable(routed.netns(), one.netns(), one.ips())?;
        reachable(bridged.netns(), outside.netns(), outside.ips())?;
        let hosts = [one.namespace(), outside.namespace(), routed.namespace(), bridged.namespace()];
        for namespace in hosts {
            let shown = namespace.ip_show(&["-4", "address", "show"])?;
            assert_eq!(shown.trim().is_empty(), families == Families::Ipv6, "{}: {shown}", namespace.name());
        }
    }
    Ok(())
}

#[test]
fn nothing_is_left() -> Result<()> {
    let topology = Topology::new("gone")?;
    let name = topology.name().to_owned();
    let node = topology.node()?;
    let (bpffs, cgroup) = (node.bpffs().to_owned(), node.cgroup().to_owned());
    let pod = node.pod("pod")?;
    assert!(cgroup.exists() && bpffs.exists());
    drop((pod, node, topology));
    assert!(!bpffs.exists() && !cgroup.exists());
    let left: Vec<_> = std::fs::read_dir("/run/netns")?
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(&name))
        .collect();
    assert!(left.is_empty(), "{left:?}");
    Ok(())
}

/// Set for the run of this binary that is to die with everything in place.
const DIE: &str = "BALLAST_TEST_DIE";

#[test]
fn what_a_killed_run_left_is_swept() -> Result<()> {
    if std::env::var_os(DIE).is_some() {
        let topology = Topology::new("dies")?;
        let node = topology.node()?;
        let _pod = node.pod("pod")?;
        std::process::abort();
    }
    let mut child = Command::new(std::env::current_exe()?)
        .args(["--exact", "topology::what_a_killed_run_left_is_swept"])
        .env(DIE, "1")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let mark = format!("{PREFIX}{}-", child.id());
    assert!(!child.wait()?.success());
    let left = || -> Result<Vec<String>> {
        let mut names = Vec::new();
        for folder in ["/run/netns", RUN_ROOT] {
            names.extend(std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name()));
        }
        let mut names: Vec<String> = names.into_iter().filter_map(|name| name.into_string().ok()).collect();
        names.extend(std::fs::read_to_string("/proc/self/mounts")?.lines().map(str::to_owned));
        names.retain(|name| name.contains(&mark));
        Ok(names)
    };
    assert!(left()?.len() >= 5, "wire, node and pod, a folder and a bpffs: {:?}", left()?);
    sweep()?;
    assert_eq!(left()?, [""; 0]);
    Ok(())
}
