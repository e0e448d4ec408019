//! The programs, verified by the kernel: several at a time, and beside everything else that a start has to do.

use std::{
    collections::BTreeMap,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    sync::{Mutex, PoisonError},
    thread,
};

use aya::{
    Ebpf,
    programs::{Program, ProgramInfo},
};
use tokio::sync::oneshot;

use super::{DatapathError, cgroup_links, settings::SocketLb};

/// The tc and XDP programs; those of [`cgroup_links::PROGRAMS`] come with socket load balancing.
pub(super) const INTERFACE_PROGRAMS: [&str; 8] =
    ["pod_in", "pod_out", "bridge_in", "node_in", "node_out", "node_in_l3", "node_out_l3", "xdp_node"];
/// So many programs are verified at a time, if there are as many CPUs: each takes some ten mebibytes of the kernel's memory meanwhile.
const AT_A_TIME: usize = 4;
/// How much the verification yields to what is to be read and written meanwhile.
const NICE: libc::c_int = 5;

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
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// All programs by name.
pub(super) type Programs = BTreeMap<&'static str, Loaded>;

/// Programs on their way into the kernel.
#[derive(Debug)]
pub(super) struct Loading(oneshot::Receiver<Result<Programs, DatapathError>>);

impl Loading {
    /// Begins with it. The object is given up as soon as it is done.
    pub fn begin(mut object: Ebpf, socket_lb: SocketLb) -> Result<Self, DatapathError> {
        let (done, loading) = oneshot::channel();
        let work = move || {
            let loaded = load(&mut object, socket_lb);
            drop(object);
            // Who asked may have failed meanwhile.
            let _ = done.send(loaded);
        };
        let thread = thread::Builder::new().name("programs".into()).spawn(work);
        thread.map(|_| Self(loading)).map_err(DatapathError::kernel("start a thread"))
    }

    /// Waits until all programs are in the kernel, or one is refused.
    pub async fn end(self) -> Result<Programs, DatapathError> {
        let gone = || DatapathError::BadObject { reason: "the thread that loads it is gone".into() };
        self.0.await.map_err(|_| gone())?
    }
}

fn load(object: &mut Ebpf, socket_lb: SocketLb) -> Result<Programs, DatapathError> {
    let sockets = cgroup_links::PROGRAMS.map(|(name, _)| name).into_iter().filter(|_| socket_lb != SocketLb::Off);
    let names = INTERFACE_PROGRAMS.into_iter().chain(sockets);
    let mut found: BTreeMap<&str, &mut Program> = object.programs_mut().collect();
    let missing = |name| DatapathError::BadObject { reason: format!("program {name} is missing") };
    // The large ones come first.
    let mut work = Vec::new();
    for name in names {
        work.push((name, found.remove(name).ok_or_else(|| missing(name))?));
    }
    let work = Mutex::new(work.into_iter());
    let workers = thread::available_parallelism().map_or(1, usize::from).min(AT_A_TIME);
    let loaded = thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(|| load_some(&work))).collect();
        let join = |worker: thread::ScopedJoinHandle<'_, _>| {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        workers.into_iter().map(join).collect::<Result<Vec<_>, _>>()
    });
    Ok(loaded?.into_iter().flatten().collect())
}

/// Loads programs until there is none left, or one is refused.
fn load_some<'a>(
    work: &Mutex<impl Iterator<Item = (&'static str, &'a mut Program)>>,
) -> Result<Vec<(&'static str, Loaded)>, DatapathError> {
    yield_to_others();
    let mut loaded = Vec::new();
    loop {
        let next = work.lock().unwrap_or_else(PoisonError::into_inner).next();
        let Some((name, program)) = next else { return Ok(loaded) };
        match load_program(name, program) {
            Ok(program) => loaded.push((name, program)),
            Err(error) => {
                // The others need not go on.
                work.lock().unwrap_or_else(PoisonError::into_inner).by_ref().for_each(drop);
                return Err(error);
            }
        }
    }
}

/// Lowers the priority of this thread, which ends with its work.
fn yield_to_others() {
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
    Ok(Loaded {
        descriptor: descriptor.map_err(DatapathError::kernel("duplicate a descriptor"))?,
        id: info.id(),
        verified_instructions: info.verified_instruction_count().unwrap_or(0),
        jited_bytes: info.size_jitted(),
    })
}
