//! The hooks whose programs are run.

/// Where a packet meets a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hook {
    PodIn,
    PodOut,
    BridgeIn,
    NodeIn,
    NodeOut,
    Xdp,
}

impl Hook {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::PodIn, Self::PodOut, Self::BridgeIn, Self::NodeIn, Self::NodeOut, Self::Xdp];

    /// Name of the program.
    pub const fn program(self) -> &'static str {
        match self {
            Self::PodIn => "pod_in",
            Self::PodOut => "pod_out",
            Self::BridgeIn => "bridge_in",
            Self::NodeIn => "node_in",
            Self::NodeOut => "node_out",
            Self::Xdp => "xdp_node",
        }
    }
}
