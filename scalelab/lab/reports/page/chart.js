"use strict";
// A line chart in SVG: switch its axes, their scales and its panel, toggle lines, hover for values.
// spec: {title, note, x: [title], y: [title], panels: [title], series: [{name, color, marker, dash,
//   group, lines: [{label, panel, points: [{x: [..], y: [..], low: [..], high: [..]}]}]}]}

const WIDTH = 860, HEIGHT = 430, LEFT = 66, RIGHT = 16, TOP = 12, BOTTOM = 52;
// Taken from the page, so that no address stands in it.
const SVG = document.querySelector("svg").namespaceURI;
const SHAPES = {
  circle: "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0Z", square: "M-3.5,-3.5h7v7h-7Z",
  triangle: "M0,-4.5L4.5,4H-4.5Z", diamond: "M0,-5L5,0L0,5L-5,0Z",
  cross: "M-4,-2L-2,-4L0,-2L2,-4L4,-2L2,0L4,2L2,4L0,2L-2,4L-4,2L-2,0Z", down: "M0,4.5L4.5,-4H-4.5Z",
  plus: "M-1.5,-4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3Z", left: "M-4.5,0L4,-4.5V4.5Z",
  right: "M4.5,0L-4,-4.5V4.5Z",
};

function element(parent, name, attributes = {}, text = "") {
  const inSvg = parent.namespaceURI === SVG || name === "svg";
  const made = inSvg ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.textContent = text;
  return parent.appendChild(made);
}

function short(value) { // 1536 -> "1.54k"
  const size = Math.abs(value);
  if (size < 1000) return String(Number(value.toPrecision(4)));
  const power = Math.min(6, Math.floor(Math.log10(size) / 3 + 1e-9));
  return Number((value / 1000 ** power).toPrecision(3)) + ["", "k", "M", "G", "T", "P", "E"][power];
}

function steps(low, high, log, wanted = 6) { // where an axis has its ticks
  const found = [];
  if (log) {
    const decades = Math.log10(high / low);
    const parts = decades > 4 ? [1] : decades > 1.2 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9];
    for (let e = Math.floor(Math.log10(low)); e <= Math.log10(high); e++) {
      for (const part of parts) found.push(part * 10 ** e);
    }
    const inside = found.filter((x) => x >= low && x <= high);
    if (inside.length > 2) return inside;
    found.length = 0;
  }
  const rough = (high - low) / wanted, unit = 10 ** Math.floor(Math.log10(rough));
  const step = unit * [1, 2, 5, 10].find((x) => x * unit >= rough);
  for (let x = Math.ceil(low / step) * step; x <= high + step / 1e6; x += step) found.push(x);
  return found;
}

function scale(values, log, from, to) { // its ends are a little beyond the values
  let low = Math.min(...values), high = Math.max(...values);
  if (log) [low, high] = [Math.log(low), Math.log(high)];
  const margin = (high - low || Math.abs(high) / 10 || 1) * 0.04;
  low -= margin;
  high += margin;
  const place = (x) => from + (((log ? Math.log(x) : x) - low) / (high - low)) * (to - from);
  const ends = log ? [Math.exp(low), Math.exp(high)] : [low, high];
  return { place, ticks: steps(...ends, log) };
}

class Chart {
  constructor(parent, spec) {
    this.spec = spec;
    this.state = { x: 0, y: 0, panel: 0, logX: Boolean(spec.logX), logY: false };
    this.hidden = new Set();
    const controls = element(parent, "div", { class: "controls" });
    this.choice(controls, "x", "x-axis", spec.x);
    this.choice(controls, "y", "y-axis", spec.y);
    this.choice(controls, "panel", "show", spec.panels);
    this.toggle(controls, "logX", "log x");
    this.toggle(controls, "logY", "log y");
    this.frame = element(parent, "div", { class: "frame" });
    this.svg = element(this.frame, "svg", {
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": spec.title,
    });
    this.tip = element(this.frame, "div", { class: "tip", role: "status" });
    this.svg.addEventListener("pointermove", (event) => this.hover(event));
    this.svg.addEventListener("pointerleave", () => this.unhover());
    this.legend(parent);
    this.draw();
  }

  choice(parent, key, label, titles) {
    if (titles.length < 2) return;
    const group = element(parent, "span", { class: "choice", role: "group", "aria-label": label });
    element(group, "span", { class: "label" }, label);
    const buttons = titles.map((title, i) => {
      const data = { type: "button", "data-control": key, "aria-pressed": i === 0 };
      const button = element(group, "button", data, title);
      button.addEventListener("click", () => {
        this.state[key] = i;
        buttons.forEach((other, j) => other.setAttribute("aria-pressed", i === j));
        this.draw();
      });
      return button;
    });
  }

  toggle(parent, key, label) {
    const data = { type: "button", "data-control": key, "aria-pressed": this.state[key] };
    const button = element(parent, "button", data, label);
    button.addEventListener("click", () => {
      this.state[key] = !this.state[key];
      button.setAttribute("aria-pressed", this.state[key]);
      this.draw();
    });
  }

  legend(parent) { // a row for each group, whose name shows or hides all of it
    const groups = [...new Set(this.spec.series.map((s) => s.group))];
    const rows = groups.map((name) => this.spec.series.filter((s) => s.group === name));
    if (rows.every((row) => row.length === 1)) return this.legendRow(parent, rows.flat());
    groups.forEach((name, i) => this.legendRow(parent, rows[i], name));
  }

  legendRow(parent, all, name) {
    const row = element(parent, "div", { class: "legend", role: "group", "aria-label": name ?? "" });
    const buttons = [];
    if (name) {
      const button = element(row, "button", { type: "button", class: "group" }, name);
      button.addEventListener("click", () => {
        const shown = all.some((s) => this.hidden.has(s.name));
        all.forEach((s, i) => {
          this.hidden[shown ? "delete" : "add"](s.name);
          buttons[i].setAttribute("aria-pressed", shown);
        });
        this.draw();
      });
    }
    all.forEach((series) => {
      const data = { type: "button", "data-series": series.name, "aria-pressed": true };
      const button = element(row, "button", data);
      buttons.push(button);
      const swatch = element(button, "svg", { viewBox: "-18 -7 36 14", "aria-hidden": true });
      this.path(swatch, "M-17,0H17", series);
      this.marker(swatch, series, 0, 0);
      element(button, "span", {}, name ? series.name.slice(name.length + 1) : series.name);
      button.addEventListener("click", () => {
        const shown = this.hidden.delete(series.name);
        if (!shown) this.hidden.add(series.name);
        button.setAttribute("aria-pressed", shown);
        this.draw();
      });
    });
  }

  path(parent, d, series) {
    const data = { d, fill: "none", stroke: series.color, "stroke-width": 1.6 };
    return element(parent, "path", { ...data, "stroke-dasharray": series.dash });
  }

  marker(parent, series, x, y) {
    const data = { d: SHAPES[series.marker], fill: series.hollow ? "#fff" : series.color };
    const more = { stroke: series.color, transform: `translate(${x},${y})` };
    return element(parent, "path", { ...data, ...more });
  }

  visible() { // the points that can be drawn, by series and line
    const { x, y, panel, logX, logY } = this.state;
    const drawable = (p) =>
      p.x[x] !== null && p.y[y] !== null && (!logX || p.x[x] > 0) && (!logY || p.y[y] > 0);
    return this.spec.series.filter((s) => !this.hidden.has(s.name)).map((series) => ({
      series,
      lines: series.lines.filter((line) => line.panel === panel)
        .map((line) => ({ line, points: line.points.filter(drawable) }))
        .filter(({ points }) => points.length),
    }));
  }

  draw() {
    this.svg.replaceChildren();
    this.unhover();
    this.near = [];
    const { x, y, logX, logY } = this.state;
    const shown = this.visible(), all = shown.flatMap((s) => s.lines.flatMap((l) => l.points));
    if (!all.length) {
      const middle = { x: WIDTH / 2, y: HEIGHT / 2, "text-anchor": "middle" };
      element(this.svg, "text", middle, "nothing to show");
      return;
    }
    const ends = (p) => [p.y[y], p.low?.[y], p.high?.[y]].filter((v) => v > 0 || (v != null && !logY));
    const across = scale(all.map((p) => p.x[x]), logX, LEFT, WIDTH - RIGHT);
    const up = scale(all.flatMap(ends), logY, HEIGHT - BOTTOM, TOP);
    this.axes(across, up);
    shown.forEach(({ series, lines }, i) => {
      const group = element(this.svg, "g", { class: "series", "data-name": series.name });
      // Apart by a little, so that no error bar hides another.
      const aside = this.spec.aside ? 6 * (i - (shown.length - 1) / 2) : 0;
      const place = (value) => across.place(value) + aside;
      for (const { line, points } of lines) this.line(group, series, line, points, place, up);
    });
    this.ring = element(this.svg, "circle", { r: 8, class: "ring", visibility: "hidden" });
  }

  axes(across, up) {
    const grid = element(this.svg, "g", { class: "grid" });
    const bottom = HEIGHT - BOTTOM;
    for (const x of across.ticks) {
      element(grid, "path", { d: `M${across.place(x)},${TOP}V${bottom}` });
      element(grid, "text", { x: across.place(x), y: bottom + 18, "text-anchor": "middle" }, short(x));
    }
    for (const y of up.ticks) {
      element(grid, "path", { d: `M${LEFT},${up.place(y)}H${WIDTH - RIGHT}` });
      element(grid, "text", { x: LEFT - 8, y: up.place(y) + 4, "text-anchor": "end" }, short(y));
    }
    element(grid, "path", { class: "axis", d: `M${LEFT},${TOP}V${bottom}H${WIDTH - RIGHT}` });
    const { x, y, logX, logY } = this.state;
    const titleX = this.spec.x[x] + (logX ? " (log)" : ""), middle = (TOP + bottom) / 2;
    const titleY = this.spec.y[y] + (logY ? " (log)" : ""), turn = `rotate(-90 16 ${middle})`;
    const centre = { "text-anchor": "middle" };
    const placeX = { x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 10, class: "title x", ...centre };
    element(this.svg, "text", placeX, titleX);
    const placeY = { x: 16, y: middle, class: "title y", transform: turn, ...centre };
    element(this.svg, "text", placeY, titleY);
  }

  line(group, series, line, points, place, up) {
    const { x, y, logY } = this.state;
    const at = points.map((p) => [place(p.x[x]), up.place(p.y[y])]);
    this.path(group, "M" + at.map((xy) => xy.map((v) => v.toFixed(1)).join(",")).join("L"), series);
    const every = Math.max(1, Math.round(points.length / 8)); // markers, few enough to see a line
    points.forEach((point, i) => {
      const low = point.low?.[y], high = point.high?.[y];
      if (low != null && high != null && (low > 0 || !logY)) {
        const bar = `M-4,${up.place(low)}h8m-4,0V${up.place(high)}m-4,0h8`;
        const data = { d: bar, stroke: series.color, fill: "none", class: "bar" };
        element(group, "path", { ...data, transform: `translate(${at[i][0]},0)` });
      }
      if (i % every === 0 || i === points.length - 1) this.marker(group, series, ...at[i]);
      this.near.push({ at: at[i], point, line, series });
    });
  }

  hover(event) {
    const box = this.svg.getBoundingClientRect(), zoom = WIDTH / box.width;
    const here = [(event.clientX - box.left) * zoom, (event.clientY - box.top) * zoom];
    const far = (p) => Math.hypot(p.at[0] - here[0], p.at[1] - here[1]);
    const found = this.near.reduce((a, b) => (a && far(a) <= far(b) ? a : b), null);
    if (!found || far(found) > 40) return this.unhover();
    const { x, y } = this.state, { point, line, series } = found;
    const bar = point.low?.[y] != null ? ` [${point.low[y]}, ${point.high[y]}]` : "";
    this.tip.replaceChildren();
    element(this.tip, "strong", {}, point.label ?? series.name);
    element(this.tip, "div", {}, line.label);
    element(this.tip, "div", {}, `${this.spec.y[y]}: ${point.y[y]}${bar}`);
    element(this.tip, "div", {}, `${this.spec.x[x]}: ${point.x[x].toLocaleString("en")}`);
    this.tip.classList.add("on");
    this.tip.classList.toggle("flip", found.at[0] > WIDTH * 0.6);
    this.tip.style.left = `${found.at[0] / zoom}px`;
    this.tip.style.top = `${found.at[1] / zoom}px`;
    this.ring.setAttribute("cx", found.at[0]);
    this.ring.setAttribute("cy", found.at[1]);
    this.ring.setAttribute("visibility", "visible");
  }

  unhover() {
    this.tip.classList.remove("on");
    this.ring?.setAttribute("visibility", "hidden");
  }
}
