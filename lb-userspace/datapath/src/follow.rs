//! Follows the interfaces of this network namespace as they come, go and change: the runtime of the data path.

use std::{collections::BTreeSet, time::Duration};

use futures::{Stream, StreamExt as _, TryStreamExt as _, channel::mpsc::UnboundedReceiver};
use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage, route::RouteMessage};
use netlink_sys::{AsyncSocket as _, SocketAddr};
use rtnetlink::{Handle, MulticastGroup};
use tokio::time::Instant;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{
    Datapath, DatapathError,
    attach::Attacher,
    fault::Fault,
    faults,
    net::{Effect, Net, name_of},
    roles::Roles,
    serving, sources, switch,
};

/// Changes come in bursts (a link, its address, its flags): gathered this long.
const GATHER: Duration = Duration::from_millis(20);
/// Everything is looked at again this often: heals what was missed, detached by others, or refused before.
const ROUND: Duration = Duration::from_secs(10);
/// What the fast path would skip is looked for again this often.
const LOOK: Duration = Duration::from_secs(1);
/// Pause before a new attempt after a failed one.
const RETRY: Duration = Duration::from_millis(500);

const GROUPS: [MulticastGroup; 6] = [
    MulticastGroup::Link,
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv6Ifaddr,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv6Route,
    MulticastGroup::Tc,
];

type Notifications = UnboundedReceiver<(NetlinkMessage<RouteNetlinkMessage>, SocketAddr)>;

/// How much must be looked at again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// What changed, known from its messages.
    Changes,
    /// All interfaces and attachments.
    Round,
    /// All of that and the routes: messages were lost.
    Everything,
}

/// Two sockets: requests must not wait behind, or be lost among, notifications.
struct Session {
    notifications: Notifications,
    handle: Handle,
    _connections: [AbortOnDropHandle<()>; 2],
}

impl Datapath {
    /// Attaches programs to the cgroup and to the interfaces that need them as soon as they are loaded, and follows every change,
    /// until `stop`.
    ///
    /// Interfaces that appear are attached within a second. When it returns, everything stays attached: traffic flows while no
    /// agent runs. Needs a tokio runtime whose threads are in the network namespace in which the data path was opened.
    pub async fn follow_links(&mut self, stop: CancellationToken) -> Result<(), DatapathError> {
        self.finish_loading().await?;
        let mut net = Net::new(&self.settings.pod_interfaces, &self.settings.external_interfaces);
        loop {
            let ended = tokio::select! {
                () = stop.cancelled() => return Ok(()),
                ended = self.session(&mut net) => ended,
            };
            if let Err(error) = ended {
                tracing::warn!(%error, "lost the view of the interfaces; looking again");
                self.publish(Some(&error));
            }
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = tokio::time::sleep(RETRY) => {}
            }
        }
    }

    async fn session(&mut self, net: &mut Net) -> Result<(), DatapathError> {
        let mut session = Session::connect(self.settings.netlink_buffer_bytes)?;
        let mut due = Some((Due::Everything, Instant::now()));
        let mut next_round = Instant::now() + ROUND;
        let mut next_look = Instant::now() + LOOK;
        loop {
            let (work, at) = due.unwrap_or((Due::Round, next_round));
            tokio::select! {
                biased;
                message = session.notifications.next() => {
                    let Some((message, _)) = message else {
                        let action = "follow the interfaces".to_owned();
                        return Err(DatapathError::Netlink { action, reason: "the socket closed".to_owned() });
                    };
                    if let Some(new) = take(net, &message, &self.attacher) {
                        let at = due.map_or_else(|| Instant::now() + GATHER, |(_, at)| at);
                        due = Some((due.map_or(new, |(known, _)| known.max(new)), at.min(next_round)));
                    }
                }
                Ok(()) = self.surroundings.1.changed() => due = Some((due.map_or(Due::Changes, |(known, _)| known), Instant::now())),
                loaded = self.loads.end_later() => {
                    self.add_later(loaded);
                    due = Some((due.map_or(Due::Changes, |(known, _)| known), Instant::now()));
                }
                moved = switch::moved(&mut self.switching) => {
                    self.end_moving(moved)?;
                    due = Some((Due::Round, Instant::now()));
                }
                Some(question) = self.questions.1.recv() => {
                    session.list(net, Due::Round).await?;
                    let faults = self.answer(&mut session.handle, net, question.dry_run).await?;
                    // Who asked may have gone.
                    let _ = question.reply.send(faults);
                }
                () = tokio::time::sleep_until(next_look) => {
                    self.look_for_skipped(&mut session.handle).await?;
                    next_look = Instant::now() + LOOK;
                }
                () = tokio::time::sleep_until(at) => {
                    if work >= Due::Round {
                        session.list(net, work).await?;
                        next_round = Instant::now() + ROUND;
                    }
                    self.settle(&mut session.handle, net, work).await?;
                    due = self.go_on_switching()?.map(|at| (Due::Round, at));
                    self.publish(None);
                }
            }
        }
    }

    /// Faults of this moment; put right by a round, unless in a dry run.
    async fn answer(&mut self, handle: &mut Handle, net: &Net, dry_run: bool) -> Result<Vec<Fault>, DatapathError> {
        if dry_run {
            let mut faults = faults::plain(self.look_for_faults(handle, net).await?);
            faults.extend(self.sources.check(false)?);
            return Ok(faults);
        }
        self.settle(handle, net, Due::Round).await?;
        Ok(self.reports.take_faults())
    }

    /// Makes the attachments and the `links` map what the interfaces ask for.
    async fn settle(&mut self, handle: &mut Handle, net: &Net, work: Due) -> Result<(), DatapathError> {
        let Roles { links: wanted, no_external_link } = self.roles(net);
        let mut faults = Vec::new();
        if work >= Due::Round {
            // While tables are switched, this agent changes the attachments by itself.
            if self.switching.is_none() {
                faults = self.look_for_faults(handle, net).await?;
                self.repair_at_once(&mut faults);
            }
            self.attacher.distrust(handle).await?;
        }
        self.addresses.update(&net.reachable(), work >= Due::Round);
        let mut troubles = Vec::new();
        // Before programs are attached that need it.
        let (written, trouble) = self.write_sources(net, work);
        troubles.extend(trouble.map(|error| error.to_string()));
        for ifindex in self.known(work)? {
            let left = if !net.contains(ifindex) {
                self.leave(ifindex)
            } else if work >= Due::Round && !wanted.contains_key(&ifindex) {
                // Only in a round: an address that a lease takes away for a moment takes no program away.
                self.release(handle, ifindex).await
            } else {
                Ok(())
            };
            troubles.extend(left.err().map(|error| format!("interface {ifindex}: {error}")));
        }
        let mut in_order: Vec<_> = wanted.values().collect();
        // Answers leave by a bridge: its program is there before those of its ports.
        in_order.sort_by_key(|link| link.part);
        for link in in_order {
            match self.links.map(&mut self.kernel, link) {
                Ok(()) => self.attacher.ensure(handle, &self.kernel.programs, link).await,
                Err(error) => troubles.push(format!("{}: {error}", link.name)),
            }
            // Each attachment waits for an RCU grace period: let others run in between.
            tokio::task::yield_now().await;
        }
        self.links.note_attached(&wanted, &self.attacher);
        for link in wanted.values() {
            // The failure of the first attempt above is among the troubles.
            let _ = self.links.map(&mut self.kernel, link);
        }
        let surroundings = self.surroundings.1.borrow().clone();
        let mut warnings = serving::warnings(&wanted, &net.candidates(), &written, &surroundings, serving::forwards);
        if work >= Due::Round {
            self.outside_cgroup = self.cgroup.as_ref().and_then(|root| root.outside());
        }
        warnings.extend(self.outside_cgroup.clone());
        warnings.extend(serving::renamed(net));
        self.reports.set_warnings(warnings);
        self.reports.set_no_external_link(no_external_link.map(|none| none.to_string()));
        self.keep_faults(faults);
        self.links.note_names(wanted);
        self.reports.set_troubles(troubles);
        self.load_missing()?;
        self.publish(None);
        if self.loads.is_idle() && self.switching.is_none() {
            self.kernel.program_pins.remove_others(Instant::now());
        }
        self.look_for_skipped(handle).await
    }

    /// The links that get programs, as far as the networks of pods are known.
    fn roles(&self, net: &Net) -> Roles {
        let surroundings = self.surroundings.1.borrow();
        let named = surroundings.pods.iter().flatten().chain(&self.settings.cluster_cidrs);
        net.roles(|address| named.clone().any(|network| network.contains(&address)))
    }

    /// Gives up what is kept of an interface that is gone. One that is there, though no list names it, could not be read from a list:
    /// its programs stay.
    fn leave(&mut self, ifindex: u32) -> Result<(), DatapathError> {
        if name_of(ifindex).is_some() {
            let reason = "the kernel's list does not name it, though it is there; its programs stay".to_owned();
            return Err(DatapathError::Netlink { action: "list the interfaces".to_owned(), reason });
        }
        self.attacher.forget(ifindex)?;
        self.links.unmap(&mut self.kernel, ifindex)
    }

    async fn release(&mut self, handle: &mut Handle, ifindex: u32) -> Result<(), DatapathError> {
        self.attacher.release(handle, ifindex).await?;
        self.links.unmap(&mut self.kernel, ifindex)
    }

    /// Opens the fast path, or closes it, as what it would skip has come or gone.
    async fn look_for_skipped(&mut self, handle: &mut Handle) -> Result<(), DatapathError> {
        let ours: BTreeSet<u32> = self.kernel.programs.iter().map(|(_, program)| program.id).collect();
        if self
            .fast_path
            .refresh(handle, self.links.names(), &ours, &mut self.kernel.fast_path, &mut self.kernel.bridge_ports)
            .await?
        {
            self.publish(None);
        }
        Ok(())
    }

    /// Writes the tables of client networks and of SNAT addresses; in a round they are compared first. Entries without room are left
    /// out, and the rest is done.
    fn write_sources(&mut self, net: &Net, work: Due) -> (sources::Wanted, Option<DatapathError>) {
        let looked = if work >= Due::Round { self.sources.check(true) } else { Ok(Vec::new()) };
        let (faults, unread) = looked.map_or_else(|error| (Vec::new(), Some(error)), |faults| (faults, None));
        let wanted = sources::wanted(
            &net.candidates(),
            self.addresses.all(),
            &self.settings,
            &self.surroundings.1.borrow_and_update().clone(),
            &self.sources.held(),
        );
        let unwritten = self.sources.set(&wanted).err();
        for fault in faults {
            self.reports.keep_fault(Fault { is_repaired: true, ..fault });
        }
        (wanted, unread.or(unwritten))
    }

    /// Interfaces that something of ours is kept for; a round asks the kernel instead of our memory.
    fn known(&mut self, work: Due) -> Result<BTreeSet<u32>, DatapathError> {
        let mut known = self.attacher.attached_interfaces();
        if work >= Due::Round {
            self.links.read(&self.kernel)?;
            known.extend(self.attacher.kept_interfaces());
        }
        known.extend(self.links.mapped());
        Ok(known)
    }
}

impl Session {
    fn connect(buffer_bytes: usize) -> Result<Self, DatapathError> {
        let failed = || DatapathError::kernel("open a netlink socket");
        let (mut connection, _, notifications) = rtnetlink::new_multicast_connection(&GROUPS).map_err(failed())?;
        let socket = connection.socket_mut().socket_mut();
        // Root may exceed the system's limit; without that right the limit holds.
        if socket2::SockRef::from(&*socket).set_recv_buffer_size(buffer_bytes).is_err() {
            tracing::debug!(buffer_bytes, "the netlink receive buffer keeps its size");
        }
        let events = AbortOnDropHandle::new(tokio::spawn(connection));
        let (connection, handle, _) = rtnetlink::new_connection().map_err(failed())?;
        let requests = AbortOnDropHandle::new(tokio::spawn(connection));
        Ok(Self { notifications, handle, _connections: [events, requests] })
    }

    /// Lists interfaces and addresses, and routes if messages were lost.
    async fn list(&mut self, net: &mut Net, work: Due) -> Result<(), DatapathError> {
        net.restart_listing();
        let failed = || DatapathError::netlink("list the interfaces, addresses and routes");
        let links = self.handle.link().get().execute();
        read(net, links, RouteNetlinkMessage::NewLink).await.map_err(failed())?;
        let addresses = self.handle.address().get().execute();
        read(net, addresses, RouteNetlinkMessage::NewAddress).await.map_err(failed())?;
        if work == Due::Everything {
            for family in [AddressFamily::Inet, AddressFamily::Inet6] {
                let mut all = RouteMessage::default();
                all.header.address_family = family;
                let routes = self.handle.route().get(all).execute();
                read(net, routes, RouteNetlinkMessage::NewRoute).await.map_err(failed())?;
            }
        }
        net.finish_listing();
        Ok(())
    }
}

async fn read<T>(
    net: &mut Net,
    mut lines: impl Stream<Item = Result<T, rtnetlink::Error>> + Unpin,
    message: fn(T) -> RouteNetlinkMessage,
) -> Result<(), rtnetlink::Error> {
    while let Some(line) = lines.try_next().await? {
        net.take(&message(line));
    }
    Ok(())
}

#[allow(clippy::wildcard_enum_match_arm, reason = "messages of the kernel, of which few matter")]
fn take(net: &mut Net, message: &NetlinkMessage<RouteNetlinkMessage>, attacher: &Attacher) -> Option<Due> {
    match &message.payload {
        NetlinkPayload::InnerMessage(
            RouteNetlinkMessage::DelQueueDiscipline(gone) | RouteNetlinkMessage::DelTrafficFilter(gone),
        ) => u32::try_from(gone.header.index).is_ok_and(|ifindex| attacher.has_filters(ifindex)).then_some(Due::Round),
        NetlinkPayload::InnerMessage(message) => match net.take(message) {
            Effect::Nothing => None,
            Effect::Changed => Some(Due::Changes),
            Effect::Relist => Some(Due::Round),
        },
        NetlinkPayload::Overrun(_) => {
            tracing::warn!("the kernel lost notifications about interfaces (ENOBUFS); listing everything again");
            Some(Due::Everything)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use netlink_packet_core::NetlinkHeader;

    use super::super::{features::TcMechanism, pins::Pins, settings::XdpMode};
    use super::*;

    #[test]
    fn lost_notifications_ask_for_everything() {
        let overrun = NetlinkMessage::new(NetlinkHeader::default(), NetlinkPayload::Overrun(Vec::new()));
        let attacher = Attacher::new(Pins::under(Path::new("/")), TcMechanism::Clsact, XdpMode::Off);
        assert_eq!(take(&mut Net::default(), &overrun, &attacher), Some(Due::Everything));
    }
}
