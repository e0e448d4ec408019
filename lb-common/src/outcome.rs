//! What became of a packet or a socket call: one table for verdict, counter, event, metric label, and the reference page of the book.

macro_rules! remedy {
    () => {
        None
    };
    ($text:literal) => {
        Some($text)
    };
}

macro_rules! outcomes {
    ($($(#[doc = $doc:literal])+ $outcome:ident = $number:literal, $name:literal, sees $sees:literal $(, remedy $remedy:literal)?;)*) => {
        /// The number is the index into the `outcomes` map. Numbers never change their meaning; new ones are added at the end.
        #[repr(u8)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Outcome {
            $($(#[doc = $doc])+ $outcome = $number,)*
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

            /// What became of the packet, or the socket call, in one or two sentences.
            pub const fn meaning(self) -> &'static str {
                match self {
                    $(Self::$outcome => concat!($($doc),+),)*
                }
            }

            /// What the client notices. It is the sender of the packet, or the process that makes the call.
            pub const fn client_sees(self) -> &'static str {
                match self {
                    $(Self::$outcome => $sees,)*
                }
            }

            /// What an operator does about it, and whether it is normal. `None`: nothing is to be done.
            pub const fn remedy(self) -> Option<&'static str> {
                match self {
                    $(Self::$outcome => remedy!($($remedy)?),)*
                }
            }
        }
    };
}

outcomes! {
    /// Not for a service: left alone.
    Passed = 0, "passed", sees "its packet goes on as it is";
    /// First packet of a flow: a backend was selected.
    Selected = 1, "selected", sees "a working connection";
    /// Packet of a known flow, sent to its backend.
    Forwarded = 2, "forwarded", sees "a working connection";
    /// Answer of a backend, rewritten to come from the service.
    Replied = 3, "replied", sees "a working connection";
    /// The service has no endpoint: refused.
    RefusedNoEndpoint = 4, "refused_no_endpoint", sees "TCP RST, else ICMP port unreachable",
        remedy "`ballast get services`: are there backends, and are they ready?";
    /// Endpoints exist, but none that the traffic policy allows here: dropped.
    DroppedNoLocalEndpoint = 5, "dropped_no_local_endpoint", sees "a time-out",
        remedy "The traffic policy is `Local`, and this node has no endpoint: run one here, or use `Cluster`.";
    /// TCP segment of a service that belongs to no flow: refused with RST.
    RefusedNoFlow = 6, "refused_no_flow", sees "TCP RST, SCTP ABORT",
        remedy "Some are normal: a flow forgotten after silence. Many: the flow table is too small (`--map-sizes`), or replies do not pass this node.";
    /// The flow's backend is gone: each side gets a RST, or an ABORT, at its next segment.
    Evicted = 7, "evicted", sees "TCP RST, SCTP ABORT; for UDP a time-out",
        remedy "Normal at the end of a drain. Too early: raise `--drain-max`, or `--drain-period` for backends that are slow to answer.";
    /// UDP flow whose backend takes no more: moved to another one.
    Moved = 8, "moved", sees "answers of another backend";
    /// Direct connection of a pod or of the node itself on the tuple of a service flow: its source port is translated.
    DirectTranslated = 9, "direct_translated", sees "a working connection";
    /// Service flow on the tuple of a live direct connection: its source port is translated.
    PortTranslated = 10, "port_translated", sees "a working connection";
    /// UDP tuple used by a service flow and directly: the last sender owns the replies.
    AmbiguousUdp = 11, "ambiguous_udp", sees "replies that may come from the other conversation",
        remedy "Let the client use two sockets.";
    /// No free source port within the bounded search: dropped.
    DroppedNoPort = 12, "dropped_no_port", sees "a time-out",
        remedy "Thousands of masqueraded connections go to one backend: name more addresses in `--snat-addresses`, or widen `--snat-ports`.";
    /// The flow could not be written: dropped.
    DroppedTableFull = 13, "dropped_table_full", sees "a time-out",
        remedy "The map of established connections (`flows4`, `flows6`) is full: see `ballast status -o wide`, raise `--map-sizes`.";
    /// Tables kept changing under the look-up: dropped (a sender's retransmit finds them at rest).
    DroppedTorn = 14, "dropped_torn", sees "a packet that is lost once, and sent again",
        remedy "A few under heavy change are normal. Steady: the tables are inconsistent; run `ballast audit`, restart the agent and report it.";
    /// Headers that contradict each other, sent to a service: dropped.
    DroppedMalformed = 15, "dropped_malformed", sees "a time-out",
        remedy "A broken sender, or one that probes the node: find it with `ballast monitor`.";
    /// The kernel refused to rewrite or to send the packet: dropped.
    DroppedRewrite = 16, "dropped_rewrite", sees "a time-out",
        remedy "UDP datagrams with IPv4 options that had to be refused end here. Else report it with the kernel's version.";
    /// XDP left the packet unmodified to tc.
    HandedToTc = 17, "handed_to_tc", sees "a working connection",
        remedy "Normal: backends on other nodes, replies and refusals at XDP.";
    /// Socket of a host process connected to a backend.
    SocketConnected = 18, "socket_connected", sees "a working connection";
    /// Datagram of an unconnected host socket sent to a backend.
    SocketSent = 19, "socket_sent", sees "a working conversation";
    /// Answer to a host socket, shown as coming from the service.
    SocketReplied = 20, "socket_replied", sees "a working conversation";
    /// connect() or sendmsg() of a host process to a service without endpoints: ECONNREFUSED.
    SocketRefused = 21, "socket_refused", sees "`ECONNREFUSED`",
        remedy "`ballast get services`: are there backends, and are they ready?";
    /// Later fragment that is not for a service, or whose first fragment is not known: left alone.
    Fragment = 22, "fragment", sees "its packet goes on as it is",
        remedy "If a service's datagrams are fragmented: keep them below the MTU.";
    /// The event ring was full, or this CPU has written as many events of the outcome as it may in a second. The event was lost; its counter
    /// was not.
    EventLost = 23, "event_lost", sees "nothing: the packet has its own outcome",
        remedy "No agent reads the ring, or many refusals come at once. The counters are complete.";
    /// The client is in none of the service's source ranges: dropped (a host socket: ECONNREFUSED).
    DroppedSourceRange = 24, "dropped_source_range", sees "a time-out; a process of the node: `ECONNREFUSED`",
        remedy "Add the client's network to `loadBalancerSourceRanges` of the service, in its family.";
    /// SYN of a connection that nobody has answered, sent again: moved to another backend.
    Retried = 25, "retried", sees "a connection that begins late",
        remedy "`ballast get backends`: which one does not answer?";
    /// A backend refused a connection while another one may take it: the refusal is kept from the client.
    SuppressedRefusal = 26, "suppressed_refusal", sees "a connection that begins late",
        remedy "The backend is ready for the API and refuses connections: check its process and its port.";
    /// Answer of a backend after another one's was forwarded: refused with RST, never delivered.
    RefusedLate = 27, "refused_late", sees "nothing; the backend gets a RST",
        remedy "The backend takes a second or more to accept: set `ballast.dev/retry: \"off\"` if that is its nature.";
    /// First packet of a flow, sent to an ejected backend to see whether it answers again.
    Probed = 28, "probed", sees "a connection that may begin late";
    /// A backend was ejected: two clients have evidence against it.
    Ejected = 29, "ejected", sees "nothing: new connections go to other backends",
        remedy "`ballast get backends --state ejected`: check that backend.";
    /// An ejected backend answered, so it takes new flows again.
    Cleared = 30, "cleared", sees "a working connection";
    /// To an address of services, and nothing there serves it: refused, or dropped where nothing can be said.
    RefusedUnserved = 31, "refused_unserved", sees "TCP RST, else ICMP port unreachable; a process of the node: `ECONNREFUSED`",
        remedy "The client uses a port that the service does not have.";
    /// ICMP echo request to an address of services: answered.
    EchoReplied = 32, "echo_replied", sees "an echo reply";
    /// ICMP error about a flow: its outer header and the packet that it quotes were translated.
    IcmpTranslated = 33, "icmp_translated", sees "the ICMP error, about the packet as it was sent";
    /// Later fragment, sent where its first fragment went.
    FragmentFollowed = 34, "fragment_followed", sees "a working conversation";
    /// Later fragment to an address of services whose first fragment is not known: dropped.
    DroppedFragment = 35, "dropped_fragment", sees "a datagram that is lost",
        remedy "A sender's fragments come in another order, or by several ways: keep datagrams below the MTU.";
    /// Datagram of a host socket sent to another backend: the one before takes no more.
    SocketMoved = 36, "socket_moved", sees "answers of another backend";
    /// First packet of a flow, sent from an address of this node so that its answers come back.
    Masqueraded = 37, "masqueraded", sees "a working connection; the backend sees an address of the node";
    /// The flow must be masqueraded, and this node has no address of the family to do it with: dropped.
    DroppedNoAddress = 38, "dropped_no_address", sees "a time-out",
        remedy "Give the node an address of the family, or correct `--snat-addresses`.";
    /// From the wire with a source that cannot be out there (loopback, this node, a service): dropped.
    DroppedMartian = 39, "dropped_martian", sees "a time-out",
        remedy "Its sender forges addresses, or a route leads back here.";
    /// Larger than its further way takes: dropped, and the sender told (ICMP fragmentation needed, packet too big).
    RefusedTooBig = 40, "refused_too_big", sees "ICMP *fragmentation needed* or *packet too big*",
        remedy "Many from one sender: ICMP does not reach it. Let it through the firewalls on the path.";
    /// It has come as far as its sender allowed: dropped, and the sender told (ICMP time exceeded).
    DroppedHopLimit = 41, "dropped_hop_limit", sees "ICMP *time exceeded*",
        remedy "A trace, or a routing loop.";
    /// bind() of a host process to a port that the node serves for a service: EADDRINUSE.
    RefusedBind = 42, "refused_bind", sees "`EADDRINUSE`",
        remedy "Another port for the process, another node port for the Service, or `--protect-node-ports off`.";
    /// First packet of a flow, or one of a flow of another node, encapsulated and sent to the backend's node (direct server return).
    Tunnelled = 43, "tunnelled", sees "a working connection; the backend's node answers";
    /// Encapsulated, for a backend of this node, from an address that is no node's: dropped.
    DroppedNoPeer = 44, "dropped_no_peer", sees "a time-out",
        remedy "The sender is a node without a Node object, or uses another address: name it in `--dsr-peers`. Else somebody forges.";
    /// Encapsulated, from another node, for a backend that this node does not have: dropped.
    DroppedNotHere = 45, "dropped_not_here", sees "a packet that is lost, and sent again",
        remedy "The sending node has not learned of a change yet. If it goes on, compare `ballast get backends` on both nodes.";
    /// First packet of a flow, in flood mode: half-open flows are made faster than their table holds them. The packet's tuple alone selected
    /// the backend.
    SelectedByTuple = 46, "selected_by_tuple", sees "a working connection",
        remedy "A flood of new flows. If it is none, give `half_open` more entries in `--map-sizes`.";
    /// Segment of no flow, in flood mode: sent to where the first packet of its tuple goes.
    Resumed = 47, "resumed", sees "a working connection",
        remedy "A flood of new flows. Far more than connections: a flood of ACKs.";
    /// First packet of a flow from a network of external clients that has made as many as the service's rate limit allows: dropped.
    DroppedRateLimit = 48, "dropped_rate_limit", sees "a time-out, if all of its attempts are dropped",
        remedy "Raise `ballast.dev/rate-limit`, or find out why that network sends so much.";
    /// Packet of a flow redirected to the other end of a pod's link, or sent to another node, past the host's stack. Counted beside the
    /// packet's own outcome.
    FastPath = 49, "fast_path", sees "a working connection",
        remedy "None at all: `ballast status` says what the fast path would skip.";
    /// Segment of a service that belongs to no flow, within the adoption window after the node's first start. It is left to the host's
    /// stack, whose NAT may know the connection.
    PassedAdoption = 50, "passed_adoption", sees "a connection that goes on, if the host's NAT knows it",
        remedy "Normal for seconds after the node's first start. After the window such segments are `refused_no_flow`.";
    /// To an address of a service CIDR that no service has: dropped.
    DroppedNoService = 51, "dropped_no_service", sees "a time-out",
        remedy "The client holds the address of a deleted Service. Or a ServiceCIDR or `--service-cidr` is too wide.";
    /// A program that the packet needs is missing: dropped if it is a service's, else left alone.
    NoProgram = 52, "no_program", sees "a time-out, if the packet is a service's",
        remedy "Somebody changed the maps `tc_programs` or `xdp_programs`. `ballast audit` names the slot, and the agent fills it within a minute.";
    /// An answer of our own (RST, ABORT, ICMP error, echo reply) beyond what this CPU sends in a second: the packet was dropped without it.
    /// Counted beside the packet's own outcome.
    AnswerLimited = 53, "answer_limited", sees "a time-out instead of a refusal",
        remedy "A flood, or many connections that end at once: clients ask again.";
    /// More than three quarters of the table of established connections are taken. The client has more connections than there are places
    /// left: its new one is refused.
    RefusedClientShare = 54, "refused_client_share", sees "TCP RST, else ICMP port unreachable",
        remedy "`ballast status` names the client. Raise `flows4`, `flows6` in `--map-sizes` if it needs so many.";
    /// Packet of an adopted connection, which another proxy made before the node's first start: left to the host's NAT.
    Adopted = 55, "adopted", sees "a working connection",
        remedy "Normal until these connections end; `ballast status` counts them.";
    /// Packet of a connection that is about to be given to another proxy: dropped, and its sender sends it again.
    HeldForHandOver = 56, "held_for_hand_over", sees "a packet that is lost, and sent again",
        remedy "Normal for milliseconds while `ballast cleanup --hand-over` works.";
    /// First packet of a flow, while connections are given to another proxy: left to that one.
    PassedHandOver = 57, "passed_hand_over", sees "a connection by the other proxy",
        remedy "Normal while `ballast cleanup --hand-over` works.";
    /// SYN with another initial sequence number on the tuple of a connection or handshake: a second handshake begins beside it.
    SecondHandshake = 58, "second_handshake", sees "a working connection",
        remedy "A few are clients that have restarted. Many: somebody forges SYNs, or a backend does not answer.";
}

impl Outcome {
    /// Whether the programs write event records of it: what a user would ask about. It is never what every packet does, nor what is counted
    /// beside a packet's own outcome.
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
