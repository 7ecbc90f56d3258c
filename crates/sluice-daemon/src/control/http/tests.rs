//! The routes, with the client that the command line has.

use std::path::PathBuf;

use proptest::prelude::*;
use sluice_api::call::encoded;
use sluice_api::http::{Answer, Call, Client as Caller, Failed};
use sluice_api::list::Step;
use sluice_api::request::{How, MetricsFormat, Names, Reply, Request, Term};
use tokio::net::UnixListener;
use tokio::runtime::Runtime;

use super::*;
use crate::control::Code;
use sluice_http::{Connections, Limits};

/// A daemon that refuses everything, and tells what it was asked for.
struct Served {
    runtime: Runtime,
    caller: Caller,
    asked: mpsc::Receiver<Asked>,
    _folder: tempfile::TempDir,
}

fn serve() -> Served {
    let folder = tempfile::tempdir().unwrap();
    let socket: PathBuf = folder.path().join("control");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (sender, asked) = mpsc::channel(16);
    let listener = runtime.block_on(async { UnixListener::bind(&socket).unwrap() });
    let (routes, connections) = (routes(), Connections::new(Limits { clients: 1, admins: 64, of_user: 1 }));
    runtime.spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let peer = Peer { uid: 0, gid: 0, groups: [].into(), pid: None, login: None };
            let permit = connections.enter(0, true).await.unwrap();
            let stream = stream.into_std().unwrap();
            tokio::spawn(converse(Connection { stream, peer, permit }, routes.clone(), sender.clone()));
        }
    });
    Served { runtime, caller: Caller::at(&socket), asked, _folder: folder }
}

impl Served {
    /// Sends a request, and returns what the daemon gets.
    fn gets(&mut self, request: &Request) -> Result<Request, String> {
        let Served { runtime, caller, asked, .. } = self;
        runtime.block_on(async {
            let refused = async {
                let asked = asked.recv().await.unwrap();
                let _ = asked.reply.send(Reply::failed(Code::Refused, "no"));
                asked.request
            };
            tokio::select! {
                biased;
                got = refused => Ok(got),
                answered = caller.reply::<Value>(request) => Err(format!("{:?}", answered.unwrap_err())),
            }
        })
    }

    /// Sends a call, and answers what the daemon is asked for with this reply.
    fn call(
        &mut self,
        call: &Call,
        reply: &Reply<Box<serde_json::value::RawValue>>,
    ) -> (Result<Answer, Failed>, usize) {
        let Served { runtime, caller, asked, .. } = self;
        runtime.block_on(async {
            let mut number = 0;
            let answering = async {
                while let Some(asked) = asked.recv().await {
                    number += 1;
                    let _ = asked.reply.send(reply.clone());
                }
            };
            let answer = tokio::select! {
                answer = caller.ask(call) => answer,
                () = answering => unreachable!("it is served"),
            };
            (answer, number)
        })
    }
}

use serde_json::{Value, json};

fn name() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z]{1,3}", "[a-c%?#&+ .*\u{e9}\u{202e}]{1,6}"].prop_filter("it is a name", |name| name != "policy")
}

fn target() -> impl Strategy<Value = String> {
    prop_oneof![
        name(),
        (name(), name())
            .prop_filter("a NIC has a name", |(_, name)| name != "nic")
            .prop_map(|(vm, name)| format!("{vm}/{name}")),
        (name(), name()).prop_map(|(vm, nic)| format!("{vm}/nic/{nic}")),
    ]
}

/// A volume or NIC.
fn of_vm() -> impl Strategy<Value = String> {
    target().prop_filter("it is in a VM", |target| target.contains('/'))
}

fn how() -> impl Strategy<Value = How> {
    let term = prop_oneof![
        Just(Term::Always),
        Just(Term::UntilRestart),
        any::<u32>().prop_map(|seconds| Term::Seconds(seconds.into())),
        any::<u64>().prop_map(Term::Until),
        Just(Term::Persist),
    ];
    let force = prop::collection::vec(name(), 0..3);
    (term, prop::option::of(".{0,20}"), force, any::<bool>()).prop_map(|(term, reason, force, permanent)| How {
        term,
        reason,
        force,
        permanent,
    })
}

fn keys() -> impl Strategy<Value = toml::Table> {
    let value = prop_oneof![
        any::<i32>().prop_map(|number| toml::Value::Integer(number.into())),
        any::<bool>().prop_map(toml::Value::Boolean),
        ".{0,8}".prop_map(toml::Value::String),
    ];
    let inner = prop::collection::hash_map("[a-z_]{1,8}", value.clone(), 0..3)
        .prop_map(|table| toml::Value::Table(table.into_iter().collect()));
    prop::collection::hash_map("[a-z_]{1,8}", prop_oneof![value, inner], 0..4)
        .prop_map(|keys| keys.into_iter().collect())
}

fn some() -> impl Strategy<Value = Option<String>> {
    prop::option::of(name())
}

fn number() -> impl Strategy<Value = Option<u64>> {
    prop::option::of(any::<u64>())
}

/// Requests that change what an object has.
fn changes() -> impl Strategy<Value = Request> {
    let names = || prop::collection::vec(name(), 0..3);
    let policy = name().prop_map(|name| format!("policy/{name}"));
    let of = prop_oneof![target(), policy];
    prop_oneof![
        (of, keys(), names(), how()).prop_map(|(target, keys, reset, how)| Request::Set { target, keys, reset, how }),
        (of_vm(), keys(), keys(), how()).prop_map(|(target, keys, vm, how)| Request::Attach { target, keys, vm, how }),
        (target(), how()).prop_map(|(target, how)| Request::Detach { target, how }),
        (name(), name(), name(), how()).prop_map(|(vm, name, size, how)| Request::Resize {
            target: format!("{vm}/{name}"),
            size,
            how
        }),
        (name(), some()).prop_map(|(vm, from)| Request::Takeover { target: format!("{vm}/v"), from }),
        name().prop_map(|target| Request::AcceptLoss { target }),
        (prop::option::of(prop::collection::vec(name(), 1..3)), some(), names())
            .prop_map(|(names, reason, force)| Request::Reset { name: names.map(Names::from), reason, force }),
        (some(), any::<bool>(), some(), names()).prop_map(|(file, dry_run, reason, force)| Request::Apply {
            file: file.map(Into::into),
            dry_run,
            force,
            reason
        }),
        some().prop_map(|class| Request::TestAlert { class }),
    ]
}

fn questions() -> impl Strategy<Value = Request> {
    let step = prop::option::of(prop::sample::select(Step::ALL.to_vec()));
    let volume = prop_oneof![some(), name().prop_map(|nic| Some(format!("nic/{nic}")))];
    let limit = prop::option::of(any::<usize>());
    prop_oneof![
        (number(), number(), number(), some(), some(), some(), limit).prop_map(
            |(since, until, after, vm, device, kind, limit)| Request::Events {
                since,
                until,
                after,
                vm,
                device,
                kind,
                limit
            }
        ),
        (name(), volume, step, number()).prop_map(|(vm, volume, step, since)| Request::History {
            vm,
            volume,
            step,
            since,
            until: None
        }),
        (name(), some()).prop_map(|(vm, volume)| Request::Details { vm, volume }),
        target().prop_map(|target| Request::Keys { target }),
        prop::sample::select(vec![
            Request::Status,
            Request::Names,
            Request::Top,
            Request::Clients,
            Request::Policies,
            Request::GetOverrides,
            Request::GetHost,
            Request::Metrics { format: MetricsFormat::OpenMetrics },
            Request::Metrics { format: MetricsFormat::Prometheus },
        ]),
    ]
}

/// What the command line asks for is what the daemon is asked for, whatever names and words are in it.
#[test]
fn every_request_of_the_command_line_has_its_resource() {
    let mut served = serve();
    let mut runner = proptest::test_runner::TestRunner::default();
    let found = core::cell::RefCell::new(&mut served);
    let tested = runner.run(&prop_oneof![changes(), questions()], |request| {
        let got = found.borrow_mut().gets(&request);
        prop_assert_eq!(got, Ok(request));
        Ok(())
    });
    tested.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn the_committed_document_is_that_of_the_handlers() {
    let committed = include_str!("../../../../../docs/openapi.json");
    assert!(committed.trim_end() == document(), "run `cargo xtask manual`");
}

fn post(key: &str, body: Value) -> Call {
    Call::send(hyper::Method::POST, format!("/v1/volumes/a/{}", encoded("v")), body).header("idempotency-key", key)
}

#[test]
fn a_post_that_is_repeated_with_its_key_is_made_once() {
    let mut served = serve();
    let done = Reply::with(&change::Changed::default());
    let (first, asked) = served.call(&post("one", json!({ "reason": "x" })), &done);
    assert_eq!(asked, 1);
    let (again, asked) = served.call(&post("one", json!({ "reason": "x" })), &done);
    assert_eq!((first.unwrap().body, 0), (again.unwrap().body, asked), "the answer of the first one");
    let (other, asked) = served.call(&post("one", json!({ "reason": "y" })), &done);
    let Err(Failed::Refused(problem)) = other else { panic!("{other:?}") };
    assert_eq!((problem.code.as_str(), asked), ("other-request", 0));
    assert_eq!(served.call(&post("two", json!({ "reason": "x" })), &done).1, 1);
    // One that was refused has changed nothing.
    let refused = Reply::failed(Code::Refused, "no");
    assert!(served.call(&post("three", json!({})), &refused).0.is_err());
    assert_eq!(served.call(&post("three", json!({})), &done).1, 1);
}

#[test]
fn a_post_whose_client_goes_is_made_and_its_answer_is_kept() {
    let Served { runtime, caller, mut asked, _folder } = serve();
    let done = Reply::with(&change::Changed::default());
    runtime.block_on(async {
        let call = post("gone", json!({}));
        let taken = tokio::select! {
            answer = caller.ask(&call) => panic!("{answer:?}"),
            taken = asked.recv() => taken.unwrap(),
        };
        // The client has gone, and asks again before there is an answer.
        let Err(Failed::Refused(problem)) = caller.ask(&call).await else { panic!("it is not done") };
        assert_eq!(problem.code, "in-progress");
        taken.reply.send(done).unwrap();
        let answer = loop {
            match caller.ask(&call).await {
                Err(Failed::Refused(problem)) if problem.code == "in-progress" => tokio::task::yield_now().await,
                answer => break answer.unwrap(),
            }
        };
        assert!(!answer.body.is_empty() && asked.try_recv().is_err(), "it was made once");
    });
}

/// What programs of an older document rely on and a later one does not have.
fn broken(old: &Value, new: &Value, at: &str) -> Vec<String> {
    /// Words for people. A field of such a name is an object.
    const PROSE: [&str; 4] = ["description", "summary", "examples", "title"];
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            // The document's own version is in `info`.
            let counts = |key: &str, value: &Value| match key {
                "info" => !at.is_empty(),
                _ => value.is_object() || !PROSE.contains(&key),
            };
            let kept = old.iter().filter(|(key, value)| counts(key, value));
            let broken = kept.flat_map(|(key, value)| match new.get(key) {
                Some(now) => broken(value, now, &format!("{at}/{key}")),
                None => vec![format!("{at}/{key} has gone")],
            });
            let required = new.get("required").filter(|now| now.is_array() && !old.contains_key("required"));
            broken.chain(required.map(|now| format!("{at}: {now} are required"))).collect()
        }
        (Value::Array(old), Value::Array(new)) if at.ends_with("/parameters") => {
            let of = |all: &[Value], one: &Value| all.iter().find(|other| other["name"] == one["name"]).cloned();
            let kept = old.iter().flat_map(|one| match of(new, one) {
                Some(now) => broken(one, &now, &format!("{at}/{}", one["name"])),
                None => vec![format!("{at}: parameter {} has gone", one["name"])],
            });
            let more = new.iter().filter(|one| one["required"] == true && of(old, one).is_none());
            kept.chain(more.map(|one| format!("{at}: parameter {} is required", one["name"]))).collect()
        }
        // A further required field of a body breaks those who do not send it.
        (Value::Array(old), Value::Array(new)) if !at.ends_with("/required") => {
            old.iter().filter(|one| !new.contains(one)).map(|one| format!("{at} has no {one} any more")).collect()
        }
        _ if old == new => Vec::new(),
        _ => vec![format!("{at} was {old} and is {new}")],
    }
}

#[test]
fn what_a_released_document_has_stays() {
    let now: Value = serde_json::from_str(&document()).unwrap();
    let released = concat!(env!("CARGO_MANIFEST_DIR"), "/../sluice/tests/released");
    for version in std::fs::read_dir(released).unwrap() {
        let file = version.unwrap().path().join("openapi.json");
        let Ok(text) = std::fs::read_to_string(&file) else { continue };
        assert_eq!(broken(&serde_json::from_str(&text).unwrap(), &now, ""), [""; 0], "{}", file.display());
    }
    // What would break a program is found.
    let without = |pointer: &str, key: &str| {
        let mut later = now.clone();
        later.pointer_mut(pointer).unwrap().as_object_mut().unwrap().remove(key).unwrap();
        broken(&now, &later, "")
    };
    assert_eq!(without("/paths", "/v1/top"), ["/paths//v1/top has gone"]);
    assert_eq!(without("/components/schemas/Problem/properties", "code").len(), 1);
    let mut later = now.clone();
    later["paths"]["/v1/vms"]["get"]["parameters"].as_array_mut().unwrap().remove(0);
    later["components"]["schemas"]["Set"]["required"] = json!(["reason"]);
    later["components"]["schemas"]["Problem"]["properties"]["code"]["type"] = "integer".into();
    assert_eq!(broken(&now, &later, "").len(), 3, "{:?}", broken(&now, &later, ""));
    assert!(!broken(&later, &now, "").is_empty());
}
