//! Commands that users run in this agent's tasks, by way of the server. The agent asks for them all the time and connects to
//! the server for each, so that nothing has to reach the node.

use std::sync::Arc;
use std::time::Duration;

use cantle_clearml::exec::{AskedExec, ExecSide, ExecStart, WaitForExecs};
use cantle_model::Holder;
use cantle_runtime::alive;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

use crate::environment::Environment;
use crate::exec::serve_exec;
use crate::listener::{AGAIN, Listener, WAIT};

/// Commands at once. The others wait for their turn.
const MOST: usize = 64;
/// For how long a command may be open while its terminal is not used.
const IDLE: Duration = Duration::from_hours(12);
/// The server knows that a task runs before its first process is started.
const STARTS_WITHIN: Duration = Duration::from_secs(15);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Asks the server for them. The commands last as long as their tasks and connections, and this.
pub(crate) fn serve_visitors(env: &Arc<Environment>) -> Listener {
    Listener::start(listen(Arc::clone(env)))
}

async fn listen(env: Arc<Environment>) {
    let wait_ms = u64::try_from(WAIT.as_millis()).unwrap_or(u64::MAX);
    let request = WaitForExecs { node: env.node_name.clone(), wait_ms };
    let room = Arc::new(Semaphore::new(MOST));
    // They end with this.
    let mut commands = tokio::task::JoinSet::new();
    loop {
        match env.server.call_extended(&request).await {
            Ok(Some(answer)) => {
                for asked in answer.execs {
                    let (env, room) = (Arc::clone(&env), Arc::clone(&room));
                    commands.spawn(async move {
                        let _permit = room.acquire_owned().await;
                        serve(&env, asked).await;
                    });
                }
            }
            // ClearML's server, or an older one.
            Ok(None) => return,
            Err(_) => sleep(AGAIN).await,
        }
        while commands.try_join_next().is_some() {}
    }
}

async fn serve(env: &Environment, asked: AskedExec) {
    let AskedExec { exec, task, start } = asked;
    let stream = match env.server.connect(&exec, ExecSide::Node).await {
        Ok(stream) => stream,
        Err(error) => {
            tracing::warn!(%task, "a command in a task cannot be served: {error}");
            return;
        }
    };
    if let Some(what) = worth_a_note(&start) {
        env.note("exec", Some(&task), None, what);
    }
    // A task that is not here has no process: the command finds that it has ended.
    let leader = leader(env, &task).await.unwrap_or(Holder { pid: 0, start_ticks: u64::MAX });
    // In a thread of its own: a program of the task that splices its input into a socket holds the lock of the pipe,
    // and a writer to the pipe then waits, even if it asked not to. The other commands, and the agent, go on.
    let served = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(serve_exec(leader, start, stream, Some(IDLE)));
        // It may have such a program's pipe open.
        runtime.shutdown_background();
        Ok::<_, std::io::Error>(())
    });
    if let Ok(Err(error)) = served.await {
        tracing::warn!(%task, "a command in a task cannot be served: {error}");
    }
}

/// A browser opens connections by the dozen: they are no events.
fn worth_a_note(start: &ExecStart) -> Option<String> {
    let program = start.argv.first().map_or("a shell", String::as_str);
    start.to.is_none().then(|| format!("a user runs {program} in the task"))
}

/// The first own process of a task of this agent.
async fn leader(env: &Environment, task: &str) -> Option<Holder> {
    let until = Instant::now() + STARTS_WITHIN;
    loop {
        // The watchdog reports leases that cannot be read; here they are read again.
        let leases = env.node.leases().unwrap_or_default();
        let lease = leases.into_iter().find(|lease| lease.task.0 == task);
        if let Some(leader) = lease.and_then(|lease| lease.leader).filter(alive) {
            return Some(leader);
        }
        if Instant::now() >= until {
            return None;
        }
        sleep(LOOK_EVERY).await;
    }
}
