//! Running a loaded program on a packet, and the programs that do the least.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result};
use aya::maps::{Array, HashMap, MapData};
use aya::programs::{SchedClassifier, TestRun as _, TestRunOptions, TestRunResult, Xdp};
use aya::{Ebpf, Pod};

/// The programs of `tests/yardstick` at tc.
const PROGRAMS: [&str; 7] = ["nothing", "known4", "known6", "fresh4", "fresh6", "foreign4", "foreign6"];
/// Room for the packet afterwards.
const ROOM: usize = 256;

/// What a program did with a packet.
#[derive(Debug)]
pub struct Ran {
    pub verdict: u32,
    pub bytes: Vec<u8>,
    /// As the kernel measured it.
    pub ns: f64,
}

/// Runs the program once.
pub fn run(program: &SchedClassifier, packet: &[u8]) -> Result<Ran> {
    run_with(|options| Ok(program.test_run(options)?), packet)
}

/// Runs a program once by `BPF_PROG_TEST_RUN`; the closure may add a context to the options.
pub fn run_with(run: impl FnOnce(TestRunOptions<'_>) -> Result<TestRunResult>, packet: &[u8]) -> Result<Ran> {
    let mut bytes = vec![0; ROOM];
    let options = TestRunOptions { data_in: Some(packet), data_out: Some(&mut bytes), ..TestRunOptions::default() };
    let ran = run(options).context("running a program")?;
    bytes.truncate(ran.data_size_out as usize);
    Ok(Ran { verdict: ran.return_value, bytes, ns: ran.duration.as_secs_f64() * 1e9 })
}

/// The programs of `tests/yardstick`, with a service of each family in their maps.
pub struct Yardstick {
    ebpf: Ebpf,
}

/// A tuple, as these programs have it.
#[repr(C, align(4))]
#[derive(Clone, Copy)]
struct Key<const N: usize> {
    src: [u8; N],
    dst: [u8; N],
    ports: [u8; 4],
    protocol: u32,
}

/// A frontend, as these programs have it.
#[repr(C, align(4))]
#[derive(Clone, Copy)]
struct Frontend<const N: usize> {
    address: [u8; N],
    port: [u8; 2],
    pad: u16,
}

/// A flow, as these programs have it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Flow<const N: usize> {
    address: [u8; N],
    ports: [u8; 4],
    seen_s: u32,
    rest: [u32; 5],
}

// SAFETY: plain numbers without padding between them.
unsafe impl Pod for Key<4> {}
// SAFETY: as above.
unsafe impl Pod for Key<16> {}
// SAFETY: as above.
unsafe impl Pod for Frontend<4> {}
// SAFETY: as above.
unsafe impl Pod for Frontend<16> {}
// SAFETY: as above.
unsafe impl Pod for Flow<4> {}
// SAFETY: as above.
unsafe impl Pod for Flow<16> {}

impl Yardstick {
    pub fn load(object: &Path) -> Result<Self> {
        let bytes = std::fs::read(object).with_context(|| object.display().to_string())?;
        let mut ebpf = Ebpf::load(&bytes).context("loading the yardstick")?;
        for name in PROGRAMS {
            let program: &mut SchedClassifier = ebpf.program_mut(name).context("not in the yardstick")?.try_into()?;
            program.load().with_context(|| format!("yardstick {name}"))?;
        }
        let idle: &mut Xdp = ebpf.program_mut("idle").context("not in the yardstick")?.try_into()?;
        idle.load().context("yardstick idle")?;
        Ok(Self { ebpf })
    }

    /// The program at XDP that does nothing.
    pub fn idle(&self) -> Result<&Xdp> {
        Ok(self.ebpf.program("idle").context("no idle in the yardstick")?.try_into()?)
    }

    /// `nothing`, `known4`, `fresh6` and so on.
    pub fn program(&self, name: &str) -> Result<&SchedClassifier> {
        Ok(self.ebpf.program(name).with_context(|| format!("no {name} in the yardstick"))?.try_into()?)
    }

    /// Lets `fresh` serve `service` by `backend`.
    pub fn serve(&mut self, service: SocketAddr, backend: SocketAddr) -> Result<()> {
        match (service, backend) {
            (SocketAddr::V4(service), SocketAddr::V4(backend)) => {
                self.put::<4>("4", service.ip().octets(), service.port(), backend.ip().octets(), backend.port())
            }
            (SocketAddr::V6(service), SocketAddr::V6(backend)) => {
                self.put::<16>("6", service.ip().octets(), service.port(), backend.ip().octets(), backend.port())
            }
            _ => anyhow::bail!("{service} and {backend} are of two families"),
        }
    }

    fn put<const N: usize>(
        &mut self,
        family: &str,
        service: [u8; N],
        port: u16,
        backend: [u8; N],
        target: u16,
    ) -> Result<()>
    where
        Frontend<N>: Pod,
        Flow<N>: Pod,
    {
        let frontend = Frontend { address: service, port: port.to_be_bytes(), pad: 0 };
        let [high, low] = target.to_be_bytes();
        let flow = Flow { address: backend, ports: [0, 0, high, low], seen_s: 0, rest: [0; 5] };
        let mut services: HashMap<&mut MapData, Frontend<N>, u32> = self.map("y_services", family)?.try_into()?;
        services.insert(frontend, 7, 0)?;
        let mut slots: Array<&mut MapData, u32> = self.map("y_slots", family)?.try_into()?;
        slots.set(7, 9, 0)?;
        let mut backends: Array<&mut MapData, Flow<N>> = self.map("y_backends", family)?.try_into()?;
        Ok(backends.set(9, flow, 0)?)
    }

    /// Lets `known` know this connection.
    pub fn know(&mut self, from: SocketAddr, service: SocketAddr, backend: SocketAddr) -> Result<()> {
        let ports = |one: u16, two: u16| {
            let (one, two) = (one.to_be_bytes(), two.to_be_bytes());
            [one[0], one[1], two[0], two[1]]
        };
        let (before, after) = (ports(from.port(), service.port()), ports(from.port(), backend.port()));
        match (from, service, backend) {
            (SocketAddr::V4(from), SocketAddr::V4(service), SocketAddr::V4(backend)) => self.insert::<4>(
                "4",
                Key { src: from.ip().octets(), dst: service.ip().octets(), ports: before, protocol: 6 },
                Flow { address: backend.ip().octets(), ports: after, seen_s: 0, rest: [0; 5] },
            ),
            (SocketAddr::V6(from), SocketAddr::V6(service), SocketAddr::V6(backend)) => self.insert::<16>(
                "6",
                Key { src: from.ip().octets(), dst: service.ip().octets(), ports: before, protocol: 6 },
                Flow { address: backend.ip().octets(), ports: after, seen_s: 0, rest: [0; 5] },
            ),
            _ => anyhow::bail!("{from}, {service} and {backend} are not of one family"),
        }
    }

    fn insert<const N: usize>(&mut self, family: &str, key: Key<N>, flow: Flow<N>) -> Result<()>
    where
        Key<N>: Pod,
        Flow<N>: Pod,
    {
        let mut flows: HashMap<&mut MapData, Key<N>, Flow<N>> = self.map("y_flows", family)?.try_into()?;
        Ok(flows.insert(key, flow, 0)?)
    }

    fn map(&mut self, name: &str, family: &str) -> Result<&mut aya::maps::Map> {
        let name = format!("{name}{family}");
        self.ebpf.map_mut(&name).with_context(|| format!("no map {name} in the yardstick"))
    }
}
