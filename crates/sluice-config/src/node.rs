//! Other NBD servers: their addresses, and exports there.
//!
//! ```text
//!     device   path = "nbd://10.0.0.7:10809"            "nbd+unix:/run/node.sock"
//!     volume   source = "nbd://10.0.0.7:10809/db1/root" "nbd+unix:///db1/root?socket=/run/node.sock"
//! ```
//!
//! Both forms of a source are those of the NBD project's URIs.

use core::fmt;
use core::str::FromStr;
use std::path::{Path, PathBuf};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::quantity::Misread;

/// Port of a server whose address states none.
const PORT: u16 = 10_809;
/// Maximum length of the name of an export in bytes, as the NBD protocol has it.
const NAME_LEN_MAX: usize = 4096;
/// Characters of an export's name that a URI encodes.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The address of another NBD server.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeAddress {
    /// A host name or an IP address, and a port.
    Tcp(String, u16),
    /// An absolute path.
    Unix(PathBuf),
}

/// An export of another NBD server.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeExport {
    pub node: NodeAddress,
    /// May be empty: the server's default.
    pub name: String,
}

impl NodeAddress {
    /// Whether a text is meant as such an address, or as an export there, and not as a path.
    pub(crate) fn is_meant(text: &str) -> bool {
        text.starts_with("nbd:") || text.starts_with("nbd+") || text.starts_with("nbds")
    }
}

fn misread(what: String, hint: &str) -> Misread {
    Misread { what, hint: hint.to_owned() }
}

const ADDRESS_HINT: &str = "write nbd://HOST:PORT or nbd+unix:/PATH/OF/SOCKET";

impl FromStr for NodeAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        NodeAddress::read(text).map_err(|misread| misread.what)
    }
}

impl NodeAddress {
    pub(crate) fn read(text: &str) -> Result<Self, Misread> {
        let wrong = || misread(format!("'{text}' is no address of an NBD server"), ADDRESS_HINT);
        if let Some(path) = text.strip_prefix("nbd+unix:") {
            return if path.starts_with('/') && !path.starts_with("//") {
                Ok(NodeAddress::Unix(path.into()))
            } else {
                Err(wrong())
            };
        }
        let rest = text.strip_prefix("nbd://").ok_or_else(wrong)?;
        if let Some((_, export)) = rest.split_once('/').filter(|(_, export)| !export.is_empty()) {
            let what = format!("'{text}' names the export '{export}'");
            return Err(misread(what, "a device is a server: write the export as the source of a volume"));
        }
        host_and_port(rest.trim_end_matches('/')).ok_or_else(wrong)
    }
}

/// An address as in a URI; IPv6 addresses are in brackets.
fn host_and_port(text: &str) -> Option<NodeAddress> {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()?),
        _ => (text, PORT),
    };
    let bare = host.strip_prefix('[').map_or(Some(host), |host| host.strip_suffix(']'))?;
    let fits = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c) || bare != host && ":%".contains(c);
    (!bare.is_empty() && bare.chars().all(fits) && port > 0).then(|| NodeAddress::Tcp(bare.to_owned(), port))
}

impl fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeAddress::Tcp(host, port) if host.contains(':') => write!(f, "nbd://[{host}]:{port}"),
            NodeAddress::Tcp(host, port) => write!(f, "nbd://{host}:{port}"),
            NodeAddress::Unix(path) => write!(f, "nbd+unix:{}", path.display()),
        }
    }
}

const SOURCE_HINT: &str = "write nbd://HOST:PORT/EXPORT or nbd+unix:///EXPORT?socket=/PATH/OF/SOCKET";

impl NodeExport {
    pub(crate) fn read(text: &str) -> Result<Self, Misread> {
        let wrong = || misread(format!("'{text}' is no URI of an NBD export"), SOURCE_HINT);
        let (node, name) = match text.strip_prefix("nbd+unix:///") {
            Some(rest) => {
                let (name, socket) = rest.split_once("?socket=").ok_or_else(wrong)?;
                let socket = percent_decode_str(socket).decode_utf8().map_err(|_| wrong())?;
                let is_path = Path::new(&*socket).is_absolute();
                (is_path.then(|| NodeAddress::Unix(PathBuf::from(&*socket))), name)
            }
            None => {
                let rest = text.strip_prefix("nbd://").ok_or_else(wrong)?;
                let (server, name) = rest.split_once('/').unwrap_or((rest, ""));
                (host_and_port(server), name)
            }
        };
        let name = percent_decode_str(name).decode_utf8().map_err(|_| wrong())?.into_owned();
        match node {
            Some(node) if name.len() <= NAME_LEN_MAX && !name.contains(['?', '\0']) => Ok(NodeExport { node, name }),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for NodeExport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = utf8_percent_encode(&self.name, ENCODED);
        match &self.node {
            node @ NodeAddress::Tcp(..) => write!(f, "{node}/{name}"),
            NodeAddress::Unix(path) => write!(f, "nbd+unix:///{name}?socket={}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_exports_are_read_as_they_are_written() {
        for text in ["nbd://10.0.0.7:10809", "nbd://[fe80::1%eth0]:99", "nbd+unix:/run/a b.sock", "nbd://node-1.lan:1"]
        {
            assert_eq!(NodeAddress::read(text).unwrap().to_string(), text);
        }
        for text in
            ["nbd://h:1/db1/root", "nbd+unix:///a%20b?socket=/run/n.sock", "nbd://[::1]:2/", "nbd+unix:///?socket=/s"]
        {
            assert_eq!(NodeExport::read(text).unwrap().to_string(), text);
        }
        let export = NodeExport::read("nbd://h/x").unwrap();
        assert_eq!((export.node, export.name.as_str()), (NodeAddress::Tcp("h".to_owned(), PORT), "x"));
    }

    #[test]
    fn what_is_no_address_is_refused_with_what_to_write() {
        for text in ["nbd:h:1", "nbd://", "nbd://h:0", "nbd://h:99999", "nbd://a b:1", "nbd+unix:run", "nbds://h:1"] {
            let refused = NodeAddress::read(text).unwrap_err();
            assert_eq!(refused.hint, ADDRESS_HINT, "{text}");
        }
        let refused = NodeAddress::read("nbd://h:1/x").unwrap_err();
        assert!(refused.what.contains("names the export 'x'"), "{}", refused.what);
        for text in ["nbd+unix:///x", "nbd+unix:///x?socket=s", "nbd://:1/x", "/srv/x", "nbd://h:1/a?b"] {
            assert_eq!(NodeExport::read(text).unwrap_err().hint, SOURCE_HINT, "{text}");
        }
    }
}
