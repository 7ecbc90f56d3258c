//! `cloud-hypervisor-args`: arguments for `cloud-hypervisor`, in addition to those of the VM itself.

use serde_json::json;

use super::{CardLink, ExportError, Machine, Parts, Rendered};

const VMM: &str = "Cloud Hypervisor";
/// Separators in its option lists. Its documentation states no way to escape them in a value.
const SEPARATORS: [char; 4] = [',', '"', '[', ']'];

/// Shared memory, and one `--disk` and one `--net` with a value for each disk and NIC, because an option is accepted only once.
pub(crate) fn render(parts: &Parts<'_>, machine: &Machine<'_>) -> Result<Rendered, ExportError> {
    let mut values = vec!["--disk".to_owned()];
    for (number, disk) in parts.disks.iter().enumerate() {
        let (socket, most) = disk.vhost_user(VMM)?;
        check(socket)?;
        let queues = machine.queues(most).map_or(String::new(), |queues| format!(",num_queues={queues}"));
        values.push(format!("vhost_user=true,socket={socket},id=sluice{number}{queues}"));
    }
    let mut cards = vec!["--net".to_owned()];
    for card in &parts.cards {
        let link = match card.link {
            CardLink::VhostUser { socket, queues } => {
                check(socket)?;
                // It counts both queues of a pair.
                let queues = machine.queues(queues).map_or(String::new(), |pairs| format!(",num_queues={}", 2 * pairs));
                format!("vhost_user=true,socket={socket}{queues}")
            }
            CardLink::Tap(name) => {
                check(name)?;
                format!("tap={name}")
            }
        };
        let mtu = card.mtu.map_or(String::new(), |mtu| format!(",mtu={mtu}"));
        cards.push(format!("{link},mac={},id={}{mtu}", card.mac, card.id()));
    }
    let mut options = Vec::new();
    if parts.share_memory() {
        let memory = format!("size={}M,shared=on", machine.memory_mib(VMM)?);
        options.push(vec!["--memory".to_owned(), memory]);
    }
    options.extend([values, cards].into_iter().filter(|values| values.len() > 1));
    let arguments: Vec<&String> = options.iter().flatten().collect();
    let fields = vec![("arguments", json!(arguments))];
    Ok(Rendered { text: sluice_api::shell::lines(&options), fields })
}

/// Rejects a path or name that would end its option.
fn check(value: &str) -> Result<(), ExportError> {
    match value.chars().find(|c| SEPARATORS.contains(c)) {
        Some(character) => Err(ExportError::Unquotable { vmm: VMM, path: value.to_owned(), character }),
        None => Ok(()),
    }
}
