//! Events as a table, or one by one.

use comfy_table::{ContentArrangement, Table};
use sluice_api::event::Event;
use sluice_daemon::explain::{neighbours, sentence};
use sluice_daemon::state::time::Time;

use crate::output;

/// Narrowest terminal for which long lines are broken: there is little room beside the time.
const NARROWEST: u16 = 60;

/// The table of events, oldest first; `wide` has the neighbours too. Long texts are broken for a terminal of this `width`, and go on
/// beside the time.
pub(crate) fn table(events: &[Event], wide: bool, width: Option<u16>) -> String {
    if events.is_empty() {
        return "There are no such events.".to_owned();
    }
    let mut header = vec!["TIME", "WHAT"];
    if wide {
        header.push("SERVED MEANWHILE");
    }
    let mut table = output::table(&header);
    break_at(&mut table, width);
    for event in events {
        let mut row = vec![time(event), event.text.clone()];
        if wide {
            row.push(neighbours(event).unwrap_or_else(|| super::NOTHING.to_owned()));
        }
        table.add_row(row);
    }
    table.to_string()
}

/// The same, broken for a terminal of this `width`.
pub(crate) fn lines(event: &Event, width: Option<u16>) -> String {
    let Some(width) = width else { return sentence(event) };
    let mut table = output::table(&[]);
    break_at(&mut table, Some(width));
    table.add_row([time(event), event.text.clone()]);
    table.trim_fmt()
}

fn break_at(table: &mut Table, width: Option<u16>) {
    if let Some(width) = width.filter(|width| *width >= NARROWEST) {
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    }
}

fn time(event: &Event) -> String {
    Time(event.time).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_reason_was_broken_by_the_terminal_at_any_letter() {
        let why = "db got 40 iops of the 100 iops that it has reserved and asked for; cause: weights of other VMs";
        let event = Event { text: why.to_owned(), ..Event::default() };
        for lines in [table(std::slice::from_ref(&event), false, Some(80)), lines(&event, Some(80))] {
            let all: Vec<&str> = lines.lines().skip_while(|line| line.contains("TIME")).map(str::trim_end).collect();
            assert_eq!(all.len(), 2, "{lines}");
            assert!(all.iter().all(|line| line.chars().count() <= 80), "{lines}");
            let text = all[0].find("db got").unwrap();
            assert_eq!(all[1].find(char::is_alphanumeric), Some(text), "{lines}");
            let joined = format!("{} {}", &all[0][text..], all[1].trim_start());
            assert_eq!(joined, why, "broken between words");
        }
        for width in [None, Some(NARROWEST - 1)] {
            assert!(table(std::slice::from_ref(&event), false, width).contains(why));
        }
        assert_eq!(lines(&event, None), format!("1970-01-01T00:00:00Z  {why}"));
    }
}
