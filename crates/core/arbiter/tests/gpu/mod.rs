//! A GPU and its tenants in steps of 10 µs: a model for the tests of the arbiter. It does not model a GPU's speed. It models
//! what can break a share: queues, kernels that cannot be stopped, contexts served in turn, and ends that are noticed late.
#![allow(clippy::cast_possible_truncation, reason = "small numbers")]

use std::collections::VecDeque;

use cantle_arbiter::{Arbiter, Observation, Parameters, SliceShare};

pub(crate) const US: u64 = 1_000;
pub(crate) const MS: u64 = 1_000 * US;
const STEP: u64 = 10 * US;
/// The driver's time slice of a context.
const TURN: u64 = 2 * MS;
/// Poll interval of a thread at the gate for its fences, and of the arbiter for everything.
const POLL: u64 = 100 * US;
/// A thread submits its next window once less than this is left in flight.
const REFILL: u64 = 400 * US;

/// How a tenant launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// As much as it may, always.
    Saturating,
    /// One launch, wait for its end, work on the CPU for `gap_ns`.
    Sync { gap_ns: u64 },
    /// A burst of work every `every_ns`.
    Bursts { work_ns: u64, every_ns: u64 },
    /// One kernel that never ends.
    Persistent,
}

#[derive(Clone, Debug)]
pub(crate) struct Tenant {
    pub(crate) share: SliceShare,
    pub(crate) kernel_ns: u64,
    pub(crate) processes: usize,
    pub(crate) load: Load,
    /// Its processes are killed then.
    pub(crate) dies_ns: Option<u64>,
}

pub(crate) fn tenant(weight_milli: u32, kernel_ns: u64) -> Tenant {
    let share = SliceShare { weight_milli, limit_milli: None };
    Tenant { share, kernel_ns, processes: 1, load: Load::Saturating, dies_ns: None }
}

#[derive(Default)]
struct Client {
    /// Of each kernel in its queue: what is left, and its length.
    contexts: Vec<VecDeque<(u64, u64)>>,
    next_context: usize,
    submitted_ns: u64,
    ended_ns: u64,
    /// The ends that it has noticed, with their times.
    confirmed_ns: u64,
    looked_ns: u64,
    idle_until_ns: u64,
    owed_ns: u64,
    waiting_since_ns: Option<u64>,
    pub(crate) ran_ns: u64,
    pub(crate) longest_wait_ns: u64,
    pub(crate) waits_ns: Vec<u64>,
}

pub(crate) struct Outcome {
    /// GPU time of each tenant in each second, from the second one on.
    pub(crate) seconds: Vec<Vec<u64>>,
    pub(crate) longest_wait_ns: Vec<u64>,
    pub(crate) waits_ns: Vec<Vec<u64>>,
    pub(crate) ever_unweightable: bool,
}

impl Outcome {
    /// The largest difference, in points of a percent, between a tenant's part of the used time in a second and its weight.
    pub(crate) fn worst_error(&self, tenants: &[Tenant]) -> f64 {
        let weights: f64 = tenants.iter().map(|tenant| f64::from(tenant.share.weight_milli)).sum();
        let error = |second: &Vec<u64>| {
            let total: u64 = second.iter().sum();
            let of = |(ran, tenant): (&u64, &Tenant)| {
                let had = *ran as f64 / total.max(1) as f64;
                (had - f64::from(tenant.share.weight_milli) / weights).abs() * 100.0
            };
            second.iter().zip(tenants).map(of).fold(0.0, f64::max)
        };
        self.seconds.iter().map(error).fold(0.0, f64::max)
    }

    /// The smallest part of a second that the GPU worked.
    pub(crate) fn least_busy(&self) -> f64 {
        let busy = |second: &Vec<u64>| second.iter().sum::<u64>() as f64 / (1000 * MS) as f64;
        self.seconds.iter().map(busy).fold(1.0, f64::min)
    }
}

/// Runs the tenants for `seconds`; with `gated` false every gate is open and the driver's queue 1,024 launches deep.
pub(crate) fn run(tenants: &[Tenant], seconds: u64, gated: bool) -> Outcome {
    let mut arbiter = Arbiter::new(Parameters::default());
    let mut clients: Vec<Client> = tenants
        .iter()
        .map(|tenant| Client { contexts: vec![VecDeque::new(); tenant.processes], ..Client::default() })
        .collect();
    let mut open = vec![!gated; tenants.len()];
    let mut window_ns = vec![MS; tenants.len()];
    let mut turn = (0_usize, 0_usize, 0_u64);
    let mut outcome =
        Outcome { seconds: Vec::new(), longest_wait_ns: vec![], waits_ns: vec![], ever_unweightable: false };
    for step in 1..=seconds * 1000 * MS / STEP {
        let now = step * STEP;
        turn = serve(&mut clients, turn);
        for (index, tenant) in tenants.iter().enumerate() {
            let client = &mut clients[index];
            if tenant.dies_ns.is_some_and(|at| now >= at) {
                client.contexts.iter_mut().for_each(VecDeque::clear);
                client.submitted_ns = client.ended_ns;
                client.confirmed_ns = client.ended_ns;
                client.waiting_since_ns = None;
                continue;
            }
            client.act(
                tenant,
                now,
                open[index],
                if gated { window_ns[index] } else { 1024 * tenant.kernel_ns },
            );
        }
        if gated && now.is_multiple_of(POLL) {
            let observed: Vec<_> = tenants
                .iter()
                .zip(&clients)
                .enumerate()
                .filter(|(_, (tenant, _))| tenant.dies_ns.is_none_or(|at| now < at))
                .map(|(index, (tenant, client))| (index as u64, tenant.share, client.observation(tenant)))
                .collect();
            for (id, decision) in arbiter.poll(now, &observed) {
                open[id as usize] = decision.open;
                window_ns[id as usize] = decision.window_ns;
                outcome.ever_unweightable |= decision.unweightable;
            }
        }
        if now.is_multiple_of(1000 * MS) {
            let ran: Vec<u64> = clients.iter_mut().map(|client| std::mem::take(&mut client.ran_ns)).collect();
            // The first second is for the queues to fill.
            if now > 1000 * MS {
                outcome.seconds.push(ran);
            }
        }
    }
    outcome.longest_wait_ns = clients.iter().map(|client| client.longest_wait_ns).collect();
    outcome.waits_ns = clients.into_iter().map(|client| client.waits_ns).collect();
    outcome
}

/// One step of the GPU: the context whose turn it is works; a turn ends after [`TURN`] or with its work.
fn serve(clients: &mut [Client], turn: (usize, usize, u64)) -> (usize, usize, u64) {
    let all: Vec<(usize, usize)> = clients
        .iter()
        .enumerate()
        .flat_map(|(tenant, client)| (0..client.contexts.len()).map(move |context| (tenant, context)))
        .collect();
    let at = all.iter().position(|each| (each.0, each.1) == (turn.0, turn.1)).unwrap_or(0);
    let is_over = turn.2 >= TURN || clients[turn.0].contexts[turn.1].is_empty();
    let from = if is_over { at + 1 } else { at };
    let next = (0..all.len()).map(|offset| all[(from + offset) % all.len()]);
    let Some((tenant, context)) = next.into_iter().find(|each| !clients[each.0].contexts[each.1].is_empty())
    else {
        return (turn.0, turn.1, TURN);
    };
    let used = if (tenant, context) == (turn.0, turn.1) && !is_over { turn.2 } else { 0 };
    let client = &mut clients[tenant];
    client.ran_ns += STEP;
    if let Some((left, length_ns)) = client.contexts[context].front_mut() {
        *left = left.saturating_sub(STEP);
        if *left == 0 {
            client.ended_ns += *length_ns;
            client.contexts[context].pop_front();
        }
    }
    (tenant, context, used + STEP)
}

impl Client {
    fn observation(&self, tenant: &Tenant) -> Observation {
        Observation {
            waiting: self.waiting_since_ns.is_some(),
            attended: self.submitted_ns != self.confirmed_ns,
            submitted_ns: self.submitted_ns,
            confirmed_ns: self.confirmed_ns,
            longest_ns: tenant.kernel_ns,
        }
    }

    fn act(&mut self, tenant: &Tenant, now: u64, open: bool, window_ns: u64) {
        let in_flight = self.submitted_ns - self.ended_ns;
        // A synchronization returns at once; a thread at the gate polls.
        if in_flight == 0 || now - self.looked_ns >= POLL {
            self.looked_ns = now;
            self.confirmed_ns = self.ended_ns;
        }
        let wants = match tenant.load {
            Load::Saturating => in_flight < REFILL.max(window_ns / 2),
            Load::Sync { gap_ns } => {
                if in_flight > 0 {
                    self.idle_until_ns = now + gap_ns;
                }
                in_flight == 0 && now >= self.idle_until_ns
            }
            Load::Bursts { work_ns, every_ns } => {
                if now.is_multiple_of(every_ns) {
                    self.owed_ns += work_ns;
                }
                self.owed_ns > 0 && in_flight < REFILL
            }
            Load::Persistent => self.submitted_ns == 0,
        };
        if wants && !open {
            self.waiting_since_ns.get_or_insert(now);
        }
        if !wants || !open {
            return;
        }
        if let Some(since) = self.waiting_since_ns.take() {
            self.longest_wait_ns = self.longest_wait_ns.max(now - since);
            self.waits_ns.push(now - since);
        }
        let amount = match tenant.load {
            Load::Saturating => window_ns,
            Load::Sync { .. } => tenant.kernel_ns,
            Load::Bursts { .. } => window_ns.min(std::mem::take(&mut self.owed_ns)),
            Load::Persistent => u64::MAX / 4,
        };
        let mut given = 0;
        while given < amount {
            let kernel_ns = if tenant.load == Load::Persistent { amount } else { tenant.kernel_ns };
            self.contexts[self.next_context].push_back((kernel_ns, kernel_ns));
            self.next_context = (self.next_context + 1) % self.contexts.len();
            self.submitted_ns += kernel_ns;
            given += kernel_ns;
        }
    }
}
