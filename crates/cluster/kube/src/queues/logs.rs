//! Copies the output of pods to the logs of their tasks, piece by piece, also across a change of the leader.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cantle_clearml::events::ReportedEvent;
use futures_util::{AsyncBufRead, AsyncBufReadExt as _};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::LogParams;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout_at};

use super::server::Server;
use crate::KubeError;
use cantle_kube_model::queues::builder::CONTAINER;

/// A piece is sent at this age or size.
const PIECE_AGE: Duration = Duration::from_millis(300);
const PIECE_BYTES: usize = 64 << 10;
const RETRY: Duration = Duration::from_secs(1);
/// After the end of a pod its node may be gone: then the rest of its log is, too.
const PATIENCE: Duration = Duration::from_secs(20);

/// The readers that follow the log.
pub(super) struct Logs {
    pods: Api<Pod>,
    server: Arc<Server>,
    followers: BTreeMap<String, Follower>,
}

struct Follower {
    task: JoinHandle<()>,
    over: watch::Sender<bool>,
    over_since: Option<Instant>,
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Logs {
    pub(super) const fn new(pods: Api<Pod>, server: Arc<Server>) -> Self {
        Self { pods, server, followers: BTreeMap::new() }
    }

    /// Reads along with a pod that prints.
    pub(super) fn follow(&mut self, uid: &str, pod: &str, task: &str, worker: String) {
        if self.followers.contains_key(uid) {
            return;
        }
        let (over, is_over) = watch::channel(false);
        let source = Source {
            pods: self.pods.clone(),
            server: Arc::clone(&self.server),
            pod: pod.to_owned(),
            task: task.to_owned(),
            worker,
        };
        let task = tokio::spawn(source.follow(is_over));
        self.followers.insert(uid.to_owned(), Follower { task, over, over_since: None });
    }

    /// The pod prints no more: has all been sent?
    pub(super) fn is_done(&mut self, uid: &str) -> bool {
        let Some(follower) = self.followers.get_mut(uid) else { return true };
        follower.over.send_replace(true);
        let since = *follower.over_since.get_or_insert_with(Instant::now);
        follower.task.is_finished() || since.elapsed() > PATIENCE
    }

    /// It is no longer needed.
    pub(super) fn forget(&mut self, uid: &str) {
        self.followers.remove(uid);
    }
}

/// One pod's log on its way to the server.
struct Source {
    pods: Api<Pod>,
    server: Arc<Server>,
    pod: String,
    task: String,
    worker: String,
}

/// Up to where the log has been sent.
#[derive(Default)]
struct Sent {
    until: Option<Timestamp>,
    /// A predecessor's last piece, whose time has only a precision of milliseconds.
    before: Option<(i64, String)>,
}

impl Sent {
    fn has(&self, at: Timestamp, line: &str) -> bool {
        match (&self.until, &self.before) {
            (Some(until), _) => at <= *until,
            (None, Some((ms, text))) => {
                at.as_millisecond() < *ms || at.as_millisecond() == *ms && text.contains(line)
            }
            (None, None) => false,
        }
    }

    fn since(&self) -> Option<Timestamp> {
        self.until.or_else(|| Timestamp::from_millisecond(self.before.as_ref()?.0).ok())
    }
}

impl Source {
    async fn follow(self, is_over: watch::Receiver<bool>) {
        let mut sent = Sent::default();
        loop {
            match self.server.last_log(&self.task, &self.worker).await {
                Ok(last) => break sent.before = last,
                Err(error) => {
                    tracing::debug!(task = self.task, "the end of its log is not known yet: {error}")
                }
            }
            sleep(RETRY).await;
        }
        loop {
            // Asked before the log is opened: then its end is the end of all.
            let last_time = *is_over.borrow();
            match self.read(&mut sent).await {
                Ok(()) if last_time => return,
                Ok(()) => {}
                Err(error) => tracing::debug!(task = self.task, "log: {error}"),
            }
            sleep(RETRY / 5).await;
        }
    }

    /// From what has been sent to the end of the stream.
    async fn read(&self, sent: &mut Sent) -> Result<(), KubeError> {
        let params = LogParams {
            container: Some(CONTAINER.to_owned()),
            follow: true,
            timestamps: true,
            since_time: sent.since(),
            ..LogParams::default()
        };
        let stream = self.pods.log_stream(&self.pod, &params).await?;
        let mut stream = std::pin::pin!(stream);
        let mut line = Vec::new();
        loop {
            let piece = next_piece(stream.as_mut(), &mut line, sent).await?;
            if let Some((at, text)) = piece.text {
                let event = ReportedEvent::log(&self.task, &self.worker, at.as_millisecond(), text);
                while let Err(error) = self.server.log(event.clone()).await {
                    tracing::debug!(task = self.task, "a piece of a log is sent later: {error}");
                    sleep(RETRY).await;
                }
                sent.until = Some(at);
            }
            if piece.is_last {
                return Ok(());
            }
        }
    }
}

struct Piece {
    /// Time of its last line.
    text: Option<(Timestamp, String)>,
    is_last: bool,
}

/// New lines, as many as come within a moment. `line` keeps a half one for the next call.
async fn next_piece(
    mut stream: std::pin::Pin<&mut impl AsyncBufRead>,
    line: &mut Vec<u8>,
    sent: &Sent,
) -> Result<Piece, KubeError> {
    let mut deadline = None;
    let mut piece: Option<(Timestamp, String)> = None;
    loop {
        let read = stream.read_until(b'\n', line);
        let read = match deadline {
            None => read.await,
            Some(at) => match timeout_at(at, read).await {
                Ok(read) => read,
                Err(_) => return Ok(Piece { text: piece, is_last: false }),
            },
        };
        let is_last =
            read.map_err(|error| KubeError::Interrupted(format!("a log breaks off: {error}")))? == 0;
        if let Some((at, text)) = stamped(&std::mem::take(line))
            && !sent.has(at, text.trim_end())
        {
            let (last, texts) = piece.get_or_insert_with(|| (at, String::new()));
            *last = at.max(*last);
            texts.push_str(&text);
            deadline.get_or_insert_with(|| Instant::now() + PIECE_AGE);
        }
        if is_last || piece.as_ref().is_some_and(|(_, text)| text.len() >= PIECE_BYTES) {
            return Ok(Piece { text: piece, is_last });
        }
    }
}

/// `2026-01-01T00:00:00.123456789Z text`
fn stamped(line: &[u8]) -> Option<(Timestamp, String)> {
    let line = String::from_utf8_lossy(line);
    let (stamp, text) = line.split_once(' ')?;
    Some((stamp.parse().ok()?, text.to_owned()))
}

#[cfg(test)]
mod tests {
    use futures_util::io::Cursor;

    use super::*;

    async fn pieces(text: &str, sent: &Sent) -> Option<String> {
        let mut stream = std::pin::pin!(Cursor::new(text.as_bytes().to_vec()));
        let piece = next_piece(stream.as_mut(), &mut Vec::new(), sent).await.unwrap();
        assert!(piece.is_last);
        piece.text.map(|(_, text)| text)
    }

    #[tokio::test]
    async fn a_log_goes_on_where_a_predecessor_stopped() {
        let text = "2026-01-01T00:00:00.001000001Z a\n2026-01-01T00:00:00.001000002Z b\n2026-01-01T00:00:00.002Z c\n";
        assert_eq!(pieces(text, &Sent::default()).await.as_deref(), Some("a\nb\nc\n"));
        let ms = "2026-01-01T00:00:00.001Z".parse::<Timestamp>().unwrap().as_millisecond();
        let before = Sent { until: None, before: Some((ms, "a\n".to_owned())) };
        assert_eq!(pieces(text, &before).await.as_deref(), Some("b\nc\n"), "b is of the same millisecond");
        let until = Some("2026-01-01T00:00:00.001000002Z".parse().unwrap());
        assert_eq!(pieces(text, &Sent { until, before: None }).await.as_deref(), Some("c\n"));
        assert_eq!(pieces("", &Sent::default()).await, None);
    }

    #[test]
    fn odd_bytes_do_no_harm() {
        let (_, text) = stamped(b"2026-01-01T00:00:00Z \xff!\n").unwrap();
        assert_eq!(text, "\u{fffd}!\n");
        assert!(stamped(b"no stamp").is_none());
    }
}
