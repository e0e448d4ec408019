//! Runs that failed once, as proptest shrank them. A run is kept as a value: its seed means something else as soon as [`super::steps`] changes.

use super::{ServiceShape, SliceShape, Step};

fn service(name: u8, address: u8, dual: bool) -> Step {
    external(name, address, dual, 0)
}

fn external(name: u8, address: u8, dual: bool, external: u8) -> Step {
    let shape = ServiceShape { address, dual, ports: 1, affinity: false, external, policies: 0 };
    Step::Service(name, Some(shape))
}

fn slice(name: u8, service: u8, endpoint: (u8, u8, u8)) -> Step {
    Step::Slice(name, Some(SliceShape { service, v6: false, endpoints: vec![endpoint] }))
}

pub fn runs() -> Vec<Vec<Step>> {
    vec![
        vec![
            slice(1, 2, (3, 0, 2)),
            service(2, 1, false),
            Step::Sync,
            service(2, 0, false),
            service(0, 1, true),
            slice(2, 0, (1, 0, 0)),
            slice(1, 2, (3, 0, 1)),
            Step::Fail(0),
            Step::Sync,
        ],
        vec![
            service(2, 2, false),
            Step::Slice(0, None),
            slice(0, 2, (1, 0, 0)),
            Step::Sync,
            service(0, 2, false),
            Step::Sync,
            Step::Wait(199),
            Step::Wait(101),
        ],
        vec![
            slice(2, 0, (2, 0, 2)),
            service(0, 0, false),
            Step::Sync,
            Step::Slice(2, None),
            Step::Sync,
            slice(0, 0, (2, 3, 2)),
            Step::Wait(300),
        ],
        vec![
            service(0, 0, false),
            slice(0, 0, (3, 0, 1)),
            Step::Sync,
            Step::Fail(1),
            slice(0, 0, (3, 0, 2)),
            Step::Sync,
            Step::Blind(55),
            Step::Sync,
            Step::Audit,
        ],
        vec![
            service(0, 0, false),
            slice(0, 0, (4, 3, 2)),
            Step::Sync,
            slice(0, 0, (4, 0, 1)),
            Step::Sync,
            slice(0, 0, (4, 3, 2)),
            Step::Service(0, None),
            Step::Sync,
            Step::Wait(300),
            Step::Restart,
            service(0, 0, false),
        ],
        vec![
            external(0, 0, false, 11),
            external(2, 0, true, 2),
            service(1, 1, false),
            Step::Sync,
            Step::Wait(1),
            service(1, 0, true),
            external(0, 0, false, 4),
            Step::Slice(0, None),
        ],
    ]
}
