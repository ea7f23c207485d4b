//! Tells people what happened, by webhook and mail. Notices are made from events and kept in the database until they are delivered
//! ([`run`]); a receiver that does not answer delays no other one.

mod address;
mod mail;
mod message;
mod run;
mod send;
mod watch;

use std::path::{Path, PathBuf};
use std::time::Duration;

use cantle_store::ReceiverRow;

pub(crate) use address::Address;
pub(crate) use message::{Message, new_secret};
pub(crate) use run::run;
pub(crate) use watch::watch;

use address::Allowed;
use send::Senders;

/// The events that a user's receivers get.
pub(crate) const OF_TASKS: [&str; 5] = ["start", "idle", "completed", "failed", "stopped"];
/// The same where the user names nothing.
pub(crate) const BY_DEFAULT: [&str; 4] = ["idle", "completed", "failed", "stopped"];
/// The events that the receivers of the server's configuration get.
const OF_SERVER: [&str; 3] = ["gpu-lost", "agent-away", "quota-reached"];

/// The receivers of a server, and how it reaches those of its users.
#[derive(Clone, Debug)]
pub struct NotifyConfig {
    /// `NAME=ADDRESS`: receivers of the notices for administrators.
    pub receivers: Vec<String>,
    /// Of `gpu-lost`, `agent-away` and `quota-reached`; empty: all.
    pub on: Vec<String>,
    /// The key of signatures for these receivers.
    pub secret: Option<PathBuf>,
    /// Hosts, addresses and networks that users' webhooks may reach although they are not public.
    pub allow: Vec<String>,
    /// `smtp://HOST[:PORT]` or `smtps://HOST[:PORT]`, with a user in front of the host if it wants one.
    pub smtp: Option<String>,
    /// The password of that user.
    pub smtp_password: Option<PathBuf>,
    /// The sender of mail.
    pub mail_from: Option<String>,
    /// After its start, a server waits so long for the reports of the nodes.
    pub grace: Duration,
}

impl Default for NotifyConfig {
    fn default() -> Self {
        Self {
            receivers: Vec::new(),
            on: Vec::new(),
            secret: None,
            allow: Vec::new(),
            smtp: None,
            smtp_password: None,
            mail_from: None,
            grace: Duration::from_secs(15),
        }
    }
}

/// Why the configuration of notices is wrong.
#[derive(Debug, thiserror::Error)]
pub enum NotifyError {
    /// An option.
    #[error("--{option}: {why}")]
    Option {
        /// Its name.
        option: &'static str,
        /// The fault.
        why: String,
    },
    /// A file that cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
}

/// The receivers of the server's configuration, and the ways to all.
#[derive(Debug)]
pub(crate) struct Notices {
    /// Their owner is empty.
    pub(crate) own: Vec<ReceiverRow>,
    senders: Senders,
    /// Address of the server for people.
    url: String,
    grace: Duration,
}

impl Notices {
    /// Checks the configuration.
    pub(crate) fn new(config: &NotifyConfig, url: &str) -> Result<Self, NotifyError> {
        let option = |option, why| NotifyError::Option { option, why };
        let on = chosen(&config.on, &OF_SERVER, &OF_SERVER).map_err(|why| option("notify-on", why))?;
        let secret = config.secret.as_deref().map(read).transpose()?;
        let allowed = Allowed::parse(&config.allow).map_err(|why| option("notify-allow", why))?;
        let senders = Senders::new(config, allowed)?;
        let mut own: Vec<ReceiverRow> = Vec::new();
        for given in &config.receivers {
            let wrong = |why: String| option("notify", why);
            let (name, address) =
                given.split_once('=').ok_or_else(|| wrong("write NAME=ADDRESS".to_owned()))?;
            check_name(name).map_err(wrong)?;
            let parsed = Address::parse(address).map_err(|why| wrong(format!("{name}: {why}")))?;
            senders.check(&parsed).map_err(|why| wrong(format!("{name}: {why}")))?;
            if own.iter().any(|other| other.name == name) {
                return Err(wrong(format!("{name} is named twice")));
            }
            own.push(ReceiverRow {
                name: name.to_owned(),
                address: address.to_owned(),
                secret: secret.clone(),
                happens: on.clone(),
                always: true,
                ..ReceiverRow::default()
            });
        }
        Ok(Self { own, senders, url: url.to_owned(), grace: config.grace })
    }

    /// Whether this server can reach such an address at all.
    pub(crate) fn check(&self, address: &Address) -> Result<(), String> {
        self.senders.check(address)
    }

    /// Sends a message now. The error is one line for people.
    pub(crate) async fn send(&self, to: &ReceiverRow, id: &str, message: &Message) -> Result<(), String> {
        self.senders.send(to, id, message).await
    }
}

/// A name of a receiver.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_' | '.');
    match (1..=32).contains(&name.len()) && name.chars().all(is_name) {
        true => Ok(()),
        false => {
            Err(format!("\"{}\" is no name; write up to 32 of a-z, 0-9, -, _ and .", name.escape_default()))
        }
    }
}

/// The events that were chosen, in one text.
pub(crate) fn chosen(given: &[String], known: &[&str], default: &[&str]) -> Result<String, String> {
    if given.is_empty() {
        return Ok(default.join(","));
    }
    match given.iter().find(|event| !known.contains(&event.as_str())) {
        Some(wrong) => Err(format!("\"{}\" is none of {}", wrong.escape_default(), known.join(", "))),
        None => Ok(given.join(",")),
    }
}

/// The content of a file without the end of its line.
fn read(path: &Path) -> Result<String, NotifyError> {
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|source| NotifyError::File { path: path.to_owned(), source })?;
    Ok(text.trim_end().to_owned())
}
