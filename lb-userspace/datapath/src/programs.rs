//! The programs: taken from the pins of an earlier start, or verified by the kernel, several at a time, beside everything else.
//!
//! A start loads what every node needs: the entry programs of usual links, and the programs that these tail call ([`super::program_array`]).
//! The others are loaded when the first interface asks for them: most nodes have no tunnel without Ethernet, no bridge, or no XDP.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    sync::{Mutex, PoisonError},
    thread,
    time::Duration,
};

use aya::{
    Ebpf,
    programs::{Program, ProgramInfo},
};
use lb_common::switch::GATES;
use tokio::{sync::oneshot, time::Instant};

use super::{
    DatapathError, cgroup_links,
    program_array::{self, ProgramArray},
    program_pins::ProgramPins,
    settings::SocketLb,
};

/// The entry programs at tc and XDP; those of [`cgroup_links::PROGRAMS`] come with socket load balancing.
pub(super) const INTERFACE_PROGRAMS: [&str; 8] =
    ["pod_in", "pod_out", "bridge_in", "node_in", "node_out", "node_in_l3", "node_out_l3", "xdp_node"];
/// The tc programs of pods' links and of Ethernet links to the network: nearly every node needs them, and a pod's link soon.
const FIRST: [&str; 4] = ["pod_in", "pod_out", "node_in", "node_out"];
/// Number of programs that are verified at a time, if there are as many CPUs: each takes some ten mebibytes of kernel memory meanwhile.
const AT_A_TIME: usize = 4;
/// Priority of the verification, so that lists and tables come first.
const NICE: libc::c_int = 5;
/// Pause before a refused program is tried again. It doubles with each refusal, up to [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_secs(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(640);

/// A program in the kernel.
#[derive(Debug)]
pub(super) struct Loaded {
    descriptor: OwnedFd,
    pub id: u32,
    /// Instructions that the verifier walked; 0: the kernel does not say (before 5.16).
    pub verified_instructions: u32,
    /// Size of the machine code in bytes.
    pub jited_bytes: u32,
}

impl Loaded {
    pub fn new(info: &ProgramInfo, descriptor: OwnedFd) -> Self {
        Self {
            descriptor,
            id: info.id(),
            verified_instructions: info.verified_instruction_count().unwrap_or(0),
            jited_bytes: info.size_jitted(),
        }
    }

    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

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
fn is_gate(name: &str) -> bool {
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
        let sockets = cgroup_links::PROGRAMS.map(|(name, _)| name).into_iter().filter(|_| socket_lb != SocketLb::Off);
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

/// What became of each program.
pub(super) type Outcomes = Vec<(&'static str, Result<Loaded, DatapathError>)>;

/// Programs on their way into the kernel.
#[derive(Debug)]
pub(super) struct Loading {
    pub names: Vec<&'static str>,
    outcomes: oneshot::Receiver<Result<Outcomes, DatapathError>>,
}

impl Loading {
    /// Begins in a thread of its own. `object` is opened only if a program has no pin that serves.
    pub fn begin(
        names: Vec<&'static str>,
        pins: ProgramPins,
        object: impl FnOnce() -> Result<Ebpf, DatapathError> + Send + 'static,
    ) -> Result<Self, DatapathError> {
        let (done, outcomes) = oneshot::channel();
        let asked = names.clone();
        let work = move || {
            // The receiver is gone if the start has failed meanwhile.
            let _ = done.send(open_or_load(&asked, &pins, object));
        };
        let thread = thread::Builder::new().name("programs".into()).spawn(work);
        thread.map(|_| Self { names, outcomes }).map_err(DatapathError::kernel("start a thread"))
    }

    /// Waits until each program is in the kernel or refused. Cancel-safe.
    pub async fn end(&mut self) -> Result<Outcomes, DatapathError> {
        let gone = || DatapathError::BadObject { reason: "the thread that loads it is gone".into() };
        (&mut self.outcomes).await.map_err(|_| gone())?
    }
}

fn open_or_load(
    names: &[&'static str],
    pins: &ProgramPins,
    object: impl FnOnce() -> Result<Ebpf, DatapathError>,
) -> Result<Outcomes, DatapathError> {
    let (mut outcomes, mut missing) = (Outcomes::new(), Vec::new());
    for &name in names {
        match pins.open(name).filter(|_| !is_gate(name)) {
            Some(program) => outcomes.push((name, Ok(program))),
            None => missing.push(name),
        }
    }
    if !missing.is_empty() {
        outcomes.extend(load(&mut object()?, &missing)?);
    }
    Ok(outcomes)
}

fn load(object: &mut Ebpf, names: &[&'static str]) -> Result<Outcomes, DatapathError> {
    let mut found: BTreeMap<&str, &mut Program> = object.programs_mut().collect();
    let missing = |name| DatapathError::BadObject { reason: format!("program {name} is missing") };
    let mut work = Vec::new();
    for name in names {
        work.push((*name, found.remove(name).ok_or_else(|| missing(name))?));
    }
    let workers = thread::available_parallelism().map_or(1, usize::from).min(AT_A_TIME).min(work.len());
    let work = Mutex::new(work.into_iter());
    Ok(thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(|| load_some(&work))).collect();
        let join = |worker: thread::ScopedJoinHandle<'_, _>| {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        workers.into_iter().flat_map(join).collect()
    }))
}

/// Loads programs until there is none left.
fn load_some<'a>(work: &Mutex<impl Iterator<Item = (&'static str, &'a mut Program)>>) -> Outcomes {
    lower_priority();
    let mut outcomes = Vec::new();
    loop {
        let next = work.lock().unwrap_or_else(PoisonError::into_inner).next();
        let Some((name, program)) = next else { return outcomes };
        outcomes.push((name, load_program(name, program)));
    }
}

/// Lowers the priority of this thread, which ends with its work.
fn lower_priority() {
    // SAFETY: takes numbers alone; 0 is the calling thread. Without the right to it, everything merely goes at the same speed.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
}

fn load_program(name: &'static str, program: &mut Program) -> Result<Loaded, DatapathError> {
    let refused = |source| DatapathError::Program { name: name.to_owned(), source };
    match program {
        Program::SchedClassifier(program) => program.load(),
        Program::Xdp(program) => program.load(),
        Program::CgroupSockAddr(program) => program.load(),
        Program::CgroupSock(program) => program.load(),
        other => {
            let reason = format!("program {name} has the type {:?}", other.prog_type());
            return Err(DatapathError::BadObject { reason });
        }
    }
    .map_err(refused)?;
    let info: ProgramInfo = program.info().map_err(refused)?;
    let descriptor = program.fd().map_err(refused)?.as_fd().try_clone_to_owned();
    Ok(Loaded::new(&info, descriptor.map_err(DatapathError::kernel("duplicate a descriptor"))?))
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
        assert_eq!(none.first(SocketLb::Host, false).len(), without_sockets.len() + cgroup_links::PROGRAMS.len());
        gated.set_gated(true);
        assert_eq!(gated.first(SocketLb::Off, false).len(), without_sockets.len() + FIRST.len(), "a gate for each");
        assert!(gated.due(BTreeSet::from(["xdp_node"]), Instant::now()).contains(&"gate_xdp"));
    }
}
