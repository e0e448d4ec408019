//! What would change the result, in one sentence.

use lb_common::decide::Action;
use lb_common::outcome::Outcome;

/// For an outcome over a packet to `service` (its name, or the destination where it is none).
/// `lacks`: the port that no endpoint has, in words.
pub fn sentence(action: Action, outcome: Outcome, service: &str, candidates: usize, lacks: Option<&str>) -> String {
    match outcome {
        Outcome::RefusedNoEndpoint | Outcome::SocketRefused if let Some(port) = lacks => {
            format!("{port} in the slices of {service}")
        }
        Outcome::RefusedNoEndpoint | Outcome::SocketRefused => format!("a ready endpoint of {service}"),
        Outcome::DroppedNoLocalEndpoint => {
            format!("a ready endpoint of {service} on this node, or the traffic policy Cluster")
        }
        Outcome::DroppedSourceRange => format!("a client inside loadBalancerSourceRanges of {service}"),
        Outcome::RefusedNoFlow => "a SYN: the segment belongs to no connection that the tables hold".to_owned(),
        Outcome::RefusedUnserved => format!("a service port at {service}"),
        Outcome::DroppedNoService => format!("a service with the address of {service}"),
        Outcome::DroppedMartian => "a source that is no address of this node, of loopback or of a service".to_owned(),
        Outcome::DroppedRateLimit => {
            format!("fewer new connections from the client's network, or a higher rate limit of {service}")
        }
        Outcome::DroppedNoAddress => "an address of this node to masquerade with, in the client's family".to_owned(),
        Outcome::DroppedNoPort => "a free SNAT port: end connections, or widen --snat-ports".to_owned(),
        Outcome::DroppedTorn => "the next packet: the agent was writing this service".to_owned(),
        Outcome::Evicted => "a new connection: the backend of this one is gone".to_owned(),
        Outcome::RefusedClientShare => "fewer connections of this client, or a larger table of connections".to_owned(),
        Outcome::RefusedLate => "nothing: another backend has answered this connection already".to_owned(),
        Outcome::HeldForHandOver => "the end of the hand-over: the sender sends the packet again".to_owned(),
        Outcome::PassedHandOver => "`ballast agent`: connections are being given to another proxy".to_owned(),
        Outcome::PassedAdoption | Outcome::Adopted => {
            "the end of the connection: the node's own NAT has it since before the first start".to_owned()
        }
        Outcome::Passed => format!("a service with the frontend {service}"),
        Outcome::Forwarded | Outcome::Replied => {
            "the end of the connection: the next one may meet another backend".to_owned()
        }
        Outcome::Selected
        | Outcome::Moved
        | Outcome::DirectTranslated
        | Outcome::PortTranslated
        | Outcome::SecondHandshake
        | Outcome::AmbiguousUdp
        | Outcome::DroppedTableFull
        | Outcome::DroppedMalformed
        | Outcome::DroppedRewrite
        | Outcome::HandedToTc
        | Outcome::SocketConnected
        | Outcome::SocketSent
        | Outcome::SocketReplied
        | Outcome::Fragment
        | Outcome::EventLost
        | Outcome::Retried
        | Outcome::SuppressedRefusal
        | Outcome::Probed
        | Outcome::Ejected
        | Outcome::Cleared
        | Outcome::EchoReplied
        | Outcome::IcmpTranslated
        | Outcome::FragmentFollowed
        | Outcome::DroppedFragment
        | Outcome::SocketMoved
        | Outcome::Masqueraded
        | Outcome::RefusedTooBig
        | Outcome::DroppedHopLimit
        | Outcome::RefusedBind
        | Outcome::Tunnelled
        | Outcome::DroppedNoPeer
        | Outcome::DroppedNotHere
        | Outcome::SelectedByTuple
        | Outcome::Resumed
        | Outcome::FastPath
        | Outcome::NoProgram
        | Outcome::AnswerLimited => match action {
            Action::ToBackend if candidates < 2 => format!("a second ready endpoint of {service}"),
            Action::ToBackend => "a change of the backends, or an entry of an earlier connection".to_owned(),
            Action::Pass | Action::ToClient | Action::Refuse | Action::Drop => "another state of the tables".to_owned(),
        },
    }
}
