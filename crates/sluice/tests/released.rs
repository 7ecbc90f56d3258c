//! This build starts from what each released version wrote.
//!
//! `released/VERSION/` has the host file of a daemon of that version and its state folder, with an override, a volume attached at
//! run time and events. The files are made once, when the version is released, and never changed: a change of a format must
//! keep this test passing.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::common::raw::Raw;
use crate::common::{Daemon, MIB, Place, run, sluice};
use serde_json::Value;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/released")
}

/// Returns the host file of a fixture, with a null volume and the daemon's own paths in this place.
fn host(place: &Place, fixture: &Path) -> String {
    let text = fs::read_to_string(fixture.join("host.toml")).unwrap();
    let sockets = place.socket("control");
    let sockets = sockets.parent().unwrap().display().to_string();
    text.replace("@SOCKETS@", &sockets).replace("@FOLDER@", &place.folder().display().to_string())
}

fn copy_state(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    fs::set_permissions(to, fs::Permissions::from_mode(0o700)).unwrap();
    for file in fs::read_dir(from).unwrap().flatten() {
        fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

fn ask(place: &Place, verb: &[&str]) -> Value {
    let asked = run(sluice().args(["-o", "json"]).args(verb).arg("--socket").arg(place.socket("control")));
    serde_json::from_str(&asked.stdout).unwrap_or_else(|error| panic!("{verb:?}: {error}: {}", asked.stderr))
}

fn seconds_now() -> f64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64()
}

#[test]
fn this_build_starts_from_what_each_version_wrote() {
    let (mut versions, began) = (0, seconds_now());
    for version in fs::read_dir(fixtures()).unwrap().flatten() {
        versions += 1;
        let name = version.file_name();
        let place = Place::new();
        copy_state(&version.path().join("state"), &place.file("state"));
        let _daemon = Daemon::serve(&place, &host(&place, &version.path()));
        // A change at run time is in force, and a volume that needs no disk is served.
        let overrides = ask(&place, &["get", "overrides"])["overrides"].to_string();
        assert!(overrides.contains("a/limit") && overrides.contains("b/w"), "{name:?}: {overrides}");
        assert_eq!(Raw::open(&place.socket("n.sock"), "a/n").unwrap().size_bytes, MIB, "{name:?}");
        // The state knows which file each volume served. Those files are not here, so both volumes are out of service.
        let status = ask(&place, &["status"]).to_string();
        assert!(status.contains("a/v") && status.contains("b/w"), "{name:?}: {status}");
        let events = ask(&place, &["events"]);
        let times = events["events"].as_array().unwrap().iter().map(|event| event["time"].as_f64().unwrap());
        assert!(times.fold(f64::MAX, f64::min) < began, "{name:?}: the events of that daemon are kept: {events}");
    }
    assert!(versions > 0, "no fixture");
}
