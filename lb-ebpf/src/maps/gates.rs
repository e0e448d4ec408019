//! Maps of the gates, which choose between the old and the new set of tables while these are switched.

use aya_ebpf::btf_maps::{Array, HashMap, LruHashMap, ProgramArray};
use aya_ebpf::macros::btf_map;
use lb_common::abi::{FlowKey, FragmentKey};
use lb_common::switch;

/// What every gate does ([`switch::word`]).
#[btf_map(name = "switch_word")]
pub static SWITCH_WORD: Array<u32, 1> = Array::new();
/// The entry programs of the old and of the new set at tc ([`switch::old_slot`], [`switch::new_slot`]).
#[btf_map(name = "switch_tc")]
pub static SWITCH_TC: ProgramArray<{ switch::SLOTS }> = ProgramArray::new();
/// The same at XDP.
#[btf_map(name = "switch_xdp")]
pub static SWITCH_XDP: ProgramArray<{ switch::SLOTS }> = ProgramArray::new();

/// Tables of the old set. Gates ask whether a key is there, and read no value: it may have another layout than is declared here.
#[btf_map(name = "old_flows4")]
pub static OLD_FLOWS4: HashMap<FlowKey<4>, u32, 1> = HashMap::new();
#[btf_map(name = "old_flows6")]
pub static OLD_FLOWS6: HashMap<FlowKey<16>, u32, 1> = HashMap::new();
#[btf_map(name = "old_udp_flows4")]
pub static OLD_UDP_FLOWS4: LruHashMap<FlowKey<4>, u32, 1> = LruHashMap::new();
#[btf_map(name = "old_udp_flows6")]
pub static OLD_UDP_FLOWS6: LruHashMap<FlowKey<16>, u32, 1> = LruHashMap::new();
#[btf_map(name = "old_half_open4")]
pub static OLD_HALF_OPEN4: LruHashMap<FlowKey<4>, u32, 1> = LruHashMap::new();
#[btf_map(name = "old_half_open6")]
pub static OLD_HALF_OPEN6: LruHashMap<FlowKey<16>, u32, 1> = LruHashMap::new();
#[btf_map(name = "old_fragments4")]
pub static OLD_FRAGMENTS4: LruHashMap<FragmentKey<4>, u32, 1> = LruHashMap::new();
#[btf_map(name = "old_fragments6")]
pub static OLD_FRAGMENTS6: LruHashMap<FragmentKey<16>, u32, 1> = LruHashMap::new();
