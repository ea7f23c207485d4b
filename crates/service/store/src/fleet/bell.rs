//! The doorbell: an agent that waits for work at a queue learns at once that a task came into it. It only saves time. A
//! ring may be lost, or may be for a task that another agent took. So a waiting caller also polls the queue now and
//! then.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use sqlx::postgres::{PgConnection, PgListener, PgPoolOptions};
use sqlx::{ConnectOptions as _, PgPool};
use tokio::sync::{Notify, watch};

use crate::Store;
use crate::db::Writers;

/// One message to the other servers for all that came within this time, after it is there to be taken: PostgreSQL ends transactions
/// that notify one after the other, in all of its databases.
const TOGETHER: Duration = Duration::from_millis(20);
/// Interval of attempts to listen to the others again.
const AGAIN: Duration = Duration::from_secs(1);
/// Of all servers in the database; each message begins with its schema.
const CHANNEL: &str = "cantle_work";

/// The callers that wait, and what has to be sent to the other servers.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    queues: Mutex<BTreeMap<String, Arc<Notify>>>,
    untold: Mutex<BTreeMap<String, usize>>,
    /// There is something in `untold`.
    rung: Notify,
    /// The session that tells: its messages are this server's own.
    own: AtomicU32,
    /// The server stops: nobody waits any longer.
    closed: watch::Sender<bool>,
}

impl Bell {
    fn at(&self, queue: &str) -> Arc<Notify> {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(queues.entry(queue.to_owned()).or_default())
    }

    /// Wakes as many as have something to take.
    fn wake(&self, queue: &str, tasks: usize) {
        let bell = self.at(queue);
        (0..tasks).for_each(|_| bell.notify_one());
    }

    fn take_untold(&self) -> BTreeMap<String, usize> {
        std::mem::take(&mut self.untold.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Store {
    /// Tasks are in a queue to be taken.
    pub(crate) fn ring(&self, queue: &str, tasks: usize) {
        self.bell.wake(queue, tasks);
        if self.is_shared() {
            let mut untold = self.bell.untold.lock().unwrap_or_else(PoisonError::into_inner);
            *untold.entry(queue.to_owned()).or_default() += tasks;
            self.bell.rung.notify_one();
        }
    }

    /// Waits until a task may have come into one of the queues, at this server or another one. `false`: the server stops.
    pub async fn rung(&self, queues: &[String]) -> bool {
        let bells: Vec<Arc<Notify>> = queues.iter().map(|queue| self.bell.at(queue)).collect();
        let mut rings: Vec<_> = bells.iter().map(|bell| Box::pin(bell.notified())).collect();
        let any = pin!(poll_fn(|context| {
            match rings.iter_mut().any(|ring| ring.as_mut().poll(context).is_ready()) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        }));
        let mut closed = self.bell.closed.subscribe();
        tokio::select! {
            () = any => true,
            _ = closed.wait_for(|closed| *closed) => false,
        }
    }

    /// Ends all waits, for a server that stops.
    pub fn close_bell(&self) {
        self.bell.closed.send_replace(true);
    }

    /// Carries rings between the servers of one database, without end.
    pub async fn carry_rings(&self) {
        let Writers::Postgres(pool) = &self.writers else { return std::future::pending().await };
        tokio::join!(self.tell(pool), self.listen(pool));
    }

    /// On a connection of its own: by it this server knows its own messages.
    async fn tell(&self, pool: &PgPool) {
        let options = pool.connect_options();
        loop {
            // No caller waits in vain: the other servers poll by themselves.
            if let Err(error) = self.tell_on(options.connect().await).await {
                tracing::debug!("the other servers do not learn of new tasks: {error}");
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    async fn tell_on(&self, connected: Result<PgConnection, sqlx::Error>) -> Result<(), sqlx::Error> {
        let mut connection = connected?;
        let own: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut connection).await?;
        self.bell.own.store(own.cast_unsigned(), Ordering::Relaxed);
        loop {
            self.bell.rung.notified().await;
            tokio::time::sleep(TOGETHER).await;
            let rings: Vec<String> = self
                .bell
                .take_untold()
                .into_iter()
                .map(|(queue, tasks)| format!("{tasks} {queue}"))
                .collect();
            let tell =
                "SELECT pg_notify($1, current_schema() || ' ' || ring) FROM unnest($2::text[]) AS ring";
            sqlx::query(tell).bind(CHANNEL).bind(rings).execute(&mut connection).await?;
        }
    }

    async fn listen(&self, pool: &PgPool) {
        let options = pool.connect_options();
        loop {
            // A connection of its own, which stays.
            let own = PgPoolOptions::new().max_connections(1).max_lifetime(None).idle_timeout(None);
            let own = own.connect_lazy_with((*options).clone());
            if let Err(error) = self.hear(&own).await {
                tracing::debug!("this server does not learn of new tasks at others: {error}");
            }
            own.close().await;
            tokio::time::sleep(AGAIN).await;
        }
    }

    async fn hear(&self, pool: &PgPool) -> Result<(), sqlx::Error> {
        let schema: String = sqlx::query_scalar("SELECT current_schema()::text").fetch_one(pool).await?;
        let mut listener = PgListener::connect_with(pool).await?;
        listener.listen(CHANNEL).await?;
        loop {
            let message = listener.recv().await?;
            let is_own = message.process_id() == self.bell.own.load(Ordering::Relaxed);
            if let Some((tasks, queue)) = ring(message.payload(), &schema).filter(|_| !is_own) {
                self.bell.wake(queue, tasks);
            }
        }
    }
}

/// The number of tasks for each queue, if the message is of this schema.
fn ring<'a>(message: &'a str, schema: &str) -> Option<(usize, &'a str)> {
    let (tasks, queue) = message.strip_prefix(schema)?.strip_prefix(' ')?.split_once(' ')?;
    Some((tasks.parse().ok()?, queue))
}

#[cfg(test)]
mod tests {
    use crate::fleet::bell::*;

    #[test]
    fn a_message_is_heard_in_its_own_schema_only() {
        assert_eq!(ring("public 3 q1", "public"), Some((3, "q1")));
        for other in ["public2 3 q1", "publi 3 q1", "public x q1", "public 3", ""] {
            assert_eq!(ring(other, "public"), None, "{other}");
        }
    }
}
