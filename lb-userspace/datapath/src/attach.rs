//! Makes the attachments of interfaces what they should be: attach, replace in place, detach. Level-triggered and repeatable.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::Path,
};

use rtnetlink::Handle;
use serde::Serialize;

use super::{
    DatapathError,
    bpf_link::{self, BpfLink, LinkTarget},
    clsact,
    features::TcMechanism,
    loaded::Loaded,
    net::Wanted,
    pins::Pins,
    point::Point,
    programs::Programs,
    settings::XdpMode,
};

const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

/// How a program hangs on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum How {
    Tcx,
    Clsact,
    /// XDP in the driver.
    Native,
    /// XDP in the stack.
    Generic,
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcx => "tcx",
            Self::Clsact => "clsact",
            Self::Native => "native",
            Self::Generic => "generic",
        })
    }
}

impl How {
    const ALL: [Self; 4] = [Self::Tcx, Self::Clsact, Self::Native, Self::Generic];

    pub(super) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|how| how.to_string() == text)
    }

    fn flags(self) -> u32 {
        match self {
            Self::Native => XDP_FLAGS_DRV_MODE,
            Self::Generic => XDP_FLAGS_SKB_MODE,
            Self::Tcx | Self::Clsact => 0,
        }
    }
}

/// A program at a place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Attachment {
    pub point: Point,
    pub program: String,
    pub how: How,
}

/// Does the attaching, and remembers what is attached.
#[derive(Debug)]
pub(super) struct Attacher {
    pins: Pins,
    tc: TcMechanism,
    xdp: XdpMode,
    pub attached: BTreeMap<(u32, Point), Attachment>,
    pub problems: BTreeMap<(u32, Point), String>,
    /// Why XDP is not native, by interface.
    pub xdp_reasons: BTreeMap<u32, String>,
    /// Interfaces without native XDP: an attempt may stop a card for a moment, so none is repeated.
    without_xdp: BTreeSet<u32>,
    /// What was attached before the round, to distinguish new attachments from confirmed ones.
    before: BTreeMap<(u32, Point), Attachment>,
    /// Interfaces with a clsact qdisc, where filters of an earlier start may hang.
    clsact: BTreeSet<u32>,
    /// Programs that an interface asked for and that are not in the kernel.
    missing: BTreeSet<&'static str>,
}

impl Attacher {
    pub fn new(pins: Pins, tc: TcMechanism, xdp: XdpMode) -> Self {
        Self {
            pins,
            tc,
            xdp,
            attached: BTreeMap::new(),
            problems: BTreeMap::new(),
            xdp_reasons: BTreeMap::new(),
            without_xdp: BTreeSet::new(),
            before: BTreeMap::new(),
            clsact: BTreeSet::new(),
            missing: BTreeSet::new(),
        }
    }

    pub fn pins(&self) -> &Pins {
        &self.pins
    }

    /// Before a full round: nothing is believed that was not looked at again.
    pub async fn distrust(&mut self, handle: &mut Handle) -> Result<(), DatapathError> {
        self.clsact = clsact::interfaces(handle).await?.into_iter().collect();
        self.before = std::mem::take(&mut self.attached);
        Ok(())
    }

    /// Programs that interfaces have asked for in vain since the last call.
    pub fn take_missing(&mut self) -> BTreeSet<&'static str> {
        std::mem::take(&mut self.missing)
    }

    /// Whether interfaces have asked for programs that are not loaded yet.
    pub fn wants_programs(&self) -> bool {
        !self.missing.is_empty()
    }

    /// Attaches what the interface should have, and takes off what it should not, up to the first failure or the first program that
    /// is not loaded yet.
    pub async fn ensure(&mut self, handle: &mut Handle, programs: &Programs, wanted: &Wanted) {
        for point in Point::ALL {
            let key = (wanted.ifindex, point);
            let done = match self.program(wanted, point) {
                Some(name) if self.attached.get(&key).is_some_and(|there| there.program == name) => continue,
                Some(name) => match programs.at_hook(name) {
                    Some(program) => self.attach(handle, wanted, point, name, program).await.map_err(Some),
                    None => Err(None),
                },
                None => self.detach(handle, wanted.ifindex, point).await.map(|()| None).map_err(Some),
            };
            let reason = match done {
                Ok(attachment) => {
                    self.note(key, attachment, wanted);
                    self.problems.remove(&key);
                    continue;
                }
                Err(Some(error)) if error.is_gone() => continue,
                Err(Some(error)) => error.to_string(),
                Err(None) => match self.ask_for(wanted, point, programs) {
                    Some(refusal) => refusal,
                    None => return,
                },
            };
            let problem = format!("{} ({point}): {reason}", wanted.name);
            if self.problems.insert(key, problem.clone()).as_ref() != Some(&problem) {
                tracing::warn!(interface = wanted.name, %point, problem, "not attached");
            }
            // Requests must not be translated where answers are not: the catch-all programs serve the link meanwhile.
            return;
        }
    }

    /// The program that should hang there; `None`: none should.
    fn program(&mut self, wanted: &Wanted, point: Point) -> Option<&'static str> {
        let name = wanted.role.program(point, wanted.ethernet)?;
        let is_met = wanted.part.meets(point);
        if point != Point::Xdp {
            return is_met.then_some(name);
        }
        if is_met && xdp_mode(self.xdp, wanted.virtual_pair).is_some() {
            return (!self.without_xdp.contains(&wanted.ifindex)).then_some(name);
        }
        let why = match self.xdp {
            XdpMode::Auto | XdpMode::Native | XdpMode::Generic if !is_met => "tc serves a bridge and its ports",
            XdpMode::Off => "--xdp-mode is off",
            XdpMode::Auto | XdpMode::Native | XdpMode::Generic => {
                "its other end is on this host, whose packets have partial checksums that XDP would break; where they are \
                 complete, --xdp-mode native or generic"
            }
        };
        self.xdp_reasons.insert(wanted.ifindex, why.to_owned());
        None
    }

    /// Notes that an interface needs a program that is not in the kernel. The answer says why, if the kernel refused it.
    fn ask_for(&mut self, wanted: &Wanted, point: Point, programs: &Programs) -> Option<String> {
        let name = wanted.role.program(point, wanted.ethernet)?;
        self.missing.insert(name);
        programs.refusal(name).map(str::to_owned)
    }

    /// Takes everything of ours off an interface that is still there.
    pub async fn release(&mut self, handle: &mut Handle, ifindex: u32) -> Result<(), DatapathError> {
        for point in Point::ALL.into_iter().rev() {
            self.detach(handle, ifindex, point).await?;
            self.attached.remove(&(ifindex, point));
            self.problems.remove(&(ifindex, point));
        }
        Ok(())
    }

    /// Forgets an interface that vanished: the kernel has detached everything, only pins are left.
    pub fn forget(&mut self, ifindex: u32) -> Result<(), DatapathError> {
        for point in Point::ALL {
            for how in How::ALL {
                remove(&self.pins.interface(ifindex, point, &how.to_string()))?;
            }
            self.attached.remove(&(ifindex, point));
            self.problems.remove(&(ifindex, point));
        }
        self.xdp_reasons.remove(&ifindex);
        self.without_xdp.remove(&ifindex);
        self.clsact.remove(&ifindex);
        Ok(())
    }

    /// Interfaces that were given programs, or to which that failed.
    pub fn attached_interfaces(&self) -> BTreeSet<u32> {
        self.attached.keys().chain(self.problems.keys()).map(|(ifindex, _)| *ifindex).collect()
    }

    /// Whether programs hang at all these places of an interface.
    pub fn serves(&self, ifindex: u32, points: &[Point]) -> bool {
        points.iter().all(|point| self.attached.contains_key(&(ifindex, *point)))
    }

    /// Whether filters of ours hang on the interface, as far as is known.
    pub fn has_filters(&self, ifindex: u32) -> bool {
        let at = |point| self.attached.get(&(ifindex, point));
        [Point::In, Point::Out].into_iter().filter_map(at).any(|attachment| attachment.how == How::Clsact)
    }

    /// Interfaces that pins or filters may be left of, from any start.
    pub fn kept_interfaces(&self) -> BTreeSet<u32> {
        let pinned = self.pins.interfaces().into_iter().map(|(_, ifindex, ..)| ifindex);
        pinned.chain(self.clsact.iter().copied()).collect()
    }

    fn note(&mut self, key: (u32, Point), attachment: Option<Attachment>, wanted: &Wanted) {
        let Some(attachment) = attachment else {
            self.attached.remove(&key);
            return;
        };
        if self.before.get(&key) != Some(&attachment) {
            let Attachment { point, program, how } = &attachment;
            tracing::debug!(interface = wanted.name, ifindex = key.0, %point, program, %how, "attached");
        }
        self.attached.insert(key, attachment);
    }

    async fn attach(
        &mut self,
        handle: &mut Handle,
        wanted: &Wanted,
        point: Point,
        name: &str,
        program: &Loaded,
    ) -> Result<Option<Attachment>, DatapathError> {
        let ifindex = wanted.ifindex;
        let attachment = |how| Some(Attachment { point, program: name.to_owned(), how });
        if point == Point::Xdp {
            return Ok(self.xdp(wanted, name, program)?.and_then(attachment));
        }
        // A packet that met our program twice would be taken for a direct connection on a service flow's tuple. When the mechanism changes between
        // two starts, the old attachment goes first.
        match self.tc {
            TcMechanism::Tcx => {
                if self.clsact.contains(&ifindex) {
                    clsact::detach(handle, ifindex, point).await?;
                }
                self.link(wanted, point, How::Tcx, name, program)?;
                Ok(attachment(How::Tcx))
            }
            TcMechanism::Clsact => {
                remove(&self.pins.interface(ifindex, point, "tcx"))?;
                clsact::attach(handle, ifindex, point, name, program).await?;
                self.clsact.insert(ifindex);
                Ok(attachment(How::Clsact))
            }
        }
    }

    async fn detach(&mut self, handle: &mut Handle, ifindex: u32, point: Point) -> Result<(), DatapathError> {
        for how in How::ALL {
            remove(&self.pins.interface(ifindex, point, &how.to_string()))?;
        }
        if point != Point::Xdp && self.clsact.contains(&ifindex) {
            clsact::detach(handle, ifindex, point).await?;
        }
        Ok(())
    }

    fn xdp(&mut self, wanted: &Wanted, name: &str, program: &Loaded) -> Result<Option<How>, DatapathError> {
        let chosen = xdp_mode(self.xdp, wanted.virtual_pair);
        for how in [How::Native, How::Generic].into_iter().filter(|how| chosen != Some(*how)) {
            remove(&self.pins.interface(wanted.ifindex, Point::Xdp, &how.to_string()))?;
        }
        let Some(how) = chosen else { return Ok(None) };
        let attached = self.link(wanted, Point::Xdp, how, name, program);
        let (why, attached) = match attached {
            Ok(()) if how == How::Native => {
                self.xdp_reasons.remove(&wanted.ifindex);
                return Ok(Some(how));
            }
            Ok(()) => ("--xdp-mode is generic".to_owned(), Ok(Some(how))),
            Err(error) if self.xdp == XdpMode::Auto && !error.is_taken() => {
                self.without_xdp.insert(wanted.ifindex);
                let why = format!("native XDP cannot be attached: {error}; the next start of the agent tries it again");
                tracing::info!(interface = wanted.name, why, "served by tc");
                (why, Ok(None))
            }
            // Another program is attached there, or the option asks for XDP.
            Err(error) => ("it cannot be attached: see the problems".to_owned(), Err(error)),
        };
        self.xdp_reasons.insert(wanted.ifindex, why);
        attached
    }

    /// One pinned link: its program replaced if it lives, made new if the interface under it vanished or somebody detached it.
    fn link(&self, wanted: &Wanted, point: Point, how: How, name: &str, program: &Loaded) -> Result<(), DatapathError> {
        let ifindex = wanted.ifindex;
        let path = self.pins.interface(ifindex, point, &how.to_string());
        let failed = || DatapathError::kernel(format!("attach {name} to {} ({how})", wanted.name));
        let target = if point == Point::Xdp { LinkTarget::Xdp { ifindex } } else { LinkTarget::Tcx { ifindex } };
        if let Some(link) = BpfLink::open(&path).map_err(failed())? {
            match link.facts() {
                Ok(facts) if facts.target == target && facts.program_id == program.id => return Ok(()),
                Ok(facts) if facts.target == target => return link.update(program.descriptor()).map_err(failed()),
                _ => remove(&path)?,
            }
        }
        self.pins.check_there()?;
        let link = BpfLink::create(program.descriptor(), ifindex, point.attach_type(), how.flags()).map_err(failed())?;
        link.pin(&path).map_err(failed())
    }
}

/// How XDP is to be attached; `None`: not at all.
fn xdp_mode(asked: XdpMode, virtual_pair: bool) -> Option<How> {
    match asked {
        XdpMode::Off => None,
        XdpMode::Generic => Some(How::Generic),
        // Over a pair of the same host packets come with partial checksums, which XDP can neither see nor keep right.
        XdpMode::Auto if virtual_pair => None,
        // Never generic by itself: that copies each packet first, and tc decides alike.
        XdpMode::Auto | XdpMode::Native => Some(How::Native),
    }
}

fn remove(path: &Path) -> Result<(), DatapathError> {
    bpf_link::unpin(path).map_err(DatapathError::file("remove", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_is_native_or_none_and_never_on_a_pair() {
        assert_eq!(xdp_mode(XdpMode::Auto, false), Some(How::Native));
        assert_eq!(xdp_mode(XdpMode::Auto, true), None);
        assert_eq!(xdp_mode(XdpMode::Native, true), Some(How::Native));
        assert_eq!(xdp_mode(XdpMode::Off, false), None);
    }

    #[test]
    fn names_in_pins_are_read_back() {
        for how in How::ALL {
            assert_eq!(How::parse(&how.to_string()), Some(how));
        }
    }
}
