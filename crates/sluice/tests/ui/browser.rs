//! The page in a browser, driven over WebDriver.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use fantoccini::wd::Capabilities;
use fantoccini::{Client, ClientBuilder, Locator};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::{Ui, api, cli, host};
use crate::common::raw::Raw;
use crate::common::{Daemon, LONG, Place, Running, start, tool};

/// Finds faults of accessibility: <https://github.com/dequelabs/axe-core>.
const AXE: &str = include_str!("axe.min.js");
const RUN_AXE: &str = "
    const done = arguments[0];
    const tags = ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'];
    axe.run({ runOnly: tags }).then(found =>
        done(found.violations.map(one => `${one.impact} ${one.id}: ${one.nodes[0].html}`)));";

/// The driver of browsers.
struct Driver {
    _running: Running,
    url: String,
    runtime: Runtime,
}

/// How a browser is set up.
#[derive(Clone, Copy)]
struct Setup {
    width: u32,
    is_dark: bool,
    has_script: bool,
}

const WIDE: Setup = Setup { width: 1400, is_dark: false, has_script: true };

impl Driver {
    fn new() -> Driver {
        let running = start(tool("chromedriver", "chromium-driver").arg("--port=0"));
        let line = running.stdout.up_to(&["started successfully on port"]);
        let port = line.trim_end().trim_end_matches('.').rsplit(' ').next().unwrap().to_owned();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Driver { _running: running, url: format!("http://127.0.0.1:{port}"), runtime }
    }

    /// Opens the link of a new page server in a browser, and does this with it.
    fn browse(&self, place: &Place, setup: Setup, what: impl AsyncFnOnce(&Browser)) {
        let ui = Ui::unused(place);
        let client = self.runtime.block_on(self.open(setup));
        let browser = Browser { client: client.clone(), base: ui.base() };
        let tested = catch_unwind(AssertUnwindSafe(|| {
            self.runtime.block_on(async {
                browser.client.goto(&ui.url).await.unwrap();
                // The link leads to the overview.
                browser.find(".sentence").await;
                what(&browser).await;
            });
        }));
        // A browser would outlive its driver.
        self.runtime.block_on(client.close()).unwrap();
        tested.unwrap_or_else(|panic| resume_unwind(panic));
    }

    async fn open(&self, Setup { width, is_dark, has_script }: Setup) -> Client {
        let mut options = json!({
            // The sandbox does not start as root; the page is our own.
            "args": [
                "--headless=new", "--no-sandbox", "--disable-gpu", format!("--window-size={width},900"),
                format!("--blink-settings=preferredColorScheme={}", u8::from(!is_dark)),
            ],
            "binary": tool("chromium", "chromium").get_program().to_str().unwrap(),
        });
        if width < 500 {
            // A window is not that narrow.
            options["mobileEmulation"] =
                json!({ "deviceMetrics": { "width": width, "height": 640, "pixelRatio": 1.0 } });
        }
        if !has_script {
            options["prefs"] = json!({ "profile.managed_default_content_settings.javascript": 2 });
        }
        let Value::Object(capabilities) = json!({ "browserName": "chrome", "goog:chromeOptions": options }) else {
            unreachable!()
        };
        let mut builder = ClientBuilder::new(hyper_util::client::legacy::connect::HttpConnector::new());
        builder.capabilities(Capabilities::from_iter(capabilities));
        builder.connect(&self.url).await.unwrap()
    }
}

/// A browser with the page.
struct Browser {
    client: Client,
    base: String,
}

impl Browser {
    async fn go(&self, path: &str) {
        self.client.goto(&format!("{}{path}", self.base)).await.unwrap();
    }

    /// Waits for an element.
    async fn find(&self, css: &str) -> fantoccini::elements::Element {
        let found = self.client.wait().at_most(LONG).for_element(Locator::Css(css)).await;
        found.unwrap_or_else(|error| panic!("{css}: {error}"))
    }

    async fn text(&self, css: &str) -> String {
        self.find(css).await.text().await.unwrap()
    }

    async fn script(&self, script: &str) -> Value {
        self.client.execute(script, Vec::new()).await.unwrap()
    }

    /// Waits until a script returns true.
    async fn until(&self, what: &str, script: &str) {
        let deadline = std::time::Instant::now() + LONG;
        while self.script(script).await != true {
            assert!(std::time::Instant::now() < deadline, "never: {what}: {}", self.client.source().await.unwrap());
        }
    }

    /// Presses a key, or types text.
    async fn press(&self, keys: &str) {
        self.client.active_element().await.unwrap().send_keys(keys).await.unwrap();
    }

    /// Presses Tab until this element has the focus.
    async fn tab_to(&self, css: &str) {
        for _ in 0..100 {
            if self.script(&format!("return document.activeElement.matches({css:?})")).await == true {
                return;
            }
            self.press("\u{e004}").await;
        }
        panic!("{css} is not reached by the keyboard");
    }

    /// Finds no fault of accessibility, and nothing that scrolls the page to the side.
    async fn look(&self, path: &str) {
        self.client.execute(AXE, Vec::new()).await.unwrap();
        let found = self.client.execute_async(RUN_AXE, Vec::new()).await.unwrap();
        assert_eq!(found, json!([]), "{path}");
        let widths =
            self.script("const root = document.documentElement; return [root.scrollWidth, root.clientWidth]").await;
        assert_eq!(widths[0], widths[1], "{path} scrolls to the side");
    }
}

/// A client that reads from a VM's volume until it is dropped.
struct Reader {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Reader {
    fn of(place: &Place, vm: &str) -> Reader {
        let mut client = Raw::open(&place.volume_socket(vm, "v"), &format!("{vm}/v")).unwrap();
        let is_over = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                client.read(0, 4096).unwrap();
            }
        });
        Reader { is_over, thread: Some(thread) }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let ended = self.thread.take().expect("it is taken once").join();
        assert!(ended.is_ok() || std::thread::panicking());
    }
}

#[test]
fn pages_are_accessible_in_light_and_dark_and_on_a_narrow_screen() {
    let place = Place::new();
    let _daemon = Daemon::serve(&place, &host(&place));
    cli(&place, &["set", "b", "limit=100 iops", "--for", "1h", "--reason", &"very-long-".repeat(45)]);
    // Pages have more of VMs that are served.
    let _readers = ["a", "b"].map(|vm| Reader::of(&place, vm));
    let driver = Driver::new();
    let narrow = Setup { width: 320, ..WIDE };
    for setup in [WIDE, Setup { is_dark: true, ..WIDE }, narrow] {
        driver.browse(&place, setup, async |browser| {
            let pages = [
                "/",
                "/vms",
                "/vms/b",
                "/devices/disk",
                "/events",
                "/api",
                "/change/b",
                "/undo?name=b/limit",
                "/nothing",
            ];
            for path in pages {
                browser.go(path).await;
                browser.look(path).await;
            }
            let shade = browser.script("return getComputedStyle(document.body).backgroundColor").await;
            assert_eq!(shade == "rgb(22, 24, 27)", setup.is_dark, "{shade}");
        });
    }
}

#[test]
fn figures_of_the_page_are_those_of_the_api_and_follow_them() {
    let place = Place::new();
    let _daemon = Daemon::serve(&place, &host(&place));
    let driver = Driver::new();
    let _reader = Reader::of(&place, "a");
    driver.browse(&place, WIDE, async |browser| {
        browser.go("/vms/a").await;
        browser.until("the stream", "return document.body.dataset.live === 'yes'").await;
        equal_to_api(&place, browser).await;
        // A change of another program is seen without a reload.
        cli(&place, &["set", "a", "limit=321 iops"]);
        browser
            .until(
                "the new limit",
                "return document.querySelector('[data-cell=\"v/a/disk/band\"]').textContent.includes('to 321 iops')",
            )
            .await;
        browser
            .until("the event", "return document.querySelector('[data-part=events]').textContent.includes('321 iops')")
            .await;
        browser
            .until("an announcement", "return document.getElementById('say').textContent.includes('321 iops')")
            .await;
        // A paused page stays as it is.
        browser.find("#pause").await.click().await.unwrap();
        assert_eq!(browser.text("#pause").await, "Continue updates");
        cli(&place, &["set", "a", "limit=432 iops"]);
        browser.script("delete document.body.dataset.live").await;
        assert!(browser.text("[data-cell='v/a/disk/band']").await.contains("321 iops"));
        browser.find("#pause").await.click().await.unwrap();
        browser
            .until(
                "the limit after the pause",
                "return document.querySelector('[data-cell=\"v/a/disk/band\"]').textContent.includes('to 432 iops')",
            )
            .await;
    });
}

/// Reads a cell and its time until it has three times been what the API had at that time.
async fn equal_to_api(place: &Place, browser: &Browser) {
    let mut of_api = BTreeMap::new();
    let mut equal = 0;
    let cell = "document.querySelector('[data-cell=\"v/a/disk/iops\"]').textContent";
    let script = format!("return [document.getElementById('time').textContent, {cell}]");
    let deadline = std::time::Instant::now() + LONG;
    while equal < 3 {
        assert!(std::time::Instant::now() < deadline, "the page differs from {of_api:?}");
        let top = api(place, "/v1/top");
        let clock = sluice_clock(top["time"].as_u64().unwrap());
        let iops = top["vms"][0]["now"]["rates"]["iops"].as_f64().unwrap();
        of_api.entry(clock).or_insert_with(Vec::new).push(sluice_api::amount::rate(iops));
        let page = browser.script(&script).await;
        let (time, shown) = (page[0].as_str().unwrap(), page[1].as_str().unwrap());
        let is_equal = shown != "0" && of_api.get(time).is_some_and(|all| all.iter().any(|one| one == shown));
        if is_equal {
            equal += 1;
            of_api.clear();
        }
    }
}

/// The time of day in UTC.
fn sluice_clock(seconds: u64) -> String {
    let of_day = seconds % 86_400;
    format!("{:02}:{:02}:{:02}", of_day / 3600, of_day / 60 % 60, of_day % 60)
}

#[test]
fn a_change_is_made_and_undone_by_the_keyboard_alone() {
    let place = Place::new();
    let _daemon = Daemon::serve(&place, &host(&place));
    let driver = Driver::new();
    let limit = || api(&place, "/v1/vms/b")["items"][0]["policy"]["limit_iops"].clone();
    driver.browse(&place, WIDE, async |browser| {
        browser.press("\u{e004}").await;
        assert_eq!(browser.script("return document.activeElement.className").await, "skip", "the first stop");
        browser.tab_to("header a[href='/vms']").await;
        let outline = browser.script("return getComputedStyle(document.activeElement).outlineStyle").await;
        assert_eq!(outline, "solid", "the focus is seen");
        browser.press("\u{e007}").await;
        browser.find("table.vms").await;
        browser.tab_to("a[href='/vms/b']").await;
        browser.press("\u{e007}").await;
        browser.find("#f-limit").await;
        browser.tab_to("#f-limit").await;
        browser.press("250 iops").await;
        browser.tab_to("#f-reason").await;
        browser.press("by keyboard").await;
        browser.tab_to("button[value=preview]").await;
        browser.press("\u{e007}").await;
        browser.find("#preview").await;
        assert_eq!(limit(), Value::Null, "it is a preview");
        browser.tab_to("button[value=confirm]").await;
        browser.press("\u{e007}").await;
        browser.find(".done").await;
        assert_eq!(limit(), 250.0, "in force");
        browser.tab_to(".done button").await;
        browser.press("\u{e007}").await;
        browser
            .until("the undo", "return document.querySelector('.done')?.textContent.includes('Undone') ?? false")
            .await;
        assert_eq!(limit(), Value::Null);
    });
}

#[test]
fn without_script_a_change_is_made_and_figures_come_by_reload() {
    let place = Place::new();
    let _daemon = Daemon::serve(&place, &host(&place));
    let driver = Driver::new();
    driver.browse(&place, Setup { has_script: false, ..WIDE }, async |browser| {
        browser.go("/vms/b").await;
        let pause = browser.find("#pause").await;
        assert!(!pause.is_displayed().await.unwrap(), "the script has not run");
        browser.find("#f-limit").await.send_keys("250 iops").await.unwrap();
        browser.find("button[value=preview]").await.click().await.unwrap();
        browser.find("button[value=confirm]").await.click().await.unwrap();
        browser.find(".done").await;
        assert_eq!(api(&place, "/v1/vms/b")["items"][0]["policy"]["limit_iops"], 250.0);
        cli(&place, &["set", "b", "limit=350 iops", "--permanent"]);
        browser.find("#reload").await.click().await.unwrap();
        browser.find("h1").await;
        assert!(browser.client.source().await.unwrap().contains("350 iops"));
    });
}
