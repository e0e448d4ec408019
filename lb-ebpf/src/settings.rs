//! What the agent sets of the decision when it loads the programs.

use aya_ebpf::Global;
use lb_common::limits;
use lb_common::state::{SourcePorts, Timeouts};

/// Seconds without a packet after which a flow is forgotten (see [`Timeouts`]). Set at load.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".rodata.set")]
static TIMEOUT_HALF_OPEN_S: Global<u32> = Global::new(Timeouts::DEFAULT.half_open_s);
#[unsafe(no_mangle)]
#[unsafe(link_section = ".rodata.set")]
static TIMEOUT_OPEN_S: Global<u32> = Global::new(Timeouts::DEFAULT.open_s);
#[unsafe(no_mangle)]
#[unsafe(link_section = ".rodata.set")]
static TIMEOUT_CLOSING_S: Global<u32> = Global::new(Timeouts::DEFAULT.closing_s);
#[unsafe(no_mangle)]
#[unsafe(link_section = ".rodata.set")]
static TIMEOUT_UDP_UNREPLIED_S: Global<u32> = Global::new(Timeouts::DEFAULT.udp_unreplied_s);
#[unsafe(no_mangle)]
#[unsafe(link_section = ".rodata.set")]
static TIMEOUT_UDP_REPLIED_S: Global<u32> = Global::new(Timeouts::DEFAULT.udp_replied_s);
#[unsafe(no_mangle)]
#[unsafe(link_section = ".rodata.set")]
static TIMEOUT_UDP_STREAM_S: Global<u32> = Global::new(Timeouts::DEFAULT.udp_stream_s);

/// The source ports of translated flows (see [`SourcePorts`]). Set at load.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".rodata.set")]
static SNAT_PORT_FIRST: Global<u16> = Global::new(SourcePorts::DEFAULT.first);
#[unsafe(no_mangle)]
#[unsafe(link_section = ".rodata.set")]
static SNAT_PORT_COUNT: Global<u16> = Global::new(SourcePorts::DEFAULT.count);
#[unsafe(no_mangle)]
#[unsafe(link_section = ".rodata.set")]
static REUSED_PORT_FIRST: Global<u16> = Global::new(SourcePorts::DEFAULT.reused_first);
#[unsafe(no_mangle)]
#[unsafe(link_section = ".rodata.set")]
static REUSED_PORT_COUNT: Global<u16> = Global::new(SourcePorts::DEFAULT.reused_count);
#[unsafe(no_mangle)]
#[unsafe(link_section = ".rodata.set")]
static LOCAL_PORT_FIRST: Global<u16> = Global::new(SourcePorts::DEFAULT.local_first);
#[unsafe(no_mangle)]
#[unsafe(link_section = ".rodata.set")]
static LOCAL_PORT_LAST: Global<u16> = Global::new(SourcePorts::DEFAULT.local_last);

/// Entries of `flows4` and `flows6`. Set at load.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".rodata.set")]
static FLOWS4_ENTRIES: Global<u32> = Global::new(limits::FLOWS4);
#[unsafe(no_mangle)]
#[unsafe(link_section = ".rodata.set")]
static FLOWS6_ENTRIES: Global<u32> = Global::new(limits::FLOWS6);
/// The key of the hashes of [`lb_common::client_shares`]. Set at load.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".rodata.set")]
static CLIENT_KEY: Global<u32> = Global::new(0);

/// Established connections that fit: each takes two entries.
#[inline(always)]
pub fn flow_room<const N: usize>() -> u32 {
    let entries = if N == 4 { FLOWS4_ENTRIES.load() } else { FLOWS6_ENTRIES.load() };
    entries / 2
}

#[inline(always)]
pub fn client_key() -> u32 {
    CLIENT_KEY.load()
}

#[inline(always)]
pub fn timeouts() -> Timeouts {
    Timeouts {
        half_open_s: TIMEOUT_HALF_OPEN_S.load(),
        open_s: TIMEOUT_OPEN_S.load(),
        closing_s: TIMEOUT_CLOSING_S.load(),
        udp_unreplied_s: TIMEOUT_UDP_UNREPLIED_S.load(),
        udp_replied_s: TIMEOUT_UDP_REPLIED_S.load(),
        udp_stream_s: TIMEOUT_UDP_STREAM_S.load(),
    }
}

#[inline(always)]
pub fn source_ports() -> SourcePorts {
    SourcePorts {
        first: SNAT_PORT_FIRST.load(),
        count: SNAT_PORT_COUNT.load(),
        reused_first: REUSED_PORT_FIRST.load(),
        reused_count: REUSED_PORT_COUNT.load(),
        local_first: LOCAL_PORT_FIRST.load(),
        local_last: LOCAL_PORT_LAST.load(),
    }
}
