//! One statement of a rule, as kube-proxy writes them. Any other is kept as text: to meet one is an error, not a guess.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result, bail};
use ipnet::IpNet;
use lb_model::Protocol;
use serde_json::Value;

/// What a statement looks at in a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    Source,
    Destination,
    Protocol,
    Port,
    /// `fib saddr type`
    SourceType,
    /// `fib daddr type`
    DestinationType,
    /// `ct state`
    State,
}

/// A value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Datum {
    Address(IpAddr),
    Protocol(Protocol),
    Port(u16),
}

/// Values of some fields, one after the other.
pub type Key = Vec<Datum>;

/// What a field is compared with.
#[derive(Clone, Debug)]
pub enum Right {
    /// A named set.
    Set(String),
    /// Addresses from the first to the last, both included.
    Ranges(Vec<(IpAddr, IpAddr)>),
    Protocol(Protocol),
    /// `local` or `new`: what a first packet is asked.
    Word(String),
}

/// Where a rule leads.
#[derive(Clone, Debug)]
pub enum Verdict {
    Goto(String),
    Jump(String),
    Drop,
    Reject,
    Accept,
    Return,
}

/// A statement.
#[derive(Clone, Debug)]
pub enum Statement {
    Match {
        field: Field,
        negated: bool,
        right: Right,
    },
    /// The verdict in a named map.
    Lookup {
        fields: Vec<Field>,
        map: String,
    },
    /// One of these, by chance.
    Choose(Vec<Verdict>),
    Verdict(Verdict),
    /// To one of these, by chance.
    Dnat(Vec<SocketAddr>),
    /// The client's address is added to this set.
    Remember(String),
    /// Marks the packet for masquerade.
    Mark,
    Unknown(String),
}

impl Statement {
    /// Reads one.
    pub fn parse(listed: &Value) -> Self {
        let parsed = listed.as_object().and_then(|map| map.iter().next()).context("no statement");
        let parsed = parsed.and_then(|(kind, body)| match kind.as_str() {
            "match" => comparison(body),
            "vmap" => verdict_map(body),
            "dnat" => dnat(body),
            "set" => Ok(Self::Remember(set_name(&body["set"]).context("no set")?)),
            "mangle" if body["key"]["meta"]["key"] == "mark" => Ok(Self::Mark),
            _ => verdict(listed).map(Self::Verdict),
        });
        parsed.unwrap_or_else(|_| Self::Unknown(listed.to_string()))
    }
}

/// A verdict by itself.
pub fn verdict(listed: &Value) -> Result<Verdict> {
    let (kind, body) = listed.as_object().and_then(|map| map.iter().next()).context("no verdict")?;
    let target = || body["target"].as_str().map(str::to_owned).context("no target");
    Ok(match kind.as_str() {
        "goto" => Verdict::Goto(target()?),
        "jump" => Verdict::Jump(target()?),
        "drop" => Verdict::Drop,
        "reject" => Verdict::Reject,
        "accept" => Verdict::Accept,
        "return" => Verdict::Return,
        other => bail!("verdict {other}"),
    })
}

/// One value, or a concatenation.
pub fn key(listed: &Value) -> Result<Key> {
    match listed["concat"].as_array() {
        Some(parts) => parts.iter().map(datum).collect(),
        None => Ok(vec![datum(listed)?]),
    }
}

fn datum(listed: &Value) -> Result<Datum> {
    if let Some(number) = listed.as_u64() {
        return Ok(Datum::Port(u16::try_from(number)?));
    }
    let text = listed.as_str().with_context(|| format!("value {listed}"))?;
    if let Some(protocol) = protocol(text) {
        return Ok(Datum::Protocol(protocol));
    }
    text.parse().map(Datum::Address).with_context(|| format!("value {text}"))
}

fn protocol(text: &str) -> Option<Protocol> {
    match text {
        "tcp" => Some(Protocol::Tcp),
        "udp" => Some(Protocol::Udp),
        "sctp" => Some(Protocol::Sctp),
        _ => None,
    }
}

fn field(listed: &Value) -> Result<Field> {
    let at = |pointer: &str| listed.pointer(pointer).and_then(Value::as_str);
    let fib = || (listed["fib"]["result"] == "type").then(|| at("/fib/flags/0").or(at("/fib/flags"))).flatten();
    Ok(match (at("/payload/field").or(at("/meta/key")), fib(), at("/ct/key")) {
        (Some("saddr"), ..) => Field::Source,
        (Some("daddr"), ..) => Field::Destination,
        (Some("l4proto"), ..) => Field::Protocol,
        (Some("dport"), ..) => Field::Port,
        (_, Some("saddr"), _) => Field::SourceType,
        (_, Some("daddr"), _) => Field::DestinationType,
        (_, _, Some("state")) => Field::State,
        _ => bail!("field {listed}"),
    })
}

fn comparison(body: &Value) -> Result<Statement> {
    let negated = match body["op"].as_str() {
        Some("==" | "in") => false,
        Some("!=") => true,
        other => bail!("operator {other:?}"),
    };
    Ok(Statement::Match { field: field(&body["left"])?, negated, right: right(&body["right"])? })
}

fn right(listed: &Value) -> Result<Right> {
    if let Some(set) = set_name(listed) {
        return Ok(Right::Set(set));
    }
    if let Some(elements) = listed["set"].as_array() {
        return Ok(Right::Ranges(elements.iter().map(range).collect::<Result<_>>()?));
    }
    match listed.as_str() {
        Some(text @ ("local" | "new")) => Ok(Right::Word(text.to_owned())),
        Some(text) if protocol(text).is_some() => Ok(Right::Protocol(protocol(text).context("a protocol")?)),
        _ => Ok(Right::Ranges(vec![range(listed)?])),
    }
}

fn range(listed: &Value) -> Result<(IpAddr, IpAddr)> {
    let address = |value: &Value| -> Result<IpAddr> { Ok(value.as_str().context("no address")?.parse()?) };
    if let Some(prefix) = listed.get("prefix") {
        let length = u8::try_from(prefix["len"].as_u64().context("no length")?)?;
        let net = IpNet::new(address(&prefix["addr"])?, length)?;
        return Ok((net.network(), net.broadcast()));
    }
    if let Some(ends) = listed["range"].as_array() {
        let end = |number: usize| address(ends.get(number).context("a range has two ends")?);
        return Ok((end(0)?, end(1)?));
    }
    let one = address(listed)?;
    Ok((one, one))
}

fn set_name(listed: &Value) -> Option<String> {
    listed.as_str().and_then(|text| text.strip_prefix('@')).map(str::to_owned)
}

fn verdict_map(body: &Value) -> Result<Statement> {
    if body["key"].get("numgen").is_some() {
        let choices = body["data"]["set"].as_array().context("no choices")?;
        return Ok(Statement::Choose(choices.iter().map(|pair| verdict(&pair[1])).collect::<Result<_>>()?));
    }
    let fields = match body["key"]["concat"].as_array() {
        Some(parts) => parts.iter().map(field).collect::<Result<_>>()?,
        None => vec![field(&body["key"])?],
    };
    Ok(Statement::Lookup { fields, map: set_name(&body["data"]).context("no map")? })
}

fn dnat(body: &Value) -> Result<Statement> {
    let socket = |address: &Value, port: &Value| -> Result<SocketAddr> {
        let address: IpAddr = address.as_str().context("no address")?.parse()?;
        Ok(SocketAddr::new(address, u16::try_from(port.as_u64().context("no port")?)?))
    };
    let Some(choices) = body["addr"]["map"]["data"]["set"].as_array() else {
        return Ok(Statement::Dnat(vec![socket(&body["addr"], &body["port"])?]));
    };
    let choice = |pair: &Value| socket(&pair[1]["concat"][0], &pair[1]["concat"][1]);
    Ok(Statement::Dnat(choices.iter().map(choice).collect::<Result<_>>()?))
}
