//! Keys that a gateway shares with a node, and the proof that a side has one.

use std::fmt;

use ring::hmac;
use ring::rand::{SecureRandom as _, SystemRandom};

use super::{Challenge, Hello};

/// Length of a nonce in bytes.
pub const NONCE_LEN: usize = 32;
/// A random number that is used once.
pub type Nonce = [u8; NONCE_LEN];
/// Minimum length of a key in bytes.
pub const KEY_LEN_MIN: usize = 16;
/// Maximum length of the file of a key in bytes.
pub const KEY_LEN_MAX: usize = 4096;
/// What the proof is for: a key that is used elsewhere too gives nothing away.
const PURPOSE: &[u8] = b"sluicegate gateway 1\0";

/// The side that proves that it has the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Client,
    Server,
}

/// A key.
pub struct Key(hmac::Key);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

impl Key {
    /// A key from the contents of its file, without spaces and line ends around it.
    ///
    /// # Errors
    /// It is shorter than [`KEY_LEN_MIN`], or longer than [`KEY_LEN_MAX`].
    pub fn new(contents: &[u8]) -> Result<Key, String> {
        let bytes = contents.trim_ascii();
        match bytes.len() {
            KEY_LEN_MIN..=KEY_LEN_MAX => Ok(Key(hmac::Key::new(hmac::HMAC_SHA256, bytes))),
            len => Err(format!(
                "the key has {len} bytes and needs {KEY_LEN_MIN} to {KEY_LEN_MAX}: make one with `openssl rand -hex 32`"
            )),
        }
    }

    /// Whether both are of the same bytes.
    #[must_use]
    pub fn is_same(&self, other: &Key) -> bool {
        hmac::verify(&self.0, PURPOSE, hmac::sign(&other.0, PURPOSE).as_ref()).is_ok()
    }

    /// Returns the proof of a side.
    #[must_use]
    pub fn prove(&self, side: Side, hello: &Hello, challenge: &Challenge) -> Vec<u8> {
        hmac::sign(&self.0, &proven(side, hello, challenge)).as_ref().to_vec()
    }

    /// Whether it is the proof of a side. Takes the same time for each wrong one.
    #[must_use]
    pub fn verifies(&self, proof: &[u8], side: Side, hello: &Hello, challenge: &Challenge) -> bool {
        hmac::verify(&self.0, &proven(side, hello, challenge), proof).is_ok()
    }
}

fn proven(side: Side, hello: &Hello, challenge: &Challenge) -> Vec<u8> {
    let side: &[u8] = match side {
        Side::Client => b"client",
        Side::Server => b"server",
    };
    let hello = hello.encode();
    // Their lengths keep the parts apart.
    [PURPOSE, side, &(hello.len() as u64).to_be_bytes(), &hello, &challenge.encode()].concat()
}

/// Returns a nonce.
///
/// # Errors
/// The kernel has no randomness.
pub fn nonce() -> std::io::Result<Nonce> {
    let mut nonce = [0; NONCE_LEN];
    let filled = SystemRandom::new().fill(&mut nonce);
    filled.map(|()| nonce).map_err(|_| std::io::Error::other("the kernel has no random numbers"))
}

#[cfg(test)]
mod tests {
    use super::super::StartId;
    use super::*;

    #[test]
    fn a_proof_holds_for_its_side_and_what_both_have_said_alone() {
        let key = Key::new(b"0123456789abcdef0123456789abcdef\n").unwrap();
        let hello = |export: &str, nonce| Hello {
            gateway: "gw1".to_owned(),
            epoch: 1,
            nonce: [nonce; NONCE_LEN],
            export: export.to_owned(),
            vms: vec!["db1".to_owned()],
        };
        let challenge = |node: &str, nonce| Challenge {
            node: node.to_owned(),
            device: "nvme0".to_owned(),
            nonce: [nonce; NONCE_LEN],
            start: StartId::default(),
        };
        let (said, asked) = (hello("db1/root", 1), challenge("node1", 2));
        let proof = key.prove(Side::Client, &said, &asked);
        assert!(key.verifies(&proof, Side::Client, &said, &asked));
        let others = [
            (Side::Server, said.clone(), asked.clone()),
            (Side::Client, hello("db1/data", 1), asked.clone()),
            (Side::Client, hello("db1/root", 3), asked.clone()),
            (Side::Client, said.clone(), challenge("node2", 2)),
            (Side::Client, said.clone(), challenge("node1", 3)),
            (Side::Client, Hello { epoch: 2, ..said.clone() }, asked.clone()),
            (Side::Client, Hello { vms: vec!["web".to_owned()], ..said.clone() }, asked.clone()),
        ];
        for (side, said, asked) in others {
            assert!(!key.verifies(&proof, side, &said, &asked), "{side:?} {said:?} {asked:?}");
        }
        let other = Key::new(b"0123456789abcdef0123456789abcdeF").unwrap();
        assert!(!other.verifies(&proof, Side::Client, &said, &asked));
        assert!(!key.verifies(&[], Side::Client, &said, &asked));
        assert!(Key::new(b" short \n").unwrap_err().contains("5 bytes"));
    }
}
