//! The secrets of users, sealed by the server, and which tasks get them.

use crate::db::{Row, Tx, query, query_scalar};
use crate::{Store, StoreError};

/// The most secrets of one user.
pub const MOST_SECRETS: i64 = 100;

/// A secret. Its value is sealed: this crate has no key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretRow {
    /// Id of the user.
    pub owner: String,
    /// Its name, which is the name of an environment variable.
    pub name: String,
    /// The encrypted value.
    pub sealed: String,
    /// When it was set, in microseconds.
    pub set_us: i64,
    /// When a task last got it.
    pub used_us: Option<i64>,
}

impl Store {
    /// Sets a secret of a user. `false`: the user has [`MOST_SECRETS`] others.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn set_secret(&self, new: &SecretRow) -> Result<bool, StoreError> {
        let mut write = self.write().await?;
        let others = query_scalar("SELECT COUNT(*) FROM secrets WHERE owner = $1 AND name <> $2");
        let others: i64 = others.bind(&new.owner).bind(&new.name).fetch_one(&mut write.tx).await?;
        if others >= MOST_SECRETS {
            return Ok(false);
        }
        query(
            "INSERT INTO secrets (owner, name, sealed, set_us) VALUES ($1, $2, $3, $4) \
             ON CONFLICT (owner, name) DO UPDATE SET sealed = $3, set_us = $4",
        )
        .bind(&new.owner)
        .bind(&new.name)
        .bind(&new.sealed)
        .bind(new.set_us)
        .execute(&mut write.tx)
        .await?;
        write.commit().await?;
        Ok(true)
    }

    /// The secrets of a user, by name.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn secrets(&self, owner: &str) -> Result<Vec<SecretRow>, StoreError> {
        let sql =
            query("SELECT owner, name, sealed, set_us, used_us FROM secrets WHERE owner = $1 ORDER BY name");
        let rows = sql.bind(owner).fetch_all(&self.readers).await?;
        let row = |row: &Row| {
            Ok::<_, sqlx::Error>(SecretRow {
                owner: row.try_get("owner")?,
                name: row.try_get("name")?,
                sealed: row.try_get("sealed")?,
                set_us: row.try_get("set_us")?,
                used_us: row.try_get("used_us")?,
            })
        };
        Ok(rows.iter().map(row).collect::<Result<_, _>>()?)
    }

    /// Deletes a secret. `false`: there is none.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn delete_secret(&self, owner: &str, name: &str) -> Result<bool, StoreError> {
        let mut write = self.write().await?;
        let sql = query("DELETE FROM secrets WHERE owner = $1 AND name = $2");
        let done = sql.bind(owner).bind(name).execute(&mut write.tx).await?;
        write.commit().await?;
        Ok(done > 0)
    }

    /// The secrets that a task gets, by name; those of its array, if it is of one.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn secrets_of_task(&self, task: &str) -> Result<Vec<String>, StoreError> {
        let sql = query_scalar(
            "SELECT DISTINCT name FROM task_secrets WHERE task = $1 \
             OR task = (SELECT of_array FROM array_elements WHERE task = $1) ORDER BY name",
        );
        Ok(sql.bind(task).fetch_all(&self.readers).await?)
    }

    /// Lets a task have these secrets of its owner, and no others.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn give_secrets(&self, task: &str, names: &[String]) -> Result<(), StoreError> {
        let mut write = self.write().await?;
        give(&mut write.tx, task, names).await?;
        write.commit().await
    }

    /// Records that a task got secrets of this user.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn secrets_used(&self, owner: &str, names: &[String], now_us: i64) -> Result<(), StoreError> {
        let mut write = self.write().await?;
        for name in names {
            let sql = query("UPDATE secrets SET used_us = $3 WHERE owner = $1 AND name = $2");
            sql.bind(owner).bind(name).bind(now_us).execute(&mut write.tx).await?;
        }
        write.commit().await
    }
}

/// The secrets of a task. Also removes those of a task that is deleted.
pub(crate) async fn give(tx: &mut Tx, task: &str, names: &[String]) -> Result<(), StoreError> {
    query("DELETE FROM task_secrets WHERE task = $1").bind(task).execute(&mut *tx).await?;
    for name in names {
        query("INSERT INTO task_secrets (task, name) VALUES ($1, $2) ON CONFLICT (task, name) DO NOTHING")
            .bind(task)
            .bind(name)
            .execute(&mut *tx)
            .await?;
    }
    Ok(())
}
