//! `cargo xtask programs`: what the verifier says about each program, and the kernel memory of the idle maps.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use aya::maps::MapInfo;
use aya::programs::{Program, ProgramInfo};
use aya::{Ebpf, EbpfLoader};
use clap::Args;

use crate::workspace::{Workspace, is_root};

/// Machines whose memory is computed.
const CPUS: [u64; 2] = [2, 64];

/// Map types by their numbers in `fdinfo` (`enum bpf_map_type`), where memory depends on the number of CPUs.
const HASH: u64 = 1;
const PERCPU_HASH: u64 = 5;
const PERCPU_ARRAY: u64 = 6;
/// `BPF_F_NO_PREALLOC`
const NO_PREALLOC: u64 = 1;
/// `struct htab_elem` of the kernel without key and value.
const HASH_ELEMENT_BYTES: u64 = 48;
/// Entries of `connect_times`, as the agent makes it.
const CONNECT_TIMES: u32 = 65_536;
const POINTER_BYTES: u64 = 8;

/// The object to load.
#[derive(Debug, Args)]
pub struct ProgramsArgs {
    /// The eBPF object [default: the one that `cargo xtask build` made]
    #[arg(long, value_name = "FILE")]
    object: Option<PathBuf>,
}

/// One program in the kernel.
#[derive(Debug)]
struct ProgramSize {
    name: String,
    instructions_verified: u32,
    translated_bytes: u32,
    jited_bytes: u32,
}

/// One map in the kernel, as `/proc/self/fdinfo` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct MapSize {
    id: u32,
    kind: u64,
    key_bytes: u64,
    value_bytes: u64,
    entries: u64,
    flags: u64,
    /// What it takes of the kernel's memory now, holding nothing.
    idle_bytes: u64,
}

/// Loads the object, attaches nothing, and prints two tables.
pub fn run(workspace: &Workspace, args: &ProgramsArgs) -> Result<()> {
    let path = args.object.clone().unwrap_or_else(|| workspace.object());
    if !is_root() {
        bail!("loading programs needs root: run `sudo -E cargo xtask programs`");
    }
    let elf = read(&path)?;
    // What is in the kernel goes when this is dropped.
    let mut ebpf = as_the_agent().load(&elf).with_context(|| format!("cannot load {}", path.display()))?;
    let programs = load(&mut ebpf)?;
    let maps = own_maps()?;
    print!("{}\n{}", program_table(&programs), map_table(&maps, possible_cpus()?));
    Ok(())
}

/// Loads every program of an object into the kernel and lets them go. It does so with the agent's defaults, and with the object as it is by itself,
/// which is how the packet tests load it. An error names the program that the kernel refuses.
pub fn load_all(path: &Path) -> Result<()> {
    let elf = read(path)?;
    for mut loader in [as_the_agent(), EbpfLoader::new()] {
        let mut ebpf = loader.load(&elf).with_context(|| format!("cannot load {}", path.display()))?;
        load(&mut ebpf)?;
    }
    Ok(())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path)
        .with_context(|| format!("cannot read {}: make it by `cargo xtask build`, or pass --object", path.display()))
}

/// As the agent's defaults are: sockets of the host translated, events on, connect times measured, the programs' log off.
fn as_the_agent() -> EbpfLoader<'static> {
    let mut loader = EbpfLoader::new();
    for on in ["SOCKET_LB", "EVENTS_ON"] {
        loader.override_global(on, &1_u8, true);
    }
    // An object from before them has neither.
    loader.override_global("CONNECT_TIMES_ON", &1_u8, false).override_global("AYA_LOG_LEVEL", &0_u8, false);
    loader.map_max_entries("connect_times", CONNECT_TIMES);
    loader
}

#[allow(clippy::wildcard_enum_match_arm, reason = "program types of the library")]
fn load(ebpf: &mut Ebpf) -> Result<Vec<ProgramSize>> {
    let mut sizes = Vec::new();
    for (name, program) in ebpf.programs_mut() {
        match program {
            Program::SchedClassifier(program) => program.load(),
            Program::Xdp(program) => program.load(),
            Program::CgroupSockAddr(program) => program.load(),
            Program::CgroupSock(program) => program.load(),
            Program::SockOps(program) => program.load(),
            other => bail!("program {name} has the type {:?}, which the agent does not load", other.prog_type()),
        }
        .with_context(|| format!("the kernel refuses program {name}"))?;
        let info: ProgramInfo = program.info()?;
        sizes.push(ProgramSize {
            name: name.to_owned(),
            instructions_verified: info.verified_instruction_count().unwrap_or(0),
            translated_bytes: info.size_translated().unwrap_or(0),
            jited_bytes: info.size_jitted(),
        });
    }
    sizes.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(sizes)
}

/// Every map that this process holds, with its name.
fn own_maps() -> Result<Vec<(String, MapSize)>> {
    let mut maps = Vec::new();
    for entry in fs::read_dir("/proc/self/fdinfo").context("cannot list our descriptors")? {
        // The descriptor of this listing is in it, and gone afterwards.
        let Ok(text) = fs::read_to_string(entry?.path()) else { continue };
        let Some(map) = parse_fdinfo(&text) else { continue };
        let name = MapInfo::from_id(map.id)?.name_as_str().unwrap_or("?").to_owned();
        maps.push((name, map));
    }
    // A map may be held by several descriptors.
    maps.sort_by(|a, b| (&a.0, a.1.id).cmp(&(&b.0, b.1.id)));
    maps.dedup_by_key(|(_, map)| map.id);
    Ok(maps)
}

/// A map's `fdinfo`; `None` for a descriptor of anything else.
fn parse_fdinfo(text: &str) -> Option<MapSize> {
    let field = |name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?.trim();
        match value.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => value.parse().ok(),
        }
    };
    Some(MapSize {
        id: field("map_id")?.try_into().ok()?,
        kind: field("map_type")?,
        key_bytes: field("key_size")?,
        value_bytes: field("value_size")?,
        entries: field("max_entries")?,
        flags: field("map_flags")?,
        idle_bytes: field("memlock")?,
    })
}

/// What an idle map takes more for each possible CPU (`array_map_mem_usage`, `htab_map_mem_usage` of the kernel).
fn bytes_per_cpu(map: &MapSize) -> u64 {
    let value = map.value_bytes.next_multiple_of(8);
    let preallocated = map.flags & NO_PREALLOC == 0;
    match map.kind {
        PERCPU_ARRAY => map.entries * value,
        PERCPU_HASH if preallocated => map.entries * value,
        // A spare element for each CPU, and the pointer to it.
        HASH if preallocated => HASH_ELEMENT_BYTES + map.key_bytes.next_multiple_of(8) + value + POINTER_BYTES,
        _ => 0,
    }
}

/// Idle memory on a machine with `cpus`, from what was measured on one with `cpus_here`.
fn idle_bytes(map: &MapSize, cpus_here: u64, cpus: u64) -> u64 {
    map.idle_bytes.saturating_sub(cpus_here * bytes_per_cpu(map)) + cpus * bytes_per_cpu(map)
}

fn possible_cpus() -> Result<u64> {
    let path = "/sys/devices/system/cpu/possible";
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    count_cpus(&text).with_context(|| format!("{path} holds {text:?}: expected ranges as 0-3,8"))
}

fn count_cpus(ranges: &str) -> Option<u64> {
    ranges.trim().split(',').try_fold(0, |count, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(count + last.parse::<u64>().ok()?.checked_sub(first.parse().ok()?)? + 1)
    })
}

fn program_table(programs: &[ProgramSize]) -> String {
    let mut text = "| program | instructions verified | translated, bytes | machine code, bytes |\n".to_owned();
    text += "|---|---:|---:|---:|\n";
    for program in programs {
        let ProgramSize { name, instructions_verified, translated_bytes, jited_bytes } = program;
        // Writing to a string does not fail.
        let _ = writeln!(text, "| `{name}` | {instructions_verified} | {translated_bytes} | {jited_bytes} |");
    }
    text
}

fn map_table(maps: &[(String, MapSize)], cpus_here: u64) -> String {
    let mut text = format!("| map | entries | key + value, bytes | idle, here ({cpus_here} CPUs) |");
    text += &CPUS.map(|cpus| format!(" {cpus} CPUs |")).concat();
    text += "\n|---|---:|---:|---:|";
    text += &"---:|".repeat(CPUS.len());
    for (name, map) in maps {
        let MapSize { key_bytes, value_bytes, entries, idle_bytes: here, .. } = map;
        let _ = write!(text, "\n| `{name}` | {entries} | {key_bytes} + {value_bytes} | {} |", kib(*here));
        text += &CPUS.map(|cpus| format!(" {} |", kib(idle_bytes(map, cpus_here, cpus)))).concat();
    }
    let sum = |of: &dyn Fn(&MapSize) -> u64| maps.iter().map(|(_, map)| of(map)).sum::<u64>();
    let _ = write!(text, "\n| **all** | | | **{}** |", kib(sum(&|map| map.idle_bytes)));
    text += &CPUS.map(|cpus| format!(" **{}** |", kib(sum(&|map| idle_bytes(map, cpus_here, cpus))))).concat();
    text += "\n\nIdle means: loaded, holding nothing. Measured is what the kernel charges (`memlock` in fdinfo). For C \
             CPUs: measured here + (C - CPUs here) x bytes per CPU, which are entries x round_up(value, 8) for a per-CPU \
             array or a preallocated per-CPU hash, one element and a pointer for a preallocated hash, and 0 for all others. \
             CPUs are the possible ones.\n";
    text
}

fn kib(bytes: u64) -> String {
    format!("{} KiB", bytes.div_ceil(1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FDINFO: &str = "pos:\t0\nflags:\t02000002\nmnt_id:\t16\nino:\t7\nmap_type:\t6\nkey_size:\t4\nvalue_size:\t12\n\
                          max_entries:\t10\nmap_flags:\t0x0\nmap_extra:\t0x0\nmemlock:\t720\nmap_id:\t42\nfrozen:\t0\n";

    fn percpu_array() -> MapSize {
        parse_fdinfo(FDINFO).expect("a map")
    }

    #[test]
    fn maps_are_told_from_other_descriptors() {
        let map = percpu_array();
        assert_eq!((map.id, map.kind, map.entries, map.idle_bytes), (42, PERCPU_ARRAY, 10, 720));
        assert_eq!(parse_fdinfo("pos:\t0\nflags:\t0100000\nmnt_id:\t29\n"), None);
    }

    #[test]
    fn only_per_cpu_memory_grows_with_the_cpus() {
        // 720 bytes on 2 CPUs: 10 elements of 16 bytes for each, and 400 for the map itself.
        let map = percpu_array();
        assert_eq!(idle_bytes(&map, 2, 2), 720);
        assert_eq!(idle_bytes(&map, 2, 64), 400 + 64 * 160);
        let on_demand = MapSize { kind: PERCPU_HASH, flags: NO_PREALLOC, ..percpu_array() };
        assert_eq!(idle_bytes(&on_demand, 2, 64), 720, "elements are made as they are used");
        let array = MapSize { kind: 2, ..percpu_array() };
        assert_eq!(idle_bytes(&array, 2, 64), 720);
    }

    #[test]
    fn cpu_ranges_are_counted() {
        assert_eq!(count_cpus("0\n"), Some(1));
        assert_eq!(count_cpus("0-63\n"), Some(64));
        assert_eq!(count_cpus("0-3,8,10-11"), Some(7));
        assert_eq!(count_cpus("none"), None);
    }

    #[test]
    fn the_table_sums_up() {
        let maps = [("a".to_owned(), percpu_array()), ("b".to_owned(), MapSize { idle_bytes: 2048, ..percpu_array() })];
        let text = map_table(&maps, 2);
        assert!(text.contains("| **all** | | | **3 KiB** | **3 KiB** | **23 KiB** |"), "{text}");
    }
}
