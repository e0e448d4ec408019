//! Transport protocols.

use std::fmt;

use lb_common::abi;

/// A transport protocol that is balanced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

impl Protocol {
    /// The number in the IP header.
    pub fn number(self) -> u8 {
        match self {
            Self::Tcp => abi::TCP,
            Self::Udp => abi::UDP,
            Self::Sctp => abi::SCTP,
        }
    }

    /// The protocol with this number in the IP header.
    pub fn from_number(number: u8) -> Option<Self> {
        match number {
            abi::TCP => Some(Self::Tcp),
            abi::UDP => Some(Self::Udp),
            abi::SCTP => Some(Self::Sctp),
            _ => None,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        })
    }
}
