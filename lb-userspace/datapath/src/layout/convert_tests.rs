use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn record(fields: &[(&str, &str)]) -> Record {
    let fields: BTreeMap<String, Field> =
        fields.iter().map(|(name, text)| ((*name).to_owned(), text.parse().unwrap())).collect();
    let size = fields.values().map(|field| field.offset + field.size()).max().unwrap_or(0);
    Record { size, fields }
}

fn convert(old: &Record, new: &Record, bytes: &[u8]) -> Result<Vec<u8>, Misfit> {
    Converter::new(old, new, |_| None).unwrap().convert(bytes)
}

#[test]
fn fields_go_over_by_name_wherever_they_are() {
    let old = record(&[("backend", "u32@0"), ("port", "u16@4"), ("gone", "u16@6")]);
    let new = record(&[("port", "u16@0"), ("added", "u16@2"), ("backend", "u32@4")]);
    assert_eq!(convert(&old, &new, &[1, 2, 3, 4, 5, 6, 9, 9]), Ok(vec![5, 6, 0, 0, 1, 2, 3, 4]));
}

#[test]
fn a_new_field_begins_with_its_own_value() {
    let (old, new) = (record(&[("a", "u8@0")]), record(&[("a", "u8@0"), ("b", "u16@1")]));
    let converter = Converter::new(&old, &new, |field| (field == "b").then_some(0x0102)).unwrap();
    assert!(!converter.keeps_zeroes());
    assert_eq!(converter.convert(&[7]), Ok(vec![7, 2, 1]));
}

#[test]
fn numbers_grow_with_their_sign_and_shrink_if_they_fit() {
    let (byte, word) = (record(&[("n", "i8@0")]), record(&[("n", "i32@0")]));
    assert_eq!(convert(&byte, &word, &[0xfe]), Ok(vec![0xfe, 0xff, 0xff, 0xff]));
    assert_eq!(convert(&word, &byte, &[0xfe, 0xff, 0xff, 0xff]), Ok(vec![0xfe]));
    let misfit = convert(&word, &byte, &[0x80, 0, 0, 0]).unwrap_err();
    assert_eq!((misfit.field.as_str(), misfit.value.as_str()), ("n", "128"));
    let (short, long) = (record(&[("n", "u16@0")]), record(&[("n", "u64@0")]));
    assert_eq!(convert(&short, &long, &[0xff, 0xff]), Ok(vec![0xff, 0xff, 0, 0, 0, 0, 0, 0]));
    assert!(convert(&long, &short, &[0, 0, 1, 0, 0, 0, 0, 0]).is_err());
}

#[test]
fn arrays_and_text_lose_nothing_but_zeroes() {
    let (three, two) = (record(&[("tried", "u32[3]@0")]), record(&[("tried", "u16[2]@0")]));
    assert_eq!(convert(&three, &two, &[1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]), Ok(vec![1, 0, 2, 0]));
    assert!(convert(&three, &two, &[1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0]).is_err());
    let (long, short) = (record(&[("name", "u8[4]@0")]), record(&[("name", "u8[2]@0")]));
    assert_eq!(convert(&long, &short, b"ab\0\0"), Ok(b"ab".to_vec()));
    assert!(convert(&long, &short, b"abc\0").is_err());
    assert_eq!(convert(&short, &long, b"ab"), Ok(b"ab\0\0".to_vec()));
}

#[test]
fn a_number_does_not_become_an_address_of_another_size() {
    let (number, bytes) = (record(&[("a", "u32@0")]), record(&[("a", "u8[4]@0")]));
    assert_eq!(convert(&number, &bytes, &[1, 2, 3, 4]), Ok(vec![1, 2, 3, 4]));
    let refused = Converter::new(&number, &record(&[("a", "u8[16]@0")]), |_| None).unwrap_err();
    assert_eq!(refused.field, "a");
}

#[test]
fn a_record_that_is_cut_off_is_no_record() {
    let record = record(&[("a", "u32@0")]);
    assert!(convert(&record, &record, &[1, 2, 3]).is_err());
}

/// Names of fields that random layouts draw from.
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// A layout of some of these fields, each a number of some size or three of them, in some order.
fn layout() -> impl Strategy<Value = Record> {
    let fields = (Just(NAMES.to_vec()).prop_shuffle(), proptest::collection::vec((0..4_u32, any::<bool>()), 1..=6));
    fields.prop_map(|(names, kinds)| {
        let mut offset = 0;
        let field = |(name, (power, is_array)): (&str, (u32, bool))| {
            let (element, count) = (Element::Unsigned(1 << power), if is_array { 3 } else { 1 });
            let field = Field { offset, element, count };
            offset += field.size();
            (name.to_owned(), field)
        };
        let fields: BTreeMap<String, Field> = names.into_iter().zip(kinds).map(field).collect();
        Record { size: offset, fields }
    })
}

/// The numbers of a field that both layouts have room for.
fn common(record: &[u8], field: Field, count: u32) -> Vec<i128> {
    let size = field.element.size() as usize;
    let bytes = field.of(record).unwrap();
    bytes.chunks_exact(size).take(count as usize).map(|bytes| number(field.element, bytes)).collect()
}

proptest! {
    #![proptest_config(lb_seed::property(file!(), 2000))]

    /// There and back: what both layouts have is as it was, whatever lies between; or the way there names a field that does not fit.
    #[test]
    fn what_both_layouts_have_survives(old in layout(), new in layout(), noise in proptest::collection::vec(0..4_u8, 144)) {
        let record: Vec<u8> = noise[..old.size as usize].to_vec();
        match convert(&old, &new, &record) {
            Ok(converted) => {
                prop_assert_eq!(converted.len(), new.size as usize);
                for (name, field) in &new.fields {
                    let Some(before) = old.field(name) else {
                        prop_assert!(field.of(&converted).unwrap().iter().all(|byte| *byte == 0));
                        continue;
                    };
                    let count = before.count.min(field.count);
                    prop_assert_eq!(common(&record, before, count), common(&converted, *field, count));
                }
                let back = convert(&new, &old, &converted).unwrap();
                for (name, field) in old.fields.iter().filter(|(name, _)| new.field(name).is_some()) {
                    prop_assert_eq!(field.of(&back), field.of(&record), "{}", name);
                }
            }
            Err(Misfit { field, .. }) => {
                let (before, after) = (old.field(&field).unwrap(), new.field(&field).unwrap());
                prop_assert!(before.element.size() > after.element.size() || before.count > after.count);
            }
        }
    }
}
