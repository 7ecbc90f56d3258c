//! Parameters have ranges, values outside are rejected, and at the ends nothing overflows and all requests are served.

use std::time::Duration;

use crate::common::plan::{Plan, for_plans, plan};
use crate::common::watched::{Waits, keep_contract, watch_in_any_order};
use crate::common::*;
use sluice_sched::params::{ParamTable, Parameter, Range, Value};
use sluice_sched::scheduler::{Descriptor, DeviceInfo};
use sluice_sched::units::show_duration;
use sluice_sched::*;

/// The ends of a parameter's range, or each of its words.
fn corners_of(parameter: &Parameter) -> Vec<Value> {
    match parameter.range {
        Range::Any => Vec::new(),
        Range::Words(words) => words.iter().map(|word| Value::Text((*word).to_owned())).collect(),
        Range::Flag => [false, true].map(Value::Bool).to_vec(),
        range => range.ends().expect("it has ends").to_vec(),
    }
}

/// The values next to the ends, outside.
fn outside(range: Range) -> Vec<Value> {
    let around = |min: u64, max: u64| min.checked_sub(1).into_iter().chain(max.checked_add(1));
    let texts = |texts: Vec<String>| texts.into_iter().map(Value::Text).collect();
    match range {
        Range::Any | Range::Words(_) | Range::Flag => Vec::new(),
        Range::Number(min, max) => around(min.into(), max.into()).map(|end| Value::Integer(end as i64)).collect(),
        Range::Decimal(min, max) => [min - 0.5, max + 0.5].map(Value::Float).to_vec(),
        Range::Requests(min, max) => texts(around(min, max).map(|end| Iops::from_milli(end).to_string()).collect()),
        Range::Time(min, max) => {
            let ends = around(min.as_nanos() as u64, max.as_nanos() as u64);
            texts(ends.map(|nanos| show_duration(Duration::from_nanos(nanos))).collect())
        }
        Range::Size(min, max) => texts(around(min, max).map(|end| Bytes(end).to_string()).collect()),
        Range::Rate(_, max) => texts(vec![ByteRate::per_second(max + 1).to_string()]),
        Range::Percent(min, max) => {
            let ends = around(min.into(), max.into());
            texts(ends.map(|end| Percent::from_hundredths(end as u16).to_string()).collect())
        }
    }
}

fn builds(descriptor: &Descriptor, table: &ParamTable) -> Result<(), String> {
    descriptor.build(&DeviceInfo::default(), table).map(|_| ()).map_err(|error| error.0)
}

#[test]
fn parameters_without_bounds_were_accepted_with_any_value() {
    let mut refused = 0;
    for descriptor in sluice_papers::ALL {
        for parameter in descriptor.parameters {
            let what = format!("{}.{}", descriptor.name, parameter.name);
            assert_ne!(parameter.range, Range::Any, "{what} has a range");
            let alone =
                |value: &Value| builds(descriptor, &ParamTable::from([(parameter.name.to_owned(), value.clone())]));
            for value in corners_of(parameter) {
                assert_eq!(alone(&value), Ok(()), "{what} = {value}");
            }
            for value in outside(parameter.range) {
                let message = alone(&value).expect_err(&format!("{what} = {value} is refused"));
                assert!(message.starts_with(&format!("{} is {value}; it must be from ", parameter.name)), "{message}");
                refused += 1;
            }
        }
    }
    assert!(refused > 60, "{refused}");
}

#[test]
fn defaults_are_in_their_range() {
    for descriptor in sluice_papers::ALL {
        for parameter in descriptor.parameters {
            let value = match (parameter.range, parameter.default) {
                // A default that depends on other parameters is stated in words.
                (_, default) if default == "none" || default.contains(' ') => continue,
                (Range::Number(..), default) => Value::Integer(default.parse().expect("a number")),
                (Range::Flag, default) => Value::Bool(default == "true"),
                (_, default) => Value::Text(default.trim_matches('"').to_owned()),
            };
            let table = ParamTable::from([(parameter.name.to_owned(), value)]);
            assert_eq!(builds(descriptor, &table), Ok(()), "{}.{}", descriptor.name, parameter.name);
        }
    }
}

/// Checks a plan with these parameters, if they are accepted together.
fn keeps_contract(descriptor: &'static Descriptor, corner: &ParamTable, plan: &Plan) {
    let subject = Subject { params: corner.clone(), ..Subject::of(descriptor.name) };
    if builds(descriptor, corner).is_err_and(|error| error.contains("is a parameter of mode")) {
        return;
    }
    keep_contract(plan, || watch_in_any_order(subject.build(&plan.info()), Waits::Other, plan));
}

/// Each pair of parameters at all of their ends.
#[test]
fn each_two_parameters_at_their_ends_keep_the_contract() {
    let mut plans = Vec::new();
    let keep = std::cell::RefCell::new(&mut plans);
    for_plans(24, plan(true), |plan| keep.borrow_mut().push(plan.flavoured()));
    let mut run = 0;
    for descriptor in sluice_papers::ALL {
        let known = descriptor.parameters;
        for (index, one) in known.iter().enumerate() {
            for other in &known[index + 1..] {
                for (a, b) in corners_of(one).iter().flat_map(|a| corners_of(other).into_iter().map(move |b| (a, b))) {
                    let corner = [(one.name.to_owned(), a.clone()), (other.name.to_owned(), b)];
                    keeps_contract(descriptor, &ParamTable::from(corner), &plans[run % plans.len()]);
                    run += 1;
                }
            }
        }
    }
    println!("{run} corners");
    assert!(run > 1000, "{run}");
}

/// All parameters at one end each.
#[test]
fn random_corners_keep_the_contract() {
    let rng = std::cell::RefCell::new(chance(5));
    for descriptor in sluice_papers::ALL {
        for_plans(40, plan(true), |plan| {
            let corner = descriptor.parameters.iter().map(|parameter| {
                let corners = corners_of(parameter);
                let chosen = below(&mut rng.borrow_mut(), corners.len() as u64) as usize;
                (parameter.name.to_owned(), corners[chosen].clone())
            });
            keeps_contract(descriptor, &corner.collect(), plan);
        });
    }
}

#[test]
fn cfqs_slices_overflowed_with_parameters_that_were_accepted() {
    for (target, sync, asynchronous) in [("1s", "100ms", "60s"), ("60s", "1us", "60s"), ("60s", "60s", "60s")] {
        for name in ["cfq", "mcfq"] {
            let times = [("target_latency", target), ("slice_sync", sync), ("slice_async", asynchronous)];
            let subject = times.into_iter().fold(Subject::of(name), |subject, (name, time)| subject.text(name, time));
            let mut world = World::simple(&subject, 4, 1000);
            let vms = [Kind::Read, Kind::Write].map(|kind| {
                let vm = world.vm(Policy::default());
                world.source(Source::new(vm, VolumeId(0), Pattern::Closed(16)).kind(kind));
                vm
            });
            world.run_until(secs(300));
            let counts = world.counts(&vms, Instant::ZERO, secs(300));
            // With slices of a microsecond next to minutes, async requests wait for longer than this; none is lost.
            let sane = sync == "1us" || counts.iter().all(|count| *count > 100);
            assert!(sane && counts[0] + counts[1] > 250_000, "{name} {target} {sync} {asynchronous}: {counts:?}");
        }
    }
}
