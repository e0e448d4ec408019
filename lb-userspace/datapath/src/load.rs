//! Maps made or taken over, and programs on their way into the kernel with their settings fixed as constants.

use std::{
    fs,
    hash::{BuildHasher as _, Hasher as _, RandomState},
    path::PathBuf,
};

use aya::{
    Ebpf, EbpfLoader,
    maps::{HashMap, Map, MapData},
};
use lb_common::{
    abi::{ABI_VERSION, Config, Link, LoadSettings, PeerMac, map_name},
    limits,
    state::SourcePorts,
    switch::map as gate,
};

use super::{
    DatapathError,
    fast_path::{BridgePorts, Word},
    features::{Feature, namespace_cookie},
    loads::Loading,
    map_definition, object,
    pins::{Created, Pins},
    program_array::{self, ProgramArray},
    program_log::ProgramLog,
    program_pins::{self, ProgramPins},
    programs::Programs,
    settings::{DatapathSettings, FastPath, most_half_open, socket_lb_number},
    switch::{Begun, Prepared},
};

/// Everything in the kernel.
#[derive(Debug)]
pub(super) struct Kernel {
    /// Empty until the first ones are loaded.
    pub programs: Programs,
    /// For programs that are loaded later.
    pub recipe: Recipe,
    pub program_pins: ProgramPins,
    pub links: HashMap<MapData, u32, Link>,
    /// What the programs noted of pods' links.
    pub peer_macs: HashMap<MapData, u32, PeerMac>,
    /// One word: whether there is a fast path at this moment.
    pub fast_path: Word,
    pub bridge_ports: BridgePorts,
    pub log: Option<ProgramLog>,
}

/// aya-log's map.
const LOG_RING: &str = "AYA_LOGS";

/// What the programs are made of. Read again, it gives the same programs with the same maps.
#[derive(Clone, Debug)]
pub(super) struct Recipe {
    settings: DatapathSettings,
    pins: Pins,
    /// Constants of the programs by name.
    constants: Vec<Constant>,
    /// Maps that belong to the programs alone, and their pins: programs that are loaded later share them.
    own_maps: Vec<(String, PathBuf)>,
    /// The program arrays, and their pins.
    arrays: Vec<(&'static str, PathBuf)>,
    /// Maps of the gates, and their pins; none if no tables follow others.
    gates: Vec<(&'static str, PathBuf)>,
    /// Constants of the gates. They are no part of the programs' digest: no other program reads them, and gates are never pinned there.
    gate_constants: Vec<Constant>,
}

impl Recipe {
    fn new(settings: &DatapathSettings, pins: &Pins, ports: SourcePorts, own_maps: Vec<(String, PathBuf)>) -> Self {
        let constants = constants(settings, ports);
        let (settings, pins) = (settings.clone(), pins.clone());
        Self { settings, pins, constants, own_maps, arrays: Vec::new(), gates: Vec::new(), gate_constants: Vec::new() }
    }

    /// The object with its constants, and with the pinned maps; those that are missing are made.
    pub fn object(&self) -> Result<Ebpf, DatapathError> {
        self.open(&object::read(self.settings.programs.as_deref())?)
    }

    fn open(&self, elf: &[u8]) -> Result<Ebpf, DatapathError> {
        let mut loader = EbpfLoader::new();
        // No program refers to types of the kernel: their description, tens of mebibytes as it is read, goes at once.
        loader.btf(None);
        for name in map_name::ALL {
            loader.map_pin_path(name, self.pins.map(name));
            if let Some(entries) = self.settings.entries(name) {
                loader.map_max_entries(name, entries);
            }
        }
        for (name, path) in &self.own_maps {
            loader.map_pin_path(name, path);
        }
        for (name, path) in self.arrays.iter().chain(&self.gates) {
            loader.map_pin_path(name, path);
        }
        for (name, value) in self.constants.iter().chain(&self.gate_constants) {
            loader.override_global(name, value.as_slice(), true);
        }
        loader.override_global(aya_log::LEVEL, &self.settings.program_log_level, false);
        Ok(loader.load(elf)?)
    }

    /// Where the programs of this object are pinned; `None`: that is known once all of its maps are pinned.
    fn program_pins(&self, elf: &[u8]) -> Result<Option<ProgramPins>, DatapathError> {
        let folder = self.pins.programs();
        if self.settings.program_log_level != 0 {
            // A number that no other start has: its seed is random.
            let start = RandomState::new().build_hasher().finish();
            return Ok(Some(ProgramPins::none(folder, elf, start)));
        }
        let tables = map_name::ALL.map(|name| self.pins.map(name));
        let own = self.own_maps.iter().map(|(_, path)| path.clone());
        let maps: Vec<PathBuf> = tables.into_iter().chain(own).collect();
        if !maps.iter().all(|path| path.exists()) {
            return Ok(None);
        }
        ProgramPins::new(folder, elf, &self.constants, &maps).map(Some)
    }

    /// Opens the object, with its program arrays pinned where its programs are: two sets of programs never share an array.
    fn open_first(&mut self, elf: &[u8], created: &mut Created) -> Result<(Ebpf, ProgramPins), DatapathError> {
        let known = self.program_pins(elf)?;
        let unnamed = |name: &str| self.pins.programs().join(format!("{name}-unnamed"));
        let path = |name: &str| known.as_ref().map_or_else(|| unnamed(name), |pins| pins.map(name));
        self.arrays = program_array::ALL.map(|name| (name, path(name))).into();
        for (_, path) in &self.arrays {
            if known.is_none() {
                // Of a start that ended here.
                let _ = fs::remove_file(path);
            }
            created.expect(path.clone());
        }
        let ebpf = self.open(elf)?;
        if let Some(pins) = known {
            return Ok((ebpf, pins));
        }
        let pins = self.program_pins(elf)?.ok_or_else(|| missing("of the object's"))?;
        for (name, path) in &mut self.arrays {
            let named = pins.map(name);
            created.expect(named.clone());
            fs::rename(&*path, &named).map_err(DatapathError::file("rename", path.as_path()))?;
            *path = named;
        }
        Ok((ebpf, pins))
    }
}

/// A constant of the programs: its name and its bytes.
pub type Constant = (&'static str, Vec<u8>);

/// The object in this binary and its constants, as an agent with these settings loads them on this kernel: for tools that show what the
/// verifier says.
pub fn as_loaded(settings: &DatapathSettings) -> Result<(Vec<u8>, Vec<Constant>), DatapathError> {
    Ok((object::read(settings.programs.as_deref())?, constants(settings, SourcePorts::DEFAULT)))
}

fn constants(settings: &DatapathSettings, ports: SourcePorts) -> Vec<Constant> {
    let loopback = u8::from(settings.loopback_node_ports[0]) | u8::from(settings.loopback_node_ports[1]) << 1;
    let timeouts = settings.timeouts;
    let fixed = [
        ("SOCKET_LB", number(socket_lb_number(settings.socket_lb))),
        // 0: the programs take the initial namespace for the node's.
        ("HOST_NETNS", number(namespace_cookie().unwrap_or(0))),
        ("LOOPBACK_NODE_PORTS", number(loopback)),
        ("PROTECT_NODE_PORTS", number(u8::from(settings.protect_node_ports))),
        ("FAST_PATH_ON", number(u8::from(settings.fast_path != FastPath::Off))),
        ("EVENTS_ON", number(u8::from(settings.events))),
        ("FLOW_COUNTERS", number(u8::from(settings.flow_counters))),
        ("CONNECT_TIMES_ON", number(u8::from(settings.connect_times))),
        ("SNAT_PORT_FIRST", number(ports.first)),
        ("SNAT_PORT_COUNT", number(ports.count)),
        ("REUSED_PORT_FIRST", number(ports.reused_first)),
        ("REUSED_PORT_COUNT", number(ports.reused_count)),
        ("LOCAL_PORT_FIRST", number(ports.local_first)),
        ("LOCAL_PORT_LAST", number(ports.local_last)),
        ("MOST_HALF_OPEN", number(most_half_open(settings.entries(map_name::HALF_OPEN4)))),
        ("FLOWS4_ENTRIES", number(settings.entries(map_name::FLOWS4).unwrap_or(limits::FLOWS4))),
        ("FLOWS6_ENTRIES", number(settings.entries(map_name::FLOWS6).unwrap_or(limits::FLOWS6))),
        ("CLIENT_KEY", number(settings.client_key)),
        ("TIMEOUT_HALF_OPEN_S", number(timeouts.half_open_s)),
        ("TIMEOUT_OPEN_S", number(timeouts.open_s)),
        ("TIMEOUT_CLOSING_S", number(timeouts.closing_s)),
        ("TIMEOUT_UDP_UNREPLIED_S", number(timeouts.udp_unreplied_s)),
        ("TIMEOUT_UDP_REPLIED_S", number(timeouts.udp_replied_s)),
        ("TIMEOUT_UDP_STREAM_S", number(timeouts.udp_stream_s)),
    ];
    let of_kernel = Feature::ALL.into_iter().filter_map(|feature| {
        let constant = feature.constant()?;
        Some((constant, number(u8::from(feature.is_there()))))
    });
    fixed.into_iter().chain(of_kernel).collect()
}

/// A number as the programs hold it.
fn number<T: aya::Pod>(value: T) -> Vec<u8> {
    // SAFETY: `Pod` promises plain bytes; the slice covers exactly the live value and is copied before the function returns.
    unsafe { std::slice::from_raw_parts((&raw const value).cast::<u8>(), size_of::<T>()) }.to_vec()
}

/// Pins of the gates' maps: their own, and tables of the set in force.
fn gate_maps(begun: &Begun) -> Vec<(&'static str, PathBuf)> {
    let own = [gate::WORD, gate::TC, gate::XDP].map(|name| (name, begun.folder.map(name)));
    own.into_iter().chain(gate::OLD.map(|(name, table)| (name, begun.old.join(table)))).collect()
}

/// Checks what is pinned, makes what is missing, begins to load the programs that every node needs. Attaches nothing.
pub(super) fn load(
    settings: &DatapathSettings,
    elf: &[u8],
    prepared: &Prepared,
    ports: SourcePorts,
    created: &mut Created,
) -> Result<(Kernel, Loading), DatapathError> {
    let pins = &prepared.pins;
    let shapes = object::shapes(elf, settings)?;
    let mut outgrown = Vec::new();
    for (name, path) in map_name::ALL.map(|name| (name, pins.map(name))) {
        let map_definition = shapes.get(name).ok_or_else(|| missing(name))?;
        match map_definition::check_pin(name, &path, map_definition) {
            Err(DatapathError::MapMismatch { field: "max_entries", .. }) if map_definition::is_resizable(name) => {
                outgrown.push(path.clone());
            }
            checked => checked?,
        }
        created.expect(path);
    }
    map_definition::check_version(&pins.map(map_name::CONFIG))?;
    for path in outgrown {
        // The programs at work keep theirs until they are replaced.
        fs::remove_file(&path).map_err(DatapathError::file("remove", &path))?;
    }

    let settings = &DatapathSettings { client_key: client_key(pins)?, ..settings.clone() };
    let own_maps = own_maps(shapes.keys(), &program_pins::object_digest(elf), pins);
    for (_, path) in &own_maps {
        created.expect(path.clone());
    }
    let mut recipe = Recipe::new(settings, pins, ports, own_maps);
    if let Some(begun) = &prepared.begun {
        recipe.gates = gate_maps(begun);
        recipe.gate_constants =
            ["OLD_STATE_AT4", "OLD_STATE_AT6"].into_iter().zip(begun.state_at.map(number)).collect();
    }
    let (mut ebpf, program_pins) = recipe.open_first(elf, created)?;
    prepared.description.write(pins.tables())?;
    mark_ours(&mut ebpf, settings)?;
    note_settings(&mut ebpf, settings)?;
    let links = take(&mut ebpf, map_name::LINKS)?.try_into().map_err(aya::EbpfError::MapError)?;
    let peer_macs = take(&mut ebpf, map_name::PEER_MACS)?.try_into().map_err(aya::EbpfError::MapError)?;
    let fast_path = Word(take(&mut ebpf, map_name::FAST_PATH)?.try_into().map_err(aya::EbpfError::MapError)?);
    let ports = take(&mut ebpf, map_name::BRIDGE_PORTS)?.try_into().map_err(aya::EbpfError::MapError)?;
    let bridge_ports = BridgePorts::new(ports);
    let log = program_log(&mut ebpf, settings.program_log_level)?;
    let arrays = recipe.arrays.iter().map(|(name, path)| ProgramArray::open(name, path));
    let mut programs = Programs::new(arrays.collect::<Result<_, _>>()?);
    programs.set_gated(prepared.begun.is_some());
    let first = programs.first(settings.socket_lb, settings.program_log_level != 0);
    let loading = Loading::begin(first, program_pins.clone(), move || Ok(ebpf))?;
    Ok((Kernel { programs, recipe, program_pins, links, peer_macs, fast_path, bridge_ports, log }, loading))
}

/// Maps that are no tables: what floods, rate limits and neighbours are judged by. The object's digest is part of the pin, since another
/// object may give them another layout. Constants are fixed in each program, and the log's ring belongs to one start.
fn own_maps<'a>(maps: impl Iterator<Item = &'a String>, object: &str, pins: &Pins) -> Vec<(String, PathBuf)> {
    let is_table =
        |name: &str| map_name::ALL.contains(&name) || program_array::ALL.contains(&name) || gate::is_ours(name);
    let is_own = |name: &&String| !is_table(name) && !name.starts_with('.') && *name != LOG_RING;
    maps.filter(is_own).map(|name| (name.clone(), pins.programs().join(format!("{name}-{object}")))).collect()
}

/// Marks fresh tables as ours, so that another version refuses them. That makes this the node's first start: the adoption window is open
/// from here on, and no later start changes it.
fn mark_ours(ebpf: &mut Ebpf, settings: &DatapathSettings) -> Result<(), DatapathError> {
    let mut config: aya::maps::Array<MapData, Config> =
        take(ebpf, map_name::CONFIG)?.try_into().map_err(aya::EbpfError::MapError)?;
    // It stays where it is: programs that are not loaded yet refer to it by its descriptor.
    let adoption = ebpf.map_mut(map_name::ADOPTION).ok_or_else(|| missing(map_name::ADOPTION))?;
    let mut adoption: aya::maps::Array<&mut MapData, u32> = adoption.try_into().map_err(aya::EbpfError::MapError)?;
    let written = config.get(&0, 0).and_then(|found| {
        if found.abi_version == ABI_VERSION {
            return Ok(());
        }
        // The mark comes last: a start that ends in between leaves the next one to be the first.
        adoption.set(0, settings.adoption_until_s, 0)?;
        config.set(0, Config { abi_version: ABI_VERSION, ..found }, 0)
    });
    written.map_err(|error| aya::EbpfError::MapError(error).into())
}

/// Key of the hashes of `client_shares`: the one that the pinned counters were made with, else a new one. Its seed is random.
fn client_key(pins: &Pins) -> Result<u32, DatapathError> {
    let path = pins.map(map_name::SETTINGS);
    let read = || {
        let map = Map::from_map_data(MapData::from_pin(&path)?)?;
        aya::maps::Array::<MapData, LoadSettings>::try_from(map)?.get(&0, 0)
    };
    let noted = if path.exists() { read().map_err(aya::EbpfError::MapError)?.client_key } else { 0 };
    let drawn = u32::try_from(RandomState::new().build_hasher().finish() >> 32).unwrap_or(1);
    Ok(if noted == 0 { drawn.max(1) } else { noted })
}

/// Tells readers of the tables what the programs were loaded with.
fn note_settings(ebpf: &mut Ebpf, settings: &DatapathSettings) -> Result<(), DatapathError> {
    let mut noted: aya::maps::Array<MapData, LoadSettings> =
        take(ebpf, map_name::SETTINGS)?.try_into().map_err(aya::EbpfError::MapError)?;
    let written = noted.set(0, settings.timeouts.note(settings.flow_counters, settings.client_key), 0);
    written.map_err(|error| aya::EbpfError::MapError(error).into())
}

fn program_log(ebpf: &mut Ebpf, level: u8) -> Result<Option<ProgramLog>, DatapathError> {
    if level == 0 {
        return Ok(None);
    }
    let Some(Map::RingBuf(_)) = ebpf.map(LOG_RING) else { return Ok(None) };
    ProgramLog::new(ebpf).map(Some)
}

fn take(ebpf: &mut Ebpf, name: &str) -> Result<Map, DatapathError> {
    ebpf.take_map(name).ok_or_else(|| missing(name))
}

fn missing(name: &str) -> DatapathError {
    DatapathError::BadObject { reason: format!("map {name} is missing") }
}
