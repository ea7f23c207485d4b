//! An agent: the steps of `crates/node/agent/src/claims`, in their order. It decides with the real scheduler. Its disk, its
//! processes and its connection are simulated: files on disk and running tasks outlive it.

use std::collections::BTreeMap;

use cantle_decide::{Offer, SnapshotBuilder, decide};
use cantle_model::{
    Gpu, GpuRequest, Holder, Lease, LeaseId, Milli, QueueSpec, QueueWant, TaskId, TaskStatus,
};
use cantle_sched::{Policy, Waiting};

use crate::Planted;
use crate::server::{Answer, Ask, QUEUE};

pub(crate) const GPU_BYTES: u64 = 40 << 30;

/// The progress of a task of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It has a lease, and is taken from its queue next.
    Reserved,
    /// It is unknown whether it was taken: since when.
    Unknown(i64),
    Taken,
    Claimed,
    /// Not stopped meanwhile: it can be started.
    Checked,
    Running,
    Ended(i64),
    Returning,
}

/// The files of a task.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) lease: Lease,
    taken: bool,
    exit_code: Option<i64>,
}

pub(crate) struct Agent {
    pub(crate) name: String,
    gpus: Vec<Gpu>,
    /// Outlives the agent.
    pub(crate) disk: BTreeMap<LeaseId, Record>,
    /// Outlive the agent: the exit codes that they will have.
    pub(crate) processes: BTreeMap<LeaseId, (TaskId, i64)>,
    /// Gone when it dies.
    pub(crate) jobs: BTreeMap<LeaseId, (Lease, State)>,
    pub(crate) asking: Option<(u64, Ask, LeaseId)>,
    pub(crate) up: bool,
    pub(crate) disk_full: bool,
    pub(crate) reachable: bool,
    leases_made: u64,
}

impl Agent {
    pub(crate) fn new(number: u32, gpus: u32) -> Self {
        let name = format!("node{number}");
        let gpu = |index| Gpu {
            uuid: format!("GPU-{number}-{index}").as_str().into(),
            index,
            model: "A100".into(),
            memory_bytes: GPU_BYTES,
            mig: false,
        };
        Self {
            gpus: (0..gpus).map(gpu).collect(),
            name,
            disk: BTreeMap::new(),
            processes: BTreeMap::new(),
            jobs: BTreeMap::new(),
            asking: None,
            up: true,
            disk_full: false,
            reachable: true,
            leases_made: 0,
        }
    }

    /// `kill -9`.
    pub(crate) fn crash(&mut self) {
        (self.up, self.asking) = (false, None);
        self.jobs.clear();
    }

    /// The machine restarts: its processes are gone, and their end was not observed.
    pub(crate) fn lose_power(&mut self) {
        self.crash();
        for lease in std::mem::take(&mut self.processes).into_keys() {
            if let Some(record) = self.disk.get_mut(&lease) {
                record.exit_code = Some(137);
            }
        }
    }

    /// It starts again, and takes over what its predecessor left.
    pub(crate) fn start(&mut self, now_us: i64) {
        self.up = true;
        for (id, record) in &self.disk {
            let state = match record.exit_code {
                Some(code) => State::Ended(code),
                None if self.processes.contains_key(id) => State::Running,
                None if record.taken => State::Returning,
                None => State::Unknown(now_us),
            };
            self.jobs.insert(id.clone(), (record.lease.clone(), state));
        }
    }

    /// A process ends; its supervisor writes that down, whether an agent lives or not.
    pub(crate) fn process_ends(&mut self, lease: &LeaseId) -> Option<(TaskId, i64)> {
        let (task, code) = self.processes.remove(lease)?;
        if let Some(record) = self.disk.get_mut(lease) {
            record.exit_code = Some(code);
        }
        if let Some((_, state)) = self.jobs.get_mut(lease) {
            *state = State::Ended(code);
        }
        Some((task, code))
    }

    /// The next call to the server.
    pub(crate) fn next_ask(&self) -> (Ask, LeaseId) {
        for (id, (lease, state)) in &self.jobs {
            let task = lease.task.0.clone();
            let ask = match state {
                State::Ended(code) => Ask::End(lease.clone(), *code),
                State::Returning => Ask::PutBack(lease.clone()),
                State::Unknown(_) | State::Claimed => Ask::Status(task),
                State::Reserved => Ask::Take(task),
                State::Taken => Ask::Claim(lease.clone()),
                State::Checked => Ask::Start(task),
                State::Running => continue,
            };
            return (ask, id.clone());
        }
        (Ask::Backlog, LeaseId::from(""))
    }

    /// The answer to what was asked about `id`; `None` if none came in time. True if a process is to be started now.
    pub(crate) fn hear(
        &mut self,
        id: &LeaseId,
        answer: Option<Answer>,
        now_us: i64,
        planted: Planted,
    ) -> bool {
        if let Some(Answer::Backlog(waiting)) = answer {
            self.place(waiting, now_us, planted);
            return false;
        }
        let Some((lease, state)) = self.jobs.get_mut(id) else { return false };
        let done = matches!(answer, Some(Answer::Done));
        let refused = matches!(answer, Some(Answer::Refused));
        match *state {
            State::Reserved if done => {
                *state = State::Taken;
                // That it is not on disk is logged and borne.
                if let (Some(record), false) = (self.disk.get_mut(id), self.disk_full) {
                    record.taken = true;
                }
            }
            State::Reserved if refused => self.release(id),
            State::Reserved => *state = State::Unknown(now_us),
            State::Unknown(since) => {
                if let Some(Answer::Status(status, waits, holder)) = answer {
                    let is_taken = status == TaskStatus::Queued && !waits;
                    if is_taken && now_us - since < crate::GRACE_US {
                        return false;
                    }
                    if is_taken && holder.as_ref() == Some(&id.0) {
                        *state = State::Returning;
                    } else {
                        // The server requeues unclaimed tasks by itself.
                        self.release(id);
                    }
                }
            }
            State::Taken if done || refused && planted == Planted::ClaimWithoutFence => {
                *state = State::Claimed
            }
            State::Taken if refused => self.release(id),
            State::Claimed => match answer {
                Some(Answer::Status(status, ..)) if status.is_final() => self.release(id),
                Some(Answer::Status(..)) => *state = State::Checked,
                _ => *state = State::Taken,
            },
            State::Checked if done => {
                *state = State::Running;
                let lease = lease.clone();
                self.processes.insert(id.clone(), (lease.task.clone(), lease.placed_ms % 2));
                return true;
            }
            State::Checked if refused => self.release(id),
            State::Checked => *state = State::Taken,
            State::Ended(_) if done || refused || planted == Planted::LostReport => self.release(id),
            State::Returning if done || refused => self.release(id),
            State::Taken | State::Running | State::Ended(_) | State::Returning => {}
        }
        false
    }

    fn release(&mut self, id: &LeaseId) {
        self.jobs.remove(id);
        self.disk.remove(id);
    }

    /// Plans with the real scheduler, and writes a lease for each start.
    fn place(&mut self, waiting: Vec<String>, now_us: i64, planted: Planted) {
        let spec = QueueSpec { name: QUEUE.into(), want: QueueWant::Task };
        let waiting = waiting.into_iter().map(|task| {
            let request = GpuRequest::Fraction(Milli(request_milli(&task)).into());
            let mut waiting = Waiting::new(TaskId(task), 0);
            waiting.request = Some(request);
            waiting
        });
        let offers = self.gpus.iter().cloned().map(Offer::new);
        let mut builder = SnapshotBuilder::default().node(&self.name, offers).queue(spec, waiting.collect());
        let held: BTreeMap<_, _> = self.jobs.iter().map(|(id, (lease, _))| (id, lease)).collect();
        for lease in held.values() {
            builder = builder.lease(lease, &self.name);
        }
        let plan = decide(&builder.build(), &Policy::default(), now_us / 1000).expect("the audit passes");
        for start in plan.starts {
            if self.disk_full {
                return;
            }
            self.leases_made += 1;
            let id = LeaseId(format!("{}-{}-{now_us}", self.name, self.leases_made));
            let owner = Holder { pid: 1, start_ticks: 1 };
            let mut lease = Lease::new(id.clone(), start.task, start.slices, owner);
            lease.placed_ms = now_us / 1000;
            if planted != Planted::LeaseAfterStart {
                self.write(lease.clone());
            }
            self.jobs.insert(id, (lease, State::Reserved));
        }
    }

    /// The lease reaches the disk.
    pub(crate) fn write(&mut self, lease: Lease) {
        self.disk.insert(lease.id.clone(), Record { lease, taken: false, exit_code: None });
    }
}

/// The request of a task, by its name.
pub(crate) fn request_milli(task: &str) -> u32 {
    [250, 500, 333, 1000][task.bytes().map(usize::from).sum::<usize>() % 4]
}
