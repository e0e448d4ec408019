//! What became of a packet or a socket call: one enum for verdict, counter, event, metric label and text.

macro_rules! outcomes {
    ($($(#[$doc:meta])* $outcome:ident = $number:literal, $name:literal;)*) => {
        /// The number is the index into the `outcomes` map. Numbers never change their meaning; new ones are added at the end.
        #[repr(u8)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Outcome {
            $($(#[$doc])* $outcome = $number,)*
        }

        impl Outcome {
            /// All of them, in the order of their numbers.
            pub const ALL: [Self; [$($number),*].len()] = [$(Self::$outcome),*];

            /// How many there are.
            pub const COUNT: usize = Self::ALL.len();

            /// The outcome with this number.
            pub const fn from_number(number: u8) -> Option<Self> {
                match number {
                    $($number => Some(Self::$outcome),)*
                    _ => None,
                }
            }

            /// Name in metrics, events, JSON and tables.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$outcome => $name,)*
                }
            }
        }
    };
}

outcomes! {
    /// Not for a service: left alone.
    Passed = 0, "passed";
    /// First packet of a flow: a backend was selected.
    Selected = 1, "selected";
    /// Packet of a known flow, sent to its backend.
    Forwarded = 2, "forwarded";
    /// Answer of a backend, rewritten to come from the service.
    Replied = 3, "replied";
    /// The service has no endpoint: refused (TCP RST, ICMP port unreachable, ECONNREFUSED).
    RefusedNoEndpoint = 4, "refused_no_endpoint";
    /// Endpoints exist, but none that the traffic policy allows here: dropped.
    DroppedNoLocalEndpoint = 5, "dropped_no_local_endpoint";
    /// TCP segment of a service that belongs to no flow: refused with RST.
    RefusedNoFlow = 6, "refused_no_flow";
    /// The flow's backend is gone: this side was told with RST, or an ICMP error.
    Evicted = 7, "evicted";
    /// UDP flow whose backend takes no more: moved to another one.
    Moved = 8, "moved";
    /// Direct connection on the tuple of a service flow: its source port is translated.
    DirectTranslated = 9, "direct_translated";
    /// Service flow on the tuple of a live direct connection: its source port is translated.
    PortTranslated = 10, "port_translated";
    /// UDP tuple used by a service flow and directly: the last sender owns the replies.
    AmbiguousUdp = 11, "ambiguous_udp";
    /// No free source port within the bounded search: dropped.
    DroppedNoPort = 12, "dropped_no_port";
    /// The flow could not be written: dropped.
    DroppedTableFull = 13, "dropped_table_full";
    /// Tables kept changing under the look-up: dropped (a sender's retransmit finds them at rest).
    DroppedTorn = 14, "dropped_torn";
    /// Headers that contradict each other, sent to a service: dropped.
    DroppedMalformed = 15, "dropped_malformed";
    /// The kernel refused to rewrite or to send the packet: dropped.
    DroppedRewrite = 16, "dropped_rewrite";
    /// XDP left the packet unmodified to tc.
    HandedToTc = 17, "handed_to_tc";
    /// Socket of a host process connected to a backend.
    SocketConnected = 18, "socket_connected";
    /// Datagram of an unconnected host socket sent to a backend.
    SocketSent = 19, "socket_sent";
    /// Answer to a host socket, shown as coming from the service.
    SocketReplied = 20, "socket_replied";
    /// connect() or sendmsg() of a host process to a service without endpoints: ECONNREFUSED.
    SocketRefused = 21, "socket_refused";
    /// Later fragment that is not for a service, or whose first fragment is not known: left alone.
    Fragment = 22, "fragment";
    /// The event ring was full, or this CPU has written as many events of the outcome as it may in a second: an event was lost (its counter
    /// was not).
    EventLost = 23, "event_lost";
    /// The client is in none of the service's source ranges: dropped (a host socket: ECONNREFUSED).
    DroppedSourceRange = 24, "dropped_source_range";
    /// SYN of a connection that nobody has answered, sent again: moved to another backend.
    Retried = 25, "retried";
    /// A backend refused a connection while another one may take it: the refusal is kept from the client.
    SuppressedRefusal = 26, "suppressed_refusal";
    /// Answer of a backend after another one's was forwarded: refused with RST, never delivered.
    RefusedLate = 27, "refused_late";
    /// First packet of a flow, sent to an ejected backend to see whether it answers again.
    Probed = 28, "probed";
    /// A backend was ejected: two clients have evidence against it.
    Ejected = 29, "ejected";
    /// An ejected backend answered, so it takes new flows again.
    Cleared = 30, "cleared";
    /// To an address of services, and nothing there serves it: refused, or dropped where nothing can be said.
    RefusedUnserved = 31, "refused_unserved";
    /// ICMP echo request to an address of services: answered.
    EchoReplied = 32, "echo_replied";
    /// ICMP error about a flow: its outer header and the packet that it quotes were translated.
    IcmpTranslated = 33, "icmp_translated";
    /// Later fragment, sent where its first fragment went.
    FragmentFollowed = 34, "fragment_followed";
    /// Later fragment to an address of services whose first fragment is not known: dropped.
    DroppedFragment = 35, "dropped_fragment";
    /// Datagram of a host socket sent to another backend: the one before takes no more.
    SocketMoved = 36, "socket_moved";
    /// First packet of a flow, sent from an address of this node so that its answers come back.
    Masqueraded = 37, "masqueraded";
    /// The flow must be masqueraded, and this node has no address of the family to do it with: dropped.
    DroppedNoAddress = 38, "dropped_no_address";
    /// From the wire with a source that cannot be out there (loopback, this node, a service): dropped.
    DroppedMartian = 39, "dropped_martian";
    /// Larger than its further way takes: dropped, and the sender told (ICMP fragmentation needed, packet too big).
    RefusedTooBig = 40, "refused_too_big";
    /// It has come as far as its sender allowed: dropped, and the sender told (ICMP time exceeded).
    DroppedHopLimit = 41, "dropped_hop_limit";
    /// bind() of a host process to a port that the node serves for a service: EADDRINUSE.
    RefusedBind = 42, "refused_bind";
    /// First packet of a flow, or one of a flow of another node, encapsulated and sent to the backend's node (direct server return).
    Tunnelled = 43, "tunnelled";
    /// In an outer header for a backend of this node, from somebody who is no node of the cluster: dropped.
    DroppedNoPeer = 44, "dropped_no_peer";
    /// In an outer header, from another node, for a backend that this node does not have: dropped.
    DroppedNotHere = 45, "dropped_not_here";
    /// First packet of a flow, at a time when half-open flows are made faster than their table holds them: a backend was selected by the
    /// packet's tuple alone.
    SelectedByTuple = 46, "selected_by_tuple";
    /// Segment of no flow, at such a time: sent to where the first packet of its tuple goes.
    Resumed = 47, "resumed";
    /// First packet of a flow from a network of external clients that has made as many as the service's rate limit allows: dropped.
    DroppedRateLimit = 48, "dropped_rate_limit";
    /// Packet of a flow handed over at the other end of a pod's link, past the host's stack. Counted beside the packet's own outcome.
    FastPath = 49, "fast_path";
    /// Segment of a service that belongs to no flow, within the adoption window after the node's first start: left to the host's stack,
    /// whose NAT may know the connection.
    PassedAdoption = 50, "passed_adoption";
    /// To an address of a service CIDR that no service has: dropped.
    DroppedNoService = 51, "dropped_no_service";
    /// A program that the packet needs is missing: dropped if it is a service's, else left alone.
    NoProgram = 52, "no_program";
    /// An answer of our own (RST, ABORT, ICMP error, echo reply) beyond what this CPU sends in a second: the packet was dropped without it.
    /// Counted beside the packet's own outcome.
    AnswerLimited = 53, "answer_limited";
    /// More than three quarters of the table of established connections are taken, and the client has more connections than there are places
    /// left: its new one is refused.
    RefusedClientShare = 54, "refused_client_share";
    /// Packet of an adopted connection, which another proxy made before the node's first start: left to the host's NAT.
    Adopted = 55, "adopted";
    /// Packet of a connection that is about to be given to another proxy: dropped, and its sender sends it again.
    HeldForHandOver = 56, "held_for_hand_over";
    /// First packet of a flow, while connections are given to another proxy: left to that one.
    PassedHandOver = 57, "passed_hand_over";
}

impl Outcome {
    /// Whether the programs write event records of it: what a user would ask about, never what every packet does, nor what is counted beside a
    /// packet's own outcome.
    #[inline(always)]
    pub const fn is_event(self) -> bool {
        !matches!(
            self,
            Self::Passed
                | Self::Selected
                | Self::Forwarded
                | Self::Replied
                | Self::DirectTranslated
                | Self::HandedToTc
                | Self::SocketConnected
                | Self::SocketSent
                | Self::SocketReplied
                | Self::Fragment
                | Self::EventLost
                | Self::EchoReplied
                | Self::FragmentFollowed
                | Self::Tunnelled
                | Self::FastPath
                | Self::PassedAdoption
                | Self::NoProgram
                | Self::AnswerLimited
                | Self::Adopted
                | Self::HeldForHandOver
                | Self::PassedHandOver
        )
    }
}

const _: () = assert!(Outcome::ALL.len() <= crate::limits::OUTCOMES as usize);
const _: () = {
    let mut i = 0;
    while i < Outcome::ALL.len() {
        assert!(Outcome::ALL[i] as usize == i);
        i += 1;
    }
};
