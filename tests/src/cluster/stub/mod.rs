//! A Kubernetes API that lies on demand: lists and watches from memory over plain HTTP, for faults that no real server has.
//!
//! It has Services, EndpointSlices, Nodes and ServiceCIDRs (none of the last), versions, selectors, initial events of watches, bookmarks
//! and "410 Gone". It keeps Events for the test. It does not page or authenticate.

pub mod selector;
mod serve;
mod state;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use serde_json::Value;
use tokio::runtime::Builder;
use tokio::sync::{oneshot, watch};

use state::State;
pub use state::{Lie, Request, ResourceKind, Verb};

use super::odd_objects::OddObject;
use crate::topology::NetNs;

/// A running stub. Dropped, it ends, and every connection with it.
#[derive(Debug)]
pub struct StubApi {
    address: SocketAddr,
    shared: Arc<Shared>,
    /// Dropping it ends the thread.
    open: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What requests read, and how they learn that it changed.
#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changes: watch::Sender<()>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StubApi {
    /// At an address of `netns` (else of the namespace of the test), at a free port.
    pub fn start(netns: Option<&NetNs>, address: std::net::IpAddr) -> Result<Self> {
        let bind = || std::net::TcpListener::bind((address, 0));
        let listener = netns.map_or_else(bind, |netns| netns.run(bind)).context("a port for the stub")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared { state: Mutex::new(State::default()), changes: watch::channel(()).0 });
        let (open, end) = oneshot::channel();
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let router = serve::router(Arc::clone(&shared));
        let work = move || {
            runtime.block_on(async {
                tokio::select! {
                    () = serve::serve(listener, router) => {}
                    _ = end => {}
                }
            });
        };
        let thread = match netns {
            Some(netns) => netns.spawn(work),
            None => std::thread::spawn(work),
        };
        Ok(Self { address, shared, open: Some(open), thread: Some(thread) })
    }

    /// For `--api-server`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Makes or changes an object; watches tell it.
    pub fn put(&self, object: Value) {
        self.change(|state| state.put(object));
    }

    /// Makes an object that no server would let anybody make; watches tell it.
    pub fn put_odd(&self, odd: &OddObject) {
        self.change(|state| state.put_odd(odd));
    }

    /// Deletes every object of the kind for which `chosen` is true; watches tell it.
    pub fn delete_where(&self, kind: ResourceKind, chosen: impl Fn(&Value) -> bool) {
        self.change(|state| state.delete_where(kind, chosen));
    }

    /// Makes or changes an object; no open watch ever tells it, nor one that is opened later. Lists show it.
    pub fn put_untold(&self, object: Value) {
        self.change(|state| {
            state.put(object);
            state.hide_last();
        });
    }

    /// Deletes an object; watches tell it.
    pub fn delete(&self, kind: ResourceKind, namespace: &str, name: &str) {
        self.change(|state| state.delete(kind, namespace, name));
    }

    /// Deletes an object; no watch ever tells it.
    pub fn delete_untold(&self, kind: ResourceKind, namespace: &str, name: &str) {
        self.change(|state| {
            state.delete(kind, namespace, name);
            state.hide_last();
        });
    }

    /// Of each of the next `count` lists of the kind, the answer is this lie.
    pub fn lie(&self, kind: ResourceKind, lie: Lie, count: usize) {
        self.change(|state| state.lie(kind, lie, count));
    }

    /// From now on every list and watch of the kind is answered with this status; `None`: with what was asked for. Open watches go on.
    pub fn refuse(&self, kind: ResourceKind, status: Option<u16>) {
        self.change(|state| state.refuse(kind, status));
    }

    /// The watches that are open say nothing more, and do not end. New ones do as they should.
    pub fn silence_watches(&self) {
        self.change(State::silence_watches);
    }

    /// From now on a watch gets a bookmark only where its kind has changed since its version, as of kube-apiserver over etcd 3.4, which
    /// reports no progress.
    pub fn report_no_progress(&self) {
        self.change(State::report_no_progress);
    }

    /// Ends all watches in order, without a last bookmark, and forgets the changes up to now: a request for those gets 410.
    pub fn forget(&self) {
        self.change(State::forget);
    }

    /// Forgets the changes up to now, so that its memory does not grow. Every open watch must have sent them: one that has not never sends them.
    pub fn forget_told(&self) {
        self.shared.state().forget_told();
    }

    /// Everything that was asked so far, oldest first.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.state().requests().to_vec()
    }

    /// The Events that were made so far.
    pub fn events(&self) -> Vec<Value> {
        self.shared.state().events().to_vec()
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.shared.state());
        self.shared.changes.send_replace(());
    }
}

impl Drop for StubApi {
    fn drop(&mut self) {
        drop(self.open.take());
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}
