//! Keys: ClearML's `auth.*_credentials` for the caller's own keys, and `cantle.*_key` for an administrator who manages the
//! keys of others.

use cantle_clearml::Empty;
use cantle_clearml::users::{AddKey, GetKeys, KeyView, KeyViews, NewKey, RevokeKey};
use cantle_store::{KeyRow, StoreError};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::app::Call;
use crate::clock::rfc3339;
use crate::error::ApiError;
use crate::rights::{Register, Right, new_key};
use crate::routes::Routes;

/// How many keys a user may have that are not revoked.
const KEYS: usize = 50;
/// How long a label may be, in characters.
const LABEL: usize = 200;

pub(crate) fn add(routes: &mut Routes) {
    routes.on("auth.create_credentials", create_credentials);
    routes.on("auth.get_credentials", get_credentials);
    routes.on("auth.edit_credentials", edit_credentials);
    routes.on("auth.revoke_credentials", revoke_credentials);
    routes.typed(get_keys);
    routes.typed(add_key);
    routes.typed(revoke_key);
}

/// The owner of these keys or sessions: the caller's, or of another one if the caller administers.
pub(crate) fn user_of(
    call: &Call,
    register: &Register,
    wanted: Option<&str>,
    what: &str,
) -> Result<String, ApiError> {
    let Some(wanted) = wanted else { return Ok(call.who.user.clone()) };
    let found = register.user(wanted).filter(|user| user.id == call.who.user);
    if found.is_none() && !call.who.may_everywhere(Right::Administer) {
        return Err(ApiError::forbidden(&call.who, Right::Administer, what, None));
    }
    let found = register.user(wanted).ok_or_else(|| StoreError::NoUser(wanted.to_owned()))?;
    Ok(found.id.clone())
}

/// The key, if it is the caller's or the caller administers; to others it does not exist.
fn own<'a>(call: &Call, register: &'a Register, access_key: &str) -> Result<&'a KeyRow, ApiError> {
    let found = register.keys.get(access_key).filter(|key| key.revoked_us.is_none());
    let found = found.filter(|key| key.user == call.who.user || call.who.may_everywhere(Right::Administer));
    found.ok_or_else(|| {
        ApiError::invalid(format!("access_key: {} is none of yours", access_key.escape_default()))
    })
}

/// Makes a key of a user.
pub(crate) async fn make(
    call: &Call,
    user: &str,
    label: &str,
    instead: Option<&str>,
) -> Result<NewKey, ApiError> {
    let register = call.people.register();
    let there = register.keys.values().filter(|key| key.user == user && key.revoked_us.is_none()).count();
    if there >= KEYS && instead.is_none() {
        return Err(ApiError::invalid(format!("{} has {KEYS} keys; revoke one first", register.name(user))));
    }
    if label.chars().count() > LABEL {
        return Err(ApiError::invalid(format!("label: at most {LABEL} characters")));
    }
    let (row, secret_key) = new_key(user, label, call.now_us);
    call.store.add_key(&row, instead).await?;
    call.people.reload(&call.store).await?;
    let user = call.people.register().name(user).to_owned();
    Ok(NewKey { user, access_key: row.access_key, secret_key })
}

async fn revoke(call: &Call, access_key: &str) -> Result<(), ApiError> {
    let register = call.people.register();
    let key = own(call, &register, access_key)?;
    let live =
        register.keys.values().filter(|other| other.user == key.user && other.revoked_us.is_none()).count();
    let mut administrators = register.administrators();
    let only = (administrators.next(), administrators.next());
    if live == 1
        && let (Some(last), None) = only
        && last.id == key.user
        && last.external.is_none()
    {
        let text = "this is the last key of the last administrator; make another one first";
        return Err(ApiError::invalid(text));
    }
    call.store.revoke_key(access_key, call.now_us).await?;
    Ok(call.people.reload(&call.store).await?)
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Label {
    label: Option<String>,
}

async fn create_credentials(call: Call, request: Label) -> Result<Value, ApiError> {
    let label = request.label.unwrap_or_default();
    let made = make(&call, &call.who.user, &label, None).await?;
    Ok(
        json!({ "credentials": { "access_key": made.access_key, "secret_key": made.secret_key, "label": label } }),
    )
}

async fn get_credentials(call: Call, _request: Value) -> Result<Value, ApiError> {
    let register = call.people.register();
    let own = register.keys.values().filter(|key| key.user == call.who.user && key.revoked_us.is_none());
    let view = |key: &KeyRow| {
        let last_used = key.last_used_us.map(rfc3339);
        json!({
            "access_key": key.access_key, "label": key.label, "last_used": last_used,
            "last_used_from": key.last_used_from,
        })
    };
    Ok(json!({ "credentials": own.map(view).collect::<Vec<_>>() }))
}

#[derive(Deserialize)]
struct EditKey {
    access_key: String,
    label: Option<String>,
}

async fn edit_credentials(call: Call, request: EditKey) -> Result<Value, ApiError> {
    own(&call, &call.people.register(), &request.access_key)?;
    let label = request.label.unwrap_or_default();
    if label.chars().count() > LABEL {
        return Err(ApiError::invalid(format!("label: at most {LABEL} characters")));
    }
    call.store.label_key(&request.access_key, &label).await?;
    call.people.reload(&call.store).await?;
    Ok(json!({"updated": 1}))
}

async fn revoke_credentials(call: Call, request: EditKey) -> Result<Value, ApiError> {
    revoke(&call, &request.access_key).await?;
    Ok(json!({"revoked": 1}))
}

async fn get_keys(call: Call, request: GetKeys) -> Result<KeyViews, ApiError> {
    let register = call.people.register();
    let user = user_of(&call, &register, request.user.as_deref(), "cantle.get_keys of others")?;
    let mut keys: Vec<&KeyRow> = register.keys.values().filter(|key| key.user == user).collect();
    keys.sort_by_key(|key| key.created_us);
    let view = |key: &KeyRow| KeyView {
        access_key: key.access_key.clone(),
        user: register.name(&key.user).to_owned(),
        label: key.label.clone(),
        created: rfc3339(key.created_us),
        last_used: key.last_used_us.map(rfc3339),
        last_used_from: key.last_used_from.clone(),
        revoked: key.revoked_us.map(rfc3339),
    };
    Ok(KeyViews { keys: keys.into_iter().map(view).collect() })
}

async fn add_key(call: Call, request: AddKey) -> Result<NewKey, ApiError> {
    let register = call.people.register();
    let mut user = user_of(&call, &register, request.user.as_deref(), "cantle.add_key of others")?;
    if let Some(old) = &request.instead_of {
        let old = own(&call, &register, old)?;
        if request.user.is_some() && old.user != user {
            let text = format!("instead_of: {} is a key of {}", old.access_key, register.name(&old.user));
            return Err(ApiError::invalid(text));
        }
        user.clone_from(&old.user);
    }
    make(&call, &user, &request.label, request.instead_of.as_deref()).await
}

async fn revoke_key(call: Call, request: RevokeKey) -> Result<Empty, ApiError> {
    revoke(&call, &request.access_key).await?;
    Ok(Empty {})
}
