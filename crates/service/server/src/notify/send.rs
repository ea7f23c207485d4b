//! Sends one notice to one receiver.

use std::error::Error;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use cantle_store::ReceiverRow;
use lettre::address::Envelope;
use lettre::transport::smtp::authentication::Credentials;
use lettre::transport::smtp::client::{Tls, TlsParameters};
use lettre::{AsyncSmtpTransport, AsyncTransport as _, Tokio1Executor};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::Policy;
use reqwest::{Client, Url};

use super::address::{Address, Allowed};
use super::message::{Message, signature};
use super::{NotifyConfig, NotifyError, mail, read};
use crate::clock::now_us;

/// A receiver has this long, with the look-up of its name.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// The ways to receivers.
#[derive(Debug)]
pub(super) struct Senders {
    /// For users' webhooks: reaches public addresses only, and those that are allowed.
    guarded: Client,
    allowed: Arc<Allowed>,
    /// For the webhooks that administrators wrote into the configuration.
    free: Client,
    mail: Option<Mail>,
}

#[derive(Debug)]
struct Mail {
    transport: AsyncSmtpTransport<Tokio1Executor>,
    from: lettre::Address,
}

/// Finds addresses of names, and leaves out what may not be reached. The connection goes to one of those that are left, so a name
/// cannot mean something else afterwards.
struct Guard(Arc<Allowed>);

impl Resolve for Guard {
    fn resolve(&self, name: Name) -> Resolving {
        let allowed = Arc::clone(&self.0);
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let good: Vec<_> = found.filter(|address| allowed.admits(name.as_str(), address.ip())).collect();
            if good.is_empty() {
                return Err(not_allowed(name.as_str()).into());
            }
            Ok(Box::new(good.into_iter()) as Addrs)
        })
    }
}

fn not_allowed(host: &str) -> String {
    format!(
        "{host} is no public address, and this server does not allow it; its administrator can: --notify-allow"
    )
}

impl Senders {
    pub(super) fn new(config: &NotifyConfig, allowed: Allowed) -> Result<Self, NotifyError> {
        let wrong = |option, why| NotifyError::Option { option, why };
        let allowed = Arc::new(allowed);
        // A redirection would lead to places that were not checked.
        let client = || Client::builder().redirect(Policy::none()).no_proxy().user_agent("cantle");
        let built = |client: reqwest::ClientBuilder| {
            client.build().map_err(|error| wrong("notify", innermost(&error)))
        };
        let guarded = built(client().dns_resolver(Arc::new(Guard(Arc::clone(&allowed)))))?;
        let free = built(client())?;
        let mail = match &config.smtp {
            None => None,
            Some(smtp) => {
                let from = config.mail_from.as_deref().unwrap_or_default();
                let from = from.parse().map_err(|_| {
                    wrong(
                        "mail-from",
                        format!("\"{from}\" is no mail address; write for example cantle@example.org"),
                    )
                })?;
                Some(Mail { transport: transport(smtp, config)?, from })
            }
        };
        Ok(Self { guarded, allowed, free, mail })
    }

    /// Whether there is a way to such an address.
    pub(super) fn check(&self, address: &Address) -> Result<(), String> {
        match (address, &self.mail) {
            (Address::Mail(_), None) => {
                Err("this server sends no mail; its administrator sets --smtp and --mail-from".to_owned())
            }
            _ => Ok(()),
        }
    }

    pub(super) async fn send(&self, to: &ReceiverRow, id: &str, message: &Message) -> Result<(), String> {
        let address = Address::parse(&to.address)?;
        let sent = async {
            match &address {
                Address::Mail(address) => self.mail(address, id, message).await,
                Address::Slack(url) => self.post(to, url, id, &message.slack().to_string(), None).await,
                Address::Teams(url) => self.post(to, url, id, &message.teams().to_string(), None).await,
                Address::Json(url) => {
                    let body = serde_json::to_string(message).map_err(|error| error.to_string())?;
                    self.post(to, url, id, &body, to.secret.as_deref()).await
                }
            }
        };
        let late = || format!("no answer within {} s", ANSWER_WITHIN.as_secs());
        tokio::time::timeout(ANSWER_WITHIN, sent).await.unwrap_or_else(|_| Err(late()))
    }

    async fn post(
        &self,
        to: &ReceiverRow,
        url: &Url,
        id: &str,
        body: &str,
        secret: Option<&str>,
    ) -> Result<(), String> {
        // The administrator chose the receivers without an owner.
        let is_free = to.owner.is_empty();
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
        if let Ok(ip) = host.parse::<IpAddr>()
            && !is_free
            && !self.allowed.admits(host, ip)
        {
            return Err(not_allowed(host));
        }
        let client = if is_free { &self.free } else { &self.guarded };
        let mut request = client.post(url.clone()).header("content-type", "application/json");
        if let Some(secret) = secret {
            let time_s = now_us() / 1_000_000;
            request = request
                .header("webhook-id", id)
                .header("webhook-timestamp", time_s)
                .header("webhook-signature", signature(secret, id, time_s, body));
        }
        let answer = request.body(body.to_owned()).send().await.map_err(|error| innermost(&error))?;
        match answer.status() {
            status if status.is_success() => Ok(()),
            status => Err(format!("the receiver answered {status}")),
        }
    }

    async fn mail(&self, to: &lettre::Address, id: &str, message: &Message) -> Result<(), String> {
        let Some(Mail { transport, from }) = &self.mail else {
            return Err("this server sends no mail".to_owned());
        };
        let envelope =
            Envelope::new(Some(from.clone()), vec![to.clone()]).map_err(|error| error.to_string())?;
        let text = mail::text(from, to, id, message);
        transport.send_raw(&envelope, text.as_bytes()).await.map(drop).map_err(|error| innermost(&error))
    }
}

/// The connection to the relay. With a password it is encrypted always, otherwise where the relay can.
fn transport(smtp: &str, config: &NotifyConfig) -> Result<AsyncSmtpTransport<Tokio1Executor>, NotifyError> {
    let wrong = |why: String| NotifyError::Option { option: "smtp", why };
    let form =
        || wrong("write smtp://[USER@]HOST[:PORT], or smtps:// for TLS from the first byte".to_owned());
    let url: Url = smtp.parse().map_err(|_| form())?;
    let host = url.host_str().filter(|host| !host.is_empty()).ok_or_else(form)?;
    let password = config.smtp_password.as_deref().map(read).transpose()?;
    let tls = || TlsParameters::new(host.to_owned()).map_err(|error| wrong(innermost(&error)));
    let (tls, port) = match (url.scheme(), &password) {
        ("smtps", _) => (Tls::Wrapper(tls()?), 465),
        ("smtp", Some(_)) => (Tls::Required(tls()?), 587),
        ("smtp", None) => (Tls::Opportunistic(tls()?), 25),
        _ => return Err(form()),
    };
    let builder = AsyncSmtpTransport::<Tokio1Executor>::builder_dangerous(host);
    let builder = builder.port(url.port().unwrap_or(port)).tls(tls).timeout(Some(ANSWER_WITHIN));
    let user = percent_encoding::percent_decode_str(url.username()).decode_utf8_lossy().into_owned();
    Ok(match (user.is_empty(), password) {
        (true, None) => builder.build(),
        (false, Some(password)) => builder.credentials(Credentials::new(user, password)).build(),
        _ => return Err(wrong("a user needs --smtp-password-file, and the password a user".to_owned())),
    })
}

/// The cause, without the address: its path may be a secret.
fn innermost(error: &(dyn Error + 'static)) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    match error.downcast_ref::<reqwest::Error>() {
        Some(error) if std::ptr::eq(cause, error as &(dyn Error + 'static)) => {
            "it cannot be reached".to_owned()
        }
        _ => cause.to_string(),
    }
}
