// The page: controls of the columns, and the prediction that follows them.

const BEYOND_WIDTH = 41;  // points of the curve
const MAX_BARS = 12;  // classes shown
const SVG = "http://www.w3.org/2000/svg";

// Elements are made here alone: text of the table is never parsed as HTML.
function make(tag, attributes = {}, ...children) {
  const isSvg = ["svg", "path", "line", "rect", "text", "circle", "g"].includes(tag);
  const element = isSvg ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") element.style.cssText = value;
    else if (value !== false && value !== null) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

function show(v, digits = 4) {
  if (!Number.isFinite(v)) return String(v);
  const size = Math.abs(v);
  if (size !== 0 && (size < 1e-4 || size >= 1e12)) return v.toExponential(digits - 2).replace("e", " × 10^").replace("+", "");
  return v.toLocaleString("en-US", size >= 1e4 ? { maximumFractionDigits: 0 } : { maximumSignificantDigits: digits });
}

function dateText(days, clock) {
  const text = new Date(Math.round(days * 86400) * 1000).toISOString();
  return clock ? text.slice(0, 16) : text.slice(0, 10);
}

function valueText(column, value) {
  if (value === null) return "missing";
  if (column.kind === "category") return column.options[value].label;
  if (column.kind === "boolean") return value ? "true" : "false";
  if (column.kind === "time") return dateText(value, column.clock).replace("T", " ");
  return show(value, 7);
}

async function unpack(text) {
  const bytes = Uint8Array.from(atob(text.trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const content = await new Response(stream).arrayBuffer();
  const length = new DataView(content).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(content, 4, length)));
  return [head, new Float32Array(content, 4 + length + ((4 - (length % 4)) % 4))];
}

class Explorer {
  constructor(head, floats) {
    this.head = head;
    this.columns = head.columns;
    this.engine = new Engine(head.program, head.columns, floats);
    this.coverage = Math.max(0, head.program.coverages.indexOf(0.9));
    this.chosen = this.columns.findIndex((column) => column.kind === "number");
    if (this.chosen < 0) this.chosen = 0;
    this.controls = [];
    this.pending = false;
    this.row = this.columns.map((column) => column.usual);
  }

  start() {
    this.buildControls();
    this.buildPanels();
    this.load(this.head.rows.length ? this.head.rows[0] : this.row);
    document.getElementById("status").remove();
    document.getElementById("explore").hidden = false;
  }

  load(row) {
    this.row = row.slice();
    this.controls.forEach((control, i) => control.write(this.row[i]));
    this.update();
  }

  set(i, value) {
    this.row[i] = value;
    if (this.chosen !== i) this.choose(i);
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => { this.pending = false; this.update(); });
  }

  choose(i) {
    this.controls[this.chosen]?.card.classList.remove("chosen");
    this.chosen = i;
    this.controls[i].card.classList.add("chosen");
  }

  update() {
    this.answer = this.engine.predict(this.row);
    if (this.head.program.task === "regression") {
      [this.answer.lower, this.answer.upper] = this.engine.interval(this.answer, this.coverage);
    } else {
      this.answer.inside = this.engine.set(this.answer.probs, this.coverage);
    }
    this.showAnswer();
    this.showRows();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.showCurve(), 60);
  }

  // Controls ---------------------------------------------------------------------------------------------

  buildControls() {
    const place = document.getElementById("controls");
    const starts = [["the usual values", this.columns.map((column) => column.usual)]];
    this.head.rows.forEach((row, k) => starts.push([`row ${k + 1} of ${this.head.table}`, row]));
    const menu = make("select", { "aria-label": "Start from", id: "start", onchange: () => this.load(starts[menu.value][1]) },
      ...starts.map(([name], k) => make("option", { value: k }, name)));
    menu.value = starts.length > 1 ? 1 : 0;
    const bar = make("div", { class: "start" }, menu);
    if (this.engine.sample) {
      bar.append(make("button", { type: "button", id: "random", onclick: () => this.load(this.engine.sampleRow(Math.floor(Math.random() * this.engine.sampleRows))) }, "a training row"));
    }
    if (this.columns.length > 12) {
      bar.append(make("input", { type: "search", placeholder: "find a column", "aria-label": "Find a column",
        oninput: (event) => this.filter(event.target.value) }));
    }
    place.append(bar);
    this.columns.forEach((column, i) => {
      const control = { category: optionControl, boolean: booleanControl, time: timeControl, number: numberControl }[column.kind](
        column, (value) => this.set(i, value));
      control.card.addEventListener("focusin", () => { if (this.chosen !== i) { this.choose(i); this.showCurve(); } });
      this.controls.push(control);
      place.append(control.card);
    });
    if (this.columns.length) this.choose(this.chosen);
  }

  filter(text) {
    const wanted = text.toLowerCase();
    this.columns.forEach((column, i) => { this.controls[i].card.hidden = !column.name.toLowerCase().includes(wanted); });
  }

  // Answer -----------------------------------------------------------------------------------------------

  buildPanels() {
    const coverages = this.head.program.coverages;
    this.menu = make("select", { "aria-label": "Coverage", id: "coverage", onchange: () => { this.coverage = Number(this.menu.value); this.update(); } },
      ...coverages.map((c, k) => make("option", { value: k }, `${Math.round(c * 100)}%`)));
    this.menu.value = this.coverage;
    this.headline = make("div", { class: "headline" });
    this.region = make("span");
    this.picture = make("div");
    this.parts = make("div", { class: "parts" });
    this.key = make("div", { class: "key" });
    this.gauge = make("div", { class: "gauge", role: "meter", "aria-label": "OOD score" }, make("b"));
    this.verdict = make("div", { class: "key" });
    document.getElementById("answer").append(this.headline, make("p", { class: "interval" }, this.menu, " ", this.region),
      this.picture, this.parts, this.key, this.gauge, this.verdict);
    this.curveTitle = make("h2");
    this.curve = make("div", { id: "curve" });
    this.rows = make("div", { id: "prototypes" });
    document.getElementById("more").append(this.curveTitle, this.curve, this.rows);
  }

  showAnswer() {
    const p = this.answer, isTarget = this.head.program.task === "regression";
    const unit = isTarget ? Math.sqrt : (v) => v;
    if (isTarget) {
      this.headline.replaceChildren(`${this.head.target}: ${show(p.mean)} `, make("small", {}, `± ${show(p.std)}`));
      this.region.textContent = `interval: ${show(p.lower)} to ${show(p.upper)}`;
      this.picture.replaceChildren(densityPicture(p, this.head.program));
    } else {
      const best = p.probs.indexOf(Math.max(...p.probs)), classes = this.head.program.classes;
      this.headline.replaceChildren(`${this.head.target}: ${classes[best]} `, make("small", {}, percent(p.probs[best])));
      const inside = classes.filter((_, c) => p.inside[c]);
      this.region.textContent = `set: ${inside.length > 6 ? `${inside.length} classes` : inside.join(", ") || "none"}`;
      this.picture.replaceChildren(...classBars(p, classes));
    }
    const total = p.component + p.mixing + p.posterior;
    const pieces = [["aleatoric", p.aleatoric, "--component"], ["epistemic", p.epistemic, "--posterior"]];
    this.parts.replaceChildren(...pieces.map(([, value, colour]) =>
      make("span", { style: `width:${(100 * value) / total}%;background:var(${colour})` })));
    this.key.replaceChildren(...pieces.map(([name, value, colour]) =>
      make("span", { "data-part": name }, make("i", { style: `background:var(${colour})` }),
        `${name} ${Math.round((100 * value) / total)}%: ${show(unit(value), 3)}${isTarget ? " (std)" : " nats"}`)));
    const threshold = this.head.program.detector.threshold, most = Math.max(6, 1.5 * threshold);
    this.gauge.style.setProperty("--score", `${Math.min(100, (100 * p.ood_score) / most)}%`);
    this.gauge.style.setProperty("--threshold", `${(100 * threshold) / most}%`);
    const least = this.engine.sample ? "" : "at least ";
    this.verdict.replaceChildren(
      make("span", { class: p.is_ood ? "verdict is-ood" : "verdict" }, p.is_ood ? "unlike the training rows" : "like the training rows"),
      make("span", {}, `OOD score ${least}${show(p.ood_score, 3)}, threshold ${show(threshold, 3)}`));
  }

  // The prediction while the chosen column moves, all others as they are.
  showCurve() {
    const column = this.columns[this.chosen];
    if (!column) return;
    this.curveTitle.textContent = `If only ${column.name} changes`;
    const isTarget = this.head.program.task === "regression";
    const options = column.kind === "category" ? column.options.map((_, k) => k).slice(0, BEYOND_WIDTH)
      : column.kind === "boolean" ? [0, 1]
      : Array.from({ length: BEYOND_WIDTH }, (_, k) => column.low + ((column.high - column.low) * k) / (BEYOND_WIDTH - 1));
    const best = isTarget ? 0 : this.answer.probs.indexOf(Math.max(...this.answer.probs));
    const points = options.map((value) => {
      const row = this.row.slice();
      row[this.chosen] = value;
      const p = this.engine.predict(row);
      if (!isTarget) return { value, mean: p.probs[best], is_ood: p.is_ood };
      const [lower, upper] = this.engine.interval(p, this.coverage);
      return { value, mean: p.mean, lower, upper, is_ood: p.is_ood };
    });
    const title = isTarget ? this.head.target : `p(${this.head.program.classes[best]})`;
    const note = isTarget ? `${title}: mean and ${this.menu.selectedOptions[0].textContent} interval.` : `${title}.`;
    const dotted = points.some((p) => p.is_ood) ? " Dotted: unlike the training rows." : "";
    const draw = ["category", "boolean"].includes(column.kind) ? columnsPicture : curvePicture;
    this.curve.replaceChildren(make("p", {}, note + dotted), draw(points, column, this.row[this.chosen], isTarget));
  }

  showRows() {
    const near = this.answer.neighbours.slice(0, 3);
    if (!near.length) return this.rows.replaceChildren();
    const rows = near.map(({ row }) => this.engine.sampleRow(row));
    const head = make("tr", {}, make("th", { class: "text" }, "column"), make("th", {}, "this row"),
      ...rows.map((row, k) => make("th", {}, make("button", { type: "button", title: "Set all controls to this row", onclick: () => this.load(row) }, `use ${k + 1}`))));
    const distances = make("tr", {}, make("td", {}, "distance"), make("td", {}, ""), ...near.map((n) => make("td", {}, show(n.distance, 3))));
    const body = this.columns.map((column, i) => make("tr", {}, make("td", { title: column.name }, column.name),
      make("td", {}, valueText(column, this.row[i])),
      ...rows.map((row) => {
        const text = valueText(column, row[i]);
        return make("td", { class: text === valueText(column, this.row[i]) ? "" : "differs", title: text }, text);
      })));
    this.rows.replaceChildren(make("h2", {}, "Nearest training rows"),
      make("div", { class: "scroll tall" }, make("table", {}, make("thead", {}, head), make("tbody", {}, distances, ...body))));
  }
}

function percent(p) {
  return p > 0.9995 && p < 1 ? "> 99.9%" : p < 0.0005 && p > 0 ? "< 0.1%" : `${(100 * p).toFixed(1)}%`;
}

// Controls of single columns: a card, and how a value is written into it -----------------------------------

function card(column, ...parts) {
  const name = make("span", { class: "name", title: column.name }, column.name);
  const top = make("div", { class: "top" }, name);
  const element = make("div", { class: "column" }, top, ...parts);
  return { element, top };
}

function missingBox(onchange) {
  const box = make("input", { type: "checkbox", onchange });
  return { box, label: make("label", {}, box, " missing") };
}

function histogram(column) {
  const counts = column.histogram, most = Math.max(1, ...counts);
  const width = 240 / counts.length;
  return make("svg", { viewBox: "0 0 240 22", preserveAspectRatio: "none", "aria-hidden": "true" },
    ...counts.map((count, k) => make("rect", { x: k * width, width: width - 0.5, y: 22 - (22 * count) / most,
      height: (22 * count) / most, style: "fill:var(--sky)" })));
}

function numberControl(column, onchange) {
  const step = column.integer ? 1 : niceStep((column.high - column.low) / 400);
  const low = Math.floor(column.low / step) * step, high = Math.ceil(column.high / step) * step;
  const label = column.name;
  const slider = make("input", { type: "range", min: low, max: high, step, "aria-label": label });
  const box = make("input", { type: "number", step: "any", "aria-label": `${label}, number` });
  const gap = missingBox(() => change(gap.box.checked ? null : Number(slider.value), true));
  const { element, top } = card(column, histogram(column), slider);
  top.append(box, gap.label);
  function change(value, rewrite) {
    if (value !== null && !Number.isFinite(value)) return;
    if (rewrite) write(value);
    onchange(value);
  }
  function write(value, source) {
    gap.box.checked = value === null;
    slider.style.opacity = value === null ? 0.35 : 1;
    if (value === null) { box.value = ""; return; }
    if (source !== slider) slider.value = value;
    if (source !== box) box.value = Number(value.toPrecision(7));
  }
  slider.addEventListener("input", () => { write(Number(slider.value), slider); onchange(Number(slider.value)); });
  box.addEventListener("input", () => { if (box.value !== "") { write(Number(box.value), box); change(Number(box.value), false); } });
  return { card: element, write };
}

function timeControl(column, onchange) {
  const slider = make("input", { type: "range", min: Math.floor(column.low), max: Math.ceil(column.high), step: column.clock ? 1 / 24 : 1, "aria-label": column.name });
  const box = make("input", { type: column.clock ? "datetime-local" : "date", "aria-label": `${column.name}, date` });
  const gap = missingBox(() => { const value = gap.box.checked ? null : Number(slider.value); write(value); onchange(value); });
  const { element, top } = card(column, histogram(column), slider);
  top.append(box, gap.label);
  function write(value, source) {
    gap.box.checked = value === null;
    if (value === null) { box.value = ""; return; }
    if (source !== slider) slider.value = value;
    if (source !== box) box.value = dateText(value, column.clock);
  }
  slider.addEventListener("input", () => { write(Number(slider.value), slider); onchange(Number(slider.value)); });
  box.addEventListener("input", () => {
    const days = Date.parse(column.clock ? `${box.value}Z` : box.value) / 86400000;
    if (Number.isFinite(days)) { write(days, box); onchange(days); }
  });
  return { card: element, write };
}

function booleanControl(column, onchange) {
  const values = [0, 1, null];
  const menu = make("select", { "aria-label": column.name, onchange: () => onchange(values[menu.value]) },
    ...["false", "true", "missing"].map((text, k) => make("option", { value: k }, text)));
  const { element, top } = card(column);
  top.append(menu);
  return { card: element, write: (value) => { menu.value = values.indexOf(value); } };
}

function optionControl(column, onchange) {
  const menu = make("select", { "aria-label": column.name, onchange: () => onchange(Number(menu.value)) },
    ...column.options.map((option, k) => make("option", { value: k }, option.plain ? option.label : `(${option.label})`)));
  const { element, top } = card(column);
  top.append(menu);
  return { card: element, write: (value) => { menu.value = value; } };
}

// Pictures --------------------------------------------------------------------------------------------------

function niceStep(width) {
  const power = 10 ** Math.floor(Math.log10(width));
  return power * ([1, 2, 5].find((factor) => factor * power >= width) ?? 10);
}

function ticks(low, high, count) {
  const step = niceStep((high - low) / count);
  const out = [];
  for (let v = Math.ceil(low / step) * step; v <= high + 1e-9 * step; v += step) out.push(Math.abs(v) < 1e-9 * step ? 0 : v);
  return out;
}

// A range of y for the density: grows and shrinks in steps, so that it stands still while a slider moves.
function densityRange(p) {
  const width = niceStep(p.std) * 5;
  const centre = Math.round(p.mean / (width / 5)) * (width / 5);
  return [centre - width, centre + width];
}

function densityPicture(p, program) {
  const [low, high] = densityRange(p), width = 640, height = 170, base = 140;
  const place = (y) => ((y - low) / (high - low)) * width;
  const ys = Array.from({ length: 201 }, (_, k) => low + ((high - low) * k) / 200);
  const values = ys.map((y) => density(p, y)), most = Math.max(...values);
  const path = (points) => points.map(([x, y], k) => `${k ? "L" : "M"}${x.toFixed(2)},${y.toFixed(2)}`).join("");
  const curve = ys.map((y, k) => [place(y), base - (values[k] / most) * (base - 8)]);
  const inside = curve.filter((_, k) => ys[k] >= p.lower && ys[k] <= p.upper);
  const picture = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "predictive density" });
  if (inside.length > 1) {
    picture.append(make("path", { d: `${path(inside)}L${inside[inside.length - 1][0]},${base}L${inside[0][0]},${base}Z`, style: "fill:var(--sky);opacity:.45" }));
  }
  picture.append(make("path", { d: path(curve), style: "fill:none;stroke:var(--blue);stroke-width:2.5" }),
    make("line", { x1: 0, x2: width, y1: base, y2: base, style: "stroke:var(--line)" }),
    make("line", { x1: place(p.mean), x2: place(p.mean), y1: 4, y2: base, style: "stroke:var(--ink);stroke-dasharray:3 3" }));
  const shown = ticks(low, high, 5).filter((v) => place(v) > 20 && place(v) < width - 20);
  for (const v of shown) picture.append(make("text", { x: place(v), y: base + 18, "text-anchor": "middle" }, show(v, 5)));
  return picture;
}

function classBars(p, classes) {
  const order = p.probs.map((_, c) => c).sort((a, b) => p.probs[b] - p.probs[a] || a - b);
  const shown = (classes.length <= MAX_BARS ? p.probs.map((_, c) => c) : order.slice(0, MAX_BARS));
  return shown.map((c) => make("div", { class: p.inside[c] ? "bar inside" : "bar", "data-class": c },
    make("span", { class: "label", title: classes[c] }, classes[c]),
    make("span", { class: "track" }, make("div", { class: "fill", style: `width:${100 * p.probs[c]}%` })),
    make("span", { class: "number" }, percent(p.probs[c]))));
}

function valueAxis(points, isTarget, height) {
  const usual = points.filter((p) => !p.is_ood), seen = usual.length ? usual : points;  // others may leave the axis
  let low = isTarget ? Math.min(...seen.map((p) => p.lower), ...points.map((p) => p.mean)) : 0;
  let high = isTarget ? Math.max(...seen.map((p) => p.upper), ...points.map((p) => p.mean)) : 1;
  if (!(high > low)) { low -= 1; high += 1; }
  const place = (y) => clamp(height - ((y - low) / (high - low)) * (height - 10), 2, height);
  const lines = ticks(low, high, 4).flatMap((v) => [
    make("line", { x1: 60, x2: 640, y1: place(v), y2: place(v), style: "stroke:var(--line)" }),
    make("text", { x: 54, y: place(v) + 4, "text-anchor": "end" }, show(v, 4))]);
  return { place, lines };
}

function curvePicture(points, column, current, isTarget) {
  const height = 190, { place, lines } = valueAxis(points, isTarget, height);
  const x = (v) => 60 + ((v - column.low) / (column.high - column.low)) * 580;
  const picture = make("svg", { viewBox: "0 0 640 220", role: "img", "aria-label": "prediction against the column" }, ...lines);
  const line = (part, name) => part.map((p, k) => `${k ? "L" : "M"}${x(p.value).toFixed(2)},${place(p[name]).toFixed(2)}`).join("");
  if (isTarget) {
    const back = points.slice().reverse().map((p) => `L${x(p.value).toFixed(2)},${place(p.lower).toFixed(2)}`).join("");
    picture.append(make("path", { d: `${line(points, "upper")}${back}Z`, style: "fill:var(--sky);opacity:.35" }));
  }
  for (let k = 1; k < points.length; k++) {
    const dotted = points[k].is_ood || points[k - 1].is_ood;
    picture.append(make("path", { d: line(points.slice(k - 1, k + 1), "mean"),
      style: `fill:none;stroke:var(--blue);stroke-width:2.5;${dotted ? "stroke-dasharray:2 4" : ""}` }));
  }
  if (current !== null && current >= column.low && current <= column.high) {
    picture.append(make("line", { x1: x(current), x2: x(current), y1: 4, y2: height, style: "stroke:var(--ink);stroke-dasharray:3 3" }));
  }
  const text = (v) => (column.kind === "time" ? dateText(v, false) : show(v, 5));
  for (const v of ticks(column.low, column.high, 5).filter((v) => x(v) < 625)) {
    picture.append(make("text", { x: x(v), y: height + 20, "text-anchor": "middle" }, text(v)));
  }
  return picture;
}

function columnsPicture(points, column, current, isTarget) {
  const height = 190, { place, lines } = valueAxis(points, isTarget, height);
  const step = 580 / points.length, narrow = points.length > 8;
  const picture = make("svg", { viewBox: `0 0 640 ${narrow ? 300 : 220}`, role: "img", "aria-label": "prediction for each value" }, ...lines);
  points.forEach((p, k) => {
    const at = 60 + step * (k + 0.5), half = Math.min(step * 0.3, 24);
    const colour = p.value === current ? "var(--blue)" : "var(--soft)";
    if (isTarget) {
      picture.append(make("rect", { x: at - half, width: 2 * half, y: place(p.upper), height: Math.max(0, place(p.lower) - place(p.upper)), style: "fill:var(--sky);opacity:.45" }),
        make("line", { x1: at - half, x2: at + half, y1: place(p.mean), y2: place(p.mean), style: `stroke:${colour};stroke-width:3;${p.is_ood ? "stroke-dasharray:2 3" : ""}` }));
    } else {
      picture.append(make("rect", { x: at - half, width: 2 * half, y: place(p.mean), height: place(0) - place(p.mean), style: `fill:${colour};${p.is_ood ? "opacity:.4" : ""}` }));
    }
    const label = valueText(column, p.value), most = narrow ? 18 : Math.max(6, Math.floor(step / 8));
    const text = label.length > most ? `${label.slice(0, most - 1)}…` : label;
    picture.append(make("text", narrow
      ? { x: at, y: height + 12, transform: `rotate(60 ${at} ${height + 12})`, "text-anchor": "start" }
      : { x: at, y: height + 18, "text-anchor": "middle" }, text));
  });
  return picture;
}

unpack(document.getElementById("numbers").textContent).then(([head, floats]) => {
  const explorer = new Explorer(head, floats);
  explorer.start();
  window.compoundExplorer = explorer;
}).catch((error) => {
  document.getElementById("status").textContent = typeof DecompressionStream === "undefined"
    ? "This browser is too old for the page: use one from 2023 or later." : `The page cannot be shown: ${error.message}`;
  throw error;
});
