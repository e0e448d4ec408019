//! When each Event is posted: once, again while it lasts, all of them at a bounded rate. Posts alternate between namespaces, and each
//! namespace has a share of the room. Pure: the time is a value.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::ObjectEvent;

/// Events that are kept; what comes beyond is not posted.
pub const OBJECT_EVENTS_MAX: usize = 1024;
/// Each namespace may have this part of them at most, and less where there are more namespaces.
const SHARES: usize = 8;
/// Posts that may come at once.
const BURST: u32 = 20;
/// How often one more may come.
const REFILL: Duration = Duration::from_secs(5);
/// How often an Event that lasts is posted again: the API forgets Events after an hour.
const AGAIN: Duration = Duration::from_mins(30);
/// Pause after a post that failed.
const PAUSE: Duration = Duration::from_secs(30);

/// What to post.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Post {
    /// For the first time, as far as we know.
    Create(ObjectEvent),
    /// It lasts: the Event that we made is counted up.
    Again { event: ObjectEvent, count: u32 },
}

impl Post {
    pub fn event(&self) -> &ObjectEvent {
        match self {
            Self::Create(event) | Self::Again { event, .. } => event,
        }
    }
}

/// What became of a post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    /// The Event is ours.
    Done,
    /// Another node said it first, and goes on saying it.
    Known,
    /// The Event to be counted up is no more.
    Forgotten,
    Failed,
}

#[derive(Clone, Copy, Debug)]
struct Planned {
    due: Instant,
    /// How often we posted it; 0: the Event is not ours.
    count: u32,
}

/// What is posted, and when what comes next.
#[derive(Debug)]
pub struct Schedule {
    planned: BTreeMap<ObjectEvent, Planned>,
    tokens: u32,
    refilled: Instant,
    /// Nothing is posted before.
    not_before: Instant,
    /// Events of this moment that found no room.
    without_room: usize,
    /// Number of each namespace's last post.
    last_posts: BTreeMap<String, u64>,
    post_count: u64,
}

impl Schedule {
    pub fn new(now: Instant) -> Self {
        Self {
            planned: BTreeMap::new(),
            tokens: BURST,
            refilled: now,
            not_before: now,
            without_room: 0,
            last_posts: BTreeMap::new(),
            post_count: 0,
        }
    }

    /// These are all Events of this moment. What is over is forgotten.
    pub fn set(&mut self, events: &BTreeSet<ObjectEvent>, now: Instant) {
        let mut namespaces: BTreeMap<&str, usize> = events.iter().map(|event| (event.namespace.as_str(), 0)).collect();
        let share = (OBJECT_EVENTS_MAX / namespaces.len().max(SHARES)).max(1);
        let has_room = |event: &&ObjectEvent| {
            namespaces.get_mut(event.namespace.as_str()).is_some_and(|count| {
                *count += 1;
                *count <= share
            })
        };
        let kept: BTreeSet<&ObjectEvent> = events.iter().filter(has_room).take(OBJECT_EVENTS_MAX).collect();
        self.planned.retain(|event, _| kept.contains(event));
        for event in &kept {
            self.planned.entry((*event).clone()).or_insert(Planned { due: now, count: 0 });
        }
        self.without_room = events.len() - kept.len();
        self.last_posts.retain(|namespace, _| namespaces.contains_key(namespace.as_str()));
    }

    /// How many Events of this moment are not posted for want of room.
    pub fn without_room(&self) -> usize {
        self.without_room
    }

    /// When the next post is due; `None`: there is none.
    pub fn due(&self, now: Instant) -> Option<Instant> {
        let first = self.planned.values().map(|planned| planned.due).min()?;
        let token = if self.tokens > 0 { now } else { self.refilled + REFILL };
        Some(first.max(token).max(self.not_before))
    }

    /// The next post, if one is due.
    pub fn next(&mut self, now: Instant) -> Option<Post> {
        while self.refilled + REFILL <= now && self.tokens < BURST {
            self.refilled += REFILL;
            self.tokens += 1;
        }
        if self.tokens == BURST {
            self.refilled = now;
        }
        if self.tokens == 0 || now < self.not_before {
            return None;
        }
        let due = self.planned.iter().filter(|(_, planned)| planned.due <= now);
        let last_post = |event: &ObjectEvent| self.last_posts.get(&event.namespace).copied().unwrap_or(0);
        let (event, planned) = due.min_by_key(|(event, planned)| (last_post(event), planned.due))?;
        self.tokens -= 1;
        self.post_count += 1;
        self.last_posts.insert(event.namespace.clone(), self.post_count);
        let event = event.clone();
        Some(if planned.count == 0 { Post::Create(event) } else { Post::Again { event, count: planned.count + 1 } })
    }

    /// What became of the post.
    pub fn posted(&mut self, post: &Post, posted: Posted, now: Instant) {
        if posted == Posted::Failed {
            self.not_before = now + PAUSE;
        }
        let Some(planned) = self.planned.get_mut(post.event()) else { return };
        match posted {
            Posted::Done => *planned = Planned { due: now + AGAIN, count: planned.count + 1 },
            Posted::Known => *planned = Planned { due: now + AGAIN, count: 0 },
            Posted::Forgotten => *planned = Planned { due: now, count: 0 },
            // Others first: this may be one that the API never takes.
            Posted::Failed => planned.due = now + PAUSE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(count: usize) -> BTreeSet<ObjectEvent> {
        of_namespace("demo", count)
    }

    fn of_namespace(namespace: &str, count: usize) -> BTreeSet<ObjectEvent> {
        let event = |index| ObjectEvent {
            kind: "Service",
            namespace: namespace.into(),
            name: format!("web-{index:05}"),
            reason: "Refused",
            note: "bad".into(),
        };
        (0..count).map(event).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_is_posted_once_and_again_only_while_it_lasts() {
        let start = Instant::now();
        let mut schedule = Schedule::new(start);
        assert_eq!(schedule.due(start), None);
        schedule.set(&events(1), start);
        let post = schedule.next(start).expect("due");
        assert!(matches!(post, Post::Create(_)));
        schedule.posted(&post, Posted::Done, start);
        schedule.set(&events(1), start);
        assert!(schedule.next(start).is_none(), "the same again is nothing new");
        assert_eq!(schedule.due(start), Some(start + AGAIN));
        let post = schedule.next(start + AGAIN).expect("it lasts");
        assert!(matches!(post, Post::Again { count: 2, .. }));
        schedule.posted(&post, Posted::Forgotten, start + AGAIN);
        assert!(matches!(schedule.next(start + AGAIN), Some(Post::Create(_))), "the API forgot it");
        schedule.set(&BTreeSet::new(), start + AGAIN);
        assert_eq!(schedule.due(start + AGAIN), None);
    }

    #[tokio::test(start_paused = true)]
    async fn what_another_node_said_is_not_said_over_it() {
        let start = Instant::now();
        let mut schedule = Schedule::new(start);
        schedule.set(&events(1), start);
        let post = schedule.next(start).expect("due");
        schedule.posted(&post, Posted::Known, start);
        assert!(schedule.next(start).is_none());
        assert!(
            matches!(schedule.next(start + AGAIN), Some(Post::Create(_))),
            "it takes over if the other one is gone"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn posts_are_bounded_in_number_and_rate() {
        let start = Instant::now();
        let mut schedule = Schedule::new(start);
        schedule.set(&events(OBJECT_EVENTS_MAX / SHARES + 7), start);
        assert_eq!(schedule.without_room(), 7);
        let drain = |schedule: &mut Schedule, now| {
            let mut posts = 0;
            while let Some(post) = schedule.next(now) {
                schedule.posted(&post, Posted::Done, now);
                posts += 1;
            }
            posts
        };
        assert_eq!(drain(&mut schedule, start), BURST);
        assert_eq!(schedule.due(start), Some(start + REFILL));
        assert_eq!(drain(&mut schedule, start + 4 * REFILL), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn one_namespace_takes_neither_the_room_nor_the_rate_of_the_others() {
        let start = Instant::now();
        let mut schedule = Schedule::new(start);
        let greedy = of_namespace("a-greedy", 3 * OBJECT_EVENTS_MAX);
        schedule.set(&greedy, start);
        for _ in 0..BURST {
            let post = schedule.next(start).expect("due");
            schedule.posted(&post, Posted::Done, start);
        }
        let mut all = &greedy | &of_namespace("small", 2);
        schedule.set(&all, start);
        // The first two that come after the flood: one is the small one's.
        let now = start + 2 * REFILL;
        let posts: Vec<Post> = (0..2).filter_map(|_| schedule.next(now)).collect();
        assert!(posts.iter().any(|post| post.event().namespace == "small"), "{posts:?}");
        for number in 0..2 * OBJECT_EVENTS_MAX {
            all.extend(of_namespace(&format!("n{number}"), 1));
        }
        schedule.set(&all, now);
        assert_eq!(schedule.without_room(), all.len() - OBJECT_EVENTS_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_post_comes_again_after_a_pause() {
        let start = Instant::now();
        let mut schedule = Schedule::new(start);
        schedule.set(&events(1), start);
        let post = schedule.next(start).expect("due");
        schedule.posted(&post, Posted::Failed, start);
        assert!(schedule.next(start).is_none());
        assert_eq!(schedule.due(start), Some(start + PAUSE));
        assert_eq!(schedule.next(start + PAUSE), Some(post));
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_the_api_never_takes_does_not_hold_up_the_others() {
        let start = Instant::now();
        let mut schedule = Schedule::new(start);
        schedule.set(&events(3), start);
        let (mut now, mut posted) = (start, BTreeSet::new());
        for _ in 0..10 {
            now = schedule.due(now).expect("something is always due").max(now);
            let Some(post) = schedule.next(now) else { continue };
            let is_bad = post.event().name == "web-00000";
            schedule.posted(&post, if is_bad { Posted::Failed } else { Posted::Done }, now);
            if !is_bad {
                posted.insert(post.event().name.clone());
            }
        }
        assert_eq!(posted.len(), 2, "{posted:?}");
    }
}
