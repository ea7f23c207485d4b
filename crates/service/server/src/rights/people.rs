//! All users with their keys and roles, in memory: identifying the caller costs no query.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use cantle_model::TimeLimit;
use cantle_store::{GrantRow, KeyRow, PeopleRows, SessionRow, Store, StoreError, UserRow};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::sessions::OfSession;
use super::{OwnRun, Principal, Right, Role, Via};
use crate::clock::new_id;
use crate::identity::new_pair;

/// The subject of a grant that means every user.
pub(crate) const EVERYBODY: &str = "everybody";

/// SHA-256 of a secret, in hex. Secrets have 244 random bits and are made here: a slow digest would protect nothing more.
pub(crate) fn digest(secret: &str) -> String {
    Sha256::digest(secret).iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A new key pair of a user: the row, and the secret, which cannot be read again.
pub(crate) fn new_key(user: &str, label: &str, now_us: i64) -> (KeyRow, String) {
    let (access_key, secret) = new_pair();
    (key_row(user, &access_key, &secret, label, now_us), secret)
}

/// The row of a key pair.
pub(crate) fn key_row(user: &str, access_key: &str, secret: &str, label: &str, now_us: i64) -> KeyRow {
    KeyRow {
        access_key: access_key.to_owned(),
        user: user.to_owned(),
        secret_sha256: digest(secret),
        label: label.to_owned(),
        created_us: now_us,
        ..KeyRow::default()
    }
}

/// The subject of a user's own grants.
pub(crate) fn subject_of(user: &str) -> String {
    format!("user:{user}")
}

/// Why a caller is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stranger {
    /// No such key, or not with this secret.
    Key,
    /// The key was revoked.
    Revoked {
        /// Its public half.
        access_key: String,
        /// Name of its user.
        user: String,
    },
    /// The user was removed or never existed.
    User(String),
    /// The login was ended.
    Session,
}

/// A user as an identity provider confirms it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExternalIdentity {
    /// The provider's permanent name for the person: issuer and subject.
    pub(crate) id: String,
    /// A name for people.
    pub(crate) name: String,
    /// The groups that the provider names. Roles are given to `group:NAME`.
    pub(crate) groups: Vec<String>,
}

/// The rows, by the key of look-ups.
#[derive(Debug, Default)]
pub(crate) struct Register {
    version: i64,
    /// By id, also removed ones.
    pub(crate) users: BTreeMap<String, UserRow>,
    /// By public half, also revoked ones.
    pub(crate) keys: BTreeMap<String, KeyRow>,
    pub(crate) grants: Vec<GrantRow>,
    groups: BTreeMap<String, Vec<String>>,
    /// By id, also ended ones.
    pub(super) sessions: BTreeMap<String, SessionRow>,
}

impl Register {
    fn of(rows: PeopleRows) -> Self {
        let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (user, group) in rows.groups {
            groups.entry(user).or_default().push(group);
        }
        Self {
            version: rows.version,
            users: rows.users.into_iter().map(|user| (user.id.clone(), user)).collect(),
            keys: rows.keys.into_iter().map(|key| (key.access_key.clone(), key)).collect(),
            grants: rows.grants,
            groups,
            sessions: rows.sessions.into_iter().map(|session| (session.id.clone(), session)).collect(),
        }
    }

    /// The name of a user, also of a removed one; its id if it is not known at all.
    pub(crate) fn name<'a>(&'a self, id: &'a str) -> &'a str {
        self.users.get(id).map_or(id, |user| user.name.as_str())
    }

    /// A user who is still there, by name or id.
    pub(crate) fn user(&self, wanted: &str) -> Option<&UserRow> {
        // An id first: a user may have chosen it as a name.
        let by_name = || self.users.values().find(|user| user.name == wanted && user.removed_us.is_none());
        self.users.get(wanted).filter(|user| user.removed_us.is_none()).or_else(by_name)
    }

    /// The id of a user, also of a removed one, by name or id.
    pub(crate) fn id_of(&self, wanted: &str) -> Option<&str> {
        let by_name = || self.users.values().find(|user| user.name == wanted);
        self.users.get(wanted).or_else(by_name).map(|user| user.id.as_str())
    }

    /// The highest priority that a user may give a task.
    pub(crate) fn most_priority(&self, id: &str) -> Option<u32> {
        self.users.get(id)?.limits.priority
    }

    /// How long each task of a user runs at most.
    pub(crate) fn most_time(&self, id: &str) -> Option<TimeLimit> {
        self.users.get(id)?.limits.time_s
    }

    /// Whether the GPUs of any user are limited.
    pub(crate) fn limits_gpus(&self) -> bool {
        self.users.values().any(|user| user.limits.gpu_milli.is_some())
    }

    /// The users that a caller may know of: all, if it may see something at all; else itself.
    pub(crate) fn seen_by(&self, who: &Principal) -> impl Iterator<Item = &UserRow> {
        let all = who.may_somewhere(Right::See);
        let own = who.user.clone();
        self.users.values().filter(move |user| user.removed_us.is_none() && (all || user.id == own))
    }

    /// The user with this id at an identity provider or in Kubernetes, also a removed one.
    pub(crate) fn of_identity(&self, external: &str) -> Option<&UserRow> {
        self.users.values().find(|user| user.external.as_deref() == Some(external))
    }

    /// The groups of a user.
    pub(crate) fn groups(&self, id: &str) -> &[String] {
        self.groups.get(id).map_or(&[], Vec::as_slice)
    }

    /// Roles of a user: its own, those of its groups, and everybody's. An agent has its own alone.
    pub(crate) fn roles(&self, user: &UserRow) -> Vec<(String, Role)> {
        let own = subject_of(&user.id);
        let groups: Vec<String> =
            self.groups(&user.id).iter().map(|group| format!("group:{group}")).collect();
        let is_meant = |grant: &&GrantRow| {
            grant.subject == own
                || (user.node.is_none() && (grant.subject == EVERYBODY || groups.contains(&grant.subject)))
        };
        let role = |grant: &GrantRow| Some((grant.project.clone(), Role::parse(&grant.role)?));
        self.grants.iter().filter(is_meant).filter_map(role).collect()
    }

    /// The users who administer the server and have a key or a login elsewhere.
    pub(crate) fn administrators(&self) -> impl Iterator<Item = &UserRow> {
        let can_log_in = |user: &UserRow| {
            user.external.is_some()
                || self.keys.values().any(|key| key.user == user.id && key.revoked_us.is_none())
        };
        self.users.values().filter(move |user| {
            let administers = || self.roles(user).contains(&(String::new(), Role::Admin));
            user.removed_us.is_none() && administers() && can_log_in(user)
        })
    }

    fn principal(&self, user: &str, access_key: Option<&str>, via: Via) -> Result<Principal, Stranger> {
        let found = self.users.get(user).ok_or_else(|| Stranger::User(user.to_owned()))?;
        let revoked = access_key.and_then(|key| self.keys.get(key)).filter(|key| key.revoked_us.is_some());
        if let Some(key) = revoked {
            return Err(Stranger::Revoked { access_key: key.access_key.clone(), user: found.name.clone() });
        }
        if found.removed_us.is_some() {
            return Err(Stranger::User(found.name.clone()));
        }
        Ok(Principal {
            user: found.id.clone(),
            name: found.name.clone(),
            via,
            access_key: access_key.map(str::to_owned),
            session: None,
            node: found.node.clone(),
            run: None,
            roles: self.roles(found),
        })
    }
}

/// The credential of a caller.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Used {
    /// A key, by its public half.
    Key(String),
    /// A login, by its id.
    Session(String),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct People {
    register: RwLock<Arc<Register>>,
    /// Uses of keys and of logins that are not in the database yet.
    used: Mutex<BTreeMap<Used, (i64, String)>>,
}

impl People {
    /// Reads all users.
    pub(crate) async fn open(store: &Store) -> Result<Self, StoreError> {
        let register = RwLock::new(Arc::new(Register::of(store.people().await?)));
        Ok(Self { register, used: Mutex::default() })
    }

    /// The users as they are now.
    pub(crate) fn register(&self) -> Arc<Register> {
        Arc::clone(&self.register.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads all users again, at once after a change.
    pub(crate) async fn reload(&self, store: &Store) -> Result<(), StoreError> {
        let read = Arc::new(Register::of(store.people().await?));
        let mut register = self.register.write().unwrap_or_else(PoisonError::into_inner);
        // Another reload may have read later and come first.
        if register.version <= read.version {
            *register = read;
        }
        Ok(())
    }

    /// Reads all users again if another server changed them.
    pub(crate) async fn refresh(&self, store: &Store) -> Result<(), StoreError> {
        if store.rights_version().await? != self.register().version {
            self.reload(store).await?;
        }
        Ok(())
    }

    /// Writes when keys and logins were used since the last time.
    pub(crate) async fn save_uses(&self, store: &Store) -> Result<(), StoreError> {
        let used = std::mem::take(&mut *self.used());
        if used.is_empty() {
            return Ok(());
        }
        let (mut keys, mut sessions) = (Vec::new(), Vec::new());
        for (what, (time_us, from)) in used {
            match what {
                Used::Key(key) => keys.push((key, time_us, from)),
                Used::Session(id) => sessions.push((id, time_us, from)),
            }
        }
        if !keys.is_empty() {
            store.note_key_uses(&keys).await?;
        }
        if !sessions.is_empty() {
            store.note_session_uses(&sessions).await?;
        }
        self.reload(store).await
    }

    /// Remembers what a caller used.
    pub(crate) fn note_use(&self, what: Used, now_us: i64, from: &str) {
        let last = (now_us, from.to_owned());
        self.used().insert(what, last);
    }

    fn used(&self) -> MutexGuard<'_, BTreeMap<Used, (i64, String)>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The owner of this key pair.
    pub(crate) fn by_key(&self, access_key: &str, secret: &str) -> Result<Principal, Stranger> {
        let register = self.register();
        let given = digest(secret);
        let known = register.keys.get(access_key);
        // An unknown key costs the same comparison as a known one.
        let expected = known.map_or(&given[1..], |key| key.secret_sha256.as_str());
        if !bool::from(given.as_bytes().ct_eq(expected.as_bytes())) {
            return Err(Stranger::Key);
        }
        let user = known.map(|key| key.user.as_str()).unwrap_or_default();
        register.principal(user, Some(access_key), Via::Key)
    }

    /// The user of a token, with the key or the login that it was given for.
    pub(crate) fn by_token(
        &self,
        user: &str,
        access_key: Option<&str>,
        session: Option<OfSession<'_>>,
    ) -> Result<Principal, Stranger> {
        let register = self.register();
        let found = register.principal(user, access_key, Via::Session)?;
        match session {
            Some(session) if !register.lasts(user, &session) => Err(Stranger::Session),
            session => Ok(Principal { session: session.map(|session| session.id.to_owned()), ..found }),
        }
    }

    /// A run of this user's task.
    pub(crate) fn by_run(&self, user: &str, run: OwnRun) -> Result<Principal, Stranger> {
        Ok(self.register().principal(user, None, Via::Task)?.run_by(run))
    }

    /// The user of a person at an identity provider, created at the first login; its groups become the provider's.
    pub(crate) async fn by_identity(
        &self,
        store: &Store,
        who: &ExternalIdentity,
        now_us: i64,
    ) -> Result<Principal, StoreError> {
        let known = self.register().of_identity(&who.id).map(|user| user.id.clone());
        let id = match known {
            Some(id) => id,
            None => self.add_identity(store, who, now_us).await?,
        };
        if self.register().groups(&id) != who.groups || !self.register().users.contains_key(&id) {
            store.set_groups(&id, &who.groups).await?;
            self.reload(store).await?;
        }
        let found = self.register().principal(&id, None, Via::Session);
        found.map_err(|_| StoreError::NoUser(who.name.clone()))
    }

    /// Makes the user; the id of the one that is there by now, if another call was quicker.
    async fn add_identity(
        &self,
        store: &Store,
        who: &ExternalIdentity,
        now_us: i64,
    ) -> Result<String, StoreError> {
        let id = new_id();
        // Two people of one name, or a name that means something else: the number distinguishes them.
        let numbered = format!("{} ({})", readable(&who.name), &id[..8]);
        let mut new = UserRow {
            id: id.clone(),
            name: if is_plain(&who.name) { who.name.clone() } else { numbered.clone() },
            external: Some(who.id.clone()),
            created_us: now_us,
            ..UserRow::default()
        };
        if let Err(StoreError::NameTaken { .. }) = store.add_user(&new, &[]).await {
            self.reload(store).await?;
            if let Some(user) = self.register().of_identity(&who.id) {
                return Ok(user.id.clone());
            }
            new.name = numbered;
            store.add_user(&new, &[]).await?;
        }
        Ok(id)
    }
}

/// Whether a name from a provider is nothing but a name: not what roles are given to, no id, and nothing that reads as another name.
fn is_plain(name: &str) -> bool {
    let is_id = name.len() == 32 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    name != EVERYBODY && readable(name) == name && !is_id
}

/// The name without marks that no one sees, and without the sign of groups.
fn readable(name: &str) -> String {
    let is_mark = |c: char| matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    let name: String = name.chars().filter(|c| !is_mark(*c)).collect();
    name.strip_prefix("group:").map_or_else(|| name.clone(), |rest| format!("group {rest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn people() -> (tempfile::TempDir, Store, People) {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("cantle.db")).await.unwrap();
        let people = People::open(&store).await.unwrap();
        (dir, store, people)
    }

    fn grant(subject: &str, project: &str, role: &str) -> GrantRow {
        GrantRow { subject: subject.into(), project: project.into(), role: role.into() }
    }

    #[tokio::test]
    async fn a_key_is_its_users_until_it_is_revoked() {
        let (_dir, store, people) = people().await;
        let anna = UserRow { id: "a".into(), name: "anna".into(), ..UserRow::default() };
        store.add_user(&anna, &[grant("user:a", "P", "member")]).await.unwrap();
        let (key, secret) = new_key("a", "laptop", 1);
        store.add_key(&key, None).await.unwrap();
        people.reload(&store).await.unwrap();
        let found = people.by_key(&key.access_key, &secret).unwrap();
        assert_eq!((found.name.as_str(), found.roles), ("anna", vec![("P".into(), Role::Member)]));
        for (access, secret) in
            [(key.access_key.as_str(), "wrong"), ("wrong", &secret), ("", ""), ("wrong", "")]
        {
            assert_eq!(people.by_key(access, secret).unwrap_err(), Stranger::Key);
        }
        assert!(people.by_token("a", Some(&key.access_key), None).is_ok());
        store.revoke_key(&key.access_key, 2).await.unwrap();
        people.refresh(&store).await.unwrap();
        assert!(matches!(people.by_key(&key.access_key, &secret).unwrap_err(), Stranger::Revoked { .. }));
        assert!(people.by_token("a", Some(&key.access_key), None).is_err(), "tokens end with their key");
    }

    #[tokio::test]
    async fn groups_come_from_the_identity_provider() {
        let (_dir, store, people) = people().await;
        store.set_grant(&grant("group:research", "R", "manager"), true).await.unwrap();
        store.set_grant(&grant(EVERYBODY, "", "viewer"), true).await.unwrap();
        people.reload(&store).await.unwrap();
        let mut who =
            ExternalIdentity { id: "iss#1".into(), name: "anna".into(), groups: vec!["research".into()] };
        let anna = people.by_identity(&store, &who, 1).await.unwrap();
        assert_eq!(anna.roles, [(String::new(), Role::Viewer), ("R".into(), Role::Manager)]);
        who.groups.clear();
        let again = people.by_identity(&store, &who, 2).await.unwrap();
        assert_eq!((again.user, again.roles), (anna.user.clone(), vec![(String::new(), Role::Viewer)]));
        let other = ExternalIdentity { id: "iss#2".into(), ..who };
        let other = people.by_identity(&store, &other, 3).await.unwrap();
        assert!(other.user != anna.user && other.name.starts_with("anna ("), "{}", other.name);
        store.remove_user(&anna.user, 4).await.unwrap();
        people.refresh(&store).await.unwrap();
        assert_eq!(people.by_token(&anna.user, None, None).unwrap_err(), Stranger::User("anna".into()));
    }

    /// A provider's people choose their names. No such name may be read as another user or a group to which an
    /// administrator gives roles.
    #[tokio::test]
    async fn no_name_from_a_provider_means_others() {
        let (_dir, store, people) = people().await;
        let victim = UserRow { id: "f".repeat(32), name: "victim".into(), ..UserRow::default() };
        store.add_user(&victim, &[]).await.unwrap();
        people.reload(&store).await.unwrap();
        for (number, name) in
            [EVERYBODY, "group:ops", &victim.id, "victim", "v\u{202e}ictim"].into_iter().enumerate()
        {
            let name = name.to_owned();
            let who =
                ExternalIdentity { id: format!("iss#{number}"), name: name.clone(), groups: Vec::new() };
            let made = people.by_identity(&store, &who, 1).await.unwrap();
            assert_ne!(made.name, name);
            assert!(!made.name.starts_with("group:") && !made.name.contains('\u{202e}'), "{}", made.name);
            assert_eq!(people.register().user(&victim.id).unwrap().name, "victim");
        }
        let honest = ExternalIdentity { id: "iss#9".into(), name: "Zoë Müller".into(), groups: Vec::new() };
        assert_eq!(people.by_identity(&store, &honest, 1).await.unwrap().name, "Zoë Müller");
    }
}
