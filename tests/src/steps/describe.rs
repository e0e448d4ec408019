//! What a stopped system call would do, in words that are the same in every run: `update slots`, `pin names`, `load pod_in`.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use aya::maps::MapInfo;
use aya_obj::generated::bpf_cmd as Bpf;
use nix::unistd::Pid;

/// Where records of bpf(2) hold what is read here, in bytes: see `union bpf_attr`.
const CREATED_NAME_AT: usize = 28;
const LOADED_NAME_AT: usize = 48;
const BATCH_MAP_AT: usize = 36;
const PINNED_FD_AT: usize = 8;
const ATTACH_TYPE_AT: usize = 8;
const RECORD_BYTES: usize = 64;
/// A dump over netlink only reads.
const DUMP_FLAGS: u16 = 0x300;

pub struct Describer {
    process: Pid,
    memory: Option<File>,
    maps: HashMap<u32, String>,
}

impl Describer {
    pub fn new(process: Pid) -> Self {
        Self { process, memory: None, maps: HashMap::new() }
    }

    /// What the call at which this thread has stopped changes; `None`: nothing outside the process but its log.
    pub fn step(&mut self, thread: Pid) -> Option<String> {
        let (number, arguments) = stopped_call(thread)?;
        match number {
            libc::SYS_bpf => self.bpf(u32::try_from(arguments[0]).ok()?, arguments[1]),
            libc::SYS_openat => {
                let flags = i32::try_from(arguments[2]).ok()?;
                let creates = flags & (libc::O_CREAT | libc::O_TRUNC) != 0;
                creates.then(|| format!("create {}", self.file(arguments[1])))
            }
            libc::SYS_write | libc::SYS_writev | libc::SYS_pwrite64 | libc::SYS_ftruncate => {
                let file = self.descriptor(arguments[0])?;
                let is_data =
                    file.is_absolute() && !file.starts_with("/dev") && file.extension() != Some("log".as_ref());
                is_data.then(|| format!("write {}", last(&file)))
            }
            libc::SYS_sendto => self.netlink(arguments[0], arguments[1]),
            libc::SYS_sendmsg => {
                // The message's first piece: name, its length, then the pieces.
                let pieces = self.word(arguments[1] + 16)?;
                let first = self.word(pieces)?;
                self.netlink(arguments[0], first)
            }
            libc::SYS_bind => Some("bind".to_owned()),
            libc::SYS_mount => Some("mount".to_owned()),
            libc::SYS_renameat | libc::SYS_renameat2 => Some(format!("rename to {}", self.file(arguments[3]))),
            libc::SYS_mkdirat => Some(format!("make folder {}", self.file(arguments[1]))),
            libc::SYS_symlinkat => Some(format!("link {}", self.file(arguments[2]))),
            libc::SYS_unlinkat => Some(format!("remove {}", self.file(arguments[1]))),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_rename => Some(format!("rename to {}", self.file(arguments[1]))),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_symlink => Some(format!("link {}", self.file(arguments[1]))),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_mkdir => Some(format!("make folder {}", self.file(arguments[0]))),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_unlink | libc::SYS_rmdir => Some(format!("remove {}", self.file(arguments[0]))),
            other => Some(format!("call {other}")),
        }
    }

    fn bpf(&mut self, command: u32, record: u64) -> Option<String> {
        let mut bytes = [0; RECORD_BYTES];
        // Shorter records end where the next thing of the stack begins: its bytes are not read below.
        self.read(record, &mut bytes)?;
        let number = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let name = |at: usize| text(&bytes[at..at + 16]);
        let is = |of: Bpf| command == of as u32;
        Some(if is(Bpf::BPF_MAP_CREATE) {
            format!("make map {}", name(CREATED_NAME_AT))
        } else if is(Bpf::BPF_PROG_LOAD) {
            format!("load {}", text(&bytes[LOADED_NAME_AT..]))
        } else if is(Bpf::BPF_OBJ_PIN) {
            let path = u64::from_ne_bytes(bytes[..8].try_into().expect("eight bytes"));
            let kind = if self.information(number(PINNED_FD_AT), "link_type").is_some() { "link" } else { "map" };
            format!("pin {kind} {}", self.file(path))
        } else if is(Bpf::BPF_MAP_UPDATE_ELEM) {
            format!("update {}", self.map(number(0)))
        } else if is(Bpf::BPF_MAP_LOOKUP_AND_DELETE_ELEM) {
            format!("take from {}", self.map(number(0)))
        } else if is(Bpf::BPF_MAP_DELETE_ELEM) {
            format!("delete from {}", self.map(number(0)))
        } else if is(Bpf::BPF_MAP_UPDATE_BATCH) {
            format!("update many {}", self.map(number(BATCH_MAP_AT)))
        } else if is(Bpf::BPF_MAP_DELETE_BATCH) {
            format!("delete many from {}", self.map(number(BATCH_MAP_AT)))
        } else if is(Bpf::BPF_LINK_CREATE) {
            format!("attach by type {}", number(ATTACH_TYPE_AT))
        } else if is(Bpf::BPF_LINK_UPDATE) {
            format!("replace program of {}", self.information(number(0), "link_type").unwrap_or_default())
        } else {
            format!("bpf command {command}")
        })
    }

    /// A request over netlink that is no dump.
    fn netlink(&mut self, descriptor: u64, message: u64) -> Option<String> {
        let socket = self.descriptor(descriptor)?;
        let inode = socket.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned();
        let all = fs::read_to_string(format!("/proc/{}/net/netlink", self.process)).ok()?;
        all.lines().any(|line| line.split_whitespace().last() == Some(&inode)).then_some(())?;
        let mut header = [0; 8];
        self.read(message, &mut header)?;
        let [_, _, _, _, kind_low, kind_high, flags_low, flags_high] = header;
        let is_dump = u16::from_ne_bytes([flags_low, flags_high]) & DUMP_FLAGS == DUMP_FLAGS;
        (!is_dump).then(|| format!("netlink {}", u16::from_ne_bytes([kind_low, kind_high])))
    }

    fn map(&mut self, descriptor: u32) -> String {
        let Some(id) = self.information(descriptor, "map_id").and_then(|id| id.parse().ok()) else {
            return "no map".to_owned();
        };
        let name = || MapInfo::from_id(id).ok().and_then(|info| Some(info.name_as_str()?.to_owned()));
        self.maps.entry(id).or_insert_with(|| name().unwrap_or_default()).clone()
    }

    /// A line of what the kernel says about an open descriptor.
    fn information(&self, descriptor: u32, field: &str) -> Option<String> {
        let all = fs::read_to_string(format!("/proc/{}/fdinfo/{descriptor}", self.process)).ok()?;
        let line = all.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
        Some(line.trim().to_owned())
    }

    fn descriptor(&self, descriptor: u64) -> Option<PathBuf> {
        fs::read_link(format!("/proc/{}/fd/{descriptor}", self.process)).ok()
    }

    /// The last part of a path, without the number of an interface or process in it.
    fn file(&mut self, address: u64) -> String {
        let mut bytes = [0; 256];
        // A path may end just before the end of what can be read.
        let there = self.read_some(address, &mut bytes);
        last(Path::new(&text(&bytes[..there])))
    }

    fn word(&mut self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes)?;
        Some(u64::from_ne_bytes(bytes))
    }

    fn read(&mut self, address: u64, into: &mut [u8]) -> Option<()> {
        (self.read_some(address, into) == into.len()).then_some(())
    }

    fn read_some(&mut self, address: u64, into: &mut [u8]) -> usize {
        if self.memory.is_none() {
            self.memory = File::open(format!("/proc/{}/mem", self.process)).ok();
        }
        self.memory.as_ref().and_then(|memory| memory.read_at(into, address).ok()).unwrap_or_default()
    }
}

fn last(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    // Links of interfaces begin with the interface's index.
    let rest = name.trim_start_matches(|c: char| c.is_ascii_digit());
    if rest.starts_with('-') { format!("N{rest}") } else { name }
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// Number and arguments of the call at which a thread has stopped.
fn stopped_call(thread: Pid) -> Option<(libc::c_long, [u64; 6])> {
    let mut information = std::mem::MaybeUninit::<libc::ptrace_syscall_info>::zeroed();
    let size = size_of::<libc::ptrace_syscall_info>();
    // SAFETY: the kernel writes at most `size` bytes of the record, which outlives the call; all zeroes are a valid one.
    let information = unsafe {
        libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, thread.as_raw(), size, information.as_mut_ptr());
        information.assume_init()
    };
    if information.op != libc::PTRACE_SYSCALL_INFO_SECCOMP {
        return None;
    }
    // SAFETY: this member of the union is what `op` says.
    let call = unsafe { information.u.seccomp };
    Some((libc::c_long::try_from(call.nr).ok()?, call.args))
}
