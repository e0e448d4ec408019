//! Which notice is posted when: each once, again while it lasts, all of them at a bounded rate. Namespaces take turns, and each has a
//! share of the room. Pure: the time is a value.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::Notice;

/// Notices that are kept; what comes beyond is not posted.
pub const NOTICES_MAX: usize = 1024;
/// Each namespace may have this part of them at most, and less where there are more namespaces.
const SHARES: usize = 8;
/// Posts that may come at once.
const BURST: u32 = 20;
/// How often one more may come.
const REFILL: Duration = Duration::from_secs(5);
/// How often a notice that lasts is posted again: the API forgets Events after an hour.
const AGAIN: Duration = Duration::from_mins(30);
/// Pause after a post that failed.
const PAUSE: Duration = Duration::from_secs(30);

/// What to post.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Post {
    /// For the first time, as far as we know.
    Create(Notice),
    /// It lasts: the Event that we made is counted up.
    Again { notice: Notice, count: u32 },
}

impl Post {
    pub fn notice(&self) -> &Notice {
        match self {
            Self::Create(notice) | Self::Again { notice, .. } => notice,
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
struct Told {
    due: Instant,
    /// How often we posted it; 0: the Event is not ours.
    count: u32,
}

/// What is posted, and when what comes next.
#[derive(Debug)]
pub struct Schedule {
    told: BTreeMap<Notice, Told>,
    tokens: u32,
    refilled: Instant,
    /// Nothing is posted before.
    not_before: Instant,
    /// Notices of this moment that found no room.
    without_room: usize,
    /// Number of each namespace's last post.
    turns: BTreeMap<String, u64>,
    last_turn: u64,
}

impl Schedule {
    pub fn new(now: Instant) -> Self {
        Self {
            told: BTreeMap::new(),
            tokens: BURST,
            refilled: now,
            not_before: now,
            without_room: 0,
            turns: BTreeMap::new(),
            last_turn: 0,
        }
    }

    /// These are all notices of this moment. What is over is forgotten.
    pub fn set(&mut self, notices: &BTreeSet<Notice>, now: Instant) {
        let mut namespaces: BTreeMap<&str, usize> =
            notices.iter().map(|notice| (notice.namespace.as_str(), 0)).collect();
        let share = (NOTICES_MAX / namespaces.len().max(SHARES)).max(1);
        let has_room = |notice: &&Notice| {
            namespaces.get_mut(notice.namespace.as_str()).is_some_and(|count| {
                *count += 1;
                *count <= share
            })
        };
        let kept: BTreeSet<&Notice> = notices.iter().filter(has_room).take(NOTICES_MAX).collect();
        self.told.retain(|notice, _| kept.contains(notice));
        for notice in &kept {
            self.told.entry((*notice).clone()).or_insert(Told { due: now, count: 0 });
        }
        self.without_room = notices.len() - kept.len();
        self.turns.retain(|namespace, _| namespaces.contains_key(namespace.as_str()));
    }

    /// How many notices of this moment are not posted for want of room.
    pub fn without_room(&self) -> usize {
        self.without_room
    }

    /// When the next post is due; `None`: there is none.
    pub fn due(&self, now: Instant) -> Option<Instant> {
        let first = self.told.values().map(|told| told.due).min()?;
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
        let due = self.told.iter().filter(|(_, told)| told.due <= now);
        let turn = |notice: &Notice| self.turns.get(&notice.namespace).copied().unwrap_or(0);
        let (notice, told) = due.min_by_key(|(notice, told)| (turn(notice), told.due))?;
        self.tokens -= 1;
        self.last_turn += 1;
        self.turns.insert(notice.namespace.clone(), self.last_turn);
        let notice = notice.clone();
        Some(if told.count == 0 { Post::Create(notice) } else { Post::Again { notice, count: told.count + 1 } })
    }

    /// What became of the post.
    pub fn posted(&mut self, post: &Post, posted: Posted, now: Instant) {
        if posted == Posted::Failed {
            self.not_before = now + PAUSE;
        }
        let Some(told) = self.told.get_mut(post.notice()) else { return };
        match posted {
            Posted::Done => *told = Told { due: now + AGAIN, count: told.count + 1 },
            Posted::Known => *told = Told { due: now + AGAIN, count: 0 },
            Posted::Forgotten => *told = Told { due: now, count: 0 },
            // Others first: this may be one that the API never takes.
            Posted::Failed => told.due = now + PAUSE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notices(count: usize) -> BTreeSet<Notice> {
        of_namespace("demo", count)
    }

    fn of_namespace(namespace: &str, count: usize) -> BTreeSet<Notice> {
        let notice = |index| Notice {
            kind: "Service",
            namespace: namespace.into(),
            name: format!("web-{index:05}"),
            reason: "Refused",
            note: "bad".into(),
        };
        (0..count).map(notice).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_notice_is_posted_once_and_again_only_while_it_lasts() {
        let start = Instant::now();
        let mut schedule = Schedule::new(start);
        assert_eq!(schedule.due(start), None);
        schedule.set(&notices(1), start);
        let post = schedule.next(start).expect("due");
        assert!(matches!(post, Post::Create(_)));
        schedule.posted(&post, Posted::Done, start);
        schedule.set(&notices(1), start);
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
        schedule.set(&notices(1), start);
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
        schedule.set(&notices(NOTICES_MAX / SHARES + 7), start);
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
        let greedy = of_namespace("a-greedy", 3 * NOTICES_MAX);
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
        assert!(posts.iter().any(|post| post.notice().namespace == "small"), "{posts:?}");
        for number in 0..2 * NOTICES_MAX {
            all.extend(of_namespace(&format!("n{number}"), 1));
        }
        schedule.set(&all, now);
        assert_eq!(schedule.without_room(), all.len() - NOTICES_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_post_comes_again_after_a_pause() {
        let start = Instant::now();
        let mut schedule = Schedule::new(start);
        schedule.set(&notices(1), start);
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
        schedule.set(&notices(3), start);
        let (mut now, mut posted) = (start, BTreeSet::new());
        for _ in 0..10 {
            now = schedule.due(now).expect("something is always due").max(now);
            let Some(post) = schedule.next(now) else { continue };
            let is_bad = post.notice().name == "web-00000";
            schedule.posted(&post, if is_bad { Posted::Failed } else { Posted::Done }, now);
            if !is_bad {
                posted.insert(post.notice().name.clone());
            }
        }
        assert_eq!(posted.len(), 2, "{posted:?}");
    }
}
