//! Asks the API about one resource, again and again, and tells what is new.

use std::{
    fmt::Debug,
    hash::{BuildHasher as _, RandomState},
    time::Duration,
};

use futures::{Stream, StreamExt as _, stream, stream::BoxStream};
use kube::{
    Api, Resource,
    api::{ListParams, WatchEvent, WatchParams},
};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, timeout};

use super::{
    follower::{Answer, Failure, Follower, News, Question},
    reason,
};

/// How long the API may take to begin a watch, or for a complete list.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// How long a watch may be silent: a bookmark comes about once a minute.
const SILENCE_LIMIT: Duration = Duration::from_secs(90);
/// How much later than announced the server may end a watch.
const END_LIMIT: Duration = Duration::from_secs(5);

/// News of everything that the selector leaves in, without end.
pub fn read<K>(api: Api<K>, selector: String) -> impl Stream<Item = News<K>> + Send + 'static
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    // The keys of the standard library's hash are random numbers.
    let follower = Follower::new(RandomState::new().hash_one(0), Instant::now());
    let reader = Reader {
        api,
        selector,
        follower,
        question: Question::List,
        pause: Duration::ZERO,
        silence: SILENCE_LIMIT,
        open: None,
    };
    stream::unfold(reader, |mut reader| async move { Some((reader.news().await, reader)) })
}

struct Reader<K> {
    api: Api<K>,
    selector: String,
    follower: Follower,
    question: Question,
    /// Before the question.
    pause: Duration,
    /// How long the open watch may say nothing.
    silence: Duration,
    open: Option<BoxStream<'static, kube::Result<WatchEvent<K>>>>,
}

impl<K> Reader<K>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    async fn news(&mut self) -> News<K> {
        loop {
            sleep(self.pause).await;
            let answer = match self.question.clone() {
                Question::List => self.list().await,
                Question::Watch { version, seconds } => self.watch(&version, seconds).await,
                Question::Next => self.next().await,
            };
            let step = self.follower.step(answer, Instant::now());
            (self.pause, self.question) = (step.pause, step.question);
            if self.question != Question::Next {
                self.open = None;
            }
            if let Some(news) = step.news {
                return news;
            }
        }
    }

    async fn list(&mut self) -> Answer<K> {
        // Without a version the answer is what the store holds now, not what some server remembers.
        let parameters = ListParams::default().labels(&self.selector);
        tracing::debug!(source = "kube", url = self.api.resource_url(), "listing");
        match limited(self.api.list(&parameters)).await {
            Ok(list) => Answer::Listed(list),
            Err(failure) => Answer::Failed(failure),
        }
    }

    async fn watch(&mut self, version: &str, seconds: u32) -> Answer<K> {
        // Bookmarks are on by default.
        let parameters = WatchParams::default().labels(&self.selector).timeout(seconds);
        self.silence = SILENCE_LIMIT.min(Duration::from_secs(seconds.into()) + END_LIMIT);
        match limited(self.api.watch(&parameters, version)).await {
            Ok(open) => self.open = Some(open.boxed()),
            Err(failure) => return Answer::Failed(failure),
        }
        self.next().await
    }

    async fn next(&mut self) -> Answer<K> {
        let Some(open) = &mut self.open else { return Answer::Ended };
        match timeout(self.silence, open.next()).await {
            Ok(Some(Ok(event))) => Answer::Event(event),
            Ok(Some(Err(error))) => Answer::Failed(failure(&error)),
            Ok(None) => Answer::Ended,
            Err(_) => Answer::Silent,
        }
    }
}

async fn limited<T>(answer: impl Future<Output = kube::Result<T>>) -> Result<T, Failure> {
    match timeout(ANSWER_LIMIT, answer).await {
        Ok(answer) => answer.map_err(|error| failure(&error)),
        Err(_) => Err(Failure { status: None, reason: format!("the API gave no answer within {ANSWER_LIMIT:?}") }),
    }
}

fn failure(error: &kube::Error) -> Failure {
    let status = if let kube::Error::Api(status) = error { Some(status.code) } else { None };
    Failure { status, reason: reason(error) }
}
