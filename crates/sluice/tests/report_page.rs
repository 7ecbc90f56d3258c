//! `report.html` in a browser: what a reader sees, in light and dark, on a wide and on a narrow screen.
//!
//! The page has no script. The test appends one to a copy of it, which measures the boxes of what is drawn.

use std::path::Path;
use std::process::Command;

use common::{Place, run, sluice};
use serde_json::Value;

mod common;

/// Returns the results of `SCRIPT` in a page, as JSON.
fn look(page: &Path, options: &[&str]) -> Value {
    let dom = browser(page, &[&["--dump-dom"], options].concat());
    let (_, rest) = dom.split_once("<pre id=\"seen\">").unwrap_or_else(|| panic!("the script has not run: {dom}"));
    let (json, _) = rest.split_once("</pre>").expect("the element ends");
    serde_json::from_str(&json.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")).expect("it is JSON")
}

/// Opens a page; returns the standard output.
fn browser(page: &Path, options: &[&str]) -> String {
    let mut command = Command::new("chromium-headless-shell");
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

#[test]
fn a_reader_sees_charts_whose_text_covers_nothing_in_light_and_dark() {
    let place = Place::new();
    let out = place.file("out");
    let ended = run(sluice().args(["reproduce", "M3", "M6", "--quick", "--out"]).arg(&out));
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    let html = std::fs::read_to_string(out.join("report.html")).unwrap();
    assert!(!html.contains("<script"));
    let page = out.join("look.html");
    std::fs::write(&page, html.replace("</body>", &format!("<script>{SCRIPT}</script></body>"))).unwrap();

    let wide = ["--window-size=1700,1200", "--blink-settings=preferredColorScheme=1"];
    let light = look(&page, &wide);
    assert_eq!(light["charts"], 2, "{light}");
    for what in ["overlaps", "outside", "over_data", "dead"] {
        assert_eq!(light[what], Value::Array(Vec::new()), "{what}");
    }
    assert!(light["links"].as_u64().unwrap() >= 4, "the verdicts, the paper and two figures: {light}");
    for name in ["VM1", "VM2", "VM3", "limit of VM2", "the paper", "product, r = 512"] {
        assert!(light["labels"].as_array().unwrap().contains(&name.into()), "{name}: {light}");
    }
    assert!(light["used"].as_f64().unwrap() > 0.8, "{light}");
    assert_eq!((&light["scrolls"], &light["notes_in_cells"]), (&false.into(), &0.into()));
    assert!(light["notes"].as_u64().unwrap() >= 1);
    let shades = |seen: &Value| (seen["background"].as_f64().unwrap(), seen["text"].as_f64().unwrap());
    assert!(shades(&light).0 > 0.9 && shades(&light).1 < 0.2, "{light}");

    let dark = look(&page, &["--window-size=1700,1200", "--blink-settings=preferredColorScheme=0"]);
    assert!(shades(&dark).0 < 0.2 && shades(&dark).1 > 0.8, "{dark}");
    let narrow = look(&page, &["--window-size=700,1200"]);
    assert_eq!(narrow["scrolls"], false, "tables scroll within the page: {narrow}");

    for (name, options) in
        [("light", wide), ("dark", ["--window-size=1700,1200", "--blink-settings=preferredColorScheme=0"])]
    {
        let file = out.join(format!("{name}.png"));
        let screenshot = format!("--screenshot={}", file.display());
        browser(&out.join("report.html"), &[&[screenshot.as_str()], &options[..]].concat());
        let image = std::fs::read(&file).unwrap();
        assert!(image.starts_with(b"\x89PNG") && image.len() > 30_000, "{name}: {} bytes", image.len());
    }
}
