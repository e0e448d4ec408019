//! Sending frames as fast as one CPU does all the work, and counting those that came out at the other end.

use std::ffi::CString;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use aya::maps::{Array, MapData};
use aya::programs::{TestRun as _, TestRunAttrs, TestRunOptions, Xdp, XdpMode};
use aya::{Ebpf, Pod};
use lb_tests::topology::NetNs;

use super::frames::{FIRST_PORT, FLOWS, FRAME, Segment};

/// Frames of one turn of the kernel's generator.
const BATCH: u32 = 64;
/// How long the last frames may be on their way: their CPU has other work, too.
const PATIENCE: Duration = Duration::from_secs(2);

/// As `tests/yardstick` has it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Template {
    ifindex: u32,
    mask: u32,
    first_port: u32,
    port_at: u32,
    balance_at: u32,
    turn: u32,
    frame: [u8; FRAME],
}

/// As `tests/yardstick` has it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Onward {
    ifindex: u32,
    addresses: [[u8; 6]; 2],
}

// SAFETY: plain numbers without padding between them.
unsafe impl Pod for Template {}
// SAFETY: as above.
unsafe impl Pod for Onward {}

/// The programs at the ends of all wires.
pub struct Wire {
    ebpf: Ebpf,
}

/// One burst.
#[derive(Clone, Copy, Debug)]
pub struct Burst {
    pub sent: u32,
    pub arrived: u64,
    /// From the first frame to the last one's arrival.
    pub time: Duration,
}

impl Wire {
    pub fn load(object: &std::path::Path) -> Result<Self> {
        let bytes = std::fs::read(object).with_context(|| object.display().to_string())?;
        let mut ebpf = Ebpf::load(&bytes).context("loading the ends of the wires")?;
        for name in ["send", "hop", "sink", "idle"] {
            xdp(&mut ebpf, name)?.load().with_context(|| format!("yardstick {name}"))?;
        }
        Ok(Self { ebpf })
    }

    /// A program that does nothing.
    pub fn idle(&self) -> Result<&Xdp> {
        Ok(self.ebpf.program("idle").context("no idle in the yardstick")?.try_into()?)
    }

    /// From now on the link takes everything in.
    pub fn sink(&mut self, netns: &NetNs, link: &str) -> Result<()> {
        self.attach("sink", netns, link)
    }

    /// From now on what arrives by the link leaves by another, unseen.
    pub fn hop(&mut self, netns: &NetNs, link: &str, onward: &str, links: [[u8; 6]; 2]) -> Result<()> {
        let [source, destination] = links;
        let onward = Onward { ifindex: index(netns, onward)?, addresses: [destination, source] };
        let mut map: Array<&mut MapData, Onward> = self.ebpf.map_mut("y_onward").context("no y_onward")?.try_into()?;
        map.set(0, onward, 0)?;
        self.attach("hop", netns, link)
    }

    fn attach(&mut self, name: &str, netns: &NetNs, link: &str) -> Result<()> {
        let ifindex = index(netns, link)?;
        let program = xdp(&mut self.ebpf, name)?;
        let attached = netns.run(|| program.attach_to_if_index(ifindex, XdpMode::Driver));
        attached.map(drop).with_context(|| format!("attaching {name} to {link} of {}", netns.name()))
    }

    /// Sends that many frames of the known flows by a link, and waits until they have arrived by another one, or no more come.
    pub fn burst(&mut self, segment: Segment, count: u32, from: (&NetNs, &str), to: (&NetNs, &str)) -> Result<Burst> {
        let [port_at, balance_at] = segment.at_port(FIRST_PORT).port_and_balance().map(u32::try_from);
        let template = Template {
            ifindex: index(from.0, from.1)?,
            mask: u32::from(FLOWS - 1),
            first_port: FIRST_PORT.into(),
            port_at: port_at?,
            balance_at: balance_at?,
            turn: 0,
            frame: segment.at_port(FIRST_PORT).bytes()?.try_into().ok().context("a frame of another length")?,
        };
        let mut map: Array<&mut MapData, Template> =
            self.ebpf.map_mut("y_template").context("no y_template")?.try_into()?;
        map.set(0, template, 0)?;
        let generator: &Xdp = self.ebpf.program("send").context("no send in the yardstick")?.try_into()?;
        let before = to.0.run(|| received(to.1))?;
        let (begun, sent) = from.0.run(|| -> Result<(Instant, Duration)> {
            let options = TestRunOptions {
                data_in: Some(&template.frame),
                repeat: count,
                attrs: TestRunAttrs::new().xdp_live_frames(BATCH),
                ..TestRunOptions::default()
            };
            let begun = Instant::now();
            generator.test_run(options).context("sending frames (Linux 5.18)")?;
            Ok((begun, begun.elapsed()))
        })?;
        let (arrived, late) = to.0.run(|| settle(to.1, before, count))?;
        Ok(Burst { sent: count, arrived, time: if late { begun.elapsed() } else { sent } })
    }
}

/// How many have arrived, and whether some came after the first look.
fn settle(link: &str, before: u64, count: u32) -> Result<(u64, bool)> {
    let begun = Instant::now();
    let mut late = false;
    loop {
        let arrived = received(link)?.saturating_sub(before);
        if arrived >= count.into() || begun.elapsed() > PATIENCE {
            return Ok((arrived, late && arrived >= count.into()));
        }
        late = true;
        std::thread::yield_now();
    }
}

fn xdp<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut Xdp> {
    Ok(ebpf.program_mut(name).with_context(|| format!("no {name} in the yardstick"))?.try_into()?)
}

/// Index of a link.
pub fn index(netns: &NetNs, link: &str) -> Result<u32> {
    let name = CString::new(link)?;
    // SAFETY: a string that ends with a zero and lives across the call.
    let ifindex = netns.run(|| unsafe { libc::if_nametoindex(name.as_ptr()) });
    ensure!(ifindex != 0, "no link {link} in {}", netns.name());
    Ok(ifindex)
}

/// Packets that a link of the thread's own namespace received since it is there.
fn received(link: &str) -> Result<u64> {
    // That of the thread: another one of the process is in another namespace.
    let text = std::fs::read_to_string("/proc/thread-self/net/dev").context("reading /proc/thread-self/net/dev")?;
    parse_received(&text, link).with_context(|| format!("no link {link} in /proc/thread-self/net/dev"))
}

/// A line is `name: bytes packets …`.
fn parse_received(text: &str, link: &str) -> Option<u64> {
    let rest = text.lines().find_map(|row| row.trim().strip_prefix(link)?.strip_prefix(':'))?;
    rest.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::parse_received;

    #[test]
    fn packets_of_a_link_are_read() {
        let text =
            "Inter-|   Receive\n face |bytes    packets errs\n    lo: 10 1 0 0\n  out0: 2000 20 0 0\n out01:3 4 0";
        assert_eq!(parse_received(text, "out0"), Some(20));
        assert_eq!(parse_received(text, "out01"), Some(4));
        assert_eq!(parse_received(text, "eth0"), None);
    }
}
