//! The smallest program with a cantle server in it: `serve STATE_DIR [LISTEN] [DATABASE]` prints the address and answers until it
//! is killed. The tests use it to kill a server in the middle of its work, and the benchmarks to measure one.

use cantle_server::{Server, ServerConfig};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_writer(std::io::stderr).init();
    let mut args = std::env::args().skip(1);
    let state_dir = args.next().ok_or("usage: serve STATE_DIR [LISTEN] [DATABASE]")?.into();
    let listen = args.next().unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let config = ServerConfig { listen, state_dir, db: args.next(), ..ServerConfig::default() };
    let server = Server::bind(&config).await?;
    #[expect(clippy::print_stdout, reason = "this program's answer")]
    {
        println!("{}", server.url());
    }
    Ok(server.serve(std::future::pending()).await?)
}
