//! Clients as a table.

use sluice_api::list::Client;

use super::shown;
use crate::output;

/// The table of clients.
pub(crate) fn table(clients: &[Client]) -> String {
    let mut table = output::table(&["VOLUME", "DEVICE", "PROTOCOL", "PEER", "QUEUES", "OUTSTANDING"]);
    for client in clients {
        table.add_row([
            format!("{}/{}", client.vm, client.volume),
            client.device.clone(),
            client.protocol.clone(),
            client.peer.clone(),
            shown(client.queues, |queues| queues.to_string()),
            client.outstanding.to_string(),
        ]);
    }
    table.to_string()
}
