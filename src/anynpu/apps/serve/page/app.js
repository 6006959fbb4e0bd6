"use strict";

const KEPT = 120;
const EVERY_MS = 250;
const $ = (id) => document.getElementById(id);
const state = { models: {}, health: {}, token: "", last: null, timer: 0, busy: false, times: [], file: null, url: "" };

/** Returns an element with attributes, text and children; nothing is ever parsed as HTML. */
function make(name, attributes = {}, ...children) {
  const svg = ["svg", "rect", "text", "polyline", "line", "title"].includes(name);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

function show(id, ...children) { $(id).replaceChildren(...children); }
function figure(value, digits = 4) { return Number.isFinite(value) ? Number(value.toPrecision(digits)).toString() : "–"; }

class Refused extends Error {
  constructor(status, message) { super(message); this.status = status; }
}

/** Returns the words of an error, in any of the forms that servers use. */
function words(data, status) {
  const error = data && typeof data === "object" ? data.error ?? data.message ?? data.detail : data;
  const text = error && typeof error === "object" ? error.message : error;
  return `${text || "no answer"} (HTTP ${status})`;
}

function timings(header) {
  const found = {};
  for (const part of (header || "").split(",")) {
    const match = /^\s*([\w-]+)\s*;(?:.*;)?\s*dur=([\d.]+)/.exec(part);
    if (match) found[match[1]] = Number(match[2]);
  }
  return found;
}

async function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (state.token) headers.Authorization = `Bearer ${state.token}`;
  const began = performance.now();
  const answer = await fetch(path, { ...options, headers });
  const text = await answer.text();
  const elapsed = performance.now() - began;
  let data = null;
  try { data = JSON.parse(text); } catch { data = text.slice(0, 300); }
  if (answer.status === 401) $("token-form").hidden = false;
  if (!answer.ok) throw new Refused(answer.status, words(data, answer.status));
  return { data, elapsed, stages: timings(answer.headers.get("server-timing")), version: answer.headers.get("x-model-version") };
}

function post(path, body) {
  return ask(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
}

/** Sends a request, shows what `render` makes of it, and keeps it for repetition. */
async function run(place, send, render) {
  state.last = { place, send, render };
  $("repeat").disabled = false;
  await once(state.last);
}

async function once(request) {
  if (state.busy) return;
  state.busy = true;
  try {
    const found = await request.send();
    note(found);
    request.render(found);
  } catch (error) {
    show(request.place, make("p", { class: "error" }, error instanceof Refused ? error.message : `the server did not answer: ${error.message}`));
    repeat(false);
  } finally {
    state.busy = false;
  }
}

function note(found) {
  state.times.push({ whole: found.elapsed, server: found.stages.total, device: found.stages.run });
  state.times.splice(0, state.times.length - KEPT);
  graph();
}

function middle(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.max(0, Math.ceil(sorted.length / 2) - 1)];
}

function graph() {
  const top = Math.max(...state.times.map((each) => each.whole)) * 1.1 || 1;
  const step = 600 / (KEPT - 1);
  const lines = [0.25, 0.5, 0.75].map((at) => make("line", { x1: 0, x2: 600, y1: 160 * at, y2: 160 * at }));
  for (const name of ["whole", "server", "device"]) {
    const points = state.times
      .map((each, at) => (Number.isFinite(each[name]) ? `${(at * step).toFixed(1)},${(160 - (160 * each[name]) / top).toFixed(1)}` : ""))
      .filter(Boolean);
    if (points.length === 1) points.push(points[0].replace(/^[^,]+/, "3"));
    lines.push(make("polyline", { class: name, points: points.join(" ") }));
  }
  const last = state.times[state.times.length - 1];
  const median = middle(state.times.map((each) => each.whole));
  const text = `last ${figure(last.whole, 3)} ms, median ${figure(median, 3)} ms of ${state.times.length}; top of the graph ${figure(top, 2)} ms`;
  show("graph", make("title", { id: "graph-title" }, `Latency: ${text}`), ...lines);
  $("latency-text").textContent = text;
}

function repeat(on) {
  clearInterval(state.timer);
  state.timer = on ? setInterval(() => state.last && once(state.last), EVERY_MS) : 0;
  $("repeat").setAttribute("aria-pressed", String(on));
  $("repeat").textContent = on ? "Stop" : "Repeat the last request";
}

/* What is known of a model */

function table(head, rows) {
  const cell = (kind, value) => make(kind, typeof value === "number" ? { class: "number" } : {}, typeof value === "number" ? figure(value) : String(value ?? "–"));
  const columns = head.map((name, at) => make("th", rows.some((row) => typeof row[at] === "number") ? { class: "number", scope: "col" } : { scope: "col" }, name));
  return make("table", {}, make("thead", {}, make("tr", {}, ...columns)),
    make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map((value) => cell("td", value))))));
}

function proof(model, health) {
  const parts = [];
  const figures = Object.entries(model.verification || {});
  if (figures.length) {
    parts.push(table(["output", "SQNR dB", "cosine"], figures.map(([name, each]) => [name, each.sqnr_db, each.cosine])));
    parts.push(make("p", { class: "soft" }, `Compared with the float model when it was built${model.verified_by ? `: ${model.verified_by}` : ""}.`));
  } else {
    parts.push(make("p", { class: "soft" }, "The figures of its verification did not come with the artifact."));
  }
  const placed = model.placement;
  if (placed) {
    parts.push(make("p", {}, `${placed.on_npu} of ${placed.operators} operators run on the NPU (${figure(100 * placed.share, 3)} %, ${placed.source || "as its compiler says"}).`));
    const elsewhere = (placed.elsewhere || []).map((each) => [each.name, each.kind, each.device, each.reason || ""]);
    if (elsewhere.length) parts.push(table(["operator", "kind", "runs on", "because"], elsewhere.slice(0, 30)));
  }
  const canary = health && health.canary;
  if (canary && canary.runs) {
    const age = canary.age_s == null ? "" : `, ${Math.round(canary.age_s)} s ago`;
    parts.push(make("p", canary.ok ? {} : { class: "error" }, canary.ok ? `Known answers: right at the last check${age} (cases: ${canary.cases}, checks: ${canary.runs}).` : `Known answers: ${canary.reason}${age}.`));
  }
  return parts;
}

function choose(name) {
  const model = state.models[name];
  if (!model) return;
  const health = state.health[name];
  const what = { "embed-text": `Text to ${model.width} numbers, up to ${model.length} tokens`, "embed-image": `Picture to ${model.width} numbers`, detect: `Objects of ${(model.labels || []).length} classes`, classify: `One of ${(model.labels || []).length} classes`, tensors: "Tensors to tensors" }[model.kind] || model.kind;
  $("model-text").textContent = `${model.title ? `${model.title}. ` : ""}${what}. Executed by ${model.executed || model.device}; artifact ${(model.version || "").slice(0, 12)}${health ? `; ${health.state}${health.reason ? `: ${health.reason}` : ""}` : ""}.`;
  show("proof", ...proof(model, health));
  $("info").textContent = JSON.stringify(model, null, 2);
  const picture = ["embed-image", "detect", "classify"].includes(model.kind);
  $("text-part").hidden = $("pair-part").hidden = model.kind !== "embed-text";
  $("image-part").hidden = !picture;
  $("threshold-row").hidden = model.kind !== "detect";
  $("tensor-part").hidden = model.kind !== "tensors";
  $("tensor-inputs").textContent = (model.inputs || []).map((each) => `${each.name} ${each.dtype} [${(each.shape || []).join(", ")}]`).join("; ");
  state.last = null;
  state.times = [];
  repeat(false);
  $("repeat").disabled = true;
  show("graph");
  $("latency-text").textContent = "No request yet.";
  for (const id of ["text-result", "pair-result", "image-result", "tensor-result", "boxes"]) show(id);
  if (picture && state.file) sendPicture();
}

function named() { return $("model").value; }

async function load() {
  try {
    const [info, health] = await Promise.all([ask("info"), ask("health").catch((error) => ({ data: { status: error.message, models: {} } }))]);
    $("token-form").hidden = true;
    $("version").textContent = info.data.version || "";
    state.models = info.data.models || {};
    state.health = health.data.models || {};
    const status = health.data.status;
    $("state").className = status === "ok" ? "ok" : "bad";
    $("state-text").textContent = status === "ok" ? "ready" : status;
    const before = named();
    show("model", ...Object.keys(state.models).map((name) => make("option", { value: name }, name)));
    if (state.models[before]) $("model").value = before;
    choose(named());
  } catch (error) {
    $("state").className = "bad";
    $("state-text").textContent = error instanceof Refused ? error.message : "the server does not answer";
  }
}

/* Texts */

function strip(vector) {
  const most = Math.max(...vector.map(Math.abs)) || 1;
  const bars = vector.map((value, at) => {
    const height = (Math.abs(value) / most) * 50;
    return make("rect", { class: value < 0 ? "down" : "up", x: at, y: value < 0 ? 50 : 50 - height, width: 0.8, height });
  });
  return make("svg", { class: "vector", viewBox: `0 0 ${vector.length} 100`, preserveAspectRatio: "none", role: "img", "aria-label": `${vector.length} numbers as bars` }, ...bars);
}

function showVector(place, vector, usage) {
  const norm = Math.hypot(...vector);
  const start = vector.slice(0, 6).map((value) => figure(value, 3)).join(", ");
  const tokens = usage && usage.prompt_tokens ? `, ${usage.prompt_tokens} tokens` : "";
  show(place, strip(vector), make("p", { class: "soft" }, `${vector.length} numbers, length ${figure(norm, 4)}${tokens}: ${start}, …`));
}

function cosine(a, b) {
  let product = 0, left = 0, right = 0;
  for (let at = 0; at < a.length; at += 1) { product += a[at] * b[at]; left += a[at] ** 2; right += b[at] ** 2; }
  return product / (Math.sqrt(left * right) || 1);
}

$("text-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const body = { model: named(), input: $("text").value };
  run("text-result", () => post("v1/embeddings", body), (found) => showVector("text-result", found.data.data[0].embedding, found.data.usage));
});

$("pair-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const body = { model: named(), input: [$("first").value, $("second").value] };
  run("pair-result", () => post("v1/embeddings", body), (found) => {
    const [a, b] = [...found.data.data].sort((x, y) => x.index - y.index).map((each) => each.embedding);
    const value = cosine(a, b);
    show("pair-result", make("p", { class: "score" }, value.toFixed(3)), make("meter", { min: 0, max: 1, value: Math.max(0, value), "aria-label": "cosine of the two texts" }), make("p", { class: "soft" }, "Cosine: 1 is the same direction, 0 has nothing in common."));
  });
});

/* Pictures */

function hue(element, number) {
  element.style.setProperty("--hue", String((number * 47 + 210) % 360));
  return element;
}

function showBoxes(image) {
  const { width, height, detections } = image;
  const size = Math.max(width, height) / 32;
  const shapes = detections.flatMap((each) => {
    const [x1, y1, x2, y2] = each.box;
    const box = hue(make("rect", { x: x1, y: y1, width: x2 - x1, height: y2 - y1 }), each.number);
    return [box, make("text", { x: Math.max(0, x1) + size / 5, y: Math.max(y1, 0) + size, "font-size": size }, `${each.label} ${each.score.toFixed(2)}`)];
  });
  $("boxes").setAttribute("viewBox", `0 0 ${width} ${height}`);
  show("boxes", ...shapes);
  const rows = detections.map((each) => make("tr", {}, make("td", {}, hue(make("span", { class: "swatch" }), each.number), each.label), make("td", { class: "number" }, each.score.toFixed(3)), make("td", {}, each.box.map((value) => Math.round(value)).join(", "))));
  const head = make("tr", {}, make("th", { scope: "col" }, "object"), make("th", { scope: "col", class: "number" }, "score"), make("th", { scope: "col" }, "box (x1, y1, x2, y2)"));
  show("image-result", detections.length ? make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows)) : make("p", {}, "Nothing found at this score."));
}

function showClasses(image) {
  const bars = image.classes.flatMap((each) => {
    const bar = make("div");
    bar.style.width = `${Math.max(0, Math.min(1, each.score)) * 100}%`;
    return [make("span", { class: "name" }, each.label), make("div", { class: "bar", "aria-hidden": "true" }, bar), make("span", {}, each.score.toFixed(3))];
  });
  show("image-result", make("div", { class: "bars" }, ...bars));
}

async function base64(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  let text = "";
  for (let at = 0; at < bytes.length; at += 32768) text += String.fromCharCode(...bytes.subarray(at, at + 32768));
  return btoa(text);
}

async function sendPicture() {
  const file = state.file, model = state.models[named()];
  const headers = { "Content-Type": file.type || "application/octet-stream" };
  show("boxes");
  if (model.kind === "embed-image") {
    const body = { model: named(), input: await base64(file) };
    await run("image-result", () => post("v1/embeddings", body), (found) => showVector("image-result", found.data.data[0].embedding));
    return;
  }
  const detect = model.kind === "detect";
  const query = new URLSearchParams({ model: named(), ...(detect ? { confidence: $("threshold").value } : {}) });
  await run("image-result", () => ask(`${detect ? "detect" : "classify"}?${query}`, { method: "POST", headers, body: file }), (found) => {
    (detect ? showBoxes : showClasses)(found.data.images[0]);
    $("caption").textContent = `${file.name}: ${figure(found.elapsed, 3)} ms`;
  });
}

function take(file) {
  if (!file) return;
  state.file = file;
  if (state.url) URL.revokeObjectURL(state.url);
  state.url = URL.createObjectURL(file);
  $("image").src = state.url;
  $("picture").hidden = false;
  $("caption").textContent = file.name;
  sendPicture();
}

$("file").addEventListener("change", () => take($("file").files[0]));
$("threshold").addEventListener("input", () => { $("threshold-value").textContent = $("threshold").value; });
$("threshold").addEventListener("change", () => state.file && sendPicture());
for (const name of ["dragenter", "dragover"]) $("drop").addEventListener(name, (event) => { event.preventDefault(); $("drop").classList.add("over"); });
for (const name of ["dragleave", "drop"]) $("drop").addEventListener(name, (event) => { event.preventDefault(); $("drop").classList.remove("over"); });
$("drop").addEventListener("drop", (event) => take(event.dataTransfer.files[0]));

/* Tensors */

function filled(spec, fill) {
  const count = spec.shape.reduce((product, each) => product * Math.max(1, each), 1);
  const whole = !spec.dtype.startsWith("float");
  return Array.from({ length: count }, () => (fill === "zeros" ? 0 : whole ? Math.floor(Math.random() * 100) : Math.random()));
}

$("tensor-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const model = state.models[named()];
  const inputs = Object.fromEntries(model.inputs.map((spec) => [spec.name, filled(spec, $("fill").value)]));
  run("tensor-result", () => post("infer", { model: named(), inputs }), (found) => show("tensor-result", make("pre", { tabindex: 0 }, JSON.stringify(found.data, null, 1).slice(0, 4000))));
});

$("repeat").addEventListener("click", () => repeat(!state.timer));
$("model").addEventListener("change", () => choose(named()));
$("token-form").addEventListener("submit", (event) => { event.preventDefault(); state.token = $("token").value; load(); });
load();
