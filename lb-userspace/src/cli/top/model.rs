//! What the screen of `top` shows, and what the keys change. Pure.

#![allow(clippy::wildcard_enum_match_arm, reason = "a key that is not named does nothing")]

use std::cmp::Ordering;

use super::keys::Key;
use crate::observe::top::{BackendRow, ServiceRow};

/// A longer filter finds nothing that a shorter one does not.
const LONGEST_FILTER: usize = 100;

/// What the loop does after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    Go,
    /// The terminal shows something else than what was drawn: draw all of it.
    Redraw,
    /// Give the terminal away for a time.
    Suspend,
    Quit,
}

/// The order of the services.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Order {
    #[default]
    Name,
    New,
    Open,
    Retries,
    Refused,
    Deadline,
}

impl Order {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::New => "new/s",
            Self::Open => "open",
            Self::Retries => "retries/s",
            Self::Refused => "refused/s",
            Self::Deadline => "deadline",
        }
    }

    const fn next(self) -> Self {
        match self {
            Self::Name => Self::New,
            Self::New => Self::Open,
            Self::Open => Self::Retries,
            Self::Retries => Self::Refused,
            Self::Refused => Self::Deadline,
            Self::Deadline => Self::Name,
        }
    }

    /// Readings are ordered by name; rows that are equal stay so.
    fn compare(self, a: &ServiceRow, b: &ServiceRow) -> Ordering {
        let (a_rates, b_rates) = (a.rates.unwrap_or_default(), b.rates.unwrap_or_default());
        let deadline = |row: &ServiceRow| row.backends.iter().filter_map(|backend| backend.deadline_seconds).min();
        match self {
            Self::Name => Ordering::Equal,
            Self::New => b_rates.connections.total_cmp(&a_rates.connections),
            Self::Open => b.open.cmp(&a.open),
            Self::Retries => b_rates.retries.total_cmp(&a_rates.retries),
            Self::Refused => b_rates.refusals.total_cmp(&a_rates.refusals),
            Self::Deadline => (deadline(a).is_none(), deadline(a)).cmp(&(deadline(b).is_none(), deadline(b))),
        }
    }
}

/// The selected row of a list, and the first one on the screen.
#[derive(Clone, Debug)]
pub(super) struct Cursor<K> {
    /// The selection stays with its row while rows come and go.
    key: Option<K>,
    pub index: usize,
    pub offset: usize,
    page: usize,
}

impl<K> Default for Cursor<K> {
    fn default() -> Self {
        Self { key: None, index: 0, offset: 0, page: 1 }
    }
}

impl<K: PartialEq + Clone> Cursor<K> {
    /// Finds the selected row among these again; if it is gone, the one in its place is selected.
    fn follow(&mut self, keys: &[K]) {
        let found = self.key.as_ref().and_then(|key| keys.iter().position(|other| other == key));
        self.select(found.unwrap_or(self.index), keys);
    }

    fn select(&mut self, index: usize, keys: &[K]) {
        self.index = index.min(keys.len().saturating_sub(1));
        self.key = keys.get(self.index).cloned();
    }

    /// False: the key does not move a selection.
    fn moved(&mut self, key: Key, keys: &[K]) -> bool {
        let index = match key {
            Key::Up | Key::Char('k') => self.index.saturating_sub(1),
            Key::Down | Key::Char('j') => self.index + 1,
            Key::PageUp => self.index.saturating_sub(self.page),
            Key::PageDown => self.index + self.page,
            Key::Home | Key::Char('g') => 0,
            Key::End | Key::Char('G') => usize::MAX,
            _ => return false,
        };
        self.select(index, keys);
        true
    }

    /// Scrolls so that the selected row is among the `page` rows on the screen.
    pub fn fit(&mut self, page: usize, rows: usize) {
        self.page = page.max(1);
        self.offset = self.offset.clamp((self.index + 1).saturating_sub(self.page), self.index);
        self.offset = self.offset.min(rows.saturating_sub(self.page));
    }
}

/// The service whose backends are shown.
#[derive(Clone, Debug)]
struct Opened {
    id: u32,
    name: String,
}

/// All that the screen shows but the readings' own state.
#[derive(Debug, Default)]
pub(super) struct Model {
    rows: Vec<ServiceRow>,
    pub filter: String,
    /// The filter is being typed; it was this before.
    before: Option<String>,
    pub order: Order,
    pub is_help: bool,
    opened: Option<Opened>,
    pub services: Cursor<u32>,
    pub backends: Cursor<String>,
}

/// Which rows are on the screen.
pub(super) enum View<'a> {
    Services(Vec<&'a ServiceRow>),
    /// The service's name, and the service; `None`: it is gone.
    Backends(&'a str, Option<&'a ServiceRow>),
}

impl Model {
    /// Takes the rows of a reading.
    pub fn take(&mut self, rows: Vec<ServiceRow>) {
        self.rows = rows;
        self.follow();
    }

    pub const fn is_typing(&self) -> bool {
        self.before.is_some()
    }

    /// All services, whatever the filter.
    pub fn all(&self) -> &[ServiceRow] {
        &self.rows
    }

    pub fn view(&self) -> View<'_> {
        match &self.opened {
            Some(opened) => View::Backends(&opened.name, self.rows.iter().find(|row| row.id == opened.id)),
            None => View::Services(self.visible()),
        }
    }

    fn visible(&self) -> Vec<&ServiceRow> {
        let wanted = self.filter.to_lowercase();
        let mut rows: Vec<_> =
            self.rows.iter().filter(|row| row.full_name().to_lowercase().contains(&wanted)).collect();
        rows.sort_by(|a, b| self.order.compare(a, b));
        rows
    }

    fn keys(&self) -> Vec<u32> {
        self.visible().iter().map(|row| row.id).collect()
    }

    fn backend_keys(&self) -> Vec<String> {
        let View::Backends(_, Some(service)) = self.view() else { return Vec::new() };
        service.backends.iter().map(backend_key).collect()
    }

    fn follow(&mut self) {
        let keys = self.keys();
        self.services.follow(&keys);
        let keys = self.backend_keys();
        self.backends.follow(&keys);
    }

    /// What a key does.
    pub fn press(&mut self, key: Key) -> After {
        match key {
            Key::Interrupt => return After::Quit,
            Key::Redraw => return After::Redraw,
            Key::Suspend => return After::Suspend,
            _ if self.is_typing() => self.type_key(key),
            _ if self.is_help => self.is_help = !matches!(key, Key::Escape | Key::Char('?' | 'q') | Key::Enter),
            Key::Char('q') => return After::Quit,
            Key::Char('?') => self.is_help = true,
            _ if self.opened.is_some() => self.press_in_backends(key),
            _ => self.press_in_services(key),
        }
        After::Go
    }

    fn press_in_services(&mut self, key: Key) {
        let keys = self.keys();
        if self.services.moved(key, &keys) {
            return;
        }
        match key {
            Key::Enter => {
                let selected = self.visible().get(self.services.index).map(|row| (row.id, row.full_name()));
                self.opened = selected.map(|(id, name)| Opened { id, name });
                self.backends = Cursor::default();
                self.follow();
            }
            Key::Char('/') => self.before = Some(self.filter.clone()),
            Key::Char('s') => {
                self.order = self.order.next();
                self.follow();
            }
            // The list is the outermost view: Escape does not leave it.
            Key::Escape => self.narrow(String::new()),
            _ => {}
        }
    }

    fn press_in_backends(&mut self, key: Key) {
        let keys = self.backend_keys();
        if !self.backends.moved(key, &keys) && matches!(key, Key::Escape | Key::Backspace) {
            self.opened = None;
            self.follow();
        }
    }

    fn type_key(&mut self, key: Key) {
        match key {
            Key::Char(letter) if self.filter.chars().count() < LONGEST_FILTER => {
                self.narrow(format!("{}{letter}", self.filter));
            }
            Key::Backspace => {
                let mut filter = self.filter.clone();
                filter.pop();
                self.narrow(filter);
            }
            Key::Enter => self.before = None,
            Key::Escape => {
                let before = self.before.take().unwrap_or_default();
                self.narrow(before);
            }
            _ => {}
        }
    }

    fn narrow(&mut self, filter: String) {
        self.filter = filter;
        self.follow();
    }
}

fn backend_key(row: &BackendRow) -> String {
    format!("{} {}", row.address, row.state)
}

#[cfg(test)]
#[path = "model_tests.rs"]
pub(super) mod tests;
