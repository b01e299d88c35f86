"""The style sheet and the script of the HTML page: readable on a phone, on a projector in the dark, and on paper."""

import base64
import hashlib

# --- Colours of the page and of figures: each with what stands for it on a dark page


# (on white, on a dark page)
INK, FAINT, LINE, PAGE = ("#000000", "#e8e8e8"), ("#b8b8b8", "#66707a"), ("#e0e0e0", "#2d343a"), ("#ffffff", "#14181c")
SERIES = (
    ("#0072b2", "#4fa8e8"), ("#d55e00", "#f28a3c"), ("#009e73", "#2fc594"), ("#b0558f", "#e39ac8"),
    ("#b07d00", "#f0c040"), ("#3f97cf", "#9fdcff"), ("#7a1f4e", "#c2587f"), ("#332288", "#9a8cf0"),
    ("#6b7a00", "#b8c53a"), ("#777777", "#a9a9a9"), ("#8c5a3c", "#c79a78"), ("#e0567a", "#ff8fae"),
)  # fmt: skip

# names of the style sheet's variables, and the colours that figures are drawn with
VARIABLES = {"fig-ink": INK, "fig-faint": FAINT, "fig-line": LINE, "page": PAGE} | {
    f"c{number}": pair for number, pair in enumerate(SERIES)
}


def variables(dark: bool) -> str:
    """The variables as declarations of a style sheet."""
    return " ".join(f"--{name}: {pair[dark]};" for name, pair in VARIABLES.items())


CSS = (
    f"""
:root {{ color-scheme: light dark; {variables(dark=False)} }}
@media (prefers-color-scheme: dark) {{ :root {{ {variables(dark=True)} }} }}
@media print {{ :root {{ color-scheme: light; {variables(dark=False)} }} }}
"""
    + """
[hidden] { display: none !important; }
:root { --ink: #1b1b1b; --soft: #5c5c5c; --line: #d8d8d8; --tint: #f4f6f8; --mark: #0b5c8a; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 92rem; padding: 1rem; color: var(--ink); background: var(--page);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", "Noto Sans", "Noto Sans CJK KR", sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: .5rem 0; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
p, li, dd { overflow-wrap: anywhere; max-width: 60rem; }
sup { display: inline-block; width: 0; line-height: 0; font-size: .75em; }
.soft, .notes { color: var(--soft); font-size: .875rem; }
.warning { border-left: 4px solid #b45309; background: #fff7ed; color: #451a03;
  padding: .5rem .75rem; margin: .5rem 0; }
.scroll { overflow-x: auto; border-top: 2px solid var(--ink); border-bottom: 2px solid var(--ink); }
table { border-collapse: collapse; width: 100%; font-size: .875rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .5rem; text-align: right; white-space: nowrap; font-weight: normal; }
td, th { vertical-align: baseline; }
th { color: var(--soft); }
thead th { vertical-align: bottom; }
.left, th[scope=row] { text-align: left; }
th[scope=row] { color: var(--ink); }
.long { white-space: normal; overflow-wrap: anywhere; min-width: 11rem; max-width: 22rem; }
.data .name { position: sticky; left: 0; background: var(--page); }
thead tr:last-child > *, thead [rowspan] { border-bottom: 1px solid var(--ink); }
tr.opens > * { border-top: 1px solid var(--ink); }
tbody tr:hover > * { background: var(--tint); }
.runs td, .runs th { text-align: left; }
.data tbody tr:hover > .name { background: var(--tint); }
.words { text-align: center; }
.words.long { max-width: none; }
.span { text-align: center; border-bottom: 1px solid var(--line); }
.best { font-weight: 700; }
.gap { color: var(--soft); }
.cell { cursor: help; }
.cell:focus { outline: 2px solid var(--mark); outline-offset: -2px; }
.tip { display: none; position: fixed; z-index: 9; left: 1rem; right: 1rem; bottom: 1rem; max-width: 40rem;
  margin: 0 auto; padding: .75rem 1rem; text-align: left; white-space: pre-line; overflow-wrap: anywhere;
  font-size: .875rem; font-weight: normal; color: #fff; background: #1f2933; border: 1px solid #52606d;
  border-radius: .375rem; max-height: 60vh; overflow: auto; box-shadow: 0 4px 16px rgb(0 0 0 / .35);
  pointer-events: none; }
.cell:hover > .tip, .cell:focus > .tip { display: block; }
.tip.at { display: block; }
.live .tip { left: 0; right: auto; bottom: auto; margin: 0;
  width: max-content; max-width: min(30rem, 100vw - 20px); }
.live-only { display: none; }
.live .live-only { display: block; }
figure { margin: 1.5rem 0; }
figcaption { color: var(--ink); font-size: 1rem; font-weight: 600; margin-bottom: .5rem; }
figure svg { width: 100%; height: auto; display: block; fill: var(--fig-ink); }
figure svg:focus { outline: 1px solid var(--line); }
.narrow { display: none; }
.live .point { cursor: pointer; }
.point.on * { opacity: 1 !important; stroke: var(--fig-ink) !important; stroke-width: 2 !important; }
.tools { display: none; gap: .5rem; align-items: baseline; flex-wrap: wrap; margin: .75rem 0 .5rem; }
.live .tools { display: flex; }
button, .choose > summary { font: inherit; font-size: .875rem; color: var(--ink); background: var(--tint);
  border: 1px solid var(--line); border-radius: .375rem; padding: .25rem .75rem; cursor: pointer; list-style: none; }
button:hover, summary:hover { border-color: var(--soft); }
.choose { position: relative; }
.choose > div { position: absolute; z-index: 8; top: 2.2rem; left: 0; max-height: 60vh; overflow: auto;
  width: max-content; max-width: 88vw; padding: .5rem .75rem; background: var(--page); border: 1px solid var(--line);
  border-radius: .375rem; box-shadow: 0 4px 16px rgb(0 0 0 / .25); }
.choose label { display: block; font-size: .875rem; padding: .125rem 0; overflow-wrap: anywhere; }
.choose input { margin: 0 .5rem 0 0; }
th > .sort { color: inherit; background: none; border: 0; padding: 0; text-align: inherit; }
th > .sort:hover { text-decoration: underline; }
th > .unnamed { font-size: 0; }
th > .unnamed::before { content: "↕"; font-size: .875rem; }
[aria-sort] > .sort { color: var(--ink); font-weight: 600; }
[aria-sort=ascending] > .sort::after { content: " ▲"; font-size: .625rem; }
[aria-sort=descending] > .sort::after { content: " ▼"; font-size: .625rem; }
.again { display: none; }
.sorted .again, .some .again { display: inline; }
.sorted tr.opens > * { border-top: 0; }
dt { font-weight: 600; margin-top: .5rem; }
dd { margin: 0; }
details > summary { cursor: pointer; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: var(--tint); padding: .5rem; font-size: .8rem; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e8; --soft: #a8b0b8; --line: #3a4148; --tint: #1e2429; --mark: #6cb6e8; }
  .warning { background: #3b2a10; color: #f8e3c0; }
}
@media (max-width: 40rem) { body { padding: .5rem; font-size: 15px; } th, td { padding: .25rem .35rem; } }
@media (max-width: 46rem) { .wide { display: none; } .narrow { display: block; } .narrow svg { max-width: 40rem; } }
@page { margin: 12mm; }
@media print {
  :root { --ink: #000; --soft: #333; --line: #999; --tint: #fff; }
  body { max-width: none; padding: 0; font-size: 9pt; }
  .scroll { overflow: visible; }
  table { font-size: 6.5pt; }
  th, td { padding: 1pt 2pt; }
    .tip, .tools, .live-only { display: none !important; }
  figure, tr { break-inside: avoid; }
  h2 { break-after: avoid; }
  .wide { display: block; }
  .narrow { display: none; }
  figure svg { max-height: 22cm; }
  .data .name { position: static; }
  details > * { display: block; }
  details::details-content { content-visibility: visible; height: auto; }
}
"""
)


# --- The script: the values of marks in figures; then sorting, hiding and copying the table
# It is inline, and the page's policy allows exactly this text, by its digest. It loads nothing, keeps nothing, and
# makes elements only from text. Without it the page shows the same numbers.


MARKS = r"""
"use strict";
document.documentElement.classList.add("live");
const make = (tag, text, kind) => {
  const made = document.createElement(tag);
  made.textContent = text;
  if (kind) made.className = kind;
  return made;
};

// Details: near what is pointed at, within the window.
const beside = (box, mark) => {
  const gap = 10, size = box.getBoundingClientRect();
  const left = Math.min(Math.max(gap, mark.left + mark.width / 2 - size.width / 2), innerWidth - size.width - gap);
  const above = mark.top - size.height - gap;
  box.style.left = Math.max(gap, left) + "px";
  const below = Math.min(mark.bottom + gap, innerHeight - size.height - gap);
  box.style.top = Math.max(gap, above > gap ? above : below) + "px";
};
for (const cell of document.querySelectorAll(".cell")) {
  const place = () => beside(cell.querySelector(".tip"), cell.getBoundingClientRect());
  cell.addEventListener("mouseenter", place);
  cell.addEventListener("focus", place);
}

// Figures: the nearest mark tells its values; a click keeps them, arrows go from mark to mark.
const box = make("div", "", "tip at");
box.setAttribute("role", "status");
box.hidden = true;
document.body.append(box);
let kept = null;
const show = mark => {
  for (const other of document.querySelectorAll(".point.on")) other.classList.remove("on");
  box.hidden = !mark;
  if (!mark) return;
  mark.classList.add("on");
  box.textContent = mark.dataset.tip;
  beside(box, mark.getBoundingClientRect());
};
const keep = mark => show(kept = mark);
for (const drawing of document.querySelectorAll("figure svg")) {
  const marks = [...drawing.querySelectorAll(".point")];
  if (!marks.length) continue;
  for (const mark of marks) {
    const title = mark.querySelector("title");
    mark.dataset.tip = title.textContent;
    title.remove();
  }
  const nearest = event => {
    let found = null, least = event.pointerType === "mouse" ? 18 : 32;
    for (const mark of marks) {
      const at = mark.getBoundingClientRect();
      const far = Math.hypot(at.x + at.width / 2 - event.clientX, at.y + at.height / 2 - event.clientY);
      if (far < least) [found, least] = [mark, far];
    }
    return found;
  };
  drawing.setAttribute("tabindex", "0");
  drawing.addEventListener("pointermove", event => {
    if (!kept && event.pointerType === "mouse") show(nearest(event));
  });
  drawing.addEventListener("pointerleave", () => { if (!kept) show(null); });
  drawing.addEventListener("click", event => { keep(nearest(event)); event.stopPropagation(); });
  drawing.addEventListener("keydown", event => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const at = kept && marks.includes(kept) ? marks.indexOf(kept) + step : 0;
    keep(marks[(at + marks.length) % marks.length]);
  });
  drawing.addEventListener("blur", () => keep(null));
}
document.addEventListener("click", () => keep(null));
addEventListener("scroll", () => { if (kept) show(kept); }, { passive: true });
document.addEventListener("keydown", event => {
  if (event.key !== "Escape") return;
  keep(null);
  if (document.activeElement.matches(".cell")) document.activeElement.blur();
});

"""

TABLE = r"""
// The table: which columns each cell takes, before any is hidden.
const table = document.querySelector("table.data"), body = table.tBodies[0];
const lines = [...body.rows], heads = [], taken = new Map(), filled = [];
for (const [depth, row] of [...table.tHead.rows].entries()) {
  let at = 0;
  for (const cell of row.cells) {
    while (filled[at] > depth) at++;
    taken.set(cell, [at, at + cell.colSpan]);
    for (let i = at; i < at + cell.colSpan; i++) filled[i] = depth + cell.rowSpan;
    if (cell.dataset.name) heads[at] = cell;
    at += cell.colSpan;
  }
}
for (const line of lines) {
  let at = 0;
  for (const cell of line.cells) {
    taken.set(cell, [at, at + cell.colSpan]);
    at += cell.colSpan;
  }
}
const under = (line, column) => [...line.cells].find(cell => {
  const [first, end] = taken.get(cell);
  return first <= column && column < end;
});
const printed = node => node.className !== "tip" && (node.className !== "again" || table.matches(".sorted, .some"));
const written = cell => [...cell.childNodes].filter(printed).map(node => node.textContent).join("");
const plain = text => text.replace(/\u2212/g, "-");
const number = text => {
  const found = /^[-+]?\d[\d,]*(\.\d+)?(e[-+]?\d+)?(?= \u00b1| \(|$)/.exec(plain(text));
  return found ? parseFloat(found[0].replace(/,/g, "")) : null;
};

// Sorting: up, down, the study's order. What has no value stays last; a blank setting is base's.
let sorted = [null, 0];
const sort = column => {
  const turn = sorted[0] === column ? (sorted[1] + 1) % 3 : 1, way = turn === 2 ? -1 : 1;
  sorted = turn ? [column, turn] : [null, 0];
  for (const head of heads) head.removeAttribute("aria-sort");
  if (turn) heads[column].setAttribute("aria-sort", turn === 1 ? "ascending" : "descending");
  const keys = new Map(lines.map(line => {
    const cell = under(line, column);
    const first = cell.firstChild?.nodeType === 3 ? cell.firstChild.data : cell.textContent; // without mark and details
    const text = cell.matches(".words") ? "" : cell.dataset.base ?? first;
    return [line, text.startsWith("\u2013") ? "" : text];
  }));
  const values = [...keys.values()].filter(text => text), numeric = values.every(text => number(text) !== null);
  const order = [...lines];
  if (turn) order.sort((a, b) => {
    const [x, y] = [keys.get(a), keys.get(b)];
    if (!x || !y) return !x - !y;
    return way * (numeric ? number(x) - number(y) : x.localeCompare(y, undefined, { numeric: true }));
  });
  table.classList.toggle("sorted", turn > 0);
  body.append(...order);
};
for (const [column, head] of heads.entries()) {
  const button = make("button", head.textContent || head.dataset.name, head.textContent ? "sort" : "sort unnamed");
  button.type = "button";
  button.title = "Sort by " + head.dataset.name;
  button.addEventListener("click", () => sort(column));
  head.replaceChildren(button);
}

// Hiding of columns and rows.
const off = new Set();
const hide = () => {
  for (const [cell, [first, end]] of taken) {
    let seen = 0;
    for (let i = first; i < end; i++) seen += !off.has(i);
    cell.hidden = !seen;
    cell.colSpan = Math.max(1, seen);
  }
};
const choices = (title, names, change) => {
  const details = make("details", "", "choose"), list = make("div", "");
  details.name = "choose"; // one open at a time
  details.append(make("summary", title), list);
  for (const [index, name] of names) {
    const label = make("label", ""), tick = document.createElement("input");
    tick.type = "checkbox";
    tick.checked = true;
    tick.addEventListener("change", () => change(index, tick.checked));
    label.append(tick, name);
    list.append(label);
  }
  return details;
};
document.addEventListener("click", event => {
  for (const open of document.querySelectorAll(".choose[open]")) if (!open.contains(event.target)) open.open = false;
});
const bar = document.querySelector(".tools"), said = make("span", "", "soft");
said.setAttribute("role", "status");
const columns = [...heads.entries()].filter(([, head]) => !head.matches(".name"))
  .map(([index, head]) => [index, head.dataset.name]);
const rows = lines.map((line, index) => [index, line.querySelector("th").textContent]);
bar.append(
  choices("Columns", columns, (index, on) => { if (on) off.delete(index); else off.add(index); hide(); }),
  choices("Rows", rows, (index, on) => {
    lines[index].hidden = !on;
    table.classList.toggle("some", lines.some(line => line.hidden));
  }));

// Copying of what is seen, in its order: text with tabs and a table for documents, or Markdown.
const seen = () => {
  const shown = [...heads.keys()].filter(column => !off.has(column));
  const cells = [...body.rows].filter(line => !line.hidden).map(line => shown.map(column => {
    const cell = under(line, column); // one across several columns is copied in the first of them that is seen
    return shown.find(other => other >= taken.get(cell)[0]) === column ? written(cell) : "";
  }));
  return [shown.map(column => heads[column].dataset.name), ...cells];
};
const copy = (text, html, count) => {
  const put = event => {
    event.preventDefault();
    event.clipboardData.setData("text/plain", text);
    if (html) event.clipboardData.setData("text/html", html);
  };
  document.addEventListener("copy", put);
  said.textContent = document.execCommand("copy") ? "Copied " + count : "The browser refused to copy.";
  document.removeEventListener("copy", put);
};
const count = grid => {
  const [rows, columns] = [grid.length - 1, grid[0].length];
  return `${rows} row${rows === 1 ? "" : "s"}, ${columns} column${columns === 1 ? "" : "s"}.`;
};
const tabbed = text => number(text) !== null ? plain(text) : text.replace(/^(?=[=+\-@\uff1d\uff0b\uff0d\uff20])/, "'");
const asTable = grid => {
  const made = make("table", "");
  for (const [index, cells] of grid.entries()) {
    const line = make("tr", "");
    line.append(...cells.map(text => make(index ? "td" : "th", text)));
    made.append(line);
  }
  return made.outerHTML;
};
const asMarkdown = grid => {
  const line = cells => "| " + cells.map(text => text.replace(/[\\`*_\[\]<>~$|&]/g, "\\$&")).join(" | ") + " |\n";
  const rule = grid[0].map((_, i) => grid.slice(1).some(cells => number(cells[i]) !== null) ? "--:" : "---");
  return line(grid[0]) + "| " + rule.join(" | ") + " |\n" + grid.slice(1).map(line).join("");
};
const button = (text, act) => {
  const made = make("button", text);
  made.type = "button";
  made.addEventListener("click", act);
  return made;
};
bar.append(
  button("Copy", () => {
    const grid = seen();
    copy(grid.map(cells => cells.map(tabbed).join("\t") + "\n").join(""), asTable(grid), count(grid));
  }),
  button("Copy as Markdown", () => { const grid = seen(); copy(asMarkdown(grid), "", count(grid)); }),
  said);
"""

SCRIPT = MARKS + TABLE
DIGEST = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
