// Keeps a page that was loaded up to date: cells, curves, and parts whose content has changed. Without it the page works by reload.
//
// The server sends what has changed (see src/stream.rs). Cells are found by `data-cell`. Parts of the page that are out of date (`data-part`) are taken
// from the page itself, which is loaded again in the background, at most every ten seconds. What has happened is announced at most every ten seconds.

const QUIET_MS = 10_000;
const REFRESH_MS = 10_000;
/** Attributes that a cell may set. */
const ALLOWED = new Set(["width", "data-state"]);

const byId = (id) => document.getElementById(id);
const pause = byId("pause");
const lost = byId("lost");

let source = null;
let cells = new Map();
let curves = new Map();

/** Finds the elements that are patched. */
function collect() {
  cells = new Map();
  for (const element of document.querySelectorAll("[data-cell]")) {
    const name = element.dataset.cell;
    cells.set(name, [...(cells.get(name) ?? []), element]);
  }
  curves = new Map();
  for (const figure of document.querySelectorAll("[data-curve]")) curves.set(figure.dataset.curve, new Curve(figure));
}

/** A line that moves to the left, with a new point at its right end each second. */
class Curve {
  constructor(figure) {
    this.line = figure.querySelector('polyline[stroke-width="2"]');
    [this.left, this.right, this.top, this.bottom] = figure.dataset.edges.split(",").map(Number);
    this.step = (this.right - this.left) / Number(figure.dataset.seconds);
    this.most = Number(figure.dataset.most);
    const text = this.line?.getAttribute("points").trim() ?? "";
    this.points = text === "" ? [] : text.split(/\s+/).map((pair) => pair.split(",").map(Number));
  }

  add(value) {
    if (!this.line) return;
    for (const point of this.points) point[0] -= this.step;
    while (this.points.length > 1 && this.points[1][0] < this.left) this.points.shift();
    if (this.points.length > 0) this.points[0][0] = Math.max(this.points[0][0], this.left);
    const part = Math.min(value / this.most, 1);
    this.points.push([this.right, this.bottom - part * (this.bottom - this.top)]);
    this.line.setAttribute("points", this.points.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" "));
    // The axis must be drawn again for a larger value.
    if (value > this.most) refresh();
  }
}

/** Sets a cell to its text, or to its text and attributes. */
function set(element, cell) {
  const [text, attributes] = Array.isArray(cell) ? cell : [cell, {}];
  if (text !== null && element.textContent !== text) element.textContent = text;
  for (const [name, value] of Object.entries(attributes)) if (ALLOWED.has(name)) element.setAttribute(name, value);
}

/** Whether the user is at work in a part: then it stays as it is. */
function isInUse(part) {
  const selection = getSelection();
  const isSelected = selection && !selection.isCollapsed && part.contains(selection.anchorNode);
  return isSelected || part.querySelector("input, select, textarea") !== null && part.contains(document.activeElement);
}

/** The place of the focus within a part, to bring it back. */
function placeOf(part) {
  if (!part.contains(document.activeElement) || document.activeElement === part) return null;
  const { id } = document.activeElement;
  const href = document.activeElement.getAttribute("href");
  return { id, href, index: [...part.querySelectorAll("a, button, summary, [tabindex]")].indexOf(document.activeElement) };
}

function focusAgain(part, place) {
  if (place === null) return;
  const all = [...part.querySelectorAll("a, button, summary, [tabindex]")];
  const same = all.find((one) => place.href !== null && one.getAttribute("href") === place.href);
  (same ?? all[Math.min(place.index, all.length - 1)] ?? part).focus({ preventScroll: true });
}

let refreshed = -REFRESH_MS;
let waiting = null;

/** Takes parts that are out of date from the page as it is now, soon. */
function refresh() {
  if (waiting !== null || isPaused()) return;
  const soon = Math.max(0, refreshed + REFRESH_MS - performance.now());
  waiting = setTimeout(takeParts, soon);
}

async function takeParts() {
  waiting = null;
  refreshed = performance.now();
  try {
    const url = new URL(location.href);
    // What was done is said once.
    url.searchParams.delete("done");
    const answer = await fetch(url, { headers: { accept: "text/html" } });
    if (!answer.ok || isPaused()) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of document.querySelectorAll("[data-part]")) replace(part, page);
    collect();
    follow(page.body.dataset.stream);
  } catch {
    // The stream says that the server is away.
  }
}

/** Other rows may be shown now: then the stream is about these. */
function follow(stream) {
  if (!stream || stream === document.body.dataset.stream) return;
  document.body.dataset.stream = stream;
  close();
  open();
}

function replace(part, page) {
  const now = [...page.querySelectorAll("[data-part]")].find((one) => one.dataset.part === part.dataset.part);
  if (!now || isInUse(part)) return;
  const place = placeOf(part);
  const open = [...part.querySelectorAll("details")].map((one) => one.open);
  [...now.querySelectorAll("details")].forEach((one, index) => { one.open = open[index] ?? false; });
  const scrolled = [...part.querySelectorAll(".wide")].map((one) => one.scrollLeft);
  part.className = now.className;
  part.replaceChildren(...[...now.childNodes].map((node) => document.importNode(node, true)));
  [...part.querySelectorAll(".wide")].forEach((one, index) => { one.scrollLeft = scrolled[index] ?? 0; });
  focusAgain(part, place);
}

let said = -QUIET_MS;
let unsaid = [];
let saying = null;

/** Announces what has happened, at most every ten seconds. */
function say(texts) {
  unsaid.push(...texts);
  if (saying !== null || unsaid.length === 0) return;
  saying = setTimeout(() => {
    saying = null;
    said = performance.now();
    const more = unsaid.length > 3 ? ` And ${unsaid.length - 3} more events.` : "";
    byId("say").textContent = unsaid.slice(0, 3).join(". ") + more;
    unsaid = [];
  }, Math.max(0, said + QUIET_MS - performance.now()));
}

function showLost(text) {
  lost.hidden = text === "";
  lost.textContent = text === "" ? "" : `Figures are not up to date: ${text}`;
}

function patch(message) {
  const news = JSON.parse(message.data);
  if (news.lost !== undefined) showLost(news.lost);
  for (const [name, cell] of Object.entries(news.cells ?? {}))
    for (const element of cells.get(name) ?? []) set(element, cell);
  for (const [name, value] of news.points ?? []) curves.get(name)?.add(value);
  if (news.time !== undefined) byId("time").textContent = new Date(news.time * 1000).toISOString().slice(11, 19);
  if (news.stale) refresh();
  if (news.say) say(news.say);
  document.body.dataset.live = "yes";
}

const isPaused = () => pause.getAttribute("aria-pressed") === "true";

function open() {
  if (source !== null || isPaused() || document.hidden) return;
  source = new EventSource(document.body.dataset.stream);
  source.onmessage = patch;
  source.onopen = () => showLost("");
  source.onerror = () => showLost("`sluice ui` does not answer; it may have ended.");
}

function close() {
  source?.close();
  source = null;
}

pause.addEventListener("click", () => {
  pause.setAttribute("aria-pressed", String(!isPaused()));
  pause.textContent = isPaused() ? "Continue updates" : "Pause updates";
  if (isPaused()) {
    clearTimeout(waiting);
    clearTimeout(saying);
    [waiting, saying, unsaid] = [null, null, []];
    close();
  } else {
    open();
    refresh();
  }
});

// A page that is not seen asks for nothing.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) return close();
  open();
  if (document.body.dataset.stream) refresh();
});

if (document.body.dataset.stream) {
  pause.hidden = false;
  collect();
  open();
  if (document.body.dataset.refresh !== undefined) setInterval(() => { if (!document.hidden) refresh(); }, REFRESH_MS);
}
// A refused form is at its error.
byId("problem")?.focus();
