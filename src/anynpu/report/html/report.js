"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const W = 168, H = 44;
  const READABLE = 0.6;  /* the smallest scale at which the words of a node can be read */
  const $ = (selector, root = document) => root.querySelector(selector);
  const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
  const html = (tag, text, name) => { const e = document.createElement(tag); if (text != null) e.textContent = text; if (name) e.className = name; return e; };
  const svg = (tag, attributes = {}) => { const e = document.createElementNS(SVG, tag); for (const k in attributes) e.setAttribute(k, attributes[k]); return e; };
  document.documentElement.classList.add("js");

  /* Theme: as the system says until the reader chooses; a page opened from a disk may have no storage. */
  const root = document.documentElement, button = $("#theme"), themes = ["", "light", "dark"];
  const kept = () => { try { return localStorage.getItem("anynpu-theme") || ""; } catch { return ""; } };
  const setTheme = (name) => {
    if (name) root.dataset.theme = name; else delete root.dataset.theme;
    button.textContent = name ? name[0].toUpperCase() + name.slice(1) : "Auto";
    button.setAttribute("aria-label", `Theme: ${name || "as the system"}`);
    try { localStorage.setItem("anynpu-theme", name); } catch { /* nothing to keep it in */ }
    graphs.forEach((graph) => graph.paint());
  };
  const graphs = [];
  button.addEventListener("click", () => setTheme(themes[(themes.indexOf(root.dataset.theme || "") + 1) % 3]));

  /* Tips, copied digests, sorted tables. */
  const tip = $("#tip");
  document.addEventListener("pointermove", (event) => {
    const text = event.target.closest?.("[data-tip]")?.dataset.tip;
    tip.hidden = !text;
    if (!text) return;
    tip.textContent = text;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 12, innerWidth - box.width - 8))}px`;
    tip.style.top = `${event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 10 : event.clientY + 18}px`;
  });
  document.addEventListener("click", (event) => {
    const code = event.target.closest?.("[data-copy]");
    if (code) navigator.clipboard?.writeText(code.dataset.copy).then(() => { const shown = code.textContent; code.textContent = "copied"; setTimeout(() => { code.textContent = shown; }, 900); }, () => {});
  });
  const factor = { k: 1e3, M: 1e6, G: 1e9 };
  const value = (text) => { const m = /^-?[\d,.]+(?:e-?\d+)?/.exec(text); return m ? parseFloat(m[0].replaceAll(",", "")) * (factor[text.slice(m[0].length).trim()[0]] || 1) : NaN; };
  $$("table.sortable").forEach((table) => $$("th", table).forEach((head, column) => {
    head.tabIndex = 0;
    const sort = () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      $$("th", table).forEach((th) => th.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const cell = (row) => row.cells[column].textContent;
      const rows = [...table.tBodies[0].rows].sort((a, b) => {
        const x = value(cell(a)), y = value(cell(b));
        if (isNaN(x) || isNaN(y)) return isNaN(x) && isNaN(y) ? cell(a).localeCompare(cell(b)) * (up ? 1 : -1) : isNaN(x) ? 1 : -1;
        return up ? x - y : y - x;
      });
      table.tBodies[0].append(...rows);
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); sort(); } });
  }));

  /* Tabs. */
  const tabs = $$("[role=tab]");
  const choose = (tab) => {
    tabs.forEach((each) => {
      const on = each === tab;
      each.setAttribute("aria-selected", on);
      each.tabIndex = on ? 0 : -1;
      document.getElementById(each.getAttribute("aria-controls")).hidden = !on;
    });
    graphs.forEach((graph) => graph.show());
  };
  tabs.forEach((tab, i) => {
    tab.addEventListener("click", () => choose(tab));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (step) { const next = tabs[(i + step + tabs.length) % tabs.length]; choose(next); next.focus(); }
    });
  });

  /* The graph. */
  const number = (x, digits = 5) => x == null ? "-" : x !== 0 && Math.abs(x) < 1e-4 ? x.toExponential(3) : x.toLocaleString("en", { maximumSignificantDigits: digits });
  const decibel = (x) => x == null ? "-" : x >= 200 ? "exact" : `${x.toFixed(1)} dB`;
  const spread = (x) => Array.isArray(x) ? `${number(x[0])}${x[0] === x[1] ? "" : ` to ${number(x[1])}`} (${x[2]} channels)` : x == null ? "-" : number(x, 7);
  const clip = (text, most) => text.length > most ? `${text.slice(0, most - 1)}…` : text;
  const RAMP = [[0, 34, 78], [52, 69, 109], [108, 110, 114], [166, 157, 89], [253, 231, 85]]; /* near cividis: even for every eye */
  const ramp = (t) => {
    const at = Math.min(Math.max(t, 0), 1) * (RAMP.length - 1), i = Math.min(Math.floor(at), RAMP.length - 2), f = at - i;
    return RAMP[i].map((c, k) => Math.round(c + (RAMP[i + 1][k] - c) * f));
  };

  const ERRORS = ["error", "stream"];

  class Graph {
    constructor(frame) {
      this.frame = frame;
      this.canvas = $(".g-canvas", frame);
      this.details = $(".g-details", frame);
      this.data = JSON.parse(document.getElementById(frame.dataset.graph).textContent);
      const names = ["name", "kind", "device", "reason", "macs", "inputs", "outputs", "error", "time", "x", "y", "stream", "stage"];
      this.nodes = this.data.nodes.map((row) => Object.fromEntries(names.map((name, i) => [name, row[i]])));
      this.first = this.nodes.findIndex((node) => node.device !== "io");
      this.staged = this.data.stages.length > 0;
      this.stages = this.data.stages.map(([name, shape, x, y], i) => ({ name, shape, x, y, members: this.nodes.filter((node) => node.stage === i && node.device !== "io") }));
      this.hint = `${this.staged ? "Click a stage to open it, a" : "Click a"} node for its details, or move with the arrow keys.`;
      this.mode = "placement";
      this.chosen = -1;
      this.drawn = false;
    }

    show(hidden) {
      if (this.drawn && !this.view) this.fit();
      if (this.drawn || !(this.canvas.clientWidth || hidden)) return;
      this.drawn = true;
      this.draw();
      this.select(-1);
      this.listen();
      this.paint();
      this.fit(true);
      new ResizeObserver(() => this.view ? this.move() : this.fit(true)).observe(this.canvas);
    }

    draw() {
      this.picture = svg("svg", { "aria-hidden": "true" });
      const id = `arrow-${this.frame.dataset.graph}`, defs = svg("defs");
      const arrow = svg("marker", { id, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 9, markerHeight: 9, markerUnits: "userSpaceOnUse", orient: "auto" });
      arrow.append(svg("path", { d: "M0 0L8 4L0 8z", fill: "#8894a2" }));
      defs.append(arrow);
      this.world = svg("g");
      const near = svg("g", { class: "near" }), [cw, ch] = this.data.card;
      this.stages.forEach((stage, i) => {
        const title = svg("text", { x: stage.x - cw / 2 + 16, y: stage.y - ch / 2 + 30 });
        title.textContent = `${i + 1} ${stage.name}`;
        near.append(svg("rect", { x: stage.x - cw / 2, y: stage.y - ch / 2, width: cw, height: ch, rx: 16, class: "sf" }), title);
      });
      this.edges = this.data.edges.map((edge) => {
        const path = svg("path", { d: route(edge.slice(3)), class: "e", "marker-end": `url(#${id})` });
        near.append(path);
        return { from: edge[0], to: edge[1], path };
      });
      this.marks = this.nodes.map((node, i) => {
        const g = svg("g", { class: "n", transform: `translate(${node.x - W / 2} ${node.y - H / 2})`, "data-index": i });
        g.append(svg("rect", { width: W, height: H, rx: node.device === "io" ? 22 : 8 }));
        const kind = svg("text", { x: W / 2, y: 19, class: "k" }), name = svg("text", { x: W / 2, y: 35, class: "s" });
        kind.textContent = clip(node.kind, 22);
        name.textContent = clip(node.name.length > 26 ? `…${node.name.slice(-25)}` : node.name, 28);
        g.append(kind, name);
        near.append(g);
        return g;
      });
      this.world.append(near);
      if (this.staged) this.world.append(this.overview(id));
      this.picture.append(defs, this.world);
      this.canvas.append(this.picture);
    }

    /* The stages as cards: what is seen of a graph that is too large to be read node by node. */
    overview(arrow) {
      const all = svg("g", { class: "away" }), [cw, ch] = this.data.card;
      this.data.links.forEach((link) => all.append(svg("path", { d: route(link.slice(2), cw / 17), class: "e", "marker-end": `url(#${arrow}-far)` })));
      const large = svg("marker", { id: `${arrow}-far`, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: cw / 18, markerHeight: cw / 18, markerUnits: "userSpaceOnUse", orient: "auto" });
      large.append(svg("path", { d: "M0 0L8 4L0 8z", fill: "#8894a2" }));
      all.append(large);
      this.cards = this.stages.map((stage, i) => {
        const g = svg("g", { class: "st", "data-stage": i }), text = svg("text");
        g.append(svg("rect", { x: stage.x - cw / 2, y: stage.y - ch / 2, width: cw, height: ch, rx: cw / 20 }), text);
        all.append(g);
        return g;
      });
      return all;
    }

    /* The lines of a card that have room in it, at one size of letters whatever the zoom. */
    letter(k) {
      const [cw, ch] = this.data.card.map((side) => side * k), rows = Math.max(1, Math.min(3, Math.floor((ch - 6) / 16)));
      this.world.style.setProperty("--letter", `${12.5 / k}px`);
      this.stages.forEach((stage, i) => {
        const off = this.data.npu ? stage.members.filter((node) => node.device !== "npu").length : 0, count = stage.members.length;
        const figure = this.mode === "placement" ? off ? `${off} of ${count} on CPU` : `${count} nodes` : this.figure(stage);
        const letters = Math.floor((cw - 6) / 7.9), text = this.cards[i].lastChild;
        const lines = letters < 8 ? [`${i + 1}`] : [`${i + 1} ${stage.name}`, figure, stage.shape].slice(0, rows);
        text.replaceChildren(...lines.map((line, row) => {
          const span = svg("tspan", { x: stage.x, y: stage.y, dy: `${(row - (lines.length - 1) / 2) * 1.3 + 0.35}em` });
          span.textContent = clip(line, Math.max(letters, 2));
          return span;
        }));
        this.cards[i].dataset.tip = [`Stage ${i + 1}: ${stage.name}`, stage.shape, `${count} nodes`, ...(off ? [`${off} on the CPU`] : [])].filter(Boolean).join(", ");
      });
    }

    /* What a stage comes to: its worst error, or the sum of its costs. */
    value(stage, key) {
      const known = stage.members.map((node) => node[key]).filter((x) => x != null);
      return known.length ? ERRORS.includes(key) ? Math.min(...known) : known.reduce((a, b) => a + b, 0) : null;
    }

    figure(stage) {
      const x = this.value(stage, this.mode);
      return ERRORS.includes(this.mode) ? decibel(x) : `${number(x, 3)} ${this.mode === "macs" ? "MACs" : this.data.unit}`;
    }

    /* Colours: placement by class; figures on a ramp that is dark where it hurts. */
    paint() {
      if (!this.drawn) return;
      const key = this.mode, io = (node) => node.device === "io";
      const device = (node) => node.device === "npu" ? "npu" : io(node) ? "io" : this.data.npu ? "cpu" : "host";
      const ends = this.colour(this.marks, this.nodes.map((node) => io(node) ? null : node[key]), (i) => `n ${device(this.nodes[i])}${i === this.chosen ? " on" : ""}`);
      const off = (stage) => stage.members.some((node) => device(node) === "cpu") ? "cpu" : this.data.npu ? "npu" : "host";
      const wide = this.staged && this.colour(this.cards, this.stages.map((stage) => this.value(stage, key)), (i) => `st ${off(this.stages[i])}`);
      if (this.staged && this.view) this.letter(this.view.k);
      this.legend(...(this.far ? wide : ends));
    }

    colour(marks, figures, name) {
      const key = this.mode, known = figures.filter((x) => x != null && (!ERRORS.includes(key) || x < 200));
      const low = Math.min(...known), high = Math.max(...known);
      marks.forEach((g, i) => {
        const x = figures[i], rect = g.firstChild, heat = key !== "placement" && x != null;
        g.setAttribute("class", `${name(i)}${heat ? " heat" : ""}${g.classList.contains("dim") ? " dim" : ""}`);
        let t = high > low ? (Math.min(x, high) - low) / (high - low) : 0.5;
        if (key === "time" || key === "macs") t = 1 - Math.sqrt(high > 0 ? Math.max(x, 0) / high : 0);
        const colour = ramp(t);
        rect.style.fill = heat ? `rgb(${colour})` : "";
        rect.style.stroke = heat ? "var(--soft)" : "";
        g.style.setProperty("--on-heat", colour[0] * 0.3 + colour[1] * 0.6 + colour[2] * 0.1 > 125 ? "#111" : "#fff");
      });
      return [low, high];
    }

    legend(low, high) {
      const box = $(".g-legend", this.frame), parts = [];
      const item = (name, text) => { const span = html("span"); span.append(html("i", null, name), text); parts.push(span); };
      const counts = (test) => this.nodes.filter(test).length;
      if (this.mode === "placement") {
        if (this.data.npu) item("npu", `${this.data.npu}: ${counts((n) => n.device === "npu")}`);
        const other = counts((n) => n.device !== "npu" && n.device !== "io");
        if (other || !this.data.npu) item(this.data.npu ? "cpu" : "", this.data.npu ? `CPU: ${other} (dashed)` : `on the processor: ${other}`);
      } else {
        const unit = { error: "dB SQNR", stream: "dB SQNR of what the NPU's operations store", time: this.data.unit, macs: "MACs" }[this.mode];
        const bar = html("i", null, "ramp");
        bar.style.background = `linear-gradient(90deg, ${RAMP.map((c) => `rgb(${c})`).join(",")})`;
        const off = ERRORS.includes(this.mode), ends = off ? [low, high] : [high, 0], span = html("span");
        span.append(`${number(ends[0], 3)} `, bar, `${number(ends[1], 3)} ${unit}`);
        parts.push(span, html("span", off ? "dark: furthest from the float model" : "dark: costs most"));
        if (this.far) parts.push(html("span", off ? "the worst node of each stage" : "the sum of each stage"));
      }
      if (this.far) parts.push(html("span", `${this.stages.length} stages of ${counts((n) => n.device !== "io")} nodes; click one to see its nodes`, "hint"));
      parts.push(html("span", matchMedia("(pointer: coarse)").matches ? "two fingers pan and zoom" : "drag to pan, Ctrl + wheel or + − to zoom, arrow keys to walk", "hint"));
      box.replaceChildren(...parts);
    }

    /* Paper has a size of its own: there the drawing, not a view of it, fills the frame. */
    print(on) {
      this.show(true);
      this.printing = on;
      const [w, h] = this.data.size;
      const room = this.staged ? Math.round(this.data.card[1] * 0.35) : 40; /* where edges turn */
      if (on) this.picture.setAttribute("viewBox", `-20 -${room} ${w + 40} ${h + 2 * room}`); else this.picture.removeAttribute("viewBox");
      this.world.removeAttribute("transform");
      this.picture.classList.remove("far");
      if (on && this.staged) { this.away(true); this.letter(Math.min(640 / (w + 40), 420 / (h + 2 * room))); }
      if (!on) this.fit();
    }

    move() {
      if (!this.view || this.printing) return;
      if (!this.canvas.clientWidth) { this.view = null; return; }
      const { x, y, k } = this.view;
      this.world.setAttribute("transform", `translate(${x} ${y}) scale(${k})`);
      if (this.staged) { this.away(k < 0.42); this.letter(k); } else this.picture.classList.toggle("far", k < 0.28);
    }

    /* Says whether stages are shown instead of nodes. */
    away(far) {
      if (this.far === far) return;
      this.far = far;
      this.picture.classList.toggle("stages", far);
      this.paint();
    }

    /* Shows one stage as large as it fits. */
    open(i) {
      const [cw, ch] = this.data.card, stage = this.stages[i], w = this.canvas.clientWidth, h = this.canvas.clientHeight;
      const k = Math.max(Math.min(w / cw, h / ch, 1), 0.45);
      this.view = { k, x: w / 2 - stage.x * k, y: h / 2 - stage.y * k };
      this.move();
    }

    fit(first) {
      const [w, h] = this.data.size, cw = this.canvas.clientWidth, ch = this.canvas.clientHeight;
      const whole = Math.min((cw - 40) / Math.max(w, 1), (ch - 70) / Math.max(h, 1), 1.15);
      const k = first && !this.staged ? Math.max(whole, READABLE) : whole;
      if (!cw || this.printing) { this.view = null; return; }
      this.view = { k, x: Math.max((cw - w * k) / 2, k > whole ? 20 : 0), y: Math.max((ch - h * k) / 2, k > whole ? 35 : 0) };
      this.move();
      if (first) this.canvas.dataset.ready = "1";
    }

    zoom(by, px, py) {
      const cw = this.canvas.clientWidth / 2, ch = this.canvas.clientHeight / 2, { x, y, k } = this.view;
      const to = Math.min(Math.max(k * by, 0.02), 4), ax = px ?? cw, ay = py ?? ch;
      this.view = { k: to, x: ax - (ax - x) * to / k, y: ay - (ay - y) * to / k };
      this.move();
    }

    centre(i, least = 0.7) {
      if (!this.view) return;
      const k = Math.max(this.view.k, least), node = this.nodes[i];
      this.view = { k, x: this.canvas.clientWidth / 2 - node.x * k, y: this.canvas.clientHeight / 2 - node.y * k };
      this.move();
    }

    seen(i) {
      if (!this.view) return true;
      const { x, y, k } = this.view, node = this.nodes[i], px = node.x * k + x, py = node.y * k + y;
      return px > 60 && py > 30 && px < this.canvas.clientWidth - 60 && py < this.canvas.clientHeight - 30;
    }

    select(i, centre) {
      if (this.chosen >= 0) this.marks[this.chosen].classList.remove("on");
      this.chosen = i;
      this.edges.forEach((edge) => edge.path.classList.toggle("on", i >= 0 && (edge.from === i || edge.to === i)));
      if (i < 0) { this.details.replaceChildren(html("p", this.hint, "muted")); return; }
      this.marks[i].classList.add("on");
      if (centre || this.far || !this.seen(i)) this.centre(i);
      this.tell(this.nodes[i]);
    }

    tell(node) {
      const list = (rows) => { const dl = html("dl"); rows.filter((row) => row[1] !== "" && row[1] !== "-").forEach(([name, text]) => dl.append(html("dt", name), html("dd", text))); return dl; };
      const where = { npu: this.data.npu || "NPU", io: "" }[node.device] ?? "CPU";
      const parts = [html("h5", node.kind), html("p", node.name, "muted")];
      if (node.reason) { const p = html("p", `Not on the NPU: ${node.reason}`, "said warn"); parts.push(p); }
      parts.push(list([["runs on", where], ["MACs", node.macs ? number(node.macs, 12) : "-"], [this.data.unit || "time", number(node.time)], ["SQNR", decibel(node.error)], ...(node.stream == null ? [] : [["SQNR in the stream", decibel(node.stream)]])]));
      for (const [title, side] of [["Inputs", node.inputs], ["Outputs", node.outputs]]) {
        if (side.length) parts.push(html("h6", title));
        side.forEach((index) => {
          const [name, shape, dtype, scale, zero, error, most] = this.data.tensors[index];
          parts.push(html("code", name), list([["shape", shape ? shape.join(" × ") || "scalar" : "-"], ["type", dtype], ["scale", spread(scale)], ["zero point", spread(zero)], ["SQNR", decibel(error)], ["max error", number(most)]]));
        });
      }
      this.details.replaceChildren(...parts);
      this.details.scrollTop = 0;
    }

    walk(key) {
      if (this.chosen < 0) return this.select(Math.max(this.first, 0), true);
      const here = this.nodes[this.chosen], near = (found) => found.sort((a, b) => Math.abs(this.nodes[a].x - here.x) - Math.abs(this.nodes[b].x - here.x))[0];
      let next;
      if (key === "ArrowDown") next = near(this.edges.filter((e) => e.from === this.chosen).map((e) => e.to));
      if (key === "ArrowUp") next = near(this.edges.filter((e) => e.to === this.chosen).map((e) => e.from));
      if (key === "ArrowLeft" || key === "ArrowRight") {
        const way = key === "ArrowRight" ? 1 : -1;
        next = near(this.nodes.map((_, i) => i).filter((i) => this.nodes[i].y === here.y && (this.nodes[i].x - here.x) * way > 0));
      }
      if (next != null) this.select(next);
    }

    search(text, step) {
      const wanted = text.trim().toLowerCase(), said = $(".g-found", this.frame);
      const names = (node) => [node.name, node.kind, ...[...node.inputs, ...node.outputs].map((t) => this.data.tensors[t][0])].join("\n").toLowerCase();
      const found = wanted ? this.nodes.map((_, i) => i).filter((i) => names(this.nodes[i]).includes(wanted)) : [];
      this.marks.forEach((g, i) => g.classList.toggle("dim", wanted !== "" && !found.includes(i)));
      this.cards?.forEach((g, i) => g.classList.toggle("dim", wanted !== "" && !found.some((node) => this.nodes[node].stage === i)));
      said.textContent = wanted ? (found.length ? `${found.length} found` : "not found") : "";
      if (step && found.length) this.select(found[(found.indexOf(this.chosen) + 1) % found.length], true);
    }

    listen() {
      const canvas = this.canvas, down = new Map();
      let moved = 0, apart = 0, hit = -1, stage = -1;
      const at = (event) => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
      canvas.addEventListener("pointerdown", (event) => {
        hit = Number(event.target.closest?.(".n")?.dataset.index ?? -1);
        stage = Number(event.target.closest?.(".st")?.dataset.stage ?? -1);
        down.set(event.pointerId, at(event));
        moved = 0;
        canvas.setPointerCapture(event.pointerId);
      });
      canvas.addEventListener("pointermove", (event) => {
        const before = down.get(event.pointerId);
        if (!before) return;
        const now = at(event);
        down.set(event.pointerId, now);
        moved += Math.hypot(now[0] - before[0], now[1] - before[1]);
        if (down.size === 2) {
          const [a, b] = [...down.values()], gap = Math.hypot(a[0] - b[0], a[1] - b[1]);
          if (apart) this.zoom(gap / apart, (a[0] + b[0]) / 2, (a[1] + b[1]) / 2);
          apart = gap;
          this.view.x += (now[0] - before[0]) / 2;
          this.view.y += (now[1] - before[1]) / 2;
          this.move();
        } else if (moved > 3) {
          this.view.x += now[0] - before[0];
          this.view.y += now[1] - before[1];
          this.move();
        }
      });
      const up = (event) => { down.delete(event.pointerId); apart = 0; };
      canvas.addEventListener("pointerup", (event) => { if (down.size === 1 && moved <= 3) { if (stage >= 0) this.open(stage); else this.select(hit); } up(event); });
      canvas.addEventListener("pointercancel", up);
      canvas.addEventListener("wheel", (event) => {
        if (!event.ctrlKey && !event.metaKey && !document.fullscreenElement) return; /* the page scrolls */
        event.preventDefault();
        this.zoom(Math.exp(-event.deltaY * 0.0022), ...at(event));
      }, { passive: false });
      canvas.addEventListener("keydown", (event) => {
        const actions = { "+": () => this.zoom(1.25), "=": () => this.zoom(1.25), "-": () => this.zoom(0.8), 0: () => this.fit(), Escape: () => this.select(-1), Enter: () => this.chosen >= 0 && this.centre(this.chosen, 1) };
        const action = event.key.startsWith("Arrow") ? () => this.walk(event.key) : actions[event.key];
        if (action && !event.ctrlKey && !event.metaKey) { event.preventDefault(); action(); }
      });
      const on = (name, action) => $(name, this.frame).addEventListener("click", action);
      on(".g-in", () => this.zoom(1.3));
      on(".g-out", () => this.zoom(0.77));
      on(".g-fit", () => this.fit());
      on(".g-full", () => document.fullscreenElement ? document.exitFullscreen() : this.frame.requestFullscreen?.());
      this.frame.addEventListener("fullscreenchange", () => requestAnimationFrame(() => this.fit()));
      $(".g-mode", this.frame).addEventListener("change", (event) => { this.mode = event.target.value; this.paint(); });
      const field = $(".g-search", this.frame);
      field.addEventListener("input", () => this.search(field.value, false));
      field.addEventListener("keydown", (event) => { if (event.key === "Enter") this.search(field.value, true); });
    }
  }

  /* A line with round corners through the points of a route. */
  function route(flat, round = 10) {
    const points = [];
    for (let i = 0; i < flat.length; i += 2) points.push([flat[i], flat[i + 1]]);
    if (points.length < 4) {
      const [a, b] = [points[0], points[points.length - 1]], bend = Math.max((b[1] - a[1]) / 2, 8);
      if (points.length === 2) return `M${a}C${a[0]} ${a[1] + bend} ${b[0]} ${b[1] - bend} ${b}`;
    }
    let path = `M${points[0]}`;
    for (let i = 1; i < points.length - 1; i++) {
      const [p, q, r] = [points[i - 1], points[i], points[i + 1]];
      const near = (to, from) => { const d = Math.hypot(to[0] - from[0], to[1] - from[1]), t = d ? Math.min(round, d / 2) / d : 0; return [from[0] + (to[0] - from[0]) * t, from[1] + (to[1] - from[1]) * t]; };
      path += `L${near(p, q)}Q${q} ${near(r, q)}`;
    }
    return `${path}L${points[points.length - 1]}`;
  }

  $$(".graph").forEach((frame) => {
    const graph = new Graph(frame), panel = frame.closest(".panel") || document;
    graphs.push(graph);
    /* A bar of a chart opens its node. */
    $$(".bar[data-node]", panel).forEach((bar) => bar.addEventListener("click", () => {
      frame.scrollIntoView({ block: "center" });
      graph.select(Number(bar.dataset.node) + Math.max(graph.first, 0), true);
    }));
  });
  setTheme(kept());
  const best = graphs.find((graph) => graph.data.npu) || graphs[0], panel = best?.frame.closest(".panel");
  if (tabs.length) choose(tabs.find((tab) => tab.getAttribute("aria-controls") === panel?.id) || tabs[0]);
  else graphs.forEach((graph) => graph.show());
  addEventListener("beforeprint", () => graphs.forEach((graph) => graph.print(true)));
  addEventListener("afterprint", () => graphs.forEach((graph) => graph.print(false)));
  performance.mark("anynpu-ready");
})();
