//! Networks of `--cluster-cidr`, `--service-cidr` and `--snat-addresses`: separated by commas, or a list.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::de::{self, Deserializer, SeqAccess, Visitor};

use lb_model::ValueError;

/// One network, or the address of one host.
pub(super) fn network(text: &str) -> Result<IpNet, ValueError> {
    let wrong = |expected| ValueError { given: text.to_owned(), what: "a network", expected };
    let text = text.trim();
    let network = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
    let network =
        network.map_err(|_| wrong("an address and the length of its prefix, as 10.244.0.0/16 or fd00:10::/56"))?;
    if network.addr() != network.network() {
        return Err(wrong("no bits set beyond the prefix: 10.244.0.0/16, not 10.244.0.1/16"));
    }
    Ok(network)
}

/// A text with commas, or a list.
pub(super) fn networks<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<IpNet>>, D::Error> {
    struct TextOrList;
    impl<'de> Visitor<'de> for TextOrList {
        type Value = Vec<IpNet>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("networks")
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<Vec<IpNet>, E> {
            text.split(',').map(|text| network(text).map_err(E::custom)).collect()
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<IpNet>, A::Error> {
            let mut found = Vec::new();
            while let Some(text) = list.next_element::<String>()? {
                found.push(network(&text).map_err(de::Error::custom)?);
            }
            Ok(found)
        }
    }
    deserializer.deserialize_any(TextOrList).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_of_both_families_and_single_addresses() {
        for text in ["10.244.0.0/16", "fd00:10::/56", "192.0.2.7", "0.0.0.0/0"] {
            assert!(network(text).is_ok(), "{text}");
        }
        for (text, named) in
            [("10.244.0.1/16", "beyond the prefix"), ("pods", "length of its prefix"), ("", "length of")]
        {
            let error = network(text).expect_err("wrong").to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
