//! `cantle.*_secret`: values that users keep for their tasks. No call returns a value to a person; the agent that starts a task gets
//! those that the task named when its owner put it into a queue.

use std::collections::BTreeMap;

use cantle_clearml::secrets::{DeleteSecret, GetSecrets, SecretView, SecretViews, SetSecret};
use cantle_clearml::tasks::HyperParams;
use cantle_clearml::{Empty, RequestedFlow, TaskRequest, subcode};
use cantle_store::{MOST_SECRETS, SecretRow, TaskRow};
use serde::Deserialize as _;
use serde_json::Value;

use crate::app::Call;
use crate::clock::rfc3339;
use crate::error::ApiError;
use crate::rights::act::Run;
use crate::rights::object::Task;
use crate::rights::{Allowed, Right};
use crate::routes::Routes;

/// Bytes of a value. All of a task's environment has to fit into 2 MiB with its arguments, and one variable into 128 KiB.
const LONGEST: usize = 32 << 10;
/// The beginnings of names that the dynamic linker, the driver or cantle itself reads.
const RESERVED: [&str; 6] = ["CANTLE_", "CLEARML_", "CUDA_", "GLIBC_", "LD_", "NVIDIA_"];

pub(crate) fn add(routes: &mut Routes) {
    routes.typed(set_secret);
    routes.typed(get_secrets);
    routes.typed(delete_secret);
}

async fn set_secret(call: Call, request: SetSecret) -> Result<Empty, ApiError> {
    let SetSecret { name, value } = request;
    check_name(&name)?;
    match value.len() {
        0 => return Err(ApiError::invalid("value: it is empty")),
        1..=LONGEST if !value.contains('\0') => {}
        1..=LONGEST => {
            return Err(ApiError::invalid("value: it has a zero byte, which no environment variable can"));
        }
        more => return Err(ApiError::invalid(format!("value: it has {more} bytes; the most are {LONGEST}"))),
    }
    let owner = call.who.user.clone();
    let sealed = call.sealer.seal(&[&owner, &name], &value);
    let sealed = sealed.map_err(|_| ApiError::new(500, 0, "the secret cannot be encrypted"))?;
    let row = SecretRow { owner, name, sealed, set_us: call.now_us, used_us: None };
    match call.store.set_secret(&row).await? {
        true => Ok(Empty {}),
        false => Err(ApiError::invalid(format!("you have {MOST_SECRETS} secrets; delete one first"))),
    }
}

fn check_name(name: &str) -> Result<(), ApiError> {
    let is_name = name.len() <= 64
        && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if !is_name {
        let name = name.escape_default();
        return Err(ApiError::invalid(format!(
            "name: \"{name}\" is no name of an environment variable; write up to 64 of A-Z, a-z, 0-9 and _, not \
             beginning with a digit"
        )));
    }
    match RESERVED.iter().find(|reserved| name.starts_with(*reserved)) {
        Some(reserved) => Err(ApiError::invalid(format!(
            "name: {name}: names that begin with {reserved} are cantle's or the system's"
        ))),
        None => Ok(()),
    }
}

async fn get_secrets(call: Call, _request: GetSecrets) -> Result<SecretViews, ApiError> {
    let rows = call.store.secrets(&call.who.user).await?;
    let view = |row: SecretRow| SecretView {
        readable: call.sealer.open(&[&row.owner, &row.name], &row.sealed).is_some(),
        name: row.name,
        set: rfc3339(row.set_us),
        used: row.used_us.map(rfc3339),
    };
    Ok(SecretViews { secrets: rows.into_iter().map(view).collect() })
}

async fn delete_secret(call: Call, request: DeleteSecret) -> Result<Empty, ApiError> {
    match call.store.delete_secret(&call.who.user, &request.name).await? {
        true => Ok(Empty {}),
        false => Err(none(&request.name)),
    }
}

fn none(name: &str) -> ApiError {
    let name = name.escape_default();
    let text =
        format!("you have no secret \"{name}\"; cantle secrets list has yours, cantle secrets set makes one");
    ApiError::new(400, subcode::INVALID_SECRET, text)
}

/// The secrets that a task with these parameters names.
fn named(params: Option<&Value>) -> Vec<String> {
    // They were readable when they were written.
    let params = params.and_then(|params| HyperParams::deserialize(params).ok()).unwrap_or_default();
    match TaskRequest::flow_of(&params) {
        Ok(RequestedFlow { secrets, .. }) => secrets,
        // The task does not enter a queue with such parameters, and is not started.
        Err(_) => Vec::new(),
    }
}

/// Checks that the caller has all of these secrets.
pub(crate) async fn check_named(call: &Call, names: &[String]) -> Result<(), ApiError> {
    if names.is_empty() {
        return Ok(());
    }
    let rows = call.store.secrets(&call.who.user).await?;
    match names.iter().find(|name| !rows.iter().any(|row| row.name == **name)) {
        Some(name) => Err(none(name)),
        None => Ok(()),
    }
}

/// Decides which secrets a task gets that enters a queue. Only its owner gives it secrets: others who may change the task could name
/// any secret of its owner, and read it.
pub(crate) async fn give(
    call: &Call,
    task: &Allowed<Task, Run>,
    params: Option<&Value>,
) -> Result<(), ApiError> {
    let names = named(params);
    if names.is_empty() {
        return Ok(());
    }
    let row = call.store.task(task).await?;
    if row.owner == call.who.user {
        check_named(call, &names).await?;
        return Ok(call.store.give_secrets(&row.index.id, &names).await?);
    }
    // An agent that puts a task back changes nothing.
    if call.who.may_everywhere(Right::Serve) {
        return Ok(());
    }
    let given = call.store.secrets_of_task(&row.index.id).await?;
    match names.iter().find(|name| !given.contains(name)) {
        Some(name) => {
            let (name, owner) = (name.escape_default(), call.people.register().name(&row.owner).to_owned());
            let text = format!(
                "secret \"{name}\": only {owner}, the owner of the task, can give it; a clone gets yours"
            );
            Err(ApiError::new(403, subcode::INVALID_SECRET, text))
        }
        None => Ok(()),
    }
}

/// The values for a task that starts, or the reason why it must not start.
pub(crate) async fn of_task(
    call: &Call,
    row: &TaskRow,
) -> Result<Result<BTreeMap<String, String>, String>, ApiError> {
    let names = named(row.doc.get("hyperparams"));
    if names.is_empty() {
        return Ok(Ok(BTreeMap::new()));
    }
    let given = call.store.secrets_of_task(&row.index.id).await?;
    let kept = call.store.secrets(&row.owner).await?;
    let mut values = BTreeMap::new();
    for name in names {
        if !given.contains(&name) {
            let name = name.escape_default();
            return Ok(Err(format!(
                "secret {name} was named after its owner put the task into a queue; queue it again"
            )));
        }
        let Some(secret) = kept.iter().find(|secret| secret.name == name) else {
            return Ok(Err(format!("its owner has no secret {name} any more")));
        };
        let Some(value) = call.sealer.open(&[&secret.owner, &secret.name], &secret.sealed) else {
            return Ok(Err(format!(
                "the server cannot decrypt secret {name}, because its token.key is another one; set it again"
            )));
        };
        values.insert(name, value);
    }
    let names: Vec<String> = values.keys().cloned().collect();
    call.store.secrets_used(&row.owner, &names, call.now_us).await?;
    Ok(Ok(values))
}
