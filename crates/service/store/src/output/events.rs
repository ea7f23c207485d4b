//! Records events, and lists them in order.

use crate::data::EventRow;
use crate::db::{Kind, Sql, Tx, query};
use crate::{Scope, Store, StoreError, row};

impl Store {
    /// Records events from outside; the store gives their ids.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn add_events(&self, events: Vec<EventRow>) -> Result<(), StoreError> {
        let mut write = self.write_bulk().await?;
        for event in events {
            self.record(&mut write.tx, event).await?;
        }
        write.commit().await
    }

    /// Records an event in the transaction that makes it true.
    pub(crate) async fn record(&self, tx: &mut Tx, event: EventRow) -> Result<(), StoreError> {
        query(
            "INSERT INTO happenings (id, time_us, kind, task, queue, node, message, who) \
             VALUES ($8, $1, $2, $3, $4, $5, $6, $7)",
        )
        .on_postgres(
            "INSERT INTO happenings (time_us, kind, task, queue, node, message, who) \
             VALUES ($1, $2, $3, $4, $5, $6, $7)",
        )
        .bind(event.time_us)
        .bind(event.kind)
        .bind(event.task)
        .bind(event.queue)
        .bind(event.node)
        .bind(event.message)
        .bind(event.who)
        .bind_on_sqlite(|| self.next_ids(event.time_us, 1), self.kind)
        .later(tx)
        .await?;
        Ok(())
    }

    /// As [`Store::record`], in this order.
    pub(crate) async fn record_all(&self, tx: &mut Tx, events: Vec<EventRow>) -> Result<(), StoreError> {
        let columns = "INSERT INTO happenings (time_us, kind, task, queue, node, message, who";
        let mut sql = Sql::new(match self.kind {
            Kind::Sqlite => format!("{columns}, id) "),
            Kind::Postgres => format!("{columns}) "),
        });
        sql.push_values(events, |row, event| {
            let now_us = event.time_us;
            row.push_bind(now_us).push_bind(event.kind).push_bind(event.task).push_bind(event.queue);
            row.push_bind(event.node).push_bind(event.message).push_bind(event.who);
            if self.kind == Kind::Sqlite {
                row.push_bind(self.next_ids(now_us, 1));
            }
        });
        Ok(sql.build().later(tx).await?)
    }

    /// Events in order: those after `after`, or without it the newest ones.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn events(
        &self,
        task: Option<&str>,
        after: Option<i64>,
        limit: i64,
    ) -> Result<Vec<EventRow>, StoreError> {
        self.events_seen(task, after, limit, None).await
    }

    /// As [`Store::events`], but of tasks only those that may be seen.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn events_seen(
        &self,
        task: Option<&str>,
        after: Option<i64>,
        limit: i64,
        scope: Option<&Scope>,
    ) -> Result<Vec<EventRow>, StoreError> {
        let mut sql = Sql::new(select!(happenings, "WHERE id > "));
        sql.push_bind(after.unwrap_or(i64::MIN));
        if let Some(task) = task {
            sql.push(" AND task = ").push_bind(task);
        }
        if let Some(scope) = scope {
            sql.push(" AND (task IS NULL OR EXISTS (SELECT 1 FROM tasks WHERE tasks.id = happenings.task");
            scope.of_tasks(&mut sql);
            sql.push("))");
        }
        sql.push(self.kind.settled("time_us"));
        sql.push(if after.is_some() { " ORDER BY id LIMIT " } else { " ORDER BY id DESC LIMIT " })
            .push_bind(limit);
        let rows = sql.build().fetch_all(&self.readers).await?;
        let mut found: Vec<EventRow> = rows.iter().map(row::event).collect::<Result<_, _>>()?;
        if after.is_none() {
            found.reverse();
        }
        Ok(found)
    }
}
