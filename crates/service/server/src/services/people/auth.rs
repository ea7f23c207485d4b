//! `auth.*`, `users.*`, `server.*`: the caller and the server.

use serde_json::{Value, json};

use crate::app::{COMPANY, Call};
use crate::error::ApiError;
use crate::identity::API_VERSION;
use crate::rights::{Role, Via};
use crate::routes::Routes;

/// Subcode of 401 for a token that ends: ClearML's for an expired one.
const LOGIN_ENDS: u32 = 31;

pub(crate) fn add(routes: &mut Routes) {
    routes.on("users.get_current_user", current_user);
    routes.on("users.get_vaults", vaults);
    routes.on("server.info", info);
}

/// `server.endpoints`: the endpoints of this server.
pub(crate) fn add_endpoints(routes: &mut Routes) {
    let mut names = routes.names();
    names.extend(["auth.login", "events.add_batch", "server.endpoints"]);
    names.sort_unstable();
    routes.on("server.endpoints", move |_call, _request: Value| {
        let names = names.clone();
        async move { Ok(json!({ "endpoints": names })) }
    });
}

/// `auth.login`: a token for the next calls of a caller who is authenticated already.
pub(crate) async fn login(call: &Call, query: Option<&str>) -> Result<Value, ApiError> {
    if matches!(call.who.via, Via::Session | Via::Kubernetes) && call.who.access_key.is_none() {
        // A login must not outlive what the provider says at the next refresh.
        let text =
            "this login cannot be prolonged here: refresh it (cantle login), or make keys for programs";
        return Err(ApiError::unauthorized(LOGIN_ENDS, text));
    }
    let pairs = query.unwrap_or_default().split('&');
    let lives_s = pairs.filter_map(|pair| pair.strip_prefix("expiration_sec=")).find_map(|s| s.parse().ok());
    let lives_s = match &call.who.session {
        None => lives_s,
        // Nor may a token of a session outlive it.
        Some(id) => Some(call.seconds_left(id)?.min(lives_s.unwrap_or(i64::MAX))),
    };
    call.logins.note(call).await;
    Ok(json!({ "token": call.keys.token(&call.who, call.now_us, lives_s)? }))
}

impl Call {
    /// How long a session lasts at most.
    fn seconds_left(&self, session: &str) -> Result<i64, ApiError> {
        let register = self.people.register();
        let left =
            register.session(session, self.now_us).map(|row| (row.expires_us - self.now_us) / 1_000_000);
        let ended = || ApiError::unauthorized(LOGIN_ENDS, "this login has ended; log in again");
        left.filter(|seconds| *seconds > 0).ok_or_else(ended)
    }
}

async fn current_user(call: Call, _request: Value) -> Result<Value, ApiError> {
    let company = json!({"id": COMPANY, "name": COMPANY});
    let who = &call.who;
    let role = |(project, role): &(String, Role)| json!({"role": role.name(), "project": project});
    let roles: Vec<Value> = who.roles.iter().map(role).collect();
    let (id, name, clearml_role) = (&who.user, &who.name, who.clearml_role());
    let user =
        json!({"id": id, "name": name, "role": clearml_role, "company": company, "cantle_roles": roles});
    Ok(json!({ "user": user }))
}

/// Pieces of configuration that a ClearML administrator distributes. This server has none: each client has its own file.
async fn vaults(_call: Call, _request: Value) -> Result<Value, ApiError> {
    Ok(json!({"vaults": []}))
}

async fn info(_call: Call, _request: Value) -> Result<Value, ApiError> {
    Ok(json!({"version": env!("CARGO_PKG_VERSION"), "build": "cantle", "api_version": API_VERSION}))
}
