//! Records field by field, so that a difference can be named.

use std::fmt::Debug;

use lb_common::abi;

use crate::plan::BackendRecord;
use lb_tables::from_chars;

/// A record's fields by name.
pub(super) type Fields = Vec<(&'static str, String)>;

/// Which fields differ, as `state 6, expected 1`.
pub(super) fn difference(wanted: &Fields, found: &Fields) -> String {
    let pairs = wanted.iter().zip(found).filter(|(wanted, found)| wanted != found);
    pairs
        .map(|((name, wanted), (_, found))| format!("{name} {found}, expected {wanted}"))
        .collect::<Vec<_>>()
        .join("; ")
}

fn fields<T: Debug, const L: usize>(fields: [(&'static str, T); L]) -> Fields {
    fields.into_iter().map(|(name, value)| (name, format!("{value:?}"))).collect()
}

pub(super) fn name_fields(name: &abi::ServiceName) -> Fields {
    let text = |chars: &[i8]| from_chars(chars);
    let mut all =
        vec![("namespace", text(&name.namespace)), ("name", text(&name.name)), ("port_name", text(&name.port_name))];
    all.extend(fields([("port", u32::from(name.port)), ("protocol", name.protocol.into()), ("pad", name.pad.into())]));
    all
}

pub(super) fn backend_fields(record: &BackendRecord) -> Fields {
    let mut all = vec![("address", record.address.to_string())];
    all.extend(fields([
        ("state", u32::from(record.state)),
        ("flags", record.flags.into()),
        ("generation", record.generation),
        ("service", record.service),
        ("deadline_ds", record.deadline_ds),
        ("drain_ds", record.drain_ds),
        ("uid_hash", record.uid_hash),
        ("weight", record.weight.into()),
    ]));
    all
}

pub(super) fn endpoint_fields(endpoint: abi::Endpoint) -> Fields {
    fields([("backend", endpoint.backend), ("generation", endpoint.generation)])
}

pub(super) fn slot_fields(slot: &abi::Slot) -> Fields {
    fields([
        ("backend", slot.backend),
        ("generation", slot.generation),
        ("service", slot.service),
        ("backend_generation", slot.backend_generation),
    ])
}

pub(super) fn service_fields(entry: &abi::Service) -> Fields {
    fields([
        ("id", entry.id),
        ("generation", entry.generation),
        ("slot_base", entry.slot_base),
        ("slot_count", entry.slot_count),
        ("external_base", entry.external_base),
        ("external_count", entry.external_count),
        ("seal", entry.seal),
        ("affinity_timeout_s", entry.affinity_timeout_s),
        ("scheduler", entry.scheduler.into()),
        ("flags", entry.flags.into()),
        ("kind", entry.kind.into()),
        ("pad", entry.pad.into()),
        ("rate", entry.rate),
        ("burst", entry.burst),
    ])
}
