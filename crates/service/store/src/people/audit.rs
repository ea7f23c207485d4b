//! The audit: the actions of users, in order. Nothing here changes a record.

use crate::db::{Row, Sql, query};
use crate::{Store, StoreError};

/// One record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditRow {
    /// Position; given by the store.
    pub id: i64,
    /// When, in microseconds since 1970.
    pub time_us: i64,
    /// Id of the user; empty if unknown.
    pub user_id: String,
    /// The user's name then.
    pub user_name: String,
    /// From which address.
    pub from_ip: String,
    /// What: the endpoint, or `login`.
    pub action: String,
    /// `done`, or why it was refused.
    pub outcome: String,
    /// The object of the request, if it names one.
    pub subject: String,
    /// The former state, as JSON; empty if unknown.
    pub before: String,
    /// The request, as JSON without secrets.
    pub after: String,
}

/// Conditions on records; `None` is no condition.
#[derive(Clone, Debug, Default)]
pub struct AuditFilter {
    /// After the one with this id; without it the newest ones.
    pub after: Option<i64>,
    /// Of this user, by name or id.
    pub user: Option<String>,
    /// Of this action.
    pub action: Option<String>,
    /// About this.
    pub subject: Option<String>,
    /// Only refusals.
    pub refused: bool,
    /// The most records to return.
    pub limit: i64,
}

impl Store {
    /// Adds a record; its id is given here.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn add_audit(&self, new: &AuditRow) -> Result<(), StoreError> {
        let mut write = self.write().await?;
        query(
            "INSERT INTO audit (id, time_us, user_id, user_name, from_ip, action, outcome, subject, before, after) \
             VALUES ($10, $1, $2, $3, $4, $5, $6, $7, $8, $9)",
        )
        .on_postgres(
            "INSERT INTO audit (time_us, user_id, user_name, from_ip, action, outcome, subject, before, after) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        )
        .bind(new.time_us)
        .bind(&new.user_id)
        .bind(&new.user_name)
        .bind(&new.from_ip)
        .bind(&new.action)
        .bind(&new.outcome)
        .bind(&new.subject)
        .bind(&new.before)
        .bind(&new.after)
        .bind_on_sqlite(|| self.next_ids(new.time_us, 1), self.kind)
        .execute(&mut write.tx)
        .await?;
        write.commit().await
    }

    /// Records in order: those after `after`, or without it the newest ones.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn audit(&self, filter: &AuditFilter) -> Result<Vec<AuditRow>, StoreError> {
        let mut sql = Sql::new(
            "SELECT id, time_us, user_id, user_name, from_ip, action, outcome, subject, before, after FROM audit \
             WHERE id > ",
        );
        sql.push_bind(filter.after.unwrap_or(i64::MIN));
        if let Some(user) = &filter.user {
            sql.push(" AND (user_id = ").push_bind(user.clone());
            sql.push(" OR user_name = ").push_bind(user.clone()).push(")");
        }
        for (column, wanted) in [("action", &filter.action), ("subject", &filter.subject)] {
            if let Some(wanted) = wanted {
                sql.push(format_args!(" AND {column} = ")).push_bind(wanted.clone());
            }
        }
        if filter.refused {
            sql.push(" AND outcome <> 'done'");
        }
        sql.push(self.kind.settled("time_us"));
        sql.push(if filter.after.is_some() { " ORDER BY id LIMIT " } else { " ORDER BY id DESC LIMIT " });
        sql.push_bind(filter.limit);
        let rows = sql.build().fetch_all(&self.readers).await?;
        let mut found: Vec<AuditRow> = rows.iter().map(record).collect::<Result<_, _>>()?;
        if filter.after.is_none() {
            found.reverse();
        }
        Ok(found)
    }

    /// Removes records from before this time, at most `limit`, and returns how many.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn prune_audit(&self, before_us: i64, limit: i64) -> Result<u64, StoreError> {
        let mut write = self.write_bulk().await?;
        let sql = query(
            "DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE time_us < $1 ORDER BY id LIMIT $2)",
        );
        let done = sql.bind(before_us).bind(limit).execute(&mut write.tx).await?;
        write.commit().await?;
        Ok(done)
    }
}

fn record(row: &Row) -> Result<AuditRow, StoreError> {
    Ok(AuditRow {
        id: row.try_get("id")?,
        time_us: row.try_get("time_us")?,
        user_id: row.try_get("user_id")?,
        user_name: row.try_get("user_name")?,
        from_ip: row.try_get("from_ip")?,
        action: row.try_get("action")?,
        outcome: row.try_get("outcome")?,
        subject: row.try_get("subject")?,
        before: row.try_get("before")?,
        after: row.try_get("after")?,
    })
}
