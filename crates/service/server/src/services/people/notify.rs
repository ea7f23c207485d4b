//! `cantle.*_receiver`: users say where notices of their tasks go.

use cantle_clearml::notify::{
    DeleteReceiver, GetReceivers, NewReceiver, ReceiverView, ReceiverViews, SetReceiver, TestReceiver,
};
use cantle_clearml::{Empty, subcode};
use cantle_store::{ReceiverRow, ReceiverState};

use crate::app::Call;
use crate::clock::{new_id, rfc3339};
use crate::error::ApiError;
use crate::notify::{Address, BY_DEFAULT, Message, OF_TASKS, check_name, chosen, new_secret};
use crate::rights::Right;
use crate::routes::Routes;

pub(crate) fn add(routes: &mut Routes) {
    routes.typed(set_receiver);
    routes.typed(get_receivers);
    routes.typed(delete_receiver);
    routes.typed(test_receiver);
}

async fn set_receiver(call: Call, request: SetReceiver) -> Result<NewReceiver, ApiError> {
    let SetReceiver { name, address, on, always } = request;
    check_name(&name).map_err(|why| ApiError::invalid(format!("name: {why}")))?;
    let parsed = Address::parse(&address).map_err(ApiError::invalid)?;
    call.notify.check(&parsed).map_err(ApiError::invalid)?;
    let happens =
        chosen(&on, &OF_TASKS, &BY_DEFAULT).map_err(|why| ApiError::invalid(format!("on: {why}")))?;
    let no_random = |_| ApiError::new(500, 0, "the system gives no random numbers");
    let secret = match parsed {
        Address::Json(_) => Some(new_secret().map_err(no_random)?),
        _ => None,
    };
    let owner = call.who.user.clone();
    let row = ReceiverRow { owner, name, address, secret: secret.clone(), happens, always };
    if !call.store.set_receiver(&row, call.notify.own.is_empty()).await? {
        return Err(ApiError::invalid("you have 20 receivers; delete one first"));
    }
    Ok(NewReceiver { secret })
}

/// The receivers that the caller manages.
async fn own(call: &Call) -> Result<Vec<ReceiverRow>, ApiError> {
    let mut rows = call.store.receivers(Some(&call.who.user)).await?;
    if call.who.may_everywhere(Right::Administer) {
        rows.extend(call.notify.own.iter().cloned());
    }
    Ok(rows)
}

async fn get_receivers(call: Call, _request: GetReceivers) -> Result<ReceiverViews, ApiError> {
    let rows = own(&call).await?;
    let states = call.store.receiver_states().await?;
    let view = |row: ReceiverRow| {
        let state = states.iter().find(|state| state.owner == row.owner && state.receiver == row.name);
        view(row, state.cloned().unwrap_or_default())
    };
    Ok(ReceiverViews { receivers: rows.into_iter().map(view).collect() })
}

fn view(row: ReceiverRow, state: ReceiverState) -> ReceiverView {
    let address = Address::parse(&row.address);
    ReceiverView {
        name: row.name,
        of_server: row.owner.is_empty(),
        kind: address.as_ref().map_or("?", Address::kind).to_owned(),
        to: address.as_ref().map_or_else(|_| "?".to_owned(), Address::shown),
        on: row.happens.split(',').map(str::to_owned).collect(),
        always: row.always,
        sent: state.sent_us.map(rfc3339),
        failure: state.failure,
        failures: state.failures.unsigned_abs(),
        waiting: state.waiting.unsigned_abs(),
        dropped: state.dropped.unsigned_abs(),
    }
}

async fn delete_receiver(call: Call, request: DeleteReceiver) -> Result<Empty, ApiError> {
    match call.store.delete_receiver(&call.who.user, &request.name).await? {
        true => Ok(Empty {}),
        false => Err(none(&request.name)),
    }
}

async fn test_receiver(call: Call, request: TestReceiver) -> Result<Empty, ApiError> {
    let rows = own(&call).await?;
    let to = rows.into_iter().find(|row| row.name == request.name).ok_or_else(|| none(&request.name))?;
    let message = Message {
        kind: "test".to_owned(),
        time: rfc3339(call.now_us),
        text: format!("A test of the receiver {}, by {}", to.name, call.who.label()),
        ..Message::default()
    };
    let sent = call.notify.send(&to, &format!("test-{}", new_id()), &message).await;
    sent.map_err(|why| ApiError::invalid(format!("{}: {why}", to.name)))?;
    Ok(Empty {})
}

fn none(name: &str) -> ApiError {
    let text = format!("you have no receiver \"{}\"; cantle notify list has them", name.escape_default());
    ApiError::new(400, subcode::INVALID_RECEIVER, text)
}

/// Checks that the user has all of these receivers.
pub(crate) async fn check_named(call: &Call, names: &[String]) -> Result<(), ApiError> {
    if names.is_empty() {
        return Ok(());
    }
    let rows = call.store.receivers(Some(&call.who.user)).await?;
    match names.iter().find(|name| !rows.iter().any(|row| row.name == **name)) {
        Some(name) => Err(none(name)),
        None => Ok(()),
    }
}
