//! The options of a gateway: what it says, the proof of its key, and the answer.

use super::{Exports, Gateway, Handshake, Step, refuse, refuse_payload, reply};
use crate::nbd::gateway::proof::{Key, Side};
use crate::nbd::gateway::{Admission, Hello, Known, OPTION_HELLO, OPTION_PROOF, REPLY_CHALLENGE, REPLY_CONFIRMED};
use crate::nbd::options::OptionError;
use crate::nbd::wire::option_reply;

impl<'a, E: Exports + ?Sized> Handshake<'a, E> {
    pub(super) fn hello(&mut self, payload: &[u8], out: &mut Vec<u8>) {
        if matches!(self.gateway, Gateway::Known(..)) {
            return refuse(out, OPTION_HELLO, option_reply::ERR_INVALID, "The gateway is known already");
        }
        self.gateway = Gateway::No;
        if self.structured_replies {
            return refuse(out, OPTION_HELLO, option_reply::ERR_INVALID, "A gateway gets simple replies");
        }
        let hello = match Hello::parse(payload) {
            Ok(hello) => hello,
            Err(error @ OptionError::OtherVersion) => {
                return refuse(out, OPTION_HELLO, option_reply::ERR_POLICY, &error.to_string());
            }
            Err(error) => return refuse_payload(out, OPTION_HELLO, error),
        };
        if self.resolve(&hello.export).is_none() {
            return refuse(out, OPTION_HELLO, option_reply::ERR_UNKNOWN, "There is no such export");
        }
        match self.exports.challenge(&hello) {
            Ok(admission) => {
                reply(out, OPTION_HELLO, REPLY_CHALLENGE, &[&admission.challenge.encode()]);
                reply(out, OPTION_HELLO, option_reply::ACK, &[]);
                self.gateway = Gateway::Asked(Box::new((hello, admission)));
            }
            Err(Some(why)) => refuse(out, OPTION_HELLO, option_reply::ERR_POLICY, &why),
            Err(None) => refuse(out, OPTION_HELLO, option_reply::ERR_UNSUP, "This server has no gateways"),
        }
    }

    pub(super) fn proof(&mut self, payload: &[u8], out: &mut Vec<u8>) -> Step {
        // A challenge is used once.
        let Gateway::Asked(asked) = std::mem::replace(&mut self.gateway, Gateway::No) else {
            refuse(out, OPTION_PROOF, option_reply::ERR_INVALID, "A proof follows a challenge");
            return Step::Next;
        };
        let (hello, Admission { key, challenge, vm }) = &*asked;
        if !key.verifies(payload, Side::Client, hello, challenge) {
            let (gateway, node) = (&hello.gateway, &challenge.node);
            tracing::warn!(vm, gateway, node, "A gateway has another key than this node, or means another node");
            let message = "The proof is wrong: both sides need the same key, and the gateway the name of this node";
            refuse(out, OPTION_PROOF, option_reply::ERR_POLICY, message);
            return Step::Next;
        }
        let Some(number) = hello.vms.iter().position(|listed| listed == vm) else {
            refuse(out, OPTION_PROOF, option_reply::ERR_INVALID, "The VM of the export is not listed");
            return Step::Next;
        };
        let (gateway, epoch) = (hello.gateway.clone(), hello.epoch);
        let server = (challenge.node.clone(), challenge.device.clone());
        let known = Known { gateway, epoch, vm: (vm.clone(), number as u16), server, start: challenge.start };
        self.gateway = Gateway::Proven(asked, known);
        if epoch == 0 {
            // The key is only tried.
            self.admitted(Ok(()), out);
            return Step::Next;
        }
        Step::Admit
    }

    /// What [`Exports::admit`] is asked for.
    pub(in crate::nbd) fn proven(&self) -> Option<(&'a E, &Hello, &Key)> {
        let Gateway::Proven(asked, _) = &self.gateway else { return None };
        Some((self.exports, &asked.0, &asked.1.key))
    }

    /// Answers a proof, now that it is known whether the gateway may come.
    pub(in crate::nbd) fn admitted(&mut self, result: Result<(), String>, out: &mut Vec<u8>) {
        let Gateway::Proven(asked, known) = std::mem::replace(&mut self.gateway, Gateway::No) else {
            unreachable!("it follows a proof")
        };
        let (hello, Admission { key, challenge, .. }) = &*asked;
        // The device thread gets the export of this name.
        let export = self.resolve(&hello.export).map(|export| export.name);
        let export = result.and_then(|()| export.ok_or_else(|| "There is no such export any more".to_owned()));
        let export = match export {
            Ok(export) => export,
            Err(why) => {
                tracing::warn!(vm = known.vm.0, gateway = hello.gateway, why, "A gateway was refused");
                return refuse(out, OPTION_PROOF, option_reply::ERR_POLICY, &why);
            }
        };
        reply(out, OPTION_PROOF, REPLY_CONFIRMED, &[&key.prove(Side::Server, hello, challenge)]);
        reply(out, OPTION_PROOF, option_reply::ACK, &[]);
        if known.epoch > 0 {
            self.gateway = Gateway::Known(Box::new(known), export);
        }
    }
}
