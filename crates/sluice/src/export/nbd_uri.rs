//! `nbd-uri`: one NBD URI per line and volume. With `[nbd]` in the host file, volumes over vhost-user-blk are listed
//! as well, for backups.

use serde_json::json;
use sluice_config::ListenAddress;

use super::{ExportError, Parts, Reach, Rendered};

pub(crate) fn render(parts: &Parts<'_>) -> Result<Rendered, ExportError> {
    if parts.disks.is_empty() {
        return Err(ExportError::NoVolumes);
    }
    let uris = parts.disks.iter().map(|disk| match (disk.reach, disk.shared) {
        (Reach::Nbd { endpoint, name }, _) | (Reach::VhostUser { .. }, Some((endpoint, name))) => {
            Ok(uri(endpoint, name, disk.needs_tls(endpoint)))
        }
        (Reach::VhostUser { .. }, None) => Err(ExportError::NotNbd { title: disk.title.clone() }),
    });
    let uris = uris.collect::<Result<Vec<String>, ExportError>>()?;
    Ok(Rendered { text: uris.join("\n"), fields: vec![("uris", json!(uris))] })
}

fn uri(endpoint: &ListenAddress, name: &str, tls: bool) -> String {
    // The slash is kept for readability; URIs allow it in a path.
    let name = escaped(name);
    match endpoint {
        ListenAddress::Unix { path, .. } => format!("nbd+unix:///{name}?socket={}", escaped(super::text(path))),
        ListenAddress::Tcp(address) if tls => format!("nbds://{address}/{name}"),
        ListenAddress::Tcp(address) => format!("nbd://{address}/{name}"),
    }
}

/// Percent-encodes as in RFC 3986, except for `/`.
fn escaped(value: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    let encode = |byte: u8| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    value.bytes().map(encode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_names_are_written_as_uris() {
        let unix = |path: &str| ListenAddress::Unix { path: path.into(), owner: None, group: None, mode: 0o660 };
        assert_eq!(
            uri(&unix("/run/a b&c.sock"), "db1/röot", false),
            "nbd+unix:///db1/r%C3%B6ot?socket=/run/a%20b%26c.sock"
        );
        let address = ListenAddress::Tcp("[::1]:10809".parse().unwrap());
        assert_eq!(uri(&address, "a?b", false), "nbd://[::1]:10809/a%3Fb");
        assert_eq!(uri(&address, "a", true), "nbds://[::1]:10809/a");
    }
}
