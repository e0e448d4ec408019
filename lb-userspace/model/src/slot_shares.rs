//! How many of the slots a service and a namespace may take: no tenant can fill the table for all others.

/// Slots that any share has at least. In a table with fewer slots, shares limit nothing.
const LEAST: u32 = 4_096;

/// Each share as one part in so many of the table `slots`: 16 is a sixteenth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotShares {
    /// Of one service, all its ports, families and sets together.
    pub service: u32,
    /// Of all services of one namespace together.
    pub namespace: u32,
}

impl Default for SlotShares {
    fn default() -> Self {
        Self { service: 16, namespace: 4 }
    }
}

impl SlotShares {
    /// The smallest share is 1/1024, the largest the whole table.
    pub const PARTS_MAX: u32 = 1_024;

    /// The slots of a service, of a table with `slots` of them.
    pub fn of_service(self, slots: u32) -> u32 {
        part(slots, self.service)
    }

    /// The slots of a namespace, of a table with `slots` of them.
    pub fn of_namespace(self, slots: u32) -> u32 {
        part(slots, self.namespace)
    }
}

fn part(slots: u32, parts: u32) -> u32 {
    (slots / parts.max(1)).max(LEAST)
}
