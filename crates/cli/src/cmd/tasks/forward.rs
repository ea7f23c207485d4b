//! `cantle forward`: ports of this machine that lead to programs in a running task.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use cantle_clearml::exec::ExecDoor;
use clap::Args;
use clap_complete::ArgValueCompleter;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::exec;
use super::exec::ExecTarget;
use crate::complete;
use crate::context::{CommandResult, Context, runtime};
use crate::error::{CliError, ErrorKind};
use crate::tunnel::Tunnel;

/// A failure to accept, such as no descriptor left, passes.
const AGAIN: Duration = Duration::from_millis(100);

/// `cantle forward`
#[derive(Args, Debug)]
pub(crate) struct ForwardArgs {
    /// Name of the task, its id, or the beginning of it
    #[arg(value_name = "TASK", add = ArgValueCompleter::new(complete::tasks))]
    task: String,
    /// Where the task listens: PORT, or /PATH of a Unix socket; with the port of this machine before it: LOCAL:PORT (0: any free one)
    #[arg(value_name = "[LOCAL:]PORT", required = true)]
    doors: Vec<Forwarded>,
    /// The address of this machine to listen at. Every user who can connect to it reaches the task
    #[arg(long, value_name = "IP", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    address: IpAddr,
}

/// A port of this machine, and where it leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Forwarded {
    pub(crate) local: u16,
    pub(crate) to: ExecDoor,
}

impl FromStr for Forwarded {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (local, to) = match text.split_once(':') {
            Some((local, to)) => (Some(local), to),
            None => (None, text),
        };
        let number = |word: &str| {
            word.parse::<u16>().map_err(|_| format!("\"{word}\" is not a port: write 0 to 65535"))
        };
        let to = if to.starts_with('/') {
            ExecDoor::Socket(to.to_owned())
        } else {
            match number(to)? {
                0 => return Err("0 is not a port of the task: write 1 to 65535".to_owned()),
                port => ExecDoor::Port(port),
            }
        };
        let local = match (local, &to) {
            (Some(local), _) => number(local)?,
            (None, ExecDoor::Port(port)) => *port,
            (None, ExecDoor::Socket(_)) => 0,
        };
        Ok(Self { local, to })
    }
}

/// Serves its ports until it is stopped.
pub(crate) fn forward(context: &Context, args: ForwardArgs) -> CommandResult {
    match exec::place(context, &args.task)? {
        ExecTarget::Here(leader) => runtime()?.block_on(ports(context, args, Tunnel::Here(leader))),
        ExecTarget::Server(server, task) => {
            server.run(ports(context, args, Tunnel::Server { client: server.client(), task }))
        }
    }
}

async fn ports(context: &Context, args: ForwardArgs, tunnel: Tunnel) -> CommandResult {
    let tunnel = Arc::new(tunnel);
    let (failed, mut failures) = mpsc::channel(1);
    for Forwarded { local, to } in args.doors {
        let listener = listen(SocketAddr::new(args.address, local)).await?;
        let at = listener.local_addr().map_err(|why| CliError::of(ErrorKind::Failed, why))?;
        let what = match &to {
            ExecDoor::Port(port) => format!("port {port}"),
            ExecDoor::Socket(path) => path.clone(),
        };
        context.printer.say(&format!("{at} leads to {what} in task {}", args.task));
        tokio::spawn(serve(Arc::clone(&tunnel), listener, to, failed.clone()));
    }
    loop {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => return Ok(ExitCode::SUCCESS),
            why = failures.recv() => match why {
                // No later connection can work.
                Some(why) if has_ended(&why) => return Err(why),
                Some(why) => context.printer.say(&why.to_string()),
                None => return Ok(ExitCode::SUCCESS),
            },
        }
    }
}

/// Is it a failure after which no later connection can work?
pub(crate) fn has_ended(why: &CliError) -> bool {
    matches!(why.kind(), ErrorKind::Conflict | ErrorKind::Auth)
}

/// A listener at an address.
pub(crate) async fn listen(at: SocketAddr) -> Result<TcpListener, CliError> {
    TcpListener::bind(at).await.map_err(|why| {
        CliError::wrap(ErrorKind::Conflict, format!("cannot listen at {at}"), why)
            .with_hint("name another port of this machine: LOCAL:PORT, where 0 is any free one")
    })
}

/// Carries all connections to one listener, until it is dropped.
pub(crate) async fn serve(
    tunnel: Arc<Tunnel>,
    listener: TcpListener,
    to: ExecDoor,
    failed: mpsc::Sender<CliError>,
) {
    loop {
        let Ok((client, _)) = listener.accept().await else {
            tokio::time::sleep(AGAIN).await;
            continue;
        };
        let (tunnel, to, failed) = (Arc::clone(&tunnel), to.clone(), failed.clone());
        tokio::spawn(async move {
            if let Err(why) = tunnel.carry(client, to).await {
                // One that is being read is enough.
                let _ = failed.try_send(why);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forward_is_a_port_or_a_socket_with_a_port_before_it() {
        let port = |local, port| Ok(Forwarded { local, to: ExecDoor::Port(port) });
        let socket = |local| Ok(Forwarded { local, to: ExecDoor::Socket("/tmp/a:b".to_owned()) });
        assert_eq!("8888".parse(), port(8888, 8888));
        assert_eq!("0:8888".parse(), port(0, 8888));
        assert_eq!("9000:8888".parse(), port(9000, 8888));
        assert_eq!("9000:/tmp/a:b".parse(), socket(9000));
        for wrong in ["", "0", "80:0", "65536", "a:1", "1:a", "1:2:3", ":8888", "localhost:8888"] {
            assert!(wrong.parse::<Forwarded>().is_err(), "{wrong}");
        }
    }
}
