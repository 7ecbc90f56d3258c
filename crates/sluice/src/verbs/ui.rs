//! `sluice ui`

use clap::Args;
use serde::Serialize;
use sluice_api::list::Names;
use sluice_api::request::Request;
use sluice_daemon::failure::Failure;
use sluice_ui::{Link, Server};

use crate::control::client::Daemon;
use crate::output::{self, Format};

/// Serve a web page: what VMs get and why, and changes that are previewed, timed and undone.
///
/// Prints a link and serves the page until interrupted. The page is on a port of 127.0.0.1, and has the rights that you have on the control socket. The key
/// in the link works once: the browser that opens it gets a cookie, and other users of the host cannot open the page. To see it in the browser of your own
/// machine, run the printed `ssh` command there, with your name and this host's as your machine knows them, and open the link. The page needs nothing from the internet, and works
/// without JavaScript.
#[derive(Args)]
pub(crate) struct Ui {
    /// Port of the page. Default: a free one.
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    #[command(flatten)]
    daemon: Daemon,
}

/// How a browser gets to the page.
#[derive(Serialize)]
struct Printed {
    /// Works once.
    url: String,
    port: u16,
    /// The command for a page on another machine.
    ssh: String,
    pid: u32,
}

impl Ui {
    pub(crate) fn run(self, format: Format) -> Result<(), Failure> {
        // What is wrong with the daemon is said here, and not on a page that nobody has opened.
        let _: Names = self.daemon.get(&Request::Names)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let server = Server::bind(self.port, &self.daemon.path()).await.map_err(|error| self.refused(&error))?;
            // It was made just now.
            let Some(Link { url, port }) = server.link() else { return Ok(()) };
            let printed = Printed { url, port, ssh: ssh(port), pid: std::process::id() };
            match format {
                Format::Json => output::json(&printed),
                Format::Table => {
                    output::line(&format!("Open in a browser of this host: {}", printed.url));
                    output::line(&format!("On another machine run first:   {}", printed.ssh));
                    output::line("The link works once. End with Ctrl-C.");
                }
            }
            tokio::select! {
                () = server.run() => Ok(()),
                ended = tokio::signal::ctrl_c() => ended.map_err(Failure::from),
            }
        })
    }

    fn refused(&self, error: &std::io::Error) -> Failure {
        let port = self.port.map_or("a free port".to_owned(), |port| format!("port {port}"));
        Failure::Refused(format!("Cannot listen on {port} of 127.0.0.1: {error}; state another one with --port"))
    }
}

/// The command by which a port of another machine leads to this one.
fn ssh(port: u16) -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let user =
        std::env::var("SUDO_USER").or_else(|_| std::env::var("USER")).map_or(String::new(), |user| format!("{user}@"));
    sluice_api::shell::command(["ssh", "-L", &format!("{port}:127.0.0.1:{port}"), &format!("{user}{host}")])
}
