//! The server's wakeups: one arrives when a task comes into one of the agent's queues, so that the task does not wait for the next
//! poll. They only save time: the agent also polls, and a server of an older version is only polled.

use std::sync::Arc;
use std::time::Duration;

use cantle_clearml::batch::WaitForTasks;
use tokio::sync::{Notify, watch};
use tokio::time::sleep;

use crate::environment::Environment;
use crate::listener::{AGAIN, Listener, WAIT};

/// The shortest time between two wakeups. Each pass asks the server several times.
const GAP: Duration = Duration::from_millis(50);

pub(crate) struct Wakeups {
    arrived: Arc<Notify>,
    has_room: watch::Sender<bool>,
    listening: Listener,
}

impl Wakeups {
    /// Asks for wakeups only while [`Wakeups::set_room`] says so: a task wakes one agent, and a full one could not take it.
    pub(crate) fn new(env: &Arc<Environment>) -> Self {
        let (has_room, room) = watch::channel(false);
        let arrived = Arc::new(Notify::new());
        let listening = Listener::start(listen(Arc::clone(env), room, Arc::clone(&arrived)));
        Self { arrived, has_room, listening }
    }

    /// Until one arrives.
    pub(crate) async fn woken(&self) {
        self.arrived.notified().await;
    }

    /// Ends, with its use of the agent's driver.
    pub(crate) async fn close(self) {
        self.listening.close().await;
    }

    /// Whether this agent may have room for another task.
    pub(crate) fn set_room(&self, has_room: bool) {
        self.has_room.send_if_modified(|old| std::mem::replace(old, has_room) != has_room);
    }
}

async fn listen(env: Arc<Environment>, mut room: watch::Receiver<bool>, arrived: Arc<Notify>) {
    let queues = env.queues.iter().map(|queue| queue.id.0.clone()).collect();
    let wait_ms = u64::try_from(WAIT.as_millis()).unwrap_or(u64::MAX);
    let request = WaitForTasks { queues, wait_ms };
    while room.wait_for(|has_room| *has_room).await.is_ok() {
        match env.server.call(&request).await {
            Ok(answer) if answer.rung => {
                arrived.notify_one();
                sleep(GAP).await;
            }
            Ok(_) => {}
            Err(error) if error.is_unknown_endpoint() => return,
            Err(_) => sleep(AGAIN).await,
        }
    }
}
