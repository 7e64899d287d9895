"""How the page of the report looks: on a phone, on a wide screen, in the dark and on paper, with the system's fonts."""

from __future__ import annotations

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #fdfdfc; --ink: #1d1d1b; --soft: #5a5a55; --line: #d9d8d2; --tint: #f4f3ee; --link: #0b5394;
  --shade: #00000026;
  --good: #14622f; --good-tint: #e3f1e6; --half: #7a4d00; --half-tint: #faeed3; --bad: #98201a; --bad-tint: #fae4e1;
  --text: Charter, "Bitstream Charter", "Sitka Text", Cambria, Georgia, serif;
  --plain: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  --fixed: ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #161718; --ink: #e4e3df; --soft: #a5a49d; --line: #3a3b3d; --tint: #202224; --link: #8ab8ea;
    --shade: #ffffff2e;
    --good: #93d3a6; --good-tint: #17301f; --half: #ecc477; --half-tint: #352a12; --bad: #f2a49c; --bad-tint: #3c1e1b;
  }
}
*, *::before, *::after { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body {
  margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 1100px;
  background: var(--paper); color: var(--ink); font: 1.0625rem/1.55 var(--text); overflow-wrap: break-word;
}
p, .about { max-width: 44rem; margin: 0 0 1rem; }
h1, h2, h3, h4 { line-height: 1.25; margin: 0 0 .5rem; text-wrap: balance; }
h1 { font-size: 1.8rem; }
h2 { font-size: 1.4rem; margin-top: 3.25rem; padding-top: .75rem; border-top: 1px solid var(--line); }
h3 { font-size: 1.1rem; margin-top: 1.75rem; }
h4 { font-size: 1rem; margin-top: 1.5rem; }
a { color: var(--link); text-underline-offset: .15em; text-decoration-thickness: 1px; }
:focus-visible, figure:has(:focus-visible) img { outline: 2px solid var(--link); outline-offset: 2px; }
.whole { white-space: nowrap; }
.note { color: var(--soft); font: .875rem/1.5 var(--plain); }
.warning { max-width: 44rem; border-left: 4px solid var(--half); padding: .6rem .9rem; background: var(--half-tint); }
nav ul { list-style: none; margin: 0 0 1rem; padding: 0; display: flex; flex-wrap: wrap; gap: .25rem 1.1rem; }
nav, .facts, table, .label, .rule { font-family: var(--plain); }
nav { font-size: .9375rem; }

table { border-collapse: collapse; font-size: .875rem; line-height: 1.4; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; vertical-align: bottom; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid var(--line); }
td { vertical-align: top; }
.number { text-align: right; }
caption { text-align: left; color: var(--soft); padding-bottom: .35rem; }

/* A shadow at an edge says that there is more; it lies still while the covers over it move with the table. */
.box {
  overflow: auto; max-height: 85vh; max-width: 100%; width: fit-content; margin: 0 0 1rem;
  border: 1px solid var(--line);
  background:
    linear-gradient(90deg, var(--paper) 40%, transparent) left / 2rem 100% no-repeat local,
    linear-gradient(270deg, var(--paper) 40%, transparent) right / 2rem 100% no-repeat local,
    linear-gradient(90deg, var(--shade), transparent) left / .75rem 100% no-repeat scroll,
    linear-gradient(270deg, var(--shade), transparent) right / .75rem 100% no-repeat scroll;
}
.box table { border-collapse: separate; border-spacing: 0; }
.box th, .box td { white-space: nowrap; padding-block: .2rem; }
.box thead { position: sticky; top: 0; }
.box thead th, .box thead td { background: var(--tint); }
.box thead td { border-bottom: 0; }
.box thead th.group {
  border-left: 1px solid var(--line); color: var(--soft); font-weight: 400; border-bottom: 0; padding-bottom: 0;
}
.box .first { border-left: 1px solid var(--line); }
.box tbody tr:last-child td { border-bottom: 0; }
.box small { color: var(--soft); font-size: .75rem; }
.box tbody tr:hover td { background: var(--tint); }
summary { cursor: pointer; font: .9375rem/1.5 var(--plain); padding: .3rem 0; color: var(--link); }
details { margin-bottom: 1rem; }

.sentences {
  display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .45rem 1.1rem; margin: 1rem 0 1.5rem;
  padding: .9rem 1.1rem; background: var(--tint); border-left: 4px solid var(--link);
}
.sentences dt { font: 600 .9375rem/1.65 var(--plain); }
.sentences dd { margin: 0; }
.experiment { margin: 0; border-bottom: 1px solid var(--line); }
.experiment[open] { padding-bottom: 1rem; }
.experiment > summary { padding: .5rem 0; }
.experiment > summary h3 {
  display: inline; margin: 0 .5rem 0 .2rem; font: 600 1.0625rem/1.4 var(--text); color: var(--ink);
}
.experiment > .about { scroll-margin-top: 4rem; margin-top: .5rem; }

.claims, .verdicts { width: 100%; margin-bottom: 1.25rem; }
.claims td, .verdicts td, .verdicts th { overflow-wrap: anywhere; }
.claims th, .verdicts thead th { color: var(--soft); font-weight: 400; }
.verdicts thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
.verdicts .asked th { padding: .7rem 0 .25rem; border-bottom: 0; border-top: 1px solid var(--line); font-weight: 400; }
.verdicts .words { font-weight: 600; }
.verdicts .said { margin-left: .4rem; }
.verdicts td { border-bottom: 0; padding: .15rem .6rem .15rem 0; }
.verdicts tr:last-child td { padding-bottom: .7rem; }
.verdicts .reading { width: 9rem; padding-left: 1rem; }
.verdicts .scale { width: 9rem; }
.verdicts .verdict { width: 7.5rem; padding-right: 0; }
.rule { display: block; color: var(--soft); font-size: .8125rem; }
.claims .claim { width: 24%; }
.claims .paper { width: 17%; }
.claims .verdict { width: 7.5rem; }
.label {
  display: inline-block; padding: .05rem .45rem; border: 1px solid; border-radius: .2rem; font-size: .8125rem;
  white-space: nowrap;
}
.holds { color: var(--good); background: var(--good-tint); }
.holds-partly { color: var(--half); background: var(--half-tint); }
.does-not-hold { color: var(--bad); background: var(--bad-tint); }
.not-measured, .not-judged, .no-claim { color: var(--soft); }
.no-claim { border-style: dashed; }

figure { margin: 0 0 1.25rem; }
figure img {
  display: block; width: 100%; height: auto; background: #fff; border: 1px solid var(--line); cursor: zoom-in;
}
figcaption { padding-top: .3rem; }
figure input { position: absolute; width: 1px; height: 1px; margin: 0; opacity: 0; }
figure:has(:checked) {
  position: fixed; inset: 0; z-index: 2; margin: 0; padding: .5rem; overflow: auto; background: var(--paper);
  display: grid; align-content: safe center; justify-items: start;
}
figure:has(:checked) label { width: max(100%, 1200px); }
figure:has(:checked) img { cursor: zoom-out; }
figure:has(:checked) figcaption { order: -1; position: sticky; left: 0; padding-bottom: .4rem; }
figure .open, figure:has(:checked) .closed { display: none; }
figure:has(:checked) .open { display: inline; }
body:has(figure :checked) { overflow: hidden; }
@media (prefers-color-scheme: dark) { figure img { border: 6px solid #fff; border-radius: 3px; } }

.facts {
  display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .25rem 1rem; margin: 0 0 1rem;
  font-size: .875rem; line-height: 1.5;
}
.facts dt { color: var(--soft); }
.facts dd { margin: 0; }
.facts ul { margin: 0; padding: 0; list-style: none; }
code { font: .8125rem/1.5 var(--fixed); }
dd code {
  display: block; width: fit-content; max-width: 100%; white-space: pre-wrap; overflow-wrap: anywhere;
  padding: .15rem .5rem; background: var(--tint); -webkit-user-select: all; user-select: all;
}
.glossary { max-width: 44rem; margin: 0; }
.glossary dt { font-weight: 600; }
.glossary dd { margin: 0 0 .6rem; }

.claims .scale { overflow-wrap: normal; }  /* a short word is not broken */

@media screen and (max-width: 47.99rem) {
  body { padding: 1.25rem .875rem 3rem; font-size: 1rem; }
  h1 { font-size: 1.5rem; }
  h2 { font-size: 1.25rem; margin-top: 2.5rem; }
  nav li { padding: .3rem 0; }
  .claims, .claims tbody, .claims td { display: block; }
  .claims thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  .claims tr { display: flex; flex-wrap: wrap; align-items: baseline; gap: .25rem .75rem;
    border-top: 1px solid var(--line); padding: .7rem 0; }
  .claims td { border: 0; padding: 0; }
  .claims .experiment, .claims .scale, .claims .verdict { order: -1; }
  .claims .verdict { width: auto; }
  .claims .claim { width: 100%; font-size: .9375rem; }
  .claims .paper, .claims .ours { width: 100%; padding-left: 3.5rem; position: relative; }
  .claims .paper::before, .claims .ours::before {
    content: attr(data-label); position: absolute; left: 0; color: var(--soft);
  }
  .verdicts, .verdicts thead, .verdicts tbody, .verdicts th { display: block; }
  .verdicts tr { display: flex; flex-wrap: wrap; align-items: baseline; gap: .1rem .75rem; }
  .verdicts td { display: block; padding: .1rem 0; }
  .verdicts .reading, .verdicts .scale, .verdicts .verdict { width: auto; order: -1; padding-left: 0; }
  .verdicts .ours { width: 100%; padding-bottom: .4rem; }
  .verdicts tr:last-child td { padding-bottom: .1rem; }
  .verdicts .said { margin-left: 0; }
  .facts, .sentences { grid-template-columns: minmax(0, 1fr); gap: 0; }
  .facts dd, .sentences dd { margin-bottom: .5rem; }
}
@media print {
  :root {
    --paper: #fff; --ink: #000; --soft: #444; --line: #bbb; --tint: #f2f2f2; --link: #000;
    --good: #14622f; --good-tint: #fff; --half: #7a4d00; --half-tint: #fff; --bad: #98201a; --bad-tint: #fff;
  }
  body { max-width: none; padding: 0; font-size: 10pt; }
  nav, figcaption, .back { display: none; }
  a { text-decoration: none; }
  table, .facts, .note, summary { font-size: 8pt; }
  .label, .rule, code { font-size: 7.5pt; }
  .sentences dt { font-size: 9pt; }
  .box { max-height: none; overflow: visible; border: 0; }
  .box th, .box td { padding: .1rem .3rem; }
  .box thead { position: static; }
  details::details-content { content-visibility: visible; display: block; height: auto; }
  figure, tr, dd { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
  figure:has(:checked) { position: static; display: block; }
  figure:has(:checked) label { width: 100%; }
  figure img { border: 0; }
}
"""
