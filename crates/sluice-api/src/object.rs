//! Names of what the daemon serves, and of what it serves from.

use core::convert::Infallible;
use core::fmt;
use core::str::FromStr;
use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

/// First part of the name of a NIC in its VM.
const NIC: &str = "nic/";
/// Stands for the VM in the names of devices. No VM has such a name.
const DEVICE: &str = "[device]";
/// Stands for the VM in the names of sockets that volumes share.
const SHARED: &str = "[nbd]";

/// An object. Its text is its name in commands and replies.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectId {
    /// `UPLINK`
    Uplink(String),
    /// `[device]/DEVICE`
    Device(String),
    /// A socket that volumes share: `[nbd]/SOCKET`.
    Socket(String),
    /// `VM/VOLUME`
    Volume { vm: String, volume: String },
    /// `VM/nic/NIC`
    Nic { vm: String, nic: String },
}

impl ObjectId {
    #[must_use]
    pub fn volume(vm: &str, volume: &str) -> ObjectId {
        ObjectId::Volume { vm: vm.to_owned(), volume: volume.to_owned() }
    }

    #[must_use]
    pub fn nic(vm: &str, nic: &str) -> ObjectId {
        ObjectId::Nic { vm: vm.to_owned(), nic: nic.to_owned() }
    }

    /// The volume or NIC that has this name in its VM: `VOLUME` or `nic/NIC`.
    #[must_use]
    pub fn of_vm(vm: &str, name: &str) -> ObjectId {
        name.strip_prefix(NIC).map_or_else(|| ObjectId::volume(vm, name), |nic| ObjectId::nic(vm, nic))
    }

    /// Both parts of its name: the VM or what stands for it, and the name in it, which of a NIC is `nic/NIC`.
    #[must_use]
    pub fn parts(&self) -> (&str, Cow<'_, str>) {
        match self {
            ObjectId::Uplink(uplink) => ("[uplink]", uplink.into()),
            ObjectId::Device(device) => (DEVICE, device.into()),
            ObjectId::Socket(socket) => (SHARED, socket.into()),
            ObjectId::Volume { vm, volume } => (vm, volume.into()),
            ObjectId::Nic { vm, nic } => (vm, format!("{NIC}{nic}").into()),
        }
    }

    /// The VM of a volume or NIC.
    #[must_use]
    pub fn vm(&self) -> Option<&str> {
        match self {
            ObjectId::Volume { vm, .. } | ObjectId::Nic { vm, .. } => Some(vm),
            ObjectId::Uplink(_) | ObjectId::Device(_) | ObjectId::Socket(_) => None,
        }
    }

    /// What it is called in the log.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            ObjectId::Uplink(_) => "Uplink",
            ObjectId::Device(_) => "Device",
            ObjectId::Socket(_) => "Socket",
            ObjectId::Volume { .. } => "Volume",
            ObjectId::Nic { .. } => "NIC",
        }
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (vm, name) = self.parts();
        match self {
            ObjectId::Uplink(uplink) => f.write_str(uplink),
            _ => write!(f, "{vm}/{name}"),
        }
    }
}

impl FromStr for ObjectId {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<ObjectId, Infallible> {
        Ok(match text.split_once('/') {
            None => ObjectId::Uplink(text.to_owned()),
            Some((DEVICE, device)) => ObjectId::Device(device.to_owned()),
            Some((SHARED, socket)) => ObjectId::Socket(socket.to_owned()),
            Some((vm, name)) => ObjectId::of_vm(vm, name),
        })
    }
}

impl PartialSchema for ObjectId {
    fn schema() -> RefOr<Schema> {
        let text = "UPLINK, VM/VOLUME or VM/nic/NIC; [device]/DEVICE; [nbd]/SOCKET for a socket that volumes share";
        ObjectBuilder::new().schema_type(Type::String).description(Some(text)).into()
    }
}

impl ToSchema for ObjectId {}

impl Serialize for ObjectId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ObjectId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ObjectId, D::Error> {
        let Ok(id) = String::deserialize(deserializer)?.parse();
        Ok(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_as_it_is_written() {
        for text in ["lan", "db/root", "db/nic/eth0", "[device]/nvme0", "[nbd]/unix:/run/a.sock"] {
            let Ok(id) = text.parse::<ObjectId>();
            assert_eq!(id.to_string(), text);
        }
        let nic = ObjectId::nic("db", "eth0");
        assert_eq!("db/nic/eth0".parse(), Ok(nic.clone()));
        assert_eq!(nic.parts(), ("db", "nic/eth0".into()));
    }
}
