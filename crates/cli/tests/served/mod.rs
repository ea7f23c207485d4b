//! A server for tests of the command line, and commands of its users.
#![allow(dead_code, reason = "each test file uses its part")]

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use cantle_clearml::{Client, Credentials, Request, queues};

/// A server of the test's own, which is the program itself.
pub(crate) struct Server {
    pub(crate) dir: tempfile::TempDir,
    process: Child,
    url: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The program, without what the environment of the test says.
pub(crate) fn cantle(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cantle"));
    command.env_clear().env("HOME", dir).env("PATH", "/usr/bin:/bin").current_dir(dir).stdin(Stdio::null());
    command
}

impl Server {
    pub(crate) fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut command = cantle(dir.path());
        command.args(["server", "--listen", "127.0.0.1:0", "--state"]).arg(dir.path().join("state"));
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("cantle server is up: ").unwrap().to_owned();
        Self { dir, process, url }
    }

    /// A command of the administrator.
    pub(crate) fn run(&self, words: &[&str]) -> Output {
        let mut command = cantle(self.dir.path());
        command.env("CANTLE_STATE_DIR", self.dir.path().join("state")).args(words).output().unwrap()
    }

    pub(crate) fn ok(&self, words: &[&str]) -> String {
        let done = self.run(words);
        assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap().trim().to_owned()
    }

    fn client(&self) -> Client {
        let keys = cantle_server::CredentialsFile::read(&self.dir.path().join("state")).unwrap().unwrap();
        Client::new(&self.url, keys.credentials()).unwrap()
    }

    pub(crate) fn call<R: Request>(&self, request: &R) -> R::Response {
        let client = self.client();
        tokio::runtime::Runtime::new().unwrap().block_on(client.call(request)).unwrap()
    }

    pub(crate) fn call_value(&self, endpoint: &str, body: &serde_json::Value) -> serde_json::Value {
        let client = self.client();
        tokio::runtime::Runtime::new().unwrap().block_on(client.call_value(endpoint, body)).unwrap()
    }

    pub(crate) fn queue(&self, name: &str) {
        self.call(&queues::Create { name: name.to_owned(), ..queues::Create::default() });
    }

    pub(crate) fn user(&self, words: &[&str]) -> Credentials {
        let made = self.ok(&[&["-o", "json", "users", "add"], words].concat());
        let made: serde_json::Value = serde_json::from_str(&made).unwrap();
        let text = |name: &str| made["items"][0][name].as_str().unwrap().to_owned();
        Credentials { access_key: text("access_key"), secret_key: text("secret_key") }
    }

    /// A command of another user, with its own home directory.
    pub(crate) fn run_as(&self, keys: &Credentials, words: &[&str]) -> Output {
        let mut command = cantle(self.dir.path());
        command.env("CANTLE_SERVER", &self.url).env("CANTLE_STATE_DIR", self.dir.path().join("own"));
        command.env("CLEARML_API_ACCESS_KEY", &keys.access_key);
        command.env("CLEARML_API_SECRET_KEY", &keys.secret_key);
        command.args(words).output().unwrap()
    }
}
