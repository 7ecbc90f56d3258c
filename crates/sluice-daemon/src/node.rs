//! Other NBD servers: how their exports are reached.

use std::fs::File;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use sluice_config::{AsGateway, NodeAddress, NodeExport, NodeTls};
use sluice_io::nbd::client::{self, HandshakeError, Session, Wanted};
use sluice_io::nbd::gateway::count::{Counts, VmCount};
use sluice_io::nbd::gateway::{OPTION_HELLO, OPTION_PROOF};
use sluice_io::source::remote::Dial;

use crate::failure::chain;
use crate::launcher::{self, Question};
use crate::server::gateways::read_key;
use crate::server::tls;

/// Maximum time for a connection, and silence of a server during the handshake.
const ANSWER_MAX: Duration = Duration::from_secs(4);

/// Connects to a server, in a process that may.
pub(crate) fn connect_here(address: &str) -> Result<OwnedFd, String> {
    let cannot = |error: std::io::Error| format!("Cannot connect to {address}: {error}");
    match address.parse()? {
        NodeAddress::Unix(path) => UnixStream::connect(path).map(OwnedFd::from).map_err(cannot),
        NodeAddress::Tcp(host, port) => {
            let mut last = std::io::Error::other("the name has no address");
            for address in (host.as_str(), port).to_socket_addrs().map_err(cannot)? {
                match TcpStream::connect_timeout(&address, ANSWER_MAX) {
                    Ok(stream) => return Ok(stream.into()),
                    Err(error) => last = error,
                }
            }
            Err(cannot(last))
        }
    }
}

/// Connects to a server: by the launcher, in a daemon.
fn connect(address: &NodeAddress) -> Result<OwnedFd, String> {
    let address = address.to_string();
    match launcher::ask_for(Question::Connect(address.clone())) {
        None => connect_here(&address),
        Some(connected) => connected?.ok_or_else(|| "no connection came with the answer".to_owned()),
    }
}

/// An export, which is connected to when it is needed.
pub(crate) struct Export {
    pub(crate) export: NodeExport,
    pub(crate) tls: Option<Box<NodeTls>>,
    pub(crate) gateway: Option<Gateway>,
}

/// This host as a gateway of the export's server, for one VM.
pub(crate) struct Gateway {
    pub(crate) vm: String,
    pub(crate) stated: AsGateway,
    count: Arc<VmCount>,
}

impl Gateway {
    pub(crate) fn new(vm: &str, stated: &AsGateway, counts: &Counts) -> Gateway {
        Gateway { vm: vm.to_owned(), stated: stated.clone(), count: counts.of(vm) }
    }
}

impl Dial for Export {
    fn dial(&self) -> Result<(OwnedFd, Session), String> {
        let epoch = self.gateway.as_ref().map(|gateway| gateway.count.epoch()).transpose();
        self.connect(
            epoch.map_err(|why| format!("since when this gateway serves the VM cannot be noted: {why}"))?.unwrap_or(0),
        )
    }

    fn look(&self) -> Result<(OwnedFd, Session), String> {
        self.connect(0)
    }

    fn count(&self) -> Option<Arc<VmCount>> {
        self.gateway.as_ref().map(|gateway| Arc::clone(&gateway.count))
    }
}

impl Export {
    fn connect(&self, epoch: u64) -> Result<(OwnedFd, Session), String> {
        let NodeExport { node, name } = &self.export;
        let known =
            self.gateway.as_ref().map(|gateway| Ok::<_, String>((gateway, read_key(&gateway.stated.key_file)?)));
        let known = known.transpose()?;
        let mut stream = File::from(connect(node)?);
        limit_silence(&stream, Some(ANSWER_MAX))?;
        if let Some(stated) = &self.tls {
            let (tls, _) = tls::client(stated)?;
            client::start_tls(&mut stream).map_err(|error| shown(&error, name))?;
            let inside = tls.connect(stream.into(), ANSWER_MAX).map_err(|why| format!("TLS failed: {why}"))?;
            stream = File::from(inside);
            limit_silence(&stream, Some(ANSWER_MAX))?;
        }
        let mut wanted = Wanted::default();
        if let Some((Gateway { vm, stated, .. }, key)) = &known {
            let (name, node) = (&*stated.name, &*stated.node);
            wanted.gateway = Some(client::Gateway { name, node, key, epoch, vm });
        }
        let run = if self.tls.is_some() { client::choose } else { client::run };
        let session = run(&mut stream, name, wanted).map_err(|error| match (&error, &self.tls) {
            (HandshakeError::Closed, Some(_)) => {
                "the server closed the connection after TLS: it wants a certificate of its client_ca, with a name of [nbd.tls.client] if it has such tables"
                    .to_owned()
            }
            _ => shown(&error, name),
        })?;
        limit_silence(&stream, None)?;
        Ok((stream.into(), session))
    }
}

/// Sets how long a send or a receive may wait.
fn limit_silence(stream: &File, limit: Option<Duration>) -> Result<(), String> {
    let set = |timeout| set_socket_timeout(stream, timeout, limit);
    [Timeout::Recv, Timeout::Send].into_iter().try_for_each(set).map_err(|error| error.to_string())
}

/// A failed handshake for people: the cause, and what to change.
fn shown(error: &HandshakeError, export: &str) -> String {
    use sluice_io::nbd::wire::option::STARTTLS;
    use sluice_io::nbd::wire::option_reply::{ERR_INVALID, ERR_POLICY, ERR_TLS_REQD, ERR_UNKNOWN, ERR_UNSUP};
    match error {
        HandshakeError::Refused { option: OPTION_HELLO, kind: ERR_UNSUP | ERR_INVALID, .. } => {
            "the server has no gateways: it needs `node` in [nbd] and a table [nbd.gateway.NAME] for this host, or gateway removed from the device here"
                .to_owned()
        }
        HandshakeError::Refused { option: OPTION_HELLO | OPTION_PROOF, kind: ERR_POLICY, message, .. } => {
            format!("the server refuses this gateway: {message}")
        }
        HandshakeError::Refused { kind: ERR_UNKNOWN, .. } => {
            format!("the server has no export '{export}': state one that it has, or add it there")
        }
        HandshakeError::Refused { kind: ERR_TLS_REQD, .. } => {
            "the server wants TLS: state tls on its device, with the certificate of the server's authority".to_owned()
        }
        HandshakeError::Refused { option: STARTTLS, .. } => {
            "the server has no TLS: it needs [nbd.tls], or tls removed from the device here".to_owned()
        }
        HandshakeError::Refused { kind: ERR_POLICY, .. } => {
            format!("the server does not let this host have the export '{export}'")
        }
        HandshakeError::Io(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
            format!("the server has not answered for {} s", ANSWER_MAX.as_secs())
        }
        error => chain(error),
    }
}
