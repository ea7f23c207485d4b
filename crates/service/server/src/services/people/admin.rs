//! Users and their roles, for administrators, and the audit.

use cantle_clearml::Empty;
use cantle_clearml::users::{
    AddUser, AuditView, AuditViews, ForgetUser, ForgottenUser, GetAudit, GetUsers, NewKey, RemoveUser,
    RoleView, SetRole, SetUser, UserView, UserViews,
};
use cantle_store::{AuditFilter, AuditRow, GrantRow, StoreError, UserRow};
use serde::Deserialize;
use serde_json::{Value, json};

use super::keys;
use crate::app::Call;
use crate::clock::{new_id, rfc3339};
use crate::error::ApiError;
use crate::login::identity_of;
use crate::rights::{EVERYBODY, Register, Role, subject_of};
use crate::routes::Routes;

/// How long a name may be, in characters.
const NAME: usize = 64;
/// How many records of the audit one answer has by default, and at most.
const RECORDS: u64 = 200;
const MAX_RECORDS: u64 = 10_000;

pub(crate) fn add(routes: &mut Routes) {
    routes.typed(get_users);
    routes.typed(add_user);
    routes.typed(remove_user);
    routes.typed(forget_user);
    routes.typed(set_role);
    routes.typed(set_user);
    routes.typed(get_audit);
    routes.on("auth.create_user", create_user);
}

async fn get_users(call: Call, _request: GetUsers) -> Result<UserViews, ApiError> {
    let register = call.people.register();
    let there = register.users.values().filter(|user| user.removed_us.is_none());
    let mut users: Vec<UserView> = there.map(|user| view(user, &register)).collect();
    users.sort_by(|a, b| a.name.cmp(&b.name));
    let is_shared = |grant: &&GrantRow| !grant.subject.starts_with("user:");
    let shared = register.grants.iter().filter(is_shared);
    Ok(UserViews { users, shared: shared.map(|grant| role_view(&grant.subject, grant)).collect() })
}

fn view(user: &UserRow, register: &Register) -> UserView {
    let keys: Vec<_> =
        register.keys.values().filter(|key| key.user == user.id && key.revoked_us.is_none()).collect();
    let subject = subject_of(&user.id);
    let roles = register.grants.iter().filter(|grant| grant.subject == subject);
    UserView {
        name: user.name.clone(),
        id: user.id.clone(),
        node: user.node.clone(),
        external: user.external.is_some(),
        groups: register.groups(&user.id).to_vec(),
        roles: roles.map(|grant| role_view(&user.name, grant)).collect(),
        limits: user.limits,
        keys: u64::try_from(keys.len()).unwrap_or(u64::MAX),
        last_used: keys.iter().filter_map(|key| key.last_used_us).max().map(rfc3339),
        created: rfc3339(user.created_us),
    }
}

fn role_view(who: &str, grant: &GrantRow) -> RoleView {
    let project = Some(grant.project.clone()).filter(|project| !project.is_empty());
    RoleView { who: who.to_owned(), role: grant.role.clone(), project }
}

fn role_named(name: &str) -> Result<Role, ApiError> {
    let known = Role::ALL.map(Role::name).join(", ");
    Role::parse(name)
        .ok_or_else(|| ApiError::invalid(format!("role: \"{}\" is none of {known}", name.escape_default())))
}

/// The project at the top of a tree. It must exist: a right that goes unnoticed is worse than none.
async fn tree(call: &Call, project: Option<&str>) -> Result<String, ApiError> {
    let Some(wanted) = project else { return Ok(String::new()) };
    // An administrator sees all.
    let rows = call.app.store.projects().await?;
    let found = rows.into_iter().find(|row| row.name == wanted || row.id == wanted);
    found.map(|row| row.name).ok_or_else(|| StoreError::NoProject(wanted.to_owned()).into())
}

fn check_name(name: &str) -> Result<(), ApiError> {
    let is_good = |c: char| c.is_alphanumeric() || matches!(c, '.' | '-' | '_' | '@');
    if name.is_empty() || name.chars().count() > NAME || !name.chars().all(is_good) || name == EVERYBODY {
        let text = format!(
            "name: \"{}\"; letters, digits and . - _ @ are needed, at most {NAME}",
            name.escape_default()
        );
        return Err(ApiError::invalid(text));
    }
    Ok(())
}

async fn add_user(call: Call, request: AddUser) -> Result<NewKey, ApiError> {
    let AddUser { name, role, project, node, kubernetes, groups } = request;
    check_name(&name)?;
    let role = role_named(&role)?;
    match (role, &node, &project) {
        (Role::Agent, None, _) => return Err(ApiError::invalid("node: an agent acts for one node; name it")),
        (Role::Agent, _, Some(_)) => {
            return Err(ApiError::invalid("project: an agent runs tasks of all projects; leave it out"));
        }
        (Role::Agent, ..) | (_, None, _) => {}
        _ => {
            return Err(ApiError::invalid(format!(
                "node: only agents have one, not the role {}",
                role.name()
            )));
        }
    }
    if let Some(username) = &kubernetes {
        is_free(&call.people.register(), username, &name)?;
    }
    let grant =
        |id: &str, project| GrantRow { subject: subject_of(id), project, role: role.name().to_owned() };
    let project = tree(&call, project.as_deref()).await?;
    let id = match call.people.register().users.values().find(|user| user.name == name) {
        Some(user) if user.removed_us.is_none() => {
            return Err(StoreError::NameTaken { what: "user", name }.into());
        }
        // A user who comes back has the same tasks as before.
        Some(user) if user.node == node => {
            call.store.restore_user(&user.id, &[grant(&user.id, project)]).await?;
            user.id.clone()
        }
        _ => {
            let id = new_id();
            let user = UserRow { id: id.clone(), name, node, created_us: call.now_us, ..UserRow::default() };
            call.store.add_user(&user, &[grant(&id, project)]).await?;
            id
        }
    };
    if let Some(username) = kubernetes {
        call.store.set_identity(&id, &identity_of(&username)).await?;
    }
    if !groups.is_empty() {
        call.store.set_groups(&id, &groups).await?;
    }
    call.people.reload(&call.store).await?;
    keys::make(&call, &id, "first key", None).await
}

/// Whether this user of Kubernetes is not the identity of another user here; one without roles gives it up.
fn is_free(register: &Register, username: &str, name: &str) -> Result<(), ApiError> {
    let owner = register.of_identity(&identity_of(username));
    let own_roles =
        |user: &UserRow| register.grants.iter().any(|grant| grant.subject == subject_of(&user.id));
    match owner.filter(|user| user.name != name && own_roles(user)) {
        Some(user) => {
            Err(ApiError::invalid(format!("kubernetes: {username} is the user {} already", user.name)))
        }
        None => Ok(()),
    }
}

#[derive(Deserialize)]
struct CreateUser {
    name: String,
}

/// ClearML's call makes a user without rights and without a key; `cantle users` gives both.
async fn create_user(call: Call, request: CreateUser) -> Result<Value, ApiError> {
    check_name(&request.name)?;
    let user = UserRow { id: new_id(), name: request.name, created_us: call.now_us, ..UserRow::default() };
    call.store.add_user(&user, &[]).await?;
    call.people.reload(&call.store).await?;
    Ok(json!({ "id": user.id }))
}

/// Refuses a change after which there would be no administrator.
fn somebody_else_administers(register: &Register, user: &str) -> Result<(), ApiError> {
    if register.administrators().any(|other| other.id != user) {
        return Ok(());
    }
    let text = format!("{} is the last administrator; make another one first", register.name(user));
    Err(ApiError::invalid(text))
}

async fn remove_user(call: Call, request: RemoveUser) -> Result<Empty, ApiError> {
    let register = call.people.register();
    let user = register.user(&request.user).ok_or_else(|| StoreError::NoUser(request.user.clone()))?;
    somebody_else_administers(&register, &user.id)?;
    call.store.remove_user(&user.id, call.now_us).await?;
    call.people.reload(&call.store).await?;
    Ok(Empty {})
}

async fn forget_user(call: Call, request: ForgetUser) -> Result<ForgottenUser, ApiError> {
    let register = call.people.register();
    let user = register.id_of(&request.user).ok_or_else(|| StoreError::NoUser(request.user.clone()))?;
    let (runs, lasting) = call.store.forget_owner(user).await?;
    Ok(ForgottenUser { runs, lasting })
}

async fn set_role(call: Call, request: SetRole) -> Result<Empty, ApiError> {
    let role = role_named(&request.role)?;
    let register = call.people.register();
    let subject = match request.who.strip_prefix("group:") {
        Some("") => return Err(ApiError::invalid("who: a group needs a name")),
        Some(_) => request.who.clone(),
        None if request.who == EVERYBODY => request.who.clone(),
        None => {
            let user = register.user(&request.who).ok_or_else(|| StoreError::NoUser(request.who.clone()))?;
            if (role == Role::Agent) != user.node.is_some() {
                return Err(ApiError::invalid(
                    "role: agent is for service accounts of nodes, and they have no other",
                ));
            }
            if request.remove && role == Role::Admin && request.project.is_none() {
                somebody_else_administers(&register, &user.id)?;
            }
            subject_of(&user.id)
        }
    };
    if role == Role::Agent && !subject.starts_with("user:") {
        return Err(ApiError::invalid("role: agent is for one service account, not for a group"));
    }
    if role == Role::Agent && request.project.is_some() {
        return Err(ApiError::invalid("project: an agent runs tasks of all projects; leave it out"));
    }
    // An earlier version kept the roles in a deleted project; they can be taken away by name.
    let project = match (&request.project, request.remove) {
        (Some(name), true) => name.clone(),
        (project, _) => tree(&call, project.as_deref()).await?,
    };
    let grant = GrantRow { subject, project, role: role.name().to_owned() };
    if request.remove && !register.grants.contains(&grant) {
        return Err(ApiError::invalid(format!("{} has no such role", request.who)));
    }
    call.store.set_grant(&grant, !request.remove).await?;
    call.people.reload(&call.store).await?;
    Ok(Empty {})
}

async fn set_user(call: Call, request: SetUser) -> Result<Empty, ApiError> {
    let SetUser { user, limits } = request;
    let register = call.people.register();
    let found = register.user(&user).ok_or(StoreError::NoUser(user))?;
    call.store.set_limits(&found.id, &limits).await?;
    call.people.reload(&call.store).await?;
    Ok(Empty {})
}

async fn get_audit(call: Call, request: GetAudit) -> Result<AuditViews, ApiError> {
    let GetAudit { after, user, action, subject, refused, limit } = request;
    // By id, where it is known: what a task of the user did is under another name.
    let register = call.people.register();
    let user = user.map(|wanted| register.id_of(&wanted).map(str::to_owned).unwrap_or(wanted));
    let limit = limit.unwrap_or(RECORDS).clamp(1, MAX_RECORDS);
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let found = call.store.audit(&AuditFilter { after, user, action, subject, refused, limit }).await?;
    let read = |text: &str| serde_json::from_str(text).unwrap_or(Value::Null);
    let view = |row: AuditRow| AuditView {
        id: row.id,
        time: rfc3339(row.time_us),
        user: row.user_name,
        user_id: row.user_id,
        from: row.from_ip,
        action: row.action,
        outcome: row.outcome,
        subject: row.subject,
        before: read(&row.before),
        after: read(&row.after),
    };
    Ok(AuditViews { records: found.into_iter().map(view).collect() })
}
