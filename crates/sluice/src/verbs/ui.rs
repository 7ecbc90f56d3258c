//! `sluice ui`

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use sluice_api::list::Names;
use sluice_api::request::Request;
use sluice_daemon::failure::{Failure, chain};
use sluice_io::endpoint::{Bound, Endpoint, ListenError};
use sluice_io::socket_file::SocketFile;
use sluice_ui::{Link, Server};
use tokio::net::UnixListener;

use crate::control::client::Daemon;
use crate::output::{self, Format};

/// Serve a web page: what VMs get and why, and changes that are previewed, timed and undone.
///
/// Prints a link and serves the page until interrupted. The page is on a port of 127.0.0.1, and has the rights that you have on the control socket. The key
/// in the link works once: the browser that opens it gets a cookie, and other users of the host cannot open the page. To see it in the browser of your own
/// machine, run the printed `ssh` command there, with your name and this host's as your machine knows them, and open the link. The page needs nothing from the internet, and works
/// without JavaScript.
///
/// With `--unix` the page is shared: it is on a Unix socket, for a proxy that asks for a login. There is no link. All who get through the proxy have the rights that you have on the
/// control socket.
#[derive(Args)]
pub(crate) struct Ui {
    /// Port of the page. Default: a free one.
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Unix socket of a shared page, in place of a port. Your user and the group of the socket may connect.
    #[arg(long, value_name = "PATH", requires = "hosts", conflicts_with = "port")]
    unix: Option<PathBuf>,
    /// Name of the host in addresses of the shared page, without a port unless it is to be this one; can be repeated. The page answers no other name.
    #[arg(long = "host", value_name = "NAME", requires = "unix", value_parser = host)]
    hosts: Vec<String>,
    /// Group of the Unix socket. Default: yours.
    #[arg(long, value_name = "GROUP", requires = "unix")]
    group: Option<String>,
    #[command(flatten)]
    daemon: Daemon,
}

/// How a browser or a proxy gets to the page.
#[derive(Serialize)]
#[serde(untagged)]
enum Printed {
    Link {
        /// Works once.
        url: String,
        port: u16,
        /// The command for a page on another machine.
        ssh: String,
        pid: u32,
    },
    Proxy {
        unix: PathBuf,
        hosts: Vec<String>,
        pid: u32,
    },
}

impl Ui {
    pub(crate) fn run(self, format: Format) -> Result<(), Failure> {
        if self.unix.is_none() {
            // What is wrong with the daemon is said here, and not on a page that nobody has opened.
            let _: Names = self.daemon.get(&Request::Names)?;
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            // The end removes the file of the socket.
            let (server, printed, _file) = match &self.unix {
                Some(path) => self.behind_proxy(path)?,
                None => self.on_port().await?,
            };
            printed.print(format);
            tokio::select! {
                () = server.run() => Ok(()),
                ended = tokio::signal::ctrl_c() => ended.map_err(Failure::from),
            }
        })
    }

    async fn on_port(&self) -> Result<(Server, Printed, Option<SocketFile>), Failure> {
        let (server, Link { url, port }) =
            Server::bind(self.port, &self.daemon.path()).await.map_err(|error| self.refused(&error))?;
        Ok((server, Printed::Link { url, port, ssh: ssh(port), pid: std::process::id() }, None))
    }

    /// The daemon may start later: what is wrong with it is on the page.
    fn behind_proxy(&self, path: &Path) -> Result<(Server, Printed, Option<SocketFile>), Failure> {
        let (listener, file) = listen(path, self.group.clone()).map_err(|error| Failure::Refused(chain(&error)))?;
        let server = Server::behind_proxy(listener, self.hosts.clone(), &self.daemon.path());
        let printed = Printed::Proxy { unix: path.to_owned(), hosts: self.hosts.clone(), pid: std::process::id() };
        Ok((server, printed, Some(file)))
    }

    fn refused(&self, error: &std::io::Error) -> Failure {
        let port = self.port.map_or("a free port".to_owned(), |port| format!("port {port}"));
        Failure::Refused(format!("Cannot listen on {port} of 127.0.0.1: {error}; state another one with --port"))
    }
}

impl Printed {
    fn print(&self, format: Format) {
        match (format, self) {
            (Format::Json, _) => output::json(self),
            (Format::Table, Printed::Link { url, ssh, .. }) => {
                output::line(&format!("Open in a browser of this host: {url}"));
                output::line(&format!("On another machine run first:   {ssh}"));
                output::line("The link works once. End with Ctrl-C.");
            }
            (Format::Table, Printed::Proxy { unix, hosts, .. }) => {
                output::line(&format!("Serving {} at {}", hosts.join(", "), unix.display()));
                output::line("All who may connect have your rights. End with Ctrl-C.");
            }
        }
    }
}

/// Listens on a Unix socket, for this user and the group. Replaces the file of a process that has ended.
fn listen(path: &Path, group: Option<String>) -> Result<(UnixListener, SocketFile), ListenError> {
    let endpoint =
        Endpoint::Unix { path: std::path::absolute(path).unwrap_or(path.to_owned()), owner: None, group, mode: 0o660 };
    Bound::bind(endpoint, None)?.into_unix()
}

/// Reads a name of `--host`.
fn host(text: &str) -> Result<String, String> {
    match text.is_empty() || text.contains(['/', ',', ' ']) {
        true => Err("write a name such as host3.example.org, without https://".to_owned()),
        false => Ok(text.to_owned()),
    }
}

/// The command by which a port of another machine leads to this one.
fn ssh(port: u16) -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let user =
        std::env::var("SUDO_USER").or_else(|_| std::env::var("USER")).map_or(String::new(), |user| format!("{user}@"));
    sluice_api::shell::command(["ssh", "-L", &format!("{port}:127.0.0.1:{port}"), &format!("{user}{host}")])
}
