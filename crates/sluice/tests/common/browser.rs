//! Pages in a browser. They have no script: one is appended to a copy, which measures the boxes of what is drawn.

use std::path::Path;

use serde_json::Value;

use super::tool;

/// A wide screen, in light and in dark, and a narrow one.
pub(crate) const LIGHT: [&str; 2] = ["--window-size=1700,1200", "--blink-settings=preferredColorScheme=1"];
pub(crate) const DARK: [&str; 2] = ["--window-size=1700,1200", "--blink-settings=preferredColorScheme=0"];
pub(crate) const NARROW: [&str; 1] = ["--window-size=700,1200"];

/// Returns what [`SCRIPT`] finds in a copy of a page, as JSON.
pub(crate) fn look(page: &Path, options: &[&str]) -> Value {
    let html = std::fs::read_to_string(page).unwrap();
    let copy = page.with_extension("look.html");
    std::fs::write(&copy, html.replace("</body>", &format!("<script>{SCRIPT}</script></body>"))).unwrap();
    let dom = browser(&copy, &[&["--dump-dom"], options].concat());
    let (_, rest) = dom.split_once("<pre id=\"seen\">").unwrap_or_else(|| panic!("the script has not run: {dom}"));
    let (json, _) = rest.split_once("</pre>").expect("the element ends");
    serde_json::from_str(&json.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")).expect("it is JSON")
}

/// Opens a page; returns the standard output.
fn browser(page: &Path, options: &[&str]) -> String {
    let mut command = tool("chromium-headless-shell", "chromium-headless-shell");
    // The sandbox does not start as root; the page is our own.
    command.args(["--no-sandbox", "--disable-gpu", "--hide-scrollbars"]).args(options);
    let output = command.arg(format!("file://{}", page.display())).output().expect("the browser is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("the page is UTF-8")
}

/// Text that overlaps other text of the same chart or leaves it, legends and labels over the data, links without an aim, and measures of the page.
const SCRIPT: &str = r#"
const seen = { charts: 0, overlaps: [], outside: [], over_data: [], dead: [], labels: [] };
const box = of => of.getBoundingClientRect();
const meet = (a, b, by) => a.left + by < b.right && b.left + by < a.right && a.top + by < b.bottom && b.top + by < a.bottom;
for (const svg of document.querySelectorAll('figure svg')) {
  seen.charts += 1;
  const frame = box(svg), texts = [...svg.querySelectorAll('text')];
  const lines = [...svg.querySelectorAll('polyline')].filter(line => line.getAttribute('stroke-width') === '2');
  const bars = [...svg.querySelectorAll('rect')];
  for (const [index, text] of texts.entries()) {
    const name = text.textContent.trim(), at = box(text);
    seen.labels.push(name);
    if (at.left < frame.left - 1 || at.right > frame.right + 1 || at.top < frame.top - 1 || at.bottom > frame.bottom + 1)
      seen.outside.push(name);
    for (const other of texts.slice(index + 1))
      if (meet(at, box(other), 2)) seen.overlaps.push(name + ' / ' + other.textContent.trim());
    for (const drawn of [...lines, ...bars]) if (meet(at, box(drawn), 2)) seen.over_data.push(name);
  }
}
for (const link of document.querySelectorAll('a'))
  if (!document.getElementById(decodeURIComponent(link.getAttribute('href').slice(1)))) seen.dead.push(link.href);
seen.links = document.querySelectorAll('nav a').length;
seen.scrolls = document.documentElement.scrollWidth > innerWidth;
seen.used = Math.max(...[...document.querySelectorAll('figure, table')].map(part => box(part).right)) / innerWidth;
const shade = colour => colour.match(/\d+/g).slice(0, 3).reduce((sum, part) => sum + Number(part), 0) / 765;
seen.background = shade(getComputedStyle(document.body).backgroundColor);
seen.text = shade(getComputedStyle(document.querySelector('figure svg text')).fill);
seen.notes_in_cells = [...document.querySelectorAll('td')].filter(cell => cell.textContent.includes('The array\'s throughput')).length;
seen.notes = document.querySelectorAll('dd').length;
const pre = document.createElement('pre');
pre.id = 'seen';
pre.textContent = JSON.stringify(seen);
document.body.append(pre);
"#;

/// Checks that no text covers other text or data or leaves its chart, and that links have aims.
#[track_caller]
pub(crate) fn assert_nothing_covered(seen: &Value) {
    for what in ["overlaps", "outside", "over_data", "dead"] {
        assert_eq!(seen[what], Value::Array(Vec::new()), "{what}");
    }
}

/// Returns how light the background and the text of charts are, from 0 to 1.
pub(crate) fn shades(seen: &Value) -> (f64, f64) {
    (seen["background"].as_f64().unwrap(), seen["text"].as_f64().unwrap())
}

/// Writes a screenshot of a page.
#[track_caller]
pub(crate) fn screenshot(page: &Path, file: &Path, options: &[&str]) {
    let to_file = format!("--screenshot={}", file.display());
    browser(page, &[&[to_file.as_str()], options].concat());
    let image = std::fs::read(file).unwrap();
    assert!(image.starts_with(b"\x89PNG") && image.len() > 30_000, "{}: {} bytes", file.display(), image.len());
}
