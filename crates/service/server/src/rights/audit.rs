//! Decides what goes into the audit, and what never does.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use cantle_store::{AuditRow, StoreError};
use serde_json::{Map, Value, json};

use crate::app::{App, Call};
use crate::error::ApiError;

/// How much of a request is kept, in bytes.
const MOST: usize = 4096;
/// The same refusal of the same caller is recorded once in this time, so that refusals cannot fill the disk.
const REPEAT_US: i64 = 10_000_000;
/// A program logs in for each command: the same login of the same key from the same address is recorded once in this time.
const LOGIN_REPEAT_US: i64 = 3600 * 1_000_000;
/// How many different refusals, or logins, are remembered for that.
const REMEMBERED: usize = 4096;
/// The path in a request to the object that it is about.
const SUBJECTS: [&str; 11] =
    ["task", "queue", "project", "pool", "model", "user", "who", "access_key", "session", "ids", "name"];

/// A record of the outcome `done`.
pub(crate) fn record(call: &Call, action: &str, before: Value, after: &Value) -> AuditRow {
    AuditRow {
        time_us: call.now_us,
        user_id: call.who.user.clone(),
        user_name: call.who.label(),
        from_ip: call.ip.clone(),
        action: action.to_owned(),
        outcome: "done".to_owned(),
        subject: subject(after),
        before: if before.is_null() { String::new() } else { before.to_string() },
        after: kept(after),
        ..AuditRow::default()
    }
}

/// Adds a record. A failed write does not undo the action; the log reports it.
pub(crate) async fn add(app: &App, row: &AuditRow) {
    if let Err(error) = app.store.add_audit(row).await {
        tracing::error!(action = row.action, user = row.user_name, "the audit cannot be written: {error}");
    }
}

fn subject(body: &Value) -> String {
    let named = SUBJECTS.iter().find_map(|name| match body.get(name)? {
        Value::String(text) => Some(text.clone()),
        Value::Array(list) => {
            Some(list.iter().filter_map(Value::as_str).take(10).collect::<Vec<_>>().join(" "))
        }
        _ => None,
    });
    clipped(named.unwrap_or_default(), 400)
}

/// A request as it is kept: no secrets, and no programs or parameters, which may hold some.
fn kept(body: &Value) -> String {
    const NEVER: [&str; 11] = [
        "secret_key",
        "value",
        "address",
        "password",
        "token",
        "script",
        "hyperparams",
        "configuration",
        "container",
        "execution",
        "runtime",
    ];
    let Value::Object(fields) = body else { return String::new() };
    let fields: Map<String, Value> = fields
        .iter()
        .filter(|(name, _)| !NEVER.contains(&name.as_str()))
        .map(|(n, v)| (n.clone(), v.clone()))
        .collect();
    let text = Value::Object(fields).to_string();
    if text.len() <= MOST { text } else { json!({ "longer_than_bytes": MOST }).to_string() }
}

fn clipped(mut text: String, most: usize) -> String {
    while text.len() > most {
        text.pop();
    }
    text
}

/// The state before a change. A change is better audited without it than refused, but the log says so.
fn known<T: Default>(found: Result<T, StoreError>) -> T {
    found.unwrap_or_else(|error| {
        tracing::error!(%error, "the audit lacks the state before a change");
        T::default()
    })
}

/// The state of an object before a change, as far as one query shows it.
pub(crate) async fn before(call: &Call, body: &Value) -> Value {
    let named = |name: &str| body.get(name).and_then(Value::as_str);
    if let Some(id) = named("task") {
        let found = known(call.store.owned_tasks(&[id.to_owned()]).await);
        return found.first().map_or(Value::Null, |task| {
            let status = task.status.map(|status| status.to_string());
            json!({ "status": status, "project": task.project, "owner": task.owner })
        });
    }
    if let Some(wanted) = named("project") {
        let rows = known(call.app.store.projects().await);
        let found = rows.into_iter().find(|row| row.id == wanted || row.name == wanted);
        let budgets = known(call.app.store.budgets().await);
        return found.map_or(Value::Null, |row| {
            let mut state = json!({ "name": row.name, "quota": row.quota });
            if let Some(found) = budgets.iter().find(|budget| budget.project == row.id) {
                state["budget"] = json!(found.budget);
            }
            state
        });
    }
    if let Some(name) = named("pool") {
        let pools = known(call.store.pools().await);
        let found = pools.into_iter().find(|pool| pool.name == name);
        return found.map_or(Value::Null, |pool| json!({ "nodes": pool.nodes, "models": pool.models }));
    }
    if let Some(id) = named("queue") {
        let found = call.store.queue(id).await.ok();
        return found.map_or(Value::Null, |row| json!({ "name": row.name, "waiting": row.entries.len() }));
    }
    let register = call.people.register();
    if let Some(wanted) = named("user").or_else(|| named("who")) {
        return register.user(wanted).map_or(Value::Null, |user| {
            let role =
                |(project, role): (String, super::Role)| json!({ "role": role.name(), "project": project });
            json!({ "roles": register.roles(user).into_iter().map(role).collect::<Vec<_>>() })
        });
    }
    if let Some(key) = named("access_key").and_then(|key| register.keys.get(key)) {
        return json!({ "user": register.name(&key.user), "label": key.label });
    }
    if let Some(session) = named("session").and_then(|id| register.session(id, call.now_us)) {
        let user = register.name(&session.user);
        return json!({ "user": user, "via": session.via, "from": session.from, "client": session.client });
    }
    Value::Null
}

/// Logins of programs that were recorded lately.
#[derive(Debug, Default)]
pub(crate) struct Logins(Mutex<BTreeMap<(String, String), i64>>);

impl Logins {
    /// Records the login of a program, with its key or with a token of Kubernetes, unless the same was recorded within the hour.
    pub(crate) async fn note(&self, call: &Call) {
        // A token of Kubernetes belongs to no key.
        let key = call.who.access_key.clone().unwrap_or_else(|| call.who.user.clone());
        if self.is_new(key, call.ip.clone(), call.now_us) {
            let row = record(call, "login", Value::Null, &json!({ "via": call.who.via.name() }));
            add(call, &row).await;
        }
    }

    fn is_new(&self, key: String, ip: String, now_us: i64) -> bool {
        let mut lately = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lately.len() >= REMEMBERED {
            lately.retain(|_, time_us| now_us - *time_us < LOGIN_REPEAT_US);
        }
        let is_new =
            lately.get(&(key.clone(), ip.clone())).is_none_or(|last| now_us - last >= LOGIN_REPEAT_US);
        // Of more than can be remembered, each is recorded.
        if is_new && lately.len() < REMEMBERED {
            lately.insert((key, ip), now_us);
        }
        is_new
    }
}

/// Refusals that were recorded lately.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Mutex<BTreeMap<(String, String, String), i64>>);

impl Refusals {
    /// Records that a call was refused, unless the same was just recorded.
    pub(crate) async fn note(&self, app: &App, row: AuditRow, error: &ApiError) {
        let row = AuditRow { outcome: clipped(error.message.clone(), 400), ..row };
        if self.is_new(&row) {
            add(app, &row).await;
        }
    }

    fn is_new(&self, row: &AuditRow) -> bool {
        let mut lately = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lately.len() >= REMEMBERED {
            lately.retain(|_, time_us| row.time_us - *time_us < REPEAT_US);
        }
        // Callers beyond the number that is kept apart are recorded together, as one that is known already.
        if lately.len() >= REMEMBERED {
            return false;
        }
        let key = (row.user_id.clone(), row.from_ip.clone(), row.action.clone());
        let last = lately.insert(key, row.time_us);
        last.is_none_or(|last| row.time_us - last >= REPEAT_US)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_stay_out() {
        let body = json!({"task": "t", "secret_key": "s", "address": "https://x/s", "value": "v", "hyperparams": {"a": 1}, "force": true});
        assert_eq!(kept(&body), json!({"task": "t", "force": true}).to_string());
        assert_eq!(subject(&body), "t");
        assert_eq!(subject(&json!({"ids": ["a", "b"]})), "a b");
        assert!(kept(&json!({"name": "x".repeat(5000)})).len() < 100);
    }

    #[test]
    fn a_login_is_recorded_once_in_an_hour_for_each_key_and_address() {
        let logins = Logins::default();
        let is_new = |key: &str, ip: &str, now_us| logins.is_new(key.into(), ip.into(), now_us);
        assert!(is_new("k", "a", 0) && !is_new("k", "a", 1) && is_new("k", "b", 2) && is_new("l", "a", 3));
        assert!(!is_new("k", "a", LOGIN_REPEAT_US - 1) && is_new("k", "a", LOGIN_REPEAT_US));
        for n in 0..2 * REMEMBERED {
            assert!(is_new("k", &n.to_string(), LOGIN_REPEAT_US));
        }
        assert!(logins.0.lock().unwrap().len() <= REMEMBERED);
    }

    #[test]
    fn a_flood_of_refusals_is_recorded_once_in_a_while() {
        let refusals = Refusals::default();
        let at = |time_us| AuditRow { time_us, action: "tasks.stop".into(), ..AuditRow::default() };
        assert!(refusals.is_new(&at(0)));
        assert!(!refusals.is_new(&at(1)));
        assert!(refusals.is_new(&at(REPEAT_US + 1)));
        for n in 0..2 * i64::try_from(REMEMBERED).unwrap() {
            refusals.is_new(&AuditRow { from_ip: n.to_string(), ..at(REPEAT_US + 2) });
        }
        assert!(refusals.0.lock().unwrap().len() <= REMEMBERED);
    }
}
