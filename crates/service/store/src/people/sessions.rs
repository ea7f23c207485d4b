//! Logins of people: of a browser, and of `cantle login`.

use super::users::changed;
use crate::db::{Row, query};
use crate::{Store, StoreError};

/// How many logins a user may have.
const MOST: i64 = 100;

/// A login.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionRow {
    /// Its id, made by the caller; tokens name it.
    pub id: String,
    /// Id of its user.
    pub user: String,
    /// The public half of the key pair that logged in; none: an identity provider.
    pub access_key: Option<String>,
    /// `page` or `command line`.
    pub via: String,
    /// The name that the client gives itself.
    pub client: String,
    /// The address from which it was made.
    pub from: String,
    /// SHA-256 of the provider's refresh token, in hex; unique.
    pub refresh_sha256: Option<String>,
    /// When it was made, in microseconds since 1970.
    pub created_us: i64,
    /// When it ends by itself.
    pub expires_us: i64,
    /// When it was used last, to about 10 seconds.
    pub last_used_us: i64,
    /// The address from which it was.
    pub last_used_from: String,
    /// When it was ended.
    pub ended_us: Option<i64>,
}

/// The use of a session: its id, when, and from which address.
pub type SessionUse = (String, i64, String);

impl Store {
    /// All logins, oldest first.
    pub(crate) async fn sessions(&self) -> Result<Vec<SessionRow>, StoreError> {
        let sql = query(
            "SELECT id, user_id, access_key, via, client, from_ip, refresh_sha256, created_us, expires_us, \
             last_used_us, last_used_from, ended_us FROM sessions ORDER BY created_us, id",
        );
        let rows = sql.fetch_all(&self.readers).await?;
        Ok(rows.iter().map(session).collect::<Result<_, _>>()?)
    }

    /// Makes a login. Removes those that expired, to which nothing can belong any more, and the oldest of its user that are too
    /// many: to remove one is to end it.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn add_session(&self, new: &SessionRow) -> Result<(), StoreError> {
        let mut write = self.write().await?;
        query("DELETE FROM sessions WHERE expires_us < $1")
            .bind(new.created_us)
            .execute(&mut write.tx)
            .await?;
        let sql = query(
            "DELETE FROM sessions WHERE user_id = $1 AND id NOT IN \
             (SELECT id FROM sessions WHERE user_id = $1 ORDER BY created_us DESC, id LIMIT $2)",
        );
        sql.bind(&new.user).bind(MOST - 1).execute(&mut write.tx).await?;
        query(
            "INSERT INTO sessions (id, user_id, access_key, via, client, from_ip, refresh_sha256, created_us, \
             expires_us, last_used_us, last_used_from) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $8, $6)",
        )
        .bind(&new.id)
        .bind(&new.user)
        .bind(&new.access_key)
        .bind(&new.via)
        .bind(&new.client)
        .bind(&new.from)
        .bind(&new.refresh_sha256)
        .bind(new.created_us)
        .bind(new.expires_us)
        .execute(&mut write.tx)
        .await?;
        changed(&mut write.tx).await?;
        write.commit().await
    }

    /// Prolongs a login whose refresh token became another one. `false`: it was ended, and stays so.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn refresh_session(
        &self,
        id: &str,
        refresh_sha256: &str,
        expires_us: i64,
    ) -> Result<bool, StoreError> {
        let mut write = self.write().await?;
        let sql = query(
            "UPDATE sessions SET refresh_sha256 = $2, expires_us = $3 WHERE id = $1 AND ended_us IS NULL",
        );
        let done = sql.bind(id).bind(refresh_sha256).bind(expires_us).execute(&mut write.tx).await?;
        changed(&mut write.tx).await?;
        write.commit().await?;
        Ok(done > 0)
    }

    /// Ends logins.
    ///
    /// # Errors
    /// Only if the database fails; an unknown one is none.
    pub async fn end_sessions(&self, ids: &[String], now_us: i64) -> Result<(), StoreError> {
        let mut write = self.write().await?;
        for id in ids {
            let sql = query("UPDATE sessions SET ended_us = $2 WHERE id = $1 AND ended_us IS NULL");
            sql.bind(id).bind(now_us).execute(&mut write.tx).await?;
        }
        changed(&mut write.tx).await?;
        write.commit().await
    }

    /// Records when logins were used. It may be lost with the machine's power.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn note_session_uses(&self, uses: &[SessionUse]) -> Result<(), StoreError> {
        let mut write = self.write_bulk().await?;
        for (id, time_us, from) in uses {
            let sql = query("UPDATE sessions SET last_used_us = $2, last_used_from = $3 WHERE id = $1");
            sql.bind(id).bind(time_us).bind(from).execute(&mut write.tx).await?;
        }
        write.commit().await
    }
}

fn session(row: &Row) -> Result<SessionRow, sqlx::Error> {
    Ok(SessionRow {
        id: row.try_get("id")?,
        user: row.try_get("user_id")?,
        access_key: row.try_get("access_key")?,
        via: row.try_get("via")?,
        client: row.try_get("client")?,
        from: row.try_get("from_ip")?,
        refresh_sha256: row.try_get("refresh_sha256")?,
        created_us: row.try_get("created_us")?,
        expires_us: row.try_get("expires_us")?,
        last_used_us: row.try_get("last_used_us")?,
        last_used_from: row.try_get("last_used_from")?,
        ended_us: row.try_get("ended_us")?,
    })
}
