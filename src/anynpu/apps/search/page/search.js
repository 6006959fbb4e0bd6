"use strict";
const $ = (id) => document.getElementById(id);
const PAUSE_MS = 150;
let last = null; // the question that is shown: {words}, {like} or {picture}
let running = null;
let timer = 0;
const blobs = new Set();

const headers = () => {
  const token = sessionStorage.getItem("token");
  return token ? { authorization: `Bearer ${token}` } : {};
};

async function call(path, options = {}) {
  const answer = await fetch(path, { ...options, headers: { ...headers(), ...(options.headers || {}) } });
  if (answer.status === 401) {
    $("login").hidden = false;
    $("token").focus();
    throw new Error("a token is needed");
  }
  if (!answer.ok) {
    const told = await answer.json().catch(() => null);
    throw new Error(told?.error ? [told.error.message, told.error.hint].filter(Boolean).join(": ") : `status ${answer.status}`);
  }
  return answer;
}

function limits() {
  const found = { folder: $("folder").value, since: $("since").value, until: $("until").value };
  return Object.fromEntries(Object.entries(found).filter(([, value]) => value));
}

async function ask(question) {
  last = question;
  running?.abort();
  const mine = (running = new AbortController());
  const started = performance.now();
  $("status").textContent = "searching …";
  try {
    let answer;
    if (question.picture) {
      const query = new URLSearchParams(limits());
      const options = { method: "POST", body: question.picture, signal: mine.signal, headers: { "content-type": "application/octet-stream" } };
      answer = await call(`/api/picture?${query}`, options);
    } else {
      const body = JSON.stringify({ ...question, ...limits() });
      answer = await call("/api/search", { method: "POST", body, signal: mine.signal, headers: { "content-type": "application/json" } });
    }
    show(await answer.json(), performance.now() - started);
  } catch (error) {
    if (error.name !== "AbortError") $("status").textContent = error.message;
  }
}

const made = (tag, options = {}, ...children) => {
  const node = Object.assign(document.createElement(tag), options);
  node.append(...children);
  return node;
};

function show(answer, ms) {
  for (const url of blobs) URL.revokeObjectURL(url);
  blobs.clear();
  $("pictures").replaceChildren(...answer.pictures.map(card));
  $("documents").replaceChildren(...answer.documents.map(entry));
  const count = answer.pictures.length + answer.documents.length;
  const said = [`${count} result${count === 1 ? "" : "s"} in ${Math.round(ms)} ms`, ...answer.notes];
  $("status").textContent = count ? said.join(" · ") : ["nothing was found", ...answer.notes].join(" · ");
}

const day = (seconds) => new Date(seconds * 1000).toISOString().slice(0, 10);
const name = (result) => (result.paths[0] || "?").split("/").pop();
const where = (result) => result.paths.map((path) => path.slice(0, path.lastIndexOf("/"))).filter((at, n, all) => all.indexOf(at) === n).join(", ");
const more = (result) => (result.paths.length > 1 ? ` · ${result.paths.length} files` : "");

function facts(result) {
  const button = made("button", { type: "button", textContent: "similar" });
  button.addEventListener("click", () => {
    $("words").value = "";
    probe(null);
    ask({ like: result.id });
  });
  const text = `${result.score.toFixed(3)} · ${day(result.taken)}${more(result)}`;
  return made("div", { className: "facts" }, made("span", { textContent: text }), button);
}

function card(result) {
  const image = made("img", { alt: name(result), loading: "lazy" });
  call(`/thumb/${result.hash}`).then((answer) => answer.blob()).then((blob) => {
    image.src = URL.createObjectURL(blob);
    blobs.add(image.src);
  }).catch(() => image.replaceWith("no preview"));
  const frame = made("button", { type: "button", className: "frame", title: "Open the picture" }, image);
  frame.addEventListener("click", () => open_picture(result));
  const caption = made("figcaption", {}, made("span", { className: "name", textContent: name(result), title: result.paths.join("\n") }),
    made("span", { className: "path", textContent: where(result) }), facts(result));
  if (result.gone) caption.append(made("span", { className: "gone", textContent: "the file is gone: index again" }));
  return made("figure", {}, frame, caption);
}

async function open_picture(result) {
  try {
    const blob = await (await call(`/file/${result.id}`)).blob();
    const url = URL.createObjectURL(blob);
    blobs.add(url);
    window.open(url, "_blank", "noopener");
  } catch (error) {
    $("status").textContent = error.message;
  }
}

function entry(result) {
  const head = made("span", { className: "name", textContent: `${name(result)}:${result.line}`, title: result.paths.join("\n") });
  return made("article", {}, head, made("p", { textContent: result.text }), made("span", { className: "path", textContent: where(result) }), facts(result));
}

function probe(file) {
  const box = $("probe");
  box.hidden = !file;
  box.replaceChildren();
  if (file) {
    const image = made("img", { alt: "The picture that is searched by" });
    image.src = URL.createObjectURL(file);
    image.addEventListener("load", () => URL.revokeObjectURL(image.src), { once: true });
    box.append(image);
  }
}

function by_picture(file) {
  if (!file) return;
  $("words").value = "";
  probe(file);
  ask({ picture: file });
}

$("words").addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(() => {
    const words = $("words").value.trim();
    if (!words) return;
    probe(null);
    ask({ words });
  }, PAUSE_MS);
});
$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  clearTimeout(timer);
  const words = $("words").value.trim();
  if (words) ask({ words });
});
$("picture").addEventListener("change", () => by_picture($("picture").files[0]));
for (const id of ["folder", "since", "until"]) $(id).addEventListener("change", () => last && ask(last));
for (const kind of ["dragenter", "dragover"]) {
  addEventListener(kind, (event) => {
    event.preventDefault();
    $("drop").hidden = false;
  });
}
addEventListener("dragleave", (event) => {
  if (!event.relatedTarget) $("drop").hidden = true;
});
addEventListener("drop", (event) => {
  event.preventDefault();
  $("drop").hidden = true;
  by_picture(event.dataTransfer.files[0]);
});
$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", $("token").value);
  $("login").hidden = true;
  begin();
});

async function begin() {
  try {
    const state = await (await call("/api/state")).json();
    const options = state.folders.map((folder) => made("option", { value: folder, textContent: folder }));
    $("folder").replaceChildren(made("option", { value: "", textContent: "all" }), ...options);
    $("status").textContent = `${state.pictures} pictures, ${state.paragraphs} paragraphs${state.note ? ` · ${state.note}` : ""}`;
    performance.mark("anynpu-ready");
  } catch (error) {
    $("status").textContent = error.message;
  }
}
begin();
