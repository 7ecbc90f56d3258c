//! A private option: a gateway makes itself known to a storage node, and tells with each request what its VM was served elsewhere.
//!
//! A VM whose volumes lie on several nodes has one policy, which each node enforces: dmClock, \[mclock\] 3.2. A gateway is the daemon on the
//! VM's host, and counts for all its volumes ([`sluice_sched::tracker`]).
//!
//! | file | contents |
//! |---|---|
//! | `mod` | the two options of the handshake, and what a session is |
//! | [`proof`] | keys, and the proof that both sides have one |
//! | [`record`] | what goes with each request and each reply |
//! | [`count`] | what a VM is served, at the gateway |
//! | [`sessions`] | which gateway serves a VM at this node |
//!
//! ```text
//!     client                                               server
//!       HELLO  gateway, epoch, nonce, export, VMs   --->
//!              <--- CHALLENGE  node, device, nonce, start
//!       PROOF  HMAC(key, "client", HELLO, CHALLENGE) --->
//!              <--- CONFIRMED  HMAC(key, "server", HELLO, CHALLENGE)
//!       GO     the same export                       --->
//! ```
//!
//! A server that does not know the option refuses it, as the protocol requires. Both proofs cover both nonces, the node's name and the export,
//! so that a node cannot pass on the challenge of another one. They authenticate the two sides, once: what follows is neither encrypted nor
//! signed, for which there is TLS.
//!
//! After `GO` every request is followed by a [`record::RequestRecord`], and the header of every reply, which is a simple one, by a
//! [`record::ReplyRecord`]; data come after them.

pub mod count;
pub mod proof;
pub mod record;
pub mod sessions;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::options::{Fields, OptionError, put_string};
use proof::{Key, NONCE_LEN, Nonce};

/// Codes of the options and of their replies: "SLG" and a number.
pub const OPTION_HELLO: u32 = 0x534c_4701;
pub const OPTION_PROOF: u32 = 0x534c_4702;
pub const REPLY_CHALLENGE: u32 = 0x534c_4703;
pub const REPLY_CONFIRMED: u32 = 0x534c_4704;
/// Version of all messages. A server refuses another one.
const VERSION: u16 = 1;
/// Maximum number of VMs of a handshake.
const VMS_MAX: u16 = 1024;

/// What tells whether a server may have lost writes that it has confirmed: it has not while this stays the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StartId(pub [u8; 16]);

/// A random number of this process.
#[derive(Debug)]
pub struct ProcessId([u8; 16]);

impl ProcessId {
    /// Another one each time.
    #[must_use]
    pub fn random() -> ProcessId {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos().to_be_bytes();
        ProcessId(proof::nonce().ok().and_then(|nonce| nonce.first_chunk().copied()).unwrap_or_else(now))
    }
}

impl StartId {
    /// The start of the kernel with this boot id, and of a process.
    #[must_use]
    pub fn of(boot_id: &str, process: Option<&ProcessId>) -> StartId {
        let digits = boot_id.chars().filter(|c| *c != '-').collect::<String>();
        let boot = u128::from_str_radix(digits.trim(), 16).unwrap_or(0).to_be_bytes();
        let process = process.map_or([0; 16], |process| process.0);
        StartId(std::array::from_fn(|at| boot[at] ^ process[at]))
    }
}

/// First message of a gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// Name of the gateway.
    pub gateway: String,
    /// Since when it serves the VM, in microseconds of the Unix epoch: of two gateways the later one holds. 0: the key is only tried, and the
    /// client chooses its export as any other.
    pub epoch: u64,
    pub nonce: Nonce,
    /// Name of the export; empty for the default export.
    pub export: String,
    /// Names of the VMs whose requests come over this connection, by which a record numbers them.
    pub vms: Vec<String>,
}

/// Answer of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Challenge {
    /// Name of the node.
    pub node: String,
    /// Name of the export's device there: each has a scheduler of its own.
    pub device: String,
    pub nonce: Nonce,
    pub start: StartId,
}

/// How a server answers a gateway whose key it has.
#[derive(Debug)]
pub struct Admission {
    pub key: Arc<Key>,
    pub challenge: Challenge,
    /// The VM of the export.
    pub vm: String,
}

/// What both sides have agreed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    pub gateway: String,
    pub epoch: u64,
    /// The VM of the export, and its number in the list of the handshake.
    pub vm: (String, u16),
    /// Node and device of the server.
    pub server: (String, String),
    pub start: StartId,
}

impl Hello {
    /// Returns the payload of the option.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = VERSION.to_be_bytes().to_vec();
        out.extend_from_slice(&self.epoch.to_be_bytes());
        out.extend_from_slice(&self.nonce);
        put_string(&mut out, &self.gateway);
        put_string(&mut out, &self.export);
        out.extend_from_slice(&(self.vms.len() as u16).to_be_bytes());
        self.vms.iter().for_each(|vm| put_string(&mut out, vm));
        out
    }

    /// Parses the payload of the option.
    ///
    /// # Errors
    /// [`OptionError`], for the error reply.
    pub fn parse(payload: &[u8]) -> Result<Hello, OptionError> {
        let mut fields = Fields(payload);
        if fields.u16()? != VERSION {
            return Err(OptionError::OtherVersion);
        }
        let (epoch, nonce) = (fields.u64()?, nonce(&mut fields)?);
        let (gateway, export) = (fields.name()?.to_owned(), fields.name()?.to_owned());
        let count = fields.u16()?;
        if count > VMS_MAX {
            return Err(OptionError::StringTooLong);
        }
        let vms = (0..count).map(|_| fields.name().map(str::to_owned)).collect::<Result<_, _>>()?;
        fields.end()?;
        Ok(Hello { gateway, epoch, nonce, export, vms })
    }
}

impl Challenge {
    /// Returns the payload of the reply.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = VERSION.to_be_bytes().to_vec();
        out.extend_from_slice(&self.nonce);
        out.extend_from_slice(&self.start.0);
        put_string(&mut out, &self.node);
        put_string(&mut out, &self.device);
        out
    }

    /// Parses the payload of the reply.
    ///
    /// # Errors
    /// [`OptionError`]: the server is of another version, or none of ours.
    pub fn parse(payload: &[u8]) -> Result<Challenge, OptionError> {
        let mut fields = Fields(payload);
        if fields.u16()? != VERSION {
            return Err(OptionError::OtherVersion);
        }
        let nonce = nonce(&mut fields)?;
        let start = StartId(*fields.take(16)?.first_chunk().expect("as many were taken"));
        let (node, device) = (fields.name()?.to_owned(), fields.name()?.to_owned());
        fields.end()?;
        Ok(Challenge { node, device, nonce, start })
    }
}

fn nonce(fields: &mut Fields<'_>) -> Result<Nonce, OptionError> {
    Ok(*fields.take(NONCE_LEN)?.first_chunk().expect("as many were taken"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_is_that_of_the_kernel_and_maybe_of_the_process() {
        let (one, other) = ("3f2a4b5c-0000-4000-8000-0123456789ab\n", "3f2a4b5c-0000-4000-8000-0123456789ac\n");
        let (this, next) = (ProcessId([1; 16]), ProcessId([2; 16]));
        assert_eq!(StartId::of(one, None), StartId::of(one, None));
        let all = [(one, None), (other, None), (one, Some(&this)), (one, Some(&next))];
        let all = all.map(|(boot, process)| StartId::of(boot, process));
        for (at, start) in all.iter().enumerate() {
            assert!(!all[..at].contains(start), "{at}");
        }
    }

    #[test]
    fn messages_are_read_as_they_are_written_and_not_otherwise() {
        let vms = vec!["db1".to_owned(), "web".to_owned()];
        let (gateway, export) = ("gw1".to_owned(), "db1/root".to_owned());
        let hello = Hello { gateway, epoch: 7 << 40, nonce: [3; NONCE_LEN], export, vms };
        let bytes = hello.encode();
        assert_eq!(Hello::parse(&bytes).unwrap(), hello);
        let (node, device) = ("node1".to_owned(), "nvme0".to_owned());
        let challenge = Challenge { node, device, nonce: [4; NONCE_LEN], start: StartId([5; 16]) };
        let answer = challenge.encode();
        assert_eq!(Challenge::parse(&answer).unwrap(), challenge);
        for len in 0..bytes.len() {
            assert_eq!(Hello::parse(&bytes[..len]), Err(OptionError::Truncated), "{len}");
        }
        assert_eq!(Hello::parse(&[&bytes[..], &[0]].concat()), Err(OptionError::TrailingBytes));
        assert_eq!(Hello::parse(&[&[0, 2], &bytes[2..]].concat()), Err(OptionError::OtherVersion));
        assert_eq!(Challenge::parse(&[&[0, 2], &answer[2..]].concat()), Err(OptionError::OtherVersion));
    }
}
