//! The memory store stands for the maps in every test of the control plane: here both get the same, and hold the same.

mod calls;

use std::{collections::BTreeMap, net::SocketAddr, path::Path, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use aya::EbpfLoader;
use lb_common::abi::{Backend, ConnectKey, ConnectTimes, Slot, backend_flags, backend_state, map_name, stat_kind};
use lb_common::map;
use lb_model::{Family, Monotonic, Snapshot};
use lb_objects::{
    convert,
    manifest::{self, Object},
};
use lb_plan::{
    apply::{KernelStore, MemoryStore, Programmer, Report, Store},
    plan::{BackendId, BackendRecord, Loaded, NodeFacts, Op, Part, PlanSettings},
};
use lb_tables::Pinned;
use lb_tests::test_run::object;
use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
};

const SIZES: [(&str, u32); 15] = [
    (map_name::SERVICES4, 16),
    (map_name::SERVICES6, 16),
    (map_name::SLOTS, 64),
    (map_name::BACKENDS4, 16),
    (map_name::BACKENDS6, 16),
    (map_name::FLOWS4, 64),
    (map_name::FLOWS6, 64),
    (map_name::SOCKETS4, 64),
    (map_name::SOCKETS6, 64),
    (map_name::NAMES, 16),
    (map_name::STATS, 64),
    (map_name::SOURCES4, 16),
    (map_name::SOURCES6, 16),
    (map_name::VIPS4, 16),
    (map_name::VIPS6, 16),
];

fn manifest_of(endpoints4: &str, endpoints6: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Service
metadata: {{name: web}}
spec: {{clusterIPs: [10.96.0.1, 'fd00::1'], sessionAffinity: ClientIP, ports: [{{name: http, port: 80}}, {{name: dns, port: 53, protocol: UDP}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: web-4, labels: {{kubernetes.io/service-name: web}}}}
addressType: IPv4
ports: [{{name: http, port: 8080}}, {{name: dns, port: 5353, protocol: UDP}}]
endpoints: [{endpoints4}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: web-6, labels: {{kubernetes.io/service-name: web}}}}
addressType: IPv6
ports: [{{name: http, port: 8080}}]
endpoints: [{endpoints6}]
"
    )
}

fn snapshot(text: &str) -> Result<Snapshot> {
    let mut snapshot = Snapshot::default();
    for object in manifest::parse("test", text)? {
        match object {
            Object::Service(service) => {
                let service = convert::service(&service).object.context("refused")?;
                snapshot.services.insert(service.name.clone(), Arc::new(service));
            }
            Object::Slice(slice) => {
                let slice = convert::slice(&slice).object.context("refused")?;
                snapshot.slices.insert(slice.key(), Arc::new(slice));
            }
            Object::Node(_) => anyhow::bail!("a Node in a test"),
            Object::Other(what) => anyhow::bail!("{what} in a test"),
        }
    }
    Ok(snapshot)
}

/// Makes the maps of the programs' object and pins them in `dir`, on a bpffs that only this thread sees.
fn pin_maps(dir: &Path, sizes: &[(&str, u32)]) -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    mount(Some("bpf"), dir, Some("bpf"), MsFlags::empty(), none).context("mounting a bpffs")?;
    let mut loader = EbpfLoader::new();
    for (name, entries) in sizes {
        loader.map_max_entries(name, *entries);
    }
    let mut ebpf = loader.load(&std::fs::read(object()?)?)?;
    for name in map_name::ALL {
        ebpf.take_map(name).with_context(|| format!("no map {name}"))?.pin(dir.join(name))?;
    }
    Ok(())
}

/// What is in use, in an order of its own.
type Content = (Loaded, BTreeMap<BackendId, BackendRecord>, Vec<Vec<Slot>>, BTreeMap<BackendId, u32>);

fn content(store: &impl Store) -> Result<Content> {
    let mut loaded = store.load()?;
    loaded.names.sort_by_key(|(id, _)| *id);
    loaded.frontends.sort_by_key(|(frontend, _)| *frontend);
    let (free, used): (Vec<_>, Vec<_>) =
        std::mem::take(&mut loaded.backends).into_iter().partition(|(_, record)| record.state == backend_state::FREE);
    loaded.sources.sort_by_key(|(id, network, _)| (*id, *network));
    loaded.vips.sort_by_key(|(address, _)| *address);
    let slots = store.slots(&loaded.ranges(store.capacities().of(Part::Slots)))?;
    let generations = free.into_iter().map(|(id, record)| (id, record.generation)).collect();
    Ok((loaded, used.into_iter().collect(), slots, generations))
}

struct Both {
    kernel: Programmer<KernelStore>,
    memory: Programmer<MemoryStore>,
}

impl Both {
    fn sync(&mut self, snapshot: &Snapshot, now: Monotonic) -> Result<Report> {
        let report = self.kernel.sync(snapshot, &NodeFacts::default(), now);
        assert_eq!(report, self.memory.sync(snapshot, &NodeFacts::default(), now));
        self.compare()?;
        Ok(report)
    }

    fn tick(&mut self, now: Monotonic) -> Result<Report> {
        assert_eq!(self.kernel.next_tick(), self.memory.next_tick());
        // The agent's sweep found no flow, as there is none.
        let gone = self.kernel.programmed().backends().gone().clone();
        self.kernel.store_mut().note_unreferred(gone);
        let report = self.kernel.tick(now);
        assert_eq!(report, self.memory.tick(now));
        self.compare()?;
        Ok(report)
    }

    fn compare(&self) -> Result<()> {
        let (kernel, memory) = (content(self.kernel.store())?, content(self.memory.store())?);
        assert_eq!(kernel.0.names, memory.0.names);
        assert_eq!(kernel.0.frontends, memory.0.frontends);
        assert_eq!((&kernel.0.sources, &kernel.0.vips), (&memory.0.sources, &memory.0.vips));
        assert_eq!(kernel.0.strays, []);
        assert_eq!((kernel.1, kernel.2, kernel.3), (memory.1, memory.2, memory.3));
        assert_eq!(self.memory.store().problems(), Vec::<String>::new());
        Ok(())
    }
}

#[test]
fn the_kernel_holds_what_memory_holds() -> Result<()> {
    let dir = tempfile::tempdir()?;
    pin_maps(dir.path(), &SIZES)?;
    let at = |seconds| Monotonic::from_duration(Duration::from_secs(seconds));
    // Nothing sweeps here, and so nothing tells that a drain has no connection left.
    let settings = PlanSettings::without_drain_max();
    let kernel = KernelStore::new(Pinned::open(dir.path())?);
    let memory = MemoryStore::new(kernel.capacities());
    let mut both = Both {
        kernel: Programmer::restore(kernel, settings.clone(), at(1))?,
        memory: Programmer::restore(memory, settings.clone(), at(1))?,
    };
    let three = "{addresses: [10.0.0.1], targetRef: {uid: a}}, {addresses: [10.0.0.2]}, {addresses: [10.0.0.3], conditions: {ready: false}}";
    let report = both.sync(&snapshot(&manifest_of(three, "{addresses: ['fd01::1']}"))?, at(1))?;
    assert_eq!((report.services, report.backends.active, report.backends.unready), (2, 5, 2));
    // Another pod at the first address, the second goes.
    let report = both.sync(&snapshot(&manifest_of("{addresses: [10.0.0.1], targetRef: {uid: b}}", ""))?, at(2))?;
    assert_eq!((report.backends.active, report.backends.draining, report.backends.gone), (2, 5, 2));
    // A restart takes everything over, and has nothing to write.
    let kernel = KernelStore::new(Pinned::open(dir.path())?);
    both.kernel = Programmer::restore(kernel, settings.clone(), at(3))?;
    both.memory = Programmer::restore(both.memory.into_store(), settings, at(3))?;
    let report = both.sync(&snapshot(&manifest_of("{addresses: [10.0.0.1], targetRef: {uid: b}}", ""))?, at(3))?;
    assert_eq!(report.writes, 0);
    // More than the table holds: refused by name, and the old state stays.
    let many: Vec<String> = (1..20).map(|n| format!("{{addresses: [10.0.1.{n}]}}")).collect();
    let report = both.sync(&snapshot(&manifest_of(&many.join(","), ""))?, at(4))?;
    assert!(report.refusals.iter().any(|refusal| refusal.reason.contains("map backends4 is full")), "{report:?}");
    // Everything goes, and nothing is left.
    both.sync(&Snapshot::default(), at(5))?;
    for seconds in 6..200 {
        both.tick(at(seconds))?;
    }
    assert_eq!(both.kernel.next_tick(), None);
    let (loaded, used, ..) = content(both.kernel.store())?;
    assert!(loaded.names.is_empty() && loaded.frontends.is_empty() && used.is_empty());
    Ok(())
}

/// Both get, in any order, two backends of one address and service port; the name leads to one that lives, if there is one.
#[test]
fn a_backend_that_drains_gives_way_in_the_kernel_as_in_memory() -> Result<()> {
    let dir = tempfile::tempdir()?;
    pin_maps(dir.path(), &SIZES)?;
    let mut kernel = KernelStore::new(Pinned::open(dir.path())?);
    let mut memory = MemoryStore::new(kernel.capacities());
    for (family, address) in [(Family::V4, "10.0.0.1"), (Family::V6, "fd01::1")] {
        let write = |id: u16, state: u8| Op::WriteBackend {
            id: BackendId { family, id: id.into() },
            record: BackendRecord {
                address: SocketAddr::new(address.parse().expect("an address"), 8000 + id),
                state,
                flags: backend_flags::LOCAL,
                generation: 1,
                service: 7,
                deadline_ds: 0,
                drain_ds: 0,
                uid_hash: 0,
                weight: 1,
            },
        };
        let (lives, drains) = (backend_state::ACTIVE, backend_state::DRAINING);
        let free = |id: u32| Op::FreeBackend { id: BackendId { family, id }, generation: 2 };
        for (op, expected) in [
            (write(1, drains), Some(1)),
            (write(2, lives), Some(2)),
            (write(1, drains), Some(2)),
            (write(2, drains), Some(2)),
            (write(1, lives), Some(1)),
            (write(2, drains), Some(1)),
            (free(1), None),
            (write(2, drains), Some(2)),
            (free(2), None),
        ] {
            kernel.apply(&op)?;
            memory.apply(&op)?;
            let named = |store: &dyn Fn(&mut Loaded) -> Result<()>| -> Result<_> {
                let mut loaded = Loaded::default();
                store(&mut loaded)?;
                Ok(loaded.endpoints.into_iter().map(|(key, to)| (key, to.backend, to.generation)).collect::<Vec<_>>())
            };
            let part = Part::Endpoints(family);
            let found = named(&|loaded| Ok(kernel.load_part(part, loaded)?))?;
            assert_eq!(found, named(&|loaded| Ok(memory.load_part(part, loaded)?))?, "after {op}");
            let key = (address.parse().expect("an address"), 7);
            assert_eq!(found, expected.map(|id| (key, id, 1)).into_iter().collect::<Vec<_>>(), "after {op}");
        }
    }
    Ok(())
}

#[test]
fn connect_times_of_a_backend_that_is_gone_become_its_services_and_go_with_it() -> Result<()> {
    let dir = tempfile::tempdir()?;
    pin_maps(dir.path(), &[(map_name::CONNECT_TIMES, 16)])?;
    let (mut store, maps) = (KernelStore::new(Pinned::open(dir.path())?), Pinned::open(dir.path())?);
    let times = maps.find::<map::ConnectTimes>().expect("the programs' map");
    let key = |id, kind: u8| ConnectKey { id, kind: kind.into() };
    let of_service = || times.get(&key(7, stat_kind::SERVICE));
    let one = |bucket: usize, sum| {
        let mut times = ConnectTimes { sum, ..ConnectTimes::default() };
        times.counts[bucket] = 1;
        times
    };
    for (id, time) in [(1, one(2, 100)), (2, one(15, 9_000))] {
        maps.of::<map::Backends<4>>()
            .put(&id, &Backend { service: 7, ..maps.of::<map::Backends<4>>().get(&id)?.expect("an element") })?;
        times.put(&key(id, stat_kind::BACKEND4), &time)?;
    }
    let free = |id| Op::FreeBackend { id: BackendId { family: Family::V4, id }, generation: 2 };
    for (id, answers, sum) in [(1, 1, 100), (2, 2, 9_100), (2, 2, 9_100)] {
        assert!(store.apply_all(&[&free(id)]).iter().all(Result::is_ok));
        assert_eq!(times.get(&key(id, stat_kind::BACKEND4))?, None, "backend {id} begins anew");
        let kept = of_service()?.expect("what its backends had");
        assert_eq!((kept.counts.iter().sum::<u64>(), kept.sum), (answers, sum), "after backend {id}");
    }
    assert!(store.apply_all(&[&Op::ForgetService { id: 7 }]).iter().all(Result::is_ok));
    assert_eq!(of_service()?, None);
    Ok(())
}
