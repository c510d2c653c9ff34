// What both pages use. Text reaches them by textContent alone.
"use strict";
const counted = (n, what) => `${n.toLocaleString("en")} ${what}${n === 1 ? "" : "s"}`;
const lasted = (seconds) => (seconds < 100 ? `${Number(seconds.toPrecision(seconds < 10 ? 2 : 3))} s` : seconds < 6000 ? `${(seconds / 60).toFixed(1)} min` : `${(seconds / 3600).toFixed(1)} h`);

function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null) made.setAttribute(name, value);
  }
  made.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return made;
}

function saved(name, type, content) {
  const address = URL.createObjectURL(new Blob([content], { type }));
  el("a", { href: address, download: name.replace(/[^\w.@-]+/g, "_") }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

// as plain.py: what a spreadsheet takes for a formula begins with an apostrophe
const FORMULA = /^(\s*[=+\-@＝＋－＠]|[\t\r\n])/, NUMBER = /^[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf|nan)$/i;

function csv(columns, rows) {
  const cell = (value) => {
    if (typeof value === "string" && FORMULA.test(value) && !NUMBER.test(value)) value = `'${value}`;
    const text = value === null || value === undefined || Number.isNaN(value) ? "" : typeof value === "object" ? JSON.stringify(value) : String(value);
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [columns, ...rows].map((row) => row.map(cell).join(",")).join("\n") + "\n";
}

// files: {suffix: [type, function that gives the content]}
function downloads(name, files) {
  return el("div", { class: "downloads" }, ...Object.entries(files).map(([suffix, [type, content]]) =>
    el("button", { type: "button", "aria-label": `Download ${name} as ${suffix.toUpperCase()}`, onclick: async () => saved(`${name}.${suffix}`, type, await content()) }, suffix.toUpperCase())));
}
