//! Keys and selections, without a terminal.

use super::*;
use crate::observe::top::ServiceRate;

pub fn service(id: u32, name: &str, new: f64) -> ServiceRow {
    let backend = |last: u32| BackendRow {
        address: format!("10.1.{id}.{last}:8080"),
        state: if last == 1 { "active".into() } else { "draining".into() },
        takes: last == 1,
        rates: None,
        open: 5,
        half_open: 1,
        drain_seconds: (last != 1).then_some(10),
        deadline_seconds: (last != 1).then_some(30),
    };
    ServiceRow {
        id,
        namespace: "demo".into(),
        name: name.into(),
        port: 80,
        protocol: "TCP",
        rates: Some(ServiceRate { connections: new, ..ServiceRate::default() }),
        open: 10,
        half_open: 2,
        backends: vec![backend(1), backend(2)],
    }
}

pub fn model(names: &[&str]) -> Model {
    let mut model = Model::default();
    model.take((1..).zip(names).map(|(id, name)| service(id, name, f64::from(id))).collect());
    model
}

pub fn press(model: &mut Model, keys: &str) -> After {
    keys.chars().fold(After::Go, |_, letter| {
        model.press(match letter {
            '\n' => Key::Enter,
            '\x1b' => Key::Escape,
            letter => Key::Char(letter),
        })
    })
}

fn shown(model: &Model) -> Vec<&str> {
    match model.view() {
        View::Services(rows) => rows.iter().map(|row| row.name.as_str()).collect(),
        View::Backends(name, _) => vec![name],
    }
}

fn selected(model: &Model) -> &str {
    shown(model)[model.services.index]
}

#[test]
fn escape_leaves_backends_and_not_the_list() {
    let mut model = model(&["a", "b"]);
    assert_eq!(press(&mut model, "j\n"), After::Go);
    assert_eq!(shown(&model), ["demo/b:80"]);
    assert_eq!(press(&mut model, "\x1b"), After::Go);
    assert_eq!(shown(&model), ["a", "b"]);
    assert_eq!(selected(&model), "b");
    assert_eq!(press(&mut model, "\x1b\x1b\x1b"), After::Go);
    assert_eq!(shown(&model), ["a", "b"]);
    assert_eq!(press(&mut model, "q"), After::Quit);
}

#[test]
fn the_selection_moves_within_the_list() {
    let mut model = model(&["a", "b", "c", "d", "e"]);
    model.services.fit(2, 5);
    for (key, expected) in [
        (Key::Up, "a"),
        (Key::Down, "b"),
        (Key::PageDown, "d"),
        (Key::PageUp, "b"),
        (Key::Char('G'), "e"),
        (Key::Char('j'), "e"),
        (Key::PageDown, "e"),
        (Key::Char('g'), "a"),
        (Key::End, "e"),
        (Key::Char('k'), "d"),
        (Key::Home, "a"),
    ] {
        model.press(key);
        assert_eq!(selected(&model), expected, "{key:?}");
    }
}

#[test]
fn the_selection_stays_with_its_service() {
    let mut model = model(&["b", "c"]);
    press(&mut model, "j");
    model.take(vec![service(9, "a", 0.0), service(1, "b", 0.0), service(2, "c", 0.0)]);
    assert_eq!(selected(&model), "c");
    model.take(vec![service(9, "a", 0.0)]);
    assert_eq!(selected(&model), "a");
    model.take(Vec::new());
    assert_eq!(press(&mut model, "jkgG\n\x1b"), After::Go);
}

#[test]
fn a_filter_narrows_while_it_is_typed() {
    let mut model = model(&["web", "dns", "queue"]);
    press(&mut model, "/WE");
    assert_eq!(shown(&model), ["web"]);
    press(&mut model, "\nj");
    assert_eq!((shown(&model), model.is_typing()), (vec!["web"], false));
    // `q` is a letter while a filter is typed; Escape undoes it.
    assert_eq!(press(&mut model, "/q"), After::Go);
    assert_eq!(shown(&model), Vec::<&str>::new());
    press(&mut model, "\x1b");
    assert_eq!(shown(&model), ["web"]);
    press(&mut model, "\x1b");
    assert_eq!(shown(&model), ["web", "dns", "queue"]);
}

#[test]
fn services_can_be_ordered_by_what_they_do() {
    let mut model = model(&["a", "b", "c"]);
    press(&mut model, "s");
    assert_eq!((model.order, shown(&model)), (Order::New, vec!["c", "b", "a"]));
    press(&mut model, "sssss");
    assert_eq!((model.order, shown(&model)), (Order::Name, vec!["a", "b", "c"]));
}

#[test]
fn help_hides_no_key_but_its_own() {
    let mut model = model(&["a"]);
    press(&mut model, "?");
    assert!(model.is_help);
    assert_eq!(press(&mut model, "q"), After::Go, "it closes the help");
    assert!(!model.is_help);
    press(&mut model, "?");
    assert_eq!(model.press(Key::Interrupt), After::Quit);
}

#[test]
fn a_service_that_is_gone_leaves_its_view_empty() {
    let mut model = model(&["a"]);
    press(&mut model, "\n");
    model.take(Vec::new());
    assert!(matches!(model.view(), View::Backends("demo/a:80", None)));
    press(&mut model, "jG");
    press(&mut model, "\x1b");
    assert!(matches!(model.view(), View::Services(rows) if rows.is_empty()));
}

#[test]
fn the_selected_row_is_on_the_screen() {
    let mut cursor = Cursor::<u32>::default();
    for (index, page, rows, offset) in
        [(0, 3, 10, 0), (5, 3, 10, 3), (4, 3, 10, 3), (2, 3, 10, 2), (9, 3, 10, 7), (1, 9, 2, 0)]
    {
        cursor.index = index;
        cursor.fit(page, rows);
        assert_eq!(cursor.offset, offset, "{index} of {rows}");
    }
}
