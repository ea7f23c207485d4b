//! A thread that looks at the tasks of an agent again and again, which neither the server nor the executor delays.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};

use cantle_model::LeaseId;

type Tasks<T> = Mutex<BTreeMap<LeaseId, T>>;

/// The tasks that the thread looks at, as the thread has them: when they are gone, it ends.
pub(crate) struct WeakTasks<T>(Weak<Tasks<T>>);

impl<T> WeakTasks<T> {
    /// The tasks; `None` if the thread has to end.
    pub(crate) fn upgrade(&self) -> Option<SharedTasks<T>> {
        self.0.upgrade().map(SharedTasks)
    }
}

/// The tasks, for one look.
pub(crate) struct SharedTasks<T>(Arc<Tasks<T>>);

impl<T> SharedTasks<T> {
    /// Without them the executor cannot go on, so this is held for a moment only.
    pub(crate) fn lock(&self) -> MutexGuard<'_, BTreeMap<LeaseId, T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread and its tasks. It ends with this value, and with it its use of the driver.
pub(crate) struct LookThread<T> {
    tasks: SharedTasks<T>,
    thread: Option<JoinHandle<()>>,
}

impl<T: Send + 'static> LookThread<T> {
    /// Runs `look` in a thread, without tasks. It has to return when [`WeakTasks::upgrade`] gives nothing.
    pub(crate) fn start(look: impl FnOnce(&WeakTasks<T>) + Send + 'static) -> Self {
        let tasks = Arc::new(Tasks::default());
        let known = WeakTasks(Arc::downgrade(&tasks));
        Self { tasks: SharedTasks(tasks), thread: Some(thread::spawn(move || look(&known))) }
    }
}

impl<T> LookThread<T> {
    /// The tasks that it looks at.
    pub(crate) fn tasks(&self) -> MutexGuard<'_, BTreeMap<LeaseId, T>> {
        self.tasks.lock()
    }
}

impl<T> Drop for LookThread<T> {
    fn drop(&mut self) {
        self.tasks = SharedTasks(Arc::default());
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // Its result cannot fail this.
            let _ = thread.join();
        }
    }
}
