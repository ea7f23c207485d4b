//! Callers (people and programs) with their keys, roles and groups. The server defines their meaning.

use cantle_model::UserLimits;

use crate::db::{Row, Tx, query, query_as, query_scalar};
use crate::tasks::wishes::limit;
use crate::{SessionRow, Store, StoreError};

/// A person or a service account.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserRow {
    /// Its id, made by the caller; tasks name it as their owner.
    pub id: String,
    /// Its name, unique.
    pub name: String,
    /// The node that a service account of an agent acts for.
    pub node: Option<String>,
    /// The user's identity at an identity provider; unique.
    pub external: Option<String>,
    /// When it was made, in microseconds since 1970.
    pub created_us: i64,
    /// When it was removed.
    pub removed_us: Option<i64>,
    /// Its limits.
    pub limits: UserLimits,
}

/// A key of a user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyRow {
    /// The public half.
    pub access_key: String,
    /// Id of its user.
    pub user: String,
    /// SHA-256 of the secret half, in hex.
    pub secret_sha256: String,
    /// Its label.
    pub label: String,
    /// When it was made, in microseconds since 1970.
    pub created_us: i64,
    /// When it was used last, to about a minute.
    pub last_used_us: Option<i64>,
    /// The address from which it was.
    pub last_used_from: Option<String>,
    /// When it was revoked.
    pub revoked_us: Option<i64>,
}

/// A role of a user or group in a tree of projects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GrantRow {
    /// `user:ID`, `group:NAME` or `everybody`.
    pub subject: String,
    /// Name of the project at the top of the tree; empty for all projects.
    pub project: String,
    /// The role's name.
    pub role: String,
}

/// All that rights are decided by, as of one version.
#[derive(Clone, Debug, Default)]
pub struct PeopleRows {
    /// Grows with each change.
    pub version: i64,
    /// All users, also removed ones.
    pub users: Vec<UserRow>,
    /// All keys, also revoked ones.
    pub keys: Vec<KeyRow>,
    /// All grants.
    pub grants: Vec<GrantRow>,
    /// (user's id, name of a group).
    pub groups: Vec<(String, String)>,
    /// Logins that had not expired at the last check, also ended ones.
    pub sessions: Vec<SessionRow>,
}

/// The use of a key: its public half, when, and from which address.
pub type KeyUse = (String, i64, String);

impl Store {
    /// All that rights are decided by.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn people(&self) -> Result<PeopleRows, StoreError> {
        // The version first: a change in between makes the next check read everything again.
        let version = self.rights_version().await?;
        let users = query(
            "SELECT id, name, node, external, created_us, removed_us, most_gpu_milli, most_queued, \
             most_priority, most_time_s FROM users ORDER BY name",
        );
        let keys = query(
            "SELECT access_key, user_id, secret_sha256, label, created_us, last_used_us, last_used_from, revoked_us \
             FROM user_keys ORDER BY created_us, access_key",
        );
        let grants = query("SELECT subject, project, role FROM user_grants ORDER BY subject, project, role");
        let groups = query_as("SELECT user_id, group_name FROM user_groups ORDER BY user_id, group_name");
        Ok(PeopleRows {
            version,
            users: read(&users.fetch_all(&self.readers).await?, user)?,
            keys: read(&keys.fetch_all(&self.readers).await?, key)?,
            grants: read(&grants.fetch_all(&self.readers).await?, grant)?,
            groups: groups.fetch_all(&self.readers).await?,
            sessions: self.sessions().await?,
        })
    }

    /// The version of what [`Store::people`] gives.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn rights_version(&self) -> Result<i64, StoreError> {
        let version = query_scalar("SELECT version FROM rights_version WHERE id = 1");
        Ok(version.fetch_one(&self.readers).await?)
    }

    /// Makes a user with its first roles. One of the same id is left as it is, and so are its roles.
    ///
    /// # Errors
    /// [`StoreError::NameTaken`].
    pub async fn add_user(&self, new: &UserRow, grants: &[GrantRow]) -> Result<(), StoreError> {
        let mut write = self.write().await?;
        let known = query("SELECT id FROM users WHERE id = $1").bind(&new.id);
        if known.fetch_optional(&mut write.tx).await?.is_some() {
            return Ok(());
        }
        let done = query(
            "INSERT INTO users (id, name, node, external, created_us, removed_us) VALUES ($1, $2, $3, $4, $5, NULL) \
             ON CONFLICT DO NOTHING",
        );
        let done =
            done.bind(&new.id).bind(&new.name).bind(&new.node).bind(&new.external).bind(new.created_us);
        if done.execute(&mut write.tx).await? == 0 {
            return Err(StoreError::NameTaken { what: "user", name: new.name.clone() });
        }
        for grant in grants {
            insert_grant(&mut write.tx, grant).await?;
        }
        changed(&mut write.tx).await?;
        write.commit().await
    }

    /// Removes a user: its keys are revoked and its roles are gone; its row stays.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn remove_user(&self, id: &str, now_us: i64) -> Result<(), StoreError> {
        let mut write = self.write().await?;
        for sql in [
            "UPDATE users SET removed_us = $2 WHERE id = $1 AND removed_us IS NULL",
            "UPDATE user_keys SET revoked_us = $2 WHERE user_id = $1 AND revoked_us IS NULL",
            "UPDATE sessions SET ended_us = $2 WHERE user_id = $1 AND ended_us IS NULL",
        ] {
            query(sql).bind(id).bind(now_us).execute(&mut write.tx).await?;
        }
        for sql in [
            "DELETE FROM user_groups WHERE user_id = $1",
            "DELETE FROM user_grants WHERE subject = 'user:' || $1",
            "DELETE FROM receivers WHERE owner = $1",
            "DELETE FROM receiver_states WHERE owner = $1",
            "DELETE FROM notices WHERE owner = $1",
            "DELETE FROM secrets WHERE owner = $1",
        ] {
            query(sql).bind(id).execute(&mut write.tx).await?;
        }
        changed(&mut write.tx).await?;
        write.commit().await
    }

    /// Lets a removed user in again.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn restore_user(&self, id: &str, grants: &[GrantRow]) -> Result<(), StoreError> {
        let mut write = self.write().await?;
        let sql = query("UPDATE users SET removed_us = NULL WHERE id = $1");
        sql.bind(id).execute(&mut write.tx).await?;
        for grant in grants {
            insert_grant(&mut write.tx, grant).await?;
        }
        changed(&mut write.tx).await?;
        write.commit().await
    }

    /// Makes a user the one that belongs to this identity, which another user without roles of its own loses.
    ///
    /// # Errors
    /// [`StoreError::NameTaken`] if that one has roles.
    pub async fn set_identity(&self, id: &str, external: &str) -> Result<(), StoreError> {
        let mut write = self.write().await?;
        let taken = query(
            "SELECT id FROM users WHERE external = $2 AND id <> $1 \
             AND EXISTS (SELECT 1 FROM user_grants WHERE subject = 'user:' || users.id)",
        );
        if taken.bind(id).bind(external).fetch_optional(&mut write.tx).await?.is_some() {
            return Err(StoreError::NameTaken { what: "identity", name: external.to_owned() });
        }
        for sql in [
            "UPDATE users SET external = NULL WHERE external = $2 AND id <> $1",
            "UPDATE users SET external = $2 WHERE id = $1",
        ] {
            query(sql).bind(id).bind(external).execute(&mut write.tx).await?;
        }
        changed(&mut write.tx).await?;
        write.commit().await
    }

    /// Adds a key, and revokes `instead` in the same step. `false`: there is a key of that name, which stays as it is.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn add_key(&self, new: &KeyRow, instead: Option<&str>) -> Result<bool, StoreError> {
        let mut write = self.write().await?;
        let done = query(
            "INSERT INTO user_keys (access_key, user_id, secret_sha256, label, created_us) \
             VALUES ($1, $2, $3, $4, $5) ON CONFLICT (access_key) DO NOTHING",
        )
        .bind(&new.access_key)
        .bind(&new.user)
        .bind(&new.secret_sha256)
        .bind(&new.label)
        .bind(new.created_us)
        .execute(&mut write.tx)
        .await?;
        if done == 0 {
            return Ok(false);
        }
        if let Some(old) = instead {
            revoke(&mut write.tx, old, new.created_us).await?;
        }
        changed(&mut write.tx).await?;
        write.commit().await?;
        Ok(true)
    }

    /// Revokes a key.
    ///
    /// # Errors
    /// Only if the database fails; an unknown key is none.
    pub async fn revoke_key(&self, access_key: &str, now_us: i64) -> Result<(), StoreError> {
        let mut write = self.write().await?;
        revoke(&mut write.tx, access_key, now_us).await?;
        changed(&mut write.tx).await?;
        write.commit().await
    }

    /// Renames a key.
    ///
    /// # Errors
    /// Only if the database fails; an unknown key is none.
    pub async fn label_key(&self, access_key: &str, label: &str) -> Result<(), StoreError> {
        let mut write = self.write().await?;
        let sql = query("UPDATE user_keys SET label = $2 WHERE access_key = $1");
        sql.bind(access_key).bind(label).execute(&mut write.tx).await?;
        changed(&mut write.tx).await?;
        write.commit().await
    }

    /// Records when keys were used. It may be lost with the machine's power.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn note_key_uses(&self, uses: &[KeyUse]) -> Result<(), StoreError> {
        let mut write = self.write_bulk().await?;
        for (access_key, time_us, from) in uses {
            let sql =
                query("UPDATE user_keys SET last_used_us = $2, last_used_from = $3 WHERE access_key = $1");
            sql.bind(access_key).bind(time_us).bind(from).execute(&mut write.tx).await?;
        }
        write.commit().await
    }

    /// Gives or takes away a role.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn set_grant(&self, grant: &GrantRow, has: bool) -> Result<(), StoreError> {
        let mut write = self.write().await?;
        if has {
            insert_grant(&mut write.tx, grant).await?;
        } else {
            let sql = query("DELETE FROM user_grants WHERE subject = $1 AND project = $2 AND role = $3");
            let sql = sql.bind(&grant.subject).bind(&grant.project).bind(&grant.role);
            sql.execute(&mut write.tx).await?;
        }
        changed(&mut write.tx).await?;
        write.commit().await
    }

    /// Makes these the groups of a user, and no others.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn set_groups(&self, user: &str, groups: &[String]) -> Result<(), StoreError> {
        let mut write = self.write().await?;
        let sql = query("DELETE FROM user_groups WHERE user_id = $1");
        sql.bind(user).execute(&mut write.tx).await?;
        for group in groups {
            let sql =
                query("INSERT INTO user_groups (user_id, group_name) VALUES ($1, $2) ON CONFLICT DO NOTHING");
            sql.bind(user).bind(group).execute(&mut write.tx).await?;
        }
        changed(&mut write.tx).await?;
        write.commit().await
    }
}

async fn insert_grant(tx: &mut Tx, grant: &GrantRow) -> Result<(), StoreError> {
    let sql =
        query("INSERT INTO user_grants (subject, project, role) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING");
    sql.bind(&grant.subject).bind(&grant.project).bind(&grant.role).execute(tx).await?;
    Ok(())
}

async fn revoke(tx: &mut Tx, access_key: &str, now_us: i64) -> Result<(), StoreError> {
    for sql in [
        "UPDATE user_keys SET revoked_us = $2 WHERE access_key = $1 AND revoked_us IS NULL",
        "UPDATE sessions SET ended_us = $2 WHERE access_key = $1 AND ended_us IS NULL",
    ] {
        query(sql).bind(access_key).bind(now_us).execute(&mut *tx).await?;
    }
    Ok(())
}

pub(crate) async fn changed(tx: &mut Tx) -> Result<(), StoreError> {
    query("UPDATE rights_version SET version = version + 1 WHERE id = 1").execute(tx).await?;
    Ok(())
}

fn read<T>(rows: &[Row], one: fn(&Row) -> Result<T, sqlx::Error>) -> Result<Vec<T>, StoreError> {
    Ok(rows.iter().map(one).collect::<Result<_, _>>()?)
}

fn user(row: &Row) -> Result<UserRow, sqlx::Error> {
    let most = |column| Ok::<_, sqlx::Error>(row.try_get::<Option<i64>, _>(column)?.map(i64::unsigned_abs));
    Ok(UserRow {
        id: row.try_get("id")?,
        name: row.try_get("name")?,
        node: row.try_get("node")?,
        external: row.try_get("external")?,
        created_us: row.try_get("created_us")?,
        removed_us: row.try_get("removed_us")?,
        limits: UserLimits {
            gpu_milli: most("most_gpu_milli")?,
            queued: most("most_queued")?,
            priority: most("most_priority")?.map(|most| u32::try_from(most).unwrap_or(u32::MAX)),
            time_s: limit(row.try_get("most_time_s")?),
        },
    })
}

fn key(row: &Row) -> Result<KeyRow, sqlx::Error> {
    Ok(KeyRow {
        access_key: row.try_get("access_key")?,
        user: row.try_get("user_id")?,
        secret_sha256: row.try_get("secret_sha256")?,
        label: row.try_get("label")?,
        created_us: row.try_get("created_us")?,
        last_used_us: row.try_get("last_used_us")?,
        last_used_from: row.try_get("last_used_from")?,
        revoked_us: row.try_get("revoked_us")?,
    })
}

fn grant(row: &Row) -> Result<GrantRow, sqlx::Error> {
    Ok(GrantRow {
        subject: row.try_get("subject")?,
        project: row.try_get("project")?,
        role: row.try_get("role")?,
    })
}
