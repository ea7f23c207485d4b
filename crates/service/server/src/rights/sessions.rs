//! Logins of people: of a browser, and of `cantle login`. They can be listed and ended, and a token names its login.
//! Programs that call with a key pair have none: their tokens end with the key.

use cantle_store::{SessionRow, Store, StoreError};

use super::Principal;
use super::people::{People, Register, digest};
use crate::clock::new_id;

/// A login of the command line ends when it was not refreshed for this long.
const IDLE_US: i64 = 90 * 24 * 3600 * 1_000_000;
/// Another server on the database may have made a login that is not known here yet. A token that is older than this belongs to one
/// that is known, or to none.
const NEW_US: i64 = 60 * 1_000_000;
/// Maximum length of a client's own name, in characters.
const CLIENT: usize = 200;

/// A new login.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begin<'a> {
    /// `page` or `command line`.
    pub(crate) via: &'a str,
    /// The name that the client gives itself.
    pub(crate) client: &'a str,
    /// Its address.
    pub(crate) from: &'a str,
    /// The provider's refresh token, of a login that can be prolonged.
    pub(crate) refresh_token: Option<&'a str>,
    /// Its lifetime if it cannot.
    pub(crate) lives_s: i64,
    pub(crate) now_us: i64,
}

/// The facts in a token about its login.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OfSession<'a> {
    pub(crate) id: &'a str,
    /// How old the token is.
    pub(crate) age_us: i64,
}

impl People {
    /// When a login ends, if it is known here.
    pub(crate) fn session_end_us(&self, id: &str) -> Option<i64> {
        self.register().sessions.get(id).map(|row| row.expires_us)
    }
}

impl Register {
    /// Whether a login was not ended.
    pub(super) fn lasts(&self, user: &str, session: &OfSession<'_>) -> bool {
        match self.sessions.get(session.id) {
            Some(row) => row.user == user && row.ended_us.is_none(),
            None => session.age_us < NEW_US,
        }
    }

    /// The logins that last, oldest first.
    pub(crate) fn sessions(&self, now_us: i64) -> Vec<&SessionRow> {
        let is_there = |row: &&SessionRow| row.ended_us.is_none() && row.expires_us > now_us;
        let mut found: Vec<&SessionRow> = self.sessions.values().filter(is_there).collect();
        found.sort_by_key(|row| row.created_us);
        found
    }

    /// One that lasts.
    pub(crate) fn session(&self, id: &str, now_us: i64) -> Option<&SessionRow> {
        self.sessions.get(id).filter(|row| row.ended_us.is_none() && row.expires_us > now_us)
    }

    fn of_refresh_token(&self, token: &str, now_us: i64) -> Option<&SessionRow> {
        let wanted = digest(token);
        let mut there = self.sessions.values();
        let found = there.find(|row| row.refresh_sha256.as_ref() == Some(&wanted));
        found.filter(|row| row.ended_us.is_none() && row.expires_us > now_us)
    }
}

impl People {
    /// Begins a login of this caller, whose tokens belong to it from now on.
    pub(crate) async fn begin_session(
        &self,
        store: &Store,
        who: Principal,
        begin: &Begin<'_>,
    ) -> Result<Principal, StoreError> {
        let Begin { via, client, from, refresh_token, lives_s, now_us } = *begin;
        let lives_us = if refresh_token.is_some() { IDLE_US } else { lives_s.saturating_mul(1_000_000) };
        let row = SessionRow {
            id: new_id(),
            user: who.user.clone(),
            access_key: who.access_key.clone(),
            via: via.to_owned(),
            client: client.chars().filter(|c| !c.is_control()).take(CLIENT).collect(),
            from: from.to_owned(),
            refresh_sha256: refresh_token.map(digest),
            created_us: now_us,
            expires_us: now_us.saturating_add(lives_us),
            ..SessionRow::default()
        };
        store.add_session(&row).await?;
        self.reload(store).await?;
        Ok(Principal { session: Some(row.id), ..who })
    }

    /// The login that is prolonged with this refresh token: its id and its user.
    pub(crate) async fn session_to_refresh(
        &self,
        store: &Store,
        token: &str,
        now_us: i64,
    ) -> Result<Option<(String, String)>, StoreError> {
        let find = |register: &Register| {
            register.of_refresh_token(token, now_us).map(|row| (row.id.clone(), row.user.clone()))
        };
        let found = find(&self.register());
        if found.is_some() {
            return Ok(found);
        }
        // Another server may have prolonged it a moment ago.
        self.refresh(store).await?;
        Ok(find(&self.register()))
    }

    /// Prolongs a login. `false`: it was ended meanwhile.
    pub(crate) async fn refresh_session(
        &self,
        store: &Store,
        id: &str,
        refresh_token: &str,
        now_us: i64,
    ) -> Result<bool, StoreError> {
        let expires_us = now_us.saturating_add(IDLE_US);
        let done = store.refresh_session(id, &digest(refresh_token), expires_us).await?;
        self.reload(store).await?;
        Ok(done)
    }

    /// Ends logins at once.
    pub(crate) async fn end_sessions(
        &self,
        store: &Store,
        ids: &[String],
        now_us: i64,
    ) -> Result<(), StoreError> {
        store.end_sessions(ids, now_us).await?;
        self.reload(store).await
    }
}
