//! What the data path leaves to choose, by the words of its options.

use lb_model::{ValueError, choice, list_option};

/// Which links are meant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Interfaces {
    /// Found by what they are, and followed as they come and go.
    #[default]
    Auto,
    /// Those whose name matches one of the patterns (`*` and `?`); an empty list means none.
    Named(Vec<String>),
}

impl Interfaces {
    fn from_parts(patterns: &[&str]) -> Result<Self, ValueError> {
        match patterns {
            ["auto"] => Ok(Self::Auto),
            _ if !patterns.contains(&"auto") => {
                Ok(Self::Named(patterns.iter().map(|pattern| (*pattern).to_owned()).collect()))
            }
            _ => Err(ValueError {
                given: patterns.join(","),
                what: "a choice of interfaces",
                expected: "auto alone, or names and patterns separated by commas",
            }),
        }
    }
}

list_option!(Interfaces, "auto, or interface names and patterns");

choice!(
    /// Whose sockets are translated at connect.
    SocketLb, "a choice of sockets", "host, all or off", {
        /// Processes in the agent's own network namespace.
        Host = "host",
        /// Every process below the cgroup root, pods too.
        All = "all",
        Off = "off",
    }
);
choice!(
    /// How tc programs are attached.
    TcAttach, "a way to attach tc programs", "auto, tcx or clsact", {
        /// TCX where the kernel has it (6.6), else clsact.
        Auto = "auto",
        Tcx = "tcx",
        Clsact = "clsact",
    }
);
choice!(
    /// How XDP programs are attached.
    XdpMode, "an XDP mode", "auto, native, generic or off", {
        /// Native where the driver has it, else none: tc serves.
        Auto = "auto",
        Native = "native",
        Generic = "generic",
        Off = "off",
    }
);
choice!(
    /// Whether packets between two pods of the node are handed over past its stack.
    FastPath, "a mode of the fast path", "auto, on or off", {
        /// While nothing of the node would be skipped.
        Auto = "auto",
        On = "on",
        Off = "off",
    }
);
