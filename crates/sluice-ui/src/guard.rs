//! Which requests are answered, and the headers of every answer.
//!
//! A port can be reached by all users of the host. So the link has a key that works once, and the browser gets a cookie for it, which it
//! sends for pages of this address alone. A Unix socket can be reached by the proxy that may open its file, which asks browsers for a login.
//!
//! Both can be reached by every site that a browser shows. So
//! - the host that is asked for must be this one, so that no other name can be bound to this address;
//! - a change must come from a page of this address;
//! - pages have no code but the script of this address, and cannot be shown within other pages.

use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::{Request, State};
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{Html, IntoResponse, Response};
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};

use sluice_http::Permit;

use crate::assets;
use crate::failure::Failure;
use crate::server::Shared;

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Headers of every answer.
const HEADERS: [(HeaderName, HeaderValue); 6] = [
    (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    (HeaderName::from_static("cross-origin-opener-policy"), HeaderValue::from_static("same-origin")),
    (HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin")),
];

/// Who may open pages.
#[derive(Debug)]
pub(crate) enum Access {
    /// The browser that has opened the link to a port of 127.0.0.1.
    Link(Secrets),
    /// Everyone whom the proxy lets through to a Unix socket, as a page of these names.
    Proxy { hosts: Vec<String> },
}

/// The secrets of a process: 256 random bits each.
#[derive(Debug)]
pub(crate) struct Secrets {
    /// Key of the link, until it was used.
    key: Mutex<Option<String>>,
    session: String,
    port: u16,
}

/// A request, or why it is not answered.
#[derive(Debug, PartialEq)]
enum Verdict {
    Pass,
    /// The right key: the browser gets this cookie.
    Welcome(String),
    Refuse(Failure),
}

/// Returns 256 random bits as text.
fn random() -> std::io::Result<String> {
    let mut bytes = [0; 32];
    SystemRandom::new().fill(&mut bytes).map_err(|_| std::io::Error::other("No random numbers from the kernel"))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Whether both are the same. The time tells nothing about how much of them is, because their digests are compared.
fn same(one: &str, other: &str) -> bool {
    digest(&SHA256, one.as_bytes()).as_ref() == digest(&SHA256, other.as_bytes()).as_ref()
}

impl Secrets {
    /// Returns the secrets, and the key of the link.
    pub(crate) fn new(port: u16) -> std::io::Result<(Secrets, String)> {
        let key = random()?;
        Ok((Secrets { key: Mutex::new(Some(key.clone())), session: random()?, port }, key))
    }

    /// Name of the cookie. Cookies of all ports of a host are sent to each, so it has the port.
    fn cookie(&self) -> String {
        format!("sluice-ui-{}", self.port)
    }

    fn set_cookie(&self) -> String {
        format!("{}={}; HttpOnly; SameSite=Strict; Path=/", self.cookie(), self.session)
    }

    /// Whether this is the key of the link, which is used up then.
    fn takes(&self, key: &str) -> bool {
        let mut unused = self.key.lock().unwrap_or_else(PoisonError::into_inner);
        let is_right = unused.as_ref().is_some_and(|right| same(right, key));
        if is_right {
            *unused = None;
        }
        is_right
    }

    /// Whether a request has the cookie.
    fn knows(&self, headers: &HeaderMap) -> bool {
        let name = self.cookie();
        let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut pairs = cookies.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.trim().split_once('='));
        pairs.any(|(cookie, value)| cookie == name && same(value, &self.session))
    }

    /// What a request gets instead of its answer, if it has no cookie.
    fn stop(&self, request: &Request) -> Option<Verdict> {
        if self.knows(request.headers()) {
            return None;
        }
        let key = request.uri().query().and_then(|query| query.strip_prefix("key="));
        match key.filter(|_| request.method() == Method::GET && request.uri().path() == "/") {
            Some(key) if self.takes(key) => Some(Verdict::Welcome(self.set_cookie())),
            Some(_) => Some(refuse(
                StatusCode::FORBIDDEN,
                "This link was used already",
                "The key of a link works once. End `sluice ui` with Ctrl-C, start it again, and open the new link.",
            )),
            None => Some(refuse(
                StatusCode::UNAUTHORIZED,
                "This page needs the link of `sluice ui`",
                "Open the link that `sluice ui` has printed, in this browser. It works once; start `sluice ui` again for a new one.",
            )),
        }
    }
}

impl Access {
    fn judge(&self, request: &Request) -> Verdict {
        let headers = request.headers();
        let Some(host) = self.host(headers) else {
            return refuse(StatusCode::MISDIRECTED_REQUEST, "This address is not served", self.addresses());
        };
        if request.uri().path().starts_with(assets::FOLDER) {
            return Verdict::Pass;
        }
        if let Access::Link(secrets) = self
            && let Some(verdict) = secrets.stop(request)
        {
            return verdict;
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) && !is_own(headers, self.schemes(), host) {
            return refuse(
                StatusCode::FORBIDDEN,
                "The request comes from another site",
                "Changes are made by forms of this page alone. Open the page, and send its form.",
            );
        }
        Verdict::Pass
    }

    /// Whether a request comes from one who may open pages.
    fn knows(&self, headers: &HeaderMap) -> bool {
        match self {
            Access::Link(secrets) => secrets.knows(headers),
            Access::Proxy { .. } => true,
        }
    }

    /// The host that is asked for, if it is this one.
    fn host<'a>(&self, headers: &'a HeaderMap) -> Option<&'a str> {
        let mut hosts = headers.get_all(header::HOST).iter();
        let host = hosts.next()?.to_str().ok()?;
        // A browser leaves the usual port out.
        let is_own = match self {
            Access::Link(Secrets { port, .. }) => ["127.0.0.1", "localhost"]
                .into_iter()
                .any(|name| host == format!("{name}:{port}") || *port == 80 && host == name),
            Access::Proxy { hosts } => {
                let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
                let name = host.rsplit_once(':').filter(|(_, port)| is_port(port)).map_or(host, |(name, _)| name);
                hosts.iter().any(|own| own.eq_ignore_ascii_case(name) || own.eq_ignore_ascii_case(host))
            }
        };
        (is_own && hosts.next().is_none()).then_some(host)
    }

    /// Schemes of the addresses of its pages.
    fn schemes(&self) -> &'static [&'static str] {
        match self {
            Access::Link(_) => &["http"],
            Access::Proxy { .. } => &["http", "https"],
        }
    }

    /// What to open instead of another address.
    fn addresses(&self) -> String {
        match self {
            Access::Link(Secrets { port, .. }) => format!(
                "Use http://127.0.0.1:{port} or http://localhost:{port}, also through `ssh -L {port}:127.0.0.1:{port}`."
            ),
            Access::Proxy { hosts } => format!(
                "The names of this page are: {}. The proxy must pass on the header `Host`; `--host` of `sluice ui` adds a name.",
                hosts.join(", ")
            ),
        }
    }
}

fn refuse(status: StatusCode, title: &str, detail: impl Into<String>) -> Verdict {
    Verdict::Refuse(Failure::new(status, title, detail))
}

/// Whether a request that changes something comes from a page of this host. A browser states the relation of the sites, but older ones only the
/// origin, which is `null` for a page that sends no referrer.
fn is_own(headers: &HeaderMap, schemes: &[&str], host: &str) -> bool {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let is_here = |origin: &str| schemes.iter().any(|scheme| origin == format!("{scheme}://{host}"));
    match (text("sec-fetch-site"), text("origin")) {
        (Some(site), Some(origin)) => site == "same-origin" && (origin == "null" || is_here(origin)),
        (Some(site), None) => site == "same-origin",
        (None, Some(origin)) => is_here(origin),
        (None, None) => false,
    }
}

/// Answers a request, or refuses it.
pub(crate) async fn guard(State(shared): State<Shared>, request: Request, next: Next) -> Response {
    let connection = request.extensions().get::<Arc<Permit>>().cloned();
    let mut answer = match shared.access.judge(&request) {
        Verdict::Pass => {
            connection.iter().filter(|_| shared.access.knows(request.headers())).for_each(|permit| permit.set_known());
            next.run(request).await
        }
        Verdict::Welcome(cookie) => welcome(cookie),
        Verdict::Refuse(failure) => failure.into_response(),
    };
    HEADERS.into_iter().for_each(|(name, value)| drop(answer.headers_mut().insert(name, value)));
    answer
}

/// The page after the link. It leads to the overview from this site: after a redirect from another site the cookie would not be sent.
fn welcome(cookie: String) -> Response {
    let page = "<!DOCTYPE html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>Sluicegate</title>\
                <meta http-equiv=\"refresh\" content=\"0; url=/\"></head><body><main><p><a href=\"/\">Go to the overview</a></p></main></body></html>";
    ([(header::SET_COOKIE, cookie)], Html(page)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    fn link(port: u16) -> (Access, String) {
        let (secrets, key) = Secrets::new(port).unwrap();
        (Access::Link(secrets), key)
    }

    /// The cookie that the browser gets for the key of a link.
    fn cookie(access: &Access, key: &str) -> String {
        let Verdict::Welcome(set) = access.judge(&request("GET", &format!("/?key={key}"), &[])) else {
            panic!("{key}")
        };
        assert!(set.ends_with("; HttpOnly; SameSite=Strict; Path=/"), "{set}");
        set.split(';').next().unwrap().to_owned()
    }

    fn request(method: &str, uri: &str, headers: &[(&str, &str)]) -> Request {
        let request = Request::builder().method(method).uri(uri).header("host", "127.0.0.1:4000");
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        request.body(Body::empty()).unwrap()
    }

    fn status(verdict: Verdict) -> u16 {
        match verdict {
            Verdict::Pass => 200,
            Verdict::Welcome(_) => 201,
            Verdict::Refuse(failure) => failure.status.as_u16(),
        }
    }

    #[test]
    fn the_key_of_a_link_works_once_and_gives_a_cookie() {
        let (access, key) = link(4000);
        let link = format!("/?key={key}");
        let judge =
            |method: &str, uri: &str, headers: &[(&str, &str)]| status(access.judge(&request(method, uri, headers)));
        assert_eq!(judge("GET", "/", &[]), 401);
        assert_eq!(judge("GET", "/?key=00", &[]), 403);
        assert_eq!(judge("HEAD", &link, &[]), 401, "a look at the link does not use it up");
        let cookie = cookie(&access, &key);
        assert_eq!(judge("GET", &link, &[]), 403, "once");
        assert_eq!(judge("GET", "/vms", &[("cookie", &format!("a=b; {cookie}"))]), 200);
        assert_eq!(judge("GET", &link, &[("cookie", &cookie)]), 200, "the link again in the browser that has used it");
        assert_eq!(judge("GET", "/vms", &[("cookie", "sluice-ui-4000=0")]), 401);
        assert_eq!(judge("GET", "/assets/ui.css", &[]), 200);
    }

    #[test]
    fn another_host_is_refused() {
        let (access, _) = link(4000);
        for host in ["evil.example:4000", "127.0.0.1", "127.0.0.1:4001", "localhost.evil.example:4000", ""] {
            let mut request = request("GET", "/", &[]);
            request.headers_mut().insert("host", host.parse().unwrap());
            assert_eq!(status(access.judge(&request)), 421, "{host}");
        }
        assert_eq!(status(access.judge(&request("GET", "/", &[("host", "localhost:4000")]))), 421, "two hosts");
        let mut none = request("GET", "/", &[]);
        none.headers_mut().remove("host");
        assert_eq!(status(access.judge(&none)), 421);
        none.headers_mut().insert("host", "localhost:4000".parse().unwrap());
        assert_eq!(status(access.judge(&none)), 401);
    }

    #[test]
    fn the_usual_port_of_http_may_be_left_out() {
        let (access, _) = link(80);
        for (host, expected) in [("127.0.0.1", 401), ("localhost", 401), ("localhost:80", 401), ("evil.example", 421)] {
            let mut request = request("GET", "/", &[]);
            request.headers_mut().insert("host", host.parse().unwrap());
            assert_eq!(status(access.judge(&request)), expected, "{host}");
        }
    }

    #[test]
    fn a_change_from_another_site_is_refused() {
        let (access, key) = link(4000);
        let cookie = cookie(&access, &key);
        let post = |headers: &[(&str, &str)]| {
            let headers = [headers, &[("cookie", cookie.as_str())]].concat();
            status(access.judge(&request("POST", "/vms/a", &headers)))
        };
        let (own, site) = ("http://127.0.0.1:4000", "sec-fetch-site");
        assert_eq!(post(&[]), 403, "it states nothing");
        assert_eq!(post(&[("origin", own)]), 200);
        assert_eq!(post(&[("origin", "null"), (site, "same-origin")]), 200);
        assert_eq!(post(&[("origin", "null")]), 403);
        assert_eq!(post(&[("origin", "http://127.0.0.1:4001"), (site, "same-site")]), 403);
        assert_eq!(post(&[("origin", own), (site, "cross-site")]), 403);
        assert_eq!(post(&[("origin", "http://localhost:4000")]), 403, "the other name of the host");
    }
    #[test]
    fn a_proxy_needs_no_key_and_passes_on_the_name_of_the_page() {
        let access =
            Access::Proxy { hosts: vec!["ui.example.org".to_owned(), "[fd00::1]".to_owned(), "a:81".to_owned()] };
        let judge = |method: &str, host: &str, headers: &[(&str, &str)]| {
            let mut request = request(method, "/vms", headers);
            request.headers_mut().insert("host", host.parse().unwrap());
            assert!(access.knows(request.headers()));
            status(access.judge(&request))
        };
        for host in ["ui.example.org", "UI.example.org", "ui.example.org:8443", "[fd00::1]", "[fd00::1]:443", "a:81"] {
            assert_eq!(judge("GET", host, &[]), 200, "{host}");
        }
        for host in
            ["evil.example", "ui.example.org.evil.example", "ui.example.org:a", "127.0.0.1", "[fd00", "a", "a:82", ""]
        {
            assert_eq!(judge("GET", host, &[]), 421, "{host}");
        }
        let (host, site) = ("ui.example.org", "sec-fetch-site");
        assert_eq!(judge("POST", host, &[]), 403, "it states nothing");
        for origin in ["http://ui.example.org", "https://ui.example.org"] {
            assert_eq!(judge("POST", host, &[("origin", origin)]), 200);
            assert_eq!(judge("POST", host, &[("origin", origin), (site, "cross-site")]), 403);
            assert_eq!(judge("POST", "ui.example.org:8443", &[("origin", origin)]), 403, "another port");
        }
        assert_eq!(judge("POST", host, &[("origin", "null"), (site, "same-origin")]), 200);
        assert_eq!(judge("POST", host, &[("origin", "https://[fd00::1]")]), 403, "the other name of the page");
    }
}
