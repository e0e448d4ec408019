//! Maps made or taken over, and programs on their way into the kernel with their settings fixed as constants.

use std::{fs, os::fd::AsRawFd as _};

use aya::{
    Ebpf, EbpfLoader,
    maps::{HashMap, Map, MapData},
};
use lb_common::{
    abi::{ABI_VERSION, Config, Link, LoadSettings, map_name},
    state::SourcePorts,
};

use super::{
    DatapathError,
    fast_path::{BridgePorts, Word},
    object,
    pins::{Created, Pins},
    program_log::ProgramLog,
    programs::{Loading, Programs},
    settings::{FastPath, Settings, most_half_open, socket_lb_number},
    shape,
};

/// Everything in the kernel.
#[derive(Debug)]
pub(super) struct Kernel {
    /// Empty while they are loaded.
    pub programs: Programs,
    pub links: HashMap<MapData, u32, Link>,
    /// One word: whether there is a fast path at this moment.
    pub fast_path: Word,
    pub bridge_ports: BridgePorts,
    pub log: Option<ProgramLog>,
}

/// Maps that hold nothing but counts, so that others of another size may take their place: `--flow-counters` changes it.
const COUNTERS: [&str; 2] = [map_name::TRAFFIC4, map_name::TRAFFIC6];

/// Checks what is pinned, makes what is missing, begins to load every program. Attaches nothing.
pub(super) fn load(
    settings: &Settings,
    pins: &Pins,
    ports: SourcePorts,
    created: &mut Created,
) -> Result<(Kernel, Loading), DatapathError> {
    let elf = object::read(settings.programs.as_deref())?;
    let shapes = object::shapes(&elf, settings)?;
    let mut outgrown = Vec::new();
    for (name, path) in map_name::ALL.map(|name| (name, pins.map(name))) {
        let shape =
            shapes.get(name).ok_or_else(|| DatapathError::BadObject { reason: format!("map {name} is missing") })?;
        match shape::check_pin(name, &path, shape) {
            Err(DatapathError::MapMismatch { field: "max_entries", .. }) if COUNTERS.contains(&name) => {
                outgrown.push(path.clone());
            }
            checked => checked?,
        }
        created.expect(path);
    }
    shape::check_version(&pins.map(map_name::CONFIG))?;
    for path in outgrown {
        // The programs at work keep theirs until they are replaced.
        fs::remove_file(&path).map_err(DatapathError::file("remove", &path))?;
    }

    let (socket_lb, events, namespace) =
        (socket_lb_number(settings.socket_lb), u8::from(settings.events), namespace_cookie()?);
    let flow_counters = u8::from(settings.flow_counters);
    let protect = u8::from(settings.protect_node_ports);
    let loopback = u8::from(settings.loopback_node_ports[0]) | u8::from(settings.loopback_node_ports[1]) << 1;
    let most_half_open = most_half_open(settings.entries(map_name::HALF_OPEN4));
    let fast_path = u8::from(settings.fast_path != FastPath::Off);
    let mut loader = EbpfLoader::new();
    // No program refers to types of the kernel: their description, tens of mebibytes as it is read, goes at once.
    loader.btf(None);
    for name in map_name::ALL {
        loader.map_pin_path(name, pins.map(name));
        if let Some(entries) = settings.entries(name) {
            loader.map_max_entries(name, entries);
        }
    }
    loader
        .override_global("SOCKET_LB", &socket_lb, true)
        .override_global("HOST_NETNS", &namespace, true)
        .override_global("LOOPBACK_NODE_PORTS", &loopback, true)
        .override_global("PROTECT_NODE_PORTS", &protect, true)
        .override_global("FAST_PATH_ON", &fast_path, true)
        .override_global("EVENTS_ON", &events, true)
        .override_global("FLOW_COUNTERS", &flow_counters, true)
        .override_global("SNAT_PORT_FIRST", &ports.first, true)
        .override_global("SNAT_PORT_COUNT", &ports.count, true)
        .override_global("LOCAL_PORT_FIRST", &ports.local_first, true)
        .override_global("LOCAL_PORT_LAST", &ports.local_last, true)
        .override_global("MOST_HALF_OPEN", &most_half_open, true)
        .override_global("TIMEOUT_HALF_OPEN_S", &settings.timeouts.half_open_s, true)
        .override_global("TIMEOUT_OPEN_S", &settings.timeouts.open_s, true)
        .override_global("TIMEOUT_CLOSING_S", &settings.timeouts.closing_s, true)
        .override_global("TIMEOUT_UDP_UNREPLIED_S", &settings.timeouts.udp_unreplied_s, true)
        .override_global("TIMEOUT_UDP_REPLIED_S", &settings.timeouts.udp_replied_s, true)
        .override_global("TIMEOUT_UDP_STREAM_S", &settings.timeouts.udp_stream_s, true)
        .override_global(aya_log::LEVEL, &settings.program_log_level, false);
    let mut ebpf = loader.load(&elf)?;

    write_version(&mut ebpf)?;
    note_settings(&mut ebpf, settings)?;
    let links = take(&mut ebpf, map_name::LINKS)?.try_into().map_err(aya::EbpfError::MapError)?;
    let fast_path = Word(take(&mut ebpf, map_name::FAST_PATH)?.try_into().map_err(aya::EbpfError::MapError)?);
    let ports = take(&mut ebpf, map_name::BRIDGE_PORTS)?.try_into().map_err(aya::EbpfError::MapError)?;
    let bridge_ports = BridgePorts::new(ports);
    let log = program_log(&mut ebpf, settings.program_log_level)?;
    let kernel = Kernel { programs: Programs::new(), links, fast_path, bridge_ports, log };
    Ok((kernel, Loading::begin(ebpf, settings.socket_lb)?))
}

/// Marks fresh tables as ours, so that another version refuses them.
fn write_version(ebpf: &mut Ebpf) -> Result<(), DatapathError> {
    let mut config: aya::maps::Array<MapData, Config> =
        take(ebpf, map_name::CONFIG)?.try_into().map_err(aya::EbpfError::MapError)?;
    let written = config.get(&0, 0).and_then(|found| {
        if found.abi_version == ABI_VERSION {
            return Ok(());
        }
        config.set(0, Config { abi_version: ABI_VERSION, ..found }, 0)
    });
    written.map_err(|error| aya::EbpfError::MapError(error).into())
}

/// Tells readers of the tables what the programs were loaded with.
fn note_settings(ebpf: &mut Ebpf, settings: &Settings) -> Result<(), DatapathError> {
    let mut noted: aya::maps::Array<MapData, LoadSettings> =
        take(ebpf, map_name::SETTINGS)?.try_into().map_err(aya::EbpfError::MapError)?;
    let written = noted.set(0, settings.timeouts.note(settings.flow_counters), 0);
    written.map_err(|error| aya::EbpfError::MapError(error).into())
}

fn program_log(ebpf: &mut Ebpf, level: u8) -> Result<Option<ProgramLog>, DatapathError> {
    if level == 0 {
        return Ok(None);
    }
    let Some(Map::RingBuf(_)) = ebpf.map("AYA_LOGS") else { return Ok(None) };
    ProgramLog::new(ebpf).map(Some)
}

fn take(ebpf: &mut Ebpf, name: &str) -> Result<Map, DatapathError> {
    ebpf.take_map(name).ok_or_else(|| DatapathError::BadObject { reason: format!("map {name} is missing") })
}

const COOKIE_BYTES: libc::socklen_t = 8;

/// The kernel's cookie of this process's network namespace. Minimum kernel: 5.14.
fn namespace_cookie() -> Result<u64, DatapathError> {
    let action = "ask for the network namespace's cookie";
    let socket = std::os::unix::net::UnixDatagram::unbound().map_err(DatapathError::kernel(action))?;
    let (mut cookie, mut length) = (0_u64, COOKIE_BYTES);
    // SAFETY: the kernel writes at most `length` bytes to `cookie`, and both outlive the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(cookie) } else { Err(DatapathError::kernel(action)(std::io::Error::last_os_error())) }
}
