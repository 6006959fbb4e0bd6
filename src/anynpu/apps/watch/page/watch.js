"use strict";
const SVG = "http://www.w3.org/2000/svg";
const RANGES = [["3 h", 3], ["1 d", 24], ["1 w", 168], ["4 w", 672]];
const EVERY_MS = 15000;
const state = { fleet: null, host: "", hours: 24, token: sessionStorage.getItem("anynpu-watch-token") || "" };
const $ = (id) => document.getElementById(id);

function make(tag, options = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (name === "on") element.addEventListener("click", value);
    else if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

async function ask(path, body) {
  const headers = state.token ? { authorization: `Bearer ${state.token}` } : {};
  const options = body ? { method: "POST", headers: { ...headers, "content-type": "application/json" }, body: JSON.stringify(body) } : { headers };
  const answer = await fetch(path, options);
  if (answer.status === 401) { $("sign-in").hidden = false; throw new Error("a token is needed"); }
  if (!answer.ok) throw new Error((await answer.json()).error.message);
  $("sign-in").hidden = true;
  return answer.json();
}

const when = (s) => new Date(s * 1000).toLocaleString([], { dateStyle: "short", timeStyle: "short" });

function ago(s, now) {
  const d = Math.max(0, now - s);
  if (d < 90) return `${Math.round(d)} s`;
  if (d < 5400) return `${Math.round(d / 60)} min`;
  return d < 129600 ? `${Math.round(d / 3600)} h` : `${Math.round(d / 86400)} d`;
}

function shown(value, unit) {
  if (value === null || value === undefined) return "–";
  if (unit === "B/s" || unit === "B") {
    for (const [prefix, factor] of [["G", 1e9], ["M", 1e6], ["k", 1e3]])
      if (Math.abs(value) >= factor) return `${(value / factor).toPrecision(3)} ${prefix}${unit}`;
  }
  return `${Number(value.toPrecision(4))}${unit ? " " + unit : ""}`;
}

function alertCard(alert, now) {
  const over = alert.ended_s !== null;
  const causes = make("ul", {}, ...alert.causes.map((c) => make("li", { textContent: c.ended_s ? `${c.text} – ${c.ending}` : c.text })));
  const acts = make("div", { className: "acts" });
  acts.append(over ? `${when(alert.began_s)} to ${when(alert.ended_s)}` : `since ${when(alert.causes[0].since_s)} (${ago(alert.causes[0].since_s, now)})`);
  if (alert.silent) acts.append(make("span", { textContent: `not sent: ${alert.silent}` }));
  if (alert.acknowledged_s) acts.append(make("span", { textContent: `acknowledged ${alert.acknowledged_by ? "by " + alert.acknowledged_by + " " : ""}at ${when(alert.acknowledged_s)}` }));
  if (!over && !alert.acknowledged_s)
    acts.append(make("button", { textContent: "Acknowledge", on: () => act(`/v1/alerts/${alert.id}/acknowledge`, { by: "" }) }));
  if (!over) {
    const metric = alert.causes[0].metric || "*";
    acts.append(make("button", { textContent: "Mute 8 h", title: `${alert.host}: ${metric}`,
      on: () => act("/v1/mutes", { host: alert.host, metric, hours: 8, note: "from the page" }) }));
  }
  acts.append(make("button", { textContent: "Show", on: () => choose(alert.host) }));
  const quiet = alert.acknowledged_s || alert.silent;
  return make("article", { className: `alert${over ? " over" : quiet ? " quiet" : ""}` }, make("h3", { textContent: alert.title }), causes, acts);
}

async function act(path, body) {
  try { await ask(path, body); await refresh(); } catch (error) { $("summary").textContent = error.message; }
}

function drawFleet() {
  const { hosts, alerts, mutes, now_s: now } = state.fleet;
  const open = alerts.filter((a) => a.ended_s === null), past = alerts.filter((a) => a.ended_s !== null);
  $("summary").textContent = `${hosts.length} host${hosts.length === 1 ? "" : "s"}, ${open.length} open alert${open.length === 1 ? "" : "s"}`;
  document.title = open.length ? `(${open.length}) anynpu watch` : "anynpu watch";
  $("alerts").replaceChildren(...(open.length ? open.map((a) => alertCard(a, now)) : [make("p", { className: "nothing", textContent: "Nothing is wrong." })]));
  $("past").hidden = !past.length;
  $("recovered").replaceChildren(...past.slice(0, 30).map((a) => alertCard(a, now)));
  $("mutes").replaceChildren(...mutes.map((m) => make("p", { className: "nothing" },
    `Muted until ${when(m.until_s)}: ${m.host} ${m.metric} `,
    make("button", { textContent: "End", on: () => act("/v1/mutes", { host: m.host, metric: m.metric, hours: 0, note: "" }) }))));
  drawHosts();
}

function drawHosts() {
  const { hosts, now_s: now } = state.fleet;
  const word = $("search").value.toLowerCase();
  const chosen = hosts.filter((h) => h.host.toLowerCase().includes(word));
  chosen.sort((a, b) => b.wrong.length - a.wrong.length || a.host.localeCompare(b.host));
  $("hosts").replaceChildren(...chosen.slice(0, 400).map((h) => {
    const late = now - h.seen_s > 300;
    const figures = [["cpu", h.metrics.cpu_percent], ["mem", h.metrics.memory_percent]].filter(([, v]) => v !== undefined);
    const card = make("button", { className: `host${h.wrong.length ? " bad" : late ? " late" : ""}`, on: () => choose(h.host), title: h.host },
      make("strong", {}, make("span", { className: "dot" }), h.host),
      make("small", { textContent: figures.map(([n, v]) => `${n} ${v.toFixed(0)} %`).join("  ") || "–" }),
      make("small", { className: h.wrong.length ? "wrong" : "", textContent: h.wrong.length ? h.wrong.join(", ") : `${ago(h.seen_s, now)} ago` }));
    card.setAttribute("aria-pressed", String(h.host === state.host));
    return card;
  }));
}

function choose(host) {
  state.host = host;
  location.hash = encodeURIComponent(host);
  drawHosts();
  drawDetail(true);
}

function path(values, x, y, close) {
  let text = "", pen = false;
  values.forEach((v, i) => {
    if (v === null) { pen = false; return; }
    text += `${pen ? "L" : "M"}${x(i).toFixed(1)} ${y(v).toFixed(1)}`;
    pen = true;
  });
  return close ? text + "Z" : text;
}

function area(low, high, x, y) {
  let text = "", run = [];
  const flush = () => {
    if (run.length) {
      const up = run.map((i) => `${x(i).toFixed(1)} ${y(high[i]).toFixed(1)}`), down = run.slice().reverse().map((i) => `${x(i).toFixed(1)} ${y(low[i]).toFixed(1)}`);
      text += `M${up.join("L")}L${down.join("L")}Z`;
    }
    run = [];
  };
  low.forEach((v, i) => (v === null || high[i] === null ? flush() : run.push(i)));
  flush();
  return text;
}

function shape(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

function figure(line, answer, causes) {
  const known = [...line.low, ...line.high, ...line.usual_low, ...line.usual_high].filter((v) => v !== null);
  const lowest = Math.min(...known), highest = Math.max(...known), pad = (highest - lowest || 1) * 0.06, width = line.mean.length;
  const x = (i) => (i + 0.5), y = (v) => 84 - ((v - lowest + pad) / (highest - lowest + 2 * pad || 1)) * 84;
  const at = (s) => ((s - answer.from_s) / (answer.to_s - answer.from_s)) * width;
  const svg = shape("svg", { viewBox: `0 0 ${width} 84`, preserveAspectRatio: "none", role: "img", "aria-label": `${line.metric} over time` });
  const mine = causes.filter((c) => c.metric === line.metric);
  for (const c of mine) {
    const from = Math.max(0, at(c.since_s)), to = Math.min(width, c.ended_s ? at(c.ended_s) : width);
    if (to > from) svg.append(shape("rect", { class: "span", x: from, y: 0, width: to - from, height: 84 }), shape("line", { class: "since", x1: from, x2: from, y1: 0, y2: 84 }));
  }
  svg.append(shape("path", { class: "band-area", d: area(line.usual_low, line.usual_high, x, y) }), shape("path", { class: "reach", d: area(line.low, line.high, x, y) }), shape("path", { class: "mean", d: path(line.mean, x, y, false) }));
  const last = [...line.mean].reverse().find((v) => v !== null);
  return make("figure", { className: mine.some((c) => !c.ended_s) ? "bad" : "" },
    make("figcaption", {}, make("b", { textContent: line.metric }), make("span", { textContent: shown(last, line.unit) })), svg,
    make("p", {}, make("span", { textContent: `${shown(lowest, line.unit)} to ${shown(highest, line.unit)}` }), make("span", { textContent: `${when(answer.from_s)} –` })));
}

async function drawDetail(scroll) {
  if (!state.host) return;
  try {
    const answer = await ask(`/v1/hosts/${encodeURIComponent(state.host)}/series?hours=${state.hours}`);
    const causes = state.fleet.alerts.filter((a) => a.host === state.host).flatMap((a) => a.causes);
    $("detail").hidden = false;
    $("detail-title").textContent = state.host;
    $("ranges").replaceChildren(...RANGES.map(([name, hours]) => {
      const button = make("button", { textContent: name, on: () => { state.hours = hours; drawDetail(false); } });
      button.setAttribute("aria-pressed", String(hours === state.hours));
      return button;
    }));
    $("lines").replaceChildren(...answer.lines.map((line) => figure(line, answer, causes)));
    if (scroll) $("detail").scrollIntoView({ block: "start" });
  } catch (error) { $("summary").textContent = error.message; }
}

async function refresh() {
  try {
    state.fleet = await ask("/v1/fleet");
    drawFleet();
    await drawDetail(false);
  } catch (error) { $("summary").textContent = error.message; }
}

$("search").addEventListener("input", drawHosts);
$("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  state.token = $("token").value.trim();
  sessionStorage.setItem("anynpu-watch-token", state.token);
  refresh();
});
state.host = decodeURIComponent(location.hash.slice(1));
refresh();
setInterval(() => { if (!document.hidden) refresh(); }, EVERY_MS);
