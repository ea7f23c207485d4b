//! Wakeups: an agent that waits for work at a queue learns at once that a task came into it. They only save time. A wakeup
//! may be lost, or may be for a task that another agent took. So a waiting caller also polls the queue from time to time.

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
pub(crate) struct Wakeups {
    queues: Mutex<BTreeMap<String, Arc<Notify>>>,
    /// What the other servers have not received yet: tasks by queue.
    unsent: Mutex<BTreeMap<String, usize>>,
    /// There is something in `unsent`.
    has_unsent: Notify,
    /// The session that sends: its messages are this server's own.
    own: AtomicU32,
    /// The server stops: all waits end.
    closed: watch::Sender<bool>,
}

impl Wakeups {
    fn at(&self, queue: &str) -> Arc<Notify> {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(queues.entry(queue.to_owned()).or_default())
    }

    /// Wakes as many as have something to take.
    fn wake(&self, queue: &str, tasks: usize) {
        let waiting = self.at(queue);
        (0..tasks).for_each(|_| waiting.notify_one());
    }

    fn take_unsent(&self) -> BTreeMap<String, usize> {
        std::mem::take(&mut self.unsent.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Store {
    /// Tasks are in a queue to be taken.
    pub(crate) fn wake(&self, queue: &str, tasks: usize) {
        self.wakeups.wake(queue, tasks);
        if self.is_shared() {
            let mut unsent = self.wakeups.unsent.lock().unwrap_or_else(PoisonError::into_inner);
            *unsent.entry(queue.to_owned()).or_default() += tasks;
            self.wakeups.has_unsent.notify_one();
        }
    }

    /// Waits until a task may have come into one of the queues, at this server or another one. `false`: the server stops.
    pub async fn woken(&self, queues: &[String]) -> bool {
        let notifies: Vec<Arc<Notify>> = queues.iter().map(|queue| self.wakeups.at(queue)).collect();
        let mut wakeups: Vec<_> = notifies.iter().map(|notify| Box::pin(notify.notified())).collect();
        let any = pin!(poll_fn(|context| {
            match wakeups.iter_mut().any(|wakeup| wakeup.as_mut().poll(context).is_ready()) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        }));
        let mut closed = self.wakeups.closed.subscribe();
        tokio::select! {
            () = any => true,
            _ = closed.wait_for(|closed| *closed) => false,
        }
    }

    /// Ends all waits, for a server that stops.
    pub fn close_wakeups(&self) {
        self.wakeups.closed.send_replace(true);
    }

    /// Carries wakeups between the servers of one database, without end.
    pub async fn carry_wakeups(&self) {
        let Writers::Postgres(pool) = &self.writers else { return std::future::pending().await };
        tokio::join!(self.send(pool), self.listen(pool));
    }

    /// On a connection of its own: by it this server knows its own messages.
    async fn send(&self, pool: &PgPool) {
        let options = pool.connect_options();
        loop {
            // No caller waits in vain: the agents at the other servers poll.
            if let Err(error) = self.send_on(options.connect().await).await {
                tracing::debug!("the other servers do not learn of new tasks: {error}");
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    async fn send_on(&self, connected: Result<PgConnection, sqlx::Error>) -> Result<(), sqlx::Error> {
        let mut connection = connected?;
        let own: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut connection).await?;
        self.wakeups.own.store(own.cast_unsigned(), Ordering::Relaxed);
        loop {
            self.wakeups.has_unsent.notified().await;
            tokio::time::sleep(TOGETHER).await;
            let wakeups: Vec<String> = self
                .wakeups
                .take_unsent()
                .into_iter()
                .map(|(queue, tasks)| format!("{tasks} {queue}"))
                .collect();
            let send =
                "SELECT pg_notify($1, current_schema() || ' ' || wakeup) FROM unnest($2::text[]) AS wakeup";
            sqlx::query(send).bind(CHANNEL).bind(wakeups).execute(&mut connection).await?;
        }
    }

    async fn listen(&self, pool: &PgPool) {
        let options = pool.connect_options();
        loop {
            // A connection of its own, which stays.
            let own = PgPoolOptions::new().max_connections(1).max_lifetime(None).idle_timeout(None);
            let own = own.connect_lazy_with((*options).clone());
            if let Err(error) = self.receive(&own).await {
                tracing::debug!("this server does not learn of new tasks at others: {error}");
            }
            own.close().await;
            tokio::time::sleep(AGAIN).await;
        }
    }

    async fn receive(&self, pool: &PgPool) -> Result<(), sqlx::Error> {
        let schema: String = sqlx::query_scalar("SELECT current_schema()::text").fetch_one(pool).await?;
        let mut listener = PgListener::connect_with(pool).await?;
        listener.listen(CHANNEL).await?;
        loop {
            let message = listener.recv().await?;
            let is_own = message.process_id() == self.wakeups.own.load(Ordering::Relaxed);
            if let Some((tasks, queue)) = parse(message.payload(), &schema).filter(|_| !is_own) {
                self.wakeups.wake(queue, tasks);
            }
        }
    }
}

/// The number of tasks for each queue, if the message is of this schema.
fn parse<'a>(message: &'a str, schema: &str) -> Option<(usize, &'a str)> {
    let (tasks, queue) = message.strip_prefix(schema)?.strip_prefix(' ')?.split_once(' ')?;
    Some((tasks.parse().ok()?, queue))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_received_in_its_own_schema_only() {
        assert_eq!(parse("public 3 q1", "public"), Some((3, "q1")));
        for other in ["public2 3 q1", "publi 3 q1", "public x q1", "public 3", ""] {
            assert_eq!(parse(other, "public"), None, "{other}");
        }
    }
}
