//! `cantle.*_sessions`: users list and end their own logins, and administrators those of all users.

use cantle_clearml::sessions::{EndSessions, Ended, GetSessions, SessionView, SessionViews};
use cantle_store::SessionRow;

use super::keys::user_of;
use crate::app::Call;
use crate::clock::rfc3339;
use crate::error::ApiError;
use crate::rights::Right;
use crate::routes::Routes;

pub(crate) fn add(routes: &mut Routes) {
    routes.typed(get_sessions);
    routes.typed(end_sessions);
}

async fn get_sessions(call: Call, request: GetSessions) -> Result<SessionViews, ApiError> {
    let register = call.people.register();
    let found = register.sessions(call.now_us).into_iter();
    let wanted: Vec<&SessionRow> = if request.all {
        if request.user.is_some() {
            return Err(ApiError::invalid("all: sessions of one user, or of all; not both"));
        }
        if !call.who.may_everywhere(Right::Administer) {
            let what = "cantle.get_sessions of others";
            return Err(ApiError::forbidden(&call.who, Right::Administer, what, None));
        }
        found.collect()
    } else {
        let user = user_of(&call, &register, request.user.as_deref(), "cantle.get_sessions of others")?;
        found.filter(|row| row.user == user).collect()
    };
    let view = |row: &SessionRow| SessionView {
        id: row.id.clone(),
        user: register.name(&row.user).to_owned(),
        via: row.via.clone(),
        client: row.client.clone(),
        from: row.from.clone(),
        created: rfc3339(row.created_us),
        expires: rfc3339(row.expires_us),
        last_used: rfc3339(row.last_used_us),
        last_used_from: row.last_used_from.clone(),
        is_own: call.who.session.as_ref() == Some(&row.id),
    };
    Ok(SessionViews { sessions: wanted.into_iter().map(view).collect() })
}

async fn end_sessions(call: Call, request: EndSessions) -> Result<Ended, ApiError> {
    let register = call.people.register();
    let ids: Vec<String> = match (&request.session, &request.user) {
        (Some(id), None) => {
            let found = register.session(id, call.now_us);
            let may =
                |row: &&SessionRow| row.user == call.who.user || call.who.may_everywhere(Right::Administer);
            let none = || ApiError::invalid(format!("session: {} is none of yours", id.escape_default()));
            vec![found.filter(may).ok_or_else(none)?.id.clone()]
        }
        (None, Some(user)) => {
            let user = user_of(&call, &register, Some(user), "cantle.end_sessions of others")?;
            let found = register.sessions(call.now_us).into_iter();
            found.filter(|row| row.user == user).map(|row| row.id.clone()).collect()
        }
        _ => {
            return Err(ApiError::invalid("session, user: name one session, or the user whose sessions end"));
        }
    };
    call.people.end_sessions(&call.store, &ids, call.now_us).await?;
    Ok(Ended { ended: u64::try_from(ids.len()).unwrap_or(u64::MAX) })
}
