//! `cloud-hypervisor-args`: arguments for `cloud-hypervisor`, in addition to those of the VM itself.

use serde_json::json;

use super::{Disk, ExportError, Machine, Rendered, shell};

const VMM: &str = "Cloud Hypervisor";
/// Separators in its option lists. Its documentation states no way to escape them in a value.
const SEPARATORS: [char; 4] = [',', '"', '[', ']'];

/// Shared memory, and one `--disk` with a value for each disk, because the option is accepted only once.
pub(crate) fn render(disks: &[Disk<'_>], machine: &Machine<'_>) -> Result<Rendered, ExportError> {
    let mut values = vec!["--disk".to_owned()];
    for (number, disk) in disks.iter().enumerate() {
        let (socket, most) = disk.vhost_user(VMM)?;
        if let Some(character) = socket.chars().find(|c| SEPARATORS.contains(c)) {
            return Err(ExportError::Unquotable { vmm: VMM, path: socket.to_owned(), character });
        }
        let queues = machine.queues(most).map_or(String::new(), |queues| format!(",num_queues={queues}"));
        values.push(format!("vhost_user=true,socket={socket},id=sluice{number}{queues}"));
    }
    let memory = format!("size={}M,shared=on", machine.memory_mib(VMM)?);
    let options = [vec!["--memory".to_owned(), memory], values];
    let arguments: Vec<&String> = options.iter().flatten().collect();
    let fields = vec![("arguments", json!(arguments))];
    Ok(Rendered { text: shell::lines(&options), fields })
}
