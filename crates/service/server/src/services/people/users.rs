//! `users.*`, `auth.*`, `login.*`, `server.*`, as ClearML's clients call them.

use cantle_store::{StoreError, UserRow};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::app::{COMPANY, Call};
use crate::clock::rfc3339;
use crate::error::ApiError;
use crate::projection::only;
use crate::rights::{Register, Role};
use crate::routes::Routes;

pub(crate) fn add(routes: &mut Routes) {
    routes.on("users.get_all", all);
    routes.on("users.get_all_ex", all);
    routes.on("users.get_by_id", by_id);
    routes.on("users.get_preferences", preferences);
    routes.on("auth.fixed_users_mode", fixed_users);
    routes.on("auth.validate_token", validate_token);
    routes.on("auth.logout", nothing);
    routes.on("login.logout", nothing);
    routes.on("login.supported_modes", modes);
    routes.on("server.report_stats_option", report_stats);
    routes.on("debug.ping", ping);
}

fn user(row: &UserRow, register: &Register) -> Value {
    let role = if register.roles(row).contains(&(String::new(), Role::Admin)) { "admin" } else { "user" };
    json!({
        "id": row.id, "name": row.name, "given_name": row.name, "family_name": "", "company": COMPANY, "role": role,
        "created": rfc3339(row.created_us), "providers": {},
    })
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct All {
    id: Option<Vec<String>>,
    name: Option<String>,
    only_fields: Vec<String>,
}

async fn all(call: Call, request: All) -> Result<Value, ApiError> {
    let pattern = request.name.as_deref().unwrap_or_default();
    let pattern = regex::Regex::new(pattern).map_err(|_| ApiError::invalid(format!("name: {pattern}")))?;
    let register = call.people.register();
    let is_meant = |row: &&UserRow| {
        request.id.as_ref().is_none_or(|ids| ids.contains(&row.id)) && pattern.is_match(&row.name)
    };
    let users = register.seen_by(&call.who).filter(is_meant);
    let users: Vec<Value> = users.map(|row| only(user(row, &register), &request.only_fields)).collect();
    Ok(json!({ "users": users }))
}

#[derive(Deserialize)]
struct ById {
    user: String,
}

async fn by_id(call: Call, request: ById) -> Result<Value, ApiError> {
    let register = call.people.register();
    let found = register.seen_by(&call.who).find(|row| row.id == request.user);
    let found = found.ok_or_else(|| StoreError::NoUser(request.user.clone()))?;
    Ok(json!({ "user": user(found, &register) }))
}

/// Preferences are those of ClearML's web page, which has none here.
async fn preferences(_call: Call, _request: Value) -> Result<Value, ApiError> {
    Ok(json!({"preferences": {}}))
}

async fn fixed_users(_call: Call, _request: Value) -> Result<Value, ApiError> {
    Ok(json!({"enabled": false, "server_errors": {}}))
}

#[derive(Deserialize)]
struct Token {
    token: String,
}

async fn validate_token(call: Call, request: Token) -> Result<Value, ApiError> {
    Ok(match call.caller(Some(&format!("Bearer {}", request.token)), &call.ip).await {
        Ok(who) => json!({"valid": true, "user": who.user, "company": COMPANY}),
        Err(error) => json!({"valid": false, "msg": error.message}),
    })
}

/// A token lives until it expires; nothing is kept that could be ended.
async fn nothing(_call: Call, _request: Value) -> Result<Value, ApiError> {
    Ok(json!({}))
}

async fn modes(_call: Call, _request: Value) -> Result<Value, ApiError> {
    let basic = json!({"enabled": false, "guest": {"enabled": false}});
    Ok(json!({"basic": basic, "sso": {}, "sso_providers": [], "authenticated": true, "server_errors": {}}))
}

/// cantle sends no statistics.
async fn report_stats(_call: Call, request: Map<String, Value>) -> Result<Value, ApiError> {
    if request.get("enabled") == Some(&Value::Bool(true)) {
        return Err(ApiError::invalid("enabled: cantle reports to nobody"));
    }
    Ok(json!({"supported": false, "enabled": false, "current_version": env!("CARGO_PKG_VERSION")}))
}

async fn ping(_call: Call, _request: Value) -> Result<Value, ApiError> {
    Ok(json!({"msg": "cantle"}))
}
