//! Events as a table, or one by one.

use serde_json::Value;

use super::text;
use crate::output;
use crate::state::time::Time;

/// The table of events, oldest first; `wide` has the neighbours too.
pub(crate) fn table(events: &[Value], wide: bool) -> String {
    let mut header = vec!["TIME", "WHAT"];
    if wide {
        header.push("SERVED MEANWHILE");
    }
    let mut table = output::table(&header);
    for event in events {
        let mut row = vec![time(event), text(&event["text"]).to_owned()];
        if wide {
            row.push(neighbours(event).unwrap_or_else(|| super::NOTHING.to_owned()));
        }
        table.add_row(row);
    }
    table.to_string()
}

/// An event in one line.
pub(crate) fn sentence(event: &Value) -> String {
    format!("{}  {}", time(event), text(&event["text"]))
}

fn time(event: &Value) -> String {
    Time(event["time"].as_u64().unwrap_or(0)).to_string()
}

/// The neighbours that were served meanwhile, largest first.
pub(crate) fn neighbours(event: &Value) -> Option<String> {
    let names = super::list(&event["neighbours"]).iter().map(|neighbour| {
        let percent = neighbour["percent"].as_f64().unwrap_or(0.0);
        format!("{} {percent:.0} % (by {})", text(&neighbour["vm"]), text(&neighbour["by"]))
    });
    let names: Vec<String> = names.collect();
    (!names.is_empty()).then(|| names.join(", "))
}
