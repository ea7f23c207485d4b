//! `cantle login`: logs a person in with the identity provider of the server.

use std::process::ExitCode;
use std::time::Duration;

use cantle_clearml::Client;
use cantle_clearml::sessions::{EndSessions, GetSessions};
use clap::Args;
use serde_json::{Value, json};

use crate::connect::server_url;
use crate::context::{CommandResult, Context, runtime};
use crate::error::{CliError, ErrorKind};
use crate::host::host_name;
use crate::logged_in::Login;

/// `cantle login`
#[derive(Args, Debug)]
pub(crate) struct LoginArgs {
    /// Remove the login from this machine instead
    #[arg(long)]
    forget: bool,
}

/// Shows a code, waits until it is confirmed in a browser, and keeps the token.
pub(crate) fn login(context: &Context, args: &LoginArgs) -> CommandResult {
    let (printer, state) = (context.printer, &context.dirs.state);
    if args.forget {
        return forget(context);
    }
    let url = server_url(context)?;
    let client = Client::with_token(&url, String::new(), &context.global.tls())?;
    let login = runtime()?.block_on(async {
        let begun = client.call_without_keys("cantle.login_start", &json!({})).await?;
        let text = |name: &str| begun.get(name).and_then(Value::as_str).unwrap_or_default();
        printer.say(&format!("open {} and enter the code {}", text("verification_uri"), text("user_code")));
        if !text("verification_uri_complete").is_empty() {
            printer.say(&format!("or open {}", text("verification_uri_complete")));
        }
        confirmed(&client, &begun).await
    })?;
    login.write(state)?;
    printer.data(&format!("logged in at {} as {}", login.url, login.user));
    Ok(ExitCode::SUCCESS)
}

/// Ends the login at its server, and removes it from this machine in any case.
fn forget(context: &Context) -> CommandResult {
    let (printer, state) = (context.printer, &context.dirs.state);
    let kept = Login::read(state).unwrap_or_else(|error| {
        printer.say(&format!("removed from this machine; its server was not asked to end it: {error}"));
        None
    });
    let Some(kept) = kept else {
        if !Login::forget(state)? {
            printer.say("there is no login on this machine");
        }
        return Ok(ExitCode::SUCCESS);
    };
    let (tls, url) = (context.global.tls(), kept.url.clone());
    let ended = kept.usable(state, &tls).and_then(|(url, token)| {
        let client = Client::with_token(&url, token, &tls)?;
        runtime()?.block_on(async {
            let found = client.call(&GetSessions::default()).await?.sessions;
            if let Some(own) = found.into_iter().find(|session| session.is_own) {
                client.call(&EndSessions { session: Some(own.id), user: None }).await?;
            }
            Ok(())
        })
    });
    Login::forget(state)?;
    if let Err(error) = ended {
        printer.say(&format!("removed from this machine; {url} was not asked to end it: {error}"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Asks as often as the provider wants to be asked, until the code is confirmed or too old.
async fn confirmed(client: &Client, begun: &Value) -> Result<Login, CliError> {
    let seconds = |name: &str, default: u64| begun.get(name).and_then(Value::as_u64).unwrap_or(default);
    let interval = Duration::from_secs(seconds("interval", 5).clamp(1, 60));
    let machine = host_name().map(|host| format!("cantle on {host}")).unwrap_or_default();
    let body = json!({ "device_code": begun.get("device_code"), "client": machine });
    let asking = async {
        loop {
            tokio::time::sleep(interval).await;
            let answer = match client.call_without_keys("cantle.login_poll", &body).await {
                Err(error) if error.is_temporary() => continue,
                answer => answer?,
            };
            if answer.get("pending") == Some(&Value::Bool(false)) {
                let odd = || CliError::new(ErrorKind::Failed, "the server's answer has no token");
                return Login::of_answer(client.url(), &answer).ok_or_else(odd);
            }
        }
    };
    let within = Duration::from_secs(seconds("expires_in", 600).clamp(1, 3600));
    tokio::time::timeout(within, asking).await.unwrap_or_else(|_| {
        Err(CliError::new(ErrorKind::Auth, "nobody confirmed the code in time")
            .with_hint("run cantle login again"))
    })
}
