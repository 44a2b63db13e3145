"use strict";
// Asks for the status once a second, while the page is visible. All text goes in as text, never as HTML.

const INTERVAL_MS = 1000;
const byId = (id) => document.getElementById(id);
let paused = false;
let last = null;

function cell(text, kind = "", tag = "td") {
  const made = document.createElement(tag);
  made.textContent = text;
  if (kind) made.className = kind;
  if (tag === "th") made.scope = "row";
  return made;
}

function fill(id, rows) {
  const made = rows.map((cells) => {
    const row = document.createElement("tr");
    row.append(...cells);
    return row;
  });
  byId(id).replaceChildren(...made);
}

const count = (n) => n.toLocaleString("en");
const clock = (s) => new Date(s * 1000).toLocaleTimeString("en-GB");

function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (n >= 1024 && at < units.length - 1) { n /= 1024; at += 1; }
  return `${at ? n.toFixed(1) : n} ${units[at]}`;
}

function duration(s) {
  if (s === null) return "–";
  return s < 1 ? `${(s * 1000).toFixed(1)} ms` : `${s.toFixed(1)} s`;
}

function share(used, max) {
  const made = document.createElement("td");
  const meter = document.createElement("meter");
  meter.max = max;
  meter.high = max * 0.8;
  meter.value = used;
  const percent = `${Math.round((100 * used) / max)} %`;
  meter.setAttribute("aria-label", percent);
  made.append(meter, ` ${percent}`);
  return made;
}

function show(status) {
  byId("version").textContent = status.version;
  const saved = status.saved;
  byId("spared-requests").textContent = count(saved.requests);
  byId("spared-bytes").textContent = bytes(saved.bytes);
  byId("queries-answered").textContent = count(saved.queries);
  byId("queries-index").textContent = count(saved.at_once);
  fill("upstreams", status.upstreams.map((u) => [
    cell(u.name, "", "th"), cell(u.up ? "up" : "down", u.up ? "good" : "bad"), cell(u.url),
    cell(`${count(u.in_flight)} of ${count(u.requests_max)}`, "number"), cell(count(u.requests), "number"),
    cell(count(u.failures), u.failures ? "number bad" : "number"), cell(duration(u.mean_seconds), "number"),
  ]));
  fill("limits", status.limits.map((l) => {
    const unit = l.unit === "bytes" ? bytes : count;
    return [cell(l.what, "", "th"), cell(unit(l.used), "number"), cell(unit(l.max), "number"), share(l.used, l.max)];
  }));
  fill("queries", status.queries.map((q) => [
    cell(clock(q.at)), cell(q.upstream), cell(q.outcome, q.outcome === "failed" ? "bad" : ""), cell(q.reason, "wide"),
    cell(count(q.asked), "number"), cell(count(q.spared), "number"), cell(count(q.tasks), "number"),
    cell(count(q.total), "number"),
  ]));
  byId("no-queries").hidden = status.queries.length > 0;
  const requests = byId("failures").checked ? status.failures : status.requests;
  fill("requests", requests.map((r) => [
    cell(clock(r.at)), cell(r.upstream || "none"), cell(r.method), cell(r.kind),
    cell(r.status, r.why ? "number bad" : "number"), cell(duration(r.seconds), "number"), cell(r.why, "wide"),
  ]));
  byId("no-requests").hidden = requests.length > 0;
}

function say(text) {
  if (byId("state").textContent !== text) byId("state").textContent = text;
}

async function ask() {
  try {
    const answer = await fetch("page/status.json", { cache: "no-store" });
    if (!answer.ok) throw new Error(String(answer.status));
    const found = await answer.json();
    if (paused) return; // pressed meanwhile
    last = found;
    show(last);
    say(last.is_ready ? "Live" : "Draining");
  } catch {
    if (!paused) say("The gateway does not answer");
  }
}

async function turn() {
  if (!paused && !document.hidden) await ask();
  setTimeout(turn, INTERVAL_MS);
}

byId("pause").addEventListener("click", () => {
  paused = !paused;
  byId("pause").setAttribute("aria-pressed", String(paused));
  if (paused) say("Paused");
});
byId("failures").addEventListener("change", () => { if (last) show(last); });
turn();
