//! Objects of a list whose names cannot be read.

use super::*;

/// It may be any object: nothing that the list does not name goes for it.
#[test]
fn an_object_of_a_list_without_a_name_is_refused_and_removes_nothing() {
    let mut fixture = Fixture::new();
    fixture.slices(Vec::new());
    let status = fixture.services(vec![web("a"), Item::nameless(2)]);
    let refused: Vec<String> = status.refusals.iter().map(ToString::to_string).collect();
    assert!(
        refused[0].starts_with("Service (no name): it cannot be read: ") && refused[0].contains("2 objects"),
        "{refused:?}"
    );
    assert_eq!(fixture.names().unwrap(), ["a"]);
    // At a start it may be any service: all that the tables hold stays.
    let unread = fixture.snapshots.borrow().as_ref().unwrap().unread.clone();
    assert!(unread.iter().all(|unread| unread.may_be_service(&ObjectName::new("shop", "web"))) && unread.len() == 1);
    let status = fixture.services(vec![service("b", "10.96.0.2"), Item::nameless(1)]);
    assert_eq!((fixture.names().unwrap(), status.refusals.total()), (vec!["a".to_owned(), "b".to_owned()], 1));
    let status = fixture.services(vec![service("b", "10.96.0.2")]);
    assert_eq!((fixture.names().unwrap(), status.refusals.total()), (vec!["b".to_owned()], 0));
    assert!(fixture.snapshots.borrow().as_ref().unwrap().unread.is_empty());
}
