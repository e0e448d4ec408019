//! The types that an object's BTF describes, as far as records of maps consist of them.
//!
//! aya-obj reads BTF, too, but shows no types. Format: Linux, `Documentation/bpf/btf.rst`.

use std::collections::BTreeMap;

use super::record::{Element, Field, Record};

const MAGIC: u16 = 0xeb9f;
/// Structs in structs, and arrays in arrays.
const MOST_DEPTH: u32 = 16;
/// Arrays of structs are written out element by element, no larger ones than these.
const MOST_ELEMENTS: u32 = 64;
/// Bit of an `INT`'s encoding.
const SIGNED: u32 = 1;

/// One type.
#[derive(Debug)]
enum Type {
    Int {
        size: u32,
        is_signed: bool,
    },
    Array {
        of: u32,
        count: u32,
    },
    Struct {
        size: u32,
        members: Vec<Member>,
    },
    /// Another name of a type, or one with a qualifier.
    Alias(u32),
    /// What no record consists of.
    Other,
}

#[derive(Debug)]
struct Member {
    name: String,
    of: u32,
    bits: u32,
}

/// All types of an object, by number. Number 0 is `void`.
#[derive(Debug)]
pub(super) struct Btf(Vec<Type>);

impl Btf {
    /// Reads a `.BTF` section. The error says what is wrong with it.
    pub fn parse(blob: &[u8]) -> Result<Self, String> {
        Self::read(blob).ok_or_else(|| "its .BTF section does not parse".to_owned())
    }

    fn read(blob: &[u8]) -> Option<Self> {
        if u16::from_le_bytes(blob.get(..2)?.try_into().ok()?) != MAGIC {
            return None;
        }
        let header = number(blob, 4)? as usize;
        let section = |offset, length| {
            let start = header.checked_add(number(blob, offset)? as usize)?;
            blob.get(start..start.checked_add(number(blob, length)? as usize)?)
        };
        let (types, strings) = (section(8, 12)?, section(16, 20)?);
        let (mut all, mut at) = (vec![Type::Other], 0);
        while at < types.len() {
            let (one, length) = one(types.get(at..)?, strings)?;
            all.push(one);
            at += length;
        }
        Some(Self(all))
    }

    /// The layout of a record of this type. The error says which part of it has none.
    pub fn record(&self, id: u32) -> Result<Record, String> {
        let mut fields = BTreeMap::new();
        self.flatten(id, Record::WHOLE, 0, MOST_DEPTH, &mut fields)?;
        let size = self.size(id, MOST_DEPTH).ok_or_else(|| format!("type {id} has no size"))?;
        Ok(Record { size, fields })
    }

    fn flatten(
        &self,
        id: u32,
        path: &str,
        offset: u32,
        depth: u32,
        fields: &mut BTreeMap<String, Field>,
    ) -> Result<(), String> {
        let unknown = || format!("field {path:?} is neither a number nor made of numbers");
        let deeper = depth.checked_sub(1).ok_or_else(unknown)?;
        let mut add = |element, count| {
            fields.insert(path.to_owned(), Field { offset, element, count });
        };
        match self.0.get(id as usize).ok_or_else(unknown)? {
            // The unit type: a key that is none.
            Type::Int { size: 0, .. } => {}
            Type::Int { size, is_signed: true } => add(Element::Signed(*size), 1),
            Type::Int { size, is_signed: false } => add(Element::Unsigned(*size), 1),
            Type::Alias(of) => self.flatten(*of, path, offset, deeper, fields)?,
            Type::Struct { members, .. } => {
                for member in members {
                    let name = if path.is_empty() { member.name.clone() } else { format!("{path}.{}", member.name) };
                    self.flatten(member.of, &name, offset + member.bits / 8, deeper, fields)?;
                }
            }
            Type::Array { of, count } => match self.element(*of, deeper) {
                // An array of bytes, or of other numbers or groups of bytes.
                Some(Element::Unsigned(1) | Element::Signed(1)) => add(Element::Bytes(*count), 1),
                Some(element) => add(element, *count),
                None if *count <= MOST_ELEMENTS => {
                    let size = self.size(*of, deeper).ok_or_else(unknown)?;
                    for index in 0..*count {
                        self.flatten(*of, &format!("{path}[{index}]"), offset + index * size, deeper, fields)?;
                    }
                }
                None => return Err(format!("field {path:?} has more than {MOST_ELEMENTS} records")),
            },
            Type::Other => return Err(unknown()),
        }
        Ok(())
    }

    /// The type as an element of an array. `None`: it is more than a number or some bytes.
    fn element(&self, id: u32, depth: u32) -> Option<Element> {
        let deeper = depth.checked_sub(1)?;
        match self.0.get(id as usize)? {
            Type::Int { size, is_signed: true } => Some(Element::Signed(*size)),
            Type::Int { size, is_signed: false } => Some(Element::Unsigned(*size)),
            Type::Alias(of) => self.element(*of, deeper),
            Type::Array { of, count } => (self.element(*of, deeper)?.size() == 1).then_some(Element::Bytes(*count)),
            Type::Struct { .. } | Type::Other => None,
        }
    }

    fn size(&self, id: u32, depth: u32) -> Option<u32> {
        let deeper = depth.checked_sub(1)?;
        match self.0.get(id as usize)? {
            Type::Int { size, .. } | Type::Struct { size, .. } => Some(*size),
            Type::Alias(of) => self.size(*of, deeper),
            Type::Array { of, count } => self.size(*of, deeper)?.checked_mul(*count),
            Type::Other => None,
        }
    }
}

/// The type at the start of `blob`, and how many bytes it takes there.
fn one(blob: &[u8], strings: &[u8]) -> Option<(Type, usize)> {
    const HEADER: usize = 12;
    let info = number(blob, 4)?;
    let (kind, vlen, word) = (info >> 24 & 0x1f, info & 0xffff, number(blob, 8)?);
    let many = |each: usize| HEADER + each * vlen as usize;
    Some(match kind {
        // INT: encoding, offset and bits in one word.
        1 => (Type::Int { size: word, is_signed: number(blob, HEADER)? >> 24 & SIGNED != 0 }, HEADER + 4),
        // ARRAY: type of the elements, of the index, count.
        3 => (Type::Array { of: number(blob, HEADER)?, count: number(blob, HEADER + 8)? }, HEADER + 12),
        // STRUCT: name, type and place in bits of each member.
        4 => {
            let member = |index: u32| {
                let at = HEADER + 12 * index as usize;
                let name = text(strings, number(blob, at)? as usize)?;
                Some(Member { name, of: number(blob, at + 4)?, bits: number(blob, at + 8)? })
            };
            let members = (0..vlen).map(member).collect::<Option<_>>()?;
            (Type::Struct { size: word, members }, many(12))
        }
        // TYPEDEF, VOLATILE, CONST, RESTRICT, TYPE_TAG.
        8 | 9 | 10 | 11 | 18 => (Type::Alias(word), HEADER),
        // UNION, DATASEC, ENUM64.
        5 | 15 | 19 => (Type::Other, many(12)),
        // ENUM, FUNC_PROTO.
        6 | 13 => (Type::Other, many(8)),
        // VAR, DECL_TAG.
        14 | 17 => (Type::Other, HEADER + 4),
        // PTR, FWD, FUNC, FLOAT.
        2 | 7 | 12 | 16 => (Type::Other, HEADER),
        _ => return None,
    })
}

fn number(blob: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(blob.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn text(strings: &[u8], at: usize) -> Option<String> {
    let rest = strings.get(at..)?;
    let end = rest.iter().position(|byte| *byte == 0)?;
    String::from_utf8(rest[..end].to_vec()).ok()
}
