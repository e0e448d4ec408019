//! The start of the data path: checks of the environment, locks, tables, and the programs that begin to load.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use tokio::sync::{mpsc, watch};

use super::{
    Datapath, DatapathError, DatapathSettings, FastPath, Feature, SocketLb, Status, Surroundings,
    attach::Attacher,
    beside, bpffs, cgroup, fast_path, features,
    links::Links,
    load,
    loads::Loads,
    lock::AgentLock,
    net,
    node_addresses::NodeAddresses,
    object::{self, is_embedded},
    pins::{Created, Pins},
    reconciled_tables::Sources,
    reports::Reports,
    settings, source_ports,
    switch::{self, Prepared, Switching},
};

impl Datapath {
    /// Makes the tables, or takes over those that are there: what is in them may be read and written while the programs are
    /// loaded. On an error, here or in [`Self::follow_links`], nothing new is left behind.
    pub fn open(mut settings: DatapathSettings) -> Result<Self, DatapathError> {
        if settings.programs.is_none() && !is_embedded() {
            return Err(DatapathError::NoPrograms);
        }
        features::check()?;
        let missing_features = Feature::missing();
        for feature in &missing_features {
            tracing::warn!("this kernel lacks a feature: {feature}");
        }
        if missing_features.contains(&Feature::CheckMtu) {
            settings.fast_path = FastPath::Off;
        }
        check_named(&settings)?;
        let tc = features::tc_mechanism(settings.tc_attach)?;
        let ports = source_ports::choose(settings.snat_ports, source_ports::Local::read().as_ref());
        let cgroup = match settings.socket_lb {
            SocketLb::Off => None,
            SocketLb::Host | SocketLb::All => Some(Arc::new(cgroup::open(settings.cgroup_root.as_deref())?)),
        };
        let pins = Pins::under(&settings.bpffs);
        beside::check(&pins)?;
        bpffs::ensure(&settings.bpffs)?;

        let mut created = Created::default();
        created.folder(pins.root())?;
        let lock = AgentLock::take(Some(&settings.run_dir), Some(pins.root()))?;
        created.folder(pins.links())?;
        created.folder(pins.programs())?;
        let elf = object::read(settings.programs.as_deref())?;
        let prepared = switch::prepare(pins, &settings, &elf, cgroup.as_deref(), &mut created)?;
        let (mut kernel, loading) = load::load(&settings, &elf, &prepared, ports, &mut created)?;
        let Prepared { pins, begun, .. } = prepared;
        begun.iter().try_for_each(|begun| begun.keep_old_programs(&mut created))?;
        let switching = Switching::of(begun, &pins);
        let (sources, links) = (Sources::open(pins.tables())?, Links::restore(&kernel));
        let in_force = Pins::under(&settings.bpffs).tables().to_owned();
        let mut fast_path = fast_path::Switch::new(settings.fast_path, in_force);
        fast_path.begin(&mut kernel.fast_path)?;
        let addresses = own_addresses()?;
        let status = watch::Sender::new(Status {
            addresses: addresses.clone(),
            absent: BTreeSet::new(),
            tc,
            missing_features,
            socket_lb: settings.socket_lb.text(),
            cgroup: cgroup.as_ref().map(|root| root.path.display().to_string()),
            synced: false,
            is_moving: switching.as_ref().is_some_and(Switching::moves),
            links: Vec::new(),
            problems: Vec::new(),
            node_problems: Vec::new(),
            warnings: Vec::new(),
            no_external_link: None,
            source_ports: ports.total(),
            fast_path: fast_path.status(),
            programs: Vec::new(),
        });
        let attacher = Attacher::new(pins, tc, settings.xdp_mode);
        Ok(Self {
            settings,
            kernel,
            attacher,
            links,
            addresses: NodeAddresses::new(addresses),
            sources,
            fast_path,
            cgroup,
            outside_cgroup: None,
            switching,
            loads: Loads::new(loading, created),
            reports: Reports::new(status),
            surroundings: watch::channel(Surroundings::default()),
            questions: mpsc::channel(4),
            _lock: lock,
        })
    }
}

/// The addresses at this moment: the plan must not begin without them, or it would take every node port away.
fn own_addresses() -> Result<BTreeSet<IpAddr>, DatapathError> {
    let found = nix::ifaddrs::getifaddrs().map_err(std::io::Error::from);
    let found = found.map_err(DatapathError::kernel("read the addresses of the interfaces"))?;
    let found = found.filter(|interface| net::carries_node_addresses(&interface.interface_name));
    let addresses = found.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::from(v6.ip())))
    });
    Ok(addresses.filter(|address| net::is_node_address(*address)).collect())
}

fn check_named(settings: &DatapathSettings) -> Result<(), DatapathError> {
    let flags = [("pod-interfaces", &settings.pod_interfaces), ("external-interfaces", &settings.external_interfaces)];
    for (flag, selector) in flags {
        for name in settings::literals(selector) {
            if nix::net::if_::if_nametoindex(name).is_err() {
                return Err(DatapathError::NoInterface { flag, name: name.to_owned() });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_interface_must_be_there() {
        let settings = DatapathSettings {
            external_interfaces: "lo,nosuch0".parse().expect("well-formed"),
            ..DatapathSettings::default()
        };
        let error = check_named(&settings).expect_err("not there").to_string();
        assert!(error.contains("--external-interfaces") && error.contains("nosuch0"), "{error}");
        let globs =
            DatapathSettings { pod_interfaces: "nosuch*".parse().expect("well-formed"), ..DatapathSettings::default() };
        assert!(check_named(&globs).is_ok());
    }
}
