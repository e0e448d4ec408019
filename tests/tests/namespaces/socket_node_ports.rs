//! Host processes at node ports and external addresses: by loopback, by the node's own addresses, past the policy for those outside.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use lb_tests::agent::{Agent, Endpoint, External, Manifest, Service};
use lb_tests::fixture::{self, Fixture, Pods};
use lb_tests::peers::{Datagrams, Server, Stream, mapped};
use lb_tests::topology::{Addresses, NetNs, NodeOptions};

const HTTP: u16 = 30_080;
const DNS: u16 = 30_053;
const LOOPBACK: [IpAddr; 3] =
    [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V4(Ipv4Addr::new(127, 9, 0, 53)), IpAddr::V6(Ipv6Addr::LOCALHOST)];
const NO_ADDRESS: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];

fn node_ports() -> External {
    External { node_ports: vec![HTTP, DNS], ..External::default() }
}

/// Node ports of the service with this number.
fn ports_of(number: u8) -> [u16; 2] {
    [HTTP, DNS].map(|port| port + 100 * u16::from(number))
}

/// TCP, and UDP connected and not, reach a backend; the process believes throughout that it talks to `shown`.
fn serves(from: &NetNs, [http, dns]: [u16; 2], asked: IpAddr, shown: IpAddr) {
    let (to, peer) = (SocketAddr::new(asked, http), SocketAddr::new(shown, http));
    let mut stream = Stream::connect(from, to).unwrap_or_else(|e| panic!("{}: tcp {to}: {e}", from.name()));
    stream.ask("hello").unwrap_or_else(|e| panic!("{}: tcp {to}: {e}", from.name()));
    assert_eq!(stream.peer().unwrap(), peer);
    let (to, peer) = (SocketAddr::new(asked, dns), SocketAddr::new(shown, dns));
    let socket = Datagrams::connected(from, 0, to).unwrap();
    socket.ask_by_name(to, "hello").unwrap_or_else(|e| panic!("{}: udp {to}: {e}", from.name()));
    assert_eq!(socket.peer().unwrap(), peer);
    let socket = Datagrams::unconnected(from, 0, to).unwrap();
    for text in ["one", "two"] {
        socket.send_at(to, text).unwrap();
        let (said, answer) = socket.receive().unwrap_or_else(|e| panic!("{}: udp {to}: {e}", from.name()));
        assert_eq!((said, answer.text.as_str()), (peer, text), "asked {to}");
    }
}

fn refuses(from: &NetNs, to: SocketAddr) {
    let error = Stream::connect(from, to).expect_err("nobody listens there");
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{}: {to}", from.name());
}

fn mapped_ip(address: IpAddr) -> IpAddr {
    mapped(SocketAddr::new(address, 0)).ip()
}

#[test]
fn loopback_of_a_pod_is_its_own() {
    let options = NodeOptions { rp_filter: 2, ..NodeOptions::default() };
    let fixture = Fixture::new("podloop", Pods::Routed, 1, options);
    let _agent = fixture.agent(&Manifest::of([fixture.web().with(node_ports())]), &["--socket-lb", "all"]);
    let pod = fixture.client.netns().clone().in_cgroup(fixture.node.cgroup());
    for address in LOOPBACK.into_iter().chain(NO_ADDRESS) {
        refuses(&pod, SocketAddr::new(address, HTTP));
    }
    serves(fixture.node.netns(), [HTTP, DNS], LOOPBACK[0], LOOPBACK[0]);
}

#[test]
fn no_packet_is_served_at_loopback() {
    let fixture = Fixture::new("looppacket", Pods::Routed, 1, NodeOptions::default());
    // Without the hook nobody translates, and nothing but a hook may: other hosts must not come by here.
    let _agent = fixture.agent(&Manifest::of([fixture.web().with(node_ports())]), &["--socket-lb", "off"]);
    for address in LOOPBACK.into_iter().chain(NO_ADDRESS) {
        refuses(fixture.node.netns(), SocketAddr::new(address, HTTP));
    }
    let own = fixture.node.addresses().both().map(|address| SocketAddr::new(address, HTTP));
    for to in own {
        Stream::connect(fixture.client.netns(), to).unwrap().ask("hello").unwrap();
    }
}

#[test]
fn loopback_is_open_where_the_addresses_of_node_ports_hold_it() {
    let fixture = Fixture::new("looponly", Pods::Routed, 1, NodeOptions::default());
    let manifest = Manifest::of([fixture.web().with(node_ports())]);
    let own = fixture.node.addresses();
    let host = fixture.node.netns();
    {
        let _agent = fixture.agent(&manifest, &[&format!("--nodeport-addresses={}/32", own.v4)]);
        serves(host, [HTTP, DNS], own.v4.into(), own.v4.into());
        for address in LOOPBACK {
            refuses(host, SocketAddr::new(address, HTTP));
        }
    }
    let _agent = fixture.agent(&manifest, &["--nodeport-addresses=127.0.0.0/8"]);
    serves(host, [HTTP, DNS], LOOPBACK[0], LOOPBACK[0]);
    for to in [LOOPBACK[2], own.v4.into(), own.v6.into()] {
        refuses(host, SocketAddr::new(to, HTTP));
    }
}

/// Services of one node, for host processes: one agent serves them all. Fields in the order in which they must end.
struct Host {
    _agent: Agent,
    _servers: Vec<Server>,
    fixture: Fixture,
    /// Cluster IPs of the service of one backend.
    elsewhere: Addresses,
}

const WEB: u8 = 0;
const ON_THE_NODE: u8 = 1;
const EMPTY: u8 = 2;
const ELSEWHERE: u8 = 3;
/// The node's own address is in range, of IPv4 alone and of IPv6 alone.
const RANGES: [u8; 2] = [4, 5];

impl Host {
    fn new() -> Self {
        let fixture = Fixture::new("nodeports", Pods::Routed, 2, NodeOptions::default());
        let own = fixture.node.addresses();
        let servers = fixture::serve_at(fixture.node.netns(), own.both(), "host");
        let on_the_node = vec![Endpoint::ready(own).on(&fixture.node.node_name())];
        // The one endpoint is on another node, as the policy sees it.
        let elsewhere = vec![Endpoint::ready(fixture.backends[0].addresses()).on("elsewhere")];
        let outside = |number| External { node_ports: ports_of(number).to_vec(), ..published(number) };
        let ranged = |number, name, range: String| {
            let external = External { source_ranges: vec![range], ..outside(number) };
            Service::standard(name, 10 + number, fixture.endpoints()).with(external)
        };
        let ports = |number| External { node_ports: ports_of(number).to_vec(), ..External::default() };
        let elsewhere = Service::standard("elsewhere", 10 + ELSEWHERE, elsewhere)
            .with(External { local: true, ..outside(ELSEWHERE) });
        let cluster_ips = elsewhere.cluster_ips;
        let manifest = Manifest::of([
            elsewhere,
            fixture.web().with(ports(WEB)),
            Service::standard("on-the-node", 10 + ON_THE_NODE, on_the_node).with(ports(ON_THE_NODE)),
            Service::standard("empty", 10 + EMPTY, Vec::new()).with(ports(EMPTY)),
            ranged(RANGES[0], "ranges-4", format!("{}/32", own.v4)),
            ranged(RANGES[1], "ranges-6", format!("{}/128", own.v6)),
        ]);
        let agent = fixture.agent(&manifest, &["--external-ips", "on"]);
        Self { fixture, _servers: servers, _agent: agent, elsewhere: cluster_ips }
    }

    fn netns(&self) -> &NetNs {
        self.fixture.node.netns()
    }

    fn own(&self) -> [IpAddr; 2] {
        self.fixture.node.addresses().both()
    }
}

/// Addresses of a load balancer and external IPs that no node has.
fn published(number: u8) -> External {
    let last = u16::from(number) + 7;
    External {
        load_balancer_ips: vec![[198, 51, 100, number + 7].into(), [0x2001, 0xdb8, 5, 0, 0, 0, 0, last].into()],
        external_ips: vec![[203, 0, 113, number + 7].into(), [0x2001, 0xdb8, 7, 0, 0, 0, 0, last].into()],
        ..External::default()
    }
}

fn ips(number: u8) -> Vec<IpAddr> {
    let External { load_balancer_ips, external_ips, .. } = published(number);
    [load_balancer_ips, external_ips].concat()
}

#[test]
fn a_host_process_reaches_node_ports_and_external_addresses() {
    let host = Host::new();
    node_ports_at_loopback(&host);
    an_endpoint_on_the_node_itself(&host);
    no_endpoints(&host);
    the_whole_cluster_whatever_the_policy_for_those_outside(&host);
    source_ranges_by_the_nodes_own_address_in_each_family(&host);
    one_socket_asks_by_every_address_and_hears_from_the_last(&host);
}

fn node_ports_at_loopback(host: &Host) {
    let ports = ports_of(WEB);
    for address in LOOPBACK {
        serves(host.netns(), ports, address, address);
        serves(host.netns(), ports, mapped_ip(address), mapped_ip(address));
        refuses(host.netns(), SocketAddr::new(address, ports[0] + 1));
    }
    // Without an address the kernel means loopback, and says so.
    for (asked, shown) in NO_ADDRESS.into_iter().zip([LOOPBACK[0], LOOPBACK[2]]) {
        serves(host.netns(), ports, asked, shown);
    }
}

fn an_endpoint_on_the_node_itself(host: &Host) {
    for address in LOOPBACK {
        serves(host.netns(), ports_of(ON_THE_NODE), address, address);
    }
}

fn no_endpoints(host: &Host) {
    let [http, dns] = ports_of(EMPTY);
    for address in LOOPBACK {
        refuses(host.netns(), SocketAddr::new(address, http));
        let error = Datagrams::connected(host.netns(), 0, SocketAddr::new(address, dns)).expect_err("at connect");
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    }
}

fn the_whole_cluster_whatever_the_policy_for_those_outside(host: &Host) {
    for address in host.own().into_iter().chain(LOOPBACK) {
        serves(host.netns(), ports_of(ELSEWHERE), address, address);
        serves(host.netns(), ports_of(ELSEWHERE), mapped_ip(address), mapped_ip(address));
    }
    for address in ips(ELSEWHERE) {
        serves(host.netns(), [80, 53], address, address);
        serves(host.netns(), [80, 53], mapped_ip(address), mapped_ip(address));
    }
}

fn source_ranges_by_the_nodes_own_address_in_each_family(host: &Host) {
    for (number, passes) in RANGES.into_iter().zip(host.own()) {
        for address in ips(number).into_iter().flat_map(|address| [address, mapped_ip(address)]) {
            if address.to_canonical().is_ipv4() == passes.is_ipv4() {
                serves(host.netns(), [80, 53], address, address);
                continue;
            }
            // Ranges of one family leave nothing open in the other.
            let to = SocketAddr::new(address, 80);
            let error = Stream::connect_from(host.netns(), 0, to, Duration::from_secs(5)).expect_err("not in range");
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{to}");
        }
        // Node ports are open to all.
        for address in host.own().into_iter().chain(LOOPBACK) {
            serves(host.netns(), ports_of(number), address, address);
        }
    }
}

fn one_socket_asks_by_every_address_and_hears_from_the_last(host: &Host) {
    // Its only backend is asked directly, too.
    let (dns, cluster) = (ports_of(ELSEWHERE)[1], host.elsewhere);
    let backend = host.fixture.backends[0].addresses();
    for (loopback, own) in [LOOPBACK[0], LOOPBACK[2]].into_iter().zip(host.own()) {
        let ways: [SocketAddr; 4] = [
            (loopback, dns).into(),
            (own, dns).into(),
            (cluster.like(own), 53).into(),
            (backend.like(own), 5353).into(),
        ];
        let socket = Datagrams::unconnected(host.netns(), 0, ways[0]).unwrap();
        for turn in 0..12 {
            // Each after each other one, in the end.
            let to = ways[(turn + turn / 4) % 4];
            socket.ask_at(to, &turn.to_string()).unwrap_or_else(|error| panic!("turn {turn}: {to}: {error}"));
        }
    }
}
