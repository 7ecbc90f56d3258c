use std::sync::Arc;

use super::super::export::sample;
use super::super::gateway::proof::{Key, Side};
use super::super::gateway::{Challenge, REPLY_CHALLENGE, REPLY_CONFIRMED, StartId};
use super::super::wire::transmission_flag;
use super::*;

/// Exports of the given names.
struct Named(Vec<&'static str>);

impl Exports for Named {
    fn list(&self) -> Vec<Listed> {
        let listed = |name: &&str| Listed { name: (*name).to_owned(), description: format!("about {name}") };
        self.0.iter().map(listed).collect()
    }

    fn find(&self, name: &str) -> Option<Export> {
        self.0.contains(&name).then(|| sample(name))
    }

    fn challenge(&self, hello: &Hello) -> Result<Admission, Option<String>> {
        let challenge =
            Challenge { node: "n".to_owned(), device: "d".to_owned(), nonce: [2; 32], start: StartId::default() };
        let vm = hello.vms.first().cloned().ok_or(None)?;
        Ok(Admission { key: Arc::new(Key::new(&[7; 32]).unwrap()), challenge, vm })
    }
}

/// A handshake after the client's flags.
struct Peer<'a>(Handshake<'a, Named>);

/// One option reply: its kind and payload.
type Answer = (u32, Vec<u8>);

impl<'a> Peer<'a> {
    fn new(exports: &'a Named, flags: u32) -> Peer<'a> {
        let mut handshake = Handshake::new(exports, Tls::No);
        handshake.client_flags(flags.to_be_bytes()).expect("good flags");
        Peer(handshake)
    }

    /// Sends an option; returns the replies and the result.
    fn send(&mut self, code: u32, payload: &[u8]) -> (Vec<Answer>, Result<Step, NegotiateError>) {
        let mut header = [0; OPTION_HEADER_LEN];
        header[..8].copy_from_slice(&OPTION_MAGIC.to_be_bytes());
        header[8..12].copy_from_slice(&code.to_be_bytes());
        header[12..].copy_from_slice(&(payload.len() as u32).to_be_bytes());
        let header = match self.0.option_header(&header) {
            Ok(header) => header,
            Err(error) => return (vec![], Err(error)),
        };
        assert_eq!((header.code, header.len_bytes as usize), (code, payload.len()));
        let mut out = Vec::new();
        let mut outcome = self.0.option(code, payload, &mut out);
        if let Ok(Step::Admit) = outcome {
            self.0.admitted(Ok(()), &mut out);
            outcome = Ok(Step::Next);
        }
        (answers(code, &out), outcome)
    }

    /// Sends an option that does not end the handshake; returns the kinds of the replies.
    fn kinds(&mut self, code: u32, payload: &[u8]) -> Vec<u32> {
        let (answers, outcome) = self.send(code, payload);
        assert_eq!(outcome.expect("the handshake goes on"), Step::Next);
        answers.into_iter().map(|(kind, _)| kind).collect()
    }
}

fn chosen(outcome: Result<Step, NegotiateError>) -> Negotiated {
    match outcome {
        Ok(Step::Chosen(negotiated)) => negotiated,
        other => panic!("no export was chosen: {other:?}"),
    }
}

fn answers(code: u32, mut out: &[u8]) -> Vec<Answer> {
    let mut answers = Vec::new();
    while let Some((head, rest)) = out.split_first_chunk() {
        let header = OptionReplyHeader::parse(head).expect("the magic of a reply");
        assert_eq!(header.option, code);
        let (payload, rest) = rest.split_at(header.len_bytes as usize);
        answers.push((header.kind, payload.to_vec()));
        out = rest;
    }
    assert!(out.is_empty(), "half a reply");
    answers
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat()
}

fn info_payload(name: &str, wanted: &[u16]) -> Vec<u8> {
    let mut payload = string(name);
    payload.extend_from_slice(&(wanted.len() as u16).to_be_bytes());
    payload.extend(wanted.iter().flat_map(|kind| kind.to_be_bytes()));
    payload
}

fn meta_payload(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut payload = string(name);
    payload.extend_from_slice(&(queries.len() as u32).to_be_bytes());
    payload.extend(queries.iter().flat_map(|query| string(query)));
    payload
}

const FIXED: u32 = 1;
const ACK: u32 = option_reply::ACK;

#[test]
fn greeting_has_the_layout_of_the_protocol() {
    assert_eq!(&GREETING[..16], b"NBDMAGICIHAVEOPT");
    assert_eq!(parse_greeting(&GREETING), Some(3));
    assert_eq!(parse_greeting(&[0; 18]), None);
}

#[test]
fn unknown_client_flags_close() {
    let exports = Named(vec!["a"]);
    for (flags, good) in [(0u32, true), (1, true), (2, true), (3, true), (4, false), (1 << 31 | 1, false)] {
        let outcome = Handshake::new(&exports, Tls::No).client_flags(flags.to_be_bytes());
        assert_eq!(outcome.is_ok(), good, "flags {flags:#x}: {outcome:?}");
    }
}

#[test]
fn invalid_option_headers_close_the_connection() {
    let exports = Named(vec!["a"]);
    let head = |magic: u64, code: u32, len: u32| {
        let mut bytes = [0; OPTION_HEADER_LEN];
        bytes[..8].copy_from_slice(&magic.to_be_bytes());
        bytes[8..12].copy_from_slice(&code.to_be_bytes());
        bytes[12..].copy_from_slice(&len.to_be_bytes());
        bytes
    };
    let mut peer = Peer::new(&exports, FIXED).0;
    assert!(peer.option_header(&head(OPTION_MAGIC, option::LIST, OPTION_LEN_MAX)).is_ok());
    let too_long = peer.option_header(&head(OPTION_MAGIC, option::LIST, OPTION_LEN_MAX + 1));
    assert!(matches!(too_long, Err(NegotiateError::OptionTooLong { .. })));
    let wrong = peer.option_header(&head(OPTION_MAGIC + 1, option::LIST, 0));
    assert!(matches!(wrong, Err(NegotiateError::BadMagic { .. })));
    let mut peer = Peer::new(&exports, 0).0;
    let not_fixed = peer.option_header(&head(OPTION_MAGIC, option::LIST, 0));
    assert!(matches!(not_fixed, Err(NegotiateError::NotFixedNewstyle { option: option::LIST })));
    assert!(peer.option_header(&head(OPTION_MAGIC, option::EXPORT_NAME, 1)).is_ok());
}

#[test]
fn the_number_of_options_is_bounded() {
    let exports = Named(vec!["a"]);
    let mut peer = Peer::new(&exports, FIXED);
    for _ in 0..OPTIONS_MAX {
        assert_eq!(peer.kinds(99, b"x"), [option_reply::ERR_UNSUP]);
    }
    assert!(matches!(peer.send(99, b"x").1, Err(NegotiateError::TooManyOptions)));
}

#[test]
fn the_reply_to_export_name_has_no_header() {
    let exports = Named(vec!["a"]);
    for (flags, len) in [(0, 134), (1, 134), (2, 10), (3, 10)] {
        let mut out = Vec::new();
        let outcome = Peer::new(&exports, flags).0.option(option::EXPORT_NAME, b"a", &mut out);
        let negotiated = chosen(outcome);
        assert_eq!((negotiated.export.as_str(), negotiated.block_size_requested), ("a", false));
        assert_eq!((u64_at(&out, 0), out.len()), (1 << 20, len));
        assert_eq!(u16_at(&out, 8) & (transmission_flag::HAS_FLAGS | transmission_flag::SEND_DF), 1);
    }
    let mut out = Vec::new();
    let outcome = Peer::new(&exports, 3).0.option(option::EXPORT_NAME, b"", &mut out);
    assert_eq!(chosen(outcome).export, "a");
    let both = Named(vec!["a", "b"]);
    let error = Peer::new(&both, 3).0.option(option::EXPORT_NAME, b"", &mut Vec::new()).expect_err("two exports");
    assert!(format!("{error:?}").starts_with("UnknownExport"), "{error:?}");
    for (name, wanted) in
        [(b"b".as_slice(), "UnknownExport"), (b"\xff", "BadExportName"), (&[b'x'; 5000], "BadExportName")]
    {
        let mut out = Vec::new();
        let error = Peer::new(&exports, 3).0.option(option::EXPORT_NAME, name, &mut out).expect_err(wanted);
        assert!(format!("{error:?}").starts_with(wanted), "{error:?}");
        assert!(out.is_empty(), "no error reply is possible");
    }
}

#[test]
fn abort_is_acknowledged() {
    let exports = Named(vec!["a"]);
    let (answers, outcome) = Peer::new(&exports, FIXED).send(option::ABORT, b"why not");
    assert_eq!(answers, [(ACK, vec![])]);
    assert!(matches!(outcome, Err(NegotiateError::Aborted)));
}

#[test]
fn list_names_and_describes() {
    let exports = Named(vec!["a", "bc"]);
    let mut peer = Peer::new(&exports, FIXED);
    let (answers, _) = peer.send(option::LIST, b"");
    let line = |name: &str| (option_reply::SERVER, [string(name), format!("about {name}").into_bytes()].concat());
    assert_eq!(answers, [line("a"), line("bc"), (ACK, vec![])]);
    assert_eq!(peer.kinds(option::LIST, b"x"), [option_reply::ERR_INVALID]);
    assert_eq!(Peer::new(&Named(vec![]), FIXED).kinds(option::LIST, b""), [ACK]);
}

#[test]
fn options_that_are_not_offered_are_unsupported() {
    let exports = Named(vec!["a"]);
    let mut peer = Peer::new(&exports, FIXED);
    for code in [0, 4, option::STARTTLS, option::EXTENDED_HEADERS, 12, u32::MAX] {
        assert_eq!(peer.kinds(code, b"whatever"), [option_reply::ERR_UNSUP], "option {code}");
    }
}

#[test]
fn info_and_go_describe_the_export() {
    let exports = Named(vec!["a", "b"]);
    let mut peer = Peer::new(&exports, FIXED);
    let wanted = [info::NAME, info::DESCRIPTION, info::BLOCK_SIZE, 77];
    let (answers, outcome) = peer.send(option::INFO, &info_payload("a", &wanted));
    assert_eq!(outcome.expect("goes on"), Step::Next, "INFO does not end the handshake");
    let kinds: Vec<(u32, u16)> = answers[..4].iter().map(|(kind, payload)| (*kind, u16_at(payload, 0))).collect();
    let info = |kind| (option_reply::INFO, kind);
    assert_eq!(kinds, [info(info::EXPORT), info(info::NAME), info(info::DESCRIPTION), info(info::BLOCK_SIZE)]);
    let flags = transmission_flags(&sample("a").info, false);
    assert_eq!((u64_at(&answers[0].1, 2), u16_at(&answers[0].1, 10), answers[0].1.len()), (1 << 20, flags, 12));
    assert_eq!((&answers[1].1[2..], &answers[2].1[2..]), (&b"a"[..], &b"about a"[..]));
    assert_eq!([2, 6, 10].map(|at| u32_at(&answers[3].1, at)), [512, 4096, 1 << 20]);
    assert_eq!(answers[4..], [(ACK, vec![])]);

    let (answers, outcome) = peer.send(option::GO, &info_payload("b", &[]));
    assert_eq!(answers.len(), 3, "size, block sizes, end");
    let negotiated = chosen(outcome);
    let wanted = Negotiated {
        export: "b".to_owned(),
        structured_replies: false,
        base_allocation: None,
        block_size_requested: false,
        gateway: None,
    };
    assert_eq!(negotiated, wanted);
}

#[test]
fn info_and_go_refuse() {
    let exports = Named(vec!["a", "b"]);
    let mut peer = Peer::new(&exports, FIXED);
    let long = "x".repeat(5000);
    for code in [option::INFO, option::GO] {
        assert_eq!(peer.kinds(code, &info_payload("c", &[])), [option_reply::ERR_UNKNOWN]);
        assert_eq!(peer.kinds(code, &info_payload("", &[])), [option_reply::ERR_UNKNOWN], "two exports");
        assert_eq!(peer.kinds(code, &info_payload(&long, &[])), [option_reply::ERR_TOO_BIG]);
        assert_eq!(peer.kinds(code, b""), [option_reply::ERR_INVALID]);
        assert_eq!(peer.kinds(code, &[0xff; 40]), [option_reply::ERR_INVALID]);
        let trailing = [info_payload("a", &[]), vec![0]].concat();
        assert_eq!(peer.kinds(code, &trailing), [option_reply::ERR_INVALID]);
    }
    let one = Named(vec!["only"]);
    let (_, outcome) = Peer::new(&one, FIXED).send(option::GO, &info_payload("", &[info::BLOCK_SIZE]));
    let negotiated = chosen(outcome);
    assert_eq!((negotiated.export.as_str(), negotiated.block_size_requested), ("only", true));
}

#[test]
fn contexts_need_structured_replies() {
    let exports = Named(vec!["a"]);
    let mut peer = Peer::new(&exports, FIXED);
    let payload = meta_payload("a", &[BASE_ALLOCATION]);
    for code in [option::LIST_META_CONTEXT, option::SET_META_CONTEXT] {
        assert_eq!(peer.kinds(code, &payload), [option_reply::ERR_INVALID]);
    }
    assert_eq!(peer.kinds(option::STRUCTURED_REPLY, b"x"), [option_reply::ERR_INVALID]);
    assert_eq!(peer.kinds(option::STRUCTURED_REPLY, b""), [ACK]);
    for code in [option::LIST_META_CONTEXT, option::SET_META_CONTEXT] {
        assert_eq!(peer.kinds(code, &payload), [option_reply::META_CONTEXT, ACK]);
        assert_eq!(peer.kinds(code, &meta_payload("c", &[])), [option_reply::ERR_UNKNOWN]);
        assert_eq!(peer.kinds(code, b"\0"), [option_reply::ERR_INVALID]);
    }
}

#[test]
fn queries_that_match() {
    let exports = Named(vec!["a"]);
    let mut peer = Peer::new(&exports, FIXED);
    peer.kinds(option::STRUCTURED_REPLY, b"");
    // queries, matches when listing, matches when selecting
    type Case = (&'static [&'static str], bool, bool);
    let cases: [Case; 5] = [
        (&[], true, false),
        (&["base:"], true, false),
        (&["x:y", "base:allocation", "base:allocation"], true, true),
        (&["base:alloc"], false, false),
        (&["qemu:"], false, false),
    ];
    for (queries, listed, selected) in cases {
        for (code, id, matches) in
            [(option::LIST_META_CONTEXT, 0, listed), (option::SET_META_CONTEXT, BASE_ALLOCATION_ID, selected)]
        {
            let (answers, _) = peer.send(code, &meta_payload("a", queries));
            let context = [&id.to_be_bytes(), BASE_ALLOCATION.as_bytes()].concat();
            let mut wanted = vec![(option_reply::META_CONTEXT, context)];
            wanted.truncate(usize::from(matches));
            wanted.push((ACK, vec![]));
            assert_eq!(answers, wanted, "{queries:?}");
        }
    }
}

#[test]
fn a_selection_holds_for_its_export_until_the_next() {
    let exports = Named(vec!["a", "b"]);
    let select = |names: &[(&str, &[&str])], go: &str| {
        let mut peer = Peer::new(&exports, FIXED);
        peer.kinds(option::STRUCTURED_REPLY, b"");
        for (name, queries) in names {
            peer.kinds(option::SET_META_CONTEXT, &meta_payload(name, queries));
        }
        let (_, outcome) = peer.send(option::GO, &info_payload(go, &[]));
        let negotiated = chosen(outcome);
        assert!(negotiated.structured_replies);
        negotiated.base_allocation
    };
    let base: &[&str] = &[BASE_ALLOCATION];
    assert_eq!(select(&[], "a"), None);
    assert_eq!(select(&[("a", base)], "a"), Some(BASE_ALLOCATION_ID));
    assert_eq!(select(&[("a", base)], "b"), None, "another export");
    assert_eq!(select(&[("a", base), ("b", base)], "a"), None, "a later selection");
    assert_eq!(select(&[("a", base), ("a", &[])], "a"), None, "an empty selection");
    assert_eq!(select(&[("a", base), ("c", base)], "a"), None, "a failed selection");
}

#[test]
fn a_selection_by_the_default_name_holds_for_the_canonical_one() {
    let exports = Named(vec!["only"]);
    let mut peer = Peer::new(&exports, FIXED);
    peer.kinds(option::STRUCTURED_REPLY, b"");
    peer.kinds(option::SET_META_CONTEXT, &meta_payload("", &[BASE_ALLOCATION]));
    let (_, outcome) = peer.send(option::GO, &info_payload("only", &[]));
    assert_eq!(chosen(outcome).base_allocation, Some(BASE_ALLOCATION_ID));
}

#[test]
fn messages_start_with_a_capital_letter() {
    let errors = [
        NegotiateError::Aborted,
        NegotiateError::Closed { awaited: "an option" },
        NegotiateError::UnknownFlags { flags: 8 },
        NegotiateError::TooManyOptions,
        NegotiateError::BadExportName(OptionError::NotUtf8),
    ];
    for error in errors {
        assert!(error.to_string().starts_with("The client"), "{error}");
    }
}

#[test]
fn a_gateway_proves_its_key_once_for_one_export_and_gets_simple_replies() {
    use option_reply::{ACK, ERR_INVALID, ERR_POLICY, ERR_UNKNOWN, ERR_UNSUP, INFO};
    let exports = Named(vec!["a", "b"]);
    let mut peer = Peer::new(&exports, 3);
    let hello = |export: &str, vms: &[&str]| {
        let vms = vms.iter().map(|vm| (*vm).to_owned()).collect();
        Hello { gateway: "g".to_owned(), epoch: 1, nonce: [1; 32], export: export.to_owned(), vms }
    };
    let said = hello("a", &["vm"]);
    let (key, challenge) = (Key::new(&[7; 32]).unwrap(), exports.challenge(&said).unwrap().challenge);
    let proof = key.prove(Side::Client, &said, &challenge);
    assert_eq!(peer.kinds(OPTION_PROOF, &proof), [ERR_INVALID], "there was no challenge");
    assert_eq!(peer.kinds(OPTION_HELLO, &hello("c", &["vm"]).encode()), [ERR_UNKNOWN]);
    assert_eq!(peer.kinds(OPTION_HELLO, &hello("a", &[]).encode()), [ERR_UNSUP]);
    assert_eq!(peer.kinds(OPTION_HELLO, &said.encode()[..9]), [ERR_INVALID]);
    assert_eq!(peer.kinds(OPTION_HELLO, &said.encode()), [REPLY_CHALLENGE, ACK]);
    assert_eq!(peer.kinds(option::GO, &info_payload("a", &[])), [ERR_INVALID], "it has not proven its key");
    assert_eq!(peer.kinds(OPTION_PROOF, &proof[1..]), [ERR_POLICY]);
    assert_eq!(peer.kinds(OPTION_PROOF, &proof), [ERR_INVALID], "a challenge is used once");
    assert_eq!(peer.kinds(OPTION_HELLO, &said.encode()), [REPLY_CHALLENGE, ACK]);
    let (answers, _) = peer.send(OPTION_PROOF, &proof);
    assert_eq!(answers[0], (REPLY_CONFIRMED, key.prove(Side::Server, &said, &challenge)));
    assert_eq!(peer.kinds(option::STRUCTURED_REPLY, &[]), [ERR_INVALID]);
    assert_eq!(peer.kinds(option::GO, &info_payload("b", &[])), [ERR_INVALID]);
    assert_eq!(peer.kinds(option::INFO, &info_payload("a", &[])), [INFO, INFO, ACK]);
    let (_, outcome) = peer.send(option::GO, &info_payload("a", &[]));
    let known = chosen(outcome).gateway.unwrap();
    assert_eq!((known.gateway.as_str(), known.epoch, known.vm), ("g", 1, ("vm".to_owned(), 0)));

    let mut peer = Peer::new(&exports, 3);
    assert_eq!(peer.kinds(option::STRUCTURED_REPLY, &[]), [ACK]);
    assert_eq!(peer.kinds(OPTION_HELLO, &said.encode()), [ERR_INVALID], "it gets simple replies");
}

#[test]
fn nothing_but_tls_is_answered_where_it_is_required_and_what_came_before_it_is_forgotten() {
    use option_reply::{ACK, ERR_INVALID, ERR_TLS_REQD, ERR_UNSUP, INFO};
    let exports = Named(vec!["a"]);
    let mut peer = Peer::new(&exports, 3);
    assert_eq!(peer.kinds(option::STARTTLS, &[]), [ERR_UNSUP]);
    let mut peer = Peer::new(&exports, 3);
    peer.0.tls = Tls::Required;
    for code in [option::LIST, option::STRUCTURED_REPLY, OPTION_HELLO, 99] {
        assert_eq!(peer.kinds(code, &[]), [ERR_TLS_REQD], "{code}");
    }
    assert_eq!(peer.kinds(option::GO, &info_payload("a", &[])), [ERR_TLS_REQD]);
    assert!(matches!(peer.send(option::EXPORT_NAME, b"a").1, Err(NegotiateError::TlsRequired)));
    assert_eq!(peer.kinds(option::STARTTLS, &[1]), [ERR_INVALID]);
    peer.0.structured_replies = true;
    let (answers, outcome) = peer.send(option::STARTTLS, &[]);
    assert_eq!((answers, outcome.unwrap()), (vec![(ACK, vec![])], Step::StartTls));
    let mut peer = Peer(peer.0.after_tls());
    assert_eq!(peer.kinds(option::STARTTLS, &[]), [ERR_INVALID], "it is encrypted already");
    assert_eq!(peer.kinds(option::INFO, &info_payload("a", &[])), [INFO, INFO, ACK]);
    let (_, outcome) = peer.send(option::GO, &info_payload("a", &[]));
    assert!(!chosen(outcome).structured_replies);
}
