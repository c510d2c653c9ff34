// The report's page: everything is drawn from the JSON in #data. Text reaches the page by textContent alone.
"use strict";
const DATA = JSON.parse(document.getElementById("data").textContent);
const RUNS = DATA.runs.map((run, i) => ({ ...run, letter: letters(i) }));
for (const { sides, matrices } of RUNS.flatMap((run) => run.measures)) for (const m of matrices) [m.rows, m.columns] = [sides[m.rows], sides[m.columns]];
const PAIRS = 3; // of models, of which each of several runs says a sentence
const MANY = RUNS.length > 1;
const QUANTITIES = {
  values: "value", se: "standard error", low: "band of the mean batch value, from", high: "band of the mean batch value, to", p: "p value", p_family: "p value, family-wise",
  q: "false discovery rate", calibrated: "calibrated score",
  tested: "value on the permuted rows", chance: "mean by chance",
};
const VERDICTS = { holds: "\u2713 ", fails: "\u2717 ", unclear: "? ", "not testable here": "\u2013 " };
const ALL = ""; // every model, or no remedy, in the selectors
const LABEL = 28; // characters beside a chart, which is as high as these
const BROAD = 1000; // pixels of a figure that has a row of its own, if it is broader than high too
const LEAST = 1e-12; // of a colour scale's range
const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'DejaVu Sans', sans-serif";
const FULL = 3; // warnings that stand in full before the others are folded
const redraws = []; // what depends on the width or the theme

// ---- small things ----

function letters(i) {
  return (i >= 26 ? letters(Math.floor(i / 26) - 1) : "") + String.fromCharCode(65 + (i % 26));
}

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const full = (value) => (value === null || Number.isNaN(value) ? "no value" : String(value));
const short = (value) => (value === null || Number.isNaN(value) ? "no value" : String(Number(value.toPrecision(6))));
const brief = (value) => (value === null || Number.isNaN(value) ? "no value" : String(Number(value.toPrecision(4))));
// As far as the error lets it be known: two digits of the error.
const measured = (value, se) => {
  if (!se) return brief(value);
  const places = Math.min(12, Math.max(0, 1 - Math.floor(Math.log10(se))));
  return `${value.toFixed(places)} \u00b1 ${se.toFixed(places)}`;
};
const layer = (model, name) => ({ model, name, key: JSON.stringify([model, name]) });
const said = (layer) => `${layer.model} ${layer.name}`;
const unique = (list) => [...new Set(list)];
const title = (run) => (MANY ? [`${run.letter}: ${run.manifest.name}`, middle(run.own, 60)].filter(Boolean).join(", ") : run.manifest.name);

// The one hook point of the blocks among these layers, which then need no more than their number; empty where there are several.
function inBlocks(layers) {
  const points = unique(layers.map(({ name }) => /^(\w+)@\d+$/.exec(name)?.[1] ?? (name.includes("@") ? name : "")).filter(Boolean));
  return points.length === 1 && !points[0].includes("@") ? points[0] : "";
}

// The places at which another model begins.
function startsOf(layers) {
  return layers.map((_, i) => i).filter((i) => i === 0 || layers[i].model !== layers[i - 1].model);
}

function middle(text, most) {
  return text.length <= most ? text : `${text.slice(0, most >> 1)}\u2026${text.slice(text.length - ((most - 1) >> 1))}`;
}

// Names with so many letters at most; without their common ends where they would be the same else.
function distinct(names, most) {
  const shortened = names.map((name) => middle(name, most));
  if (unique(shortened).length === unique(names).length) return shortened;
  const parts = names.map((name) => name.split(/(?<=[._@/])/));
  const alike = (all) => [...all[0], ""].findIndex((part, i) => i === all[0].length || all.some((other) => other[i] !== part));
  const first = alike(parts);
  const last = Math.min(alike(parts.map((part) => part.toReversed())), Math.min(...parts.map((part) => part.length)) - first - 1);
  return parts.map((part) => `${first ? "\u2026" : ""}${middle(part.slice(first, part.length - last).join(""), most - 2)}${last ? "\u2026" : ""}`);
}

// ---- files to keep ----

function decoded(base64) {
  const text = atob(base64), bytes = new Uint8Array(text.length);
  for (let i = 0; i < bytes.length; i += 1) bytes[i] = text.charCodeAt(i);
  return bytes;
}

const rounded = (value) => Math.round(100 * value) / 100;

function shape(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, typeof value === "number" ? rounded(value) : value);
  element.append(...children);
  return element;
}

// turned: text that is read from below
const written = (text, x, y, size, anchor, turned = false) => shape("text", { x, y, dy: "0.35em", fill: css("--ink"), "font-size": size, "text-anchor": anchor, ...(turned ? { transform: `rotate(-90 ${rounded(x)} ${rounded(y)})` } : {}) }, text);

// A drawing on the colour of the page.
function drawing(width, height, parts) {
  const [w, h] = [Math.ceil(width), Math.ceil(height)];
  return shape("svg", { width: w, height: h, viewBox: `0 0 ${w} ${h}`, "font-family": FONT }, shape("rect", { width: w, height: h, fill: css("--paper") }), ...parts);
}

async function raster(drawn) {
  const picture = new Image(), zoom = 3;
  picture.src = `data:image/svg+xml,${encodeURIComponent(serialised(drawn))}`;
  await picture.decode();
  const canvas = el("canvas", { width: zoom * picture.width, height: zoom * picture.height });
  canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done));
}

const serialised = (drawn) => new XMLSerializer().serializeToString(drawn);

// A drawing as files. draw: gives it.
const pictures = (draw) => ({ png: ["image/png", () => raster(draw())], svg: ["image/svg+xml", () => serialised(draw())] });

// ---- tables that can be sorted ----

const words = new Intl.Collator("en", { numeric: true });

function before(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return (typeof a === "string") - (typeof b === "string") || words.compare(String(a), String(b));
}

const LONGEST = 1000; // characters of a cell; all are where the mouse rests, and in the CSV
const SHOWN = 200; // rows of a table until all are asked for: thousands make every change of the page slow

// round: four digits are shown, and all of them where the mouse rests.
function table(caption, columns, rows, { classes = () => null, tall = false, round = false } = {}) {
  const numeric = columns.map((_, c) => rows.some((r) => typeof r[c] === "number") && rows.every((r) => typeof r[c] !== "string"));
  const body = el("tbody"), stacked = columns.length > 4; // on a phone, a line for each cell
  const line = (row) => el("tr", { class: classes(row) }, ...row.map((cell, c) => {
      const empty = cell === null || cell === undefined;
      const mark = Object.hasOwn(VERDICTS, cell) ? VERDICTS[cell] : "";
      const rounded = round && typeof cell === "number";
      const text = empty ? "\u2013" : rounded ? brief(cell) : typeof cell === "object" ? JSON.stringify(cell) : mark + String(cell);
      const cut = text.length > LONGEST;
      return el("td", { class: numeric[c] ? "number" : mark ? `verdict ${cell}` : text.length > 60 ? "long" : null, "data-name": stacked ? columns[c] : null, title: rounded ? full(cell) : cut ? text : null }, cut ? middle(text, LONGEST) : text);
    }));
  const sorted = [...rows];
  const rest = el("p", { class: "quiet" }, `${SHOWN} of ${counted(rows.length, "row")}. `, el("button", { type: "button", onclick: () => fill(rows.length) }, "Show all"));
  function fill(many) {
    body.replaceChildren(...sorted.slice(0, many).map(line));
    rest.classList.toggle("hidden", body.rows.length === rows.length);
  }
  const heads = columns.map((name, c) => el("th", { scope: "col", class: numeric[c] ? "number" : null },
    el("button", { type: "button", onclick: () => sort(c) }, name)));
  function sort(c) {
    const down = heads[c].getAttribute("aria-sort") === "ascending";
    for (const head of heads) head.removeAttribute("aria-sort");
    heads[c].setAttribute("aria-sort", down ? "descending" : "ascending");
    const missing = (cell) => cell === null || cell === undefined;
    sorted.sort((a, b) => missing(a[c]) - missing(b[c]) || (missing(a[c]) ? 0 : (down ? -1 : 1) * before(a[c], b[c])));
    fill(body.rows.length);
  }
  fill(SHOWN);
  return el("div", {},
    el("div", { class: `scroll${tall && rows.length > 14 ? " tall" : ""}${stacked ? " stacked" : ""}`, tabindex: "0", role: "region", "aria-label": caption },
      el("table", {}, el("caption", {}, caption), el("thead", {}, el("tr", {}, ...heads)), body)),
    rest,
    downloads(caption, { csv: ["text/csv", () => csv(columns, rows)] }));
}

function section(id, name, ...children) {
  return el("section", { id, "aria-label": name }, el("h2", {}, name), ...children);
}

// A section of which only the name is seen until it is opened.
function foldedSection(id, name, ...children) {
  return el("section", { id, class: "folded", "aria-label": name }, el("details", {}, el("summary", {}, el("h2", {}, name)), ...children));
}

// ---- matrices as one grid ----

const numbers = (text) => new Float64Array(decoded(text).buffer); // little-endian, as every machine that runs a browser

// All blocks of a measure on two axes of layers; NaN where no block is. Symmetric blocks stand both ways.
function assembled(measure) {
  const axis = (sides) => {
    const places = new Map();
    const models = new Map(); // a model's layers stay together
    for (const { model, layers } of sides) {
      if (!models.has(model)) models.set(model, new Map());
      for (const name of layers) models.get(model).set(name, layer(model, name));
    }
    const layers = [...models.values()].flatMap((byName) => [...byName.values()]);
    layers.forEach(({ key }, i) => places.set(key, i));
    return { layers, places };
  };
  const symmetric = measure.card.symmetric;
  const both = measure.matrices.flatMap((m) => [m.rows, m.columns]);
  const rows = axis(symmetric ? both : measure.matrices.map((m) => m.rows));
  const columns = symmetric ? rows : axis(measure.matrices.map((m) => m.columns));
  const made = { rows, columns, scales: measure.scales };
  const filled = (what) => {
    const cells = new Float64Array(rows.layers.length * columns.layers.length).fill(NaN);
    for (const m of measure.matrices) {
      if (!m[what]) continue;
      const block = numbers(m[what]);
      const r = m.rows.layers.map((name) => rows.places.get(layer(m.rows.model, name).key));
      const c = m.columns.layers.map((name) => columns.places.get(layer(m.columns.model, name).key));
      const mirrored = symmetric && m.rows.model !== m.columns.model;
      r.forEach((i, a) => c.forEach((j, b) => {
        cells[i * columns.layers.length + j] = block[a * c.length + b];
        if (mirrored) cells[j * columns.layers.length + i] = block[a * c.length + b];
      }));
    }
    return cells;
  };
  for (const what of Object.keys(QUANTITIES)) {
    if (!Object.hasOwn(measure.scales, what)) continue;
    const keep = (value) => Object.defineProperty(made, what, { value })[what];
    Object.defineProperty(made, what, { configurable: true, get: () => keep(filled(what)) }); // decoded when first needed
  }
  return made;
}

const grids = new Map();

function gridOf(run, label) {
  const known = JSON.stringify([run.letter, label]);
  if (!grids.has(known)) {
    const measure = run.measures.find((m) => m.label === label);
    grids.set(known, measure ? assembled(measure) : null);
  }
  return grids.get(known);
}

// What comes next is decoded while nobody waits for it.
function prefetch(left) {
  if (!left.length) return;
  const later = globalThis.requestIdleCallback ?? setTimeout;
  later(() => {
    const [run, label, what] = left.shift();
    void gridOf(run, label)[what];
    prefetch(left);
  });
}

// The cells of these rows and columns, row by row.
function cellsOf(grid, what, rows, columns) {
  const all = grid[what], wide = grid.columns.layers.length;
  const places = Int32Array.from(columns, (column) => grid.columns.places.get(column.key));
  const cells = new Float64Array(rows.length * columns.length);
  rows.forEach((row, i) => {
    const from = wide * grid.rows.places.get(row.key);
    for (let j = 0; j < places.length; j += 1) cells[i * places.length + j] = all[from + places[j]];
  });
  return cells;
}

// ---- the order of layers ----

// By their share of the way through their model.
function byDepth(layers) {
  const among = new Map();
  for (const { model } of layers) among.set(model, (among.get(model) ?? 0) + 1);
  const passed = new Map();
  const depths = layers.map(({ model }) => {
    const i = passed.get(model) ?? 0;
    passed.set(model, i + 1);
    return i / Math.max(1, among.get(model) - 1);
  });
  return layers.map((_, i) => i).sort((i, j) => depths[i] - depths[j]).map((i) => layers[i]);
}

// The leaves of a tree of average linkage (nearest-neighbour chains), turned so that the closer ends meet. Of a measure
// with two directions, their mean; pairs that were not compared are as far apart as any.
function byCluster(layers, cells, larger) {
  const n = layers.length, sign = larger ? 1 : -1, near = new Float64Array(n * n);
  let least = Infinity;
  for (let i = 0; i < n; i += 1) for (let j = 0; j < n; j += 1) {
    const value = sign * (cells[i * n + j] + cells[j * n + i]) / 2;
    near[i * n + j] = value;
    if (value < least) least = value;
  }
  for (let i = 0; i < near.length; i += 1) if (Number.isNaN(near[i])) near[i] = least;
  const given = near.slice(), leaves = layers.map((_, i) => [i]), alive = new Set(leaves.keys()), chain = [];
  while (alive.size > 1) {
    if (!chain.length) chain.push(alive.values().next().value);
    const top = chain.at(-1), last = chain.at(-2);
    let best = last;
    for (const k of alive) if (k !== top && (best === undefined || near[top * n + k] > near[top * n + best])) best = k;
    if (best !== last) {
      chain.push(best);
      continue;
    }
    chain.length -= 2;
    alive.delete(top);
    const [a, b] = [leaves[best], leaves[top]];
    for (const k of alive) near[best * n + k] = near[k * n + best] = (a.length * near[best * n + k] + b.length * near[top * n + k]) / (a.length + b.length);
    const turned = [[a, b], [a, b.toReversed()], [a.toReversed(), b], [a.toReversed(), b.toReversed()]];
    const meet = ([x, y]) => given[x.at(-1) * n + y[0]];
    leaves[best] = turned.reduce((x, y) => (meet(y) > meet(x) ? y : x)).flat();
  }
  return leaves[alive.values().next().value].map((i) => layers[i]);
}

const ORDERS = { model: "by model", depth: "by depth", cluster: "by cluster" };
const square = (grid) => grid.rows.layers.length === grid.columns.layers.length && grid.rows.layers.every((layer) => grid.columns.places.has(layer.key));
const orders = new Map(); // of a grid that is there

function ordered(grid, side, order, larger) {
  const { layers } = grid[side];
  if (order === "model" || (order === "cluster" && !square(grid))) return layers;
  if (order === "depth") return byDepth(layers);
  if (!orders.has(grid)) orders.set(grid, byCluster(grid.rows.layers, cellsOf(grid, "values", grid.rows.layers, grid.rows.layers), larger));
  return orders.get(grid);
}

function at(grid, what, row, column) {
  const i = grid?.rows.places.get(row.key), j = grid?.columns.places.get(column.key);
  return i === undefined || j === undefined || !grid[what] ? null : grid[what][i * grid.columns.layers.length + j];
}

// ---- colours ----

const tables = new Map();

function colourTable(name) {
  if (!tables.has(name)) {
    const hex = DATA.colours[name.replace("_r", "")];
    const table = Array.from({ length: 256 }, (_, i) => [0, 2, 4].map((k) => parseInt(hex.slice(6 * i + k, 6 * i + k + 2), 16)));
    tables.set(name, name.endsWith("_r") ? table.reverse() : table);
  }
  return tables.get(name);
}

// The place of a value in its scale's table of colours.
const shadeOf = (scale, value) => Math.min(255, Math.floor(256 * shareOf(scale, value)));

const shareOf = (scale, value) => Math.min(1, Math.max(0, (value - scale.low) / Math.max(scale.high - scale.low, LEAST)));

function shared(scales) {
  return { low: Math.min(...scales.map((s) => s.low)), high: Math.max(...scales.map((s) => s.high)), colours: scales[0].colours };
}

// ---- a heatmap: a canvas for the cells and names, and marks above it ----

const tip = el("div", { class: "tip hidden", "aria-hidden": "true" });

function heatmap(panel, view) {
  const { rows, columns, values, scale, grouped } = panel;
  const main = el("canvas", { tabindex: "0", role: "application", "aria-roledescription": "heatmap", "aria-label": `${panel.title}: ${view.label}. Arrow keys move between layers, Page Up, Page Down, Home and End between models, Enter draws the row.` });
  const [rowFrame, cellFrame, rowTick, columnTick] = ["frame", "frame", "tick", "tick"].map((kind) => el("div", { class: `${kind} hidden` }));
  const map = el("div", { class: "map" }, main, rowTick, columnTick, rowFrame, cellFrame);
  const files = downloads(`${panel.title}, ${view.label}`, {
    ...pictures(vector),
    csv: ["text/csv", () => csv(["layer", ...columns.map(said)], rows.map((row, i) => [said(row), ...values.subarray(i * columns.length, (i + 1) * columns.length)]))],
  });
  const box = el("figure", { class: "panel" }, el("h3", {}, panel.title), map, colourBar(panel), files);
  const cells = document.createElement("canvas");
  cells.width = columns.length;
  cells.height = rows.length;
  const pixels = cells.getContext("2d").createImageData(columns.length, rows.length);
  const painted = new Uint32Array(pixels.data.buffer);
  const shades = colourTable(scale.colours).map(([red, green, blue]) => (255 << 24) | (blue << 16) | (green << 8) | red);
  for (let i = 0; i < values.length; i += 1) if (!Number.isNaN(values[i])) painted[i] = shades[shadeOf(scale, values[i])]; // others stay transparent
  cells.getContext("2d").putImageData(pixels, 0, 0);
  const rowPlaces = new Map(rows.map((row, i) => [row.key, i]));
  const columnPlaces = new Map(columns.map((column, j) => [column.key, j]));
  const starts = new Map([rows, columns].map((layers) => [layers, grouped ? startsOf(layers) : [0]]));
  let left, top, side, ratio, width, height, texts, rules; // texts, rules: names, and lines between models, as drawn

  function draw() {
    ratio = Math.max(1, devicePixelRatio || 1);
    const room = Math.max(180, box.clientWidth || 600);
    const pen = main.getContext("2d");
    pen.font = `11px ${FONT}`;
    const most = room < 420 ? 10 : 16;
    const breadth = (layers) => Math.ceil(Math.max(...labels(layers, most).map(({ text }) => pen.measureText(text).width)));
    const around = (layers) => breadth(layers) + (modelsAlone(layers) || !grouped ? 12 : 26);
    const largest = Math.min(columns.length > 12 ? 36 : 46, Math.max(14, 680 / rows.length));
    side = Math.min(largest, room / columns.length);
    for (let pass = 0; pass < 2; pass += 1) { // what is written depends on the side, and the side on its breadth
      left = around(rows);
      side = Math.min(largest, (room - left - 4) / columns.length);
    }
    if (side * ratio >= 6) side = Math.floor(side * ratio) / ratio; // cells of one size
    const below = around(columns);
    top = 7;
    width = left + side * columns.length + 4;
    height = top + side * rows.length + below;
    main.width = Math.round(width * ratio);
    main.height = Math.round(height * ratio);
    main.style.width = `${width}px`;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(cells, left, top, side * columns.length, side * rows.length);
    pen.strokeStyle = css("--rule");
    pen.strokeRect(left - 0.5, top - 0.5, side * columns.length + 1, side * rows.length + 1);
    [texts, rules] = [[], []];
    axisNames(pen, rows, false, most);
    axisNames(pen, columns, true, most);
    pen.fillStyle = "#ffffff";
    for (const rule of rules) pen.fillRect(...rule);
    pen.fillStyle = css("--ink");
    pen.textBaseline = "middle";
    for (const { text, x, y, size, anchor, turned } of texts) {
      pen.save();
      pen.font = `${size}px ${FONT}`;
      pen.textAlign = anchor === "middle" ? "center" : "right";
      pen.translate(x, y);
      if (turned) pen.rotate(-Math.PI / 2);
      pen.fillText(text, 0, 0);
      pen.restore();
    }
    mark();
  }

  // The map with its names and the colours below it.
  function vector() {
    const enlarged = el("canvas", { width: columns.length * Math.ceil(1000 / columns.length), height: rows.length * Math.ceil(1000 / columns.length) });
    const pen = enlarged.getContext("2d"), [wide, high] = [side * columns.length, side * rows.length];
    pen.imageSmoothingEnabled = false;
    pen.drawImage(cells, 0, 0, enlarged.width, enlarged.height);
    const bar = colourTable(scale.colours).filter((_, i) => i % 4 === 0).map((colour, i) => shape("rect", { x: left + 2 * i, y: height + 8, width: 2.5, height: 10, fill: `rgb(${colour.join(",")})` }));
    const label = `${brief(scale.low)} to ${brief(scale.high)}: ${[barLabel(panel), ...unknown(panel.level)].join("; ")}`, words = levelWords(panel.level);
    const marks = levelsOf(panel.level).map(([, low, middle, high]) => {
      const [from, at, to] = [low, middle, high].map((value) => left + 128 * shareOf(scale, value));
      return shape("path", { d: `M${rounded(from)} ${rounded(height + 20)}H${rounded(to)}M${rounded(at)} ${rounded(height + 19)}l4 7h-8z`, stroke: css("--line-2"), fill: css("--line-2") });
    });
    const longest = Math.max(...[label, ...words].map((text) => text.length));
    return drawing(Math.max(width, left + 138 + 6.5 * longest), height + 26 + 14 * words.length, [
      shape("image", { x: left, y: top, width: wide, height: high, href: enlarged.toDataURL(), preserveAspectRatio: "none", "image-rendering": "pixelated" }),
      shape("rect", { x: left - 0.5, y: top - 0.5, width: wide + 1, height: high + 1, fill: "none", stroke: css("--rule") }),
      ...rules.map(([x, y, w, h]) => shape("rect", { x, y, width: w, height: h, fill: "#ffffff" })),
      ...texts.map(({ text, x, y, size, anchor, turned }) => written(text, x, y, size, anchor, turned)),
      ...bar, ...marks, written(label, left + 134, height + 13, 11, "start"), ...words.map((text, i) => written(text, left + 134, height + 28 + 14 * i, 11, "start")),
    ]);
  }

  // What is written: layers as far as there is room, models alone where it is too narrow for layers.
  const apart = () => Math.max(1, Math.ceil(13 / side));
  const modelsAlone = (layers) => apart() > 2 && starts.get(layers).length > 1;

  function labels(layers, most) {
    const begins = starts.get(layers), step = apart();
    if (modelsAlone(layers)) {
      const made = [];
      begins.forEach((start, k) => {
        const at = (start + (begins[k + 1] ?? layers.length)) / 2;
        if (!made.length || (at - made.at(-1).at) * side >= 12) made.push({ at, text: middle(layers[start].model, 16) });
      });
      return made;
    }
    const alone = Boolean(inBlocks(layers));
    const name = ({ model, name }) => (grouped ? "" : `${model} `) + (alone ? name.replace(/^\w+@/, "") : name);
    const shown = distinct(layers.map(name), grouped ? most : 20);
    return begins.flatMap((start, k) => {
      const end = begins[k + 1] ?? layers.length;
      const places = Array.from({ length: Math.ceil((end - start) / step) }, (_, i) => start + i * step);
      return places.filter((i) => i === start || end - i >= step).map((i) => ({ at: i + 0.5, text: shown[i] }));
    });
  }

  function axisNames(pen, layers, across, most) {
    const begins = starts.get(layers);
    const write = (text, at, size, away, along) => {
      const [x, y] = across ? [left + at * side, top + side * rows.length + away] : [left - away, top + at * side];
      texts.push({ text, x, y, size, anchor: along ? "middle" : "end", turned: across !== along });
    };
    for (const { at, text } of labels(layers, most)) write(text, at, 11, 5, false);
    if (grouped) begins.forEach((start, k) => {
      const end = begins[k + 1] ?? layers.length, name = layers[start].model;
      if (start) rules.push(across ? [left + start * side - 0.75, top, 1.5, side * rows.length] : [left, top + start * side - 0.75, side * columns.length, 1.5]);
      if (modelsAlone(layers)) return;
      pen.font = `12px ${FONT}`;
      let fits = Math.min(name.length, 200);
      while (fits > 3 && pen.measureText(middle(name, fits)).width > (end - start) * side - 8) fits -= 1;
      const outside = across ? main.height / ratio - top - side * rows.length - 9 : left - 9;
      write(middle(name, fits), (start + end) / 2, 12, outside, true);
    });
  }

  // The picked row of its pair of models, and the cell under the pointer or the cursor.
  function mark() {
    const picked = view.picked ? rowPlaces.get(view.picked.row.key) : undefined;
    const begins = view.picked ? columns.findIndex((column) => column.model === view.picked.column.model) : -1;
    const first = grouped ? begins : 0;
    const many = begins < 0 ? 0 : grouped ? columns.filter((column) => column.model === view.picked.column.model).length : columns.length;
    put(rowFrame, picked !== undefined && many, left + first * side, top + picked * side, many * side, side);
    const here = place();
    put(cellFrame, here, left + here?.j * side, top + here?.i * side, side, side);
    put(rowTick, here, left - 4, top + here?.i * side, 4, side);
    put(columnTick, here, left + here?.j * side, top + side * rows.length, side, 4);
  }

  // In shares of the map, which may be shown narrower than it was drawn.
  function put(part, there, x, y, w, h) {
    part.classList.toggle("hidden", !there);
    if (!there) return;
    const height = main.height / ratio;
    for (const [name, share] of [["left", x / width], ["top", y / height], ["width", w / width], ["height", h / height]]) part.style[name] = `${100 * share}%`;
  }

  function place() {
    const i = view.hover && rowPlaces.get(view.hover.row.key), j = view.hover && columnPlaces.get(view.hover.column.key);
    return i === null || i === undefined || j === undefined ? null : { i, j };
  }

  function under(event) {
    const seen = main.getBoundingClientRect();
    const zoom = width / seen.width; // 1, but where the page is narrower than it was drawn for
    const i = Math.floor(((event.clientY - seen.top) * zoom - top) / side);
    const j = Math.floor(((event.clientX - seen.left) * zoom - left) / side);
    return i >= 0 && j >= 0 && i < rows.length && j < columns.length ? { row: rows[i], column: columns[j] } : null;
  }

  function steer(event) {
    const here = place() ?? { i: 0, j: 0 };
    const jump = (layers, from, way) => {
      let to = from;
      while (layers[to + way] && layers[to + way].model === layers[from].model) to += way;
      return layers[to + way] ? to + way : to;
    };
    const moves = {
      ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0],
      PageUp: [jump(rows, here.i, -1) - here.i, 0], PageDown: [jump(rows, here.i, 1) - here.i, 0],
      Home: [0, jump(columns, here.j, -1) - here.j], End: [0, jump(columns, here.j, 1) - here.j],
    };
    if (Object.hasOwn(moves, event.key)) {
      const limit = (n, most) => Math.min(most - 1, Math.max(0, n));
      const [down, right] = moves[event.key];
      view.point({ row: rows[limit(here.i + down, rows.length)], column: columns[limit(here.j + right, columns.length)] });
      beside();
    } else if (event.key === "Enter" || event.key === " ") view.pick(view.hover);
    else if (event.key === "Escape") view.point(null);
    else return;
    event.preventDefault();
  }

  function beside() {
    const here = place(), seen = main.getBoundingClientRect();
    if (here) view.showTip(seen.left + left + (here.j + 1) * side, seen.top + top + (here.i + 1) * side);
  }

  main.addEventListener("pointermove", (event) => {
    view.point(under(event));
    view.showTip(event.clientX, event.clientY);
  });
  main.addEventListener("pointerleave", () => view.point(null));
  main.addEventListener("click", (event) => {
    view.point(under(event));
    if (view.hover) view.pick(view.hover);
    view.showTip(event.clientX, event.clientY);
  });
  main.addEventListener("keydown", steer);
  main.addEventListener("focus", () => {
    if (!main.matches(":focus-visible")) return;
    if (!place()) view.point({ row: rows[0], column: columns[0] });
    beside();
  });
  main.addEventListener("blur", () => view.point(null));
  return { box, draw, mark };
}

function colourBar(panel) {
  const canvas = el("canvas", { width: 256, height: 1, "aria-hidden": "true" });
  const pen = canvas.getContext("2d");
  colourTable(panel.scale.colours).forEach((colour, i) => {
    pen.fillStyle = `rgb(${colour.join(",")})`;
    pen.fillRect(i, 0, 1, 1);
  });
  const marks = levelsOf(panel.level).map(([, low, middle, high]) => {
    const [range, place] = [el("span", { class: "range" }), el("span", { class: "median" })];
    const [from, at, to] = [low, middle, high].map((value) => 100 * shareOf(panel.scale, value));
    [range.style.left, range.style.width, place.style.left] = [`${from}%`, `${to - from}%`, `${at}%`];
    return [range, place];
  });
  return el("div", { class: "bar" }, brief(panel.scale.low), el("span", { class: "scale" }, canvas, ...marks.flat()), brief(panel.scale.high),
    el("span", { class: "quiet" }, [barLabel(panel), ...unknown(panel.level)].join("; ")), ...levelWords(panel.level).map((text) => el("span", { class: "level" }, `\u25b4 ${text}`)));
}

// In words: what chance gives.
const levelWords = (level) => levelsOf(level).map(([name, low, middle, high]) => `${name}: ${brief(middle)}${low < high ? ` (${brief(low)} to ${brief(high)})` : ""}`);

const barLabel = (panel) => [panel.note, inBlocks([...panel.rows, ...panel.columns])].filter(Boolean).join("; blocks of ");

// ---- lines ----

const DASHES = [[], [7, 4], [2, 3], [10, 3, 2, 3]];
const DOTS = [2, 4];
const DECADES = 100; // steps are on a logarithmic axis where the last is this many times the first

// A stretch of a line as it is drawn, for a legend.
const swatch = (colour, dash) => shape("svg", { viewBox: "0 0 26 10", "aria-hidden": "true" }, shape("path", { class: `line-${colour + 1}`, d: "M0 5h26", "stroke-dasharray": dash.join(" ") }));

// Small differences look small: from 0 where nothing is below it, and to 1 where the values come near.
const fromZero = (_, low, high) => (low === null || low < 0 ? uPlot.rangeNum(low ?? 0, high ?? 1, 0.1, true) : [0, high > 0.5 && high <= 1 ? 1.02 : high > 0 ? 1.05 * high : 1]);

const axisStyle = () => ({ stroke: css("--ink"), font: `12px ${FONT}`, labelFont: `13px ${FONT}`, grid: { stroke: css("--rule"), width: 1 }, ticks: { stroke: css("--rule"), width: 1 } });

// A text in lines of at most so many letters, where its words allow.
const folded = (text, most) => text.split(" ").reduce((lines, word) => (`${lines.at(-1)} ${word}`.length > most ? [...lines, word] : [...lines.slice(0, -1), `${lines.at(-1)} ${word}`.trim()]), [""]);

// What uPlot drew, with what its lines are below it, as SVG.
function vectorOf(plot, caption) {
  const call = (of, ...more) => (typeof of === "function" ? of(plot, ...more) : of);
  const [left, top, wide, high] = ["left", "top", "width", "height"].map((side) => plot.bbox[side] / uPlot.pxRatio);
  const x = (value) => rounded(left + plot.valToPos(value, "x")), y = (value) => rounded(top + plot.valToPos(value, "y"));
  const place = (value, i) => (value === null || value === undefined ? null : [x(plot.data[0][i]), y(value)]);
  const path = (places) => places.map((at, i) => (at ? `${places[i - 1] ? "L" : "M"}${at.join(" ")}` : "")).join("");
  const [across, up] = plot.axes;
  const rules = [
    ...across._splits.map((split) => shape("path", { d: `M${x(split)} ${top}v${high}` })), ...up._splits.map((split) => shape("path", { d: `M${left} ${y(split)}h${wide}` })),
  ];
  const names = [
    ...across._splits.map((split, i) => (across._rotate ? written(across._values[i] ?? "", x(split), top + high + 8, 12, "end", true) : written(across._values[i] ?? "", x(split), top + high + 14, 12, "middle"))),
    ...up._splits.map((split, i) => written(up._values[i] ?? "", left - 8, y(split), 12, "end")),
    written(across.label, left + wide / 2, plot.height - 12, 13, "middle"), written(up.label, 12, top + high / 2, 13, "middle", true),
  ];
  const bands = plot.bands.map(({ series: [high, low], fill }) => {
    const [above, below] = [high, low].map((k) => plot.data[k].map(place));
    const stretches = above.reduce((parts, at, i) => (at && below[i] ? [...parts.slice(0, -1), [...parts.at(-1), i]] : [...parts, []]), [[]]).filter((part) => part.length);
    const d = stretches.map((part) => `${path(part.map((i) => above[i]))}${path(part.toReversed().map((i) => below[i])).replace("M", "L")}Z`).join("");
    return shape("path", { d, fill: call(fill, high) });
  });
  const lines = plot.series.slice(1).flatMap((series, k) => {
    const places = plot.data[k + 1].map(place), stroke = call(series.stroke, k + 1);
    if (stroke === "transparent") return [];
    const dots = call(series.points.show, k + 1) ? places.filter(Boolean).map(([cx, cy]) => shape("circle", { cx, cy, r: series.points.size / 2, fill: stroke })) : [];
    return [shape("path", { d: path(places), fill: "none", stroke, "stroke-width": series.width, "stroke-dasharray": (series.dash ?? []).join(" ") }), ...dots];
  });
  const words = folded(caption.textContent, plot.width / 7).map((line, i) => written(line, 12, plot.height + 8 + 16 * i, 12, "start"));
  return drawing(plot.width, plot.height + 16 * words.length + 4, [shape("g", { stroke: css("--rule") }, ...rules), ...bands, ...lines, ...names, ...words]);
}

// lines: [{label, y, low, high}], a value per name; missing values are null. levels: what chance gives, as in `about`.
function chart(names, lines, xLabel, yLabel, { marked = null, band = "one standard error each way", levels = null } = {}) {
  const host = el("div");
  const below = el("p", { class: "readout quiet" });
  const dashes = (i) => (i + Math.floor(i / 4)) % 4;
  const keys = lines.map((line, i) => el("span", { class: "key" }, ...(lines.length > 1 ? [swatch(i % 4, DASHES[dashes(i)])] : []), line.label, ...(lines.length > 1 ? [el("span", { class: "unseen" }, ` (${["solid", "dashed", "dotted", "dash-dot"][dashes(i)]})`)] : [])));
  const point = names.every((name) => typeof name === "string") && inBlocks(names.map((name) => ({ name })));
  const banded = lines.some((line) => line.low), known = levelsOf(levels);
  const said = [...(banded ? [`band: ${band}`] : []), ...saidOf(levels)].join("; ");
  const caption = el("figcaption", {}, ...keys.flatMap((key, i) => (i ? ["; ", key] : [key])), said && `; ${said}`);
  const bands = lines.flatMap(({ label, low, high }) => (low ? [[`${label}, band from`, low], [`${label}, band to`, high]] : []));
  const constant = (value) => names.map(() => value);
  const columns = [...lines.map(({ label, y }) => [label, y]), ...bands, ...known.map(([name, , middle]) => [name, constant(middle)])];
  const files = downloads(`${yLabel} by ${xLabel}`, {
    ...pictures(() => vectorOf(plot, caption)),
    csv: ["text/csv", () => csv([xLabel, ...columns.map(([name]) => name)], names.map((name, i) => [name, ...columns.map(([, values]) => values[i])]))],
  });
  const box = el("figure", { class: "chart", "aria-label": `${yLabel} by ${xLabel}` }, caption, host, below, files);
  let plot = null;

  function draw() {
    plot?.destroy();
    const data = [names.map((_, i) => i)], series = [{}], bands = [];
    lines.forEach((line, i) => {
      const colour = css(`--line-${(i % 4) + 1}`);
      const points = { show: names.length < 60, size: 6, fill: colour };
      series.push({ label: line.label, stroke: colour, width: 2, dash: DASHES[dashes(i)], points });
      data.push(line.y);
      if (line.low) {
        bands.push({ series: [series.length, series.length + 1], fill: `${colour}33` });
        series.push({ stroke: "transparent", points: { show: false } }, { stroke: "transparent", points: { show: false } });
        data.push(line.high, line.low);
      }
    });
    addLevels(known, constant, data, series, bands);
    const width = Math.max(260, Math.min(box.clientWidth || 700, 1000));
    const named = names.some((name) => typeof name === "string");
    const shown = named ? distinct(names.map((name) => (point ? name.replace(/^\w+@/, "") : String(name))), 16) : [];
    const most = Math.max(0, ...shown.map((name) => name.length));
    const axis = axisStyle();
    plot = new uPlot({
      width,
      height: 300 + (named ? 4 * most : 0),
      legend: { show: false },
      cursor: { drag: { x: false, y: false }, y: false },
      scales: { x: { time: false, range: (_, low, high) => (named || low === high ? [low - 0.3, high + 0.3] : [low, high]) }, y: { range: fromZero } },
      series,
      bands,
      axes: [
        { ...axis, label: point ? `${xLabel}, block of ${point}` : xLabel, ...(named ? { space: most > 3 ? 16 : 24, rotate: most > 3 ? -90 : 0, size: most > 3 ? 14 + 7 * most : 32, incrs: [1, 2, 5, 10, 20, 50, 100], values: (_, splits) => splits.map((i) => shown[i] ?? "") } : {}) },
        { ...axis, label: middle(yLabel, LABEL), size: 64, values: ticks },
      ],
      hooks: {
        setCursor: [({ cursor }) => tell(cursor.idx ?? marked)],
        draw: [(u) => {
          if (marked === null) return;
          const x = Math.round(u.valToPos(marked, "x", true));
          u.ctx.save();
          u.ctx.strokeStyle = css("--quiet");
          u.ctx.setLineDash([4, 4]);
          u.ctx.beginPath();
          u.ctx.moveTo(x, u.bbox.top);
          u.ctx.lineTo(x, u.bbox.top + u.bbox.height);
          u.ctx.stroke();
          u.ctx.restore();
        }],
      },
    }, data, host);
    tell(marked);
  }

  function tell(i) {
    below.textContent = i === null || i === undefined ? "" : `${names[i]}: ${lines.map((line) => `${lines.length > 1 ? `${line.label} ` : ""}${short(line.y[i] ?? null)}`).join("; ")}`;
  }

  return { box, draw };
}

// As many digits as tell neighbouring ticks apart.
const ticks = (_, values, axis, space, step) => values.map((value) => value.toLocaleString("en", { maximumFractionDigits: Math.min(12, Math.max(0, 1 - Math.floor(Math.log10(step)))) }));

const axisName = (axis) => (axis.unit ? `${axis.name}, ${axis.unit}` : axis.name);

// What chance gives: [name, low, middle, high] of each level.
const levelsOf = (levels) => Object.entries(levels ?? {}).map(([name, level]) => [name, ...(Array.isArray(level) ? level : [level, level, level])]);

// The level of chance of what is shown of a measure: of two models that of their layers, where it is known.
function levelIn(record, rows, columns) {
  const [of, beside] = [rows, columns].map((layers) => unique(layers.map(({ model }) => model)));
  const is = (first, second) => (m) => m.rows.model === first[0] && m.columns.model === second[0];
  const pair = of.length + beside.length === 2 ? record.matrices.find(is(of, beside)) ?? record.matrices.find(is(beside, of)) : null;
  return pair?.level ?? record.level ?? {};
}

// The levels of several curves as one, with their range; null where none of them is about chance.
function sharedLevels(curves) {
  if (!curves.some(({ about }) => about.levels)) return null;
  const all = curves.flatMap(({ about }) => levelsOf(about.levels));
  return Object.fromEntries(unique(all.map(([name]) => name)).map((name) => {
    const middles = all.filter(([other]) => other === name).map(([, , value]) => value).toSorted((a, b) => a - b);
    return [name, [middles[0], middles[middles.length >> 1], middles.at(-1)]];
  }));
}

const unknown = (levels) => (levels && !Object.keys(levels).length ? ["chance is not known"] : []);

const saidOf = (levels) => [...levelsOf(levels).map(([name, low, , high]) => `dotted: ${name}${low < high ? " (median, and its range)" : ""}`), ...unknown(levels)];

// Dotted lines with their ranges. constant: a value at every place.
function addLevels(levels, constant, data, series, bands) {
  const hidden = { stroke: "transparent", points: { show: false } };
  for (const [, low, middle, high] of levels) {
    series.push({ stroke: css("--quiet"), width: 2, dash: DOTS, points: { show: false } });
    data.push(constant(middle));
    if (low < high) {
      bands.push({ series: [series.length, series.length + 1], fill: `${css("--quiet")}22` });
      series.push(hidden, { ...hidden });
      data.push(constant(high), constant(low));
    }
  }
}

// A curve against numbers (steps, epochs): a thin line per name, their mean and the widest band; dotted, what chance gives.
function stepChart(curve, heading) {
  const host = el("div");
  const below = el("p", { class: "readout quiet" });
  const x = curve.x.name, names = Object.keys(curve.lines), values = Object.values(curve.lines);
  const several = names.length > 1, mean = curve.mean ?? (several ? null : values[0]);
  const band = several ? Object.values(curve.bands).at(-1) : undefined;
  const levels = levelsOf(curve.about.levels), constant = (value) => curve.at.map(() => value);
  const parts = [...(several ? [`thin: ${names[0]} (dark) to ${names.at(-1)} (bright)`] : []), ...(several && mean ? ["thick: their mean"] : []), ...(band ? [`band: ${band.of}`] : []), ...saidOf(curve.about.levels)];
  const caption = el("figcaption", {}, parts.join("; "));
  const logarithmic = curve.at.at(-1) >= DECADES * (curve.at.find((step) => step > 0) ?? 1);
  const columns = [...names.map((name, i) => [name, values[i]]), ...(several && mean ? [["mean", mean]] : []),
    ...(band ? [["band from", band.low], ["band to", band.high]] : []), ...levels.map(([name, , middle]) => [name, constant(middle)])];
  const files = downloads(`${heading} by ${x}`, {
    ...pictures(() => vectorOf(plot, caption)),
    csv: ["text/csv", () => csv([x, ...columns.map(([name]) => name)], curve.at.map((at, i) => [at, ...columns.map(([, column]) => column[i])]))],
  });
  const box = el("figure", { class: "chart", "aria-label": `${heading} by ${x}` }, caption, host, below, files);
  let plot = null;

  function draw() {
    plot?.destroy();
    const data = [curve.at], series = [{}], bands = [], ink = css("--ink");
    const add = (y, more) => {
      data.push(y);
      series.push({ spanGaps: false, points: { show: curve.at.length < 60, size: 4 }, ...more });
    };
    const colours = colourTable("viridis");
    const shade = (i) => `rgb(${colours[70 + Math.round((150 * i) / Math.max(1, names.length - 1))].join(",")})`;
    if (several) values.forEach((y, i) => add(y, { stroke: shade(i), width: 1 }));
    if (mean) add(mean, { stroke: ink, width: 2.5 });
    if (band) {
      bands.push({ series: [series.length, series.length + 1], fill: `${ink}22` });
      for (const side of ["high", "low"]) add(band[side], { stroke: "transparent", points: { show: false } });
    }
    addLevels(levels, constant, data, series, bands);
    const axis = axisStyle();
    plot = new uPlot({
      width: Math.max(260, Math.min(box.clientWidth || 700, 1000)),
      height: 300,
      legend: { show: false },
      cursor: { drag: { x: false, y: false }, y: false },
      // asinh: logarithmic from 1 on, and there is a place for step 0
      scales: { x: { time: false, ...(logarithmic ? { distr: 4, asinh: 1 } : {}), range: (_, low, high) => (low === high ? [low - 1, high + 1] : [low, high]) } },
      series,
      bands,
      axes: [
        logarithmic
          ? { ...axis, label: `${axisName(curve.x)} (logarithmic)`, filter: (_, splits) => splits, splits: () => powers(curve.at), values: (_, splits) => splits.map((step) => step.toLocaleString("en")) }
          : { ...axis, label: axisName(curve.x), values: ticks },
        { ...axis, label: middle(axisName(curve.y), LABEL), size: 64, values: ticks },
      ],
      hooks: { setCursor: [({ cursor }) => tell(cursor.idx)] },
    }, data, host);
    tell(null);
  }

  function tell(i) {
    const each = [...(mean ? [["mean", mean]] : []), ...(several ? names.map((name, k) => [name, values[k]]) : [])];
    below.textContent = i === null || i === undefined ? "" : `${x} ${curve.at[i]}: ${each.map(([name, line]) => `${name} ${short(line[i] ?? null)}`).join("; ")}`;
  }

  return { box, draw };
}

// 0 and the powers of ten among steps, and the ends.
function powers(steps) {
  const [low, high] = [steps[0], steps.at(-1)];
  const tens = Array.from({ length: 12 }, (_, i) => 10 ** i).filter((step) => step > low && 2 * step < high);
  return [low, ...tens, high];
}

// ---- the section of the matrices ----

function matrices() {
  const labels = unique(RUNS.flatMap((run) => run.measures.map((m) => m.label).filter((label) => !Object.hasOwn(run.remedied, label))));
  if (!labels.length) return null;
  const view = { hover: null, picked: null, label: "" };
  const panels = el("div", { class: "panels" });
  const readout = el("p", { class: "readout", role: "status" });
  const note = el("div");
  const row = el("div", { id: "row" });
  const chosen = new Map();
  let maps = [], line = null, shown = [], views = null;

  const select = (name, onchange) => {
    const made = el("select", { name, onchange });
    chosen.set(name, made);
    return made;
  };
  const fill = (name, options) => {
    const made = chosen.get(name), was = made.value;
    made.replaceChildren(...options.map(([value, text]) => el("option", { value }, text)));
    if (options.some(([value]) => value === was)) made.value = was;
  };
  const value = (name) => chosen.get(name).value;
  const labelled = (text, control) => el("label", {}, text, control);
  const controls = el("div", { class: "controls" },
    labelled("Measure", select("measure", () => refresh(true))),
    labelled("Remedy", select("remedy", () => refresh(true))),
    labelled("Show", select("what", () => refresh(false))),
    labelled("Order", select("order", () => refresh(false))),
    labelled("Rows: model", select("rows", () => refresh(false))),
    labelled("Columns: model", select("columns", () => refresh(false))),
    ...(MANY ? [labelled("First run", select("first", () => refresh(true))), labelled("Second run", select("second", () => refresh(true)))] : []));

  const compared = () => (MANY ? ["first", "second"].map((name) => RUNS[Number(value(name))]) : RUNS);

  function refresh(anew) {
    const remedies = unique(compared().flatMap((run) => Object.values(run.remedied).filter(({ base }) => base === value("measure")).map(({ remedy }) => remedy)));
    fill("remedy", [[ALL, "as run"], ...remedies.map((remedy) => [remedy, remedy])]);
    chosen.get("remedy").parentElement.classList.toggle("hidden", !remedies.length);
    const measure = value("measure") + (value("remedy") === ALL ? "" : `, ${value("remedy")}`);
    shown = compared().map((run) => ({ run, grid: gridOf(run, measure), record: run.measures.find((m) => m.label === measure) }));
    const there = shown.filter(({ grid }) => grid);
    fill("what", Object.entries(QUANTITIES).filter(([what]) => there.some(({ grid }) => grid[what])));
    fill("order", Object.entries(ORDERS).filter(([order]) => order !== "cluster" || there.every(({ grid }) => square(grid))));
    for (const side of ["rows", "columns"]) {
      const models = unique(there.flatMap(({ grid }) => grid[side].layers.map((layer) => layer.model)));
      fill(side, [[ALL, "all models"], ...models.map((model, i) => [String(i), model])]);
      chosen.get(side).models = models;
    }
    const what = value("what");
    view.label = `${measure}, ${QUANTITIES[what]}`;
    view.hover = null;
    panels.replaceChildren();
    maps = parts(what).map((panel) => (panel.missing ? { box: el("figure", { class: "panel" }, el("h3", {}, panel.title), el("p", {}, panel.missing)), draw() {}, mark() {} } : heatmap(panel, view)));
    panels.append(...maps.map((map) => map.box));
    for (const map of maps) map.draw();
    const notes = new Map(there.map(({ run, record }) => [reading(record).textContent, [run, record]]));
    note.replaceChildren(...[...notes.values()].flatMap(([run, record]) => [...(notes.size > 1 ? [el("h3", {}, title(run))] : []), reading(record)]));
    if (anew || !view.picked || !inView(view.picked)) view.picked = start();
    line = null;
    drawRow();
    view.point(null);
    tell();
  }

  // The other views follow: of the models that are chosen, or of those that the picked cell is of.
  function tell() {
    const cell = view.picked, first = shown.find(({ grid }) => grid);
    if (!views || !first) return;
    const [a, b] = cell && cell.row.model !== cell.column.model ? [cell.row.model, cell.column.model] : views.first;
    views.show(first, a, b, cell && cell.row.model === a && cell.column.model === b ? cell : null);
  }

  const chosenModel = (side) => (value(side) === ALL ? null : chosen.get(side).models[Number(value(side))]);
  const kept = ({ grid, record }, side) => inModel(ordered(grid, side, value("order"), record.card.larger_is_closer), side);
  const inModel = (layers, side) => layers.filter((layer) => chosenModel(side) === null || layer.model === chosenModel(side));
  const inView = (cell) => maps.length && ["rows", "columns"].every((side) => chosenModel(side) === null || cell[side === "rows" ? "row" : "column"].model === chosenModel(side));

  // The closest layers of the two models that are shown, of more of the first two; of one the first cell with a value.
  function start() {
    for (const entry of shown) {
      if (!entry.grid) continue;
      const { grid } = entry, rows = kept(entry, "rows"), columns = kept(entry, "columns");
      const [a, b] = [rows, columns].map((layers) => unique(layers.map(({ model }) => model)));
      const two = a.length === 1 && b.length === 1 ? [a[0], b[0]] : views?.first ?? [a[0], b[0]];
      if (two[0] !== two[1] && a.includes(two[0]) && b.includes(two[1])) {
        const pair = pairOf(entry, ...two), { forth, value, sign } = pair;
        const best = forth.reduce((x, j, i) => (j >= 0 && (x < 0 || sign * value(i, j) > sign * value(x, forth[x])) ? i : x), -1);
        if (best >= 0) return { row: pair.rows[best], column: pair.columns[forth[best]] };
        continue;
      }
      for (const first of rows) for (const column of columns) if (!Number.isNaN(at(grid, "values", first, column))) return { row: first, column };
    }
    return null;
  }

  // What is shown: each run, and the difference on the layers that both have.
  function parts(what) {
    const better = (record) => (what === "values" ? `${record.card.larger_is_closer ? "larger" : "smaller"} is closer` : "");
    const like = ({ remedied }, { label }) => label === value("measure") || remedied[label]?.base === value("measure"); // one scale under all remedies
    const scales = compared().flatMap((run) => run.measures.filter((m) => like(run, m)).map((m) => m.scales[what])).filter(Boolean);
    const grouped = value("order") === "model";
    const made = shown.map((entry) => {
      const { run, grid, record } = entry;
      if (!grid) return { title: title(run), missing: "This run has no such measure." };
      if (!grid[what]) return { title: title(run), missing: `This run has no ${QUANTITIES[what]}.` };
      const rows = kept(entry, "rows"), columns = kept(entry, "columns");
      if (!rows.length || !columns.length) return { title: title(run), missing: "This run has no such model." };
      return { title: title(run), rows, columns, grouped, values: cellsOf(grid, what, rows, columns), scale: shared(scales), level: what === "values" ? levelIn(record, rows, columns) : null, note: `${[record.card.label, value("remedy"), what === "values" ? "" : QUANTITIES[what]].filter(Boolean).join(", ")} (${[better(record), "bright is " + (what === "values" ? "close" : "large")].filter(Boolean).join(", ")})` };
    });
    if (!MANY || shown.some(({ grid }) => !grid || !grid[what])) return made;
    const [first, other] = shown;
    const name = `${other.run.letter} minus ${first.run.letter}`;
    const common = (side) => ordered(first.grid, side, value("order"), first.record.card.larger_is_closer).filter(({ key }) => other.grid[side].places.has(key));
    const difference = (rows, columns) => {
      const cells = cellsOf(other.grid, what, rows, columns), subtracted = cellsOf(first.grid, what, rows, columns);
      return cells.map((cell, i) => cell - subtracted[i]);
    };
    const most = difference(common("rows"), common("columns")).reduce((size, cell) => Math.max(size, Math.abs(cell) || 0), LEAST); // NaN counts as 0
    const rows = inModel(common("rows"), "rows"), columns = inModel(common("columns"), "columns");
    if (!rows.length || !columns.length) return [...made, { title: name, missing: "The runs have no such layers in common." }];
    return [...made, { title: name, rows, columns, grouped, values: difference(rows, columns), scale: { low: -most, high: most, colours: "RdBu_r" }, note: "difference: red where it is above 0, blue below" }];
  }

  function cellLines({ row, column }, form) {
    const lines = [`${said(row)}  \u00d7  ${said(column)}`];
    const values = shown.map(({ run, grid }) => {
      const number = (what) => at(grid, what, row, column);
      const error = form === full ? null : number("se"); // full digits have it beside them
      const beside = Object.entries(QUANTITIES).filter(([what]) => what !== "values" && !(error && what === "se") && number(what) !== null && !Number.isNaN(number(what)));
      lines.push([`${MANY ? `${run.letter}: ` : ""}${error ? measured(number("values"), error) : form(number("values"))}`, ...beside.map(([what, name]) => `${name} ${form(number(what))}`)].join(", "));
      return number("values");
    });
    if (MANY && values.every((v) => v !== null && !Number.isNaN(v))) lines.push(`${shown[1].run.letter} minus ${shown[0].run.letter}: ${form(values[1] - values[0])}`);
    return lines.join("\n");
  }

  view.point = (cell) => {
    view.hover = cell;
    for (const map of maps) map.mark();
    readout.textContent = cell ? cellLines(cell, full) : "Point at a cell, or move with the arrow keys, to read it; a click or Enter draws its row.";
    if (!cell) tip.classList.add("hidden");
  };

  view.showTip = (x, y) => {
    if (!view.hover) return;
    tip.textContent = cellLines(view.hover, brief);
    tip.classList.remove("hidden");
    const { width, height } = tip.getBoundingClientRect();
    const clear = (place, size, most) => (place + 14 + size < most ? place + 14 : Math.max(2, place - 14 - size));
    tip.style.left = `${Math.min(clear(x, width, innerWidth), Math.max(2, innerWidth - width - 2))}px`;
    tip.style.top = `${clear(y, height, innerHeight)}px`;
  };

  view.pick = (cell) => {
    if (!cell) return;
    view.picked = cell;
    for (const map of maps) map.mark();
    drawRow();
    tell();
  };

  // What another view chooses.
  const follow = {
    pick: (cell) => view.pick(cell),
    measure: (label) => {
      chosen.get("measure").value = label;
      refresh(false);
    },
    pair: (a, b) => {
      for (const [side, model] of [["rows", a], ["columns", b]]) chosen.get(side).value = String(chosen.get(side).models.indexOf(model));
      refresh(true);
    },
  };

  function drawRow() {
    row.replaceChildren();
    line = null;
    if (!view.picked) return;
    const { row: layerOfRow, column } = view.picked;
    const has = shown.filter(({ grid }) => grid && grid.rows.places.has(layerOfRow.key) && grid.columns.layers.some((c) => c.model === column.model));
    const names = unique(has.flatMap(({ grid }) => grid.columns.layers.filter((c) => c.model === column.model).map((c) => c.name)));
    const number = (grid, what, name) => {
      const v = at(grid, what, layerOfRow, layer(column.model, name));
      return v === null || Number.isNaN(v) ? null : v;
    };
    const lines = has.map(({ run, grid }) => {
      const y = names.map((name) => number(grid, "values", name));
      const se = grid.se ? names.map((name) => number(grid, "se", name)) : null;
      const band = (way) => se && y.map((v, i) => (v === null || se[i] === null ? null : v + way * se[i]));
      return { label: title(run), y, low: band(-1), high: band(1) };
    });
    const marked = names.indexOf(column.name);
    line = chart(names, lines, `layer of ${column.model}`, shown.find(({ record }) => record).record.label, { marked: marked < 0 ? null : marked, levels: MANY ? null : levelIn(shown[0].record, [layerOfRow], [column]) });
    const columns = ["layer"], rows = names.map((name) => [name]);
    for (const { run, grid } of has) {
      for (const [what, quantity] of Object.entries(QUANTITIES)) {
        if (!grid[what]) continue;
        columns.push(MANY ? `${run.letter}: ${quantity}` : quantity);
        names.forEach((name, i) => rows[i].push(number(grid, what, name)));
      }
    }
    if (has.length === 2) {
      columns.push(`${has[1].run.letter} minus ${has[0].run.letter}`);
      const [first, second] = has;
      names.forEach((name, i) => {
        const [a, b] = [number(first.grid, "values", name), number(second.grid, "values", name)];
        rows[i].push(a === null || b === null ? null : b - a);
      });
    }
    row.append(el("h3", {}, `${said(layerOfRow)} against the layers of ${column.model}`), line.box,
      el("details", {}, el("summary", {}, "The row's numbers"), table(`${said(layerOfRow)} against the layers of ${column.model}`, columns, rows, { tall: true, round: true })));
    line.draw();
  }

  redraws.push(() => {
    for (const map of maps) map.draw();
    line?.draw();
    views?.draw();
  });
  views = MANY || Object.keys(RUNS[0].so_far).length ? null : linked(RUNS[0], follow);
  fill("measure", labels.map((label) => [label, label]));
  const common = labels.find((label) => RUNS.slice(0, 2).every((run) => run.measures.some((m) => m.label === label)));
  if (common !== undefined) chosen.get("measure").value = common;
  if (MANY) {
    for (const name of ["first", "second"]) fill(name, RUNS.map((run, i) => [String(i), title(run)]));
    chosen.get("second").value = "1";
  }
  return { views, box: section("matrices", views ? "All pairs of layers" : "Matrices", controls, note, el("div", { class: MANY ? null : "beside" }, el("div", { class: "maps" }, panels, readout), row)), start: () => {
    refresh(true);
    if (views?.alone) follow.pair(...views.first);
    prefetch(RUNS.flatMap((run) => run.measures.flatMap((m) => Object.keys(m.scales).map((what) => [run, m.label, what]))));
  } };
}

const averaged = ({ block }) => `Means over blocks of ${block} by ${block} layers: the page would be too large with every cell, which arrays/ of the run's folder has.`;

// How to read a measure, from its card.
function reading(record) {
  const { card, estimate, null: chance } = record;
  const drawn = chance?.permutations ? `${chance.permutations} random pairings${chance.share < 1 ? ` of ${chance.segments} segments, one per document, with ${short(100 * chance.share)} % of the rows` : ""}` : "closed form";
  const bound = (value, other) => (value === null ? other : short(value));
  const batches = `${estimate.batches} ${estimate.batches === 1 ? "batch" : "batches"}`;
  const estimates = { full: "One sample", per_batch: `Mean over ${batches}`, ratio_of_sums: `HSIC summed over ${batches}`, moments: "Second moments of all rows", sampled: "Sampled rows among all" };
  const settings = Object.entries(record.settings ?? {}).map(([name, value]) => `${name} = ${JSON.stringify(value)}`).join(", ");
  const facts = [
    record.block > 1 ? averaged(record) : "",
    `${card.label}: ${card.larger_is_closer ? "larger" : "smaller"} is closer; range: ${bound(card.bounds[0], "no lower bound")} to ${bound(card.bounds[1], "no upper bound")}; ${card.symmetric ? "symmetric" : "not symmetric: the row is explained by the column"}.`,
    `${estimates[estimate.kind] ?? estimate.kind}, ${estimate.rows.toLocaleString("en")} of ${estimate.rows_available.toLocaleString("en")} ${estimate.unit ?? "rows"}${estimate.pairs === "other_documents" ? ", pairs of rows of different documents" : ""}${settings ? `; ${settings}` : ""}.`,
    record.floor ? `The ${record.floor.unit} alone: ${short(record.floor.value)}${record.floor.pairs === undefined ? "" : ` (per pair with the one before: ${short(record.floor.pairs)})`}, ${record.floor.of}.` : "",
    chance ? `p values: ${drawn}; not corrected for the number of cells.` : "",
    ...(chance?.not_valid ?? []).map((fault) => `p values are not valid: ${fault}.`),
    card.note,
    (card.invariant_to ?? []).length ? `Unchanged by: ${card.invariant_to.join(", ").replaceAll("_", " ")}.` : "",
    card.source ? `Source: ${card.source}.` : "",
  ];
  const [first, second, ...rest] = facts.filter(Boolean).map((fact) => el("p", {}, fact));
  return el("div", { class: "quiet" }, first, second, el("details", {}, el("summary", {}, "How to read it"), ...rest));
}

// ---- the other sections ----

function summary() {
  const manifests = RUNS.map((run) => run.manifest);
  const models = (m) => Object.keys(m.models ?? {}).join(", ") || null;
  const facts = [
    ["run", RUNS.map((run) => run.folder)],
    ["status", manifests.map((m) => m.status)],
    ["error", manifests.map((m) => m.error)],
    ["study", manifests.map((m) => m.study)],
    ["started", manifests.map((m) => m.started)],
    ["took", manifests.map((m) => (m.seconds === undefined ? null : lasted(m.seconds)))],
    ["seed", manifests.map((m) => m.seed)],
    ["device", manifests.map((m) => m.device ?? null)],
    ["models", manifests.map(models)],
    ["rows", manifests.map((m) => (m.rows !== null && typeof m.rows === "object" ? Object.entries(m.rows).map(([what, n]) => `${n.toLocaleString("en")} of ${what}`).join(", ") : (m.rows?.toLocaleString("en") ?? null)))],
    ["remedies", manifests.map((m) => (m.remedies ? Object.entries(m.remedies).map(([what, value]) => `${what.replaceAll("_", " ")}: ${typeof value === "number" ? short(value) : value}`).join(", ") : null))],
    ["measures", RUNS.map((run) => run.measures.map((m) => m.label).join(", ") || null)],
    ["claims", RUNS.map((run) => unique(run.claims.map((c) => c.verdict)).map((verdict) => `${run.claims.filter((c) => c.verdict === verdict).length} ${verdict}`).join(", ") || null)],
    ["warnings", manifests.map((m) => m.warnings.length)],
  ];
  const rows = facts.filter(([, values]) => values.some((v) => v !== null)).map(([name, values]) => [name, ...values.map((v) => (v === null ? null : String(v)))]);
  return foldedSection("summary", "Summary", table("How it ended", ["fact", ...RUNS.map(title)], rows));
}

// What a run of several says of its models by the first measure, of few pairs.
function firstSaid(run) {
  const known = new Set(), pair = ([a, b]) => JSON.stringify([a, b].toSorted());
  return run.said.filter((each) => each[2] === run.measures[0]?.label && !known.has(pair(each)) && known.add(pair(each))).slice(0, PAIRS).map(([, , , texts]) => texts[0]);
}

// The answer of the run: its question, what it says in a sentence with four cards, how it ended, and its claims. views:
// of a comparison, whose sentence follows what is chosen.
function answer(views) {
  const parts = RUNS.flatMap((run) => {
    const m = run.manifest;
    const models = Object.values(m.facts ?? {}), checkpoints = models.reduce((count, { steps }) => count + steps.length, 0);
    const facts = [m.status, counted(models.length || Object.keys(m.models ?? {}).length, "model"), checkpoints ? counted(checkpoints, "checkpoint") : null, typeof m.rows === "number" ? counted(m.rows, "row") : null, m.seconds === undefined ? null : lasted(m.seconds)];
    const verdicts = run.claims.map((c) => el("li", {},
      el("span", { class: `verdict ${c.verdict}` }, `${VERDICTS[c.verdict] ?? ""}${c.verdict}`), `: ${c.says} `,
      el("span", { class: "quiet" }, `(${c.source}; ${c.measure}${c.value === null ? `: ${c.why}` : `: ${measured(c.value, c.se)}, threshold ${brief(c.threshold)}${c.decided === null ? "" : `, p = ${Number(c.decided.toPrecision(2))}`}`}${c.basis ? `, ${c.basis}` : ""})`)));
    // what a study found, or two models side by side, comes before what the similarity of their layers says
    const side = run.answers.map(([who, what]) => `${who}: ${what}`), own = m.study !== "similarity";
    const before = own ? [...side, ...run.leads] : views?.alone ? side : [], after = own ? [] : views?.alone ? run.leads : [...run.leads, ...side];
    const lines = (texts, lead) => texts.map((text, i) => el("p", { class: lead && !i ? "lead" : null }, text));
    const ended = el("p", { class: views ? "quiet" : null }, facts.filter(Boolean).join(", "), m.error ? `: ${m.error}` : "");
    return [
      ...(MANY ? [el("h3", {}, title(run)), ...lines(firstSaid(run))] : []),
      ...(RUNS[run.first] !== run ? [el("p", {}, `All values are those of ${RUNS[run.first].letter}, to the bit: ${run.own || "what differs between them"} changes none.`)] : []),
      ...(run.question ? [el("p", { class: "quiet" }, run.question)] : []),
      ...lines(before, true), ...(views ? views.head : []), ...lines(after, !views),
      ended,
      ...Object.entries(run.so_far).map(([label, state]) => el("p", {}, `${label} so far: ${state}. The run is still computing.`)),
      ...(verdicts.length ? [el("ul", { class: "plain" }, ...verdicts)] : []),
    ];
  });
  const made = section("results", "Results", ...parts);
  if (views) made.firstChild.classList.add("unseen"); // the sentence is the heading
  return made;
}

// The closest layers of every two models under every measure.
function closest() {
  const parts = [];
  const rows = RUNS.flatMap((run) => run.measures.flatMap((measure) => measure.closest.map(([a, b, i, j, n]) => ofRun(run, [measure.label, a, i, b, j, n.values, n.tested, n.chance, n.calibrated, n.p_family ?? n.p]))));
  const known = RUNS.some((run) => run.measures.some((m) => m.null) || Object.keys(run.so_far).length);
  const levels = RUNS.flatMap((run) => run.measures.filter((m) => m.level && !m.null).flatMap((m) => levelWords(m.level).map((text) => `${MANY ? `${run.letter}: ` : ""}${m.label} ${text}`)));
  if (rows.length) parts.push(table("The closest layers of two models", ...withoutEmpty(runColumn(["measure", "model", "layer", "other model", "other layer", "value", QUANTITIES.tested, "chance", "calibrated", "p, corrected"]), rows), { tall: true, round: true }));
  if (levels.length) parts.push(el("p", { class: "quiet" }, `For reference: ${levels.join("; ")}.`));
  if (rows.length && !known) parts.push(el("p", { class: "quiet" }, `${levels.length ? "Nothing" : "Chance is not known: nothing"} was tested. significance=permutation adds p values and calibrated scores.`));
  return parts;
}

// The numbers of a figure as CSV, where its name says which they are.
function numbersOf(run, { curves, measure, table }) {
  const file = (...parts) => ({ csv: ["text/csv", () => csv(...parts)] });
  if (measure) {
    const { rows, columns, values } = gridOf(run, measure[0]), wide = columns.layers.length;
    return file(["layer", ...columns.layers.map(said)], rows.layers.map((row, i) => [said(row), ...values.subarray(i * wide, (i + 1) * wide)]));
  }
  if (table?.length) return file(...(({ columns, rows }) => [columns, rows])(run.tables.find(([name]) => name === table[0])[1]));
  if (!curves) return {};
  const lines = run.curves.filter(([name]) => curves.includes(name)).flatMap(([name, curve]) => [...Object.entries(curve.lines), ...(curve.mean ? [["mean", curve.mean]] : [])].map(([line, values]) => [name, line, curve.at, values]));
  return file(["curve", "line", "x", "y"], lines.flatMap(([name, line, at, values]) => at.map((x, i) => [name, line, x, values[i]])));
}

// Figures in the dark scheme: paper, ink and greys of the SVG change, colours and what stands in cells do not.
const LIGHT = "#ffffff", DOTS_PER_PIXEL = 150 / 96; // of the PNG, beside which the SVG is as large
const IN_THE_DARK = `svg{fill:#e6ebf0}#paper path[style*="fill: #ffffff"]{fill:#12171c!important}#cell{fill:#000}${["#000000", "#262626", "#333333", "#404040", "#4c4c4c", "#595959", "#666666"]
  .map((ink) => `[style*="stroke: ${ink}"]{stroke:#c8d1d9!important}[style*="fill: ${ink}"]{fill:#c8d1d9!important}#cell [style*="stroke: ${ink}"]{stroke:${ink}!important}#cell [style*="fill: ${ink}"]{fill:${ink}!important}`).join("")}`;

// as: section, or foldedSection.
function figures(as) {
  const parts = RUNS.flatMap((run) => run.figures.map(({ name, seen, png, svg, data }) => {
    const heading = MANY ? `${run.letter}: ${seen || name}` : seen || name;
    if (!png) return el("p", { class: "quiet" }, `${heading}: in the run's folder, figures/`);
    const files = { png: ["image/png", () => decoded(png)], ...(svg ? { svg: ["image/svg+xml", () => decoded(svg)] } : {}), ...numbersOf(run, data) };
    const picture = el("img", { alt: `Figure: ${seen || name}`, decoding: "async", onload: ({ target }) => {
      const zoom = target.src.startsWith("data:image/svg") ? DOTS_PER_PIXEL : 1, [wide, high] = [target.naturalWidth * zoom, target.naturalHeight * zoom];
      target.width = wide;
      target.closest("figure").classList.toggle("broad", wide > Math.max(BROAD, 1.3 * high));
    } });
    const draw = () => {
      const dark = css("--paper") !== LIGHT && svg && atob(svg);
      const src = dark && dark.includes('id="paper"') ? `data:image/svg+xml;base64,${btoa(dark.replace("</defs>", ["<style>", IN_THE_DARK, "<", "/style></defs>"].join("")))}` : `data:image/png;base64,${png}`;
      if (picture.src !== src) picture.src = src;
    };
    redraws.push(draw);
    return el("figure", { class: "drawn" }, el("figcaption", {}, heading), el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Figure ${heading}` }, picture), downloads(name, files));
  }));
  return parts.length ? as("figures", "Figures", el("div", { class: "gallery" }, ...parts)) : null;
}

// views: of a comparison, which has a card for them.
function warnings(views) {
  const texts = RUNS.flatMap((run) => run.manifest.warnings.map((text) => `${MANY ? `${run.letter}: ` : ""}${text}`));
  if (views && !texts.length) return null;
  const list = (some) => el("ul", { class: "plain" }, ...some.map((text) => el("li", { class: "warning" }, text)));
  const rest = texts.slice(FULL);
  return section("warnings", "Warnings", ...(texts.length ? [list(texts.slice(0, FULL))] : [el("p", {}, "None.")]), ...(rest.length ? [el("details", {}, el("summary", {}, `${counted(rest.length, "more warning")}`), list(rest))] : []));
}

// Columns and rows without the columns that are empty in every row.
function withoutEmpty(columns, rows) {
  const kept = columns.map((_, c) => c).filter((c) => rows.some((row) => row[c] !== null && row[c] !== undefined));
  return [kept.map((c) => columns[c]), rows.map((row) => kept.map((c) => row[c]))];
}

const ofRun = (run, row) => (MANY ? [run.letter, ...row] : row);
const runColumn = (columns) => (MANY ? ["run", ...columns] : columns);

function pairs() {
  const rows = RUNS.flatMap((run) => run.measures.flatMap((measure) => measure.matrices.map((m) => {
    const values = numbers(m.values).filter((value) => !Number.isNaN(value)); // gaps in a running run
    return ofRun(run, [measure.label, m.rows.model, m.columns.model, values.reduce((a, b) => a + b, 0) / values.length, values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b)), m.n]);
  })));
  if (!rows.length) return null;
  return foldedSection("pairs", "Pairs of models", table("Over all layers of both models", runColumn(["measure", "rows", "columns", "mean", "lowest", "highest", "n"]), rows, { tall: true, round: true }));
}

function claims() {
  const rows = RUNS.flatMap((run) => run.claims.map((c) => ofRun(run, [c.name, c.measure, c.verdict, c.value, c.se, c.threshold, c.decided, c.over, c.statistic, c.why, `${c.source}: ${c.says}`])));
  return rows.length ? section("claims", "Claims", table("Published findings and what this data says", runColumn(["claim", "measure", "verdict", "value", "standard error", "threshold", "p", "units", "statistic", "why", "source"]), rows, { round: true })) : null;
}

function studyTables(as) {
  const parts = RUNS.flatMap((run) => run.tables.map(([name, t]) => table(`${MANY ? `${run.letter}: ` : ""}${name}`, t.columns, t.rows, { tall: true, round: true })));
  return parts.length ? as("tables", "Tables", ...parts) : null;
}

// The curve's numbers: a row per line, and their mean.
function curveTable(curve, caption) {
  const rows = Object.entries(curve.lines).map(([name, values]) => [name, ...values]);
  return table(caption, ["line", ...curve.at.map((place) => (typeof place === "number" ? `${curve.x.name} ${place}` : place))], [...rows, ...(curve.mean ? [["mean", ...curve.mean]] : [])], { tall: true, round: true });
}

const overNames = (curve) => curve.at.some((place) => typeof place === "string");

// Curves over layers, those of one quantity and hook point in one chart: its name and it. Values stand at their layers'
// names, which models of different depths share in part.
function layerCharts(run) {
  const among = run.curves.filter(([, curve]) => overNames(curve));
  const group = ([name, { about }]) => (about.quantity ? [about.quantity, about.point, about.pairs_of ? "by groups" : null].filter(Boolean).join(", ") : name);
  return unique(among.map(group)).map((name) => {
    const members = among.filter((entry) => group(entry) === name).map(([, curve]) => curve);
    const places = unique(members.toSorted((a, b) => b.at.length - a.at.length).flatMap(({ at }) => at));
    const lines = members.flatMap((curve) => {
      const there = places.map((place) => curve.at.indexOf(place));
      const placed = (values) => values && there.map((i) => (i < 0 ? null : values[i]));
      const label = curve.about.pairs_of?.join(" \u2013 ") ?? curve.about.model ?? "";
      const band = Object.values(curve.bands)[0];
      if (curve.mean) return [{ label, y: placed(curve.mean), low: placed(band?.low), high: placed(band?.high) }];
      return Object.entries(curve.lines).map(([way, y]) => ({ label: Object.keys(curve.lines).length > 1 ? [label, way].filter(Boolean).join(", ") : label || way, y: placed(y) }));
    });
    const said = members.map((curve) => Object.values(curve.bands)[0]?.of).find(Boolean);
    return [name, chart(places, lines, "layer", axisName(members[0].y), { band: said, levels: members[0].about.levels })];
  });
}

const layersOf = ({ about }) => [about["head layer"], about["tail layer"]].filter(Boolean);

// A run's curves; single lines over the same places, of one layer where they are of layers, are one curve, a line of it each.
function together(run) {
  const groups = new Map();
  for (const [name, curve] of run.curves) {
    const alone = !overNames(curve) && Object.keys(curve.lines).length === 1 && !Object.keys(curve.bands).length;
    const key = alone ? JSON.stringify([curve.x, curve.y, curve.at, ...layersOf(curve)]) : name;
    groups.set(key, [...(groups.get(key) ?? []), [name, curve]]);
  }
  return [...groups.values()].map((members) => {
    if (members.length === 1) return members[0];
    const [, first] = members[0], place = unique(layersOf(first)).join(" into ");
    const lines = Object.fromEntries(members.map(([name, curve]) => [name, Object.values(curve.lines)[0]]));
    const levels = sharedLevels(members.map(([, curve]) => curve));
    return [`${axisName(first.y)}${place ? `, ${place}` : ""} (${counted(members.length, "curve")})`, { ...first, lines, mean: null, errors: {}, bands: {}, about: { ...first.about, levels } }];
  });
}

function curves(as) {
  const names = unique(RUNS.flatMap((run) => together(run).map(([name]) => name)));
  const charts = RUNS.flatMap((run) => layerCharts(run).flatMap(([name, drawn]) => {
    redraws.push(drawn.draw);
    return [el("h3", {}, MANY ? `${run.letter}: ${name}` : name), drawn.box];
  }));
  const overLayers = [];
  const parts = names.flatMap((name) => RUNS.flatMap((run) => together(run).filter(([other]) => other === name).flatMap(([, curve]) => {
    const heading = MANY ? `${run.letter}: ${name}` : name;
    const numbers = el("details", { class: curve.at.length > 8 ? "wide" : null }, el("summary", {}, overNames(curve) ? `Numbers: ${heading}` : "The curve's numbers"), curveTable(curve, heading));
    if (overNames(curve)) {
      overLayers.push(numbers);
      return [];
    }
    const drawn = stepChart(curve, heading);
    redraws.push(drawn.draw);
    return [el("h3", {}, heading), drawn.box, numbers];
  })));
  return names.length ? as("curves", "Curves", ...charts, ...(overLayers.length ? [el("details", {}, el("summary", {}, "Numbers of the curves over layers"), ...overLayers)] : []), ...parts) : null;
}

function others() {
  const parts = RUNS.flatMap((run) => run.others.map(([name, text]) => el("details", {}, el("summary", {}, `${MANY ? `${run.letter}: ` : ""}${name}`), el("pre", { tabindex: "0" }, text))));
  if (RUNS.some((run) => run.facts.length)) parts.unshift(byKey("Facts of the study, and options of its analyses", "facts"));
  return parts.length ? foldedSection("others", "More results", ...parts) : null;
}

function timings() {
  const rows = RUNS.flatMap((run) => Object.entries(run.manifest.timings).map(([stage, seconds]) => ofRun(run, [stage, seconds, run.manifest.peak_memory_mb_after?.[stage] ?? null])));
  return rows.length ? foldedSection("timings", "Timings", table("Stages of the run", runColumn(["stage", "seconds", "peak memory so far, MB"]), rows, { round: true })) : null;
}

// Key paths against runs; rows in which the runs differ are marked.
function byKey(caption, what) {
  const byPath = RUNS.map((run) => new Map(run[what]));
  const rows = unique(byPath.flatMap((map) => [...map.keys()])).map((path) => [path, ...byPath.map((map) => map.get(path) ?? null)]);
  return table(caption, ["key", ...RUNS.map(title)], rows, { classes: (row) => (new Set(row.slice(1)).size > 1 ? "differs" : null), tall: true });
}

function configuration() {
  const raw = RUNS.filter((run) => run.config_text).map((run) => el("details", {}, el("summary", {}, MANY ? `config.yaml of ${title(run)}` : "config.yaml"), el("pre", { tabindex: "0" }, run.config_text)));
  return foldedSection("configuration", "Settings", byKey(MANY ? "Keys that differ are marked \u2260" : "The validated configuration", "config"), ...raw);
}

function repeat() {
  const parts = RUNS.flatMap((run) => [
    ...(MANY ? [el("h3", {}, title(run))] : []),
    ...(run.command ? [el("p", {}, "As it was started:"), el("pre", { tabindex: "0" }, run.command)] : [el("p", {}, "A program started it, by repsim_cli in Python.")]),
    el("p", {}, "Its configuration again, in a new folder:"), el("pre", { tabindex: "0" }, run.repeat),
  ]);
  return foldedSection("repeat", "How to repeat it", ...parts, byKey("What it ran on", "record"));
}

// What a study shows first, beside its sentences.
const FIRST = { stitching: penalties, universality: verdicts, convergence: checkpoints };

// The loss that stitches add, over depth: a line for each two models, with one standard error each way.
function penalties(run) {
  const found = run.tables.find(([name]) => name === "stitching")?.[1];
  if (!found) return [];
  const [head, tail, from, into, penalty, se] = ["head", "tail", "head layer", "tail layer", "penalty", "penalty se"].map((name) => found.columns.indexOf(name));
  const rows = found.rows.filter((row) => row[from] === row[into] && row[penalty] !== null);
  const layers = unique(rows.map((row) => row[from])), pairs = unique(rows.map((row) => JSON.stringify([row[head], row[tail]]))).slice(0, MEASURES);
  if (layers.length < 2) return [];
  const lines = pairs.map((pair) => {
    const of = layers.map((name) => rows.find((row) => row[from] === name && JSON.stringify([row[head], row[tail]]) === pair));
    const at = (way) => of.map((row) => (row && row[se] !== null ? row[penalty] + way * row[se] : null));
    return { label: JSON.parse(pair).join(" into "), y: of.map((row) => row?.[penalty] ?? null), low: at(-1), high: at(1) };
  });
  const drawn = chart(layers, lines, "layer after which it is stitched", "loss added, nats");
  redraws.push(drawn.draw);
  return [section("penalties", "What a stitch costs, over depth", drawn.box)];
}

// The verdicts of all measures on all factors.
function verdicts(run) {
  const found = run.tables.find(([name]) => name === "universality of factors")?.[1];
  return found ? [section("verdicts", "Verdicts", table("Each factor, by each measure", found.columns, found.rows, { tall: true, round: true }))] : [];
}

// Every layer at one checkpoint, which a slider chooses, beside the first and the last.
function checkpoints(run) {
  const found = run.curves.filter(([, curve]) => String(curve.about.quantity ?? "").endsWith(" to last") && curve.at.length > 1 && Object.keys(curve.lines).length > 1);
  return found.slice(0, 1).map(([name, curve]) => {
    const layers = Object.keys(curve.lines), host = el("div"), value = el("output", {});
    const at = (k) => layers.map((layer) => curve.lines[layer][k]);
    const slider = el("input", { type: "range", min: "0", max: String(curve.at.length - 1), value: String(curve.at.length >> 1), "aria-label": curve.x.name, oninput: draw });
    function draw() {
      const k = Number(slider.value), last = curve.at.length - 1;
      value.textContent = ` ${curve.x.name} ${curve.at[k]}`;
      slider.setAttribute("aria-valuetext", `${curve.x.name} ${curve.at[k]}`);
      const drawn = chart(layers, [[0, "first"], [k, "chosen"], [last, "last"]].map(([i, what]) => ({ label: `${what}, ${curve.x.name} ${curve.at[i]}`, y: at(i) })), "layer", axisName(curve.y));
      host.replaceChildren(drawn.box);
      drawn.draw();
    }
    redraws.push(draw);
    return section("checkpoints", "Layers at a checkpoint", el("p", { class: "quiet" }, name), el("label", {}, "Checkpoint ", slider, value), host);
  });
}

// What a methods section says of the run, and what to cite.
function cite() {
  const parts = RUNS.flatMap((run) => [...(MANY ? [el("h3", {}, title(run))] : []), ...(run.methods ? [el("p", {}, "A sentence for a methods section:"), el("blockquote", {}, run.methods)] : []), ...(run.cite.length ? [el("p", {}, "To cite:"), el("ul", {}, ...run.cite.map((text) => el("li", {}, text)))] : [])]);
  return foldedSection("cite", "How to cite it", ...parts);
}

// ---- the page ----

const THEMES = ["auto", "light", "dark"];

function themed(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  for (const redraw of redraws) redraw();
}

// The page of a running run is read again every few seconds, unless the reader pauses that.
function reloading() {
  let waiting = setTimeout(() => location.reload(), 1000 * DATA.reload);
  const button = el("button", { type: "button", onclick: () => {
    clearTimeout(waiting);
    waiting = waiting ? 0 : setTimeout(() => location.reload(), 1000 * DATA.reload);
    button.textContent = waiting ? "Pause reloading" : "Resume reloading";
  } }, "Pause reloading");
  return button;
}

function main() {
  const heat = matrices(), views = heat?.views;
  const head = answer(views), near = closest(), inside = views ? foldedSection : section;
  if (!views) head.append(...near);
  const first = views || MANY ? [] : [...(FIRST[RUNS[0].manifest.study] ?? (() => []))(RUNS[0])];
  const parts = views ? [head, warnings(views), views.box, heat.box, views.rows, views.measures(near), claims(), studyTables(inside), curves(inside), figures(inside)] : [head, warnings(), ...first, heat?.box, figures(inside), claims(), studyTables(inside), curves(inside)];
  const sections = [...parts, pairs(), summary(), timings(), others(), configuration(), repeat(), cite()].filter(Boolean);
  let theme = 0;
  const toggle = el("button", { type: "button", onclick: () => {
    theme = (theme + 1) % THEMES.length;
    toggle.textContent = `Theme: ${THEMES[theme]}`;
    themed(THEMES[theme]);
  } }, "Theme: auto");
  const page = document.getElementById("page");
  page.append(
    el("a", { class: "skip", href: "#results" }, "Skip to the results"),
    el("header", {}, el("h1", {}, MANY ? RUNS.map(title).join(" \u00b7 ") : RUNS[0].title), ...(DATA.reload ? [reloading()] : []), toggle),
    el("nav", { "aria-label": "Sections" }, el("ul", {}, ...sections.map((part) => el("li", {}, el("a", { href: `#${part.id}`, onclick: () => { if (part.classList.contains("folded")) part.firstChild.open = true; } }, part.getAttribute("aria-label")))))),
    el("main", {}, ...sections),
    el("footer", {}, el("p", { class: "quiet" }, "Made by repsim from manifest.json, config.yaml, results.json and arrays/ alone; the numbers are theirs in full precision. This page loads nothing."),
      el("details", {}, el("summary", { class: "quiet" }, "Lines are drawn by uPlot, under the MIT licence"), el("pre", { tabindex: "0" }, DATA.licence))),
    tip);
  heat?.start();
  for (const redraw of redraws) redraw();
  for (const part of document.querySelectorAll(".folded > details")) part.addEventListener("toggle", () => { if (part.open) for (const redraw of redraws) redraw(); }); // what was folded had no width
  let waiting = 0, width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(() => { for (const redraw of redraws) redraw(); });
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => themed(THEMES[theme]));
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open], .wide)")];
    for (const part of closed) part.open = true;
    themed("light");
  });
  addEventListener("afterprint", () => {
    for (const part of closed) part.open = false;
    themed(THEMES[theme]);
  });
}

main();
