//! Which programs there are, which of them are in the kernel, and which the kernel refused.
//!
//! A start loads what every node needs: the entry programs of usual links, and the programs that these tail call ([`super::program_array`]).
//! The others are loaded when the first interface asks for them: most nodes have no tunnel without Ethernet, no bridge, or no XDP.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use aya_obj::generated::bpf_attach_type as At;
use lb_common::switch::GATES;
use tokio::time::Instant;

use super::{
    DatapathError,
    loaded::{Loaded, Outcomes},
    program_array::{self, ProgramArray},
    program_pins::ProgramPins,
    settings::SocketLb,
};

/// The entry programs at tc and XDP.
pub(super) const INTERFACE_PROGRAMS: [&str; 8] =
    ["pod_in", "pod_out", "bridge_in", "node_in", "node_out", "node_in_l3", "node_out_l3", "xdp_node"];
/// Each socket program and where it is attached: these come with socket load balancing.
pub(super) const SOCKET_PROGRAMS: [(&str, At); 12] = [
    ("connect4", At::BPF_CGROUP_INET4_CONNECT),
    ("connect6", At::BPF_CGROUP_INET6_CONNECT),
    ("sendmsg4", At::BPF_CGROUP_UDP4_SENDMSG),
    ("sendmsg6", At::BPF_CGROUP_UDP6_SENDMSG),
    ("recvmsg4", At::BPF_CGROUP_UDP4_RECVMSG),
    ("recvmsg6", At::BPF_CGROUP_UDP6_RECVMSG),
    ("getpeername4", At::BPF_CGROUP_INET4_GETPEERNAME),
    ("getpeername6", At::BPF_CGROUP_INET6_GETPEERNAME),
    ("post_bind4", At::BPF_CGROUP_INET4_POST_BIND),
    ("post_bind6", At::BPF_CGROUP_INET6_POST_BIND),
    ("sock_release", At::BPF_CGROUP_INET_SOCK_RELEASE),
    ("sock_ops", At::BPF_CGROUP_SOCK_OPS),
];
/// The tc programs of pods' links and of Ethernet links to the network: nearly every node needs them, and a pod's link soon.
const FIRST: [&str; 4] = ["pod_in", "pod_out", "node_in", "node_out"];
/// Pause before a refused program is tried again. It doubles with each refusal, up to [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_secs(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(640);

/// A program that the kernel refused.
#[derive(Debug)]
struct Refused {
    why: String,
    pause: Duration,
    next: Instant,
}

/// Programs in the kernel, and those that the kernel refused, by name.
#[derive(Debug, Default)]
pub(super) struct Programs {
    loaded: BTreeMap<&'static str, Loaded>,
    refused: BTreeMap<&'static str, Refused>,
    arrays: Vec<ProgramArray>,
    /// Whether gates hang at the attach points ([`super::switch`]).
    is_gated: bool,
}

/// The array of the programs that this entry program calls; `None`: it calls none.
fn array_of(entry: &str) -> Option<&'static str> {
    match entry {
        "xdp_node" => Some(program_array::XDP),
        entry if INTERFACE_PROGRAMS.contains(&entry) => Some(program_array::TC),
        _ => None,
    }
}

/// The gate of an entry program.
fn gate_of(entry: &str) -> Option<&'static str> {
    GATES.into_iter().find(|(name, _)| *name == entry).map(|(_, gate)| gate)
}

/// A gate belongs to one switch: the next start cannot use it.
pub(super) fn is_gate(name: &str) -> bool {
    GATES.into_iter().any(|(_, gate)| gate == name)
}

impl Programs {
    pub fn new(arrays: Vec<ProgramArray>) -> Self {
        Self { arrays, ..Self::default() }
    }

    /// Says whether gates are to hang at the attach points.
    pub fn set_gated(&mut self, is_gated: bool) {
        self.is_gated = is_gated;
    }

    /// Lets the gates go.
    pub fn forget_gates(&mut self) {
        self.loaded.retain(|name, _| !is_gate(name));
    }

    /// What is to hang where this entry program is wanted: the program itself, or its gate. `None`: it is not in the kernel.
    pub fn at_hook(&self, entry: &str) -> Option<&Loaded> {
        let program = self.get(entry)?;
        if self.is_gated { self.get(gate_of(entry)?) } else { Some(program) }
    }

    /// The program, and before it all that goes with it.
    fn with_called(&self, entry: &'static str) -> impl Iterator<Item = &'static str> + use<> {
        let called = array_of(entry).into_iter().flat_map(program_array::programs).map(|(_, name)| name);
        called.chain(gate_of(entry).filter(|_| self.is_gated)).chain([entry])
    }

    /// The programs that a start loads: the large ones come first. `logged`: all of them, since the ring of their log belongs to one loading.
    pub fn first(&self, socket_lb: SocketLb, logged: bool) -> Vec<&'static str> {
        let sockets = SOCKET_PROGRAMS.map(|(name, _)| name).into_iter().filter(|_| socket_lb != SocketLb::Off);
        let interfaces = if logged { INTERFACE_PROGRAMS.as_slice() } else { &FIRST };
        let called: BTreeSet<_> = interfaces.iter().filter_map(|entry| array_of(entry)).collect();
        let called = called.into_iter().flat_map(program_array::programs).map(|(_, name)| name);
        let gates = interfaces.iter().filter_map(|entry| gate_of(entry)).filter(|_| self.is_gated);
        called.chain(gates).chain(interfaces.iter().copied()).chain(sockets).collect()
    }

    pub fn get(&self, name: &str) -> Option<&Loaded> {
        self.loaded.get(name)
    }

    pub fn arrays(&self) -> &[ProgramArray] {
        &self.arrays
    }

    /// Puts every loaded program that is called into its slot, and keeps the arrays pinned.
    pub fn fill_arrays(&self) -> Result<(), DatapathError> {
        let filled = |array: &ProgramArray| array.pin().and_then(|()| array.fill(|name| self.get(name)));
        self.arrays.iter().try_for_each(filled)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Loaded)> {
        self.loaded.iter().map(|(name, program)| (*name, program))
    }

    /// Why a program is not in the kernel; `None`: it was not refused.
    pub fn refusal(&self, name: &str) -> Option<&str> {
        self.refused.get(name).map(|refused| refused.why.as_str())
    }

    /// Adds what was loaded, and pins it for the next start. A refused program is a problem of the interfaces that need it; an entry program
    /// that calls a missing one is as good as refused.
    pub fn add(&mut self, outcomes: Outcomes, pins: &ProgramPins, now: Instant) -> Result<(), DatapathError> {
        for (name, outcome) in outcomes {
            match outcome {
                Ok(program) => {
                    if !is_gate(name) {
                        pins.pin(name, program.descriptor());
                    }
                    self.refused.remove(name);
                    self.loaded.insert(name, program);
                }
                Err(error) => self.refuse(name, &error, now),
            }
        }
        self.fill_arrays()?;
        for entry in INTERFACE_PROGRAMS {
            let missing = self.with_called(entry).find(|name| self.refused.contains_key(name));
            if let Some(missing) = missing.filter(|missing| *missing != entry && self.loaded.contains_key(entry)) {
                self.loaded.remove(entry);
                let why = self.refusal(missing).unwrap_or_default().to_owned();
                self.refuse(entry, &DatapathError::BadObject { reason: format!("it calls {missing}: {why}") }, now);
            }
        }
        Ok(())
    }

    /// Notes that a program could not be loaded.
    pub fn refuse(&mut self, name: &'static str, error: &DatapathError, now: Instant) {
        let pause = self.refused.get(name).map_or(PAUSE, |before| (before.pause * 2).min(LONGEST_PAUSE));
        self.refused.insert(name, Refused { why: error.to_string(), pause, next: now + pause });
    }

    /// Those of these programs that may be loaded now: not in the kernel, and not refused a short time ago.
    pub fn due(&self, wanted: BTreeSet<&'static str>, now: Instant) -> Vec<&'static str> {
        let due =
            |name: &&str| !self.loaded.contains_key(name) && self.refused.get(name).is_none_or(|one| one.next <= now);
        let entries: Vec<_> = wanted.into_iter().filter(due).collect();
        let with_called: BTreeSet<_> = entries.into_iter().flat_map(|entry| self.with_called(entry)).collect();
        with_called.into_iter().filter(|name| !self.loaded.contains_key(name)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn no_pins() -> ProgramPins {
        ProgramPins::none(Path::new("/nowhere"), b"", 0)
    }

    fn refusal() -> DatapathError {
        DatapathError::BadObject { reason: "no such thing".into() }
    }

    fn refuse(programs: &mut Programs, name: &'static str, now: Instant) {
        programs.add(vec![(name, Err(refusal()))], &no_pins(), now).expect("no array to fill");
    }

    fn is_due(programs: &Programs, name: &'static str, now: Instant) -> bool {
        programs.due(BTreeSet::from([name]), now).contains(&name)
    }

    #[test]
    fn a_refused_program_is_tried_again_after_growing_pauses() {
        let (mut programs, start) = (Programs::default(), Instant::now());
        assert!(is_due(&programs, "bridge_in", start));
        refuse(&mut programs, "bridge_in", start);
        assert!(programs.refusal("bridge_in").is_some_and(|why| why.contains("no such thing")));
        assert!(!is_due(&programs, "bridge_in", start + PAUSE / 2));
        assert!(is_due(&programs, "bridge_in", start + PAUSE));
        refuse(&mut programs, "bridge_in", start + PAUSE);
        assert!(!is_due(&programs, "bridge_in", start + PAUSE * 2));
        assert!(is_due(&programs, "bridge_in", start + PAUSE * 3));
        for _ in 0..20 {
            programs.refuse("bridge_in", &refusal(), start);
        }
        assert!(is_due(&programs, "bridge_in", start + LONGEST_PAUSE));
    }

    #[test]
    fn a_program_that_is_refused_holds_up_no_other() {
        let (mut programs, now) = (Programs::default(), Instant::now());
        refuse(&mut programs, "bridge_in", now);
        let due = programs.due(BTreeSet::from(["bridge_in", "xdp_node"]), now);
        assert!(due.contains(&"xdp_node") && !due.contains(&"bridge_in"), "{due:?}");
        assert_eq!(programs.refusal("xdp_node"), None);
    }

    #[test]
    fn an_entry_program_is_loaded_with_all_that_it_calls() {
        let programs = Programs::default();
        let due = programs.due(BTreeSet::from(["xdp_node"]), Instant::now());
        assert!(due.contains(&"xdp_select4") && due.contains(&"xdp_node") && !due.contains(&"select4"), "{due:?}");
    }

    #[test]
    fn a_start_loads_what_usual_links_need() {
        let (none, mut gated) = (Programs::default(), Programs::default());
        let without_sockets = none.first(SocketLb::Off, false);
        for name in FIRST.into_iter().chain(["select4", "icmp_nat6"]) {
            assert!(without_sockets.contains(&name), "{name}");
        }
        for name in ["connect4", "bridge_in", "xdp_node", "xdp_select4"] {
            assert!(!without_sockets.contains(&name), "{name}");
        }
        assert!(INTERFACE_PROGRAMS.iter().all(|name| none.first(SocketLb::Off, true).contains(name)));
        assert_eq!(none.first(SocketLb::Host, false).len(), without_sockets.len() + SOCKET_PROGRAMS.len());
        gated.set_gated(true);
        assert_eq!(gated.first(SocketLb::Off, false).len(), without_sockets.len() + FIRST.len(), "a gate for each");
        assert!(gated.due(BTreeSet::from(["xdp_node"]), Instant::now()).contains(&"gate_xdp"));
    }
}
