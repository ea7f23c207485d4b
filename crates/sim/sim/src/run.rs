//! Runs a scenario: at each time all events, then one plan, audited and carried out.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use cantle_decide::SnapshotBuilder;
use cantle_model::{Gpu, LeaseId, Slice, TaskId};
use cantle_sched::{Cause, Plan, Running, Snapshot, Start, Waiting, connection};

use crate::run_there::start_there;
use crate::{Expectation, Expected, Scenario, ScenarioAction, SimError, parse};

/// Rounds at one time at most; a scheduler that needs more goes in circles.
const ROUNDS: usize = 100;

/// Runs the scenario in `text` and returns what happened, a line each.
///
/// # Errors
/// A line that cannot be read, a plan that fails its audit or is not stable, or expectations that were not met.
pub fn run_scenario(text: &str) -> Result<String, SimError> {
    let scenario = parse(text)?;
    let mut world = World::new(&scenario);
    let mut times: Vec<i64> = scenario.events.iter().map(|event| event.at_ms).collect();
    times.extend(scenario.expectations.iter().map(|expectation| expectation.at_ms));
    times.sort_unstable();
    times.dedup();
    let mut next = 0;
    loop {
        let scripted = times.get(next).copied();
        let due = world.ends.first().into_iter().chain(world.stops.first()).map(|(at_ms, _)| *at_ms).min();
        let Some(now_ms) = scripted.into_iter().chain(due).min() else { break };
        next += usize::from(scripted == Some(now_ms));
        world.advance(now_ms)?;
    }
    world.finish()
}

struct World<'a> {
    scenario: &'a Scenario,
    state: Snapshot,
    /// Ends that will come by themselves, by time and then task.
    ends: BTreeSet<(i64, String)>,
    /// Tasks that were asked to stop and when they will have, by time and then task.
    stops: BTreeSet<(i64, String)>,
    /// The task for which they were asked to stop.
    yielded_to: BTreeMap<String, TaskId>,
    /// Running tasks as they were submitted.
    tasks: BTreeMap<TaskId, Waiting>,
    /// How long each submitted task will run.
    runs_ms: BTreeMap<String, Option<i64>>,
    /// The reason last printed of each waiting task.
    reasons: BTreeMap<TaskId, String>,
    started: usize,
    failed: usize,
    output: String,
}

impl<'a> World<'a> {
    fn new(scenario: &'a Scenario) -> Self {
        let nodes = scenario.nodes.iter().cloned();
        let world = nodes.fold(SnapshotBuilder::default(), |world, node| {
            let world = world.topology(&node.name, node.topology);
            world.node_with_host(node.name, node.gpus, node.host)
        });
        let mut state = world.queues(scenario.queues.clone()).build();
        state.projects = scenario.projects.clone();
        Self {
            scenario,
            state,
            ends: BTreeSet::new(),
            stops: BTreeSet::new(),
            yielded_to: BTreeMap::new(),
            tasks: BTreeMap::new(),
            runs_ms: BTreeMap::new(),
            reasons: BTreeMap::new(),
            started: 0,
            failed: 0,
            output: String::new(),
        }
    }

    fn advance(&mut self, now_ms: i64) -> Result<(), SimError> {
        let due: Vec<String> =
            self.ends.iter().filter(|(at_ms, _)| *at_ms == now_ms).map(|(_, task)| task.clone()).collect();
        for task in due {
            self.end(now_ms, &task);
        }
        let scenario = self.scenario;
        // They are in order of time.
        let first = scenario.events.partition_point(|event| event.at_ms < now_ms);
        for event in scenario.events[first..].iter().take_while(|event| event.at_ms == now_ms) {
            self.happen(now_ms, &event.action)?;
        }
        self.settle(now_ms)?;
        for expectation in scenario.expectations.iter().filter(|expectation| expectation.at_ms == now_ms) {
            self.check(expectation);
        }
        Ok(())
    }

    /// Plans and carries out until there is nothing more to do at this time.
    fn settle(&mut self, now_ms: i64) -> Result<(), SimError> {
        for _ in 0..ROUNDS {
            let stopped: Vec<String> = self
                .stops
                .iter()
                .filter(|(at_ms, _)| *at_ms <= now_ms)
                .map(|(_, task)| task.clone())
                .collect();
            self.requeue(now_ms, stopped);
            let decided = self.decide(now_ms)?;
            self.carry_out(now_ms, &decided);
            if decided.starts.is_empty() && decided.evictions.is_empty() {
                return Ok(());
            }
        }
        Err(SimError::Unstable { at: seconds(now_ms) })
    }

    fn decide(&self, now_ms: i64) -> Result<Plan, SimError> {
        let broken = |broken: cantle_decide::BrokenPlan| SimError::Audit {
            at: seconds(now_ms),
            violations: broken.to_string(),
        };
        cantle_decide::decide(&self.state, &self.scenario.policy, now_ms).map_err(broken)
    }

    fn happen(&mut self, now_ms: i64, action: &ScenarioAction) -> Result<(), SimError> {
        match action {
            ScenarioAction::Submit { queue, task, runs_ms, on } => {
                self.runs_ms.insert(task.task.0.clone(), *runs_ms);
                match on {
                    None => self.state.queues[*queue].waiting.push((**task).clone()),
                    Some(place) => {
                        let start = start_there(&self.state, *queue, task, place, now_ms)?;
                        self.start(now_ms, &start, (**task).clone());
                    }
                }
            }
            ScenarioAction::End(task) => self.end(now_ms, task),
            ScenarioAction::Foreign { node, gpu, bytes } => {
                self.state.nodes[*node].gpus[*gpu].foreign_bytes = *bytes;
            }
            ScenarioAction::Usable { node, gpu, usable } => {
                self.state.nodes[*node].gpus[*gpu].usable = *usable
            }
        }
        Ok(())
    }

    fn end(&mut self, now_ms: i64, task: &str) {
        self.ends.retain(|(_, ending)| ending != task);
        self.stops.retain(|(_, stopping)| stopping != task);
        self.state.running.retain(|running| running.task.0 != task);
        for queue in &mut self.state.queues {
            queue.waiting.retain(|waiting| waiting.task.0 != task);
        }
        self.reasons.remove(&TaskId::from(task));
        self.tasks.remove(&TaskId::from(task));
        self.say(now_ms, format_args!("end   {task}"));
    }

    fn carry_out(&mut self, now_ms: i64, plan: &Plan) {
        let mut taken = self.take_from_queues(plan);
        for start in &plan.starts {
            if let Some(waiting) = taken.remove(&start.task) {
                self.start(now_ms, start, waiting);
            }
        }
        for eviction in &plan.evictions {
            let cause = match eviction.cause {
                Cause::Reclaim => "taken back",
                Cause::Preempt => "preempted",
                Cause::Consolidate => "moved",
                Cause::Lent => "taken back",
            };
            self.say(now_ms, format_args!("stop  {} for {} ({cause})", eviction.task, eviction.for_task));
            self.yielded_to.insert(eviction.task.0.clone(), eviction.for_task.clone());
            self.stops.insert((now_ms + self.scenario.grace_ms, eviction.task.0.clone()));
            for running in self.state.running.iter_mut().filter(|running| running.task == eviction.task) {
                running.stopping = Some(eviction.cause);
            }
        }
        if let Some(queue) = plan.last_served() {
            self.state.last_served = Some(queue.to_owned());
        }
        for wait in &plan.waits {
            let reason = wait.reason.to_string();
            if self.reasons.get(&wait.task) != Some(&reason) {
                self.say(now_ms, format_args!("wait  {}: {reason}", wait.task));
                self.reasons.insert(wait.task.clone(), reason);
            }
        }
    }

    fn start(&mut self, now_ms: i64, start: &Start, waiting: Waiting) {
        let place = place(&self.state, &start.node, &start.slices);
        let connected = self.connection(start).map_or_else(String::new, |how| format!("; {how}"));
        self.say(now_ms, format_args!("start {} on {place}{connected}", start.task));
        self.started += 1;
        self.reasons.remove(&start.task);
        let lease = LeaseId(format!("lease-{}", start.task));
        self.state.running.push(Running::of_start(start, &waiting, lease, now_ms));
        self.tasks.insert(start.task.clone(), waiting);
        if let Some(Some(run_ms)) = self.runs_ms.get(&start.task.0) {
            self.ends.insert((now_ms + run_ms, start.task.0.clone()));
        }
    }

    /// How its GPUs are connected.
    fn connection(&self, start: &Start) -> Option<String> {
        let node = self.scenario.nodes.iter().find(|node| node.name == start.node)?;
        let gpus: Vec<Gpu> = node.gpus.iter().map(|offer| offer.gpu.clone()).collect();
        connection(&node.topology, &gpus, &start.slices)
    }

    /// Tasks that were asked to stop have stopped: back to the front of their queues, in this order.
    fn requeue(&mut self, now_ms: i64, tasks: Vec<String>) {
        let names: BTreeSet<&str> = tasks.iter().map(String::as_str).collect();
        self.stops.retain(|(_, task)| !names.contains(task.as_str()));
        self.ends.retain(|(_, task)| !names.contains(task.as_str()));
        let (stopped, running) = std::mem::take(&mut self.state.running)
            .into_iter()
            .partition::<Vec<Running>, _>(|running| names.contains(running.task.0.as_str()));
        self.state.running = running;
        let mut stopped: BTreeMap<String, Running> =
            stopped.into_iter().map(|running| (running.task.0.clone(), running)).collect();
        let mut front = vec![Vec::new(); self.state.queues.len()];
        for task in &tasks {
            let Some(running) = stopped.remove(task) else { continue };
            let mut queues = self.state.queues.iter();
            let queue = queues.position(|queue| Some(&queue.spec.name) == running.queue.as_ref());
            if let Some((queue, mut waiting)) = queue.zip(self.tasks.remove(&running.task)) {
                waiting.yielded_to = self.yielded_to.remove(task);
                waiting.moved = running.stopping == Some(Cause::Consolidate);
                front[queue].push(waiting);
            }
        }
        for (queue, front) in self.state.queues.iter_mut().zip(front) {
            queue.waiting.splice(0..0, front);
        }
        // The last one goes to the front first.
        for task in tasks.iter().rev() {
            self.say(now_ms, format_args!("back  {task} to its queue"));
        }
    }

    /// The waiting tasks that the plan starts.
    fn take_from_queues(&mut self, plan: &Plan) -> BTreeMap<TaskId, Waiting> {
        let started: BTreeSet<&TaskId> = plan.starts.iter().map(|start| &start.task).collect();
        let mut taken = BTreeMap::new();
        for queue in self.state.queues.iter_mut().filter(|_| !started.is_empty()) {
            let (starts, waits) =
                queue.waiting.drain(..).partition(|waiting| started.contains(&waiting.task));
            queue.waiting = waits;
            let starts: Vec<Waiting> = starts;
            taken.extend(starts.into_iter().map(|waiting| (waiting.task.clone(), waiting)));
        }
        taken
    }

    fn check(&mut self, expectation: &Expectation) {
        let task = &expectation.task;
        let running = self.state.running.iter().find(|running| running.task.0 == *task);
        let is = match (running, self.reasons.get(&TaskId::from(task.as_str()))) {
            (Some(running), _) => format!("on {}", place(&self.state, &running.node, &running.slices)),
            (None, Some(reason)) => format!("waits {reason}"),
            (None, None) if self.runs_ms.contains_key(task) => "ended".to_owned(),
            (None, None) => "unknown".to_owned(),
        };
        let met = match &expectation.expected {
            Expected::Runs => is.starts_with("on "),
            Expected::On(place) => is == format!("on {place}"),
            Expected::Waits(part) => is.starts_with("waits ") && is.contains(part.as_str()),
            Expected::Ended => is == "ended",
        };
        if !met {
            self.failed += 1;
            let line = expectation.line;
            self.say(expectation.at_ms, format_args!("FAIL  {task} {is}, not as line {line} expects"));
        }
    }

    fn finish(mut self) -> Result<String, SimError> {
        let waiting: usize = self.state.queues.iter().map(|queue| queue.waiting.len()).sum();
        let (started, running) = (self.started, self.state.running.len());
        let _ = write!(self.output, "{started} started, {running} running, {waiting} waiting");
        let total = self.scenario.expectations.len();
        let _ = writeln!(self.output, "; {} of {total} expectations met", total - self.failed);
        if self.failed > 0 {
            return Err(SimError::Unexpected { failed: self.failed, total, output: self.output });
        }
        Ok(self.output)
    }

    fn say(&mut self, now_ms: i64, what: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.output, "{:>6}  {what}", seconds(now_ms));
    }
}

/// `node:0,1`.
fn place(state: &Snapshot, node: &str, slices: &[Slice]) -> String {
    let gpus = || state.nodes.iter().filter(|known| known.name == node).flat_map(|known| &known.gpus);
    let index =
        |slice: &Slice| gpus().find(|gpu| gpu.gpu.uuid == slice.gpu).map(|gpu| gpu.gpu.index.to_string());
    let indices: Vec<String> = slices.iter().filter_map(index).collect();
    format!("{node}:{}", indices.join(","))
}

pub(crate) fn seconds(at_ms: i64) -> String {
    let milli = u32::try_from(at_ms).unwrap_or(u32::MAX);
    cantle_model::Milli(milli).to_string()
}
