//! `count` of a VM: the VMs that one table makes.
//!
//! Example: `[vm.web]` with `count = 1000` makes web-0001 to web-1000. The numbers have equally many digits, so that the order of
//! the names, in which volumes follow each other, is that of the numbers.

use std::collections::BTreeMap;

use super::fields::VMS_MAX;
use super::vm::Vm;
use sluice_config::reader::Reader;

/// VMs by name.
pub(super) type Vms = BTreeMap<String, Vm>;
/// The VMs that a name stands for: a VM, or all of a table with a count.
pub(super) type Groups = BTreeMap<String, Vec<String>>;

/// All VMs of these tables.
pub(super) fn expand<'a, 'r: 'a>(stated: impl Iterator<Item = (&'a str, &'a Reader<'r>, Vm)>) -> (Vms, Groups) {
    let (mut vms, mut groups) = (Vms::new(), Groups::new());
    let mut counted = Vec::new();
    // Names that are written come first, so that a conflict is reported at the count.
    for (name, reader, vm) in stated {
        match reader.small("count") {
            Some(count) => counted.push((name, reader, vm, count)),
            None => {
                groups.insert(name.to_owned(), vec![name.to_owned()]);
                vms.insert(name.to_owned(), vm);
            }
        }
    }
    for (name, reader, vm, count) in counted {
        add(&mut vms, &mut groups, (name, reader, vm), count);
    }
    (vms, groups)
}

/// Adds the VMs of one table.
fn add(vms: &mut Vms, groups: &mut Groups, (name, reader, vm): (&str, &Reader<'_>, Vm), count: u32) {
    let members: Vec<String> = names(name, count).collect();
    // Events may name the table even if its count has an error.
    groups.insert(name.to_owned(), Vec::new());
    if reader.node("offset").is_some() {
        let hint = "remove offset; the volumes then follow each other";
        return reader.refuse("offset", "the volumes of its VMs would be the same bytes", hint);
    }
    if vms.len() + members.len() > VMS_MAX as usize {
        let hint = "write a smaller count";
        return reader.refuse("count", format!("the scenario would have more than {VMS_MAX} VMs"), hint);
    }
    if let Some(taken) = members.iter().find(|member| vms.contains_key(*member)) {
        let hint = format!("rename [vm.{name}] or the other table");
        return reader.refuse("count", format!("it makes a VM {taken}, and another table does too"), hint);
    }
    let before = reader.report.errors();
    reader.check_name(&members[0], reader.at("count"), &format!("{}: count", reader.whose));
    if reader.report.errors() > before {
        return;
    }
    groups.insert(name.to_owned(), members.clone());
    for (place, member) in members.into_iter().enumerate() {
        let vm = Vm { name: member.clone(), is_copy: place > 0, ..vm.clone() };
        groups.insert(member.clone(), vec![member.clone()]);
        vms.insert(member, vm);
    }
}

/// The names of the VMs of a count.
fn names(name: &str, count: u32) -> impl Iterator<Item = String> {
    let digits = count.to_string().len();
    (1..=count).map(move |number| format!("{name}-{number:0digits$}"))
}
