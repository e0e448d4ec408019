//! What became of a packet or a socket call: one enum for verdict, counter, event, metric label and text.

/// The number is the index into the `outcomes` map. Numbers never change their meaning; new ones are added at the end.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outcome {
    /// Not for a service: left alone.
    Passed = 0,
    /// First packet of a flow: a backend was selected.
    Selected = 1,
    /// Packet of a known flow, sent to its backend.
    Forwarded = 2,
    /// Answer of a backend, rewritten to come from the service.
    Replied = 3,
    /// The service has no endpoint: refused (TCP RST, ICMP port unreachable, ECONNREFUSED).
    RefusedNoEndpoint = 4,
    /// Endpoints exist, but none that the traffic policy allows here: dropped.
    DroppedNoLocalEndpoint = 5,
    /// TCP segment of a service that belongs to no flow: refused with RST.
    RefusedNoFlow = 6,
    /// The flow's backend is gone: this side was told with RST, or an ICMP error.
    Evicted = 7,
    /// UDP flow whose backend takes no more: moved to another one.
    Moved = 8,
    /// Direct connection on the tuple of a service flow: its source port is translated.
    DirectTranslated = 9,
    /// Service flow on the tuple of a live direct connection: its source port is translated.
    PortTranslated = 10,
    /// UDP tuple used by a service flow and directly: the last sender owns the replies.
    AmbiguousUdp = 11,
    /// No free source port within the bounded search: dropped.
    DroppedNoPort = 12,
    /// The flow could not be written: dropped.
    DroppedTableFull = 13,
    /// Tables kept changing under the look-up: dropped (a sender's retransmit finds them at rest).
    DroppedTorn = 14,
    /// Headers that contradict each other, sent to a service: dropped.
    DroppedMalformed = 15,
    /// The kernel refused to rewrite or to send the packet: dropped.
    DroppedRewrite = 16,
    /// XDP left the packet unmodified to tc.
    HandedToTc = 17,
    /// Socket of a host process connected to a backend.
    SocketConnected = 18,
    /// Datagram of an unconnected host socket sent to a backend.
    SocketSent = 19,
    /// Answer to a host socket, shown as coming from the service.
    SocketReplied = 20,
    /// connect() or sendmsg() of a host process to a service without endpoints: ECONNREFUSED.
    SocketRefused = 21,
    /// Later fragment that is not for a service, or whose first fragment is not known: left alone.
    Fragment = 22,
    /// The event ring was full: an event was lost (its counter was not).
    EventLost = 23,
    /// The client is in none of the service's source ranges: dropped (a host socket: ECONNREFUSED).
    DroppedSourceRange = 24,
    /// SYN of a connection that nobody has answered, sent again: moved to another backend.
    Retried = 25,
    /// A backend refused a connection while another one may take it: the refusal is kept from the client.
    WithheldRefusal = 26,
    /// Answer of a backend that the connection has left meanwhile: refused with RST, never delivered.
    RefusedLate = 27,
    /// First packet of a flow, sent to a suspect backend to see whether it answers again.
    Probed = 28,
    /// A backend became suspect: it left a connection unanswered that another one answered, or refused one.
    Suspected = 29,
    /// A suspect backend answered: it is suspect no more.
    Cleared = 30,
    /// To an address of services, and nothing there serves it: refused, or dropped where nothing can be said.
    RefusedUnserved = 31,
    /// ICMP echo request to an address of services: answered.
    EchoReplied = 32,
    /// ICMP error about a flow: its outer header and the packet that it quotes were translated.
    IcmpTranslated = 33,
    /// Later fragment, sent where its first fragment went.
    FragmentFollowed = 34,
    /// Later fragment to an address of services whose first fragment is not known: dropped.
    DroppedFragment = 35,
    /// Datagram of a host socket sent to another backend: the one before takes no more.
    SocketMoved = 36,
    /// First packet of a flow, sent from an address of this node so that its answers come back.
    Masqueraded = 37,
    /// The flow must be masqueraded, and this node has no address of the family to do it with: dropped.
    DroppedNoAddress = 38,
    /// From the wire with a source that cannot be out there (loopback, this node, a service): dropped.
    DroppedMartian = 39,
    /// Larger than its further way takes: dropped, and the sender told (ICMP fragmentation needed, packet too big).
    RefusedTooBig = 40,
    /// It has come as far as its sender allowed: dropped, and the sender told (ICMP time exceeded).
    DroppedHopLimit = 41,
    /// bind() of a host process to a port that the node serves for a service: EADDRINUSE.
    RefusedBind = 42,
    /// First packet of a flow, or one of a flow of another node, sent whole to the backend's node (direct server return).
    Tunnelled = 43,
    /// In an outer header for a backend of this node, from somebody who is no node of the cluster: dropped.
    DroppedNoPeer = 44,
    /// In an outer header, from another node, for a backend that this node does not have: dropped.
    DroppedNotHere = 45,
    /// First packet of a flow, at a time when half-open flows are made faster than their table holds them: a backend was selected by the
    /// packet's tuple alone.
    SelectedByTuple = 46,
    /// Segment of no flow, at such a time: sent to where the first packet of its tuple goes.
    Resumed = 47,
    /// First packet of a flow from a network of clients outside that has made as many as the service's rate limit allows: dropped.
    DroppedRateLimit = 48,
    /// Packet of a flow handed over at the other end of a pod's link, past the host's stack. Counted beside the packet's own outcome.
    FastPath = 49,
    /// Segment of a service that belongs to no flow, within the adoption window after the node's first start: left to the host's stack,
    /// whose NAT may know the connection.
    PassedAdoption = 50,
    /// To an address of a service CIDR that no service has: dropped.
    DroppedNoService = 51,
}

impl Outcome {
    /// How many there are.
    pub const COUNT: usize = 52;

    /// All of them, in the order of their numbers.
    pub const ALL: [Outcome; Self::COUNT] = [
        Self::Passed,
        Self::Selected,
        Self::Forwarded,
        Self::Replied,
        Self::RefusedNoEndpoint,
        Self::DroppedNoLocalEndpoint,
        Self::RefusedNoFlow,
        Self::Evicted,
        Self::Moved,
        Self::DirectTranslated,
        Self::PortTranslated,
        Self::AmbiguousUdp,
        Self::DroppedNoPort,
        Self::DroppedTableFull,
        Self::DroppedTorn,
        Self::DroppedMalformed,
        Self::DroppedRewrite,
        Self::HandedToTc,
        Self::SocketConnected,
        Self::SocketSent,
        Self::SocketReplied,
        Self::SocketRefused,
        Self::Fragment,
        Self::EventLost,
        Self::DroppedSourceRange,
        Self::Retried,
        Self::WithheldRefusal,
        Self::RefusedLate,
        Self::Probed,
        Self::Suspected,
        Self::Cleared,
        Self::RefusedUnserved,
        Self::EchoReplied,
        Self::IcmpTranslated,
        Self::FragmentFollowed,
        Self::DroppedFragment,
        Self::SocketMoved,
        Self::Masqueraded,
        Self::DroppedNoAddress,
        Self::DroppedMartian,
        Self::RefusedTooBig,
        Self::DroppedHopLimit,
        Self::RefusedBind,
        Self::Tunnelled,
        Self::DroppedNoPeer,
        Self::DroppedNotHere,
        Self::SelectedByTuple,
        Self::Resumed,
        Self::DroppedRateLimit,
        Self::FastPath,
        Self::PassedAdoption,
        Self::DroppedNoService,
    ];

    /// The outcome with this number.
    pub const fn from_number(number: u8) -> Option<Self> {
        if (number as usize) < Self::COUNT { Some(Self::ALL[number as usize]) } else { None }
    }

    /// Name in metrics, events, JSON and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Selected => "selected",
            Self::Forwarded => "forwarded",
            Self::Replied => "replied",
            Self::RefusedNoEndpoint => "refused_no_endpoint",
            Self::DroppedNoLocalEndpoint => "dropped_no_local_endpoint",
            Self::RefusedNoFlow => "refused_no_flow",
            Self::Evicted => "evicted",
            Self::Moved => "moved",
            Self::DirectTranslated => "direct_translated",
            Self::PortTranslated => "port_translated",
            Self::AmbiguousUdp => "ambiguous_udp",
            Self::DroppedNoPort => "dropped_no_port",
            Self::DroppedTableFull => "dropped_table_full",
            Self::DroppedTorn => "dropped_torn",
            Self::DroppedMalformed => "dropped_malformed",
            Self::DroppedRewrite => "dropped_rewrite",
            Self::HandedToTc => "handed_to_tc",
            Self::SocketConnected => "socket_connected",
            Self::SocketSent => "socket_sent",
            Self::SocketReplied => "socket_replied",
            Self::SocketRefused => "socket_refused",
            Self::Fragment => "fragment",
            Self::EventLost => "event_lost",
            Self::DroppedSourceRange => "dropped_source_range",
            Self::Retried => "retried",
            Self::WithheldRefusal => "withheld_refusal",
            Self::RefusedLate => "refused_late",
            Self::Probed => "probed",
            Self::Suspected => "suspected",
            Self::Cleared => "cleared",
            Self::RefusedUnserved => "refused_unserved",
            Self::EchoReplied => "echo_replied",
            Self::IcmpTranslated => "icmp_translated",
            Self::FragmentFollowed => "fragment_followed",
            Self::DroppedFragment => "dropped_fragment",
            Self::SocketMoved => "socket_moved",
            Self::Masqueraded => "masqueraded",
            Self::DroppedNoAddress => "dropped_no_address",
            Self::DroppedMartian => "dropped_martian",
            Self::RefusedTooBig => "refused_too_big",
            Self::DroppedHopLimit => "dropped_hop_limit",
            Self::RefusedBind => "refused_bind",
            Self::Tunnelled => "tunnelled",
            Self::DroppedNoPeer => "dropped_no_peer",
            Self::DroppedNotHere => "dropped_not_here",
            Self::SelectedByTuple => "selected_by_tuple",
            Self::Resumed => "resumed",
            Self::DroppedRateLimit => "dropped_rate_limit",
            Self::FastPath => "fast_path",
            Self::PassedAdoption => "passed_adoption",
            Self::DroppedNoService => "dropped_no_service",
        }
    }
}

const _: () = assert!(Outcome::COUNT <= crate::limits::OUTCOMES as usize);
const _: () = {
    let mut i = 0;
    while i < Outcome::COUNT {
        assert!(Outcome::ALL[i] as usize == i);
        i += 1;
    }
};
