
"use strict";
document.documentElement.classList.add("live");
const make = (tag, text, kind) => {
  const made = document.createElement(tag);
  made.textContent = text;
  if (kind) made.className = kind;
  return made;
};

// Place the details of a cell near the cell, inside the window.
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

document.addEventListener("keydown", event => {
  if (event.key === "Escape" && document.activeElement.matches(".cell")) document.activeElement.blur();
});


// Record the columns that each cell occupies, before any column is hidden.
const table = document.querySelector("table.data"), body = table.tBodies[0];
// On a phone, move the settings behind the metrics, so that metrics are next to the name of their row.
if (matchMedia("(max-width: 40rem)").matches)
  for (const line of table.rows) line.append(...line.querySelectorAll(".setting"));
// Show the hint that the table scrolls only if it does. The style sheet shows the hint only on a phone.
const frame = document.querySelector(".scroll");
const hint = () => { document.querySelector(".scrolls").hidden = frame.scrollWidth <= frame.clientWidth; };
addEventListener("resize", hint);
hint();
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

// Sort in ascending order, descending order, or the study's order. Rows without a value are last. A blank setting has
// base's value.
let sorted = [null, 0];
const sort = column => {
  const turn = sorted[0] === column ? (sorted[1] + 1) % 3 : 1, way = turn === 2 ? -1 : 1;
  sorted = turn ? [column, turn] : [null, 0];
  for (const head of heads) head.removeAttribute("aria-sort");
  if (turn) heads[column].setAttribute("aria-sort", turn === 1 ? "ascending" : "descending");
  const keys = new Map(lines.map(line => {
    const cell = under(line, column);
    const first = cell.firstChild?.nodeType === 3 ? cell.firstChild.data : cell.textContent; // text without mark and details
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

// Hide columns and rows.
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
  details.name = "choose"; // only one list is open at a time
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

// Copy the visible cells in their present order: as text with tabs and a table for documents, or as Markdown.
const seen = () => {
  const shown = [...heads.keys()].filter(column => !off.has(column));
  const cells = [...body.rows].filter(line => !line.hidden).map(line => shown.map(column => {
    const cell = under(line, column); // a cell across several columns is copied in its first visible column
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
