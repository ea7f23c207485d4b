//! `cantle.*_sessions`: logins of people, in a browser and with `cantle login`.

use serde::{Deserialize, Serialize};

use crate::wire::endpoint;

/// `cantle.get_sessions`: the caller's logins, or for administrators those of a user or of all.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GetSessions {
    /// Name or id; absent: the caller.
    pub user: Option<String>,
    /// Of all users.
    pub all: bool,
}
endpoint!("cantle.get_sessions", GetSessions => SessionViews);

/// Answer of `cantle.get_sessions`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SessionViews {
    /// Oldest first.
    pub sessions: Vec<SessionView>,
}

/// A login that was not ended and did not expire.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SessionView {
    /// Its id.
    pub id: String,
    /// Name of its user.
    pub user: String,
    /// `page` or `command line`.
    pub via: String,
    /// The name that the client gives itself.
    pub client: String,
    /// The address from which it was made.
    pub from: String,
    /// RFC 3339.
    pub created: String,
    /// When it ends by itself, RFC 3339.
    pub expires: String,
    /// RFC 3339, to about 10 seconds.
    pub last_used: String,
    /// The address from which it was.
    pub last_used_from: String,
    /// It is the one with which this was asked.
    pub is_own: bool,
}

/// `cantle.end_sessions`: ends one login, or all of a user; those of others only for administrators.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct EndSessions {
    /// Id of one.
    pub session: Option<String>,
    /// Name or id of a user whose logins all end.
    pub user: Option<String>,
}
endpoint!("cantle.end_sessions", EndSessions => Ended);

/// Answer of `cantle.end_sessions`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Ended {
    /// How many.
    pub ended: u64,
}
