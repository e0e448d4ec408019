//! Objects of a run that nobody can read.

use std::{collections::BTreeSet, sync::Arc};

use lb_model::{ObjectName, Snapshot, Unread, UnreadKind};

use super::shapes::name;

/// Bits 0 to 2: services; 3 to 6: slices; 7: nor is it known which objects these are.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hidden(pub u8);

impl Hidden {
    fn hides(self, kind: &str, object: &ObjectName, first: u8) -> bool {
        (0..4).any(|index| self.0 & (1 << (first + index)) != 0 && *object == name(kind, index))
    }

    /// What can be read of the truth.
    pub fn view(self, truth: &Snapshot) -> Snapshot {
        let mut view = truth.clone();
        let mut unread = BTreeSet::new();
        let mut hide = |what: UnreadKind| {
            let what = if self.0 & (1 << 7) == 0 { what } else { UnreadKind::Unknown("file".to_owned()) };
            unread.insert(Unread { what, uid: 0 });
        };
        for service in truth.services.keys().filter(|service| self.hides("s", service, 0)) {
            view.services.remove(service);
            hide(UnreadKind::Service(service.clone()));
        }
        for (key, slice) in truth.slices.iter().filter(|(_, slice)| self.hides("slice", &slice.name, 3)) {
            view.slices.remove(key);
            let service = ObjectName::new(key.namespace.clone(), key.service.clone());
            hide(UnreadKind::Slice { name: slice.name.clone(), service });
        }
        view.unread = Arc::new(unread);
        view
    }
}

/// Whether two slices of a service list one address: what one of them says of it may differ from what the other one does.
pub fn lists_an_endpoint_twice(truth: &Snapshot) -> bool {
    let mut seen = BTreeSet::new();
    let mut all = truth.slices.values().flat_map(|slice| {
        let addresses: BTreeSet<_> = slice.endpoints.iter().map(|endpoint| endpoint.address).collect();
        addresses.into_iter().map(|address| (slice.service.clone(), address))
    });
    all.any(|one| !seen.insert(one))
}
