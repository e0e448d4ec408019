//! kube-proxy's nftables rules as data: `nft --json list ruleset`, read into just what it uses of nftables.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use anyhow::{Context, Result, bail};
use lb_model::Protocol;
use serde_json::Value;

use super::node;
use super::statement::{Datum, Key, Statement, Verdict, key, verdict};

/// kube-proxy's table.
const TABLE: &str = "kube-proxy";

/// Both of its tables.
#[derive(Debug, Default)]
pub struct Ruleset {
    v4: Table,
    v6: Table,
}

/// The table of one family.
#[derive(Debug, Default)]
pub struct Table {
    pub chains: HashMap<String, Chain>,
    pub sets: HashMap<String, Set>,
    pub maps: HashMap<String, HashMap<Key, Verdict>>,
}

/// A chain.
#[derive(Debug, Default)]
pub struct Chain {
    pub base: Option<Base>,
    pub rules: Vec<Vec<Statement>>,
}

/// Where a base chain stands in the kernel.
#[derive(Debug)]
pub struct Base {
    pub hook: String,
    pub priority: i64,
}

/// A named set.
#[derive(Debug, Default)]
pub struct Set {
    pub elements: HashSet<Key>,
    /// Of elements that rules add.
    pub timeout_s: Option<u32>,
}

impl Ruleset {
    /// Reads what `nft` printed.
    pub fn parse(json: &[u8]) -> Result<Self> {
        let listed: Value = serde_json::from_slice(json).context("nft's JSON")?;
        let mut ruleset = Self::default();
        for item in listed["nftables"].as_array().context("nft's JSON has no list")? {
            let Some((kind, body)) = item.as_object().and_then(|item| item.iter().next()) else { continue };
            let owner = if kind == "table" { &body["name"] } else { &body["table"] };
            if owner != TABLE {
                continue;
            }
            let table = match body["family"].as_str() {
                Some("ip") => &mut ruleset.v4,
                Some("ip6") => &mut ruleset.v6,
                other => bail!("a table of family {other:?}"),
            };
            table.add(kind, body).with_context(|| body.to_string())?;
        }
        Ok(ruleset)
    }

    /// The table that sees packets of this family.
    pub fn table(&self, v4: bool) -> &Table {
        if v4 { &self.v4 } else { &self.v6 }
    }

    /// Every address, protocol and port in its maps of services; node ports with each address of the node.
    pub fn served_addresses(&self) -> Vec<(IpAddr, Protocol, u16)> {
        let mut served = Vec::new();
        for v4 in [true, false] {
            for key in self.table(v4).maps.values().flat_map(HashMap::keys) {
                match key[..] {
                    [Datum::Address(address), Datum::Protocol(protocol), Datum::Port(port)] => {
                        served.push((address, protocol, port));
                    }
                    [Datum::Protocol(protocol), Datum::Port(port)] => {
                        let of_family = node::addresses().iter().filter(|address| address.is_ipv4() == v4);
                        served.extend(of_family.map(|address| (*address, protocol, port)));
                    }
                    _ => {}
                }
            }
        }
        served
    }

    /// Whether kube-proxy has written it.
    pub fn has_table(&self, v4: bool) -> bool {
        !self.table(v4).chains.is_empty()
    }
}

impl Table {
    fn add(&mut self, kind: &str, body: &Value) -> Result<()> {
        let name = |field: &str| body[field].as_str().map(str::to_owned).with_context(|| format!("no {field}"));
        match kind {
            "chain" => {
                let hook = body["hook"].as_str().map(str::to_owned);
                let base = hook.map(|hook| Base { hook, priority: body["prio"].as_i64().unwrap_or_default() });
                self.chains.entry(name("name")?).or_default().base = base;
            }
            "set" => {
                let elements = elements(body).map(|element| key(plain(element))).collect::<Result<_>>()?;
                let timeout_s = body["timeout"].as_u64().map(u32::try_from).transpose()?;
                self.sets.insert(name("name")?, Set { elements, timeout_s });
            }
            "map" => {
                let pair = |element: &Value| Ok((key(plain(&element[0]))?, verdict(&element[1])?));
                self.maps.insert(name("name")?, elements(body).map(pair).collect::<Result<_>>()?);
            }
            "rule" => {
                let listed = body["expr"].as_array().context("a rule without statements")?;
                let rule = listed.iter().map(Statement::parse).collect();
                self.chains.entry(name("chain")?).or_default().rules.push(rule);
            }
            _ => {}
        }
        Ok(())
    }
}

fn elements(body: &Value) -> impl Iterator<Item = &Value> {
    body["elem"].as_array().into_iter().flatten()
}

/// An element without its comment or timeout.
fn plain(element: &Value) -> &Value {
    element.pointer("/elem/val").unwrap_or(element)
}
