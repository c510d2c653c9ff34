// The linked views of a comparison: its sentence, cards, the same layers, and which layer answers to which. All follow
// one choice of two models, a measure and two layers. Text reaches the page by textContent alone.
"use strict";

const LEFT = 46, RIGHT = 118; // pixels beside a drawing over layers: its axis, and what its lines are
const STEP = [7, 26]; // pixels between two layers that answer to each other
const NEAR = 13; // pixels between two labels
const MEASURES = 12; // lines of measures in one chart
const STRETCHES = 6; // of layers that answer to the same one, in words

// Two models under a measure: their layers, cells, and of each layer the closest one of the other model (-1: none).
function pairOf({ run, grid, record }, a, b) {
  const [rows, columns] = [["rows", a], ["columns", b]].map(([side, model]) => grid[side].layers.filter((layer) => layer.model === model));
  const wide = columns.length, sign = record.card.larger_is_closer ? 1 : -1;
  const cells = (what) => (grid[what] ? cellsOf(grid, what, rows, columns) : null);
  const values = cells("values"), chance = cells("chance");
  const value = (i, j) => values[i * wide + j], level = (i, j) => (chance ? chance[i * wide + j] : NaN);
  const closest = (many, of) => {
    let best = -1;
    for (let k = 0; k < many; k += 1) if (!Number.isNaN(of(k)) && (best < 0 || sign * of(k) > sign * of(best))) best = k;
    return best;
  };
  const forth = rows.map((_, i) => closest(wide, (j) => value(i, j)));
  const back = columns.map((_, j) => closest(rows.length, (i) => value(i, j)));
  const between = record.matrices.filter((m) => [m.rows.model, m.columns.model].every((model) => model === a || model === b) && m.rows.model !== m.columns.model);
  const matrix = between.find((m) => m.rows.model === a) ?? between[0];
  const beyond = matrix?.beyond ?? null; // how far ahead of chance a cell must be, as findings/sentences.py has it
  const reach = matrix?.reach ?? null; // up to where chance brings the closest cell, as the sentence says it
  const apart = matrix?.apart ?? null; // the least lead that tells a layer apart from the next; null: no error is known
  const told = (i) => columns.every((_, k) => k === forth[i] || !(sign * (value(i, forth[i]) - value(i, k)) <= apart));
  const same = rows.length === wide && rows.every(({ name }, i) => name === columns[i].name);
  return { run, grid, record, a, b, rows, columns, value, level, forth, back, same, sign, beyond, reach, apart, told, known: forth.some((j) => j >= 0) };
}

// How layers are called: blocks by their number where all are of one hook point.
function layerNames(layers) {
  const alone = inBlocks(layers);
  return layers.map(({ name }) => (alone ? name.replace(/^\w+@/, "") : name));
}

const worded = (layers, i) => (/^\d+$/.test(layerNames(layers)[i]) ? `block ${layerNames(layers)[i]}` : layers[i].name);

// ---- the headline ----

function card(number, text) {
  return el("div", { class: "card" }, el("p", { class: "big" }, number), el("p", {}, text));
}

// A number in two digits, in three from 100 on.
const inDigits = (value) => String(Number(value.toPrecision(Math.abs(value) < 100 ? 2 : 3)));

// How much is alike, where, how much of it is above chance and the token itself, and what warns.
function cards(pair) {
  const { rows, columns, forth, value, level, sign, record, run, beyond, reach, apart, told } = pair;
  const found = rows.map((_, i) => i).filter((i) => forth[i] >= 0);
  const best = found.reduce((x, i) => (sign * value(i, forth[i]) > sign * value(x, forth[x]) ? i : x), found[0]);
  const floor = record.floor?.value, than = sign > 0 ? "above" : "closer than";
  const above = (of, by) => found.filter((i) => sign * (value(i, forth[i]) - of(i)) > by).length;
  const chance = found.flatMap((i) => columns.map((_, j) => level(i, j))).filter((x) => !Number.isNaN(x));
  const alone = floor === undefined ? "" : `; ${above(() => floor, 0)} ${than} the ${record.floor.unit} alone (${inDigits(floor)})`;
  const most = Math.max(0, ...found.filter((i) => pair.same && sign * (value(i, forth[i]) - value(i, i)) > apart).map((i) => Math.abs(i - forth[i])));
  const all = found.length > 1 && found.every((i) => forth[i] === forth[found[0]]);
  const sure = found.filter(told), unsure = found.length - sure.length;
  const steady = !all && sure.every((i, k) => !k || forth[i] >= forth[sure[k - 1]]);
  const doubt = apart === null ? "; errors are not known" : unsure ? `; ${unsure} of ${found.length} not told apart from the next` : "";
  const warned = run.manifest.warnings.length;
  return [
    card(inDigits(value(best, forth[best])), `closest: ${worded(rows, best)} of ${pair.a} and ${worded(columns, forth[best])} of ${pair.b}, ${record.card.label}`),
    pair.same ? card(most ? `up to ${most} away` : "the same layer", most ? `the best match of a layer lies at${apart === null ? doubt : ""}` : `is the best match of every layer${doubt}`)
      : all ? card("one for all", `${worded(columns, forth[found[0]])} of ${pair.b} is the best match of every layer of ${pair.a}${doubt}`)
      : card(!sure.length ? "not told apart" : steady ? "in order" : "not in order", `${pair.a} to its best match in ${pair.b}: ${stretches(pair, found)}${doubt}`),
    chance.length && beyond !== null ? card(`${above((i) => level(i, forth[i]), beyond)} of ${found.length}`, `layers ${than} chance (at ${sign > 0 ? "most" : "least"} ${reach})${alone}`)
      : chance.length ? card(reach, `chance, on average; how far pairings stray from it is not known${alone}`)
      : card("not known", `chance${record.chance?.unknown ? `: ${record.chance.unknown}` : ""}${alone}`),
    card(warned ? counted(warned, "warning") : "no warning", warned ? "in full below" : "no feature, row or setting stands out"),
  ];
}

// Layers in a row that answer to the same one: "embed to 3 \u2192 0, 4 \u2192 2"; of many the first and last.
function stretches({ rows, columns, forth }, found) {
  const [names, others] = [rows, columns].map(layerNames), parts = [];
  for (const i of found) {
    const last = parts.at(-1);
    if (last && last.to === i - 1 && forth[last.to] === forth[i]) last.to = i;
    else parts.push({ from: i, to: i });
  }
  const texts = parts.map(({ from, to }) => `${names[from]}${to > from ? ` to ${names[to]}` : ""} \u2192 ${others[forth[from]]}`);
  return texts.length <= STRETCHES ? texts.join(", ") : [...texts.slice(0, STRETCHES / 2), "\u2026", ...texts.slice(-STRETCHES / 2)].join(", ");
}

// ---- drawings over layers ----

// Labels at the end of lines, moved apart so that none covers another. ends: [text, y, colour].
function endLabels(ends, x, high) {
  const placed = ends.toSorted((p, q) => p[1] - q[1]).map(([text, y, colour]) => [text, y, colour]);
  placed.forEach((label, k) => { label[1] = Math.max(label[1], k ? placed[k - 1][1] + NEAR : NEAR / 2); });
  for (let k = placed.length - 1; k >= 0; k -= 1) placed[k][1] = Math.min(placed[k][1], k === placed.length - 1 ? high : placed[k + 1][1] - NEAR);
  return placed.map(([text, y, colour]) => {
    const label = written(middle(text, 20), x, y, 11, "start");
    label.setAttribute("fill", colour);
    return label;
  });
}

// A round distance between about five ticks.
function tickStep(range) {
  const ten = 10 ** Math.floor(Math.log10(range / 4));
  return ten * [1, 2, 2.5, 5, 10].find((step) => (step * ten * 5.001) >= range);
}

// What stands over the layers of the first model: its lines [name, values, dash], bands [name, low, high] and levels.
function overDepth(pair) {
  const { rows, forth, value, level, record, same, grid, run } = pair;
  const gap = (x) => (x === undefined || Number.isNaN(x) ? null : x);
  const closest = rows.map((_, i) => (forth[i] < 0 ? null : gap(value(i, forth[i]))));
  const own = same ? rows.map((_, i) => gap(value(i, i))) : null;
  const lines = [...(own ? [["same layer", own]] : []), ...(own && forth.every((j, i) => j === i || j < 0) ? [] : [["closest layer", closest]])];
  const place = (i) => (same ? i : forth[i]), far = pair.beyond ?? 0;
  const chance = rows.map((_, i) => (place(i) < 0 ? null : gap(level(i, place(i)))));
  const bands = chance.some((x) => x !== null) ? [["chance", chance.map((x) => (x === null ? null : x - far)), chance.map((x) => (x === null ? null : x + far)), chance]] : [];
  const fresh = Object.entries(run.manifest.facts ?? {}).filter(([, of]) => of.trained === false).map(([model]) => model);
  const untrained = rows.map((row) => fresh.filter((model) => model !== pair.a).flatMap((model) => grid.columns.layers.filter((other) => other.model === model && (!same || other.name === row.name)).map((other) => at(grid, "values", row, other)).filter((x) => gap(x) !== null)));
  if (untrained.some((found) => found.length)) bands.push(["untrained", ...["min", "max"].map((end) => untrained.map((found) => (found.length ? Math[end](...found) : null)))]);
  return { lines, bands, levels: record.floor ? [[`${record.floor.unit} alone`, record.floor.value]] : [] };
}

function depthView(follow) {
  const host = el("div", { class: "drawn-view" }), below = el("p", { class: "readout quiet" }), heading = el("h3", {}, "");
  let pair = null, made = null, stands = null, mark = () => {};
  const files = downloads("layers over depth", {
    ...pictures(() => drawing(host.clientWidth, made.clientHeight || 280, [...made.cloneNode(true).childNodes])),
    csv: ["text/csv", () => csv(["layer", ...columnsOf().map(([name]) => name)], pair.rows.map(({ name }, i) => [name, ...columnsOf().map(([, values]) => values[i])]))],
  });
  const box = el("figure", { class: "view" }, heading, host, below, files);
  const columnsOf = () => { const { lines, bands } = stands; return [...lines, ...bands.map(([name, low, high, mid]) => [name, mid ?? high, low])]; };

  function draw() {
    if (!pair) return;
    const { lines, bands, levels } = stands, n = pair.rows.length, names = layerNames(pair.rows);
    const width = Math.max(280, host.clientWidth || 600), height = 280, [top, foot] = [12, 44];
    const wide = width - LEFT - RIGHT, high = height - top - foot;
    const all = [...lines.flatMap(([, y]) => y), ...bands.flatMap((band) => band.slice(1).flat()), ...levels.map(([, y]) => y)].filter((y) => y !== null && y !== undefined);
    const roof = pair.record.card.bounds[1], low = Math.min(0, ...lines.flatMap(([, values]) => values.filter((v) => v !== null))), end = Math.max(...all);
    const most = roof !== null && end > 0.3 * roof ? roof : end > low ? end + 0.05 * (end - low) : low + 1;
    const x = (i) => LEFT + (n < 2 ? wide / 2 : (i * wide) / (n - 1)), y = (v) => top + high * (1 - (Math.min(most, Math.max(low, v)) - low) / (most - low));
    const path = (values) => values.map((v, i) => (v === null ? "" : `${i && values[i - 1] !== null ? "L" : "M"}${rounded(x(i))} ${rounded(y(v))}`)).join("");
    const parts = [];
    const gap = tickStep(most - low);
    for (let k = Math.ceil(low / gap - 1e-9); k * gap <= most + 1e-9; k += 1) parts.push(shape("path", { d: `M${LEFT} ${rounded(y(k * gap))}h${wide}`, stroke: css("--rule") }), written(String(Number((k * gap).toPrecision(3))), LEFT - 6, y(k * gap), 11, "end"));
    const step = Math.max(1, Math.ceil((n * (6.2 * Math.max(...names.map((name) => Math.min(name.length, 9))) + 8)) / wide));
    names.forEach((name, i) => { if (i % step === 0) parts.push(written(middle(name, 9), x(i), height - foot + 14, 11, "middle")); });
    parts.push(written(`${inBlocks(pair.rows) ? "block" : "layer"} of ${middle(pair.a, 30)}`, LEFT + wide / 2, height - 10, 12, "middle"));
    const ends = [];
    bands.forEach(([name, lows, highs, mid], k) => {
      const colour = css(k || name === "untrained" ? "--line-4" : "--quiet"), there = lows.map((v, i) => i).filter((i) => lows[i] !== null);
      const d = `${there.map((i, p) => `${p ? "L" : "M"}${rounded(x(i))} ${rounded(y(highs[i]))}`).join("")}${there.toReversed().map((i) => `L${rounded(x(i))} ${rounded(y(lows[i]))}`).join("")}Z`;
      parts.push(shape("path", { d, fill: colour, "fill-opacity": 0.2, stroke: colour, "stroke-dasharray": "2 4" }));
      ends.push([name, y((mid ?? highs)[there.at(-1)]), colour]);
    });
    for (const [name, v] of levels) {
      parts.push(shape("path", { d: `M${LEFT} ${rounded(y(v))}h${wide}`, stroke: css("--line-3"), "stroke-dasharray": "8 3 2 3", fill: "none" }));
      ends.push([name, y(v), css("--line-3")]);
    }
    lines.forEach(([name, values], k) => {
      const colour = css(`--line-${k + 1}`), last = values.findLastIndex((v) => v !== null);
      parts.push(shape("path", { d: path(values), fill: "none", stroke: colour, "stroke-width": 2, "stroke-dasharray": k ? "7 4" : "" }));
      values.forEach((v, i) => { if (v !== null && n <= 60) parts.push(k ? shape("rect", { x: x(i) - 3, y: y(v) - 3, width: 6, height: 6, fill: colour }) : shape("circle", { cx: x(i), cy: y(v), r: 3.5, fill: colour })); });
      if (last >= 0) ends.push([name, y(values[last]), colour]);
    });
    const rule = shape("path", { stroke: css("--ink"), "stroke-dasharray": "1 3" });
    parts.push(rule);
    mark = () => {
      const chosen = pair.rows.findIndex(({ key }) => key === pair.picked?.row.key);
      rule.setAttribute("d", chosen < 0 ? "" : `M${rounded(x(chosen))} ${top}v${high}`);
      tell(chosen);
    };
    parts.push(...endLabels(ends, LEFT + wide + 8, top + high));
    made = shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": heading.textContent, "font-family": FONT }, ...parts);
    const under = (event) => Math.min(n - 1, Math.max(0, Math.round(((event.clientX - made.getBoundingClientRect().left - LEFT) * Math.max(1, n - 1)) / wide)));
    made.addEventListener("pointermove", (event) => tell(under(event)));
    made.addEventListener("click", (event) => {
      const i = under(event), j = pair.same ? i : pair.forth[i];
      if (j >= 0) follow.pick({ row: pair.rows[i], column: pair.columns[j] });
    });
    host.replaceChildren(made);
    mark();
  }

  function tell(i) {
    const { lines, bands, levels } = stands;
    const said = (v) => (v === null || v === undefined ? "no value" : brief(v));
    below.textContent = i < 0 ? "" : `${worded(pair.rows, i)}: ${[...lines.map(([name, values]) => `${name === "closest layer" && pair.forth[i] >= 0 ? `closest (${worded(pair.columns, pair.forth[i])})` : name} ${said(values[i])}`), ...bands.map(([name, low, high, mid]) => (mid ? `${name} ${said(mid[i])}` : `${name} ${said(low[i])} to ${said(high[i])}`)), ...levels.map(([name, v]) => `${name} ${said(v)}`)].join("; ")}`;
  }

  return { box, draw, mark: () => mark(), show(next) {
    pair = next;
    stands = overDepth(pair);
    heading.textContent = next.same ? `Same depth: how alike is each layer?` : `How alike is each layer of ${middle(next.a, 30)} to its closest one?`;
    draw();
  } };
}

// Which layer answers to which: a line from each layer to the closest one of the other model, and thin ones back.
function matchView(follow) {
  const host = el("div", { class: "drawn-view" }), note = el("p", { class: "quiet" });
  const numbers = el("details", {}), files = downloads("which layer answers to which", { ...pictures(() => drawing(made.clientWidth || 500, made.clientHeight || 400, [...made.cloneNode(true).childNodes])), csv: ["text/csv", () => csv(COLUMNS, answers())] });
  const box = el("figure", { class: "view" }, el("h3", {}, "Which layer answers to which?"), host, note, numbers, files);
  const COLUMNS = ["layer", "answers to", "value", "chance", "ahead of the next"];
  let pair = null, made = null, drawn = null;

  // As `answers` of findings/answering.py: the closest layer of each, and by how much it is ahead.
  function answers() {
    return pair.rows.flatMap(({ name }, i) => {
      const j = pair.forth[i];
      if (j < 0) return [];
      const others = pair.columns.map((_, k) => pair.sign * pair.value(i, k)).filter((v, k) => k !== j && !Number.isNaN(v));
      const chance = pair.level(i, j);
      return [[name, pair.columns[j].name, pair.value(i, j), Number.isNaN(chance) ? null : chance, others.length ? pair.sign * pair.value(i, j) - Math.max(...others) : null]];
    });
  }

  function draw() {
    if (!pair) return;
    const { rows, columns, forth, back, value, level } = pair, width = Math.max(260, Math.min(560, host.clientWidth || 500));
    const step = Math.min(STEP[1], Math.max(STEP[0], 430 / Math.max(rows.length, columns.length)));
    const height = step * Math.max(rows.length, columns.length) + 30, side = 74, thick = Math.min(20, step - 2);
    const places = [rows, columns].map((layers) => layers.map((_, i) => 8 + ((i + 0.5) * (height - 38)) / layers.length));
    const found = rows.flatMap((_, i) => (forth[i] < 0 ? [] : [Math.abs(value(i, forth[i]))]));
    const strength = (i, j) => 1 + 6 * (Math.abs(value(i, j)) / (Math.max(...found) || 1)) ** (pair.sign > 0 ? 2 : 0);
    const curve = (i, j) => `M${side} ${rounded(places[0][i])}C${rounded(width / 2)} ${rounded(places[0][i])} ${rounded(width / 2)} ${rounded(places[1][j])} ${width - side} ${rounded(places[1][j])}`;
    const lines = [], ahead = [];
    back.forEach((i, j) => { if (i >= 0 && forth[i] !== j) lines.push(shape("path", { d: curve(i, j), fill: "none", stroke: css("--quiet"), "stroke-width": 1, "stroke-opacity": 0.6, "stroke-dasharray": "3 3" })); });
    forth.forEach((j, i) => {
      if (j < 0) return;
      const chance = pair.beyond !== null && pair.sign * (value(i, j) - level(i, j)) <= pair.beyond;
      ahead[i] = shape("path", { d: curve(i, j), fill: "none", stroke: css(chance ? "--quiet" : "--line-1"), "stroke-width": strength(i, j), "stroke-opacity": pair.told(i) ? 0.65 : 0.25 });
      lines.push(ahead[i]);
    });
    const blocks = [rows, columns].flatMap((layers, k) => {
      const names = layerNames(layers), every = Math.max(1, Math.ceil(11 / step));
      return layers.map((layer, i) => {
        const other = k ? back[i] : forth[i];
        const text = written(i % every === 0 ? middle(names[i], 11) : "", k ? width - side / 2 : side / 2, places[k][i], Math.min(12, step), "middle");
        const part = shape("g", { role: "button", class: "block", tabindex: -1, "aria-label": other < 0 ? `${said(layer)}: no value` : `${said(layer)} answers to ${said((k ? rows : columns)[other])}, ${brief(k ? value(other, i) : value(i, other))}` },
          shape("rect", { x: k ? width - side : 0, y: places[k][i] - thick / 2, width: side, height: thick, rx: 3, fill: css("--raised"), stroke: css("--rule") }), text);
        const pick = () => { if (other >= 0) follow.pick(k ? { row: rows[other], column: layer } : { row: layer, column: columns[other] }); };
        part.addEventListener("click", pick);
        part.addEventListener("keydown", (event) => steer(event, k, i, pick));
        return part;
      });
    });
    const names = [[pair.a, side / 2, "start", 0], [pair.b, width - side / 2, "end", width]].map(([name, , anchor, x]) => written(middle(name, Math.floor(width / 16)), x, height - 10, 12, anchor));
    made = shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": `Which layer of ${pair.b} is the closest of each layer of ${pair.a}`, "font-family": FONT }, ...lines, ...blocks, ...names);
    host.replaceChildren(made);
    drawn = { blocks, ahead };
    mark();
    note.textContent = `Line: the closest layer of ${middle(pair.b, 40)}, thicker where it is closer${pair.beyond === null ? "" : ", grey where it is no closer than chance"}. ${pair.rows.some((_, i) => forth[i] >= 0 && !pair.told(i)) ? "Faint: not told apart from the next. " : ""}Dashed: back, where it is another one. Choose a layer; all views follow.`;
  }

  // The chosen layers, and the line between them.
  function mark() {
    const { rows, columns, forth, picked } = pair, { blocks, ahead } = drawn;
    for (const part of made.querySelectorAll(".chosen")) {
      part.classList.remove("chosen");
      if (part.hasAttribute("tabindex")) part.setAttribute("tabindex", -1);
    }
    const [i, j] = [rows, columns].map((layers, k) => layers.findIndex(({ key }) => key === (k ? picked?.column : picked?.row)?.key));
    for (const part of [blocks[i], j < 0 ? null : blocks[rows.length + j], forth[i] === j ? ahead[i] : null]) part?.classList.add("chosen");
    blocks[Math.max(0, i)].setAttribute("tabindex", 0);
  }

  function steer(event, k, i, pick) {
    const moves = { ArrowDown: [k, i + 1], ArrowUp: [k, i - 1], ArrowRight: [1, i], ArrowLeft: [0, i] };
    if (event.key === "Enter" || event.key === " ") pick();
    else if (Object.hasOwn(moves, event.key)) {
      const [side, to] = moves[event.key], many = [pair.rows.length, pair.columns.length];
      const place = (side ? many[0] : 0) + Math.min(many[side] - 1, Math.max(0, to));
      made.querySelectorAll(".block")[place].focus();
    } else return;
    event.preventDefault();
    if (event.key === "Enter" || event.key === " ") made.querySelector('.block[tabindex="0"]')?.focus();
  }

  return { box, draw, mark, show(next) {
    pair = next;
    draw();
    numbers.replaceChildren(el("summary", {}, "As a table"), ...(numbers.open ? [tabled()] : []));
  }, start() { numbers.addEventListener("toggle", () => { if (numbers.open && !numbers.querySelector("table")) numbers.append(tabled()); }); } };

  function tabled() {
    return table(`Which layer of ${pair.b} is the closest of each layer of ${pair.a}`, COLUMNS, answers());
  }
}

// ---- what follows the choice ----

// The sentence, the cards and the drawings of two models. follow: pair(a, b), measure(label), pick(cell) move the choice.
function linked(run, follow) {
  const models = unique(run.measures.flatMap((m) => m.matrices.flatMap(({ rows, columns }) => [rows.model, columns.model])));
  const pairs = models.flatMap((a, i) => models.slice(i + 1).map((b) => [a, b])).filter(([a, b]) => run.measures.some((m) => m.matrices.some(({ rows, columns }) => (rows.model === a && columns.model === b) || (rows.model === b && columns.model === a))));
  if (!pairs.length) return null;
  const labels = run.measures.map((m) => m.label).filter((label) => !Object.hasOwn(run.remedied, label));
  const lead = el("p", { class: "lead" }), more = el("div"), row = el("div", { class: "cards" });
  const choose = (text, options, onchange) => {
    const made = el("select", { onchange: () => onchange(made.value) }, ...options.map(([value, name]) => el("option", { value }, name)));
    return [el("label", {}, text, made), made];
  };
  const [pairLabel, pairBox] = choose("Models", pairs.map(([a, b], i) => [String(i), `${a} and ${b}`]), (i) => follow.pair(...pairs[Number(i)]));
  const [measureLabel, measureBox] = choose("By", labels.map((label) => [label, label]), follow.measure);
  const views = [depthView(follow), matchView(follow)];
  views[1].start();
  const rows = run.rows ? rowsView(run) : null;
  const controls = el("div", { class: "controls" }, ...(pairs.length > 1 ? [pairLabel] : []), ...(labels.length > 1 ? [measureLabel] : []));
  const none = run.rows || typeof run.manifest.rows_behind !== "string" ? [] : [el("p", { class: "quiet" }, `Rows behind the maps: ${run.manifest.rows_behind}.`)];
  const box = section("views", "The comparison", controls, el("div", { class: "views" }, ...views.map((view) => view.box)), ...none);

  function show(entry, a, b, picked) {
    if (!entry?.grid || a === b) return;
    if (now && now.grid === entry.grid && now.a === a && now.b === b) { // another cell of the same
      now.picked = picked;
      for (const view of views) view.mark();
      rows?.show(now);
      return;
    }
    const pair = { ...pairOf(entry, a, b), picked };
    box.classList.toggle("hidden", !pair.known);
    rows?.box.classList.toggle("hidden", !pair.known);
    if (!pair.known) {
      now = null;
      lead.textContent = `${a} and ${b} have no value by ${entry.record.card.label}`;
      for (const part of [more, row, host]) part.replaceChildren();
      return;
    }
    const place = pairs.findIndex((both) => both.includes(a) && both.includes(b));
    [pairBox.value, measureBox.value] = [String(place), entry.record.label];
    const [first, ...rest] = run.said.find(([x, y, label]) => label === entry.record.label && x === a && y === b)?.[3] ?? [`${a} and ${b} by ${entry.record.card.label}`];
    lead.textContent = first;
    more.replaceChildren(...rest.map((text) => el("p", {}, text)));
    row.replaceChildren(...cards(pair));
    for (const view of views) view.show(pair);
    rows?.show(pair);
    now = pair;
    scale();
  }

  // The same two models under every measure whose values end at 1, on one scale; drawn when it is opened.
  const host = el("div");
  let now = null;
  function measures(rest) {
    const box = foldedSection("measures", "Other measures", host, ...rest);
    box.firstChild.addEventListener("toggle", scale);
    return box;
  }
  function scale() {
    const open = host.closest("details")?.open;
    const all = now && open ? labels.map((label) => ({ run, label, grid: gridOf(run, label), record: run.measures.find((m) => m.label === label) })).filter(({ record }) => record.card.larger_is_closer && record.card.bounds[1] === 1).slice(0, MEASURES) : [];
    const pairs = all.map((entry) => pairOf(entry, now.a, now.b)).filter(({ known }) => known);
    if (!pairs.length) {
      host.replaceChildren();
      return;
    }
    const lines = pairs.map((pair) => ({ label: pair.record.label, y: overDepth(pair).lines[0][1] }));
    const drawn = chart(layerNames(pairs[0].rows), lines, `layer of ${now.a}`, pairs[0].same ? "same layer" : "closest layer");
    host.replaceChildren(el("h3", {}, `${now.a} and ${now.b} under ${counted(lines.length, "measure")}, on one scale`), drawn.box);
    drawn.draw();
  }

  return { box, rows: rows?.box, head: [lead, more, row], measures, show, draw() { for (const view of views) view.draw(); }, first: pairs[0], alone: pairs.length === 1 && models.length === 2 };
}
