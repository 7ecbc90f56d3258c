//! Clients as a table.

use serde_json::Value;

use super::{count, text};
use crate::output;

/// The table of clients.
pub(crate) fn table(clients: &[Value]) -> String {
    let mut table = output::table(&["VOLUME", "DEVICE", "PROTOCOL", "PEER", "QUEUES", "OUTSTANDING"]);
    for client in clients {
        table.add_row([
            format!("{}/{}", text(&client["vm"]), text(&client["volume"])),
            text(&client["device"]).to_owned(),
            text(&client["protocol"]).to_owned(),
            text(&client["peer"]).to_owned(),
            count(&client["queues"]),
            count(&client["outstanding"]),
        ]);
    }
    table.to_string()
}
