"""The page's style sheet: readable on a phone, in the dark of a projector's room, and on paper."""

from reports.render.palette import variables

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
