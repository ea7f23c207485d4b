//! Measures how long each step of creating and destroying instances takes, and counts failures, for the agent's
//! metrics.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cantle_metrics::{Exposition, Histogram, MetricKind, precise};
use tokio::time::Instant;

/// Upper bounds in seconds: from a journal in memory to a driver that is busy.
const SECONDS: [f64; 9] = [0.000_1, 0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0];

/// A step of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// A placement is recorded as ours, or forgotten.
    Journal,
    /// A GPU instance is made.
    GpuInstance,
    /// Its compute instance is made.
    ComputeInstance,
    /// All of it: from a lease on a placement to the name of the device in the lease.
    Ready,
    /// A free instance is destroyed, with all attempts.
    Destroy,
}

const STAGES: [(Stage, &str); 5] = [
    (Stage::Journal, "journal"),
    (Stage::GpuInstance, "gpu_instance"),
    (Stage::ComputeInstance, "compute_instance"),
    (Stage::Ready, "ready"),
    (Stage::Destroy, "destroy"),
];

/// The kind of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// An instance was in use, and destroying it was tried again.
    Retry,
    /// It was in use at every attempt, and stays.
    InUse,
    /// A half-made instance was undone.
    Rollback,
}

const TROUBLES: [(Trouble, &str); 3] =
    [(Trouble::Retry, "retry"), (Trouble::InUse, "in_use"), (Trouble::Rollback, "rollback")];

#[derive(Debug)]
struct Counts {
    seconds: [Histogram; STAGES.len()],
    troubles: [u64; TROUBLES.len()],
}

/// Shared between the writers of instances and the readers of these figures.
#[derive(Clone, Debug)]
pub struct Stages(Arc<Mutex<Counts>>);

impl Default for Stages {
    fn default() -> Self {
        let seconds = std::array::from_fn(|_| Histogram::new(&SECONDS));
        Self(Arc::new(Mutex::new(Counts { seconds, troubles: [0; TROUBLES.len()] })))
    }
}

impl Stages {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        // Counts are whole after every statement.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work`, which is this stage, and records how long it takes.
    pub fn time<T>(&self, stage: Stage, work: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let done = work();
        let seconds = began.elapsed().as_secs_f64();
        let mut counts = self.counts();
        for (histogram, _) in counts.seconds.iter_mut().zip(STAGES).filter(|(_, (known, _))| *known == stage)
        {
            histogram.observe(seconds);
        }
        done
    }

    /// Counts a failure.
    pub fn note(&self, trouble: Trouble) {
        let mut counts = self.counts();
        for (count, _) in counts.troubles.iter_mut().zip(TROUBLES).filter(|(_, (known, _))| *known == trouble)
        {
            *count += 1;
        }
    }

    /// Writes the stages down for `/metrics`.
    pub fn expose(&self, metrics: &mut Exposition) {
        let counts = self.counts();
        let help = "How long the steps of making and destroying MIG instances took.";
        metrics.family(MetricKind::Histogram, "cantle_agent_mig_stage_seconds", help);
        for (histogram, (_, stage)) in counts.seconds.iter().zip(STAGES) {
            metrics.histogram(&[("stage", stage)], histogram);
        }
        let help = "MIG instances: destroying tried again (retry), given up (in_use), half-made ones undone (rollback).";
        metrics.family(MetricKind::Counter, "cantle_agent_mig_troubles", help);
        for (count, (_, kind)) in counts.troubles.iter().zip(TROUBLES) {
            metrics.sample(&[("kind", kind)], precise(*count));
        }
    }
}
