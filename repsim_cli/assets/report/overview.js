// The page of all runs: a table from the JSON in #data, with search. Text reaches the page by textContent alone.
"use strict";
(() => {
const DATA = JSON.parse(document.getElementById("data").textContent);
const COLUMNS = {
  name: "name", started: "started (UTC)", status: "status", study: "study", models: "models", data: "data", measures: "measures", seed: "seed",
  seconds: "time", warnings: "warnings",
};

const NUMBERS = new Set(["started", "seed", "seconds", "warnings"]);
const link = (run) => run.page && run.page.split("/").map(encodeURIComponent).join("/");
const cut = (text) => (text.length > 200 ? `${text.slice(0, 199)}\u2026` : text);
const listed = (names) => (names.length > 6 ? `${names.slice(0, 5).join(", ")} and ${names.length - 5} more` : names.join(", "));

function cell(run, key) {
  const value = run[key];
  if (key === "name" && link(run)) return el("td", {}, el("a", { href: link(run), title: value }, cut(value)));
  if (NUMBERS.has(key)) return el("td", { class: "number" }, value === null ? "\u2013" : key === "seconds" ? lasted(value) : String(value));
  if (key === "status") return el("td", { class: value === "complete" ? null : "fails", title: run.error }, value);
  if (Array.isArray(value)) return el("td", { title: value.join(", ") }, cut(listed(value)));
  return el("td", { title: value }, cut(value));
}

const rows = DATA.runs.map((run) => {
  const picture = run.thumbnail && el("img", { src: `data:image/png;base64,${run.thumbnail}`, alt: `a figure of ${run.name}`, loading: "lazy" });
  const shown = picture && link(run) ? el("a", { href: link(run), tabindex: "-1" }, picture) : picture;
  const searched = [run.folder, run.error ?? "", ...Object.keys(COLUMNS).map((key) => [run[key]].flat().join(" "))].join(" ").toLowerCase();
  const cells = Object.keys(COLUMNS).map((key) => cell(run, key));
  cells.forEach((made, i) => made.setAttribute("data-name", Object.values(COLUMNS)[i]));
  return { run, searched, line: el("tr", {}, el("td", { class: "thumbnail" }, shown ?? ""), ...cells) };
});
const body = el("tbody", {}, ...rows.map(({ line }) => line));
const count = el("p", { class: "quiet", role: "status" });
const field = el("input", { type: "search", id: "search", placeholder: "a name, model, data, measure, study, status", oninput: search });

function search() {
  const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const { searched, line } of rows) {
    const matches = words.every((word) => searched.includes(word));
    line.classList.toggle("hidden", !matches);
    shown += matches;
  }
  count.textContent = `${shown.toLocaleString("en")} of ${counted(rows.length, "run")}`;
}

const heads = Object.entries(COLUMNS).map(([key, text]) => el("th", { scope: "col", class: NUMBERS.has(key) ? "number" : null },
  el("button", { type: "button", onclick: () => sort(key) }, text)));

function sort(key) {
  const head = heads[Object.keys(COLUMNS).indexOf(key)];
  const down = head.getAttribute("aria-sort") === "ascending";
  for (const other of heads) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const of = ({ run }) => (Array.isArray(run[key]) ? run[key].join(" ") : run[key]);
  const order = (a, b) => (typeof a === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
  rows.sort((a, b) => (of(a) === null) - (of(b) === null) || (down ? -1 : 1) * order(of(a), of(b)));
  body.append(...rows.map(({ line }) => line));
}

// The runs that the search shows, in the order of the table.
function listing() {
  const keys = ["folder", ...Object.keys(COLUMNS), "error"];
  return csv(keys, rows.filter(({ line }) => !line.classList.contains("hidden")).map(({ run }) => keys.map((key) => (Array.isArray(run[key]) ? run[key].join(" ") : run[key]))));
}

document.getElementById("page").append(
  el("header", {}, el("h1", {}, `Runs in ${DATA.root}`)),
  el("main", {},
    el("p", { class: "controls search" }, el("label", { for: "search" }, "Search", field)),
    count,
    el("div", { class: "scroll stacked", tabindex: "0", role: "region", "aria-label": "Runs" },
      el("table", {}, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "figure"), ...heads)), body)),
    downloads("runs", { csv: ["text/csv", listing] })));
search();
})();
