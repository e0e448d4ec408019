//! The data path tells its subscribers what is attached where and how.

use std::collections::BTreeMap;

use super::{
    Datapath, DatapathError,
    attach::Attacher,
    point::{Point, Role},
    status::{LinkStatus, ProgramSize, Status},
};

impl Datapath {
    /// Tells the subscribers what is attached where and how, if it changed.
    pub(super) fn publish(&self, trouble: Option<&DatapathError>) {
        let mut links: BTreeMap<u32, LinkStatus> = BTreeMap::new();
        for ((ifindex, _), attachment) in &self.attacher.attached {
            let link = links.entry(*ifindex).or_insert_with(|| {
                let (name, role) = self.links.names().get(ifindex).cloned().unzip();
                let served = self.links.served(*ifindex).cloned();
                LinkStatus { ifindex: *ifindex, name: name.unwrap_or_default(), role, served, programs: Vec::new() }
            });
            link.programs.push(attachment.clone());
        }
        let trouble = trouble.map(ToString::to_string);
        let of_node = node_problems(&self.attacher, self.links.names());
        let node_problems: Vec<String> = trouble.iter().chain(of_node).cloned().collect();
        let all = trouble.iter().chain(self.attacher.problems.values()).chain(self.reports.troubles());
        let problems = all.cloned().collect();
        self.reports.publish(|status| {
            let synced = status.synced || (trouble.is_none() && self.loads.is_idle());
            let programs = self.kernel.programs.iter().map(ProgramSize::new).collect();
            let (addresses, absent) = (self.addresses.all().clone(), self.addresses.absent().clone());
            let links = links.into_values().collect();
            let is_moving = self.is_moving();
            let moving = is_moving.then(|| "connections are moving to other tables (map sizes or layout)".to_owned());
            let warnings = self.reports.warnings().cloned().chain(moving).collect();
            let no_external_link = self.reports.no_external_link().cloned();
            let fast_path = self.fast_path.status();
            Status {
                addresses,
                absent,
                synced,
                is_moving,
                links,
                problems,
                node_problems,
                warnings,
                no_external_link,
                fast_path,
                programs,
                ..status.clone()
            }
        });
    }
}

/// The problems with attachments that keep the node from serving. A pod's link is served by the programs of other links, and a link without XDP
/// by tc.
fn node_problems<'a>(
    attacher: &'a Attacher,
    names: &BTreeMap<u32, (String, Role)>,
) -> impl Iterator<Item = &'a String> {
    let is_pods = |ifindex: u32| names.get(&ifindex).is_some_and(|(_, role)| *role == Role::Pod);
    let is_tcs = |ifindex, point| point == Point::Xdp && attacher.serves(ifindex, &[Point::In, Point::Out]);
    let of_node = move |(ifindex, point): (u32, Point)| !is_pods(ifindex) && !is_tcs(ifindex, point);
    attacher.problems.iter().filter(move |(key, _)| of_node(**key)).map(|(_, problem)| problem)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{
        super::{
            attach::{Attachment, How},
            features::TcMechanism,
            pins::Pins,
            settings::XdpMode,
        },
        *,
    };

    #[test]
    fn the_node_is_at_fault_where_nothing_serves_a_link() {
        let pins = Pins::under(Path::new("/nonexistent"));
        let mut attacher = Attacher::new(pins, TcMechanism::Tcx, XdpMode::Auto);
        let names = [(1, Role::External), (2, Role::External), (3, Role::Pod)];
        let names = names.map(|(ifindex, role)| (ifindex, (format!("link{ifindex}"), role))).into();
        let problem = |ifindex, point| ((ifindex, point), format!("{ifindex} {point}"));
        let problems = [(1, Point::Xdp), (2, Point::In), (2, Point::Xdp), (3, Point::Out)];
        attacher.problems = problems.map(|(ifindex, point)| problem(ifindex, point)).into();
        let serve = |attacher: &mut Attacher, point| {
            let attachment = Attachment { point, program: "node".to_owned(), how: How::Tcx };
            attacher.attached.insert((1, point), attachment);
        };
        let found = |attacher: &Attacher| node_problems(attacher, &names).cloned().collect::<Vec<_>>();
        serve(&mut attacher, Point::In);
        assert_eq!(found(&attacher), ["1 xdp", "2 in", "2 xdp"], "tc meets one direction alone");
        serve(&mut attacher, Point::Out);
        assert_eq!(found(&attacher), ["2 in", "2 xdp"], "tc serves the first link");
    }
}
