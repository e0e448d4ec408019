//! Puts the questions of a [`Follower`] to the API, each on a connection of its own, and tells what is new.

use std::{
    fmt::Debug,
    hash::{BuildHasher as _, RandomState},
    pin::Pin,
    task::{Context, Poll},
};

use futures::{AsyncBufReadExt as _, Stream, StreamExt as _, stream, stream::BoxStream};
use kube::{
    Client, Resource,
    api::{ListParams, WatchParams},
    core::request::Request,
};
use serde::de::DeserializeOwned;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use super::{
    bounds::PAGE_OBJECTS,
    calls::{Call, Effect, Failure, Heard, Page, Told},
    follower::{Follower, Settings},
    lean::{Lean, read_list},
    reason,
    version::Version,
};

/// What to follow.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    pub labels: Option<String>,
    pub fields: Option<String>,
}

/// How often any resource showed that the store went back in time. All resources share it.
pub type WentBack = watch::Sender<u64>;

/// News of everything selected, without end.
pub fn read<K>(
    client: Client,
    went_back: WentBack,
    selection: Selection,
    settings: Settings,
) -> impl Stream<Item = Told<K>> + Send + 'static
where
    K: Lean + Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    // The keys of the standard library's hash are random numbers.
    let follower = Follower::new(settings, RandomState::new().hash_one(0), Instant::now());
    let api = Api { client, request: Request::new(K::url_path(&(), None)), selection };
    let elsewhere = went_back.subscribe();
    let (watch, probe, list) = (Open::none(), Open::none(), Open::none());
    let reader = Reader { api, follower, watch, probe, list, went_back, elsewhere };
    stream::unfold(reader, |mut reader| async move { Some((reader.told().await, reader)) })
}

struct Reader<K> {
    api: Api,
    follower: Follower<K>,
    watch: Open<K>,
    probe: Open<K>,
    list: Open<K>,
    went_back: WentBack,
    elsewhere: watch::Receiver<u64>,
}

impl<K> Reader<K>
where
    K: Lean + Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    /// Waits for something that changes where we stand.
    async fn told(&mut self) -> Told<K> {
        loop {
            let due = self.follower.due();
            let effects = tokio::select! {
                heard = self.watch.next() => self.follower.hear(Call::Watch, heard, Instant::now()),
                heard = self.probe.next() => self.follower.hear(Call::Probe, heard, Instant::now()),
                heard = self.list.next() => {
                    // A chunk of a page is no news.
                    let is_progress = matches!(heard, Heard::Progress);
                    let effects = self.follower.hear(Call::List, heard, Instant::now());
                    if is_progress {
                        continue;
                    }
                    effects
                }
                Ok(()) = self.elsewhere.changed() => self.follower.went_back_elsewhere(Instant::now()),
                () = sleep_until(due) => self.follower.tick(Instant::now()),
            };
            let news = effects.into_iter().filter_map(|effect| self.perform(effect)).collect();
            return self.follower.told(news);
        }
    }

    fn perform(&mut self, effect: Effect<K>) -> Option<super::calls::News<K>> {
        match effect {
            Effect::Watch { call, version, seconds } => *self.open(call) = Open(self.api.watch(&version, seconds)),
            Effect::List { token } => self.list = Open(self.api.list(token, PAGE_OBJECTS)),
            Effect::Look => self.probe = Open(self.api.list(None, 1)),
            Effect::WentBack => {
                self.went_back.send_modify(|times| *times += 1);
                self.elsewhere.mark_unchanged();
            }
            Effect::Close(call) => *self.open(call) = Open::none(),
            Effect::Promote => self.watch = std::mem::replace(&mut self.probe, Open::none()),
            Effect::Tell(news) => return Some(news),
        }
        None
    }

    fn open(&mut self, call: Call) -> &mut Open<K> {
        match call {
            Call::Watch => &mut self.watch,
            Call::Probe => &mut self.probe,
            Call::List => &mut self.list,
        }
    }
}

/// A call, if one is open. Dropping it closes its connection.
struct Open<K>(BoxStream<'static, Heard<K>>);

impl<K: Send + 'static> Open<K> {
    fn none() -> Self {
        Self(stream::pending().boxed())
    }

    /// What comes next; never, when the call is over.
    fn next(&mut self) -> NextHeard<'_, K> {
        NextHeard(self)
    }
}

struct NextHeard<'a, K>(&'a mut Open<K>);

impl<K: Send + 'static> Future for NextHeard<'_, K> {
    type Output = Heard<K>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Heard<K>> {
        match self.0.0.poll_next_unpin(context) {
            Poll::Ready(Some(heard)) => Poll::Ready(heard),
            Poll::Ready(None) => {
                *self.0 = Open::none();
                Poll::Pending
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

/// The API of one resource.
struct Api {
    client: Client,
    request: Request,
    selection: Selection,
}

impl Api {
    fn watch<K>(&self, version: &Version, seconds: u32) -> BoxStream<'static, Heard<K>>
    where
        K: Clone + Debug + DeserializeOwned + Send + 'static,
    {
        // Bookmarks are on by default.
        let parameters = WatchParams {
            label_selector: self.selection.labels.clone(),
            field_selector: self.selection.fields.clone(),
            timeout: Some(seconds),
            ..WatchParams::default()
        };
        let request = match self.request.watch(&parameters, &version.to_string()) {
            Ok(request) => request,
            Err(error) => return failed(&kube::Error::BuildRequest(error)).boxed(),
        };
        let client = self.client.clone();
        let events = async move {
            match client.request_events::<K>(request).await {
                Ok(events) => {
                    let events = events.map(|event| match event {
                        Ok(event) => Heard::Event(event),
                        Err(error) => Heard::Failed(failure(&error)),
                    });
                    let opened = stream::once(async { Heard::Opened });
                    opened.chain(events).chain(stream::once(async { Heard::Ended })).boxed()
                }
                Err(error) => failed(&error).boxed(),
            }
        };
        stream::once(events).flatten().boxed()
    }

    /// One page of the list, with a word about its progress now and then.
    fn list<K>(&self, token: Option<String>, objects: u32) -> BoxStream<'static, Heard<K>>
    where
        K: Lean + Send + 'static,
    {
        // Without a version the answer is what the store holds now, not what some server remembers.
        let parameters = ListParams {
            label_selector: self.selection.labels.clone(),
            field_selector: self.selection.fields.clone(),
            limit: Some(objects),
            continue_token: token,
            ..ListParams::default()
        };
        let request = match self.request.list(&parameters) {
            Ok(request) => request,
            Err(error) => return failed(&kube::Error::BuildRequest(error)).boxed(),
        };
        tracing::debug!(source = "kube", url = self.request.url_path, "listing");
        let client = self.client.clone();
        let body = async move {
            match client.request_stream(request).await {
                Ok(body) => chunks(Box::pin(body)).boxed(),
                Err(error) => failed(&error).boxed(),
            }
        };
        stream::once(body).flatten().boxed()
    }
}

/// Reads the body of a page and, at its end, the objects in it.
fn chunks<K>(body: Pin<Box<impl futures::AsyncBufRead + Send + 'static>>) -> impl Stream<Item = Heard<K>> + Send
where
    K: Lean,
{
    stream::unfold(Some((body, Vec::new())), |reading| async move {
        let (mut body, mut text) = reading?;
        match body.fill_buf().await {
            Ok([]) => Some((page(&text), None)),
            Ok(read) => {
                let length = read.len();
                text.extend_from_slice(read);
                body.consume_unpin(length);
                Some((Heard::Progress, Some((body, text))))
            }
            Err(error) => Some((Heard::Failed(Failure { status: None, reason: reason(&error) }), None)),
        }
    })
}

fn page<K: Lean>(text: &[u8]) -> Heard<K> {
    match read_list(text) {
        Ok((list, objects)) => Heard::Page(Page {
            objects,
            version: list.resource_version,
            token: list.continue_.filter(|token| !token.is_empty()),
        }),
        Err(error) => {
            Heard::Failed(Failure { status: None, reason: format!("the API's list cannot be read: {error}") })
        }
    }
}

fn failed<K>(error: &kube::Error) -> impl Stream<Item = Heard<K>> + Send + use<K>
where
    K: Send + 'static,
{
    let heard = Heard::Failed(failure(error));
    stream::once(async { heard })
}

fn failure(error: &kube::Error) -> Failure {
    let status = if let kube::Error::Api(status) = error { Some(status.code) } else { None };
    Failure { status, reason: reason(error) }
}
