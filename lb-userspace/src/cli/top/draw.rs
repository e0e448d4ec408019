//! The screen of `top` as cells. Pure.

use std::time::Duration;

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Paragraph, Row, Table, Widget as _};

use super::model::{Model, View};
use super::readings::Status;
use crate::observe::table::or_dash;
use crate::observe::top::{BACKEND_COLUMNS, SERVICE_COLUMNS};

/// Between two columns.
const GAP: u16 = 2;
/// Names are not cut below this width.
const LEAST_NAME: u16 = 8;

const HELP: [&str; 14] = [
    "j, Down        next row",
    "k, Up          row before",
    "g, Home        first row",
    "G, End         last row",
    "PageUp, Ctrl-B one page up",
    "PageDown, Ctrl-F one page down",
    "Enter          backends of the service",
    "Esc            back to the services; there: no filter",
    "/              filter by a part of NAMESPACE/SERVICE:PORT",
    "s              sort by the next of name, new/s, open, retries/s, refused/s, deadline",
    "Ctrl-L         draw all of the screen again",
    "Ctrl-Z         suspend, until `fg`",
    "?              this help, and back",
    "q, Ctrl-C      quit",
];

/// How parts look. Without colours, the terminal's own are used, bold and reversed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Theme {
    is_coloured: bool,
}

impl Theme {
    /// `NO_COLOR` (<https://no-color.org>) asks for none, whatever its value, unless that is empty.
    pub fn of_environment() -> Self {
        Self { is_coloured: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) }
    }

    const fn coloured(self, style: Style, colour: Color) -> Style {
        if self.is_coloured { style.fg(colour) } else { style }
    }

    fn problem(self) -> Style {
        self.coloured(Style::new().add_modifier(Modifier::BOLD), Color::Red)
    }

    fn notable(self) -> Style {
        self.coloured(Style::new(), Color::Yellow)
    }
}

/// All of the screen.
pub(super) fn draw(model: &mut Model, status: &Status, interval: Duration, theme: Theme, area: Rect) -> Buffer {
    let mut buffer = Buffer::empty(area);
    let problems = u16::try_from(status.problems.len()).unwrap_or(u16::MAX);
    let heights = [
        Constraint::Length(1),
        Constraint::Length(u16::from(!status.source.is_empty())),
        Constraint::Length(problems),
        Constraint::Min(0),
        Constraint::Length(1),
    ];
    let [title, source, faults, body, foot] = Layout::vertical(heights).areas(area);
    line(&title_text(model, interval), Style::new().add_modifier(Modifier::BOLD), title, &mut buffer);
    line(&format!("source: {}", status.source), Style::new(), source, &mut buffer);
    for (problem, row) in status.problems.iter().zip(faults.rows()) {
        line(problem, theme.problem(), row, &mut buffer);
    }
    if model.is_help {
        Paragraph::new(HELP.map(Line::from).to_vec()).render(body, &mut buffer);
    } else {
        table(model, status, theme, body, &mut buffer);
    }
    line(&foot_text(model), Style::new().add_modifier(Modifier::DIM), foot, &mut buffer);
    buffer
}

fn title_text(model: &Model, interval: Duration) -> String {
    let all = model.all();
    // It begins with 0: a sum of no numbers is -0.
    let new = all.iter().try_fold(0.0, |sum, row| Some(sum + row.rates?.connections));
    let new = or_dash(new.map(|new| format!("{new:.0}")));
    let open: u64 = all.iter().map(|row| row.open).sum();
    let interval = humantime::format_duration(interval);
    format!("top: {} service ports, {new} new/s, {open} open, every {interval}", all.len())
}

fn foot_text(model: &Model) -> String {
    if model.is_typing() {
        return format!("/{}_  Enter: keep, Esc: undo", model.filter);
    }
    if model.is_help {
        return "Esc back".to_owned();
    }
    match model.view() {
        View::Backends(..) => "Esc back  ? help  q quit".to_owned(),
        View::Services(_) => {
            let filter = if model.filter.is_empty() { String::new() } else { format!("  filter: {}", model.filter) };
            format!("Enter backends  / filter  s sort ({})  ? help  q quit{filter}", model.order.name())
        }
    }
}

fn line(text: &str, style: Style, area: Rect, buffer: &mut Buffer) {
    Line::styled(fit(text, area.width), style).render(area, buffer);
}

/// The text; where it is too long, its end is replaced by `…`.
fn fit(text: &str, width: u16) -> String {
    let width = usize::from(width);
    if Text::raw(text).width() <= width {
        return text.to_owned();
    }
    let mut short = String::new();
    for letter in text.chars() {
        short.push(letter);
        if Text::raw(short.as_str()).width() >= width {
            short.pop();
            break;
        }
    }
    short + "…"
}

/// A row of the table, and whether something in it asks for attention.
struct Shown {
    cells: Vec<String>,
    is_notable: bool,
}

fn table(model: &mut Model, status: &Status, theme: Theme, area: Rect, buffer: &mut Buffer) {
    let page = usize::from(area.height.saturating_sub(1));
    let (header, names, rows, selected): (&[&str], usize, Vec<Shown>, usize) = match model.view() {
        View::Services(services) => {
            let count = services.len();
            if count == 0 {
                return line(&empty(model, status), Style::new(), area, buffer);
            }
            let mut cursor = model.services.clone();
            cursor.fit(page, count);
            let on_screen = services.iter().skip(cursor.offset).take(page);
            let is_notable = |rates: crate::observe::top::ServiceRate| rates.retries > 0.0 || rates.refusals > 0.0;
            let rows = on_screen.map(|row| Shown {
                cells: row.cells(status.elapsed),
                is_notable: row.rates.is_some_and(is_notable) || row.backends.iter().all(|backend| !backend.takes),
            });
            let found = (&SERVICE_COLUMNS[..], 3, rows.collect(), cursor.index - cursor.offset);
            model.services = cursor;
            found
        }
        View::Backends(name, service) => {
            let [title, rest] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(area);
            let Some(service) = service else {
                return line(&format!("{name} is gone"), theme.notable(), title, buffer);
            };
            line(&format!("{name} {}", service.protocol), Style::new(), title, buffer);
            let mut cursor = model.backends.clone();
            cursor.fit(page.saturating_sub(1), service.backends.len());
            let on_screen = service.backends.iter().skip(cursor.offset).take(page.saturating_sub(1));
            let rows: Vec<_> =
                on_screen.map(|row| Shown { cells: row.cells(status.elapsed), is_notable: !row.takes }).collect();
            let selected = cursor.index - cursor.offset;
            model.backends = cursor;
            return body(&BACKEND_COLUMNS, 2, &rows, selected, theme, rest, buffer);
        }
    };
    body(header, names, &rows, selected, theme, area, buffer);
}

/// Why there are no rows.
fn empty(model: &Model, status: &Status) -> String {
    match (status.is_read, model.all().is_empty()) {
        (false, _) => "reading the tables".to_owned(),
        (true, true) => "no services".to_owned(),
        (true, false) => format!("no service has {:?} in its name", model.filter),
    }
}

/// Header and rows. The first `names` columns are names: they are cut, visibly, where the screen is too narrow.
fn body(header: &[&str], names: usize, rows: &[Shown], selected: usize, theme: Theme, area: Rect, buffer: &mut Buffer) {
    let widths = widths(header, names, rows, area.width);
    let cell = |(column, text): (usize, &str)| {
        let text = Text::raw(fit(text, widths[column]));
        Cell::from(if column < names { text } else { text.right_aligned() })
    };
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let head = Row::new(header.iter().copied().enumerate().map(cell)).style(bold);
    let lines = rows.iter().enumerate().map(|(index, row)| {
        let style = if row.is_notable { theme.notable() } else { Style::new() };
        let style = if index == selected { style.add_modifier(Modifier::REVERSED) } else { style };
        Row::new(row.cells.iter().map(String::as_str).enumerate().map(cell)).style(style)
    });
    let constraints = widths.iter().map(|width| Constraint::Length(*width));
    ratatui::widgets::Widget::render(Table::new(lines, constraints).header(head).column_spacing(GAP), area, buffer);
}

/// Each column is as wide as its longest text. Where the screen is too narrow, the widest of the names gives way first.
fn widths(header: &[&str], names: usize, rows: &[Shown], width: u16) -> Vec<u16> {
    let longest = |column: usize| {
        let cells = rows.iter().map(|row| row.cells[column].as_str()).chain([header[column]]);
        u16::try_from(cells.map(|text| Text::raw(text).width()).max().unwrap_or(0)).unwrap_or(u16::MAX)
    };
    let mut widths: Vec<u16> = (0..header.len()).map(longest).collect();
    let gaps = u32::from(GAP) * u32::try_from(header.len().saturating_sub(1)).unwrap_or(0);
    let mut excess = (widths.iter().copied().map(u32::from).sum::<u32>() + gaps).saturating_sub(width.into());
    while excess > 0 {
        let Some(widest) = widths[..names].iter_mut().max().filter(|widest| **widest > LEAST_NAME) else { break };
        *widest -= 1;
        excess -= 1;
    }
    widths
}

#[cfg(test)]
mod tests {
    use super::super::model::tests::{model, press, service};
    use super::*;
    use crate::observe::top::ServiceRow;

    const PLAIN: Theme = Theme { is_coloured: false };

    fn status() -> Status {
        Status { source: "kube fresh".into(), is_read: true, ..Status::default() }
    }

    fn screen(model: &mut Model, status: &Status, width: u16, height: u16) -> Vec<String> {
        let buffer = draw(model, status, Duration::from_secs(2), PLAIN, Rect::new(0, 0, width, height));
        let rows = buffer.content.chunks(usize::from(width));
        rows.map(|row| row.iter().map(ratatui::buffer::Cell::symbol).collect::<String>().trim_end().to_owned())
            .collect()
    }

    #[test]
    fn services_are_listed_below_the_state_of_the_readings() {
        let mut model = model(&["web", "dns"]);
        let problem = Status { source: String::new(), problems: vec!["agent: no answer for 7s".into()], ..status() };
        for (status, second) in [(status(), "source: kube fresh"), (problem, "agent: no answer for 7s")] {
            let lines = screen(&mut model, &status, 120, 8);
            assert_eq!(lines[0], "top: 2 service ports, 3 new/s, 20 open, every 2s");
            assert_eq!(lines[1], second);
            let header: Vec<_> = lines[2].split_whitespace().collect();
            assert_eq!(header, SERVICE_COLUMNS);
            let web: Vec<_> = lines[3].split_whitespace().collect();
            assert_eq!(web, ["demo", "web", "80/TCP", "1.0", "10", "2", "0", "0", "-", "1/2", "1", "30s"]);
            assert!(lines[7].contains("q quit"), "{}", lines[7]);
        }
    }

    #[test]
    fn enter_shows_backends_whose_drains_count_down() {
        let mut model = model(&["web", "dns"]);
        press(&mut model, "j\n");
        let lines = screen(&mut model, &Status { elapsed: 4, ..status() }, 100, 9);
        assert_eq!(lines[2], "demo/dns:80 TCP");
        let draining: Vec<_> = lines[5].split_whitespace().collect();
        assert_eq!(draining, ["10.1.2.2:8080", "draining", "-", "5", "1", "-", "-", "6s", "26s"]);
        model.take(Vec::new());
        assert!(screen(&mut model, &status(), 100, 9)[2].contains("demo/dns:80 is gone"));
    }

    #[test]
    fn the_selected_row_is_marked_and_on_the_screen() {
        let mut model = model(&["a", "b", "c", "d", "e", "f"]);
        press(&mut model, "G");
        let area = Rect::new(0, 0, 100, 7);
        let buffer = draw(&mut model, &status(), Duration::from_secs(2), PLAIN, area);
        let marked = (0..7).filter(|y| buffer[(0, *y)].modifier.contains(Modifier::REVERSED)).collect::<Vec<_>>();
        assert_eq!(marked, [5], "the last line before the foot");
        assert!(screen(&mut model, &status(), 100, 7)[5].contains("  f  "));
    }

    #[test]
    fn a_name_that_does_not_fit_is_cut_visibly_and_numbers_are_not() {
        let mut model = Model::default();
        model.take(vec![service(1, &"n".repeat(80), 12_345.0)]);
        let lines = screen(&mut model, &status(), 100, 6);
        let cells: Vec<_> = lines[3].split_whitespace().collect();
        assert!(cells[1].ends_with('…') && cells[1].starts_with("nnn"), "{}", lines[3]);
        assert_eq!((cells[3], cells[11]), ("12345", "30s"));
        assert_eq!(fit("longer", 4), "lon…");
        assert_eq!(fit("same", 4), "same");
    }

    #[test]
    fn nothing_is_too_small_to_draw_on() {
        for keys in ["", "\n", "?", "/x"] {
            let mut model = model(&["web", "dns"]);
            press(&mut model, keys);
            let problems = Status { problems: vec!["one".into(), "two".into()], ..status() };
            for (width, height) in (0..7).flat_map(|height| [0, 1, 9, 40].map(|width| (width, height))) {
                draw(&mut model, &problems, Duration::from_secs(2), PLAIN, Rect::new(0, 0, width, height));
            }
        }
    }

    #[test]
    fn without_colours_none_are_used() {
        let mut model = model(&["web"]);
        let problems = Status { problems: vec!["one".into()], ..status() };
        let colours = |theme, model: &mut Model| {
            let buffer = draw(model, &problems, Duration::from_secs(2), theme, Rect::new(0, 0, 80, 8));
            buffer.content.iter().filter(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset).count()
        };
        assert_eq!(colours(PLAIN, &mut model), 0);
        assert!(colours(Theme { is_coloured: true }, &mut model) > 0);
    }

    #[test]
    fn what_is_missing_is_said() {
        let mut model = Model::default();
        let unread = Status { is_read: false, ..status() };
        assert_eq!(screen(&mut model, &unread, 60, 6)[2], "reading the tables");
        let empty = screen(&mut model, &status(), 60, 6);
        assert_eq!((&*empty[0], &*empty[2]), ("top: 0 service ports, 0 new/s, 0 open, every 2s", "no services"));
        // Rates need an earlier reading.
        model.take(vec![ServiceRow { rates: None, ..service(1, "web", 0.0) }]);
        assert_eq!(screen(&mut model, &status(), 60, 6)[0], "top: 1 service ports, - new/s, 10 open, every 2s");
        model.take(vec![service(1, "web", 0.0)]);
        press(&mut model, "/zzz");
        assert_eq!(screen(&mut model, &status(), 60, 6)[2], "no service has \"zzz\" in its name");
        press(&mut model, "\x1b?");
        assert!(screen(&mut model, &status(), 60, 20).iter().any(|line| line.contains("back to the services")));
    }
}
