//! The smallest program with a cantle server in it: `serve STATE_DIR [LISTEN]` prints the address and answers until it
//! is killed. The tests use it to kill a server in the middle of its work.

use cantle_server::{Server, ServerConfig};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let state_dir = args.next().ok_or("usage: serve STATE_DIR [LISTEN]")?.into();
    let listen = args.next().unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let server = Server::bind(&ServerConfig { listen, state_dir, ..ServerConfig::default() }).await?;
    #[expect(clippy::print_stdout, reason = "this program's answer")]
    {
        println!("{}", server.url());
    }
    Ok(server.serve(std::future::pending()).await?)
}
