//! The server: the real store on its real database, behind the calls that an agent makes. It omits the work of
//! `crates/service/server/src/services` around the store (HTTP, keys, JSON).

use std::path::{Path, PathBuf};

use cantle_model::{Lease, Measured, TaskStatus};
use cantle_store::{Change, NewTask, Store, StoreError, TaskClaim, Terms};
use tokio::runtime::Runtime;

use crate::dice::Dice;

pub(crate) const QUEUE: &str = "q";

/// A call of an agent.
#[derive(Clone, Debug)]
pub(crate) enum Ask {
    Backlog,
    Take(String),
    Claim(Lease),
    Status(String),
    Start(String),
    End(Lease, i64),
    PutBack(Lease),
}

#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Backlog(Vec<String>),
    Done,
    Refused,
    /// Its status, whether it waits in a queue, and the lease that holds it.
    Status(TaskStatus, bool, Option<String>),
    /// 500: the disk is full.
    Fault,
}

pub(crate) struct Server {
    runtime: Runtime,
    store: Option<Store>,
    path: PathBuf,
    /// No write succeeds.
    pub(crate) disk_full: bool,
}

impl Server {
    pub(crate) fn new(dir: &Path) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let mut server = Self { runtime, store: None, path: dir.join("cantle.db"), disk_full: false };
        server.start();
        server
    }

    pub(crate) fn start(&mut self) {
        self.store = Some(self.runtime.block_on(Store::open(&self.path)).unwrap());
    }

    /// Nothing is closed or finished.
    pub(crate) fn crash(&mut self) {
        self.store = None;
    }

    /// Everything is in the database file afterwards.
    pub(crate) fn close(self) {
        self.runtime.block_on(self.store.as_ref().unwrap().close());
    }

    pub(crate) const fn is_up(&self) -> bool {
        self.store.is_some()
    }

    pub(crate) fn make_queue(&self) {
        let store = self.store.as_ref().unwrap();
        let doc = serde_json::Map::new();
        // There already, in a copy of a database that has it.
        let _ = self.runtime.block_on(store.create_queue(QUEUE, QUEUE, &doc, 1));
    }

    pub(crate) fn submit(&self, task: &str, now_us: i64) {
        let store = self.store.as_ref().unwrap();
        let new =
            NewTask { id: task.into(), name: task.into(), kind: "training".into(), ..NewTask::default() };
        self.runtime.block_on(store.submit(&new, QUEUE, &at(now_us))).unwrap();
    }

    /// The periodic work of the server.
    pub(crate) fn tick(&self, before_us: i64, now_us: i64) {
        if let (Some(store), false) = (&self.store, self.disk_full) {
            self.runtime.block_on(store.reclaim(before_us, now_us)).unwrap();
        }
    }

    /// Status, node, lease and exit code of a task.
    pub(crate) fn task(&self, task: &str) -> (TaskStatus, Option<String>, Option<String>, Option<i64>) {
        let row = self.runtime.block_on(self.store.as_ref().unwrap().task(task)).unwrap();
        (row.index.status, row.node, row.lease, row.exit_code)
    }

    pub(crate) fn waiting(&self) -> Vec<String> {
        let store = self.store.as_ref().unwrap();
        let queue = self.runtime.block_on(store.queue(QUEUE)).unwrap();
        queue.entries.into_iter().map(|(task, _)| task).collect()
    }

    /// `None` if the server dies before it answers; what it did is done.
    pub(crate) fn call(&mut self, node: &str, ask: &Ask, now_us: i64, dice: &mut Dice) -> Option<Answer> {
        let store = self.store.as_ref()?;
        let reads = matches!(ask, Ask::Backlog | Ask::Status(_));
        if self.disk_full && !reads {
            return Some(Answer::Fault);
        }
        let answer = match ask {
            Ask::Backlog => return Some(Answer::Backlog(self.waiting())),
            Ask::Status(task) => {
                let (status, _, lease, _) = self.task(task);
                return Some(Answer::Status(status, self.waiting().contains(task), lease));
            }
            Ask::Take(task) => {
                let taken = self.runtime.block_on(store.take_next(QUEUE, Some(task), now_us)).unwrap();
                return Some(if taken.is_some() { Answer::Done } else { Answer::Refused });
            }
            Ask::Claim(lease) => self.runtime.block_on(store.claim(&claim(lease, node, None), now_us)),
            Ask::Start(task) => self.set_status(task, TaskStatus::InProgress, now_us),
            Ask::End(lease, code) => {
                let reported = self.runtime.block_on(store.claim(&claim(lease, node, Some(*code)), now_us));
                // Two calls of the agent: it may be the first only that comes through.
                if reported.is_ok() && dice.percent(5) {
                    return Some(Answer::Fault);
                }
                let to = if *code == 0 { TaskStatus::Completed } else { TaskStatus::Failed };
                reported.and_then(|()| self.set_status(&lease.task.0, to, now_us))
            }
            Ask::PutBack(lease) => self.put_back(lease, node, now_us),
        };
        Some(match answer {
            Ok(()) => Answer::Done,
            Err(_) => Answer::Refused,
        })
    }

    /// As `crates/node/agent/src/claims/put_back.rs` asks for it.
    fn put_back(&self, lease: &Lease, node: &str, now_us: i64) -> Result<(), StoreError> {
        let task = lease.task.0.as_str();
        let (status, holder, ..) = self.task(task);
        match status {
            TaskStatus::Queued if holder.as_deref().is_none_or(|holder| holder == node) => {}
            TaskStatus::InProgress if holder.as_deref() == Some(node) => {
                self.set_status(task, TaskStatus::Stopped, now_us)?;
            }
            _ => return Ok(()),
        }
        self.runtime.block_on(self.store.as_ref().unwrap().enqueue(task, QUEUE, &at(now_us)))
    }

    fn set_status(&self, task: &str, to: TaskStatus, now_us: i64) -> Result<(), StoreError> {
        let change = Change { force: true, ..at(now_us) };
        self.runtime.block_on(self.store.as_ref().unwrap().set_status(task, to, &change)).map(|_| ())
    }
}

fn at(now_us: i64) -> Change {
    Change { now_us, ..Change::default() }
}

fn claim(lease: &Lease, node: &str, exit_code: Option<i64>) -> TaskClaim {
    TaskClaim {
        task: lease.task.0.clone(),
        node: node.to_owned(),
        lease: lease.id.0.clone(),
        slices: lease.slices.clone(),
        terms: Terms::default(),
        exit_code,
        reason: None,
        run: None,
        measured: Measured::default(),
    }
}
