//! Draws the display. Everything is cut at the edges, so that any size of terminal works.

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::widgets::{Clear, Widget};
use sluice_api::cause::Cause;
use sluice_api::change::until_in_words;
use sluice_api::status::{Device, Promise, State};
use sluice_api::top::{Amount, Rates};
use sluice_daemon::state::time::Time;

use super::app::{App, Dialog, Page};
use super::band::Band;
use super::change::{Change, Step};
use super::details;
use super::model::{failing, throughput_of};
use super::rows::Row;
use super::theme::Theme;
use crate::show::devices::verdict;
use crate::show::{self, NOTHING, operations, shown};
use sluice_api::amount::{bits, percent, rate, time};
use sluice_daemon::explain::promise::mark;

/// Seconds without a reply from which on the display says so.
const SILENT: u64 = 3;
/// Devices in the header.
const DEVICES: usize = 4;

const HELP: &[&str] = &[
    "Up Down PgUp PgDn Home End  select a VM",
    "Enter, d  details with the latency histogram",
    "s  change a key of the policy",
    "/  filter by name, device or state",
    "t  tree: device, VM, volume",
    "b  broken promises first     r  by rate",
    "l  by p99     o  by outstanding     n  by name",
    "c  by CPU time of the daemon",
    "i  reverse the order",
    "Esc  back, or no filter     q  quit",
    "",
    "The bar: | reservation, ] limit,",
    "- reserved and not used, > above the limit.",
    "Rates: normalised, last second. P99: last 10 s.",
];

/// Draws everything.
pub(crate) fn draw(app: &mut App, frame: &mut Frame<'_>, theme: &Theme) {
    let (area, buffer) = (frame.area(), frame.buffer_mut());
    let mut canvas = Canvas { buffer, area, next: 0 };
    header(app, &mut canvas, theme);
    let body = canvas.left().saturating_sub(1);
    match app.page {
        Page::Table => table(app, &mut canvas, theme, body),
        Page::Details => details::draw(app, &mut canvas, theme, body),
    }
    footer(app, &mut canvas);
    dialog(app, buffer, area, theme);
}

/// Lines of a screen, from its top.
pub(super) struct Canvas<'a> {
    buffer: &'a mut Buffer,
    area: Rect,
    /// The next line.
    next: u16,
}

impl Canvas<'_> {
    pub(super) fn width(&self) -> u16 {
        self.area.width
    }

    fn left(&self) -> u16 {
        self.area.height.saturating_sub(self.next)
    }

    /// Writes a line, as far as there is room.
    pub(super) fn line(&mut self, text: &str, style: Style) {
        self.cells(&[(text.to_owned(), style)], Style::new());
    }

    /// Writes a line of parts; `style` is that of the whole line.
    fn cells(&mut self, parts: &[(String, Style)], style: Style) {
        if self.left() == 0 {
            return;
        }
        let y = self.area.y + self.next;
        let mut x = self.area.x;
        for (text, style) in parts {
            let room = self.area.right().saturating_sub(x);
            x = self.buffer.set_stringn(x, y, text, usize::from(room), *style).0;
        }
        self.buffer.set_style(Rect { y, height: 1, ..self.area }, style);
        self.next += 1;
    }
}

fn header(app: &App, canvas: &mut Canvas<'_>, theme: &Theme) {
    let snapshot = &app.snapshot;
    let broken = snapshot.vms.iter().filter(|vm| vm.now.is_broken()).count();
    let kept = if broken == 0 { "no promise broken".to_owned() } else { format!("{broken} BROKEN") };
    let (order, filter) = (if app.view.reversed { ", reversed" } else { "" }, &app.view.filter);
    let filter = if filter.is_empty() { String::new() } else { format!("  filter: {filter}") };
    let parts = [
        ("sluice top  ".to_owned(), theme.title()),
        (kept, if broken > 0 { theme.broken() } else { theme.kept() }),
        (format!("  {} VMs  sort: {}{order}{filter}", snapshot.vms.len(), app.view.sort.name()), Style::new()),
        (format!("  {}", Time(snapshot.time)), Style::new()),
    ];
    canvas.cells(&parts, Style::new());
    if let Some(lost) = &app.lost {
        let text = format!("NO CONNECTION for {} s, trying again: {lost}", app.silent_seconds);
        canvas.line(&text, theme.broken());
    } else if app.silent_seconds >= SILENT {
        canvas.line(&format!("NO REPLY for {} s: all figures are old", app.silent_seconds), theme.broken());
    }
    let devices = &snapshot.devices;
    devices.iter().take(DEVICES).for_each(|device| device_lines(device, canvas, theme));
    if devices.len() > DEVICES {
        canvas.line(&format!("and {} more devices", devices.len() - DEVICES), Style::new());
    }
    for failing in failing(snapshot) {
        canvas.line(&format!("! {failing}"), theme.broken());
    }
    for volume in &snapshot.out_of_service {
        canvas.line(&format!("! {volume} is out of service"), theme.broken());
    }
    for volume in &snapshot.held_back {
        canvas.line(&format!("! {} is held back: {}", volume.volume, volume.reason), theme.broken());
    }
}

fn device_lines(device: &Device, canvas: &mut Canvas<'_>, theme: &Theme) {
    let (capacity, rates, is_link) = (&device.capacity, &device.rates.second, device.rates.are_of_link());
    let stated_bits = capacity.stated_bytes_per_second.map(|bytes| 8.0 * bytes as f64);
    let reserved_bits = 8.0 * capacity.reserved_bytes_per_second as f64;
    let (reserved, stated) = (rate(capacity.reserved_iops), capacity.stated_iops.filter(|stated| *stated > 0.0));
    let reserved = match (stated_bits.filter(|stated| *stated > 0.0), stated) {
        (Some(stated), _) if is_link => {
            format!("{} of {} ({:.0} %)", bits(reserved_bits), bits(stated), reserved_bits / stated * 100.0)
        }
        _ if is_link => bits(reserved_bits),
        (_, Some(stated)) => {
            format!("{reserved} of {} iops ({:.0} %)", rate(stated), capacity.reserved_iops / stated * 100.0)
        }
        _ => format!("{reserved} iops"),
    };
    let throughput = show::throughput_of(rates);
    let now = match is_link {
        true => format!("{} frames/s, {throughput}", operations(rates)),
        false => format!("{} iops, {throughput} MiB/s", operations(rates)),
    };
    let parts = [
        (device.device.clone(), theme.device()),
        (format!(": {}", device.health.name()), Style::new()),
        (
            format!(
                "  full {}  capacity {}  reserved {reserved}  now {now}",
                percent(device.full_percent),
                verdict(capacity.verdict),
            ),
            Style::new(),
        ),
    ];
    canvas.cells(&parts, Style::new());
    if let Some(pool) = &device.pool {
        canvas.line(&format!("  {}", show::pool::line(pool)), Style::new());
    }
    for problem in &device.problems {
        canvas.line(&format!("! {} {problem}", device.device), theme.broken());
    }
}

/// Columns, in the order of the screen.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Column {
    Name,
    State,
    Band,
    Rate,
    Reserved,
    Limit,
    Bandwidth,
    P50,
    P99,
    Outstanding,
    ByReservation,
    Cpu,
    HeldBy,
}

/// A column, its title, its least width, and the width of the screen from which on it is shown.
const COLUMNS: [(Column, &str, u16, u16); 13] = [
    (Column::Name, "NAME", 12, 0),
    (Column::State, "PROMISE", 8, 20),
    (Column::Band, "RATE IN ITS BAND", 18, 52),
    (Column::Rate, "IOPS", 6, 28),
    (Column::Reserved, "RESERVED", 10, 100),
    (Column::Limit, "LIMIT", 10, 100),
    (Column::Bandwidth, "MIB/S", 11, 115),
    (Column::P50, "P50", 7, 120),
    (Column::P99, "P99", 7, 36),
    (Column::Outstanding, "OUTSTANDING", 11, 130),
    (Column::ByReservation, "BY RESERVATION", 14, 146),
    (Column::Cpu, "CPU", 6, 96),
    (Column::HeldBy, "HELD BY", 14, 72),
];

/// The columns for a width. What is left over goes to the name, the band and the last column.
fn columns(width: u16) -> Vec<(Column, &'static str, u16)> {
    let shown = COLUMNS.into_iter().filter(|(.., from)| width >= *from);
    let mut columns: Vec<_> = shown.map(|(column, title, least, _)| (column, title, least)).collect();
    let used: u16 = columns.iter().map(|(.., least)| least + 1).sum();
    let spare = width.saturating_sub(used);
    for (column, _, own) in &mut columns {
        *own += match column {
            Column::Name => (spare / 4).min(24),
            Column::Band => (spare / 4).min(22),
            Column::HeldBy => spare / 2,
            _ => 0,
        };
    }
    columns
}

/// The table of VMs, with the header, in `lines` lines.
fn table(app: &mut App, canvas: &mut Canvas<'_>, theme: &Theme, lines: u16) {
    let columns = columns(canvas.width());
    let cells = |of: &dyn Fn(Column, &str, u16) -> (String, Style)| {
        columns.iter().map(|(column, title, width)| of(*column, title, *width)).collect::<Vec<_>>()
    };
    canvas.cells(&cells(&|_, title, width| (cell(title, width), Style::new())), theme.selected());
    let count = usize::from(lines.saturating_sub(1));
    let (selected, total) = {
        let rows = app.rows();
        (app.selected_row(&rows), rows.len())
    };
    app.page_rows = count.max(1);
    app.offset = app.offset.clamp((selected + 1).saturating_sub(count.max(1)), selected).min(total.saturating_sub(1));
    let scale = app.snapshot.vms.iter().filter_map(|vm| vm.now.rates).map(|rates| rates.iops).fold(1.0, f64::max);
    let rows = app.rows();
    for (index, row) in rows.iter().enumerate().skip(app.offset).take(count) {
        let scale = match row {
            Row::Vm(vm) | Row::Volume { vm, .. } => device_iops(app, &vm.device).unwrap_or(scale),
            Row::Device { .. } => scale,
        };
        let parts = cells(&|column, _, width| {
            let (text, style) = value(row, app.view.tree, column, (width, scale), theme);
            (cell(&text, width), style)
        });
        canvas.cells(&parts, if index == selected { theme.selected() } else { Style::new() });
    }
    if rows.is_empty() {
        let none = if app.view.filter.is_empty() { "There are no VMs" } else { "No VM matches the filter" };
        canvas.line(none, Style::new());
    }
}

/// Stated capacity of a device, in normalised requests per second.
fn device_iops(app: &App, name: &str) -> Option<f64> {
    app.snapshot.devices.iter().find(|device| device.device == name)?.capacity.stated_iops
}

/// A text cut or filled to a width, and a space.
fn cell(text: &str, width: u16) -> String {
    let width = usize::from(width);
    let cut: String = text.chars().take(width).collect();
    format!("{cut:width$} ")
}

fn value(row: &Row<'_>, tree: bool, column: Column, (width, scale): (u16, f64), theme: &Theme) -> (String, Style) {
    let name = match row {
        Row::Device { name } => (*name).to_owned(),
        Row::Vm(vm) => format!("{}{}", if tree { "  " } else { "" }, vm.vm),
        Row::Volume { vm, index } => format!("    {}", vm.volumes[*index].volume),
    };
    let Some((figures, rates)) = row.figures() else {
        return if column == Column::Name { (name, theme.device()) } else { (String::new(), Style::new()) };
    };
    let state = figures.state.unwrap_or(State::None);
    let style = if figures.is_broken() { theme.broken() } else { Style::new() };
    let text = match column {
        Column::Name => name,
        Column::State if figures.is_broken() => "! BROKEN".to_owned(),
        Column::State => format!("  {}", mark(state)),
        Column::Band => Band::of(figures, &rates, scale).draw(width, theme),
        Column::Rate => rate(rates.iops),
        Column::Reserved => amount(&figures.reservation, &rates),
        Column::Limit => amount(&figures.limit, &rates),
        Column::Bandwidth => throughput_of(&rates),
        Column::P50 => shown(rates.p50_us, time),
        Column::P99 => shown(rates.p99_us, time),
        Column::Outstanding => figures.outstanding.to_string(),
        Column::ByReservation => shown(rates.by_reservation_percent, percent),
        Column::Cpu => shown(row.cpu_percent(), percent),
        Column::HeldBy => return (held_by(row, width), Style::new()),
    };
    (text, style)
}

/// The cause of a broken promise, or else why a VM does not get more, in words that fit into this width.
fn held_by(row: &Row<'_>, width: u16) -> String {
    let of_promise = |promises: &[Promise]| promises.iter().find_map(|promise| promise.cause);
    let (cause, none) = match row {
        Row::Device { .. } => (None, ""),
        Row::Volume { vm, index } => (of_promise(&vm.volumes[*index].now.promises), ""),
        Row::Vm(vm) => {
            let of_volume = || vm.volumes.iter().find_map(|volume| of_promise(&volume.now.promises));
            (of_promise(&vm.now.promises).or_else(of_volume).or(vm.held_by), NOTHING)
        }
    };
    let words =
        |cause: Cause| if cause.in_words().len() <= usize::from(width) { cause.in_words() } else { cause.short() };
    cause.map_or(none, words).to_owned()
}

/// A reservation or limit: in requests, in bytes, or both.
pub(super) fn amount(amount: &Amount, rates: &Rates) -> String {
    let is_link = amount.bytes_per_second.is_some() && rates.bits_per_second.is_some();
    show::amount(is_link, amount.iops, amount.bytes_per_second)
}

fn footer(app: &App, canvas: &mut Canvas<'_>) {
    canvas.next = canvas.next.max(canvas.area.height.saturating_sub(1)).min(canvas.area.height);
    let keys = match (&app.dialog, app.page) {
        (Some(Dialog::Filter(_)), _) => {
            format!("Filter: {}_   Enter: keep   Esc: as before", app.view.filter)
        }
        (_, Page::Details) => "Esc back  s set  Up Down scroll  ? help  q quit".to_owned(),
        (_, Page::Table) => {
            "? help  d details  s set  / filter  t tree  b r l o c n sort  i reverse  q quit".to_owned()
        }
    };
    canvas.line(&keys, Style::new());
}

fn dialog(app: &App, buffer: &mut Buffer, area: Rect, theme: &Theme) {
    let (title, lines) = match &app.dialog {
        Some(Dialog::Help) => ("Keys", HELP.iter().map(|line| (*line).to_owned()).collect()),
        Some(Dialog::Change(change)) => ("Change", change_lines(change)),
        Some(Dialog::Filter(_)) | None => return,
    };
    let longest = lines.iter().map(|line| line.chars().count()).max().unwrap_or(0).max(40);
    let width = area.width.min(u16::try_from(longest).unwrap_or(u16::MAX).saturating_add(4));
    let height = area.height.min(u16::try_from(lines.len()).unwrap_or(u16::MAX).saturating_add(2));
    let (x, y) = ((area.width - width) / 2, (area.height - height) / 2);
    let inner = Rect { x: area.x + x, y: area.y + y, width, height };
    Clear.render(inner, buffer);
    let rule = "-".repeat(usize::from(width));
    let mut canvas = Canvas { buffer, area: inner, next: 0 };
    canvas.line(&format!("-- {title} {rule}"), theme.title());
    for line in &lines {
        if canvas.left() > 1 {
            canvas.line(&format!("| {line}"), Style::new());
        }
    }
    canvas.line(&rule, theme.title());
}

fn change_lines(change: &Change) -> Vec<String> {
    let lasts = until_in_words(if change.until_restart { "restart" } else { "reset" });
    let mut lines = vec![format!("Set {}: {}", change.target, change.text)];
    let in_force = change.in_force();
    let now = in_force.iter().map(|(name, value)| format!("  now {name} = {value}"));
    match &change.step {
        Step::Edit(error) => {
            lines[0].push('_');
            lines.extend(error.clone());
            lines.extend(now);
            lines.extend([String::new(), "KEY=VALUE as in the host file, for example limit=500 iops".to_owned()]);
            lines.extend([format!("It lasts {lasts} (Tab)"), "Enter: check   Esc: cancel".to_owned()]);
        }
        Step::Confirm => {
            lines.extend(now);
            lines.extend([format!("It lasts {lasts} (Tab)"), "y: change it now   n: edit   Esc: edit".to_owned()]);
        }
        Step::Sent => lines.push("Sent; waiting for the daemon".to_owned()),
        Step::Done(Ok(text)) => {
            lines.extend(text.lines().map(|line| line.trim_end().to_owned()));
            lines.push("Any key: close".to_owned());
        }
        Step::Done(Err(text)) => {
            lines.push("REFUSED; nothing has changed:".to_owned());
            lines.extend(text.lines().map(|line| line.trim_end().to_owned()));
            lines.push("Enter: edit   Esc: close".to_owned());
        }
        Step::Closed => {}
    }
    lines
}
