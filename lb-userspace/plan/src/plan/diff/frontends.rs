//! The slot ranges of a service port, the frontends that lead there, and the clients that they admit.

use std::collections::{BTreeMap, BTreeSet};

use lb_common::abi::{self, service_flags};

use super::{Draft, Obstacle, Selected, full_for};
use crate::plan::{
    BackendId, Desired, DesiredService, Frontend, MaglevTables, Op, Part, Range, Ranges, Set, Use,
    layout::{Member, layout, maglev_slots},
    restore::ranges_of,
};
use lb_model::{Family, Refusal};

/// What the slots of one set hold, one after the other: ids and generations of backends.
type Targets = Vec<(BackendId, u32)>;

/// The room of a change that needs no more slots than its frontends lead to already.
#[derive(Clone, Copy, Debug)]
struct Room {
    /// Slots that are to be given back for those that are taken.
    held: u32,
}

impl Draft<'_> {
    pub(super) fn frontends(
        &mut self,
        wanted: &DesiredService,
        desired: &Desired,
        selected: &[Selected],
        tables: &mut MaglevTables,
    ) -> Result<(), Obstacle> {
        let mut generation = self.programmed.slots().generation();
        let (mut promised, mut computed) = (Vec::new(), BTreeSet::new());
        for family in Family::ALL {
            let frontends = self.of_family(family, wanted, desired);
            if frontends.is_empty() {
                continue;
            }
            let new = frontends.keys().filter(|frontend| !self.programmed.frontends().contains(frontend)).count();
            self.check_room(Part::Services(family), new)?;
            // A set that no frontend uses takes no slots.
            let used: BTreeSet<Set> = frontends.values().flat_map(|uses| [uses.inside, uses.outside]).collect();
            let of_set =
                |set: Set| selected.iter().filter(move |one| one.id.family == family && one.endpoint.is_in(set));
            let mut room = self.room(family);
            for set in &used {
                self.check_table(wanted, of_set(*set).count(), &promised, room)?;
            }
            let mut sets: BTreeMap<Set, Targets> = BTreeMap::new();
            for set in used {
                computed.insert((family, set));
                let members: Vec<Member> = of_set(set).map(Member::from).collect();
                sets.insert(set, self.targets(wanted, (family, set), &members, tables)?);
            }
            let (ranges, generation) = if let Some(written) = self.written(&frontends, &sets) {
                written
            } else {
                generation = generation.checked_add(1).unwrap_or(1);
                (self.write(&mut promised, &mut room, generation, &sets)?, generation)
            };
            for (frontend, uses) in frontends {
                let entry = frontend.entry(self.id, generation, uses, ranges, wanted);
                if self.programmed.frontends().get(&frontend) != Some(&entry) {
                    self.ops.push(Op::WriteFrontend { frontend, entry, uses });
                }
            }
        }
        tables.keep(self.key, &computed);
        Ok(())
    }

    fn targets(
        &self,
        wanted: &DesiredService,
        set: (Family, Set),
        members: &[Member],
        tables: &mut MaglevTables,
    ) -> Result<Targets, Obstacle> {
        let maglev = |size| tables.get(self.key, set, members, size).map(|slots| slots.to_vec());
        let indices = layout(wanted.scheduler, wanted.maglev_size, wanted.slots_max, members, maglev);
        let member = |index: &u32| members.get(*index as usize).map(|member| (member.id, member.generation));
        Ok(indices.ok_or(Obstacle::Unfinished)?.iter().filter_map(member).collect())
    }

    /// The frontends that are wanted, and those that are ours until another service takes them over: these must not lead to what
    /// we retire, and stay what they are.
    fn of_family(&self, family: Family, wanted: &DesiredService, desired: &Desired) -> BTreeMap<Frontend, Use> {
        let kept = self
            .kept(wanted, desired)
            .filter_map(|frontend| Some((frontend, self.programmed.frontends().uses(&frontend)?)));
        let wanted = wanted.frontends.iter().map(|(frontend, uses)| (*frontend, *uses));
        wanted.chain(kept).filter(|(frontend, _)| Family::of(frontend.address) == family).collect()
    }

    /// Frontends that are still ours, but wanted by another service.
    fn kept<'a>(&'a self, wanted: &'a DesiredService, desired: &'a Desired) -> impl Iterator<Item = Frontend> + 'a {
        let ours = self.service.into_iter().flat_map(|service| &service.frontends).copied();
        ours.filter(|frontend| !wanted.frontends.contains_key(frontend) && desired.owners.contains_key(frontend))
    }

    /// What the frontends of one family hold already: ranges of no more slots than this may take the room that is kept free.
    fn room(&self, family: Family) -> Room {
        let ours = self.service.into_iter().flat_map(|service| &service.frontends);
        let of_family = ours.filter(|frontend| Family::of(frontend.address) == family);
        let entries = of_family.filter_map(|frontend| self.programmed.frontends().get(frontend));
        let ranges: BTreeSet<Range> = entries.flat_map(ranges_of).collect();
        Room { held: ranges.iter().map(|range| range.count).sum() }
    }

    /// A free range of this size beside those that are promised already.
    fn find(&self, count: u32, promised: &[Range], room: &mut Room) -> Result<Range, Refusal> {
        let is_kept = count <= room.held;
        room.held = room.held.saturating_sub(count);
        let found = self.programmed.slots().find_free(count, promised, is_kept);
        found.ok_or_else(|| full_for(self.key, Part::Slots, self.programmed))
    }

    /// A table that finds no room is not computed: neither now, nor with each retry.
    fn check_table(
        &self,
        wanted: &DesiredService,
        members: usize,
        promised: &[Range],
        mut room: Room,
    ) -> Result<(), Refusal> {
        let members = u32::try_from(members).unwrap_or(u32::MAX);
        let Some(count) = maglev_slots(wanted.scheduler, wanted.maglev_size, wanted.slots_max, members) else {
            return Ok(());
        };
        let ours = self.service.into_iter().flat_map(|service| &service.frontends);
        let mut ranges = ours.filter_map(|frontend| self.programmed.frontends().get(frontend)).flat_map(ranges_of);
        if ranges.any(|range| range.count == count) {
            return Ok(());
        }
        self.find(count, promised, &mut room).map(|_| ())
    }

    /// The ranges that already hold these targets, all of one generation, and that frontends of ours lead to.
    fn written(&self, frontends: &BTreeMap<Frontend, Use>, sets: &BTreeMap<Set, Targets>) -> Option<(Ranges, u32)> {
        let service = self.service?;
        let ours = frontends.keys().filter(|frontend| service.frontends.contains(frontend));
        let entries: Vec<&abi::Service> =
            ours.filter_map(|frontend| self.programmed.frontends().get(frontend)).collect();
        let generations: BTreeSet<u32> = entries.iter().map(|entry| entry.generation).collect();
        generations.into_iter().find_map(|generation| {
            let of_generation = entries.iter().filter(|entry| entry.generation == generation);
            let known: BTreeSet<Range> = of_generation.flat_map(|entry| ranges_of(entry)).collect();
            let mut ranges = Ranges::default();
            for (set, targets) in sets.iter().filter(|(_, targets)| !targets.is_empty()) {
                let slots = self.slots(targets, generation);
                let holds = |range: &&Range| {
                    range.count as usize == slots.len() && self.programmed.slots().get(range.base) == Some(&slots)
                };
                let range = *known.iter().find(holds)?;
                put(&mut ranges, *set, range);
            }
            Some((ranges, generation))
        })
    }

    /// Writes the sets into ranges of their own; two that are the same share one.
    fn write(
        &mut self,
        promised: &mut Vec<Range>,
        room: &mut Room,
        generation: u32,
        sets: &BTreeMap<Set, Targets>,
    ) -> Result<Ranges, Refusal> {
        let (mut ranges, mut before) = (Ranges::default(), None::<(&Targets, Range)>);
        for (set, targets) in sets.iter().filter(|(_, targets)| !targets.is_empty()) {
            let range = match before {
                Some((same, range)) if same == targets => range,
                _ => {
                    let count = u32::try_from(targets.len()).unwrap_or(u32::MAX);
                    let range = self.find(count, promised, room)?;
                    promised.push(range);
                    self.ops.push(Op::WriteSlots { base: range.base, slots: self.slots(targets, generation) });
                    range
                }
            };
            before = Some((targets, range));
            put(&mut ranges, *set, range);
        }
        Ok(ranges)
    }

    fn slots(&self, targets: &Targets, generation: u32) -> Vec<abi::Slot> {
        let slot = |(backend, backend_generation): &(BackendId, u32)| abi::Slot {
            backend: backend.id,
            backend_generation: *backend_generation,
            service: self.id,
            generation,
        };
        targets.iter().map(slot).collect()
    }

    /// Frontends of ours that nobody wants, or all if we are not wanted.
    pub(super) fn remove_frontends(&mut self, desired: Option<&Desired>) {
        let Some(service) = self.service else { return };
        for frontend in &service.frontends {
            if desired.is_none_or(|desired| !desired.owners.contains_key(frontend)) {
                self.ops.push(Op::RemoveFrontend { frontend: *frontend });
            }
        }
    }

    /// The networks that our frontends admit: new ones before a frontend asks for them, old ones as long as one does.
    pub(super) fn sources(&mut self, wanted: Option<&DesiredService>, desired: &Desired) -> Result<(), Refusal> {
        let none = BTreeSet::new();
        let written = self.service.map_or(&none, |service| &service.sources);
        let networks = wanted.map_or(&none, |wanted| &wanted.sources);
        for family in Family::ALL {
            let new = networks.difference(written).filter(|network| Family::of(network.addr()) == family).count();
            self.check_room(Part::Sources(family), new)?;
        }
        let id = self.id;
        self.ops.extend(networks.difference(written).map(|network| Op::WriteSource { id, network: *network }));
        let asks = |frontend: Frontend| {
            let entry = self.programmed.frontends().get(&frontend);
            entry.is_some_and(|entry| entry.flags & service_flags::SOURCE_RANGES != 0)
        };
        if !wanted.is_some_and(|wanted| self.kept(wanted, desired).any(asks)) {
            self.ops.extend(written.difference(networks).map(|network| Op::RemoveSource { id, network: *network }));
        }
        Ok(())
    }
}

fn put(ranges: &mut Ranges, set: Set, range: Range) {
    match set {
        Set::Cluster => ranges.cluster = range,
        Set::Local => ranges.local = range,
    }
}
