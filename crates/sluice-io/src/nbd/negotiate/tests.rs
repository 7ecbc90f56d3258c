use super::super::export::{Export, sample};
use super::super::wire::{OPTION_MAGIC, RequestHeader, info, option};
use super::*;

struct One;

impl Exports for One {
    fn list(&self) -> Vec<Listed> {
        vec![Listed { name: "a".to_owned(), description: String::new() }]
    }

    fn find(&self, name: &str) -> Option<Export> {
        (name == "a").then(|| sample("a"))
    }
}

/// A stream in memory: all bytes of the client are available, and those of the server are kept.
struct Memory<'a> {
    input: &'a [u8],
    output: Vec<u8>,
}

impl Read for Memory<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        Read::read(&mut self.input, bytes)
    }
}

impl Write for Memory<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Write::write(&mut self.output, bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs a handshake against bytes. Returns its result, the unread bytes, and those that were sent.
fn run(input: &[u8]) -> (Result<Negotiated, NegotiateError>, &[u8], Vec<u8>) {
    let mut stream = Memory { input, output: Vec::new() };
    let outcome = negotiate_blocking(&mut stream, &One);
    (outcome, stream.input, stream.output)
}

fn option_bytes(code: u32, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u32).to_be_bytes();
    [&OPTION_MAGIC.to_be_bytes()[..], &code.to_be_bytes(), &len, payload].concat()
}

fn flags(flags: u32) -> Vec<u8> {
    flags.to_be_bytes().to_vec()
}

fn go() -> Vec<u8> {
    let wanted = [1u16.to_be_bytes(), info::BLOCK_SIZE.to_be_bytes()].concat();
    option_bytes(option::GO, &[&[0, 0, 0, 1, b'a'], wanted.as_slice()].concat())
}

#[test]
fn nothing_is_read_after_the_choice_of_an_export() {
    let request = RequestHeader { flags: 0, command: 0, cookie: 1, offset: 0, length: 512 }.encode();
    for choice in [go(), option_bytes(option::EXPORT_NAME, b"a")] {
        let input = [flags(3), option_bytes(option::STRUCTURED_REPLY, b""), choice, request.to_vec()].concat();
        let (outcome, rest, _) = run(&input);
        assert!(outcome.expect("a good handshake").structured_replies);
        assert_eq!(rest, request, "the request is still there");
    }
}

#[test]
fn a_connection_that_ends_at_any_byte_is_closed() {
    let whole = [flags(3), option_bytes(option::LIST, b""), go()].concat();
    assert!(run(&whole).0.is_ok());
    for len in 0..whole.len() {
        let outcome = run(&whole[..len]).0;
        assert!(matches!(outcome, Err(NegotiateError::Closed { .. })), "{len} bytes: {outcome:?}");
    }
}

#[test]
fn invalid_bytes_are_reported() {
    let cases: [(Vec<u8>, &str); 6] = [
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "UnknownFlags"),
        ([flags(1), vec![0x55; 64]].concat(), "BadMagic"),
        ([flags(1), option_bytes(option::ABORT, b"")].concat(), "Aborted"),
        ([flags(0), option_bytes(option::LIST, b"")].concat(), "NotFixedNewstyle"),
        ([flags(1), option_bytes(option::LIST, &vec![0; (64 << 10) + 1])].concat(), "OptionTooLong"),
        ([flags(1), option_bytes(option::LIST, b"").repeat(257)].concat(), "TooManyOptions"),
    ];
    for (input, wanted) in cases {
        let error = run(&input).0.expect_err(wanted);
        assert!(format!("{error:?}").starts_with(wanted), "{error:?}");
    }
}

#[test]
fn abort_is_answered_before_the_end() {
    let (_, _, output) = run(&[flags(1), option_bytes(option::ABORT, b"")].concat());
    assert_eq!(output.len(), GREETING.len() + 20);
}

#[test]
fn a_failing_stream_is_an_io_error() {
    struct Failing;
    impl Read for Failing {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::ErrorKind::WouldBlock.into())
        }
    }
    impl Write for Failing {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    assert!(matches!(negotiate_blocking(&mut Failing, &One), Err(NegotiateError::Io(_))));
}

#[tokio::test]
async fn over_an_async_stream_in_tiny_pieces() {
    // A pipe of 3 bytes splits every message, in both directions.
    let (mut ours, mut theirs) = tokio::io::duplex(3);
    let server = async {
        let negotiated = negotiate(&mut ours, &One).await;
        let mut rest = Vec::new();
        ours.read_to_end(&mut rest).await.expect("the pipe holds");
        (negotiated, rest)
    };
    let client = async {
        let mut greeting = [0; 18];
        theirs.read_exact(&mut greeting).await.expect("a greeting");
        assert_eq!(greeting, GREETING);
        theirs.write_all(&[flags(3), go()].concat()).await.expect("the pipe holds");
        // Size (20 + 12), block sizes (20 + 14), end (20).
        let mut answer = [0; 86];
        theirs.read_exact(&mut answer).await.expect("an answer");
        theirs.write_all(b"next").await.expect("the pipe holds");
        theirs.shutdown().await.expect("the pipe holds");
    };
    let ((negotiated, rest), ()) = tokio::join!(server, client);
    let wanted = Negotiated {
        export: "a".to_owned(),
        structured_replies: false,
        base_allocation: None,
        block_size_requested: true,
        gateway: None,
    };
    assert_eq!(negotiated.expect("a good handshake"), wanted);
    assert_eq!(rest, b"next");
}

#[tokio::test]
async fn a_disconnect_is_detected_immediately() {
    let (mut ours, theirs) = tokio::io::duplex(64);
    drop(theirs);
    let outcome = negotiate(&mut ours, &One).await;
    assert!(matches!(outcome, Err(NegotiateError::Io(_) | NegotiateError::Closed { .. })), "{outcome:?}");
}

/// A generator of varied bytes that are the same in each run (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

/// Some options with well-formed payloads.
fn seeds() -> Vec<Vec<u8>> {
    let context = [&[0, 0, 0, 1, b'a', 0, 0, 0, 1, 0, 0, 0, 15][..], b"base:allocation"].concat();
    vec![
        option_bytes(option::LIST, b""),
        option_bytes(option::STARTTLS, b""),
        option_bytes(option::STRUCTURED_REPLY, b""),
        option_bytes(option::LIST_META_CONTEXT, &context),
        option_bytes(option::SET_META_CONTEXT, &context),
        option_bytes(option::INFO, &[0, 0, 0, 1, b'a', 0, 2, 0, 1, 0, 2]),
        option_bytes(77, &[7; 100]),
        go(),
        option_bytes(option::EXPORT_NAME, b"a"),
        option_bytes(option::ABORT, b""),
    ]
}

#[test]
fn random_bytes_never_panic_and_always_end() {
    let mut random = Random(7);
    let seeds = seeds();
    let mut finished = 0;
    for round in 0..20_000 {
        let mut input = flags(3);
        for _ in 0..random.below(8) {
            input.extend_from_slice(&seeds[random.below(seeds.len())]);
        }
        // Some rounds stay valid; the others get bytes changed or cut off.
        for _ in 0..round % 4 {
            let at = random.below(input.len());
            match random.below(3) {
                0 => input.truncate(at.max(1)),
                1 => input[at] = random.next() as u8,
                _ => input[at] ^= 1 << random.below(8),
            }
        }
        finished += usize::from(run(&input).0.is_ok());
    }
    assert!(finished > 2000, "valid rounds that choose an export succeed: {finished}");
}
