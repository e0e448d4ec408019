//! What a set of maps says about itself: the layout of each map's records, in the map `layout`.
//!
//! Any version can read the records of any other one by the names of their fields. The kernel would show the types of a map, too, but only to
//! a process with CAP_SYS_ADMIN.

use std::{collections::BTreeMap, io, path::Path};

use aya_obj::{Map, generated::bpf_map_type};
use lb_common::{
    abi::{ABI_VERSION, map_name},
    limits::LAYOUT_BYTES,
};
use serde::{Deserialize, Serialize};

use super::{LayoutError, btf::Btf, record::Record, tables};
use lb_tables::{Condition, RawTable};

/// Of the text in `layout`.
const FORMAT: u32 = 1;

/// A set of maps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    format: u32,
    /// [`ABI_VERSION`] of the version that made the set.
    pub abi: u32,
    /// By name.
    pub maps: BTreeMap<String, MapDescription>,
}

/// One map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapDescription {
    /// The kernel's number of the map type.
    pub kind: u32,
    pub max_entries: u32,
    pub flags: u32,
    /// Changes when the records mean something else though their layout stays.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub meaning: u32,
    pub key: Record,
    pub value: Record,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl MapDescription {
    pub(super) fn is_array(&self) -> bool {
        [bpf_map_type::BPF_MAP_TYPE_ARRAY, bpf_map_type::BPF_MAP_TYPE_PERCPU_ARRAY]
            .into_iter()
            .any(|kind| kind as u32 == self.kind)
    }
}

impl Description {
    /// What the set says about one map. Refused if it says nothing.
    pub(super) fn map(&self, name: &str) -> Result<&MapDescription, LayoutError> {
        let missing = || io::Error::other("the set does not describe it");
        self.maps.get(name).ok_or_else(|| LayoutError::access("convert", name)(missing()))
    }

    /// The maps that the programs of this object want, with the sizes asked for; `None`: as the object declares them. Needs no privilege.
    pub fn of_object(elf: &[u8], sizes: impl Fn(&str) -> Option<u32>) -> Result<Self, LayoutError> {
        let unusable = |reason: String| LayoutError::Object { reason };
        let object = aya_obj::Object::parse(elf).map_err(|error| unusable(error.to_string()))?;
        let blob = object.btf.as_ref().ok_or_else(|| unusable("it has no .BTF section".to_owned()))?.to_bytes();
        let btf = Btf::parse(&blob).map_err(unusable)?;
        let describe = |name: &str| {
            let Some(Map::Btf(map)) = object.maps.get(name) else {
                return Err(unusable(format!("map {name} is missing")));
            };
            let record = |id| btf.record(id).map_err(|reason| unusable(format!("map {name}: {reason}")));
            let (key, value) = (record(map.def.btf_key_type_id)?, record(map.def.btf_value_type_id)?);
            let map = Map::Btf(map.clone());
            let (kind, flags) = (map.map_type(), map.map_flags());
            let max_entries = sizes(name).unwrap_or(map.max_entries());
            let meaning = tables::meaning(name);
            Ok((name.to_owned(), MapDescription { kind, max_entries, flags, meaning, key, value }))
        };
        let maps = map_name::ALL.into_iter().map(describe).collect::<Result<_, _>>()?;
        Ok(Self { format: FORMAT, abi: ABI_VERSION, maps })
    }

    /// What the maps pinned in the folder `set` say about themselves. `None`: nothing. They are of a version without descriptions, or the agent
    /// that made them was killed before it wrote one.
    pub fn read(set: &Path) -> Result<Option<Self>, LayoutError> {
        let path = set.join(map_name::LAYOUT);
        if !path.exists() {
            return Ok(None);
        }
        let map = RawTable::open(&path).map_err(LayoutError::access("open", map_name::LAYOUT))?;
        let blob = map.get(&0_u32.to_ne_bytes()).map_err(LayoutError::access("read", map_name::LAYOUT))?;
        let text: Vec<u8> = blob.unwrap_or_default().into_iter().take_while(|byte| *byte != 0).collect();
        if text.is_empty() {
            return Ok(None);
        }
        Self::parse(&text).map(Some).map_err(|reason| LayoutError::Description { set: set.to_owned(), reason })
    }

    /// The description in this text. The error says what is wrong with it.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        let Format { format } = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        if format != FORMAT {
            return Err(format!("its format is {format}, not {FORMAT}"));
        }
        serde_json::from_slice(text).map_err(|error| error.to_string())
    }

    /// Writes the description into the set that it is of, whose maps are made. Reads it back: what it says must survive.
    pub fn write(&self, set: &Path) -> Result<(), LayoutError> {
        let failed = LayoutError::access("write", map_name::LAYOUT);
        let text = match self.text() {
            Ok(text) => text,
            Err(error) => return Err(failed(error)),
        };
        let map = RawTable::open(&set.join(map_name::LAYOUT)).map_err(LayoutError::access("open", map_name::LAYOUT))?;
        map.put(&0_u32.to_ne_bytes(), &text, Condition::Always).map(drop).map_err(failed)
    }

    /// What `layout` holds: JSON, followed by zeroes.
    fn text(&self) -> io::Result<Vec<u8>> {
        let mut text = serde_json::to_vec(self)?;
        // One zero at least ends it.
        if text.len() >= LAYOUT_BYTES {
            return Err(io::Error::other(format!("{} bytes do not fit into {LAYOUT_BYTES}", text.len())));
        }
        text.resize(LAYOUT_BYTES, 0);
        Ok(text)
    }
}
