//! The options of a server about notices.

use std::path::PathBuf;

use cantle_server::NotifyConfig;
use clap::Args;

/// The receivers of notices, with their events and addresses.
#[derive(Args, Debug)]
pub(crate) struct ServerNotifyArgs {
    /// Notify this receiver of what administrators have to know: https://… for JSON, slack:https://…, teams:https://… or
    /// mailto:ADDRESS; repeat it for more
    #[arg(long = "notify", value_name = "NAME=ADDRESS")]
    receivers: Vec<String>,
    /// What the receivers of --notify get: gpu-lost, agent-away, quota-reached [default: all]
    #[arg(long, value_name = "EVENT,…", value_delimiter = ',')]
    notify_on: Vec<String>,
    /// File with the key of the signatures for the receivers of --notify [default: no signatures]
    #[arg(long, value_name = "FILE", requires = "receivers")]
    notify_secret_file: Option<PathBuf>,
    /// Let webhooks of users reach this host, address or network (10.1.0.0/16), although it is not public; repeat it for more
    #[arg(long, value_name = "HOST|NETWORK")]
    notify_allow: Vec<String>,
    /// The relay for mail: smtp://[USER@]HOST[:PORT], or smtps:// for TLS from the first byte
    #[arg(long, value_name = "URL", requires = "mail_from")]
    smtp: Option<String>,
    /// File with the password of the user of --smtp
    #[arg(long, value_name = "FILE", requires = "smtp")]
    smtp_password_file: Option<PathBuf>,
    /// The sender of mail
    #[arg(long, value_name = "ADDRESS", requires = "smtp")]
    mail_from: Option<String>,
}

impl ServerNotifyArgs {
    /// The same for the server.
    pub(crate) fn config(self) -> NotifyConfig {
        NotifyConfig {
            receivers: self.receivers,
            on: self.notify_on,
            secret: self.notify_secret_file,
            allow: self.notify_allow,
            smtp: self.smtp,
            smtp_password: self.smtp_password_file,
            mail_from: self.mail_from,
            ..NotifyConfig::default()
        }
    }
}
