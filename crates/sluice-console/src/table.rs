//! Tables on a terminal.

use comfy_table::{ContentArrangement, Table, presets};

/// Returns a table with a header, unless that is empty.
#[must_use]
pub fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    if !header.is_empty() {
        table.set_header(header);
    }
    table
}
