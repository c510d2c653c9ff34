// The rows behind two layers: their texts with every token coloured by how far both layers agree on it, the nearest
// rows of a chosen one in both, and which tokens agree. Text reaches the page by textContent alone.
"use strict";

const AROUND = 6; // tokens beside one in a list
const LISTED = 8; // tokens at each end of the list of those that agree, and texts at a time
const FEWEST = 3; // rows of a token from which on it is listed
const MODES = { agreement: "nearest rows in both", share: "share of the similarity" };

const typed = (text, kind) => new kind(decoded(text).buffer);

// What a run kept of its rows, decoded once.
function keptRows(kept) {
  const k = decoded(kept.nearest).length / 2 / kept.layers.length / kept.rows;
  const nearest = typed(kept.nearest, Int16Array), layers = new Map(kept.layers.map(([model, name], i) => [layer(model, name).key, i]));
  const pairs = kept.pairs ? typed(kept.pairs, Int16Array) : new Int16Array(0), shares = kept.shares ? typed(kept.shares, Float32Array) : null, values = kept.values ? typed(kept.values, Float64Array) : null;
  const places = new Map(); // of each row: its text, and the first and last of its tokens there
  kept.texts.forEach(({ rows }, t) => rows.forEach((row, p) => { if (row >= 0) places.set(row, { text: t, from: places.get(row)?.from ?? p, to: p }); }));
  const listOf = (a, row) => nearest.subarray((a * kept.rows + row) * k, (a * kept.rows + row + 1) * k);
  const shareOfPair = (a, b) => {
    for (let p = 0; p < pairs.length / 2; p += 1) if ((pairs[2 * p] === a && pairs[2 * p + 1] === b) || (pairs[2 * p] === b && pairs[2 * p + 1] === a)) return { value: values[p], of: shares.subarray(p * kept.rows, (p + 1) * kept.rows) };
    return null;
  };
  return { ...kept, k, layers, places, listOf, shareOfPair };
}

// Of each row how many of its nearest rows both layers have; null where one of them has none.
function agreement(kept, a, b) {
  return Array.from({ length: kept.rows }, (_, row) => {
    const [first, second] = [kept.listOf(a, row), kept.listOf(b, row)];
    if (!first.length || first[0] < 0 || second[0] < 0) return null;
    const there = new Set(first);
    return second.reduce((count, other) => count + there.has(other), 0);
  });
}

// The text of a row's own tokens, and some around it: [before, it, after].
function snippet(kept, row) {
  const place = kept.places.get(row);
  if (!place) return null;
  const { pieces } = kept.texts[place.text], part = (from, to) => pieces.slice(Math.max(0, from), to).join("");
  return [part(place.from - AROUND, place.from), part(place.from, place.to + 1), part(place.to + 1, place.to + 1 + AROUND)];
}

const shownText = (text) => text.replaceAll("\n", "\u23ce");

function rowsView(run) {
  const kept = keptRows(run.rows), unit = { token: "token", word: "word", span: "span" }[kept.unit] ?? "text";
  const state = { a: -1, b: -1, mode: "agreement", text: 0, row: -1, order: "low" };
  const texts = el("figure", { class: "view" }), near = el("figure", { class: "view" }), list = el("figure", { class: "view" });
  const note = el("p", { class: "quiet" });
  const box = section("rows", kept.texts.length ? "Texts: what drives it" : "Rows: what drives it", note, el("div", { class: "views" }, texts, el("div", {}, near, list)));
  let agree = [], share = null, names = ["", ""];

  function show(pair) {
    if (!pair.picked) return;
    const [a, b] = [pair.picked.row.key, pair.picked.column.key].map((key) => kept.layers.get(key));
    box.classList.toggle("hidden", a === undefined || b === undefined);
    if (a === undefined || b === undefined) return;
    Object.assign(state, { a, b });
    names = [`${worded(pair.rows, pair.rows.findIndex(({ key }) => key === pair.picked.row.key))} of ${pair.a}`, `${worded(pair.columns, pair.columns.findIndex(({ key }) => key === pair.picked.column.key))} of ${pair.b}`];
    agree = agreement(kept, a, b);
    share = kept.shareOfPair(a, b);
    if (!share) state.mode = "agreement";
    const known = agree.filter((n) => n !== null);
    note.textContent = `${names[0]} and ${names[1]}, ${counted(kept.rows, "row")} of ${kept.of.toLocaleString("en")}: of the ${kept.k} nearest rows of a ${unit} both have ${known.length ? (known.reduce((x, y) => x + y, 0) / known.length).toFixed(1) : "no"} in common on average${share ? `; on these rows ${kept.measure} is ${brief(share.value)}, and the shares of the rows add up to it` : ""}.`;
    if (state.row < 0) state.row = start();
    draw();
  }

  // The row that opens: of the first text, one on which the layers agree least.
  function start() {
    const first = kept.texts[0]?.rows.filter((row) => row >= 0 && agree[row] !== null) ?? [];
    return first.length ? first.reduce((x, row) => (agree[row] < agree[x] ? row : x)) : 0;
  }

  // A colour from 0 to 1, and ink that can be read on it.
  function coloured(value) {
    const [red, green, blue] = colourTable("viridis")[Math.round(255 * Math.min(1, Math.max(0, value)))];
    const light = [0.2126, 0.7152, 0.0722].reduce((sum, weight, k) => sum + weight * ([red, green, blue][k] / 255) ** 2.2, 0); // as WCAG has it
    return [`rgb(${red},${green},${blue})`, light > 0.18 ? "#000000" : "#ffffff"];
  }

  function strength(row) {
    if (state.mode === "agreement") return agree[row] === null ? null : agree[row] / kept.k;
    const most = Math.max(...share.of.map(Math.abs)) || 1;
    return Math.sqrt(Math.max(0, share.of[row]) / most);
  }

  const saidOf = (row) => [agree[row] === null ? null : `${agree[row]} of ${kept.k} nearest rows in both`, share ? `share ${share.of[row].toPrecision(3)} of ${brief(share.value)}` : null].filter(Boolean).join(", ");

  function token(text, row) {
    if (row < 0) return el("span", { class: "other" }, shownText(text));
    const value = strength(row), made = el("span", { class: "token", role: "button", tabindex: row === state.row ? 0 : -1, "data-row": row, "aria-pressed": row === state.row, "aria-label": `${text.trim() || "space"}: ${saidOf(row)}`, title: saidOf(row) }, shownText(text));
    if (value !== null) [made.style.background, made.style.color] = coloured(value);
    return made;
  }

  // Texts that the chosen order begins with.
  function orderedTexts() {
    const mean = kept.texts.map(({ rows }) => {
      const own = unique(rows.filter((row) => row >= 0)).map(strength).filter((v) => v !== null);
      return own.length ? own.reduce((x, y) => x + y, 0) / own.length : null;
    });
    const places = kept.texts.map((_, t) => t).filter((t) => mean[t] !== null);
    return state.order === "text" ? places : places.sort((x, y) => (state.order === "low" ? 1 : -1) * (mean[x] - mean[y]));
  }

  function drawTexts() {
    const heading = el("h3", {}, `Texts, coloured by ${state.mode === "agreement" ? `how many of the ${kept.k} nearest rows both layers have` : `each ${unit}'s share of ${kept.measure}`}`);
    if (!kept.texts.length) {
      texts.replaceChildren(heading, el("p", {}, kept.without ? `The texts would stand here: ${kept.without}, which writes them into rows.json of the run's folder.` : "The rows are of no text."));
      return;
    }
    const order = orderedTexts(), at = Math.min(state.text, Math.max(0, order.length - 1));
    const some = order.slice(at, at + (kept.unit === "token" || kept.unit === "word" ? 4 : LISTED));
    const choice = (name, key, options) => el("label", {}, name, el("select", { onchange: ({ target }) => { state[key] = target.value; state.text = 0; draw(); } }, ...options.map(([value, text]) => el("option", { value, ...(state[key] === value ? { selected: "" } : {}) }, text))));
    const controls = el("div", { class: "controls" }, ...(share ? [choice("Colour", "mode", Object.entries(MODES))] : []), choice("First", "order", [["low", "least alike"], ["high", "most alike"], ["text", "as read"]]));
    const move = (way) => { state.text = Math.min(Math.max(0, order.length - 1), Math.max(0, at + way * some.length)); draw(); };
    const bodies = some.map((t) => {
      const { pieces, rows } = kept.texts[t], body = el("p", { class: "passage" });
      for (let p = 0; p < pieces.length;) { // the pieces of a row are one part
        let end = p + 1;
        while (end < pieces.length && rows[p] >= 0 && rows[end] === rows[p]) end += 1;
        body.append(token(pieces.slice(p, end).join(""), rows[p]));
        p = end;
      }
      return body;
    });
    for (const body of bodies) {
      body.addEventListener("click", ({ target }) => choose(target));
      body.addEventListener("keydown", steer);
    }
    const scale = el("canvas", { width: 256, height: 1, "aria-hidden": "true" }), pen = scale.getContext("2d");
    for (let i = 0; i < 256; i += 1) { [pen.fillStyle] = coloured(i / 255); pen.fillRect(i, 0, 1, 1); }
    texts.replaceChildren(heading, controls, ...bodies,
      el("div", { class: "bar" }, "0", el("span", { class: "scale" }, scale), state.mode === "agreement" ? `${kept.k}` : "largest", el("span", { class: "quiet" }, `choose a ${unit}`)),
      el("div", { class: "controls" }, el("button", { type: "button", onclick: () => move(-1) }, "Previous"), el("button", { type: "button", onclick: () => move(1) }, "Next"), el("span", { class: "quiet" }, `${at + 1} to ${at + some.length} of ${counted(order.length, "text")}`)));
  }

  function choose(target) {
    if (target.dataset.row === undefined) return;
    state.row = Number(target.dataset.row);
    for (const part of texts.querySelectorAll(".token")) {
      part.setAttribute("aria-pressed", part.dataset.row === target.dataset.row);
      part.tabIndex = part.dataset.row === target.dataset.row ? 0 : -1;
    }
    drawNear();
  }

  function steer(event) {
    const tokens = [...texts.querySelectorAll(".token")], at = tokens.indexOf(event.target);
    const way = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10 }[event.key];
    if (event.key === "Enter" || event.key === " ") choose(event.target);
    else if (way && at >= 0) {
      const next = tokens[Math.min(tokens.length - 1, Math.max(0, at + way))];
      choose(next);
      next.focus();
    } else return;
    event.preventDefault();
  }

  const line = (row, shared) => {
    const parts = snippet(kept, row);
    return el("li", { class: shared ? "shared" : null }, ...(parts ? [shownText(parts[0]), el("b", {}, shownText(parts[1])), shownText(parts[2])] : [`row ${row}`]), ...(shared ? [el("span", { class: "unseen" }, " (in both)")] : []));
  };

  function drawNear() {
    const lists = [state.a, state.b].map((a) => [...kept.listOf(a, state.row)].filter((row) => row >= 0)), own = snippet(kept, state.row);
    near.replaceChildren(el("h3", {}, "Nearest rows of ", own ? el("code", {}, shownText(own[1])) : `row ${state.row}`, `: ${agree[state.row] ?? "no value"} of ${kept.k} in both`),
      el("div", { class: "near" }, ...lists.map((rows, side) => el("div", {}, el("p", { class: "quiet" }, `in ${names[side]}`), el("ol", {}, ...rows.map((row) => line(row, lists[1 - side].includes(row))))))),
      el("p", { class: "quiet" }, "Marked: in both lists. Nearest first."));
  }

  // Tokens with several rows, by how far both layers agree on them.
  function drawList() {
    const by = new Map();
    (kept.tokens ?? []).forEach((id, row) => { if (agree[row] !== null) by.set(id, [...(by.get(id) ?? []), row]); });
    const name = (row) => snippet(kept, row)?.[1] ?? null;
    const rows = [...by].filter(([, own]) => own.length >= FEWEST).map(([id, own]) => [name(own[0]) ?? `no. ${id}`, own.length, own.reduce((sum, row) => sum + agree[row], 0) / own.length, ...(share ? [own.reduce((sum, row) => sum + share.of[row], 0)] : [])]).sort((x, y) => y[2] - x[2]);
    if (!rows.length) return list.replaceChildren();
    const columns = [unit, "rows", `of ${kept.k} nearest`, ...(share ? [`share of ${kept.measure}`] : [])];
    const some = rows.length > 2 * LISTED ? [...rows.slice(0, LISTED), null, ...rows.slice(-LISTED)] : rows;
    const lineOf = (cells) => {
      if (!cells) return el("tr", {}, el("td", { colspan: String(columns.length + 1), class: "quiet" }, `${rows.length - 2 * LISTED} more`));
      const bar = el("span", { class: "length" });
      [bar.style.width, bar.style.background] = [`${(100 * cells[2]) / kept.k}%`, coloured(cells[2] / kept.k)[0]];
      return el("tr", {}, el("td", {}, el("code", {}, shownText(cells[0]))), el("td", { class: "number" }, cells[1].toLocaleString("en")), el("td", { class: "number" }, cells[2].toFixed(1)), ...(share ? [el("td", { class: "number" }, cells[3].toPrecision(2))] : []), el("td", { class: "lengths" }, bar));
    };
    list.replaceChildren(el("h3", {}, `Which ${unit}s agree, which do not?`),
      el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${unit}s by agreement` }, el("table", {}, el("thead", {}, el("tr", {}, ...columns.map((text, c) => el("th", { scope: "col", class: c ? "number" : null }, text)), el("td", {}))), el("tbody", {}, ...some.map(lineOf)))),
      downloads(`${unit}s by agreement`, { csv: ["text/csv", () => csv(columns, rows)] }));
  }

  function draw() {
    drawTexts();
    drawNear();
    drawList();
  }

  return { box, show };
}
