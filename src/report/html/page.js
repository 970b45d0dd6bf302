"use strict";
(() => {
  const facts = JSON.parse(document.getElementById("facts").textContent);
  const time = facts.timeline;
  const canvas = document.getElementById("lanes");
  if (!time || !canvas) return;
  const overview = document.getElementById("overview");
  const detail = document.getElementById("detail");
  const only = document.getElementById("deciding");
  const WIDE = 8; // numbers a span
  const LANE = 18, GAP = 3, RANK = 9, TOP = 20;
  const least = 200; // nanoseconds on screen at least
  const rows = [];
  let y = TOP;
  time.lanes.forEach((lane, i) => {
    if (i > 0) y += lane.rank === time.lanes[i - 1].rank ? GAP : RANK;
    const spans = [];
    for (let k = 0, at = 0; k < lane.spans.length; k += WIDE) {
      const s = lane.spans;
      at += s[k];
      spans.push({ start: at, end: at + s[k + 1], waits: s[k + 2], kind: s[k + 3], name: s[k + 4], layer: s[k + 5], count: s[k + 6], bits: s[k + 7] });
    }
    rows.push({ rank: lane.rank, name: lane.name, y, spans });
    y += LANE;
  });
  const height = y + 6;
  // The first rank's stream that does most: what the overview shows.
  const streams = rows.filter((row) => row.name !== "host");
  const main = (streams.length ? streams : rows).reduce((best, row) => (row.rank === rows[0].rank && row.spans.length > best.spans.length ? row : best));
  let from = 0, until = time.total_ns, chosen = null, colours = {}, left = 84;
  const stepNs = Math.max(1, time.total_ns);

  function readColours() {
    const style = getComputedStyle(document.documentElement);
    const value = (name) => style.getPropertyValue(name).trim();
    colours = { bg: value("--bg"), text: value("--text"), muted: value("--muted"), line: value("--line"), label: value("--label"),
      accent: value("--accent"), waiting: value("--waiting"), edge: value("--waiting-line"), panel: value("--panel") };
    colours.kinds = time.classes.map((k) => value("--k-" + k) || colours.edge);
    colours.font = getComputedStyle(document.body).fontFamily;
  }
  function fit(element, tall) {
    const scale = window.devicePixelRatio || 1, wide = element.clientWidth;
    element.width = Math.max(1, Math.round(wide * scale));
    element.height = Math.max(1, Math.round(tall * scale));
    element.style.height = tall + "px";
    const pen = element.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, wide, tall);
    return [pen, wide];
  }
  const words = (text) => text.replace(/_/g, " ");
  const shown = (ns) => ns >= 1e6 ? (ns / 1e6).toFixed(3) + " ms" : (ns / 1e3).toFixed(ns >= 1e5 ? 1 : 2) + " µs";
  // The first span of a row that ends after a time.
  function firstAfter(spans, t) {
    let a = 0, b = spans.length;
    while (a < b) { const m = (a + b) >> 1; if (spans[m].end <= t) a = m + 1; else b = m; }
    return a;
  }
  function paint(pen, span, x, w, y, tall, dim) {
    pen.globalAlpha = dim ? 0.22 : 1;
    const part = span.end > span.start ? span.waits / (span.end - span.start) : 0;
    if (part > 0) {
      pen.fillStyle = colours.waiting;
      pen.fillRect(x, y, w * part, tall);
      pen.fillStyle = colours.edge;
      pen.fillRect(x, y + tall - 2, w * part, 2);
    }
    if (part < 1) { pen.fillStyle = colours.kinds[span.kind]; pen.fillRect(x + w * part, y, w * (1 - part), tall); }
    pen.globalAlpha = 1;
  }
  function axis(pen, wide, scale) {
    const wanted = (until - from) / Math.max(2, (wide - left) / 110);
    const unit = Math.pow(10, Math.floor(Math.log10(wanted)));
    const tick = [1, 2, 5, 10].map((f) => f * unit).find((t) => t >= wanted);
    pen.fillStyle = colours.muted;
    pen.textAlign = "left";
    for (let t = Math.ceil(from / tick) * tick; t <= until; t += tick) {
      const x = left + (t - from) * scale;
      pen.fillStyle = colours.line;
      pen.fillRect(x, 0, 1, height);
      pen.fillStyle = colours.muted;
      const text = tick >= 1e5 ? (t / 1e6).toFixed(tick >= 1e6 ? 0 : 1) + " ms" : (t / 1e3).toFixed(tick >= 1e3 ? 0 : tick >= 100 ? 1 : 2) + " µs";
      if (x + pen.measureText(text).width + 4 < wide) pen.fillText(text, x + 4, 12);
    }
  }
  function draw() {
    left = canvas.clientWidth < 520 ? 62 : 84;
    const [pen, wide] = fit(canvas, height);
    const scale = (wide - left) / (until - from);
    pen.font = "11px " + colours.font;
    axis(pen, wide, scale);
    for (const row of rows) {
      pen.fillStyle = colours.muted;
      pen.textAlign = "left";
      const name = wide < 520 ? "r" + row.rank + " " + row.name.replace("stream ", "s") : "r" + row.rank + " " + row.name;
      pen.fillText(name, 0, row.y + 13);
      pen.save();
      pen.beginPath();
      pen.rect(left, row.y - 2, wide - left, LANE + 4);
      pen.clip();
      for (let i = firstAfter(row.spans, from); i < row.spans.length && row.spans[i].start < until; i++) {
        const span = row.spans[i], x = left + (span.start - from) * scale, w = Math.max(0.35, (span.end - span.start) * scale);
        paint(pen, span, x, w, row.y, LANE, only.checked && !(span.bits & 1));
        const clear = x + w * (span.end > span.start ? span.waits / (span.end - span.start) : 0);
        if (x + w - clear > 34 && !(only.checked && !(span.bits & 1))) {
          const text = words(time.names[span.name]), start = Math.max(clear, left) + 4;
          if (pen.measureText(text).width < x + w - start - 3) { pen.fillStyle = colours.label; pen.fillText(text, start, row.y + 13); }
        }
        if (chosen && chosen.row === row && chosen.index === i) {
          pen.strokeStyle = colours.text;
          pen.lineWidth = 2;
          pen.strokeRect(x, row.y - 1, Math.max(3, w), LANE + 2);
        }
      }
      pen.restore();
    }
    drawOverview();
    canvas.setAttribute("aria-valuetext", "from " + shown(from) + " to " + shown(until) + " of " + shown(time.total_ns));
  }
  function drawOverview() {
    const [pen, wide] = fit(overview, 26), scale = wide / stepNs;
    for (const span of main.spans) paint(pen, span, span.start * scale, Math.max(0.2, (span.end - span.start) * scale), 4, 18, false);
    pen.strokeStyle = colours.text;
    pen.lineWidth = 2;
    pen.strokeRect(from * scale + 1, 1, Math.max(3, (until - from) * scale - 2), 24);
  }
  let asked = false;
  function redraw() { if (!asked) { asked = true; requestAnimationFrame(() => { asked = false; draw(); }); } }
  function show(a, b) {
    const length = Math.min(stepNs, Math.max(least, b - a));
    from = Math.min(Math.max(0, a), stepNs - length);
    until = from + length;
    redraw();
  }
  function zoom(factor, middle) {
    const at = middle === undefined ? (from + until) / 2 : middle;
    const length = Math.min(stepNs, Math.max(least, (until - from) * factor));
    const part = (at - from) / (until - from);
    show(at - part * length, at + (1 - part) * length);
  }
  const pan = (share) => show(from + share * (until - from), until + share * (until - from));
  function tell(row, index) {
    chosen = row && row.spans[index] ? { row, index } : null;
    if (chosen) {
      const s = row.spans[index], parts = [];
      parts.push("Rank " + row.rank + ", " + row.name + ": " + words(time.names[s.name]) + (s.count > 1 ? " and " + (s.count - 1) + " more" : ""));
      parts.push(words(time.classes[s.kind]) + (s.layer >= 0 ? ", layer " + s.layer : ""));
      parts.push(shown(s.end - s.start) + " from " + shown(s.start));
      if (s.waits > 0) parts.push("of it " + shown(s.waits) + " waiting");
      if (time.classes[s.kind] !== "wait") parts.push(time.origins[s.bits >> 1]);
      if (s.bits & 1) parts.push("decides when the step ends");
      detail.textContent = parts.join(" · ");
    } else detail.textContent = detail.dataset.hint;
    redraw();
  }
  function timeAt(x) { return from + (x - left) / (canvas.clientWidth - left) * (until - from); }
  function find(event) {
    const box = canvas.getBoundingClientRect(), x = event.clientX - box.left, py = event.clientY - box.top;
    const row = rows.find((r) => py >= r.y - 1 && py <= r.y + LANE + 1);
    if (!row || x < left) return tell(null, 0);
    const t = timeAt(x), slack = (until - from) / canvas.clientWidth * 3, i = firstAfter(row.spans, t - slack);
    const span = row.spans[i];
    tell(span && span.start <= t + slack ? row : null, i);
  }
  function whole() { show(0, stepNs); }
  function layer() {
    const layers = main.spans.filter((s) => s.layer >= 0);
    if (!layers.length) return whole();
    const last = Math.max(...layers.map((s) => s.layer)), middle = Math.floor(last / 2);
    const some = layers.filter((s) => s.layer === middle || (last > 3 && s.layer === middle + 1));
    const a = Math.min(...some.map((s) => s.start)), b = Math.max(...some.map((s) => s.end));
    show(a - (b - a) * 0.02, b + (b - a) * 0.02);
  }
  function step(by) {
    let row = chosen ? chosen.row : main;
    let index = chosen ? chosen.index + by : firstAfter(row.spans, from);
    index = Math.min(Math.max(0, index), row.spans.length - 1);
    tell(row, index);
    const span = row.spans[index];
    if (span && (span.start < from || span.end > until)) { const half = (until - from) / 2; show(span.start - half, span.start + half); }
  }
  function lane(by) {
    const at = chosen ? rows.indexOf(chosen.row) + by : 0, row = rows[Math.min(Math.max(0, at), rows.length - 1)];
    const t = chosen ? chosen.row.spans[chosen.index].start : from;
    tell(row, Math.min(firstAfter(row.spans, t), row.spans.length - 1));
  }
  const keys = {
    "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), ArrowLeft: () => pan(-0.25), ArrowRight: () => pan(0.25), Home: () => show(0, until - from),
    End: () => show(stepNs - (until - from), stepNs), "0": whole, "1": layer, ".": () => step(1), ",": () => step(-1), ArrowDown: () => lane(1),
    ArrowUp: () => lane(-1), Escape: () => tell(null, 0),
  };
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
  canvas.addEventListener("wheel", (event) => {
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) { event.preventDefault(); return pan(event.deltaX / canvas.clientWidth); }
    if (!event.ctrlKey && !event.metaKey && document.activeElement !== canvas) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, timeAt(event.clientX - canvas.getBoundingClientRect().left));
  }, { passive: false });
  const pointers = new Map();
  canvas.addEventListener("pointerdown", (event) => { pointers.set(event.pointerId, event.clientX); canvas.setPointerCapture(event.pointerId); canvas.classList.add("dragging"); });
  canvas.addEventListener("pointermove", (event) => {
    const before = pointers.get(event.pointerId);
    if (before === undefined) return find(event);
    const scale = (until - from) / (canvas.clientWidth - left);
    if (pointers.size === 2) {
      const [other] = [...pointers.entries()].filter(([id]) => id !== event.pointerId).map(([, x]) => x);
      const ratio = Math.abs(before - other) / Math.max(8, Math.abs(event.clientX - other));
      zoom(ratio, timeAt((event.clientX + other) / 2 - canvas.getBoundingClientRect().left));
    } else show(from - (event.clientX - before) * scale, until - (event.clientX - before) * scale);
    pointers.set(event.pointerId, event.clientX);
  });
  for (const kind of ["pointerup", "pointercancel"])
    canvas.addEventListener(kind, (event) => { pointers.delete(event.pointerId); canvas.classList.remove("dragging"); find(event); });
  overview.addEventListener("click", (event) => {
    const t = event.offsetX / overview.clientWidth * stepNs, half = (until - from) / 2;
    show(t - half, t + half);
  });
  const press = { "zoom-in": () => zoom(0.5), "zoom-out": () => zoom(2), earlier: () => pan(-0.5), later: () => pan(0.5), whole, layer };
  for (const id of Object.keys(press)) document.getElementById(id).addEventListener("click", press[id]);
  only.addEventListener("change", redraw);
  new ResizeObserver(redraw).observe(canvas);
  const recolour = () => { readColours(); draw(); };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
  addEventListener("beforeprint", recolour);
  addEventListener("afterprint", recolour);
  document.getElementById("time-view").hidden = false;
  readColours();
  layer();
})();
