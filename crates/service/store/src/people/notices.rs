//! Notices to people: where they go, and those that are not delivered yet. Notices are made from events, which the database has
//! since the moment of a change, so a crash between the change and its notice loses nothing.

use std::collections::BTreeSet;

use cantle_model::TaskStatus;

use crate::data::EventRow;
use crate::db::{Row, Tx, query, query_as, query_scalar};
use crate::{Store, StoreError};

/// How many receivers a user may have.
const MOST_RECEIVERS: i64 = 20;
/// How many notices wait for one receiver.
const MOST_WAITING: i64 = 1000;

/// A place where notices go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReceiverRow {
    /// Id of its user.
    pub owner: String,
    /// Its name, unique for its user.
    pub name: String,
    /// Its address, as the user wrote it.
    pub address: String,
    /// The key of signatures.
    pub secret: Option<String>,
    /// The events that it gets, with commas.
    pub happens: String,
    /// It gets notices of all tasks of its user, not only of those that name it.
    pub always: bool,
}

/// A notice that is not delivered yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NoticeRow {
    /// Ids are ordered by time, and unique.
    pub id: String,
    /// Id of the user whose receiver it is for; empty: of the server's configuration.
    pub owner: String,
    /// Name of the receiver.
    pub receiver: String,
    /// The notice to send, as JSON.
    pub body: String,
    /// When it was made, in microseconds since 1970.
    pub created_us: i64,
}

/// The state of the notices for a receiver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReceiverState {
    /// Id of its user.
    pub owner: String,
    /// Its name.
    pub receiver: String,
    /// The last delivery.
    pub sent_us: Option<i64>,
    /// Why the last try failed.
    pub failure: Option<String>,
    /// Tries that failed since the last delivery.
    pub failures: i64,
    /// Notices that were given up.
    pub dropped: i64,
    /// Notices that wait.
    pub waiting: i64,
}

impl EventRow {
    /// The end of a task that this event is about, with its reason. A task may be queued again when the event is read, so its
    /// own state says less.
    #[must_use]
    pub fn ending(&self) -> Option<(TaskStatus, &str)> {
        if self.task.is_none() || !matches!(self.kind.as_str(), "end" | "dequeue") {
            return None;
        }
        // As `flow::moved` writes it; a name may contain an arrow, too.
        let arrow = " → ";
        self.message.match_indices(arrow).find_map(|(at, _)| {
            let (before, after) = (&self.message[..at], &self.message[at + arrow.len()..]);
            before.rsplit(": ").next()?.parse::<TaskStatus>().ok()?;
            let (word, reason) = after.split_once(": ").unwrap_or((after, ""));
            let status: TaskStatus = word.parse().ok()?;
            status.is_final().then_some((status, reason))
        })
    }
}

impl Store {
    /// Makes a receiver, or changes it. `false`: the user has too many. With `is_first_of_all`, notices begin with what happens
    /// from now on if no user has another receiver: no events were read for a while.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn set_receiver(&self, new: &ReceiverRow, is_first_of_all: bool) -> Result<bool, StoreError> {
        let mut write = self.write().await?;
        let others = query_scalar("SELECT COUNT(*) FROM receivers WHERE owner = $1 AND name <> $2");
        let others: i64 = others.bind(&new.owner).bind(&new.name).fetch_one(&mut write.tx).await?;
        if others >= MOST_RECEIVERS {
            return Ok(false);
        }
        let all: i64 = query_scalar("SELECT COUNT(*) FROM receivers").fetch_one(&mut write.tx).await?;
        if all == 0 && is_first_of_all {
            begin_here(&mut write.tx).await?;
        }
        query(
            "INSERT INTO receivers (owner, name, address, secret, happens, always) VALUES ($1, $2, $3, $4, $5, $6) \
             ON CONFLICT (owner, name) DO UPDATE SET address = $3, secret = $4, happens = $5, always = $6",
        )
        .bind(&new.owner)
        .bind(&new.name)
        .bind(&new.address)
        .bind(&new.secret)
        .bind(&new.happens)
        .bind(i64::from(new.always))
        .execute(&mut write.tx)
        .await?;
        write.commit().await?;
        Ok(true)
    }

    /// The receivers of a user, or of all, by name.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn receivers(&self, owner: Option<&str>) -> Result<Vec<ReceiverRow>, StoreError> {
        let rows = query(
            "SELECT owner, name, address, secret, happens, always FROM receivers \
             WHERE owner = COALESCE($1, owner) ORDER BY owner, name",
        );
        let rows = rows.bind(owner.map(str::to_owned)).fetch_all(&self.readers).await?;
        Ok(rows.iter().map(receiver).collect::<Result<_, _>>()?)
    }

    /// Deletes a receiver with the notices that wait for it. `false`: there is none.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn delete_receiver(&self, owner: &str, name: &str) -> Result<bool, StoreError> {
        let mut write = self.write().await?;
        let sql = query("DELETE FROM receivers WHERE owner = $1 AND name = $2");
        let done = sql.bind(owner).bind(name).execute(&mut write.tx).await?;
        for table in ["notices", "receiver_states"] {
            let sql = query(format!("DELETE FROM {table} WHERE owner = $1 AND receiver = $2"));
            sql.bind(owner).bind(name).execute(&mut write.tx).await?;
        }
        write.commit().await?;
        Ok(done > 0)
    }

    /// The event up to which notices were made. At the first time, it is the newest one: past events are not notified.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn notice_place(&self) -> Result<i64, StoreError> {
        if let Some(place) =
            query_scalar("SELECT event FROM notice_place").fetch_optional(&self.readers).await?
        {
            return Ok(place);
        }
        let mut write = self.write().await?;
        let newest = begin_here(&mut write.tx).await?;
        write.commit().await?;
        Ok(newest)
    }

    /// Keeps the notices that were made from the events up to this one. Those for a receiver for which too many wait are given
    /// up, and counted.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn add_notices(&self, notices: &[NoticeRow], place: Option<i64>) -> Result<(), StoreError> {
        let mut write = self.write().await?;
        for notice in notices {
            let waiting = query_scalar("SELECT COUNT(*) FROM notices WHERE owner = $1 AND receiver = $2");
            let waiting = waiting.bind(&notice.owner).bind(&notice.receiver);
            let waiting: i64 = waiting.fetch_one(&mut write.tx).await?;
            if waiting >= MOST_WAITING {
                drop_one(&mut write.tx, &notice.owner, &notice.receiver, 1).await?;
                continue;
            }
            query(
                "INSERT INTO notices (id, owner, receiver, body, created_us) VALUES ($1, $2, $3, $4, $5) \
                 ON CONFLICT (id) DO NOTHING",
            )
            .bind(&notice.id)
            .bind(&notice.owner)
            .bind(&notice.receiver)
            .bind(&notice.body)
            .bind(notice.created_us)
            .execute(&mut write.tx)
            .await?;
        }
        if let Some(place) = place {
            query("UPDATE notice_place SET event = $1").bind(place).execute(&mut write.tx).await?;
        }
        write.commit().await
    }

    /// The oldest notice for each receiver.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn next_notices(&self) -> Result<Vec<NoticeRow>, StoreError> {
        let rows = query(
            "SELECT id, owner, receiver, body, created_us FROM notices \
             WHERE id IN (SELECT MIN(id) FROM notices GROUP BY owner, receiver) ORDER BY id",
        );
        let rows = rows.fetch_all(&self.readers).await?;
        Ok(rows.iter().map(notice).collect::<Result<_, _>>()?)
    }

    /// A notice was delivered.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn notice_sent(&self, notice: &NoticeRow, now_us: i64) -> Result<(), StoreError> {
        let mut write = self.write().await?;
        query("DELETE FROM notices WHERE id = $1").bind(&notice.id).execute(&mut write.tx).await?;
        query(
            "INSERT INTO receiver_states (owner, receiver, sent_us) VALUES ($1, $2, $3) \
             ON CONFLICT (owner, receiver) DO UPDATE SET sent_us = $3, failure = NULL, failures = 0",
        )
        .bind(&notice.owner)
        .bind(&notice.receiver)
        .bind(now_us)
        .execute(&mut write.tx)
        .await?;
        write.commit().await
    }

    /// A try to deliver a notice failed; with `give_up`, it was the last one.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn notice_failed(
        &self,
        notice: &NoticeRow,
        why: &str,
        give_up: bool,
    ) -> Result<(), StoreError> {
        let mut write = self.write().await?;
        query(
            "INSERT INTO receiver_states (owner, receiver, failure, failures) VALUES ($1, $2, $3, 1) \
             ON CONFLICT (owner, receiver) DO UPDATE SET failure = $3, failures = receiver_states.failures + 1",
        )
        .bind(&notice.owner)
        .bind(&notice.receiver)
        .bind(why)
        .execute(&mut write.tx)
        .await?;
        if give_up {
            query("DELETE FROM notices WHERE id = $1").bind(&notice.id).execute(&mut write.tx).await?;
            drop_one(&mut write.tx, &notice.owner, &notice.receiver, 1).await?;
        }
        write.commit().await
    }

    /// Gives up the notices that were made before `before_us`. Returns how many, by owner and name of the receiver.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn drop_notices(&self, before_us: i64) -> Result<Vec<(String, String, i64)>, StoreError> {
        const OLD: &str =
            "SELECT owner, receiver, COUNT(*) FROM notices WHERE created_us < $1 GROUP BY owner, receiver";
        let old: Vec<(String, String, i64)> = query_as(OLD).bind(before_us).fetch_all(&self.readers).await?;
        if old.is_empty() {
            return Ok(old);
        }
        let mut write = self.write().await?;
        let old: Vec<(String, String, i64)> = query_as(OLD).bind(before_us).fetch_all(&mut write.tx).await?;
        query("DELETE FROM notices WHERE created_us < $1").bind(before_us).execute(&mut write.tx).await?;
        for (owner, receiver, count) in &old {
            drop_one(&mut write.tx, owner, receiver, *count).await?;
        }
        write.commit().await?;
        Ok(old)
    }

    /// The state of the notices for each receiver that has some, or had.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn receiver_states(&self) -> Result<Vec<ReceiverState>, StoreError> {
        let rows = query(
            "SELECT k.owner AS owner, k.receiver AS receiver, sent_us, failure, \
             COALESCE(failures, 0) AS failures, COALESCE(dropped, 0) AS dropped, \
             (SELECT COUNT(*) FROM notices n WHERE n.owner = k.owner AND n.receiver = k.receiver) AS waiting \
             FROM (SELECT owner, receiver FROM receiver_states UNION SELECT owner, receiver FROM notices) k \
             LEFT JOIN receiver_states s ON s.owner = k.owner AND s.receiver = k.receiver \
             ORDER BY k.owner, k.receiver",
        );
        let rows = rows.fetch_all(&self.readers).await?;
        Ok(rows.iter().map(state).collect::<Result<_, _>>()?)
    }

    /// Compares what is so now with what was so, and records an event for each difference: `begun` makes it for what is new,
    /// `over` for what is so no more.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn note_conditions(
        &self,
        now: &BTreeSet<String>,
        now_us: i64,
        begun: impl Fn(&str) -> EventRow,
        over: impl Fn(&str) -> EventRow,
    ) -> Result<(), StoreError> {
        const THERE: &str = "SELECT name FROM conditions";
        let there: Vec<String> = query_scalar(THERE).fetch_all(&self.readers).await?;
        if there.iter().cloned().collect::<BTreeSet<_>>() == *now {
            return Ok(());
        }
        let mut write = self.write().await?;
        let there: Vec<String> = query_scalar(THERE).fetch_all(&mut write.tx).await?;
        let there: BTreeSet<String> = there.into_iter().collect();
        for name in now.difference(&there) {
            let sql = query("INSERT INTO conditions (name, since_us) VALUES ($1, $2)");
            sql.bind(name).bind(now_us).execute(&mut write.tx).await?;
            self.record(&mut write.tx, EventRow { time_us: now_us, ..begun(name) }).await?;
        }
        for name in there.difference(now) {
            query("DELETE FROM conditions WHERE name = $1").bind(name).execute(&mut write.tx).await?;
            self.record(&mut write.tx, EventRow { time_us: now_us, ..over(name) }).await?;
        }
        write.commit().await
    }
}

async fn begin_here(tx: &mut Tx) -> Result<i64, StoreError> {
    let newest = query_scalar("SELECT COALESCE(MAX(id), 0) FROM happenings");
    let newest: i64 = newest.fetch_one(&mut *tx).await?;
    query("DELETE FROM notice_place").execute(&mut *tx).await?;
    query("INSERT INTO notice_place (event) VALUES ($1)").bind(newest).execute(tx).await?;
    Ok(newest)
}

async fn drop_one(tx: &mut Tx, owner: &str, receiver: &str, count: i64) -> Result<(), StoreError> {
    query(
        "INSERT INTO receiver_states (owner, receiver, dropped) VALUES ($1, $2, $3) \
         ON CONFLICT (owner, receiver) DO UPDATE SET dropped = receiver_states.dropped + $3",
    )
    .bind(owner)
    .bind(receiver)
    .bind(count)
    .execute(tx)
    .await?;
    Ok(())
}

fn receiver(row: &Row) -> Result<ReceiverRow, sqlx::Error> {
    Ok(ReceiverRow {
        owner: row.try_get("owner")?,
        name: row.try_get("name")?,
        address: row.try_get("address")?,
        secret: row.try_get("secret")?,
        happens: row.try_get("happens")?,
        always: row.try_get::<i64, _>("always")? != 0,
    })
}

fn notice(row: &Row) -> Result<NoticeRow, sqlx::Error> {
    Ok(NoticeRow {
        id: row.try_get("id")?,
        owner: row.try_get("owner")?,
        receiver: row.try_get("receiver")?,
        body: row.try_get("body")?,
        created_us: row.try_get("created_us")?,
    })
}

fn state(row: &Row) -> Result<ReceiverState, sqlx::Error> {
    Ok(ReceiverState {
        owner: row.try_get("owner")?,
        receiver: row.try_get("receiver")?,
        sent_us: row.try_get("sent_us")?,
        failure: row.try_get("failure")?,
        failures: row.try_get("failures")?,
        dropped: row.try_get("dropped")?,
        waiting: row.try_get("waiting")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_the_end_of_a_task() {
        let ending = |kind: &str, message: &str| {
            let event = EventRow {
                task: Some("t".into()),
                kind: kind.into(),
                message: message.into(),
                ..EventRow::default()
            };
            event.ending().map(|(status, reason)| (status.to_string(), reason.to_owned()))
        };
        let is = |status: &str, reason: &str| Some((status.to_owned(), reason.to_owned()));
        assert_eq!(ending("end", "a: in_progress → completed"), is("completed", ""));
        assert_eq!(
            ending("end", "a: in_progress → failed: exit code 1: x → y"),
            is("failed", "exit code 1: x → y")
        );
        assert_eq!(ending("end", "a → b: c: queued → stopped: by anna"), is("stopped", "by anna"));
        assert_eq!(ending("dequeue", "a: queued → created"), None);
        assert_eq!(ending("start", "a: queued → in_progress"), None);
        assert_eq!(ending("end", "a"), None);
    }
}
