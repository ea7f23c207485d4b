//! The memory that is lent to the task of a `cantle run` beyond its request.

use std::sync::mpsc::{self, Receiver, TryRecvError};

use cantle_driver::{Driver, Installation};
use cantle_model::{Gpu, Lease, LeaseId, Recall};

use crate::burst::Lender;
use crate::clock::now_ms;
use crate::store::NodeStore;
use crate::suspend::{bring_back, make_room};

/// Lends memory to the task, and takes it back from it.
pub(super) struct Loan {
    lease: LeaseId,
    /// The task may have more than its request, and is not being ended.
    may_borrow: bool,
    installation: Installation,
    lender: Lender,
    /// The recall that was reported last.
    reported: Option<Recall>,
    /// A suspension or a return that is on its way.
    work: Option<Receiver<Result<(), String>>>,
}

impl Loan {
    pub(super) fn of(lease: &Lease, installation: &Installation) -> Self {
        Self {
            lease: lease.id.clone(),
            may_borrow: lease.burst.is_some(),
            installation: installation.clone(),
            lender: Lender::default(),
            reported: None,
            work: None,
        }
    }

    /// Lends what is free, and gives back what is recalled. Returns why the task has to end: it uses what it has to give back, and
    /// cannot be suspended.
    pub(super) fn look(
        &mut self,
        (driver, node, gpus): (&dyn Driver, &NodeStore, &[Gpu]),
        leases: &[Lease],
        notify: &dyn Fn(&str),
    ) -> Option<String> {
        if !self.may_borrow {
            return None;
        }
        let is_due = self.lender.look(driver, node, gpus);
        let lease = leases.iter().find(|lease| lease.id == self.lease)?;
        if let Some(work) = &self.work {
            match work.try_recv() {
                Err(TryRecvError::Empty) => return None,
                Ok(Err(why)) if lease.suspension.is_none() => {
                    self.may_borrow = false;
                    return Some(format!(
                        "it did not give GPU memory back, and it cannot be suspended: {why}"
                    ));
                }
                // A task without room tries again.
                Ok(_) | Err(TryRecvError::Disconnected) => self.work = None,
            }
        }
        let recall = lease.burst.as_ref().and_then(|burst| burst.recall);
        self.report(recall, notify);
        let (installation, node, id) = (self.installation.clone(), node.clone(), self.lease.clone());
        let is_out = lease.suspension.as_ref().is_some_and(|out| out.is_suspended() && out.yields);
        if recall.is_some_and(|recall| recall.is_overdue(now_ms())) {
            notify("it is suspended until there is room for the GPU memory that it uses");
            self.begin(move || make_room(&installation, &node, &id));
        } else if is_out && is_due {
            self.begin(move || bring_back(&installation, &node, &id));
        }
        None
    }

    fn report(&mut self, recall: Option<Recall>, notify: &dyn Fn(&str)) {
        let until = |recall: Option<Recall>| recall.map(|recall| recall.until_ms);
        if let Some(recall) = recall
            && until(self.reported) != Some(recall.until_ms)
        {
            notify(&recall.notice(now_ms()));
        }
        self.reported = recall;
    }

    /// In a thread of its own: the driver may take its time.
    fn begin(&mut self, work: impl FnOnce() -> Result<(), crate::NodeError> + Send + 'static) {
        let (sender, receiver) = mpsc::channel();
        self.work = Some(receiver);
        std::thread::spawn(move || {
            // Nobody listens if the task has ended.
            let _ = sender.send(work().map_err(|error| error.to_string()));
        });
    }
}
