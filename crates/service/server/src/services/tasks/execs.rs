//! `cantle.open_exec` and `cantle.wait_for_execs`: commands in tasks. `cantle.open_notebook`: a way of a browser into one.

use std::time::Duration;

use cantle_clearml::exec::{AskedExecs, OpenExec, OpenedExec, WaitForExecs};
use cantle_clearml::notebook::{OpenNotebook, OpenedNotebook};
use cantle_clearml::subcode;
use cantle_model::TaskStatus;
use tokio::time::timeout;

use crate::app::Call;
use crate::clock::new_id;
use crate::error::ApiError;
use crate::execs::Exec;
use crate::notebooks;
use crate::rights::act;
use crate::routes::Routes;
use crate::services::fleet::queues::LONGEST_WAIT;

/// More than any command line that a kernel takes as one argument.
const COMMAND_BYTES: usize = 128 << 10;

pub(crate) fn add(routes: &mut Routes) {
    routes.typed(open_exec);
    routes.typed(open_notebook);
    routes.typed(wait_for_execs);
}

async fn open_exec(call: Call, request: OpenExec) -> Result<OpenedExec, ApiError> {
    call.task::<act::Enter>(&request.task).await?;
    let length: usize = request.start.argv.iter().map(|word| word.len() + 1).sum();
    if length > COMMAND_BYTES {
        return Err(ApiError::invalid(format!("start.argv: {length} bytes; at most {COMMAND_BYTES}")));
    }
    let status = call.app.store.task(&request.task).await?.index.status;
    let is_possible = match status {
        TaskStatus::InProgress => true,
        TaskStatus::Queued | TaskStatus::Created => request.waits,
        _ => false,
    };
    if !is_possible {
        let text = format!("the task does not run: it is {status}");
        return Err(ApiError::new(400, subcode::INVALID_TASK_STATUS, text));
    }
    let exec = new_id();
    let OpenExec { task, start, waits, ends_task } = request;
    call.app.execs.add(exec.clone(), Exec::new(call.clone(), task, start, waits, ends_task))?;
    Ok(OpenedExec { exec })
}

async fn open_notebook(call: Call, OpenNotebook { task }: OpenNotebook) -> Result<OpenedNotebook, ApiError> {
    notebooks::may_open(&call, &task).await?;
    notebooks::program_of(&call, &task).await?;
    Ok(OpenedNotebook { ticket: call.app.notebooks.tickets.add(&call, &task)? })
}

async fn wait_for_execs(call: Call, request: WaitForExecs) -> Result<AskedExecs, ApiError> {
    let wait = Duration::from_millis(request.wait_ms).min(LONGEST_WAIT);
    let asked = timeout(wait, call.app.execs.asked(&request.node)).await;
    let execs = if asked == Ok(true) { call.app.execs.take(&request.node) } else { Vec::new() };
    Ok(AskedExecs { execs })
}
