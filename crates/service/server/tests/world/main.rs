//! Simulates a whole fleet in one process, from a seed, with a simulated clock, network and disks: agents crash, connections
//! break and lose answers, a server dies, disks fill up. After each step the invariants of docs/ARCHITECTURE.md are checked.
//!
//! Real: the store on SQLite, the scheduler with its audit. Stand-ins: the agent (its order of steps, not its code), the HTTP between
//! them, processes and the disks of nodes ([ADR 0031](../../../../../docs/adr/0031-a-world-from-a-seed.md)).
//!
//! The suite `world` runs 200 worlds; `CANTLE_WORLD_SEEDS=10000` runs more, `CANTLE_WORLD_SEED=7` one, and prints each of its steps.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a test, which reads its seeds from the environment"
)]

mod agent;
mod check;
mod dice;
mod server;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use cantle_model::LeaseId;

use agent::{Agent, State};
use dice::Dice;
use server::{Answer, Server};

const MS: i64 = 1000;
const S: i64 = 1000 * MS;
/// How long the server waits for the start of a task that was taken; `cantle_clearml::queues::START_GRACE`.
pub(crate) const GRACE_US: i64 = 60 * S;
/// A call without an answer is aborted, and its connection closed: the server does not get it later.
const CALL_TIMEOUT_US: i64 = 2 * S;
/// Faults happen until then.
const HEALED_US: i64 = 300 * S;
/// By then all must have ended.
const END_US: i64 = 3600 * S;
const TASKS: usize = 6;

/// A fault of the code itself, which the checks must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Planted {
    Nothing,
    LeaseAfterStart,
    ClaimWithoutFence,
    LostReport,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Submit(String),
    /// The agent does what is next, if it waits for no answer.
    Poll(usize),
    Deliver(usize, u64),
    Give(usize, u64),
    TimeOut(usize, u64),
    ProcessEnds(usize, LeaseId),
    LeaseIsWritten(usize, LeaseId),
    ServerTick,
    AgentDies(usize),
    AgentStarts(usize),
    PowerIsLost(usize),
    ServerDies,
    ServerStarts,
    Part(usize, bool),
    AgentsDiskFull(usize, bool),
    ServersDiskFull(bool),
}

pub(crate) struct World {
    dice: Dice,
    now_us: i64,
    /// By time, then in order of arrival.
    events: BTreeMap<(i64, u64), Event>,
    arrived: u64,
    pub(crate) server: Server,
    pub(crate) agents: Vec<Agent>,
    answers: BTreeMap<u64, Option<Answer>>,
    pub(crate) submitted: BTreeSet<String>,
    /// Exit codes of the runs of each task.
    pub(crate) ended: BTreeMap<String, Vec<i64>>,
    planted: Planted,
    says: bool,
}

impl World {
    fn new(seed: u64, dir: &Path, planted: Planted, says: bool) -> Self {
        let mut dice = Dice::new(seed);
        let server = Server::new(dir);
        server.make_queue();
        let agents: Vec<Agent> =
            (0..2 + u32::from(dice.percent(50))).map(|number| Agent::new(number, 1)).collect();
        let mut world = Self {
            dice,
            now_us: 0,
            events: BTreeMap::new(),
            arrived: 0,
            server,
            agents,
            answers: BTreeMap::new(),
            submitted: BTreeSet::new(),
            ended: BTreeMap::new(),
            planted,
            says,
        };
        world.schedule_faults();
        world
    }

    fn schedule_faults(&mut self) {
        for number in 0..TASKS {
            let at = self.dice.between(1, 100 * S);
            self.at(at, Event::Submit(format!("task{number}")));
        }
        self.at(S, Event::ServerTick);
        for agent in 0..self.agents.len() {
            self.at(MS, Event::Poll(agent));
            for _ in 0..self.dice.between(0, 4) {
                let (begin, long) = self.moment(120 * S);
                let (on, off) = match self.dice.between(0, 6) {
                    0 => (Event::PowerIsLost(agent), Event::AgentStarts(agent)),
                    1 | 2 => (Event::AgentDies(agent), Event::AgentStarts(agent)),
                    3 => (Event::AgentsDiskFull(agent, true), Event::AgentsDiskFull(agent, false)),
                    _ => (Event::Part(agent, true), Event::Part(agent, false)),
                };
                self.at(begin, on);
                self.at(begin + long, off);
            }
        }
        for _ in 0..self.dice.between(0, 3) {
            let (begin, long) = self.moment(60 * S);
            let dies = self.dice.percent(50);
            self.at(begin, if dies { Event::ServerDies } else { Event::ServersDiskFull(true) });
            self.at(begin + long, if dies { Event::ServerStarts } else { Event::ServersDiskFull(false) });
        }
    }

    /// When a fault begins and how long it lasts; all end before [`HEALED_US`].
    const fn moment(&mut self, longest_us: i64) -> (i64, i64) {
        (self.dice.between(S, HEALED_US - longest_us), self.dice.between(10 * MS, longest_us))
    }

    fn at(&mut self, at_us: i64, event: Event) {
        self.arrived += 1;
        self.events.insert((at_us, self.arrived), event);
    }

    fn after(&mut self, low_us: i64, high_us: i64, event: Event) {
        let delay = self.dice.between(low_us, high_us);
        self.at(self.now_us + delay, event);
    }

    /// Runs it to its end; what is wrong, if anything is.
    fn run(&mut self) -> Result<(), String> {
        while let Some(((now, _), event)) = self.events.pop_first() {
            self.now_us = now;
            if self.says {
                println!("{:10.3} s {event:?}", now as f64 / S as f64);
            }
            self.step(event);
            check::after_each_step(self).map_err(|wrong| format!("at {} ms: {wrong}", now / MS))?;
            if now > HEALED_US && check::is_quiet(self) {
                return check::at_the_end(self);
            }
            if now > END_US {
                return Err(format!("not at an end after an hour: {}", check::what_is_left(self)));
            }
        }
        Err("nothing happens any more".to_owned())
    }

    fn step(&mut self, event: Event) {
        match event {
            Event::Submit(task) => self.submit(task),
            Event::Poll(agent) => self.poll(agent),
            Event::Deliver(agent, call) => self.deliver(agent, call),
            Event::Give(agent, call) => {
                let answer = self.answers.remove(&call).flatten();
                if answer.is_some() && self.agents[agent].reachable {
                    self.hear(agent, call, answer);
                }
            }
            Event::TimeOut(agent, call) => self.hear(agent, call, None),
            Event::ProcessEnds(agent, lease) => {
                if let Some((task, code)) = self.agents[agent].process_ends(&lease) {
                    self.ended.entry(task.0).or_default().push(code);
                }
            }
            Event::LeaseIsWritten(agent, lease) => {
                if let Some((written, _)) = self.agents[agent].jobs.get(&lease).cloned() {
                    self.agents[agent].write(written);
                }
            }
            Event::ServerTick => {
                self.server.tick(self.now_us - GRACE_US, self.now_us);
                self.after(5 * S, 6 * S, Event::ServerTick);
            }
            Event::AgentDies(agent) => self.agents[agent].crash(),
            Event::PowerIsLost(agent) => {
                let lost: Vec<_> = self.agents[agent].processes.values().cloned().collect();
                lost.into_iter().for_each(|(task, _)| self.ended.entry(task.0).or_default().push(137));
                self.agents[agent].lose_power();
            }
            Event::AgentStarts(agent) => {
                if !self.agents[agent].up {
                    self.agents[agent].start(self.now_us);
                }
            }
            Event::ServerDies => self.server.crash(),
            Event::ServerStarts => {
                if !self.server.is_up() {
                    self.server.start();
                }
            }
            Event::Part(agent, parted) => self.agents[agent].reachable = !parted,
            Event::AgentsDiskFull(agent, full) => self.agents[agent].disk_full = full,
            Event::ServersDiskFull(full) => self.server.disk_full = full,
        }
    }

    fn submit(&mut self, task: String) {
        if self.server.is_up() && !self.server.disk_full {
            self.server.submit(&task, self.now_us);
            self.submitted.insert(task);
        } else {
            // The user tries again.
            self.after(S, 10 * S, Event::Submit(task));
        }
    }

    fn poll(&mut self, agent: usize) {
        self.after(300 * MS, 700 * MS, Event::Poll(agent));
        if !self.agents[agent].up || self.agents[agent].asking.is_some() {
            return;
        }
        let (ask, about) = self.agents[agent].next_ask();
        self.arrived += 1;
        let call = self.arrived;
        self.agents[agent].asking = Some((call, ask, about));
        self.at(self.now_us + CALL_TIMEOUT_US, Event::TimeOut(agent, call));
        self.after(MS, 1500 * MS, Event::Deliver(agent, call));
    }

    fn deliver(&mut self, agent: usize, call: u64) {
        // A connection parts between two calls that belong together, too.
        if self.now_us < HEALED_US - 120 * S && self.dice.percent(2) {
            self.agents[agent].reachable = false;
            self.after(S, 120 * S, Event::Part(agent, false));
        }
        let asking = &self.agents[agent];
        let Some((open, ask, _)) = asking.asking.clone() else { return };
        if open != call || !asking.reachable || self.dice.percent(3) {
            return;
        }
        let name = asking.name.clone();
        let answer = self.server.call(&name, &ask, self.now_us, &mut self.dice);
        if self.says {
            println!("{:>14} {name}: {ask:?} -> {answer:?}", "");
        }
        // Some answers get lost.
        self.answers.insert(call, answer.filter(|_| !self.dice.percent(3)));
        self.after(MS, 800 * MS, Event::Give(agent, call));
    }

    fn hear(&mut self, agent: usize, call: u64, answer: Option<Answer>) {
        let now_us = self.now_us;
        let hearing = &mut self.agents[agent];
        let Some((_, _, about)) = hearing.asking.take_if(|(open, ..)| *open == call) else { return };
        if hearing.hear(&about, answer, now_us, self.planted) {
            self.after(S, 90 * S, Event::ProcessEnds(agent, about.clone()));
            if self.planted == Planted::LeaseAfterStart {
                self.after(MS, 2 * MS, Event::LeaseIsWritten(agent, about));
            }
        }
    }
}

/// One world to its end, on a copy of a database that is ready.
fn world(seed: u64, planted: Planted, ready: &Path, says: bool) -> Result<(), String> {
    let dir = tempfile::tempdir_in(memory()).unwrap();
    std::fs::copy(ready, dir.path().join("cantle.db")).unwrap();
    World::new(seed, dir.path(), planted, says).run()
}

/// A directory in main memory, where there is one: the disk is not what is tested here.
fn memory() -> &'static Path {
    let shared = Path::new("/dev/shm");
    if shared.is_dir() { shared } else { Path::new("/tmp") }
}

/// A database with its tables, and the directory that it is in.
fn ready() -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir_in(memory()).unwrap();
    let server = Server::new(dir.path());
    server.make_queue();
    server.close();
    let path = dir.path().join("cantle.db");
    (dir, path)
}

/// The first seed of `seeds` whose world fails, and the failure.
fn first_wrong(seeds: std::ops::Range<u64>, planted: Planted) -> Option<(u64, String)> {
    let (_dir, ready) = ready();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let run = |first: usize| {
            let (seeds, ready) = (seeds.clone(), &ready);
            scope.spawn(move || {
                let mut own = seeds.skip(first).step_by(threads);
                own.find_map(|seed| Some((seed, world(seed, planted, ready, false).err()?)))
            })
        };
        let running: Vec<_> = (0..threads).map(run).collect();
        running.into_iter().filter_map(|thread| thread.join().unwrap()).min()
    })
}

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text}")))
}

#[test]
fn the_invariants_hold_in_every_world() {
    if let Some(seed) = from_environment("CANTLE_WORLD_SEED") {
        let (_dir, ready) = ready();
        world(seed, Planted::Nothing, &ready, true).unwrap();
        return;
    }
    let seeds = from_environment("CANTLE_WORLD_SEEDS").unwrap_or(50);
    if let Some((seed, wrong)) = first_wrong(0..seeds, Planted::Nothing) {
        panic!(
            "seed {seed}: {wrong}\nagain, with each step: CANTLE_WORLD_SEED={seed} cargo test --workspace --locked --test world in_every_world -- \
             --nocapture"
        );
    }
    println!("{seeds} worlds");
}

/// Each must be found within the worlds of the gate, or those prove nothing.
fn is_found(planted: Planted, by: &str) {
    let (seed, wrong) = first_wrong(0..200, planted).expect("nothing was noticed");
    println!("{planted:?} is found by seed {seed}: {wrong}");
    assert!(wrong.contains(by), "{wrong}");
}

#[test]
fn a_lease_that_is_written_after_the_start_is_found() {
    is_found(Planted::LeaseAfterStart, "runs without a lease on disk");
}

#[test]
fn a_claim_without_its_fence_is_found() {
    is_found(Planted::ClaimWithoutFence, "runs twice");
}

#[test]
fn a_report_that_is_lost_on_reconnect_is_found() {
    is_found(Planted::LostReport, "forgotten");
}

#[test]
fn a_seed_is_the_same_world_each_time() {
    let (_dir, ready) = ready();
    let planted = |seed| world(seed, Planted::ClaimWithoutFence, &ready, false);
    for seed in 0..20 {
        assert_eq!(planted(seed), planted(seed), "seed {seed}");
    }
}

impl State {
    /// Nothing is left to be done about it but to wait.
    pub(crate) const fn is_running(self) -> bool {
        matches!(self, Self::Running)
    }
}
