"use strict";
// Asks for the status again and again, and changes the page in place. All text goes in as text, never as HTML.

const INTERVAL_MS = matchMedia("(prefers-reduced-motion: reduce)").matches ? 5000 : 1000;
const ROWS = 10; // of a table, until all are asked for
const HIDDEN_MS = 10_000; // in the background: for the title and the icon
const SILENT_MS = 3000; // so long without an answer, and the page says so
const ICONS = ["icon", "icon-warn", "icon-bad", "icon-gone"];
const REASONS = { // in words, what to do, and the section of the documents that says more
  UpstreamUnreachable: ["cannot be reached", "Does the server run, and is its url right? Ask it past the gateway.", "502 Bad Gateway"],
  UpstreamTimeout: ["does not answer in time", "Ask it past the gateway. Is it slow, or stuck?", "504 Gateway Timeout"],
  UpstreamBroken: ["gives a broken answer", "Look at the server's log. Are scheme and port of its url right?", "502 Bad Gateway"],
  UpstreamStatus: ["answers with status", "Look at the server's log.", "500 and above from the upstream"],
  UpstreamStatus401: ["refuses with status", "Some clients: they must log in again. All: has the server's login, or its keys, changed?", "The login fails, or goes round in circles (401)"],
  UpstreamStatus403: ["refuses with status", "The token lacks the right, or the server does not accept this Host.", "421, or 403 from the upstream"],
  UpstreamStatus404: ["refuses with status", "Is the path of url right, and the client's? Or its session has ended.", "The server redirects, or answers 404 to everything"],
  UpstreamStatus429: ["refuses with status", "It is asked too often: raise index.max_age, or limit clients by a guard.", "An upstream refuses everything"],
  UpstreamPath: ["refuses with status", "Put the address that it redirects to into url.", "The server redirects, or answers 404 to everything"],
  OtherPath: ["has nothing at a client's path", "Give the client an address that `taskgate --check` prints.", "The server redirects, or answers 404 to everything"],
  UpstreamRefused: ["refuses what a query asked:", "401, 403: rights. 404: a session that ended. 429: its rate; raise index.max_age.", "A filtered list fails"],
  UpstreamFailed: ["answers a query with an error", "Look at the server's log.", "A filtered list fails"],
  TooLarge: ["too many tasks to filter", "Raise the key that is named, if the memory is there.", "Limits", "configuration.md"],
  Overloaded: ["a limit is reached", "Look at Limits, and at what is in flight.", "503 Service Unavailable"],
  RateLimited: ["a client asks too often", "A guard holds it back. The log names the client.", "Guards", "configuration.md"],
  NoUpstream: ["an address without a server", "Give clients an address of this gateway: the 404 names them.", "404 from the gateway"],
  Ambiguous: ["can be read in two ways", "Look at the client, and at what is in front of the gateway.", "What it guards", "security.md"],
  Forbidden: ["Host or Origin is not allowed", "Add it to allowed_hosts or allowed_origins, if it is yours.", "403 from the gateway"],
  ClientLeft: ["the client left", "Clients did not wait. Is the upstream slow?", "A request ends with status 499"],
  RequestCut: ["a request that was cut", "The client, or a proxy in front, broke off while it sent.", "A request ends with status 499"],
  JsonRpcError: ["gets the JSON-RPC error", "It is the server's answer to the client. The log names the client.", "Errors", "clients.md"],
  CannotAnswer: ["a list that cannot be filtered", "The client must ask as the answer says.", "Errors", "clients.md"],
  NoFilter: ["a filter in the wrong place", "Tell the client where Taskgate-Filter works.", "Criteria in a header", "clients.md"],
  Unclear: ["two servers could read it differently", "The client must ask as the answer says.", "Errors", "clients.md"],
  NoTasks: ["nothing tells whose a task is", "The client needs another transport or revision (guards.own_tasks).", "Guards", "configuration.md"],
  UnknownTask: ["a task of another caller, or gone", "Nothing, if clients ask late (guards.own_tasks).", "Guards", "configuration.md"],
  Internal: ["a fault of taskgate", "Its log has more. Please report it.", "500 and above from the upstream"],
  Loop: ["leads back to taskgate", "Change the url of that upstream.", "508 from the gateway"],
};
const DOES = { // about each kind of fault
  drain: ["It ends by itself: SIGTERM was sent.", "It does not start, or does not answer"],
  down: ["Does the server run and answer, and is its url right?", "502 Bad Gateway"],
  failing: ["Failures by reason says what to do about each.", "500 and above from the upstream"],
  refused: ["Nobody gets in: look at url, token and rate.", "An upstream refuses everything"],
  tasks: ["Read why: taskgate tasks prints the failed ones with their messages.", "Tasks fail"],
  certificate: ["Renew the file under the same name, and send SIGHUP.", "A certificate ends"],
  stuck: ["Is the server stuck? taskgate tasks --status working shows them. Or they take so long.", "A task does not end"],
  store: ["Does Redis run, and can it be reached? Until it is back, a restart or a session's move loses what it would keep.", "The store fails"],
  reload: ["The one before is in force. Do not restart before taskgate --check passes: it would not start.", "Reload refused"],
  memory: ["Raise index.memory_bytes_max, or look at what uses it up.", "Memory grows"],
  sockets: ["Raise limits.connections_max, or look at who connects.", "Too many open files"],
  limit: ["Raise the limit, or look at what uses it up.", "503 Service Unavailable"],
  drift: ["Keep it out, or name what tells users apart in identity_headers.", "Each request is another caller"],
  silent: ["Does its process run? Then it hangs: restart it. Else its log ends with why.", "It does not start, or does not answer"],
};
const ENDS = ["failed", "completed", "cancelled", "lost", "other"];
const SORTS = {
  name: (u) => u.name, state: (u) => (u.state === "up" && (u.faults?.[0] || Object.keys(u.wrong).length) ? 0.5 : ["down", "up", "not asked yet"].indexOf(u.state)),
  rate: (u) => -(u.rate?.[0] ?? 0), failing: (u) => -(u.failing?.[0] ?? -1), p95: (u) => -(u.p95?.[0] ?? -1), in_flight: (u) => -u.in_flight,
};
const byId = (id) => document.getElementById(id);
let paused = false, last = null, missingSince = null, answeredAt = performance.now(), sort = "state", held = null;
const whole = new Set(); // tables that show all their rows

// ---- words ----

const sum = (numbers) => numbers.reduce((one, other) => one + other, 0);
const count = (n) => n.toLocaleString("en");
const clock = (s) => new Date(s * 1000).toLocaleTimeString("en-GB");
const when = (s) => (last.now - s > 43_200 ? `${new Date(s * 1000).toLocaleDateString("en-CA")} ` : "") + clock(s);
const percent = (share) => (share === null ? "–" : share && share < 0.01 ? "< 1 %" : `${Math.round(100 * share)} %`);
const within = (s) => (s === null ? "–" : s > 300 ? "> 5 min" : `≤ ${s < 1 ? `${s * 1000} ms` : s < 60 ? `${s} s` : `${s / 60} min`}`);
const both = (pair, show) => (pair ? `${show(pair[0])} / ${show(pair[1])}` : "–");
const rate = (n) => (n && n < 0.1 ? "< 0.1" : n < 100 ? n.toFixed(1) : count(Math.round(n)));

function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (n >= 1024 && at < units.length - 1) { n /= 1024; at += 1; }
  return `${at ? n.toFixed(1) : n} ${units[at]}`;
}

function duration(s) {
  if (s === null) return "–";
  return s < 1 ? `${(s * 1000).toFixed(1)} ms` : s < 100 ? `${s.toFixed(1)} s` : ago(s);
}

function ago(s) {
  if (s < 100) return `${Math.max(0, Math.round(s))} s`;
  const minutes = Math.round(s / 60);
  if (minutes < 100) return `${minutes} min`;
  return s < 172_800 ? `${Math.floor(minutes / 60)} h${minutes % 60 ? ` ${minutes % 60} min` : ""}` : `${Math.floor(s / 86_400)} days`;
}

// ---- rows ----

function say(element, text, kind) { // touch only what has changed: a selection stays
  if (element.textContent !== text) element.textContent = text;
  if (kind !== undefined && element.className !== kind) element.className = kind;
}

function child(parent, at, tag) {
  return parent.children[at] ?? parent.appendChild(document.createElement(tag));
}

// A cell is a text, or {text, below, kind, curve, share, more}.
function put(cell, given) {
  const { text = "", below = "", kind = "", curve, share, more } = typeof given === "string" ? { text: given } : given;
  if (cell.className !== kind) cell.className = kind;
  if (curve !== undefined) return draw(cell, curve);
  say(child(cell, 0, "span"), text);
  if (more) refer(child(cell, 1, "a"), ...more);
  else if (below || cell.children[1]) say(child(cell, 1, "small"), below);
  if (kind === "wide" && cell.title !== text) cell.title = text; // it may be cut
  if (share !== undefined) Object.assign(child(cell, 2, "meter"), { max: 1, high: 0.8, value: share, ariaLabel: text });
}

function refer(link, section, file = "troubleshooting.md") { // where the documents have no address, their name is enough
  say(link, `docs/${file}: ${section}`);
  const at = `${last?.docs}/${file}#${section.toLowerCase().replace(/[^\w\- ]/g, "").replaceAll(" ", "-")}`;
  if (last?.docs && link.getAttribute("href") !== at) link.setAttribute("href", at);
}

function draw(cell, curve) {
  if (!cell.firstChild) cell.append(byId("curve").content.firstChild.cloneNode(true));
  const most = Math.max(1, ...(curve?.requests ?? []));
  ["requests", "faults"].forEach((kind, at) => {
    const counts = curve?.[kind]?.some(Boolean) ? curve[kind] : [];
    const first = 60 - counts.length;
    const points = counts.map((n, i) => `${(first + i) * 2},${(23 - 22 * n / most).toFixed(1)}`);
    if (points.length) points.push(`120,${points.at(-1).split(",")[1]}`);
    const line = cell.firstChild.children[at];
    if (line.getAttribute("points") !== points.join(" ")) line.setAttribute("points", points.join(" "));
  });
  const told = curve ? `the most${curve.faults ? " in 5 s" : ""}: ${count(Math.max(0, ...curve.requests))}` : "no requests";
  if (cell.firstChild.getAttribute("aria-label") !== told) cell.firstChild.setAttribute("aria-label", told);
}

// `rows` are [key, cells]. Rows keep their elements; under the pointer they also keep their order.
function fill(id, rows) {
  const body = byId(id), kept = new Map([...body.rows].map((row) => [row.dataset.key, row]));
  if (body.matches(":hover")) {
    const places = new Map([...kept.keys()].map((key, at) => [key, at]));
    rows = rows.toSorted((one, other) => (places.get(one[0]) ?? Infinity) - (places.get(other[0]) ?? Infinity) || 0);
  }
  const keys = new Set(rows.map(([key]) => key));
  for (const [key, row] of kept) if (!keys.has(key)) row.remove();
  const labels = [...body.parentElement.querySelectorAll("thead th")].map((head) => [...head.childNodes].map((part) => part.textContent).join(" "));
  const wanted = byId("search").value.trim().toLowerCase();
  const all = document.querySelector(`[data-all="${id}"]`), rest = !all || whole.has(id) || wanted ? 0 : rows.length - ROWS;
  if (all) {
    all.hidden = rest <= 0;
    say(all, `Show all ${count(rows.length)}`);
  }
  rows.forEach(([key, cells], at) => {
    const row = kept.get(key) ?? document.createElement("tr");
    row.dataset.key = key;
    cells.forEach((cell, i) => put(child(row, i, i || id === "requests" || id === "queries" ? "td" : "th"), cell));
    if (!kept.has(key)) cells.forEach((_, i) => { row.cells[i].dataset.label = labels[i] ?? ""; });
    if (row.cells[0].tagName === "TH") row.cells[0].scope = "row";
    row.hidden = (rest > 0 && at >= ROWS) || !row.textContent.toLowerCase().includes(wanted);
    if (body.rows[at] !== row) body.insertBefore(row, body.rows[at] ?? null);
  });
}

// ---- what the page shows ----

const number = (text, bad = false) => ({ text, kind: bad ? "number bad" : "number" });
const wide = (text, below = "") => ({ text, below, kind: "wide" });

function show(status) {
  last = status;
  const { saved, upstreams } = status;
  byId("version").textContent = status.version;
  byId("unasked").hidden = upstreams.some((u) => u.rate || !u.address);
  say(byId("addresses"), named(upstreams.map((u) => `${u.address} (${u.name})`)));
  showTasks(status);
  showUpstreams(status);
  showGateway(status);
  byId("saved").hidden = !saved.queries;
  byId("spared-requests").textContent = count(saved.requests);
  byId("spared-bytes").textContent = bytes(saved.bytes);
  byId("queries-answered").textContent = count(saved.queries);
  byId("queries-index").textContent = count(saved.at_once);
  fill("reasons", status.reasons.map(reason));
  byId("no-reasons").hidden = status.reasons.length > 0;
  if (!byId("queries").matches(":hover")) {
    fill("queries", status.queries.map((q) => [String(q.n), [
      clock(q.at), wide(q.upstream), { text: q.outcome, kind: q.outcome === "failed" ? "bad" : "" }, wide(q.reason),
      number(count(q.requests)), number(count(q.spared_requests)), number(count(q.tasks)), number(count(q.total)),
    ]]));
  }
  byId("no-queries").hidden = status.queries.length > 0;
  showRequests(status);
}

function advice(failure) { // about a reason: in words, what to do, and where more stands
  const [name, code = ""] = failure.split(" ");
  return REASONS[name + code] ?? REASONS[name === "UpstreamStatus" && code < 500 ? "UpstreamPath" : name];
}

function reason(r) {
  const code = r.failure.split(" ")[1] ?? "";
  const [words, does, ...more] = advice(r.failure);
  return [r.key, [
    { text: `${words} ${code}`, below: `${r.failure}, ${r.is_fault ? "counts" : "does not count"} as failing`,
      kind: r.counts[1] && r.is_fault ? "reason bad" : "reason" },
    number(count(r.counts[0])), number(count(r.counts[1]), r.is_fault && r.counts[1]), number(count(r.counts[2])),
    { text: `first ${when(r.since)}`, below: `last ${when(r.last)}` }, wide(r.upstream || "no upstream"),
    wide(r.why), { text: does, more, kind: "does" },
  ]];
}

function showTasks(status) {
  const tools = status.upstreams.flatMap((u) => (u.tasks ?? []).map((t) => ({ ...t, upstream: u.name })));
  byId("tasks-off").hidden = !(byId("tasks-shown").hidden = status.upstreams.some((u) => u.tasks === null));
  byId("no-tasks").hidden = !(byId("tasks-now").hidden = !tools.length);
  put(byId("working"), live(tools, "working", unheard(tools)));
  put(byId("waiting"), live(tools, "input_required"));
  put(byId("failed"), failed(tools, " since the start"));
  put(byId("created"), { text: count(sum(tools.map((t) => t.started["5m"]))),
    below: `${count(sum(tools.map((t) => t.started.all)))} since the start` });
  const rank = (t) => (t.wrong.length ? 0 : t.live.working || t.live.input_required ? 1 : t.started["1m"] ? 2 : t.live.unheard ? 3 : 4);
  fill("tasks", tools.toSorted((one, other) => rank(one) - rank(other)).map((t) => [`${t.upstream}\n${t.tool}`, [
    wide(t.tool || "(not known)", t.upstream), live([t], "working", unheard([t])), live([t], "input_required"), failed([t]),
    { curve: { requests: t.curve }, kind: "curve" },
    number(t.duration_s ? `${duration(t.duration_s.p50)} / ${duration(t.duration_s.p95)}` : "–"),
    happened(t, "1m"), happened(t, "5m"), happened(t, "all"),
  ]]));
}

function live(tools, status, also = "") { // how many tasks, and for how long the oldest
  const found = tools.map((t) => t.live[status]).filter((one) => one?.count), n = sum(found.map((one) => one.count));
  const oldest = n ? `oldest ${ago(last.now - Math.min(...found.map((one) => one.since)))}` : "";
  const isStuck = status === "working" && tools.some((t) => t.wrong.includes("stuck"));
  return { text: count(n), below: [oldest, also].filter(Boolean).join("; "), kind: isStuck ? "number big warn" : n ? "number big" : "number" };
}

function unheard(tools) { // of how many tasks nobody knows whether they still work
  const found = tools.map((t) => t.live.unheard).filter((one) => one?.count);
  const since = () => `not heard of since ${when(Math.max(...found.map((one) => one.since)))}`;
  return found.length ? `${count(sum(found.map((one) => one.count)))} ${since()}` : "";
}

function failed(tools, suffix = "") { // of what ended in 5 minutes; below it since the start
  const [recent, all] = ["5m", "all"].map((span) => [sum(tools.map((t) => t.ended[span].failed ?? 0)),
    sum(tools.map((t) => sum(Object.values(t.ended[span]))))]);
  const told = ([bad, ended]) => (ended ? `${count(bad)} of ${count(ended)}` : "–");
  return { text: told(recent), below: all[1] ? told(all) + suffix : "",
    kind: tools.some((t) => t.wrong.includes("tasks")) ? "number big bad" : recent[0] ? "number big" : "number" };
}

function happened(t, span) {
  const ends = ENDS.filter((end) => t.ended[span][end]).map((end) => `${count(t.ended[span][end])}\u00a0${end}`).join(", ");
  return { text: t.started[span] || ends ? `${count(t.started[span])} created` : "–", below: ends, kind: "words" };
}

function named(names) {
  const shown = names.slice(0, 5).join(", ");
  return names.length > 5 ? `${shown} and ${names.length - 5} more` : shown;
}

function state(u) { // and what is wrong, since when and why
  const most = (counts) => (counts?.[1] < u.asked?.[1] ? "nearly all" : "all");
  const words = { down: u.state === "down" ? "down" : `fails ${most(u.faults)}`, failing: "failing", refused: `refuses ${most(u.refused)}`,
    limit: "near its limit", drift: "each request another caller", tasks: "tasks fail", stuck: "tasks do not end" };
  const faults = Object.values(u.wrong), cause = faults.find((fault) => fault.since), { since, why } = cause ?? u;
  const level = faults.some((fault) => fault.level === "bad") ? "bad" : faults.length ? "warn" : u.state === "up" ? "good" : "";
  return { text: [...(u.wrong.down ? [] : [u.state]), ...faults.map((fault) => words[fault.kind])].join(", "),
    kind: `state ${level}`.trim(), below: `${cause || !faults.length ? "" : `${u.state} `}since ${when(since)}, ${ago(last.now - since)}${why ? `: ${why}` : ""}` };
}

function showUpstreams(status) {
  const by = SORTS[sort];
  const ordered = status.upstreams.toSorted((one, other) =>
    by(one) < by(other) ? -1 : by(one) > by(other) ? 1 : SORTS.state(one) - SORTS.state(other));
  fill("upstreams", ordered.map((u) => [u.name, [
    wide(u.name, u.url), state(u), number(both(u.rate, rate)), { curve: u.curve ?? null, kind: "curve" },
    { ...number(both(u.failing, percent), u.failing?.[1]), below: u.wrong.refused ? `refused ${percent(u.refused[1] / u.asked[1])}` : "" },
    number(both(u.p95, within)), number(`${count(u.in_flight)} of ${count(u.requests_max)}`, u.in_flight >= 0.8 * u.requests_max),
  ]]));
  const rows = [...byId("upstreams").rows], seen = rows.filter((row) => !row.hidden).length;
  say(byId("found"), byId("search").value.trim() ? `${seen} of ${rows.length} upstreams` : "");
}

function tile(id, text, bad) { // it is there if there is something to say
  byId(id).parentElement.hidden = !text;
  say(byId(id), text || "", bad ? "bad" : "");
}

function showGateway(status) {
  const { traffic, reload, guards, draining, now } = status;
  const began = new Date(status.began_at * 1000);
  say(byId("uptime"), `${ago(now - status.began_at)}, since ${began.toLocaleDateString("en-CA")} ${began.toLocaleTimeString("en-GB", { timeZoneName: "short" })}`);
  say(byId("rate"), both(traffic.rate, rate));
  say(byId("failing"), both(traffic.failing, percent), traffic.failing[1] ? "bad" : "");
  say(byId("reload"), `read ${when(reload.at)}${reload.refused ? `; the last reload was refused: ${reload.refused}` : ""}`,
    reload.refused ? "bad" : "");
  tile("store", { 0: `fails: ${status.store_fails?.[1]}`, 1: "serves" }[status.store_up], status.store_up === 0);
  const limits = [];
  if (guards?.task_operations_per_second) limits.push(`${guards.task_operations_per_second} task operations/s of a client`);
  if (guards?.own_tasks) limits.push("each caller has his own tasks alone");
  if (guards?.task_ttl_max) limits.push(`ttl at most ${ago(guards.task_ttl_max)}`);
  const refused = sum(status.reasons.filter((r) => r.failure === "RateLimited").map((r) => r.counts[1]));
  tile("guards", limits.length && `${limits.join(", ")}; ${count(refused)} refused in 5 min`);
  const invalid = status.invalid_certificates;
  const ends = Object.entries(status.certificates).map(([name, at]) =>
    `${name || "the listener"}: ${invalid[name] ?? `${ago(at - now)} left`}`);
  tile("certificates", ends.join("; "), Object.keys(invalid).length);
  tile("drain", draining
    && `for ${ago(now - draining[0])}: ${count(status.under_way)} requests left, ends within ${ago(draining[1] - now)}`);
  const rows = status.limits.map((l) => [l.what, [l.what, { text: percent(l.used / l.max), share: l.used / l.max,
    below: `${(l.unit ? bytes : count)(l.used)} of ${(l.unit ? bytes : count)(l.max)}`, kind: "share" }], l.used >= l.max / 2]);
  const low = rows.filter((row) => !row[2]);
  fill("limits", rows.filter((row) => row[2]));
  fill("limits-low", low);
  say(byId("limits-low-count"), `${low.length} of ${rows.length} below half`);
}

function showRequests(status, anyway = false) {
  const found = byId("failures").checked ? status.failures : status.requests;
  if (byId("requests").matches(":hover") && !anyway) { // it holds still: rows would move from under the pointer
    held ??= Number(byId("requests").rows[0].dataset.key);
    const more = found.filter((r) => r.n > held).length;
    return say(byId("held"), more ? `Held under the pointer; ${more === found.length ? "at least " : ""}${more} new` : "");
  }
  held = null;
  say(byId("held"), "");
  fill("requests", found.map((r) => [String(r.n), [
    clock(r.at), wide(r.upstream || "none"), r.method, r.kind, number(String(r.status), r.why), number(duration(r.seconds)),
    wide(r.why),
  ]]));
  byId("no-requests").hidden = found.length > 0;
}

// ---- the connection ----

function verdict({ text, level, faults, more = 0 }, icon) {
  say(byId("verdict"), text, level); // where faults are listed it is for those who hear the page
  faults.forEach((fault, at) => wrong(child(byId("wrong"), at, "li"), fault));
  while (byId("wrong").children.length > faults.length) byId("wrong").lastChild.remove();
  say(byId("more"), more ? `and ${count(more)} more` : "");
  arrange(level === "good" || level === "note");
  if (document.title !== `${text} · taskgate`) document.title = `${text} · taskgate`;
  const address = `page/${icon}.svg`;
  if (byId("icon").getAttribute("href") !== address) byId("icon").setAttribute("href", address);
}

function wrong(item, { level, text, row, since, why, kind }) { // a fault, as a link to its row
  const said = text + (since ? ` since ${when(since)}` : "") + (why ? `: ${why}` : "");
  const link = child(item, 0, "a");
  say(link, said, level);
  if (row) link.setAttribute("href", `#${row[0]}-section`); else link.removeAttribute("href");
  link.onclick = row && (() => {
    whole.add(row[0]);
    show(last);
    const found = [...(byId(row[0])?.rows ?? [])].find((one) => one.dataset.key === row[1]);
    found?.scrollIntoView({ block: "center" });
    return !found;
  });
  const below = child(item, 1, "small"), [does, ...more] = row?.[0] === "reasons" ? advice(row[1].split("\n")[1]).slice(1) : DOES[kind];
  say(child(below, 0, "span"), does);
  refer(child(below, 1, "a"), ...more);
}

let arranged = true; // with tasks first: if something is wrong, it comes first
function arrange(isGood) {
  if (arranged === isGood) return;
  arranged = isGood;
  const names = isGood ? ["tasks", "reasons", "upstreams"] : ["upstreams", "reasons", "tasks"];
  for (const name of names) byId("gateway-section").before(byId(`${name}-section`));
}

// Says how things stand between the page and the gateway. Runs by itself, so that a hanging answer holds nothing up.
function tell() {
  const isGone = !paused && missingSince !== null && performance.now() - missingSince >= SILENT_MS;
  document.body.classList.toggle("gone", isGone);
  const silent = ago((performance.now() - answeredAt) / 1000);
  say(byId("how-long"), isGone ? `for ${silent}; what is shown is as old` : "");
  if (paused) say(byId("state"), "Paused");
  else if (isGone) say(byId("state"), "The gateway does not answer");
  else if (last) say(byId("state"), last.draining ? "Draining" : "Live");
  if (isGone) verdict({ text: "The gateway does not answer", level: "bad", faults: [{ level: "bad", text: "The gateway does not answer", kind: "silent" }] }, "icon-gone");
  else if (last) verdict(last.verdict, { warn: "icon-warn", bad: "icon-bad" }[last.verdict.level] ?? "icon");
}

async function ask() {
  missingSince ??= performance.now();
  try {
    const answer = await fetch("page/status.json", { cache: "no-store", signal: AbortSignal.timeout(SILENT_MS) });
    if (!answer.ok) throw new Error(String(answer.status));
    const found = await answer.json();
    if (paused) return; // pressed meanwhile
    answeredAt = performance.now();
    missingSince = null;
    show(found);
  } catch (error) {
    if (!(error instanceof DOMException || error instanceof TypeError)) throw error; // no answer, or a broken one
  } finally {
    tell();
  }
}

let next;
async function turn() {
  clearTimeout(next);
  if (!paused) await ask();
  next = setTimeout(turn, document.hidden ? HIDDEN_MS : INTERVAL_MS);
}

byId("pause").addEventListener("click", () => {
  paused = !paused;
  missingSince = null;
  byId("pause").setAttribute("aria-pressed", String(paused));
  tell();
});
byId("failures").addEventListener("change", () => { if (last) showRequests(last, true); });
byId("search").addEventListener("input", () => { if (last) show(last); });
byId("requests").addEventListener("pointerleave", () => { if (last && !paused) showRequests(last, true); });
for (const button of document.querySelectorAll("[data-all]")) {
  button.addEventListener("click", () => { whole.add(button.dataset.all); show(last); });
}
for (const button of document.querySelectorAll("[data-sort]")) {
  button.addEventListener("click", () => {
    sort = button.dataset.sort;
    document.querySelector("[aria-sort]").removeAttribute("aria-sort");
    button.closest("th").setAttribute("aria-sort", "ascending");
    if (last) showUpstreams(last);
  });
}
document.addEventListener("visibilitychange", () => { if (!document.hidden) turn(); });
for (const part of document.querySelectorAll(".live")) part.hidden = false;
for (const log of document.querySelectorAll(".log")) log.open = !matchMedia("(max-width: 40rem)").matches;
for (const name of ICONS) new Image().src = `page/${name}.svg`; // kept for when the gateway is gone
setInterval(tell, 250);
turn();
