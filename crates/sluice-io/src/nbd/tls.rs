//! TLS between an NBD client and a server, by rustls.
//!
//! A connection with TLS ends in a thread of its own. That passes what it has decrypted to one end of a socket pair, and encrypts what comes from
//! there; the other end is what the handshake and the data path see. So these know nothing of TLS, and neither the control plane's
//! thread nor a device thread encrypts.
//!
//! ```text
//!     peer ---TCP---> [thread "tls"] ---socket pair---> handshake, then device thread
//! ```
//!
//! Pre-shared keys are not supported, because rustls does not have them.

use std::collections::BTreeMap;
use std::io;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{CertificateError, ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::runtime::{Builder, Handle};
use tokio::sync::Notify;
use tokio::time::{timeout, timeout_at};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::cpu::thread_time;
use crate::limits::reserve;

/// Memory for each direction of a connection, in bytes.
const COPY_LEN: usize = 128 << 10;
/// Time in which a peer must take as much.
const STALL_MAX: Duration = Duration::from_secs(60);
/// Time for the end of a connection.
const GOODBYE_MAX: Duration = Duration::from_secs(5);
/// CPU time after which it is charged.
const CHARGE_AT: Duration = Duration::from_millis(2);

/// A certificate with its key, and the certificates of those that may sign others.
#[derive(Debug, Default)]
pub struct Files<'a> {
    /// Own certificate, with those that lead to its root, in PEM.
    pub certificate: Option<&'a [u8]>,
    /// Its key, in PEM.
    pub key: Option<&'a [u8]>,
    /// Certificates by which those of the peer are signed, in PEM.
    pub authority: Option<&'a [u8]>,
}

/// What a server needs for TLS.
#[derive(Debug)]
pub struct Server {
    config: Arc<ServerConfig>,
    clients: BTreeMap<String, Vec<String>>,
}

/// What a client needs for TLS.
#[derive(Debug)]
pub struct Client {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

/// Exports that a client may open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Allowed {
    All,
    /// Names, of which some end with `*`.
    Some(Vec<String>),
}

impl Allowed {
    /// Whether an export is among them.
    #[must_use]
    pub fn has(&self, export: &str) -> bool {
        let fits = |known: &String| match known.strip_suffix('*') {
            Some(start) => export.starts_with(start),
            None => known == export,
        };
        match self {
            Allowed::All => true,
            Allowed::Some(known) => known.iter().any(fits),
        }
    }
}

impl Files<'_> {
    fn chain(&self) -> Result<Vec<CertificateDer<'static>>, String> {
        let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(self.certificate.unwrap_or_default()).collect();
        let read = read.map_err(|error| format!("the certificate cannot be read: {error}"))?;
        if read.is_empty() { Err("the file has no certificate in PEM".to_owned()) } else { Ok(read) }
    }

    fn key(&self) -> Result<PrivateKeyDer<'static>, String> {
        PrivateKeyDer::from_pem_slice(self.key.unwrap_or_default())
            .map_err(|error| format!("the key cannot be read: {error}"))
    }

    fn roots(&self) -> Result<Arc<RootCertStore>, String> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(self.authority.unwrap_or_default()) {
            let certificate =
                certificate.map_err(|error| format!("the file of the authority cannot be read: {error}"))?;
            roots.add(certificate).map_err(|error| format!("a certificate of the authority is wrong: {error}"))?;
        }
        match roots.is_empty() {
            true => Err("the file of the authority has no certificate in PEM".to_owned()),
            false => Ok(Arc::new(roots)),
        }
    }

    /// Returns when the own certificate ends; `None` if it has none, or one that nobody could use.
    #[must_use]
    pub fn ends(&self) -> Option<SystemTime> {
        let chain = self.chain().ok()?;
        let mut roots = RootCertStore::empty();
        roots.add(chain[0].clone()).ok()?;
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider()).build().ok()?;
        // The check at the end of time says when it was valid.
        let never = UnixTime::since_unix_epoch(Duration::from_secs(u64::from(u32::MAX) * 64));
        let name = ServerName::try_from("none.invalid").ok()?;
        match verifier.verify_server_cert(&chain[0], &chain[1..], &name, &[], never) {
            Err(rustls::Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. })) => {
                Some(SystemTime::UNIX_EPOCH + Duration::from_secs(not_after.as_secs()))
            }
            _ => None,
        }
    }
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

impl Server {
    /// Clients need a certificate if an authority is stated. If `clients` has names, each of these may open its exports and nobody else
    /// may.
    ///
    /// # Errors
    /// A file is not what it should be, in words.
    pub fn new(files: &Files<'_>, clients: BTreeMap<String, Vec<String>>) -> Result<Server, String> {
        let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| error.to_string())?;
        let builder = match files.authority {
            None => builder.with_no_client_auth(),
            Some(_) => {
                let verifier = WebPkiClientVerifier::builder_with_provider(files.roots()?, provider()).build();
                builder.with_client_cert_verifier(verifier.map_err(|error| error.to_string())?)
            }
        };
        let config = builder.with_single_cert(files.chain()?, files.key()?);
        let config = config.map_err(|error| format!("certificate and key do not fit: {error}"))?;
        Ok(Server { config: Arc::new(config), clients })
    }

    /// Does the server's half of a TLS handshake. The connection holds `permit` for as long as anything of it is there. Returns the socket for what is decrypted, and what the client may open.
    ///
    /// # Errors
    /// In words: the client trusts another authority, has no certificate or one of another authority.
    pub(crate) async fn accept(
        &self,
        peer: TcpStream,
        permit: impl Send + 'static,
        meter: Arc<Meter>,
    ) -> Result<(UnixStream, Allowed), String> {
        let acceptor = TlsAcceptor::from(Arc::clone(&self.config));
        let (mut done, is_done) = tokio::sync::oneshot::channel();
        let live = Live::new();
        runtime()?.spawn(metered(meter, async move {
            let (_permit, _live) = (permit, live);
            let accepted = async { acceptor.accept(tokio::net::TcpStream::from_std(peer)?).await };
            let accepted = tokio::select! {
                accepted = accepted => accepted,
                // The time for the handshake is over.
                () = done.closed() => return,
            };
            match accepted {
                Ok(mut stream) => {
                    let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first().cloned());
                    // A peer that never gets here has one descriptor.
                    match pair() {
                        Ok((ours, theirs)) => {
                            if done.send(Ok((ours, certificate.map(CertificateDer::into_owned)))).is_ok() {
                                carry(&mut stream, theirs).await;
                            }
                        }
                        Err(why) => drop(done.send(Err(why))),
                    }
                }
                Err(error) => drop(done.send(Err(error.to_string()))),
            }
        }));
        let (ours, certificate) = is_done.await.map_err(|_| "the thread for TLS has ended".to_owned())??;
        Ok((ours, self.allowed(certificate.as_ref())?))
    }

    fn allowed(&self, certificate: Option<&CertificateDer<'_>>) -> Result<Allowed, String> {
        if self.clients.is_empty() {
            return Ok(Allowed::All);
        }
        let certificate = certificate.ok_or("the client has no certificate")?;
        let certificate = ParsedCertificate::try_from(certificate).map_err(|error| error.to_string())?;
        let is_named = |name: &String| {
            let name = ServerName::try_from(name.as_str());
            name.is_ok_and(|name| rustls::client::verify_server_name(&certificate, &name).is_ok())
        };
        let named: Vec<_> = self.clients.iter().filter(|(name, _)| is_named(name)).collect();
        match named.is_empty() {
            true => Err("the client's certificate has none of the names of [nbd.tls.client]".to_owned()),
            false => Ok(Allowed::Some(named.into_iter().flat_map(|(_, exports)| exports.clone()).collect())),
        }
    }
}

impl Client {
    /// A server is one whose certificate has this name. The own certificate may be missing.
    ///
    /// # Errors
    /// A file is not what it should be, in words.
    pub fn new(files: &Files<'_>, name: &str) -> Result<Client, String> {
        let name = ServerName::try_from(name.to_owned()).map_err(|_| format!("'{name}' is no name of a server"))?;
        let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| error.to_string())?.with_root_certificates(files.roots()?);
        let config = match files.certificate {
            None => builder.with_no_client_auth(),
            Some(_) => {
                let config = builder.with_client_auth_cert(files.chain()?, files.key()?);
                config.map_err(|error| format!("certificate and key do not fit: {error}"))?
            }
        };
        Ok(Client { config: Arc::new(config), name })
    }

    /// Does the client's half of a TLS handshake, within `limit`. Returns the socket for what is decrypted. Blocks.
    ///
    /// # Errors
    /// In words: the server's certificate is of another authority or name, or the server wants another one.
    pub fn connect(&self, server: OwnedFd, limit: Duration) -> Result<OwnedFd, String> {
        let (ours, theirs) = pair()?;
        let server = TcpStream::from(server);
        server.set_nonblocking(true).map_err(|error| error.to_string())?;
        let (connector, name) = (TlsConnector::from(Arc::clone(&self.config)), self.name.clone());
        let (done, is_done) = std::sync::mpsc::sync_channel(1);
        let live = Live::new();
        runtime()?.spawn(async move {
            let _live = live;
            let connected = async { connector.connect(name, tokio::net::TcpStream::from_std(server)?).await };
            match timeout(limit, connected).await {
                Ok(Ok(mut stream)) => {
                    if done.send(Ok(())).is_ok() {
                        carry(&mut stream, theirs).await;
                    }
                }
                Ok(Err(error)) => drop(done.send(Err(error.to_string()))),
                Err(_) => drop(done.send(Err("the server does not answer".to_owned()))),
            }
        });
        is_done.recv().map_err(|_| "the thread for TLS has ended".to_owned())??;
        Ok(ours.into())
    }
}

fn pair() -> Result<(UnixStream, UnixStream), String> {
    UnixStream::pair().map_err(|error| error.to_string())
}

/// Carries data both ways, until the inside ends: it decides about deadlines. A peer that has ended still gets what is on its way.
async fn carry<S>(stream: &mut S, inside: UnixStream)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let inside = inside.set_nonblocking(true).and_then(|()| tokio::net::UnixStream::from_std(inside));
    let Ok(mut inside) = inside else { return };
    let ((mut from_peer, mut to_peer), (mut from_inside, mut to_inside)) = (tokio::io::split(stream), inside.split());
    let inbound = async {
        // How a connection ends is told where its protocol is known.
        let _ = copy(&mut from_peer, &mut to_inside, Duration::MAX).await;
        let _ = to_inside.shutdown().await;
        std::future::pending().await
    };
    let outbound = async {
        let _ = copy(&mut from_inside, &mut to_peer, STALL_MAX).await;
        let _ = timeout(GOODBYE_MAX, to_peer.shutdown()).await;
    };
    tokio::select! {
        () = inbound => {}
        () = outbound => {}
    }
}

/// Copies until the end, or until a write takes longer than `stall`.
async fn copy(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    stall: Duration,
) -> io::Result<()> {
    let mut buffer = Vec::new();
    if !reserve(&mut buffer, COPY_LEN) {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    buffer.resize(COPY_LEN, 0);
    loop {
        let length = from.read(&mut buffer).await?;
        if length == 0 {
            return Ok(());
        }
        let write = async {
            to.write_all(&buffer[..length]).await?;
            to.flush().await
        };
        timeout(stall, write).await??;
    }
}

/// Number of connections, and the event that there is none any more.
static LIVE: AtomicUsize = AtomicUsize::new(0);
static NONE_LEFT: Notify = Notify::const_new();

/// A connection, as long as it is there.
struct Live;

impl Live {
    fn new() -> Live {
        LIVE.fetch_add(1, Ordering::Relaxed);
        Live
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        if LIVE.fetch_sub(1, Ordering::Relaxed) == 1 {
            NONE_LEFT.notify_waiters();
        }
    }
}

/// Waits until connections have sent what they had, at most until `deadline`: their insides have ended.
pub async fn finish(deadline: Instant) {
    let mut none_left = pin!(NONE_LEFT.notified());
    // From here on no end is missed.
    none_left.as_mut().enable();
    if LIVE.load(Ordering::Relaxed) > 0 {
        let _ = timeout_at(deadline.into(), none_left).await;
    }
}

/// The runtime of all connections with TLS, in one thread.
fn runtime() -> Result<&'static Handle, String> {
    static RUNTIME: OnceLock<Result<Handle, String>> = OnceLock::new();
    let start = || -> io::Result<Handle> {
        let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
        let handle = runtime.handle().clone();
        thread::Builder::new().name("tls".to_owned()).spawn(move || runtime.block_on(std::future::pending::<()>()))?;
        Ok(handle)
    };
    RUNTIME
        .get_or_init(|| start().map_err(|error| format!("the thread for TLS cannot start: {error}")))
        .as_ref()
        .map_err(String::clone)
}

/// CPU time of a connection in the thread for TLS, and who gets it.
#[derive(Default)]
pub(crate) struct Meter {
    state: Mutex<(Duration, Option<Charge>)>,
}

type Charge = Box<dyn Fn(Duration) + Send>;

impl Meter {
    /// Passes on what was used, and from now on what will be.
    pub(crate) fn charge_to(&self, charge: impl Fn(Duration) + Send + 'static) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).1 = Some(Box::new(charge));
    }

    fn add(&self, used: Duration) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.0 += used;
        let (used, charge) = &*state;
        if let Some(charge) = charge.as_ref().filter(|_| *used >= CHARGE_AT) {
            charge(*used);
            state.0 = Duration::ZERO;
        }
    }
}

async fn metered(meter: Arc<Meter>, future: impl Future<Output = ()>) {
    let mut future = pin!(future);
    std::future::poll_fn(|context| {
        let began = thread_time();
        let polled = future.as_mut().poll(context);
        meter.add(thread_time().saturating_sub(began));
        polled
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_exports_may_end_with_a_star() {
        let some = |names: &[&str]| Allowed::Some(names.iter().map(|name| (*name).to_owned()).collect());
        assert!(Allowed::All.has("db1/root") && some(&["db1/*"]).has("db1/root") && some(&["a", "b"]).has("b"));
        assert!(!some(&["db1/*"]).has("db10/root") && !some(&["db1"]).has("db1/root") && !some(&[]).has("a"));
    }

    #[test]
    fn what_is_no_certificate_is_refused_in_words() {
        let files = Files { certificate: Some(b"x"), key: Some(b"y"), authority: None };
        assert!(Server::new(&files, BTreeMap::new()).unwrap_err().contains("no certificate in PEM"));
        assert!(Client::new(&Files::default(), "node1").unwrap_err().contains("authority has no certificate"));
        assert_eq!(files.ends(), None);
    }

    #[test]
    fn a_meter_passes_on_what_was_used_before_it_was_known_whose_it_is() {
        let (meter, charged) = (Meter::default(), Arc::new(Mutex::new(Duration::ZERO)));
        meter.add(Duration::from_millis(5));
        let sum = Arc::clone(&charged);
        meter.charge_to(move |used| *sum.lock().unwrap() += used);
        meter.add(Duration::from_micros(1));
        assert_eq!(*charged.lock().unwrap(), Duration::from_micros(5001));
        meter.add(Duration::from_micros(1));
        assert_eq!(*charged.lock().unwrap(), Duration::from_micros(5001), "little is charged later");
    }
}
