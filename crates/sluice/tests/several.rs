//! `sluice set` for several VMs at once: a named policy for all that hold it, and patterns of names.

use crate::common::{Daemon, Ended, MIB, Place, run, sluice};
use serde_json::Value;

fn ask(place: &Place, verb: &[&str]) -> Ended {
    run(sluice().args(["-o", "json"]).args(verb).arg("--socket").arg(place.socket("control")))
}

fn json(ended: Ended) -> Value {
    serde_json::from_str(&ended.ok()).unwrap()
}

/// Three VMs: two hold the policy gold, of which one states a weight of its own; db1 has a volume that holds it.
fn host(place: &Place) -> String {
    let volume = |vm: &str, more: &str| place.volume(vm, "v", &place.image(&format!("{vm}.img"), MIB), more);
    place.control_keys()
        + &place.device("capacity = \"1000 iops@8KiB\"")
        + "[policy.gold]\nreservation = \"300 iops\"\nlimit = \"500 iops\"\n"
        + "[vm.web1]\npolicy = \"gold\"\n[vm.web2]\npolicy = \"gold\"\nweight = 7\n[vm.db1]\nreservation = \"300 iops\"\n"
        + &volume("web1", "")
        + &volume("web2", "")
        + &volume("db1", "policy = \"gold\"")
}

/// Names and a value of each in `changed` of a reply.
fn changed(reply: &Value, when: &str, key: &str) -> Vec<(String, Option<f64>)> {
    let each = reply["changed"].as_array().unwrap_or_else(|| panic!("{reply}")).iter();
    each.map(|one| (one["name"].as_str().unwrap().to_owned(), one[when]["policy"][key].as_f64())).collect()
}

fn limits(place: &Place) -> Vec<Option<f64>> {
    let now = |target: &str| json(ask(place, &["set", target, "idle_credit=1", "--until-restart"]));
    ["web1", "web2", "db1/v", "db1"].map(|target| now(target)["after"]["policy"]["limit_iops"].as_f64()).to_vec()
}

fn overrides(place: &Place) -> Vec<String> {
    let all = json(ask(place, &["get", "overrides"]));
    let names = all["overrides"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap().to_owned());
    names.filter(|name| !name.ends_with("idle_credit")).collect()
}

#[test]
fn a_policy_changes_for_all_that_hold_it() {
    let place = Place::new();
    let file = host(&place);
    let daemon = Daemon::serve(&place, &file);
    let reply = json(ask(&place, &["set", "policy/gold", "limit=400 iops", "--reason", "sale"]));
    let all = |limit: f64| ["db1/v", "web1", "web2"].map(|name| (name.to_owned(), Some(limit))).to_vec();
    assert_eq!(
        (changed(&reply, "before", "limit_iops"), changed(&reply, "after", "limit_iops")),
        (all(500.0), all(400.0))
    );
    assert_eq!(overrides(&place), ["policy/gold.limit"]);
    assert_eq!(limits(&place), [Some(400.0), Some(400.0), Some(400.0), None]);
    // Fields that a holder states win; the change survives a crash.
    json(ask(&place, &["set", "policy/gold", "weight=300"]));
    daemon.kill();
    let daemon = Daemon::serve(&place, &file);
    let reply = json(ask(&place, &["set", "policy/gold", "read_limit=350 iops"]));
    let weights = [("db1/v", 300.0), ("web1", 300.0), ("web2", 7.0)];
    assert_eq!(changed(&reply, "after", "weight"), weights.map(|(name, weight)| (name.to_owned(), Some(weight))));
    // A reload keeps it, until the file has another value of the field.
    let reload = |text: &str| {
        std::fs::write(place.file("host.toml"), text).unwrap();
        ask(&place, &["apply", place.file("host.toml").to_str().unwrap()])
    };
    json(reload(&file.replace("[vm.db1]", "[vm.db1]\nweight = 50")));
    assert_eq!(limits(&place)[0], Some(400.0));
    json(reload(&file.replace("500 iops", "700 iops")));
    assert_eq!(
        (limits(&place)[0], overrides(&place)),
        (Some(700.0), vec!["policy/gold.weight".into(), "policy/gold.read_limit".into()])
    );
    let reset = json(ask(&place, &["reset", "policy/gold"]));
    assert_eq!(reset["taken_back"], serde_json::json!(["policy/gold.weight", "policy/gold.read_limit"]));
    assert_eq!(changed(&reset, "before", "read_limit_iops"), all(350.0));
    let none = ["db1/v", "web1", "web2"].map(|name| (name.to_owned(), None)).to_vec();
    assert_eq!(changed(&reset, "after", "read_limit_iops"), none);
    drop(daemon);
}

#[test]
fn a_change_of_a_policy_is_refused_as_a_whole() {
    let place = Place::new();
    let _daemon = Daemon::serve(&place, &host(&place));
    // 3 x 300 iops of 1000 fit; with 360 each the two VMs and db1 do not.
    let refused = ask(&place, &["set", "policy/gold", "reservation=360 iops"]);
    assert_eq!(refused.code(), Some(1), "{}", refused.stderr);
    assert_eq!(limits(&place)[0], Some(500.0));
    let all = json(ask(&place, &["set", "policy/gold", "limit=450 iops", "--for", "10m"]));
    assert_eq!(changed(&all, "after", "reservation_iops")[1], ("web1".to_owned(), Some(300.0)));
    for (target, words) in
        [("policy/silver", "There is no policy silver; there are gold"), ("policy/", "names no policy")]
    {
        let missing = ask(&place, &["set", target, "weight=3"]);
        assert!(missing.stderr.contains(words), "{}", missing.stderr);
    }
    assert_eq!(ask(&place, &["set", "policy/silver", "weight=3"]).code(), Some(3));
}

#[test]
fn a_change_of_a_policy_is_written_into_a_drop_in() {
    let place = Place::new();
    let file = host(&place);
    let daemon = Daemon::serve(&place, &file);
    json(ask(&place, &["set", "policy/gold", "limit=420 iops", "--persist"]));
    let dropin = std::fs::read_to_string(place.file("host.d/zz-sluice.toml")).unwrap();
    assert!(dropin.contains("[policy.gold]\nlimit = \"420 iops\"\n"), "{dropin}");
    drop(daemon);
    let _daemon = Daemon::serve(&place, &file);
    assert_eq!((limits(&place)[0], overrides(&place)), (Some(420.0), Vec::new()));
}

#[test]
fn a_pattern_changes_all_or_nothing() {
    let place = Place::new();
    let _daemon = Daemon::serve(&place, &host(&place));
    let reply = json(ask(&place, &["set", "web*", "limit=350 iops", "write_limit=100 iops"]));
    let both = |limit: f64| ["web1", "web2"].map(|name| (name.to_owned(), Some(limit))).to_vec();
    assert_eq!(
        (changed(&reply, "before", "limit_iops"), changed(&reply, "after", "write_limit_iops")),
        (both(500.0), both(100.0))
    );
    assert_eq!(limits(&place), [Some(350.0), Some(350.0), Some(500.0), None]);
    let volumes = json(ask(&place, &["set", "*/v", "weight=9"]));
    assert_eq!(changed(&volumes, "after", "weight").len(), 3);
    // Together they do not fit, and below 300 iops the first would contradict itself.
    for keys in ["reservation=345 iops", "limit=200 iops"] {
        let refused = ask(&place, &["set", "web?", keys]);
        assert_eq!(refused.code(), Some(1), "{}", refused.stderr);
    }
    assert_eq!(limits(&place)[..2], [Some(350.0), Some(350.0)]);
    for (target, words) in [("mail*", "No VM matches 'mail*'"), ("web*/data*", "No volume matches 'web*/data*'")] {
        let missing = ask(&place, &["set", target, "weight=3"]);
        assert_eq!(missing.code(), Some(3), "{}", missing.stderr);
        assert!(missing.stderr.contains(words), "{}", missing.stderr);
    }
    let reset = json(ask(&place, &["reset", "web*/limit"]));
    assert_eq!(reset["taken_back"], serde_json::json!(["web1/limit", "web2/limit"]));
    assert_eq!(limits(&place)[..2], [Some(500.0), Some(500.0)]);
    let table = run(sluice().args(["set", "web*", "limit=360 iops", "--socket"]).arg(place.socket("control"))).ok();
    assert!(table.contains("web2") && table.contains("limit_iops"), "{table}");
}

#[test]
fn policies_are_listed_with_their_holders_in_every_form() {
    let place = Place::new();
    let _daemon = Daemon::serve(&place, &host(&place));
    let get = |form: &str, names: &[&str]| {
        let mut command = sluice();
        command.args(["-o", form, "get", "policies"]).args(names).arg("--socket").arg(place.socket("control"));
        run(&mut command)
    };
    let all = json(get("json", &[]));
    let rows = all["policies"].as_array().unwrap();
    let [gold] = &rows[..] else { panic!("{all}") };
    assert_eq!((&gold["policy_name"], &gold["policy"]["limit_iops"]), (&"gold".into(), &500.0.into()));
    assert_eq!((&gold["vms"], &gold["volumes"]), (&serde_json::json!(["web1", "web2"]), &serde_json::json!(["db1/v"])));
    assert_eq!((&gold["reserved_iops"], &gold["reserved_percent"]), (&600.0.into(), &60.0.into()));
    assert_eq!(get("jsonl", &["go*"]).ok().trim().parse::<Value>().unwrap(), *gold);
    let csv = get("csv", &[]).ok();
    assert!(csv.starts_with("policy_name,device,") && csv.contains("gold,disk,"), "{csv}");
    for (form, words) in [("table", "web1 web2"), ("wide", "WRITE LIMIT")] {
        let table = get(form, &["gold"]).ok();
        assert!(table.contains(words) && table.contains("60 %"), "{table}");
    }
    let missing = get("table", &["silver"]);
    assert!(
        missing.code() == Some(3) && missing.stderr.contains("There is no silver; there are gold"),
        "{}",
        missing.stderr
    );
}
