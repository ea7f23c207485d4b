//! `users.*`, `auth.*`, `login.*`, `server.*`: what there is of it where there is one user.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::app::{COMPANY, Call, USER};
use crate::error::ApiError;
use crate::projection::only;
use crate::routes::Routes;

pub(super) fn add(routes: &mut Routes) {
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

fn user() -> Value {
    json!({"id": USER, "name": USER, "given_name": USER, "family_name": "", "company": COMPANY, "role": "user", "providers": {}})
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct All {
    id: Option<Vec<String>>,
    name: Option<String>,
    only_fields: Vec<String>,
}

async fn all(_call: Call, request: All) -> Result<Value, ApiError> {
    let pattern = request.name.as_deref().unwrap_or_default();
    let pattern = regex::Regex::new(pattern).map_err(|_| ApiError::invalid(format!("name: {pattern}")))?;
    let is_meant = request.id.is_none_or(|ids| ids.iter().any(|id| id == USER)) && pattern.is_match(USER);
    let users: Vec<Value> = is_meant.then(|| only(user(), &request.only_fields)).into_iter().collect();
    Ok(json!({ "users": users }))
}

#[derive(Deserialize)]
struct ById {
    user: String,
}

async fn by_id(_call: Call, request: ById) -> Result<Value, ApiError> {
    if request.user != USER {
        return Err(ApiError::invalid(format!("there is one user, {USER}")));
    }
    Ok(json!({ "user": user() }))
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
    Ok(match call.keys.check(&call.people, Some(&format!("Bearer {}", request.token))) {
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

/// cantle reports to nobody.
async fn report_stats(_call: Call, request: Map<String, Value>) -> Result<Value, ApiError> {
    if request.get("enabled") == Some(&Value::Bool(true)) {
        return Err(ApiError::invalid("enabled: cantle reports to nobody"));
    }
    Ok(json!({"supported": false, "enabled": false, "current_version": env!("CARGO_PKG_VERSION")}))
}

async fn ping(_call: Call, _request: Value) -> Result<Value, ApiError> {
    Ok(json!({"msg": "cantle"}))
}
