//! The order of calls in one turn of the controller: decides the next call from what is known.
//!
//! The order enforces `maxPods` and keeps tasks from running twice (docs/adr/0008): create the pod, gated; renew the Lease,
//! which fails if another replica has led since; take the task from its queue; remove the gate. Each action is decided
//! twice: from the watch, which costs nothing and may be late, and again from a list, before anything is created.

/// The holder of the Lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LeaseState {
    /// Not this replica's. It may ask for it.
    #[default]
    Free,
    /// Not this replica's, and it has asked a moment ago.
    Asked,
    /// This replica's, and to be renewed.
    Due,
    /// This replica's.
    Held,
}

/// The reliability of the known state of pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WatchState {
    /// The first list has not come.
    #[default]
    Starting,
    /// All pods were shown, maybe some that are gone.
    Shown,
    /// Since this replica leads it was compared with a list.
    Compared,
}

/// The known state of quotas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QuotaState {
    /// Nothing yet.
    #[default]
    Unknown,
    /// No project has one.
    Absent,
    /// They and the cluster were read.
    Read,
    /// And what was decided by them, apart from new pods, is done.
    Settled,
}

/// The work for waiting tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Tasks that may get a pod.
    pub to_create: usize,
    /// Gated pods whose tasks are to be taken from their queues.
    pub to_take: usize,
    /// Gated pods that are too many for their queue.
    pub to_remove: usize,
}

impl Work {
    const fn is_none(self) -> bool {
        self.to_create == 0 && self.to_take == 0 && self.to_remove == 0
    }
}

/// The facts that are known in one turn so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TurnFacts {
    /// The Lease.
    pub lease: LeaseState,
    /// The watch of pods.
    pub watch: WatchState,
    /// A report to the server that the queues are served is due.
    pub is_report_due: bool,
    /// The queues, and the tasks of all pods, were read in this turn.
    pub has_read: bool,
    /// The actions for each pod were carried out.
    pub has_handled_pods: bool,
    /// Quotas.
    pub quotas: QuotaState,
    /// The work, as far as the watch knows.
    pub by_watch: Option<Work>,
    /// The same by a list, which is never late.
    pub by_list: Option<Work>,
    /// Was the Lease still this replica's when it was renewed after the pods were created?
    pub fence: Option<bool>,
    /// Tasks were taken and surplus pods removed.
    pub has_taken: bool,
}

/// The next call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnCall {
    /// Renew the Lease.
    RenewLease,
    /// Take the Lease if it is free.
    AcquireLease,
    /// Wait for the first list of the watch.
    AwaitWatch,
    /// Compare the watch with a list, and forget what was known before another replica led.
    CompareWatch,
    /// Report to the server that the queues are served.
    ReportWorker,
    /// Read the queues, and the tasks of all pods.
    ReadTasks,
    /// Do what there is to do about each pod.
    HandlePods,
    /// Read quotas, and if there are any the cluster.
    ReadQuotas,
    /// Decide, by the watch, which tasks may get pods.
    DecideByWatch,
    /// Preempt, requeue and report what was decided by quotas.
    Settle,
    /// List the pods and decide again.
    DecideByList,
    /// Create the pods of the tasks that may have one, gated.
    CreatePods,
    /// Renew the Lease: that fails if another replica has led since.
    Fence,
    /// Take the tasks of gated pods from their queues and lift the gates; remove pods that are too many.
    TakeTasks,
    /// Nothing more in this turn.
    Finish,
}

/// The next call.
#[must_use]
pub const fn next_call(known: &TurnFacts) -> TurnCall {
    match known.lease {
        LeaseState::Due => return TurnCall::RenewLease,
        LeaseState::Free => return TurnCall::AcquireLease,
        LeaseState::Asked => return TurnCall::Finish,
        LeaseState::Held => {}
    }
    match known.watch {
        WatchState::Starting => return TurnCall::AwaitWatch,
        WatchState::Shown => return TurnCall::CompareWatch,
        WatchState::Compared => {}
    }
    match known {
        TurnFacts { is_report_due: true, .. } => TurnCall::ReportWorker,
        TurnFacts { has_read: false, .. } => TurnCall::ReadTasks,
        TurnFacts { has_handled_pods: false, .. } => TurnCall::HandlePods,
        TurnFacts { quotas: QuotaState::Unknown, .. } => TurnCall::ReadQuotas,
        TurnFacts { by_watch: None, .. } => TurnCall::DecideByWatch,
        TurnFacts { quotas: QuotaState::Read, .. } => TurnCall::Settle,
        TurnFacts { by_watch: Some(work), by_list: None, .. } => {
            if work.is_none() {
                TurnCall::Finish
            } else {
                TurnCall::DecideByList
            }
        }
        TurnFacts { has_taken: true, .. } => TurnCall::Finish,
        TurnFacts { by_list: Some(work), fence, .. } => match fence {
            _ if work.to_create > 0 => TurnCall::CreatePods,
            _ if work.is_none() => TurnCall::Finish,
            None => TurnCall::Fence,
            Some(true) => TurnCall::TakeTasks,
            Some(false) => TurnCall::Finish,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Work = Work { to_create: 0, to_take: 0, to_remove: 0 };
    const CREATE: Work = Work { to_create: 1, ..NOTHING };
    const TAKE: Work = Work { to_take: 1, ..NOTHING };
    const REMOVE: Work = Work { to_remove: 1, ..NOTHING };

    const LEADS: TurnFacts = TurnFacts {
        lease: LeaseState::Held,
        watch: WatchState::Compared,
        is_report_due: false,
        has_read: false,
        has_handled_pods: false,
        quotas: QuotaState::Unknown,
        by_watch: None,
        by_list: None,
        fence: None,
        has_taken: false,
    };
    const HANDLED: TurnFacts = TurnFacts { has_read: true, has_handled_pods: true, ..LEADS };
    const DECIDED: TurnFacts = TurnFacts { quotas: QuotaState::Absent, by_watch: Some(CREATE), ..HANDLED };
    const LISTED: TurnFacts = TurnFacts { by_list: Some(TAKE), ..DECIDED };

    #[test]
    fn the_table() {
        let cases = [
            ("another replica leads", TurnFacts { lease: LeaseState::Asked, ..LEADS }, TurnCall::Finish),
            ("no leader is known", TurnFacts { lease: LeaseState::Free, ..LEADS }, TurnCall::AcquireLease),
            ("the Lease is old", TurnFacts { lease: LeaseState::Due, ..LEADS }, TurnCall::RenewLease),
            ("no list has come", TurnFacts { watch: WatchState::Starting, ..LEADS }, TurnCall::AwaitWatch),
            (
                "it has just begun to lead",
                TurnFacts { watch: WatchState::Shown, ..LEADS },
                TurnCall::CompareWatch,
            ),
            ("a report is due", TurnFacts { is_report_due: true, ..LEADS }, TurnCall::ReportWorker),
            ("nothing is read", LEADS, TurnCall::ReadTasks),
            ("tasks are read", TurnFacts { has_read: true, ..LEADS }, TurnCall::HandlePods),
            ("pods are handled", HANDLED, TurnCall::ReadQuotas),
            ("no quotas", TurnFacts { quotas: QuotaState::Absent, ..HANDLED }, TurnCall::DecideByWatch),
            ("quotas", TurnFacts { quotas: QuotaState::Read, ..HANDLED }, TurnCall::DecideByWatch),
            ("decided by quotas", TurnFacts { quotas: QuotaState::Read, ..DECIDED }, TurnCall::Settle),
            (
                "by quotas no task may start",
                TurnFacts { quotas: QuotaState::Read, by_watch: Some(NOTHING), ..HANDLED },
                TurnCall::Settle,
            ),
            ("settled", TurnFacts { quotas: QuotaState::Settled, ..DECIDED }, TurnCall::DecideByList),
            ("nobody may start", TurnFacts { by_watch: Some(NOTHING), ..DECIDED }, TurnCall::Finish),
            ("somebody may start", DECIDED, TurnCall::DecideByList),
            (
                "a pod is left to be taken",
                TurnFacts { by_watch: Some(TAKE), ..DECIDED },
                TurnCall::DecideByList,
            ),
            ("the list shows room", TurnFacts { by_list: Some(CREATE), ..LISTED }, TurnCall::CreatePods),
            ("the list shows none", TurnFacts { by_list: Some(NOTHING), ..LISTED }, TurnCall::Finish),
            ("pods are created", LISTED, TurnCall::Fence),
            ("only surplus", TurnFacts { by_list: Some(REMOVE), ..LISTED }, TurnCall::Fence),
            ("the Lease was kept", TurnFacts { fence: Some(true), ..LISTED }, TurnCall::TakeTasks),
            ("another replica has led since", TurnFacts { fence: Some(false), ..LISTED }, TurnCall::Finish),
            ("taken", TurnFacts { fence: Some(true), has_taken: true, ..LISTED }, TurnCall::Finish),
            ("the Lease is lost", TurnFacts { lease: LeaseState::Asked, ..LISTED }, TurnCall::Finish),
        ];
        for (case, known, call) in cases {
            assert_eq!(next_call(&known), call, "{case}");
        }
    }

    /// For any known facts: nothing is created before a list, and nothing is taken without the fence.
    #[test]
    fn no_way_around_the_fence() {
        let leases = [LeaseState::Free, LeaseState::Asked, LeaseState::Due, LeaseState::Held];
        let works = [None, Some(NOTHING), Some(CREATE), Some(TAKE), Some(REMOVE)];
        let mut seen = 0;
        for lease in leases {
            for (by_watch, by_list) in works.iter().flat_map(|a| works.map(|b| (*a, b))) {
                for (fence, has_taken) in
                    [None, Some(false), Some(true)].into_iter().flat_map(|f| [(f, false), (f, true)])
                {
                    let known = TurnFacts { lease, by_watch, by_list, fence, has_taken, ..DECIDED };
                    let call = next_call(&known);
                    seen += 1;
                    if matches!(call, TurnCall::CreatePods | TurnCall::Fence | TurnCall::TakeTasks) {
                        assert!(lease == LeaseState::Held && by_list.is_some(), "{known:?}");
                    }
                    if call == TurnCall::TakeTasks {
                        assert_eq!(fence, Some(true), "{known:?}");
                    }
                }
            }
        }
        assert_eq!(seen, 4 * 25 * 6);
    }
}
