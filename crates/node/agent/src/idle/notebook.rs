//! Asks a notebook whether somebody works in it.
//!
//! An open page of JupyterLab asks for its kernels and terminals every few seconds, so that neither the bytes of its connection nor
//! Jupyter's own time of the last call show a user. Its kernels and its terminals do.

use std::fs;
use std::time::Duration;

use cantle_clearml::exec::{ExecDoor, ExecFrame, ExecFrames, ExecStart};
use cantle_model::Holder;
use cantle_runtime::Stopper;
use serde::Deserialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, split};
use tokio::runtime::Runtime;
use tokio::time::timeout;

use crate::exec::serve_exec;

/// As `cantle notebook` starts it.
const SOCKET: &[u8] = b"--ServerApp.sock=";
const BASE: &[u8] = b"--ServerApp.base_url=";
const TOKEN: &[u8] = b"JUPYTER_TOKEN=";
/// For an answer of the notebook.
const WITHIN: Duration = Duration::from_secs(5);
/// Longer answers are none of Jupyter's.
const MOST_BYTES: usize = 1 << 20;
const BUFFER_BYTES: usize = 64 << 10;

/// The last answers of a task's notebook.
#[derive(Debug, Default)]
pub(super) struct Notebook(Option<String>);

/// The address of a notebook.
struct Address {
    socket: String,
    token: String,
    /// The path above all of its own.
    base: String,
}

/// A kernel or a terminal, as Jupyter describes it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Part {
    id: String,
    name: String,
    execution_state: String,
    last_activity: String,
}

impl Notebook {
    /// Did somebody work in the notebook of this task since the last look? `false` if it has none.
    ///
    /// # Errors
    /// Why its notebook does not say that.
    pub(super) fn look(&mut self, runtime: &Runtime, task: &Stopper, pids: &[u32]) -> Result<bool, String> {
        let Some(address) = pids.iter().find_map(|&pid| Address::of(pid)) else {
            self.0 = None;
            return Ok(false);
        };
        let leader = task.leader();
        let asked = runtime.block_on(async {
            let kernels = ask(leader, &address, "api/kernels").await?;
            // Terminals may be switched off.
            let terminals = ask(leader, &address, "api/terminals").await.unwrap_or_default();
            Ok(kernels.into_iter().chain(terminals).collect::<Vec<Part>>())
        });
        let parts =
            asked.map_err(|why: String| format!("its notebook does not report its activity: {why}"))?;
        let is_busy = parts.iter().any(|part| part.execution_state == "busy");
        let now = described(&parts);
        let is_same = self.0.as_ref() == Some(&now);
        self.0 = Some(now);
        Ok(is_busy || !is_same)
    }
}

impl Address {
    /// Of the notebook that this process is.
    fn of(pid: u32) -> Option<Self> {
        let value = |file: &str, name: &[u8]| {
            let words = fs::read(format!("/proc/{pid}/{file}")).ok()?;
            let found = words.split(|byte| *byte == 0).find_map(|word| word.strip_prefix(name))?;
            // It goes into the head of a request.
            let is_plain = |byte: &u8| byte.is_ascii_graphic();
            String::from_utf8(found.to_vec()).ok().filter(|text| text.as_bytes().iter().all(is_plain))
        };
        let base = value("cmdline", BASE).unwrap_or_else(|| "/".to_owned());
        Some(Self { socket: value("cmdline", SOCKET)?, token: value("environ", TOKEN)?, base })
    }
}

/// Changes with each activity. The times are Jupyter's: only whether they change matters.
fn described(parts: &[Part]) -> String {
    let one = |part: &Part| format!("{} {} {}\n", part.id, part.name, part.last_activity);
    parts.iter().map(one).collect()
}

/// One call, by a process in the task that connects to the notebook.
async fn ask(leader: Holder, address: &Address, path: &str) -> Result<Vec<Part>, String> {
    let request = format!(
        "GET {}{path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: token {}\r\nConnection: close\r\n\r\n",
        address.base, address.token
    );
    let start = ExecStart { to: Some(ExecDoor::Socket(address.socket.clone())), ..ExecStart::default() };
    let (ours, theirs) = tokio::io::duplex(BUFFER_BYTES);
    let served = tokio::spawn(serve_exec(leader, start, theirs, None));
    let answer = timeout(WITHIN, exchange(ours, request.into_bytes())).await;
    // The process ends when this side is gone.
    let _ = timeout(WITHIN, served).await;
    read(&answer.unwrap_or_else(|_| Err(format!("no answer within {} s", WITHIN.as_secs())))?)
}

async fn exchange(stream: tokio::io::DuplexStream, request: Vec<u8>) -> Result<Vec<u8>, String> {
    let (mut reader, mut writer) = split(stream);
    let broken = |error: std::io::Error| error.to_string();
    writer.write_all(&ExecFrame::Input(request).to_bytes()).await.map_err(broken)?;
    let (mut frames, mut answer, mut piece) = (ExecFrames::default(), Vec::new(), vec![0; BUFFER_BYTES]);
    loop {
        match frames.next_frame().map_err(|error| error.to_string())? {
            Some(ExecFrame::Output(bytes)) if answer.len() + bytes.len() <= MOST_BYTES => {
                answer.extend(bytes)
            }
            Some(ExecFrame::Output(_)) => return Err("its answer is too long".to_owned()),
            Some(ExecFrame::Ended(end)) => return end.error.map_or(Ok(answer), Err),
            Some(_) => {}
            None => match reader.read(&mut piece).await.map_err(broken)? {
                0 => return Ok(answer),
                length => frames.push(piece.get(..length).unwrap_or_default()),
            },
        }
    }
}

/// The list in an answer of HTTP.
fn read(answer: &[u8]) -> Result<Vec<Part>, String> {
    let text = String::from_utf8_lossy(answer);
    let (head, body) = text.split_once("\r\n\r\n").ok_or("its answer is not HTTP")?;
    let status = head.lines().next().unwrap_or_default();
    if status.split(' ').nth(1) != Some("200") {
        return Err(format!("it answered {status}"));
    }
    // Between the marks of a body in chunks, too, if it is one.
    let list = body.find('[').and_then(|from| body.get(from..=body.rfind(']')?)).unwrap_or(body);
    serde_json::from_str(list).map_err(|error| format!("its answer is none of Jupyter's: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(body: &str) -> Vec<u8> {
        format!("HTTP/1.1 200 OK\r\nServer: TornadoServer/6.6.1\r\nContent-Length: 9\r\n\r\n{body}")
            .into_bytes()
    }

    #[test]
    fn answers_of_jupyter_are_read() {
        let kernel = |at: &str, state: &str| {
            let body = format!(
                r#"[{{"id": "d3", "name": "python3", "last_activity": "{at}", "execution_state": "{state}", "connections": 0}}]"#
            );
            read(&answer(&body)).unwrap()
        };
        let first = kernel("2026-11-30T16:19:21.752660Z", "idle");
        assert_eq!((first.len(), first[0].execution_state.as_str()), (1, "idle"));
        assert_eq!(described(&first), described(&kernel("2026-11-30T16:19:21.752660Z", "idle")));
        assert_ne!(described(&first), described(&kernel("2026-11-30T16:20:21.752660Z", "idle")));
        assert_eq!(described(&read(&answer("[]")).unwrap()), "");
        let terminals = read(&answer(r#"[{"name": "1", "last_activity": "2026-11-30T16:19:21Z"}]"#)).unwrap();
        assert_ne!(described(&terminals), "");
    }

    #[test]
    fn an_answer_that_is_none_is_an_error() {
        for (wrong, says) in [
            (&b"HTTP/1.1 403 Forbidden\r\n\r\n{}"[..], "it answered HTTP/1.1 403 Forbidden"),
            (b"SSH-2.0-OpenSSH", "not HTTP"),
            (b"", "not HTTP"),
            (b"HTTP/1.1 200 OK\r\n\r\n{\"message\": 1}", "none of Jupyter's"),
        ] {
            let error = read(wrong).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }
}
