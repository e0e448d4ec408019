//! Whatever the API answers: nothing is deleted but by a delete event or complete lists, and questions never come in a tight loop.

use proptest::prelude::*;

use super::*;

/// What a hostile API does next with one of the open calls.
#[derive(Clone, Debug)]
enum Act {
    Wait(u16),
    Open(u8),
    Put(u8, u8),
    Delete(u8, u8),
    Bookmark(u8, u8),
    List(Vec<bool>, u8, bool),
    End(u8),
    Fail(u8, u8),
}

const NAMES: usize = 24;

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => (0..20_000u16).prop_map(Act::Wait),
        3 => (0..3u8).prop_map(Act::Open),
        2 => (0..2u8, any::<u8>()).prop_map(|(call, seed)| Act::Put(call, seed)),
        2 => (0..2u8, any::<u8>()).prop_map(|(call, seed)| Act::Delete(call, seed)),
        2 => (0..2u8, any::<u8>()).prop_map(|(call, seed)| Act::Bookmark(call, seed)),
        4 => (proptest::collection::vec(any::<bool>(), NAMES), any::<u8>(), any::<bool>())
            .prop_map(|(in_it, seed, more)| Act::List(in_it, seed, more)),
        1 => Just(Act::List(vec![true; NAMES], 250, false)),
        1 => Just(Act::List(vec![false; NAMES], 251, false)),
        1 => (0..3u8).prop_map(Act::End),
        2 => (0..3u8, 0..5u8).prop_map(|(call, code)| Act::Fail(call, code)),
    ]
}

fn call(number: u8) -> Call {
    [Call::Watch, Call::Probe, Call::List][usize::from(number)]
}

/// Versions mostly grow, sometimes not.
fn version(turn: usize, seed: u8) -> String {
    if seed < 20 { (turn / 2 + usize::from(seed)).to_string() } else { (100 + turn * 3).to_string() }
}

struct WatchModel {
    fixture: Fixture,
    /// The lists that ended, and the one in the making.
    lists: Vec<BTreeSet<String>>,
    making: BTreeSet<String>,
}

impl WatchModel {
    /// Performs an act if it makes sense; the name that it deletes.
    fn perform(&mut self, turn: usize, act: &Act) -> Option<String> {
        let fixture = &mut self.fixture;
        let is_open = |fixture: &Fixture, number: &u8| fixture.open.contains(name_of(call(*number)));
        match act {
            Act::Wait(milliseconds) => fixture.pass(Duration::from_millis((*milliseconds).into())),
            Act::Open(number) if is_open(fixture, number) => fixture.receive(call(*number), Received::Opened),
            Act::Put(number, seed) if is_open(fixture, number) => {
                let name = format!("s{:03}", usize::from(*seed) % NAMES);
                fixture.put(call(*number), &name, &version(turn, *seed));
            }
            Act::Delete(number, seed) if is_open(fixture, number) => {
                let name = format!("s{:03}", usize::from(*seed) % NAMES);
                fixture.delete(call(*number), &name, &version(turn, *seed));
                return Some(name);
            }
            Act::Bookmark(number, seed) if is_open(fixture, number) => {
                fixture.bookmark(call(*number), &version(turn, *seed));
            }
            Act::List(in_it, seed, more) if fixture.open.contains("list") => {
                let chosen: Vec<String> =
                    names(NAMES).into_iter().zip(in_it).filter(|(_, is_in)| **is_in).map(|(name, _)| name).collect();
                if fixture.token.is_none() {
                    self.making.clear();
                }
                self.making.extend(chosen.iter().cloned());
                if !more {
                    self.lists.push(self.making.clone());
                }
                let chosen: Vec<&str> = chosen.iter().map(String::as_str).collect();
                fixture.page(&version(turn, *seed), &chosen, more.then_some("more"));
            }
            Act::End(number) if is_open(fixture, number) && *number < 2 => {
                fixture.receive(call(*number), Received::Ended);
            }
            Act::Fail(number, code) if is_open(fixture, number) => {
                fixture.fail(call(*number), [None, Some(410), Some(500), Some(403), Some(429)][usize::from(*code)]);
            }
            _ => {}
        }
        None
    }
}

proptest! {
    #![proptest_config(lb_seed::property(file!(), 500))]

    #[test]
    fn nothing_is_deleted_but_by_a_delete_event_or_by_complete_lists(acts in proptest::collection::vec(act(), 1..120), seed in any::<u64>()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let settings = WatchSettings { compare_interval: Some(Duration::from_secs(40)), ..SETTINGS };
            let fixture = Fixture::seeded(settings, seed);
            let mut model = WatchModel { fixture, lists: Vec::new(), making: BTreeSet::new() };
            let begin = model.fixture.now;
            model.fixture.pass(Duration::ZERO);
            for (turn, act) in acts.iter().enumerate() {
                let before = model.fixture.held.clone();
                let deleted = model.perform(turn, act);
                model.fixture.pass(Duration::ZERO);
                let gone: Vec<&String> = before.difference(&model.fixture.held).collect();
                let unexplained: Vec<&&String> = gone.iter().filter(|name| Some(**name) != deleted.as_ref()).collect();
                if unexplained.is_empty() {
                    continue;
                }
                let last = model.lists.last().expect("a list made it go");
                assert!(unexplained.iter().all(|name| !last.contains(**name)), "{unexplained:?} are in the list");
                let is_mass = last.is_empty() || (gone.len() > 10 && gone.len() * 2 > before.len());
                if is_mass {
                    let earlier = &model.lists[model.lists.len() - 2];
                    assert!(unexplained.iter().all(|name| !earlier.contains(**name)), "{unexplained:?} by one list alone");
                }
            }
            let minutes = (model.fixture.now - begin).as_secs_f64() / 60.0;
            let questions = f64::from(u32::try_from(model.fixture.asked_in_all).unwrap());
            // A page that is answered is followed by the next at once.
            let answered = acts.iter().filter(|act| matches!(act, Act::List(..) | Act::End(_))).count();
            let most = 20.0 + minutes * 40.0 + f64::from(u32::try_from(answered).unwrap());
            assert!(questions <= most, "{questions} questions in {minutes} minutes");
        });
    }
}
