//! What this kernel's verifier says about each program of an object: its figures, or why it refuses the program.
//!
//! aya keeps the verifier's log of refused programs only, so that the programs are loaded here by the system call itself. aya makes
//! the maps.

mod log;
mod stack;
mod syscall;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use aya::maps::{Map, MapData};
use aya::{Ebpf, EbpfLoader};
use aya_obj::generated::{bpf_attach_type, bpf_prog_type};
use aya_obj::{Object, ProgramSection};
use lb_datapath::Constant;

use log::Statistics;
use syscall::ProgramLoad;

/// An object whose maps are in the kernel.
#[derive(Debug)]
pub struct Verifier {
    object: Object,
    btf: Option<OwnedFd>,
    /// The maps that the programs refer to by descriptor.
    _maps: Ebpf,
}

/// A program that the kernel took.
#[derive(Debug)]
pub struct Verified {
    pub descriptor: OwnedFd,
    /// Instructions that the verifier walked.
    pub instructions: u32,
    /// Stack of the longest chain of calls in bytes, each function rounded up as on the kernels that round the most.
    pub stack: u32,
    pub time: Duration,
}

/// A program that the kernel refused.
#[derive(Debug)]
pub struct Refused {
    pub error: std::io::Error,
    /// The last lines of the verifier's log.
    pub log: Vec<String>,
}

impl Verifier {
    /// Makes the maps of the object, and sets these constants.
    pub fn open(elf: &[u8], constants: &[Constant]) -> Result<Self> {
        syscall::lift_memory_limit();
        let mut loader = EbpfLoader::new();
        loader.btf(None).allow_unsupported_maps();
        for (name, value) in constants {
            loader.override_global(name, value.as_slice(), false);
        }
        let maps = loader.load(elf).context("making the maps")?;
        let mut object = Object::parse(elf).context("reading the object")?;
        let globals = constants.iter().map(|(name, value)| (*name, (value.as_slice(), false)));
        object.patch_map_data(globals.collect()).context("setting the constants")?;
        let btf = match aya::features().btf() {
            Some(features) => {
                object.fixup_and_sanitize_btf(features)?.map(|btf| syscall::load_btf(&btf.to_bytes())).transpose()?
            }
            None => None,
        };
        let sections: HashSet<usize> = object.functions.keys().map(|(section, _)| *section).collect();
        let descriptors = descriptors(&maps)?;
        let definitions = object.maps.clone();
        let used = descriptors.iter().filter_map(|(name, fd)| Some((name.as_str(), *fd, definitions.get(name)?)));
        object.relocate_maps(used, &sections)?;
        object.relocate_calls(&sections)?;
        object.sanitize_functions(aya::features());
        Ok(Self { object, btf, _maps: maps })
    }

    /// The programs of the object.
    pub fn names(&self) -> BTreeSet<&str> {
        self.object.programs.keys().map(String::as_str).collect()
    }

    /// Has the kernel verify one program. The outer error: there is no such program, or its log is not understood.
    pub fn verify(&self, name: &str) -> Result<Result<Verified, Refused>> {
        let program = self.object.programs.get(name).with_context(|| format!("no program {name}"))?;
        let function = self.object.functions.get(&program.function_key()).context("a program has a function")?;
        let (kind, attach) = kind(&program.section).with_context(|| format!("program {name}"))?;
        let load = ProgramLoad { name, kind, attach, license: &program.license, function, btf: self.btf() };
        let started = Instant::now();
        let (loaded, text) = load.run(syscall::STATISTICS);
        let time = started.elapsed();
        match loaded {
            Ok(descriptor) => {
                let Statistics { instructions, stack } =
                    Statistics::parse(&text).with_context(|| format!("the log of {name}: {text:?}"))?;
                let (code, functions) = syscall::translated(descriptor.as_fd())?;
                let stack = stack::deepest(&code, &functions, &stack)?;
                Ok(Ok(Verified { descriptor, instructions, stack, time }))
            }
            Err(error) => Ok(Err(Refused { error, log: log::last_lines(&text, &load.run(syscall::TRACE).1) })),
        }
    }

    fn btf(&self) -> Option<BorrowedFd<'_>> {
        self.btf.as_ref().map(|btf| btf.as_fd())
    }
}

/// How the agent loads a program of this section.
fn kind(section: &ProgramSection) -> Result<(bpf_prog_type, Option<bpf_attach_type>)> {
    Ok(match section {
        ProgramSection::SchedClassifier => (bpf_prog_type::BPF_PROG_TYPE_SCHED_CLS, None),
        ProgramSection::Xdp { attach_type, .. } => (bpf_prog_type::BPF_PROG_TYPE_XDP, Some((*attach_type).into())),
        ProgramSection::CgroupSockAddr { attach_type } => {
            (bpf_prog_type::BPF_PROG_TYPE_CGROUP_SOCK_ADDR, Some((*attach_type).into()))
        }
        ProgramSection::CgroupSock { attach_type } => {
            (bpf_prog_type::BPF_PROG_TYPE_CGROUP_SOCK, Some((*attach_type).into()))
        }
        ProgramSection::SockOps => (bpf_prog_type::BPF_PROG_TYPE_SOCK_OPS, None),
        other => bail!("the agent loads no program of the section {other:?}"),
    })
}

fn descriptors(ebpf: &Ebpf) -> Result<HashMap<String, RawFd>> {
    ebpf.maps().map(|(name, map)| Ok((name.to_owned(), data(map)?.fd().as_fd().as_raw_fd()))).collect()
}

fn data(map: &Map) -> Result<&MapData> {
    match map {
        Map::Array(data)
        | Map::PerCpuArray(data)
        | Map::HashMap(data)
        | Map::PerCpuHashMap(data)
        | Map::LruHashMap(data)
        | Map::PerCpuLruHashMap(data)
        | Map::LpmTrie(data)
        | Map::RingBuf(data)
        | Map::ProgramArray(data)
        | Map::SkStorage(data)
        | Map::Unsupported(data) => Ok(data),
        other => bail!("the programs have no maps as {other:?}"),
    }
}
