//! The programs on their way into the kernel: taken from the pins of an earlier start, or verified, several at a time, beside everything else.

use std::{
    collections::BTreeMap,
    os::fd::AsFd as _,
    sync::{Mutex, PoisonError},
    thread,
};

use aya::{
    Ebpf,
    programs::{Program, ProgramInfo},
};
use tokio::sync::oneshot;

use super::{
    DatapathError,
    loaded::{Loaded, Outcomes},
    pins::Created,
    program_pins::ProgramPins,
    programs::is_gate,
};

/// Number of programs that are verified at a time, if there are as many CPUs: each takes some ten mebibytes of kernel memory meanwhile.
const AT_A_TIME: usize = 4;
/// Priority of the verification, so that lists and tables come first.
const NICE: libc::c_int = 5;

/// What is being loaded.
#[derive(Debug)]
pub(super) struct Loads {
    /// Until all programs are in the kernel: what this start has made, and takes back if one is refused.
    pub first: Option<(Loading, Created)>,
    /// Programs that an interface asked for while the data path was running.
    pub later: Option<Loading>,
}

impl Loads {
    pub fn new(first: Loading, created: Created) -> Self {
        Self { first: Some((first, created)), later: None }
    }

    /// Whether no interface waits for programs.
    pub fn is_idle(&self) -> bool {
        self.later.is_none()
    }

    /// Waits for programs that interfaces asked for, for ever if there are none.
    pub async fn end_later(&mut self) -> (Loading, Result<Outcomes, DatapathError>) {
        let Some(loading) = &mut self.later else { return std::future::pending().await };
        let outcomes = loading.end().await;
        match self.later.take() {
            Some(loading) => (loading, outcomes),
            None => std::future::pending().await,
        }
    }
}

/// Programs that are loaded together, in a thread of their own.
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

#[allow(clippy::wildcard_enum_match_arm, reason = "program types of the library")]
fn load_program(name: &'static str, program: &mut Program) -> Result<Loaded, DatapathError> {
    let refused = |source| DatapathError::Program { name: name.to_owned(), source };
    match program {
        Program::SchedClassifier(program) => program.load(),
        Program::Xdp(program) => program.load(),
        Program::CgroupSockAddr(program) => program.load(),
        Program::CgroupSock(program) => program.load(),
        Program::SockOps(program) => program.load(),
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
