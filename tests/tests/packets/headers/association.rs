//! SCTP associations whose backend drains: the chunks that a backend must answer, and the ABORT that ends an association.

use anyhow::Result;
use lb_common::limits::ANSWER_TIMEOUT_S;
use lb_common::outcome::Outcome;
use lb_tests::test_run::Hook;

use super::packets::{Chunk, Net, crc32c, sctp};
use super::scenario::{self, BACK, BACKEND, CLIENT, NEXT, SERVED, Scenario, TARGET, VIP};

/// Seconds of the drain.
const PERIOD: u32 = 30;
const MAX: u32 = 600;
/// Verification tags: each end's own, which the other one sends.
const CLIENT_TAG: u32 = 0x1234_5678;
const BACKEND_TAG: u32 = 0x9abc_def0;

/// Chunk types, and an ABORT with the T bit.
const COOKIE_ECHO: u8 = 10;
const COOKIE_ACK: u8 = 11;
const ABORT: [u8; 4] = [6, 1, 0, 4];

/// An association between a client and the service's backend.
struct Association<'a> {
    scenario: &'a mut Scenario,
    is_v6: bool,
}

impl<'a> Association<'a> {
    /// Made by its four packets, as the kernel sends them.
    fn open(scenario: &'a mut Scenario, is_v6: bool) -> Result<Self> {
        scenario.forget()?;
        let mut this = Self { scenario, is_v6 };
        assert_eq!(this.run(true, 0, Chunk::init(CLIENT_TAG))?, Outcome::Selected);
        assert_eq!(this.run(false, CLIENT_TAG, Chunk::init_ack(BACKEND_TAG))?, Outcome::Replied);
        assert_eq!(this.run(true, BACKEND_TAG, Chunk::raw(COOKIE_ECHO, 20, 20))?, Outcome::Forwarded);
        assert_eq!(this.run(false, CLIENT_TAG, Chunk::raw(COOKIE_ACK, 4, 4))?, Outcome::Replied);
        Ok(this)
    }

    fn net(&self, src: u8, dst: u8) -> Net {
        if self.is_v6 { Net::v6(src, dst) } else { Net::v4(src, dst) }
    }

    fn packet(&self, from_client: bool, tag: u32, chunk: Vec<u8>) -> (Hook, Vec<u8>) {
        let (hook, net, ports) = if from_client {
            (Hook::PodIn, self.net(CLIENT, VIP), SERVED)
        } else {
            (Hook::PodOut, self.net(BACKEND, CLIENT), (TARGET, SERVED.0))
        };
        (hook, net.plain(&sctp(ports, tag, &[chunk])))
    }

    fn run(&mut self, from_client: bool, tag: u32, chunk: Vec<u8>) -> Result<Outcome> {
        let (hook, packet) = self.packet(from_client, tag, chunk);
        let ran = self.scenario.run(hook, &packet)?;
        assert_eq!(ran.verdict, NEXT, "{:?}", ran.counted);
        let [counted] = ran.counted[..] else { panic!("{:?}", ran.counted) };
        Ok(counted)
    }

    /// The packet is forwarded to the backend, or to the client.
    fn goes_on(&mut self, from_client: bool, chunk: Vec<u8>) -> Result<()> {
        let (tag, outcome) =
            if from_client { (BACKEND_TAG, Outcome::Forwarded) } else { (CLIENT_TAG, Outcome::Replied) };
        assert_eq!(self.run(from_client, tag, chunk)?, outcome);
        Ok(())
    }

    /// The sender gets an ABORT that its kernel takes: from whom it sent to, with the tag that it sent, which the T bit says.
    fn is_aborted(&mut self, from_client: bool) -> Result<()> {
        let tag = if from_client { BACKEND_TAG } else { CLIENT_TAG };
        let (hook, sent) = self.packet(from_client, tag, Chunk::data());
        let ran = self.scenario.run(hook, &sent)?;
        assert_eq!((ran.verdict, ran.counted), (BACK, vec![Outcome::Evicted]));
        let (net, (src, dst)) =
            if from_client { (self.net(VIP, CLIENT), SERVED) } else { (self.net(CLIENT, BACKEND), (TARGET, SERVED.0)) };
        let expected = net.plain(&sctp((dst, src), tag, &[ABORT.to_vec()]));
        let at = net.transport();
        assert_eq!(ran.bytes[at..], expected[at..], "ports, tag, checksum, and the chunk alone");
        assert_eq!(crc32c(&ran.bytes[at..]), ran.bytes[at + 8..at + 12]);
        assert_eq!(ran.bytes[at - 2 * net.address()..at], expected[at - 2 * net.address()..at], "from whom to whom");
        Ok(())
    }
}

/// Plays on an association of each family.
fn each(subject: &str, play: impl Fn(&mut Association<'_>) -> Result<()> + Sync) -> Result<()> {
    scenario::with_clock(subject, |scenario| {
        [false, true].into_iter().try_for_each(|is_v6| play(&mut Association::open(scenario, is_v6)?))
    })
}

#[test]
fn an_association_that_is_answered_goes_on_until_the_eviction_deadline() -> Result<()> {
    each("sctpdrain", |association| {
        association.scenario.drain(PERIOD, MAX)?;
        for _ in 0..MAX / 30 {
            association.goes_on(true, Chunk::data())?;
            association.scenario.pass_seconds(10)?;
            association.goes_on(false, Chunk::sack())?;
            association.goes_on(true, Chunk::heartbeat())?;
            association.goes_on(false, Chunk::heartbeat_ack())?;
            // An acknowledgement waits for no answer.
            association.goes_on(false, Chunk::data())?;
            association.goes_on(true, Chunk::sack())?;
            association.scenario.pass_seconds(19)?;
            association.goes_on(true, Chunk::sack())?;
            association.scenario.pass_seconds(1)?;
        }
        association.is_aborted(true)?;
        association.is_aborted(false)
    })
}

#[test]
fn an_idle_association_stays_until_the_eviction_deadline() -> Result<()> {
    each("sctpidle", |association| {
        association.scenario.drain(PERIOD, MAX)?;
        association.scenario.pass_seconds(u64::from(MAX) - 1)?;
        association.goes_on(true, Chunk::data())?;
        association.goes_on(false, Chunk::sack())?;
        association.scenario.pass_seconds(1)?;
        association.is_aborted(false)?;
        association.is_aborted(true)
    })
}

#[test]
fn an_association_ends_when_data_or_a_heartbeat_stays_unanswered() -> Result<()> {
    for chunk in [Chunk::data, Chunk::heartbeat] {
        each("sctpdead", |association| {
            association.scenario.drain(PERIOD, MAX)?;
            association.scenario.pass_seconds(u64::from(PERIOD) + 1)?;
            for _ in 0..=ANSWER_TIMEOUT_S {
                association.goes_on(true, chunk())?;
                association.scenario.pass_seconds(1)?;
            }
            association.is_aborted(true)?;
            // A backend that comes to life again gets one, too.
            association.is_aborted(false)
        })?;
    }
    Ok(())
}

#[test]
fn without_a_longest_drain_an_association_ends_with_the_period() -> Result<()> {
    each("sctpnomax", |association| {
        association.scenario.drain(PERIOD, PERIOD)?;
        association.scenario.pass_seconds(u64::from(PERIOD) - 1)?;
        association.goes_on(true, Chunk::data())?;
        association.goes_on(false, Chunk::sack())?;
        association.scenario.pass_seconds(1)?;
        association.is_aborted(true)?;
        association.is_aborted(false)
    })
}
