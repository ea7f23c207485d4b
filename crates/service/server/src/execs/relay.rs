//! One command, from the connection of its user to its end.

use std::time::Duration;

use cantle_clearml::exec::{ExecEnd, ExecFrame};
use cantle_clearml::tasks::Stop;
use cantle_model::TaskStatus;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::time::{Instant, sleep, timeout};

use super::{NODE_WITHIN, OF_CLEARML, Stream};
use crate::api::Api;
use crate::app::Call;
use crate::error::ApiError;
use crate::rights::act;

/// For the user's side to leave HTTP.
const UPGRADE: Duration = Duration::from_secs(10);
/// How often it is looked whether a queued task runs.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How often the user hears that this server lives.
const PING: Duration = Duration::from_secs(10);
/// How often it is asked whether the user may still do this.
const RIGHT_EVERY: Duration = Duration::from_secs(5);
/// For the last words.
const GOODBYE: Duration = Duration::from_secs(5);
/// The most bytes that a user may type before the task runs.
const AHEAD: usize = 64 << 10;

/// The data that is needed of the entry.
pub(super) struct Job {
    pub(super) id: String,
    pub(super) call: Call,
    pub(super) task: String,
    pub(super) waits: bool,
    pub(super) ends_task: bool,
    pub(super) authorization: Option<String>,
}

/// How it ends before the two sides are connected, or instead.
enum Broken {
    /// The user is gone.
    UserGone,
    /// The message for the user.
    Told(ExecEnd),
}

fn told(code: u8, error: impl Into<String>) -> Broken {
    Broken::Told(ExecEnd { code, error: Some(error.into()), hint: None })
}

/// Carries one command to its end.
pub(super) async fn run(api: Api, job: Job, upgrade: OnUpgrade) {
    if let Ok(Ok(upgraded)) = timeout(UPGRADE, upgrade).await {
        let mut user = TokioIo::new(upgraded);
        if let Err(Broken::Told(end)) = job.carry(&api, &mut user).await {
            let last = async {
                user.write_all(&ExecFrame::Ended(end).to_bytes()).await?;
                user.shutdown().await
            };
            // The user may be gone as well.
            let _ = timeout(GOODBYE, last).await;
        }
    }
    api.app.execs.remove(&job.id);
    if job.ends_task {
        job.stop_task(&api).await;
    }
}

impl Job {
    async fn carry(&self, api: &Api, user: &mut Stream) -> Result<(), Broken> {
        let mut ahead = Vec::new();
        let node = self.place(api, user, &mut ahead).await?;
        let connected = api.app.execs.want(&self.id, &node);
        let connected = tokio::select! {
            connected = timeout(NODE_WITHIN, connected) => connected,
            gone = self.listen(api, user, &mut ahead) => return Err(gone),
        };
        let Ok(Ok(mut agent)) = connected else {
            let text = format!("node {node} did not answer within {} s", NODE_WITHIN.as_secs());
            let hint = "the agent of the node is away, is older than the server, or uses another server of the same database";
            let end = ExecEnd { code: 7, error: Some(text), hint: Some(hint.to_owned()) };
            return Err(Broken::Told(end));
        };
        let sent = agent.write_all(&ahead).await;
        sent.map_err(|_| told(7, format!("node {node} has closed the connection")))?;
        tokio::select! {
            // If one side closes, the other side sees the end of its connection.
            _ = copy_bidirectional(user, &mut agent) => Ok(()),
            why = self.refused(api) => Err(told(4, why)),
        }
    }

    /// The node of the task, as soon as it runs.
    async fn place(&self, api: &Api, user: &mut Stream, ahead: &mut Vec<u8>) -> Result<String, Broken> {
        loop {
            let row = api.app.store.task(&self.task).await.map_err(|why| told(1, why.to_string()))?;
            match (row.index.status, row.node) {
                (TaskStatus::InProgress, Some(node)) => return Ok(node),
                (TaskStatus::InProgress, None) => {
                    return Err(told(7, OF_CLEARML));
                }
                (TaskStatus::Queued | TaskStatus::Created, _) if self.waits => {}
                (status, _) => {
                    let why = row.reason.filter(|why| !why.is_empty()).unwrap_or(row.status_message);
                    let why = if why.is_empty() { String::new() } else { format!(": {why}") };
                    return Err(told(8, format!("the task does not run: it is {status}{why}")));
                }
            }
            tokio::select! {
                () = sleep(LOOK_EVERY) => {}
                gone = self.listen(api, user, ahead) => return Err(gone),
            }
        }
    }

    /// Until the user is gone, or may not do this any more. Keeps what is typed meanwhile, and lets the user hear of this server.
    async fn listen(&self, api: &Api, user: &mut Stream, ahead: &mut Vec<u8>) -> Broken {
        let mut piece = [0; 4096];
        let mut refused = std::pin::pin!(self.refused(api));
        let mut ping = tokio::time::interval_at(Instant::now() + PING, PING);
        loop {
            let room = AHEAD.saturating_sub(ahead.len()).min(piece.len());
            let space = piece.get_mut(..room).unwrap_or_default();
            tokio::select! {
                why = &mut refused => return told(4, why),
                read = user.read(space), if room > 0 => match read {
                    Ok(length @ 1..) => ahead.extend_from_slice(piece.get(..length).unwrap_or_default()),
                    _ => return Broken::UserGone,
                },
                _ = ping.tick() => {
                    if user.write_all(&ExecFrame::Ping.to_bytes()).await.is_err() {
                        return Broken::UserGone;
                    }
                }
            }
        }
    }

    /// Until the user has lost the key, the login or the right, or the task is deleted. Returns which.
    async fn refused(&self, api: &Api) -> String {
        loop {
            sleep(RIGHT_EVERY).await;
            if let Err(why) = self.is_allowed(api).await
                && why.code < 500
            {
                return why.message;
            }
        }
    }

    async fn is_allowed(&self, api: &Api) -> Result<(), ApiError> {
        let who = api.app.caller(self.authorization.as_deref(), &self.call.ip).await?;
        let call = Call::new(api.app.clone(), self.call.ip.clone(), who);
        call.task::<act::Enter>(&self.task).await.map(drop)
    }

    /// The task lasts as long as its terminal.
    async fn stop_task(&self, api: &Api) {
        let message = Some("its terminal was closed".to_owned());
        let stop = Stop { task: self.task.clone(), status_reason: message, ..Stop::default() };
        if let Err(error) = api.ask_as(&self.call, &stop).await
            && error.code >= 500
        {
            tracing::warn!(task = self.task, "a task without its terminal could not be stopped: {error}");
        }
    }
}
