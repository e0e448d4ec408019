//! How much room the programs have.

/// How much the programs take before they refuse clients or select by tuple.
#[derive(Clone, Copy, Debug)]
pub enum Room {
    /// Everything.
    Plenty,
    /// Few new connections in a second, and few established ones.
    Little,
}

impl Room {
    /// New connections in a second before it is a flood, and established ones that fit.
    pub(super) const fn limits(self) -> (u32, u32) {
        match self {
            Self::Plenty => (u32::MAX, 1_000),
            Self::Little => (3, 8),
        }
    }
}
