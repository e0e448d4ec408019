//! The programs that others tail call, and their slots in the program arrays: the programs call by slot, the agent fills the slots by
//! name.
//!
//! Each stage is two programs, one for each address family: `select4` and `select6`.

macro_rules! stages {
    ($(#[$meta:meta])* $name:ident: $prefix:literal { $($(#[$doc:meta])* $stage:ident = $text:literal,)* }) => {
        $(#[$meta])*
        #[repr(u8)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$doc])* $stage,)*
        }

        impl $name {
            /// All of them, in the order of their slots.
            pub const ALL: &'static [Self] = &[$(Self::$stage,)*];

            /// Slots of the program array.
            pub const SLOTS: usize = 2 * Self::ALL.len();

            /// The slot of this stage's program for addresses of `N` bytes.
            #[inline(always)]
            #[must_use]
            pub const fn slot<const N: usize>(self) -> u32 {
                2 * self as u32 + if N == 4 { 0 } else { 1 }
            }

            /// The names of this stage's programs, for IPv4 and IPv6.
            #[must_use]
            pub const fn programs(self) -> [&'static str; 2] {
                match self {
                    $(Self::$stage => [concat!($prefix, $text, "4"), concat!($prefix, $text, "6")],)*
                }
            }
        }
    };
}

stages! {
    /// At tc, for every attach point.
    TcStage: "" {
        /// Reads what the entry programs do not: IP options, extension headers, fragments, SCTP, ICMP.
        Parse = "parse",
        /// Looks the connection of a packet up that [`TcStage::Parse`] has read.
        Lookup = "lookup",
        /// A SYN on the tuple of an established connection; the other direction's entry; a connection that is over.
        Established = "established",
        /// A packet of a connection that nobody has answered yet.
        Handshake = "handshake",
        /// A client's segment of no established connection: it completes a handshake, or belongs to none.
        Complete = "complete",
        /// Another backend for a connection that nobody answers, or that its backend has refused.
        Retry = "retry",
        /// A backend for a new connection.
        Select = "select",
        /// A client's own traffic that may collide with one of its connections to a service.
        Direct = "direct",
        /// The tuples and the entries of a new connection.
        Allocate = "allocate",
        /// Does what the verdict says.
        Verdict = "verdict",
        /// Address translation where the headers are not the usual ones: SCTP, IP options, extension headers.
        SlowNat = "slow_nat",
        /// Both addresses are translated, and the packet is routed from here.
        Route = "route",
        /// The fast path to another node.
        NodeFastPath = "node_fast_path",
        /// Refuses: TCP RST, SCTP ABORT.
        Refuse = "refuse",
        /// Makes the packet an ICMP error that quotes it.
        IcmpError = "icmp_error",
        /// A later fragment.
        Fragment = "fragment",
        /// An ICMP message: an echo request, or an error.
        Icmp = "icmp",
        /// Whose connection an ICMP error is about.
        IcmpVerdict = "icmp_verdict",
        /// Translates an ICMP error and the packet that it quotes.
        IcmpNat = "icmp_nat",
        /// DSR: an ICMP error about a packet that another node has answered.
        DsrIcmp = "dsr_icmp",
        /// DSR: an ICMP error about the outer header.
        DsrIcmpOuter = "dsr_icmp_outer",
        /// DSR: puts an outer header on.
        Encapsulate = "encapsulate",
        /// DSR: takes the outer header off.
        Decapsulate = "decapsulate",
        /// DSR: the same, where an ICMP message is inside.
        DecapsulateIcmp = "decap_icmp",
    }
}

stages! {
    /// At XDP, on external links.
    XdpStage: "xdp_" {
        /// A SYN on the tuple of an established connection; the other direction's entry; a connection that is over.
        Established = "establ",
        /// A packet of a connection that nobody has answered yet.
        Handshake = "handshake",
        /// A client's segment of no established connection: it completes a handshake, or belongs to none.
        Complete = "complete",
        /// A backend for a new connection.
        Select = "select",
        /// The tuples and the entries of a new connection.
        Allocate = "allocate",
        /// Does what the verdict says.
        Verdict = "verdict",
        /// Both addresses are translated, and the packet leaves from here.
        Route = "route",
        /// DSR: puts an outer header on.
        Encapsulate = "encap",
        /// DSR: takes the outer header off.
        Decapsulate = "decap",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel keeps 15 bytes of a program's name.
    #[test]
    fn names_are_whole_in_the_kernel_and_each_is_one_programs() {
        let names = TcStage::ALL.iter().flat_map(|stage| stage.programs());
        let names: Vec<_> = names.chain(XdpStage::ALL.iter().flat_map(|stage| stage.programs())).collect();
        let mut unique = names.clone();
        unique.sort_unstable();
        unique.dedup();
        assert_eq!(unique.len(), names.len());
        assert!(names.iter().all(|name| name.len() <= 15), "{names:?}");
    }

    #[test]
    fn slots_follow_the_order() {
        for (index, stage) in TcStage::ALL.iter().enumerate() {
            assert_eq!([stage.slot::<4>(), stage.slot::<16>()].map(|slot| slot as usize), [2 * index, 2 * index + 1]);
        }
    }
}
