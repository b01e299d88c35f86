"""The page's script: values of marks in figures, sorting, hiding and copying of the table.

It is inline, and the page's policy allows exactly this text, by its digest. It loads nothing, keeps nothing, and makes
elements only from text. Without it the page shows the same numbers.
"""

import base64
import hashlib

from reports.render.page_table_script import TABLE

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

SCRIPT = MARKS + TABLE
DIGEST = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
