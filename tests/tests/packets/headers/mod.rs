//! Packets that are not a plain TCP or UDP packet, through the loaded programs: extension headers, SCTP, headers that contradict each
//! other, and random damage to all of them.

mod association;
mod packets;
mod scenario;

use self::packets::{Chunk, Net, Transport, crc32c, extensions, is_summed, sctp, tcp, udp};
use self::scenario::{BACK, BACKEND, CLIENT, DROP, NEXT, NODE, SERVED, TARGET, VIP};
use anyhow::Result;
use lb_common::abi::TCP;
use lb_common::outcome::Outcome;
use lb_tests::random::Random;
use lb_tests::test_run::Hook;

/// Where requests are translated.
const REQUESTS: [Hook; 4] = [Hook::PodIn, Hook::BridgeIn, Hook::NodeIn, Hook::NodeOut];
const SYN: u8 = 2;

#[test]
fn requests_behind_extension_headers_are_translated() -> Result<()> {
    scenario::with_scenario("extensions", |scenario| {
        for chain in extensions() {
            for transport in [tcp(SERVED, SYN), udp(SERVED)] {
                let sent = Net::v6(CLIENT, VIP).behind(&chain, &transport);
                let ran = scenario.run(Hook::PodIn, &sent)?;
                assert_eq!((ran.verdict, ran.counted), (NEXT, vec![Outcome::Selected]), "{chain:?}");
                let mut expected = Net::v6(CLIENT, BACKEND).behind(&chain, &transport);
                let at = expected.len() - transport.bytes.len();
                expected[at + 2..at + 4].copy_from_slice(&TARGET.to_be_bytes());
                // All but the checksum must be that, and the checksum right.
                let sum = at + if transport.protocol == TCP { 16 } else { 6 };
                expected[sum..sum + 2].copy_from_slice(&ran.bytes[sum..sum + 2]);
                assert_eq!(ran.bytes, expected, "{chain:?}");
                assert!(
                    is_summed(&ran.bytes, at, transport.protocol),
                    "{chain:?}: the checksum is wrong: {:02x?}",
                    ran.bytes
                );
            }
            scenario.forget()?;
        }
        Ok(())
    })
}

/// A packet, and how it is broken.
type Broken = (&'static str, Vec<u8>);

fn broken(net: &Net) -> Vec<Broken> {
    let (segment, datagram) = (net.plain(&tcp(SERVED, SYN)), net.plain(&udp(SERVED)));
    let transport = net.transport();
    let edit = |packet: &[u8], at: usize, byte: u8| {
        let mut packet = packet.to_vec();
        packet[at] = byte;
        net.resum(&mut packet);
        packet
    };
    let mut all = vec![
        ("TCP data offset below its header", edit(&segment, transport + 12, 0x40)),
        ("TCP data offset beyond the packet", edit(&segment, transport + 12, 0xf0)),
        ("UDP length below its header", edit(&datagram, transport + 5, 7)),
        ("UDP length beyond the packet", edit(&datagram, transport + 4, 1)),
        ("a length beyond the packet", edit(&segment, net.length_at(), 0x40)),
        ("SCTP without a chunk", net.plain(&sctp(SERVED, 7, &[]))),
        ("SCTP chunk shorter than its header", net.plain(&sctp(SERVED, 7, &[Chunk::raw(0, 3, 12)]))),
        ("SCTP chunk beyond the packet", net.plain(&sctp(SERVED, 7, &[Chunk::raw(0, 400, 12)]))),
        ("SCTP INIT too short", net.plain(&sctp(SERVED, 0, &[Chunk::raw(1, 8, 8)]))),
    ];
    // Cut off anywhere behind the network header.
    let cut = (transport..segment.len()).map(|length| ("cut off", segment[..length].to_vec()));
    all.extend(cut);
    if net.is_v6() {
        let endless = vec![60; 9];
        all.push(("more extension headers than are walked", net.behind(&endless, &udp(SERVED))));
        let mut beyond = net.behind(&[60], &udp(SERVED));
        beyond[transport + 1] = 200;
        all.push(("an extension header beyond the packet", beyond));
    } else {
        all.push(("IPv4 header beyond the packet's length", edit(&segment, net.length_at() + 1, 10)));
        all.push(("IPv4 header shorter than it can be", edit(&segment, 14, 0x43)));
    }
    all
}

#[test]
fn contradicting_headers_are_dropped_at_a_service_and_pass_elsewhere() -> Result<()> {
    scenario::with_scenario("malformed", |scenario| {
        for hook in REQUESTS {
            for (to, verdict, counted) in [(VIP, DROP, Outcome::DroppedMalformed), (BACKEND, NEXT, Outcome::Passed)] {
                for net in [Net::v4(CLIENT, to), Net::v6(CLIENT, to)] {
                    for (what, bytes) in broken(&net) {
                        let ran = scenario.run(hook, &bytes)?;
                        let told = format!("{hook:?}, IPv{}: {what}: {bytes:02x?}", if net.is_v6() { 6 } else { 4 });
                        assert_eq!((ran.verdict, &ran.counted), (verdict, &vec![counted]), "{told}");
                        assert_eq!(ran.bytes, bytes, "untouched: {told}");
                    }
                }
            }
        }
        Ok(())
    })
}

#[test]
fn an_sctp_association_is_translated_and_its_checksum_follows() -> Result<()> {
    scenario::with_scenario("sctp", |scenario| {
        for (out, back) in
            [(Net::v4(CLIENT, VIP), Net::v4(BACKEND, CLIENT)), (Net::v6(CLIENT, VIP), Net::v6(BACKEND, CLIENT))]
        {
            let at = out.transport();
            let init = Chunk::init(0x1234_5678);
            let ran = scenario.run(Hook::PodIn, &out.plain(&sctp(SERVED, 0, &[init])))?;
            assert_eq!((ran.verdict, ran.counted), (NEXT, vec![Outcome::Selected]));
            assert_eq!(ran.bytes[at + 2..at + 4], TARGET.to_be_bytes(), "to the backend's port");
            assert_eq!(ran.bytes[at - out.address()..at], *out.to(BACKEND), "to the backend's address");
            assert_eq!(crc32c(&ran.bytes[at..]), ran.bytes[at + 8..at + 12], "the checksum follows the port");

            let mut answer = sctp((TARGET, SERVED.0), 0x1234_5678, &[Chunk::init_ack(0x9abc_def0)]);
            let ran = scenario.run(Hook::PodOut, &back.plain(&answer))?;
            assert_eq!((ran.verdict, ran.counted), (NEXT, vec![Outcome::Replied]));
            assert_eq!(ran.bytes[at..at + 2], SERVED.1.to_be_bytes(), "from the service's port");
            assert_eq!(crc32c(&ran.bytes[at..]), ran.bytes[at + 8..at + 12]);

            // Still to be computed, by the next hop that sends it.
            answer.bytes[8..12].fill(0);
            let ran = scenario.run(Hook::PodOut, &back.plain(&answer))?;
            assert_eq!(ran.bytes[at + 8..at + 12], [0; 4], "a checksum that is not there yet stays away");

            let data = scenario.run(Hook::PodIn, &out.plain(&sctp(SERVED, 0x9abc_def0, &[Chunk::data()])))?;
            assert_eq!((data.verdict, data.counted), (NEXT, vec![Outcome::Forwarded]));
            assert_eq!(crc32c(&data.bytes[at..]), data.bytes[at + 8..at + 12]);
        }
        Ok(())
    })
}

#[test]
fn an_sctp_association_to_another_node_is_masqueraded_and_its_checksum_follows() -> Result<()> {
    scenario::with_scenario("sctpfar", |scenario| {
        scenario.far()?;
        for (out, back, there, here) in [
            (Net::v4(CLIENT, VIP), Net::v4(BACKEND, NODE), Net::v4(NODE, BACKEND), Net::v4(VIP, CLIENT)),
            (Net::v6(CLIENT, VIP), Net::v6(BACKEND, NODE), Net::v6(NODE, BACKEND), Net::v6(VIP, CLIENT)),
        ] {
            let at = out.transport();
            // The packet as it must be, a hop further: its checksums are computed anew, by their definitions.
            let expect = |net: &Net, transport: &Transport| {
                let mut bytes = net.plain(transport);
                bytes[net.hop_limit_at()] -= 1;
                net.resum(&mut bytes);
                bytes[14..].to_vec()
            };
            let to = (SERVED.0, TARGET);
            let init = || [Chunk::init(0x1234_5678)];
            let ran = scenario.run(Hook::NodeIn, &out.plain(&sctp(SERVED, 0, &init())))?;
            assert_eq!((ran.verdict, ran.counted), (BACK, vec![Outcome::Masqueraded]));
            assert_eq!(ran.bytes[14..], expect(&there, &sctp(to, 0, &init())), "to the backend, from the node");

            let answer = |(src, dst)| sctp((dst, src), 0x1234_5678, &[Chunk::init_ack(0x9abc_def0)]);
            let ran = scenario.run(Hook::NodeIn, &back.plain(&answer(to)))?;
            assert_eq!((ran.verdict, ran.counted), (BACK, vec![Outcome::Replied]));
            assert_eq!(ran.bytes[14..], expect(&here, &answer(SERVED)), "to the client, from the service");

            // Still to be computed, by the next hop that sends it.
            let mut data = sctp(SERVED, 0x9abc_def0, &[Chunk::data()]);
            data.bytes[8..12].fill(0);
            let ran = scenario.run(Hook::NodeIn, &out.plain(&data))?;
            assert_eq!((ran.verdict, ran.counted), (BACK, vec![Outcome::Forwarded]));
            assert_eq!(ran.bytes[at + 8..at + 12], [0; 4], "a checksum that is not there yet stays away");
        }
        Ok(())
    })
}

#[test]
fn an_sctp_port_that_nobody_serves_is_refused_by_icmp_that_quotes_the_tag() -> Result<()> {
    scenario::with_scenario("sctpno", |scenario| {
        for net in [Net::v4(CLIENT, VIP), Net::v6(CLIENT, VIP)] {
            let sent = net.plain(&sctp((4_000, 9), 0, &[Chunk::init(0x1234_5678)]));
            let ran = scenario.run(Hook::PodIn, &sent)?;
            assert_eq!((ran.verdict, ran.counted), (BACK, vec![Outcome::RefusedUnserved]));
            let (at, kind) = (net.transport(), if net.is_v6() { [1, 4] } else { [3, 3] });
            assert_eq!(ran.bytes[at..at + 2], kind, "port unreachable");
            // The sender knows its INIT by the initiate tag, beyond the first eight bytes.
            assert_eq!(ran.bytes[at + 8..], sent[14..], "quoted whole");
        }
        Ok(())
    })
}

#[test]
fn damaged_packets_of_every_kind_go_unchanged_or_where_they_belong() -> Result<()> {
    scenario::with_scenario("damage", |scenario| {
        let first = lb_seed::of_run();
        for seed in first..first + 6_000 {
            let mut random = Random::new(seed);
            let to = if random.one_in(3) { BACKEND } else { VIP };
            let net = if random.one_in(2) { Net::v4(CLIENT, to) } else { Net::v6(CLIENT, to) };
            let mut bytes = packets::any(&mut random, &net);
            for _ in 0..random.below(6) {
                let at = 14 + random.below(bytes.len() - 14);
                bytes[at] = random.byte();
            }
            if random.one_in(4) {
                bytes.truncate(14 + random.below(bytes.len() - 13));
            }
            let hook = *random.of(&Hook::ALL);
            let told = format!("seed {seed}: {hook:?} {bytes:02x?}");
            let Some(ran) = scenario.try_run(hook, &bytes)? else { continue };
            assert!(
                ran.counted.len() <= 2 && (hook == Hook::Xdp || !ran.counted.is_empty()),
                "{told}: {:?}",
                ran.counted
            );
            let (length, is_short) = (bytes.len(), bytes.len() < net.transport());
            let names =
                |address: u8| !is_short && bytes[net.transport() - net.address()..net.transport()] == *net.to(address);
            if is_short || !names(VIP) {
                // What came of earlier packets may be known by its tuple; all else passes.
                let is_known = ran
                    .counted
                    .iter()
                    .any(|outcome| !matches!(outcome, Outcome::Passed | Outcome::Fragment | Outcome::HandedToTc));
                assert!(is_known || ran.bytes == bytes, "{told}: foreign, but touched");
            } else if ran.bytes != bytes && ran.bytes.len() == length && ran.verdict == NEXT {
                let dst = &ran.bytes[net.transport() - net.address()..net.transport()];
                assert_eq!(dst, &*net.to(BACKEND), "{told}: sent on elsewhere");
            }
        }
        Ok(())
    })
}

#[test]
fn no_packet_meets_what_earlier_ones_have_left_on_the_cpu() -> Result<()> {
    scenario::with_scenario("leftovers", |scenario| {
        let first = lb_seed::of_run();
        for seed in first..first + 1_500 {
            let mut random = Random::new(seed);
            let mut any = || {
                let to = if random.one_in(4) { BACKEND } else { VIP };
                let net = if random.one_in(2) { Net::v4(CLIENT, to) } else { Net::v6(CLIENT, to) };
                let bytes = packets::any(&mut random, &net);
                (*random.of(&Hook::ALL), bytes)
            };
            let (earlier, (hook, bytes)) = ([any(), any(), any()], any());
            scenario.begin_anew()?;
            let alone = scenario.try_run(hook, &bytes)?;
            for (hook, bytes) in &earlier {
                scenario.try_run(*hook, bytes)?;
            }
            scenario.forget()?;
            let ran = scenario.try_run(hook, &bytes)?;
            assert_eq!(ran, alone, "seed {seed}: {hook:?} {bytes:02x?} after {earlier:02x?}");
        }
        Ok(())
    })
}
