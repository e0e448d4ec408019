//! tc filters of the clsact qdisc, for kernels without TCX: a fixed place each, found again after a restart, replaced in place.

use netlink_packet_core::{NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL};
use netlink_packet_route::{
    RouteNetlinkMessage,
    tc::{TcAttribute, TcBpfFlags, TcFilterBpfOption, TcHandle, TcHeader, TcMessage, TcOption},
};
use rtnetlink::Handle;

use super::{DatapathError, bpf_link::descriptor, loaded::Loaded, point::Point};
use lb_netlink::{route::request, unless};

/// Place among the filters: before the 49152 that tc gives to filters without one, behind those with a low number.
const PRIORITY: u16 = 0xba;
const HANDLE: u32 = 0xba11_a571;
/// Our filters' names begin so; a filter in our place with another name is not ours.
const NAME_PREFIX: &str = "ballast:";
/// `ETH_P_ALL` in network order, as `tcm_info` holds it.
const ALL_PROTOCOLS: u32 = 3_u16.to_be() as u32;

/// A bpf filter of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Filter {
    pub program: String,
    pub program_id: u32,
}

/// What stands on one side of an interface.
#[derive(Debug, Default)]
pub(super) struct Side {
    pub ours: Option<Filter>,
    /// Name of the foreign filter in our place.
    pub squatter: Option<String>,
    /// Filters of others, anywhere.
    pub foreign: usize,
}

/// Attaches a program, or replaces the one that is there in one step.
pub(super) async fn attach(
    handle: &mut Handle,
    ifindex: u32,
    point: Point,
    name: &str,
    program: &Loaded,
) -> Result<(), DatapathError> {
    let action = || format!("attach {name} to interface {ifindex} by clsact");
    let found = side(handle, ifindex, point).await?;
    if found.ours.is_some_and(|filter| filter.program_id == program.id) {
        return Ok(());
    }
    if let Some(squatter) = found.squatter {
        let reason = format!("the filter {squatter} of another program holds our place (pref {PRIORITY}); remove it");
        return Err(DatapathError::Netlink { action: action(), reason });
    }
    add_qdisc(handle, ifindex).await?;
    let mut message = at(ifindex, parent(point), HANDLE.into(), u32::from(PRIORITY) << 16 | ALL_PROTOCOLS);
    message.attributes = vec![
        TcAttribute::Kind("bpf".to_owned()),
        TcAttribute::Options(vec![
            TcOption::Bpf(TcFilterBpfOption::ProgFd(descriptor(program.descriptor()))),
            TcOption::Bpf(TcFilterBpfOption::ProgName(format!("{NAME_PREFIX}{name}"))),
            TcOption::Bpf(TcFilterBpfOption::Flags(TcBpfFlags::DirectAction)),
        ]),
    ];
    // Without NLM_F_EXCL the kernel replaces the program of a filter in this place.
    request(handle, RouteNetlinkMessage::NewTrafficFilter(message), NLM_F_CREATE)
        .await
        .map_err(DatapathError::kernel(action()))?;
    Ok(())
}

/// Removes our filter if it is there, and the qdisc if nothing is left on it. True if a filter was removed.
pub(super) async fn detach(handle: &mut Handle, ifindex: u32, point: Point) -> Result<bool, DatapathError> {
    let action = || format!("remove a filter from interface {ifindex}");
    if side(handle, ifindex, point).await?.ours.is_none() {
        return Ok(false);
    }
    let message = at(ifindex, parent(point), HANDLE.into(), u32::from(PRIORITY) << 16 | ALL_PROTOCOLS);
    request(handle, RouteNetlinkMessage::DelTrafficFilter(message), 0)
        .await
        .map_err(DatapathError::kernel(action()))?;
    let (ingress, egress) = (side(handle, ifindex, Point::In).await?, side(handle, ifindex, Point::Out).await?);
    if [ingress, egress].iter().all(|side| side.ours.is_none() && side.foreign == 0) {
        let mut qdisc = at(ifindex, TcHandle::CLSACT, QDISC, 0);
        qdisc.attributes = vec![TcAttribute::Kind(CLSACT.to_owned())];
        request(handle, RouteNetlinkMessage::DelQueueDiscipline(qdisc), 0)
            .await
            .map_err(DatapathError::kernel(action()))?;
    }
    Ok(true)
}

/// What stands on one side of an interface; nothing, if it has no clsact qdisc or is gone.
pub(super) async fn side(handle: &mut Handle, ifindex: u32, point: Point) -> Result<Side, DatapathError> {
    let message = RouteNetlinkMessage::GetTrafficFilter(at(ifindex, parent(point), TcHandle::UNSPEC, 0));
    let answers = match request(handle, message, NLM_F_DUMP).await {
        Ok(answers) => answers,
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENODEV | libc::ENOENT)) => {
            return Ok(Side::default());
        }
        Err(error) => return Err(DatapathError::kernel(format!("list the filters of interface {ifindex}"))(error)),
    };
    let filters = answers.into_iter().filter_map(|answer| {
        if let RouteNetlinkMessage::NewTrafficFilter(filter) = answer { Some(filter) } else { None }
    });
    Ok(sort_out(filters))
}

/// Indexes of the interfaces with a clsact qdisc.
pub(super) async fn interfaces(handle: &mut Handle) -> Result<Vec<u32>, DatapathError> {
    let all = qdiscs(handle).await?;
    Ok(all.into_iter().filter(|(_, kind)| kind == CLSACT).map(|(ifindex, _)| ifindex).collect())
}

/// Every qdisc: its interface's index and its kind.
pub(super) async fn qdiscs(handle: &mut Handle) -> Result<Vec<(u32, String)>, DatapathError> {
    let message = RouteNetlinkMessage::GetQueueDiscipline(TcMessage::with_index(0));
    let answers = request(handle, message, NLM_F_DUMP).await.map_err(DatapathError::kernel("list the qdiscs"))?;
    Ok(answers
        .into_iter()
        .filter_map(|answer| {
            let RouteNetlinkMessage::NewQueueDiscipline(qdisc) = answer else { return None };
            let mut attributes = qdisc.attributes.into_iter();
            let kind = attributes.find_map(|it| if let TcAttribute::Kind(kind) = it { Some(kind) } else { None });
            Some((u32::try_from(qdisc.header.index).ok()?, kind?))
        })
        .collect())
}

/// Kind of the qdisc that holds nothing but filters.
pub(super) const CLSACT: &str = "clsact";
const QDISC: TcHandle = TcHandle { major: 0xffff, minor: 0 };

async fn add_qdisc(handle: &mut Handle, ifindex: u32) -> Result<(), DatapathError> {
    let mut message = at(ifindex, TcHandle::CLSACT, QDISC, 0);
    message.attributes = vec![TcAttribute::Kind(CLSACT.to_owned())];
    let added = request(handle, RouteNetlinkMessage::NewQueueDiscipline(message), NLM_F_CREATE | NLM_F_EXCL).await;
    unless(libc::EEXIST, added.map(drop))
        .map(drop)
        .map_err(DatapathError::kernel(format!("add the clsact qdisc to interface {ifindex}")))
}

fn sort_out(filters: impl Iterator<Item = TcMessage>) -> Side {
    let mut side = Side::default();
    for filter in filters.filter(|filter| filter.header.handle != TcHandle::UNSPEC) {
        let in_our_place = filter.header.handle == HANDLE.into() && filter.header.info >> 16 == u32::from(PRIORITY);
        let found = describe(&filter);
        match found.program.strip_prefix(NAME_PREFIX) {
            Some(program) if in_our_place => side.ours = Some(Filter { program: program.to_owned(), ..found }),
            _ => {
                side.foreign += 1;
                if in_our_place {
                    side.squatter = Some(found.program);
                }
            }
        }
    }
    side
}

fn describe(filter: &TcMessage) -> Filter {
    let attributes = filter.attributes.iter();
    let options = attributes.filter_map(|it| if let TcAttribute::Options(options) = it { Some(options) } else { None });
    let mut found = Filter { program: String::new(), program_id: 0 };
    for option in options.flatten() {
        if let TcOption::Bpf(TcFilterBpfOption::ProgName(name)) = option {
            found.program.clone_from(name);
        } else if let TcOption::Bpf(TcFilterBpfOption::ProgId(id)) = option {
            found.program_id = *id;
        }
    }
    found
}

fn parent(point: Point) -> TcHandle {
    let minor = if point == Point::Out { TcHandle::MIN_EGRESS } else { TcHandle::MIN_INGRESS };
    TcHandle { major: TcHandle::CLSACT.major, minor }
}

fn at(ifindex: u32, parent: TcHandle, handle: TcHandle, info: u32) -> TcMessage {
    // An interface index is never above i32::MAX: the kernel counts it as a positive int.
    let index = i32::try_from(ifindex).unwrap_or(i32::MAX);
    TcMessage::from_parts(TcHeader { index, handle, parent, info, ..TcHeader::default() }, Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(handle: u32, priority: u16, name: &str) -> TcMessage {
        let mut message = at(3, parent(Point::In), handle.into(), u32::from(priority) << 16 | ALL_PROTOCOLS);
        message.attributes = vec![TcAttribute::Options(vec![
            TcOption::Bpf(TcFilterBpfOption::ProgName(name.to_owned())),
            TcOption::Bpf(TcFilterBpfOption::ProgId(77)),
        ])];
        message
    }

    #[test]
    fn only_a_filter_with_our_name_in_our_place_is_ours() {
        let side =
            sort_out([filter(HANDLE, PRIORITY, "ballast:pod_in"), filter(1, 49_152, "cil_from_container")].into_iter());
        assert_eq!(side.ours, Some(Filter { program: "pod_in".to_owned(), program_id: 77 }));
        assert_eq!((side.foreign, side.squatter), (1, None));
    }

    #[test]
    fn a_filter_of_others_in_our_place_is_seen() {
        let side = sort_out([filter(HANDLE, PRIORITY, "other")].into_iter());
        assert_eq!((side.ours, side.squatter, side.foreign), (None, Some("other".to_owned()), 1));
    }
}
