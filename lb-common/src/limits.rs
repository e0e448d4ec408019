//! Every bound that programs and agent must agree on, in one place, checked against each other at compile time.

/// Length of a map's name that the kernel keeps (`BPF_OBJ_NAME_LEN` less its NUL).
pub const MAP_NAME_LENGTH: usize = 15;

/// Default capacity of each `services` map, in frontends of one family.
pub const SERVICES: u32 = 65_536;
/// Default capacity of each `backends` map: one record per (service port, endpoint) of one family.
pub const BACKENDS: u32 = 262_144;
/// Default capacity of the `slots` map, shared by both families.
pub const SLOTS: u32 = 1_048_576;
/// Default capacity of `flows4`, in entries: an established connection takes two, one for each direction. Nothing is evicted from it.
pub const FLOWS4: u32 = 262_144;
/// Default capacity of `flows6`, in entries, as [`FLOWS4`].
pub const FLOWS6: u32 = 131_072;
/// Counters of `client_shares` for each of two hashes and each family: a power of two. With 100 clients above their share, one client in
/// seven thousand shares both of its counters with some of them. They take 256 KiB in all.
pub const CLIENT_SLOTS: u32 = 8_192;
/// Default capacity of each `udp_flows` map, in entries: a UDP flow that was answered takes two.
pub const UDP_FLOWS: u32 = 65_536;
/// Default capacity of each `sockets` map, in entries: a socket translated at connect takes two.
pub const SOCKETS: u32 = 65_536;
/// Default capacity of `names`, in service ports.
pub const NAMES: u32 = 65_536;
/// Default capacity of `stats`, in (id, outcome) counters.
pub const STATS: u32 = 1_048_576;
/// Capacity of `connect_times` with `--connect-times on`, in backends of both families that have answered a SYN. Others have no connect times.
pub const CONNECT_TIMES: u32 = 65_536;
/// Default capacity of each `sources` map: admitted networks of one family, one for each service port.
pub const SOURCES: u32 = 65_536;
/// Default capacity of each `vips` map, in addresses.
pub const VIPS: u32 = 65_536;
/// Bits of `vip_filter`: a power of two. With 100,000 addresses of services, one other address in forty shares a bit with one of them.
pub const VIP_FILTER_BITS: u32 = 1 << 22;
/// Capacity of `links`, in interfaces.
pub const LINKS: u32 = 16_384;
/// Capacity of `outcomes`, in counters: room for outcomes to come, so that they change no map.
pub const OUTCOMES: u32 = 64;
/// Size of the one element of `layout` in bytes.
pub const LAYOUT_BYTES: usize = 65_536;
/// Size of the event ring in bytes: a power of two and a multiple of the page size.
pub const EVENTS_BYTES: u32 = 262_144;

/// Default capacity of each `half_open` map, in entries: a flow that nobody has answered takes two.
pub const HALF_OPEN: u32 = 65_536;
/// Default capacity of each `affinity` map, in (client, service port) pairs.
pub const AFFINITY: u32 = 65_536;
/// Capacity of `buckets`: networks of external clients that ask for services with a rate limit.
pub const BUCKETS: u32 = 65_536;
/// A rate limit holds for each network of so many bytes of an IPv4 address: 24 bits.
pub const LIMITED_BYTES4: usize = 3;
/// A rate limit holds for each network of so many bytes of an IPv6 address: 56 bits, which one customer is given (RFC 6177).
pub const LIMITED_BYTES6: usize = 7;
/// The largest rate, in new flows per second, and the largest burst.
pub const RATE_MAX: u32 = 1_000_000;
/// Capacity of each `fragments` map, in datagrams whose fragments are under way.
pub const FRAGMENTS: u32 = 8_192;
/// Capacity of `round_robin`: a power of two. Service ports whose ids differ by it share a turn, which changes no distribution by much.
pub const ROUND_ROBIN: u32 = 4_096;

/// An ejected backend is sent one new flow every so many seconds, to see whether it answers again.
pub const PROBE_INTERVAL_S: u32 = 10;
/// A backend that answered within this many seconds has answered lately.
pub const ANSWERED_LATELY_S: u32 = 30;
/// One client's evidence against a backend counts for so many seconds. That of a second client within this time ejects the backend for all.
pub const EVIDENCE_S: u32 = 60;
/// So many slots of a service are read to find out whether half of its backends stay when one of them is ejected.
pub const EJECTION_SLOTS: u32 = 128;
/// So many new UDP flows without an answer, of two or more clients, are evidence against a backend for all, where others answer.
pub const UDP_UNANSWERED_FLOWS: u32 = 3;
/// A UDP flow counts as unanswered after so many seconds.
pub const UDP_ANSWER_S: u32 = 3;
/// How many slots are read in search of a backend that is neither ejected nor tried.
pub const SLOT_ATTEMPTS: u32 = 8;
/// A datagram's later fragments follow its first one within this many seconds (`net.ipv4.ipfrag_time`).
pub const FRAGMENT_TIMEOUT_S: u32 = 30;

/// A half-open TCP flow that nobody answered is forgotten after this many seconds without a packet.
pub const TCP_HALF_OPEN_TIMEOUT_S: u32 = 60;
/// So long an answered second handshake keeps its place from other SYNs of its client: a lost acknowledgement comes again.
pub const SECOND_HANDSHAKE_S: u32 = 3;
/// An open TCP flow is forgotten after this many seconds without a packet, while its table is more than half full (two hours and a bit outlast the
/// default keepalive of Linux, 7200 s + 9 × 75 s).
pub const TCP_OPEN_TIMEOUT_S: u32 = 8_100;
/// No open TCP flow is forgotten earlier, while its table has room (`conntrack.tcpEstablishedTimeout` of kube-proxy).
pub const TCP_IDLE_TIMEOUT_S: u32 = 86_400;
/// A TCP flow that saw a FIN or a RST is forgotten after this many seconds (2 × the 60 s of TIME_WAIT in Linux).
pub const TCP_CLOSING_TIMEOUT_S: u32 = 120;
/// An adopted connection is forgotten after this many seconds without a packet, if no agent asks conntrack for it
/// (`nf_conntrack_tcp_timeout_established`).
pub const ADOPTED_TIMEOUT_S: u32 = 432_000;
/// A connection that is held for longer is one of Ballast again: the command that was giving it away has ended.
pub const HOLD_S: u32 = 2;
/// The word in the map `adoption` while connections are given to another proxy: its window never ends, and new connections pass, too.
pub const HAND_OVER: u32 = u32::MAX;
/// The reply tuple of a connection that has ended goes to no other client within this many seconds, unless few others are free (the 60 s of TIME_WAIT
/// in Linux).
pub const TUPLE_REST_S: u32 = 60;
/// A client's segment that a draining backend leaves unanswered for longer ends the connection, once the drain period is over. Linux has sent
/// it six times by then (RFC 6298, from 0.2 s on).
pub const ANSWER_TIMEOUT_S: u32 = 15;
/// A UDP flow without an answer is forgotten after this many seconds (`nf_conntrack_udp_timeout`).
pub const UDP_UNREPLIED_TIMEOUT_S: u32 = 30;
/// A UDP flow with answers is forgotten after this many seconds (`nf_conntrack_udp_timeout`).
pub const UDP_REPLIED_TIMEOUT_S: u32 = 30;
/// A UDP flow that asked again after an answer is forgotten after this many seconds (`nf_conntrack_udp_timeout_stream`).
pub const UDP_STREAM_TIMEOUT_S: u32 = 120;

/// The table of half-open flows should hold each for so many seconds: longer than a client takes to answer twice. New flows that would
/// throw them out earlier are made by rule alone.
pub const HALF_OPEN_HELD_S: u32 = 4;
/// For so many seconds after that.
pub const FLOOD_S: u32 = 10;
/// Flows that were made so, and have lost their entries, are found again for so many seconds more: as long as a half-open flow lives.
pub const AFTER_FLOOD_S: u32 = TCP_HALF_OPEN_TIMEOUT_S;

/// How many source ports are tried when a flow's translated tuple is taken.
pub const PORT_ATTEMPTS: u32 = 32;
/// How many of these at one SNAT address, before it is the next one's turn.
pub const ADDRESS_ATTEMPTS: u32 = PORT_ATTEMPTS / crate::abi::MASQUERADE_ADDRESSES as u32;
/// How many source ports are tried where each try asks for the client's own sockets, too.
pub const SOCKET_ATTEMPTS: u32 = 8;
/// Default first port of the SNAT port range (`--snat-ports`): the first one that needs no privilege.
pub const SOURCE_PORT_FIRST: u16 = 1_024;
/// How many ports the default range holds: up to the node ports.
pub const SOURCE_PORT_COUNT: u16 = NODE_PORT_FIRST - SOURCE_PORT_FIRST;
/// As many ports at most are used again before their tuple has rested, since packets to these cost one look-up more.
pub const REUSED_PORT_COUNT: u16 = 4_536;
/// The first of them by default: behind the kernel's own range (`net.ipv4.ip_local_port_range`), where few packets go.
pub const REUSED_PORT_FIRST: u16 = 61_000;
/// Default range of the node ports (`--service-node-port-range` of the API server).
pub const NODE_PORT_FIRST: u16 = 30_000;
pub const NODE_PORT_LAST: u16 = 32_767;
/// Default range of the ports that the kernel gives to sockets (`net.ipv4.ip_local_port_range`).
pub const LOCAL_PORT_FIRST: u16 = 32_768;
pub const LOCAL_PORT_LAST: u16 = 60_999;
/// Default capacity of each `endpoints` map: backends of this node, one for each address and service port.
pub const ENDPOINTS: u32 = 65_536;
/// Capacity of each `networks` map, in networks: those of the pods, and the nodes' addresses.
pub const NETWORKS: u32 = 16_384;

/// Answers of our own (RST, ABORT, ICMP errors, echo replies) that each CPU sends in a second, of each outcome: as many as Linux sends ICMP
/// messages (`net.ipv4.icmp_msgs_per_sec`). A client that is refused asks again, and a path MTU is probed again.
pub const ANSWERS_PER_SECOND: u32 = 1_000;
/// As many may leave at once: the connections of a backend that goes, or of a node that comes back, are refused within the same moment.
pub const ANSWER_BURST: u32 = 1_000;
/// Event records that each CPU writes in a second, of each outcome. The counters miss none.
pub const EVENTS_PER_SECOND: u32 = 100;
/// As many may be written at once: on 64 CPUs, those of one outcome leave room in the ring for others.
pub const EVENT_BURST: u32 = 50;

/// The agent permits the fast path for so many seconds, anew each second: a few may be missed on a busy node. A rule of the host that is new
/// after the agent's death is obeyed when they are over.
pub const FAST_PATH_PERMIT_S: u32 = 5;

/// How often a packet looks its service up again after it met a half-written update.
pub const SERVICE_LOOKUPS: u32 = 2;

const _: () = assert!(
    CLIENT_SLOTS.is_power_of_two()
        && ROUND_ROBIN.is_power_of_two()
        && VIP_FILTER_BITS.is_power_of_two()
        && VIP_FILTER_BITS >= 64
);
const _: () = assert!(REUSED_PORT_FIRST as u32 + REUSED_PORT_COUNT as u32 == u16::MAX as u32 + 1);
const _: () = assert!(NODE_PORT_LAST < LOCAL_PORT_FIRST && LOCAL_PORT_LAST < REUSED_PORT_FIRST);
const _: () = assert!(EVENTS_BYTES.is_power_of_two() && EVENTS_BYTES.is_multiple_of(4096));
const _: () = assert!(64 * EVENT_BURST * (size_of::<crate::abi::Event>() as u32 + 8) < EVENTS_BYTES);
const _: () = assert!(TCP_HALF_OPEN_TIMEOUT_S < TCP_OPEN_TIMEOUT_S);
