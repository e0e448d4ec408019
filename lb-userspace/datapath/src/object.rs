//! The eBPF object, in this binary or given by a developer, and the one change made to it before it is loaded.

use std::{collections::BTreeMap, fs, path::Path};

use aya_obj::generated::bpf_map_type;
use object::{Object as _, ObjectSection as _};

use super::{DatapathError, map_definition::MapDefinition, settings::DatapathSettings};

static EMBEDDED: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/ballast.o"));

const BTF_MAGIC: u16 = 0xeb9f;
const BTF_KIND_INT: u32 = 1;
/// Bytes after each type's header, by kind; `None`: that many per member (`vlen`).
const FIXED: [(u32, usize); 4] = [(BTF_KIND_INT, 4), (3, 12), (14, 4), (17, 4)];
const PER_MEMBER: [(u32, usize); 6] = [(4, 12), (5, 12), (6, 8), (13, 8), (15, 12), (19, 12)];
const ENCODING_SHIFT: u32 = 24;
const ENCODING_CHAR: u32 = 2;

/// Whether this binary carries programs at all.
pub fn is_embedded() -> bool {
    !EMBEDDED.is_empty()
}

/// The object of this file, else the one in this binary, ready to be loaded: its BTF shows text as text.
pub(super) fn read(programs: Option<&Path>) -> Result<Vec<u8>, DatapathError> {
    let Some(path) = programs else {
        if EMBEDDED.is_empty() {
            return Err(DatapathError::NoPrograms);
        }
        let mut elf = EMBEDDED.to_vec();
        show_i8_as_text(&mut elf)?;
        return Ok(elf);
    };
    let unusable = |reason: String| DatapathError::BadPrograms { path: path.into(), reason };
    let mut elf = fs::read(path).map_err(|error| unusable(error.to_string()))?;
    show_i8_as_text(&mut elf)
        .map_err(|error| if let DatapathError::BadObject { reason } = error { unusable(reason) } else { error })?;
    tracing::warn!("the programs are those of {}, not those in this binary (--programs)", path.display());
    Ok(elf)
}

/// The shape of each map that the programs of this object want, with the sizes asked for.
pub(super) fn shapes(
    elf: &[u8],
    settings: &DatapathSettings,
) -> Result<BTreeMap<String, MapDefinition>, DatapathError> {
    let object = aya_obj::Object::parse(elf).map_err(|error| bad(&error))?;
    Ok(object
        .maps
        .iter()
        .map(|(name, map)| {
            let map_definition = MapDefinition {
                kind: map.map_type(),
                key_size: map.key_size(),
                value_size: if map.map_type() == bpf_map_type::BPF_MAP_TYPE_RINGBUF as u32 {
                    0
                } else {
                    map.value_size()
                },
                max_entries: settings.entries(name).unwrap_or(map.max_entries()),
                flags: map.map_flags(),
            };
            (name.clone(), map_definition)
        })
        .collect())
}

/// Rust's `i8` is C's `char` in this object: only text is made of it, and `bpftool map dump` then prints it as text.
fn show_i8_as_text(elf: &mut [u8]) -> Result<(), DatapathError> {
    let (start, length) = {
        let file = object::File::parse(&*elf).map_err(|error| bad(&error))?;
        let Some(section) = file.section_by_name(".BTF") else { return Err(bad("it has no .BTF section")) };
        section.file_range().ok_or_else(|| bad(".BTF is empty"))?
    };
    let range = usize::try_from(start).ok().zip(usize::try_from(length).ok());
    let btf =
        range.and_then(|(start, length)| elf.get_mut(start..start + length)).ok_or_else(|| bad(".BTF is cut off"))?;
    patch(btf).ok_or_else(|| bad(".BTF does not parse"))
}

fn patch(btf: &mut [u8]) -> Option<()> {
    if u16::from_le_bytes(btf.get(..2)?.try_into().ok()?) != BTF_MAGIC {
        return None;
    }
    let header = word(btf, 4)?;
    let (types, types_length) = (header + word(btf, 8)?, word(btf, 12)?);
    let strings = header + word(btf, 16)?;
    let mut at = types;
    while at < types + types_length {
        let name = strings + word(btf, at)?;
        let info = u32::try_from(word(btf, at + 4)?).ok()?;
        let (kind, members) = ((info >> 24) & 0x1f, (info & 0xffff) as usize);
        let data = at + 12;
        if kind == BTF_KIND_INT && btf.get(name..name + 3)? == b"i8\0" {
            let encoding = u32::try_from(word(btf, data)?).ok()? & 0x00ff_ffff | ENCODING_CHAR << ENCODING_SHIFT;
            btf.get_mut(data..data + 4)?.copy_from_slice(&encoding.to_le_bytes());
        }
        let size = |table: &[(u32, usize)]| table.iter().find(|(of, _)| *of == kind).map_or(0, |(_, size)| *size);
        at = data + size(&FIXED) + size(&PER_MEMBER) * members;
    }
    Some(())
}

fn word(bytes: &[u8], at: usize) -> Option<usize> {
    let word = u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?);
    usize::try_from(word).ok()
}

fn bad(reason: &(impl ToString + ?Sized)) -> DatapathError {
    DatapathError::BadObject { reason: reason.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A BTF blob with an array, `i8` and `i32`, in this order.
    fn btf() -> Vec<u8> {
        let strings = b"\0i8\0i32\0";
        let mut types: Vec<u32> = vec![0, 3 << 24, 0, 2, 3, 64];
        types.extend([1, 1 << 24, 1, 1 << 24 | 8]);
        types.extend([4, 1 << 24, 4, 1 << 24 | 32]);
        let types: Vec<u8> = types.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut blob = BTF_MAGIC.to_le_bytes().to_vec();
        blob.extend([1, 0]);
        for word in [24, 0, types.len(), types.len(), strings.len()] {
            blob.extend(u32::try_from(word).expect("small").to_le_bytes());
        }
        blob.extend(&types);
        blob.extend(strings);
        blob
    }

    #[test]
    fn a_file_that_is_no_object_is_refused_by_name() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let (missing, text) = (folder.path().join("missing.o"), folder.path().join("text.o"));
        std::fs::write(&text, "no object").expect("written");
        for (path, reason) in [(missing, "No such file"), (text, "file magic")] {
            let error = read(Some(&path)).expect_err("no object").to_string();
            let named = error.contains(&format!("--programs {}", path.display()));
            assert!(named && error.contains(reason) && error.contains("cargo xtask build"), "{error}");
        }
    }

    #[test]
    fn only_i8_becomes_char() {
        let mut blob = btf();
        patch(&mut blob).expect("well-formed");
        let int_data = |index: usize| u32::from_le_bytes(blob[index..index + 4].try_into().expect("four bytes"));
        assert_eq!(int_data(24 + 24 + 12), 2 << 24 | 8, "i8 is text");
        assert_eq!(int_data(24 + 24 + 16 + 12), 1 << 24 | 32, "i32 stays signed");
    }

    #[test]
    fn a_cut_blob_is_refused() {
        for length in 0..btf().len() - 8 {
            assert!(patch(&mut btf()[..length]).is_none(), "{length} bytes");
        }
    }
}
