//! Texts that many objects have in common, held once: names of namespaces, nodes and zones.

use std::{
    collections::HashSet,
    sync::{Arc, LazyLock, Mutex, PoisonError},
};

/// Fewer texts than this are never looked through for those that nobody has any more.
const FEW: usize = 1024;

static TEXTS: LazyLock<Mutex<Texts>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct Texts {
    held: HashSet<Arc<str>>,
    /// With so many, those go that nobody else has.
    full: usize,
}

impl Texts {
    fn share(&mut self, text: &str) -> Arc<str> {
        if let Some(held) = self.held.get(text) {
            return held.clone();
        }
        if self.held.len() >= self.full.max(FEW) {
            self.held.retain(|held| Arc::strong_count(held) > 1);
            self.full = 2 * self.held.len();
        }
        let new: Arc<str> = text.into();
        self.held.insert(new.clone());
        new
    }
}

/// The text, at the same place in memory as everywhere else.
pub fn shared(text: &str) -> Arc<str> {
    TEXTS.lock().unwrap_or_else(PoisonError::into_inner).share(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_are_one_and_those_of_nobody_go() {
        let mut texts = Texts::default();
        let kept = texts.share("kept");
        assert!(Arc::ptr_eq(&kept, &texts.share("kept")));
        for number in 0..10 * FEW {
            texts.share(&number.to_string());
        }
        assert!(texts.held.len() <= FEW && Arc::ptr_eq(&kept, &texts.share("kept")));
    }
}
