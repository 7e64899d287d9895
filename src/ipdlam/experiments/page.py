"""The page of the report as one HTML file: pictures inside, no script, nothing loaded from anywhere."""

from __future__ import annotations

import base64
import itertools
import re
from collections.abc import Mapping, Sequence
from html import escape

from ipdlam.experiments.base import START
from ipdlam.experiments.contents import (
    WARM_UP,
    Content,
    by_experiment,
    counted,
    environments,
    missing,
    verdicts,
)
from ipdlam.experiments.page_style import STYLE
from ipdlam.experiments.tables import CLAIM_HEADINGS, Table, claim_table

MARK = '<meta name="generator" content="ipdlam report">'
TITLE = "What the iPDLAM paper claims, and what was measured"
LONG_TABLE = 30  # rows; a longer table is folded
GROUPS = ("paper: ", "ours: ")  # a heading that begins so begins the columns of the paper, or ours

WHOLE = r'<span class="whole">\g<0></span>'  # no line breaks within it
OPTION = re.compile(r"--\w+")
HYPHENATED = re.compile(r"[\w.]*\d[a-z]?-\d[\w.-]*")
RANGE = re.compile(r"(\S+) (\(\S+ to \S+\))")

# Whatever slips through the escaping runs no script and loads nothing.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

INTRODUCTION = """\
The claims of <cite>Inertial Proximal Deep Learning Alternating Minimization for Efficient Neural Network
Training</cite> (Qiao, Sun, Pan and Li), which introduces iPDLAM, held against runs of the library <code>ipdlam</code>.
Every number of ours was worked out from the stored runs when this page was made, every verdict by a rule that is
part of the library. Where the paper leaves a setting open, the section says what was taken."""

WARNING = """\
<p class="warning"><strong>Smoke runs only.</strong> A tiny network on 8 by 8 digits, for a few iterations: it shows
that everything works and proves nothing about the paper. No claim is judged.</p>"""

TABLE_NOTE = """\
<p class="note">Accuracies in percent. <i>best test</i> is the highest of any iteration, <i>at</i> which one.
<a href="#glossary">Glossary</a></p>"""

GLOSSARY = f"""\
<dt>scale</dt>
<dd>paper: the network and length of the paper (two hidden layers of 1500, 200 iterations) unless the section says
otherwise; small: the same with layers of 300, again unless the section says otherwise; smoke: a few iterations on
digits.</dd>
<dt>Phi (&Phi;)</dt>
<dd>The objective that is minimised: the loss and the regulariser, plus the squared gaps between each layer and what its
input gives, weighted by half the penalty. A small Phi says little of the network by itself. It compares runs of one
method with one penalty: other methods minimise other functions.</dd>
<dt>weighed at rho {START}</dt>
<dd>Phi of the last iterate with {START} for the penalty, whatever that has grown to: it compares iterates. A run that
kept the penalty there would end elsewhere.</dd>
<dt>smallest lead, stable from</dt>
<dd>By how many points of test accuracy iPDLAM is ahead where it is least so, among the first iterations after which
both were evaluated; the iteration from which on the test accuracy stays within a point of the last one.</dd>
<dt>level at, after seconds</dt>
<dd>When the test accuracy is first within a point of the best that iPDLAM has.</dd>
<dt>inertia (&alpha;, &beta;, &gamma;)</dt>
<dd>How far an update first goes on in the direction of the last change; 0 is not at all.</dd>
<dt>proximity (&delta;)</dt>
<dd>The weight of the terms that keep an update near the point that inertia leads to.</dd>
<dt>penalty (&rho;)</dt>
<dd>The weight of the gaps in Phi. It grows by a factor each iteration, up to a bound.</dd>
<dt>passes</dt>
<dd>How often all samples were read in the whole run: an epoch of an optimizer is one pass, an iteration of an
alternating method one or more.</dd>
<dt>training, test</dt>
<dd>The accuracy of the true forward pass after the last iteration, in percent. Brackets hold the lowest and the highest
over the seeds of a mean.</dd>
<dt>best test, at</dt>
<dd>The highest test accuracy of any iteration that was evaluated (at the paper scale every fifth, at the small one
every second or third, of most), and which one it was. The test set itself picks it, so that it is a little too
kind to every method.</dd>
<dt>seconds</dt>
<dd>Of training only: the clock stops while accuracies are evaluated. They compare runs on one machine, roughly: most
runs had one thread beside other work.</dd>
<dt>times as fast</dt>
<dd>To within half a point of the best test accuracy of the optimizer alone, in seconds of training; 0 is never.</dd>
<dt>gain, in equal time</dt>
<dd>Points of best test accuracy over the optimizer alone, with as many passes over the data, and within the time of the
quicker of the two.</dd>
<dt>higher, like</dt>
<dd>Of two accuracies one is higher if it is so by more than half a point; one is like another, or like a printed one,
within one point.</dd>
<dt>holds</dt>
<dd>All that the claim says was found.</dd>
<dt>holds partly</dt>
<dd>The claim says several things, of which some were found; the others were not found, or not measured.</dd>
<dt>does not hold</dt>
<dd>Nothing that the claim says was found, though some of it or all was measured.</dd>
<dt>diverged</dt>
<dd>A number was no longer finite. Such a run has a best iterate, but no end.</dd>
<dt>not measured</dt>
<dd>The runs that the claim needs are not there, or cannot speak for the paper.</dd>
<dt>no claim</dt>
<dd>A question that the paper leaves open: what was found, without a verdict.</dd>
<dt>our reading</dt>
<dd>What we take the paper to mean where it does not say it so. Readings, and what others than the paper say, are
counted apart from its own claims.</dd>"""


def report_html(contents: Sequence[Content]) -> str:
    """The whole page."""
    groups = by_experiment(contents)
    sections = "\n".join(section(group) for group in groups)
    names = "".join(
        f'<li><a href="#{group[0].experiment.name}">{escape(group[0].experiment.title)}</a></li>' for group in groups
    )
    summary = {
        "claims": count_lines(contents),
        "measured on": item_list(environments(contents)),
        "not made yet": ", ".join(missing(contents)),
    }
    return f"""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
{MARK}
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{TITLE}</title>
<style>{STYLE}</style>
</head>
<body>
<header>
<h1>{TITLE}</h1>
{WARNING if contents[0].scale == WARM_UP else ""}
<p>{INTRODUCTION}</p>
{facts(summary)}
<nav aria-label="Experiments"><ul>{names}<li><a href="#glossary">Glossary</a></li></ul></nav>
</header>
<main>
<section aria-labelledby="verdicts">
<h2 id="verdicts">Verdicts</h2>
{all_claims(contents)}
</section>
{sections}
<section aria-labelledby="glossary">
<h2 id="glossary">Glossary</h2>
<dl class="glossary">
{GLOSSARY}
</dl>
</section>
</main>
</body>
</html>
"""


def section(group: Sequence[Content]) -> str:
    """An experiment at all its scales."""
    name = group[0].experiment.name
    return f"""\
<section aria-labelledby="{name}">
<h2 id="{name}">{escape(group[0].experiment.title)}</h2>
<p class="about">{prose(group[0].experiment.about)}</p>
{"".join(one_scale(content) for content in group)}
<p class="note back"><a href="#verdicts">Back to the verdicts</a></p>
</section>"""


def one_scale(content: Content) -> str:
    """Claims, picture, table, and how to make them again."""
    part = "" if content.part is None else f" ({content.part})"
    told = {
        "command": f"<code>{OPTION.sub(WHOLE, escape(content.data['command']))}</code> {prose(content.warning)}",
        "runs": escape(content.part or f"all {content.data['runs_declared']}"),
        "seeds": escape(str(content.data["seeds"])),
        "measured on": item_list(environments([content])),
    }
    judged = claims(content) or '<p class="note">No claim can be judged by these runs.</p>'
    return f"""\
<h3 id="{content.key}">{escape(content.scale.capitalize())} scale{escape(part)}</h3>
{judged}
{figure(content)}
{results(content)}
{facts(told)}
"""


def all_claims(contents: Sequence[Content]) -> str:
    """Every claim, with a way to its section, if there is one."""
    rows = []
    for verdict in verdicts(contents):
        part = "" if verdict.part is None else f' <span class="whole">({escape(verdict.part)})</span>'
        name = escape(verdict.experiment)
        link = name if verdict.key is None else f'<a href="#{verdict.key}">{name}</a>'
        rows.append({"experiment": link, "scale": escape(verdict.scale) + part, **claim_cells(verdict.claim)})
    return claim_rows("All claims", ("experiment", "scale", *CLAIM_HEADINGS), rows)


def claims(content: Content) -> str:
    """The claims of one section."""
    rows = [claim_cells(claim) for claim in content.claims]
    return claim_rows(f"Claims, {content.scale} scale", CLAIM_HEADINGS, rows)


def claim_cells(claim: Mapping[str, str]) -> dict[str, str]:
    """A claim, escaped, its verdict as a label."""
    words = claim_table([claim]).rows[0]
    found = {name: prose(word) or "&ndash;" for name, word in zip(CLAIM_HEADINGS, words, strict=True)}
    kind = "-".join(claim["verdict"].split())
    return {**found, "verdict": f'<span class="label {escape(kind)}">{found["verdict"]}</span>'}


def claim_rows(name: str, headings: Sequence[str], rows: Sequence[Mapping[str, str]]) -> str:
    """A table that becomes a list on a narrow screen; the roles keep it a table for screen readers there."""
    if not rows:
        return ""
    head = "".join(f'<th class="{each}" role="columnheader" scope="col">{each}</th>' for each in headings)
    body = "\n".join(
        '<tr role="row">'
        + "".join(f'<td class="{each}" role="cell" data-label="{each}">{row[each]}</td>' for each in headings)
        + "</tr>"
        for row in rows
    )
    return f"""\
<table class="claims" role="table" aria-label="{escape(name)}">
<thead role="rowgroup"><tr role="row">{head}</tr></thead>
<tbody role="rowgroup">
{body}
</tbody>
</table>"""


def figure(content: Content) -> str:
    """The picture; a hidden check box, which needs no script, lays it over the page and back."""
    width, height = content.size
    source = "data:image/png;base64," + base64.b64encode(content.image).decode("ascii")
    name = f"{content.experiment.title}, {content.scale} scale"
    return f"""\
<figure>
<input type="checkbox" id="enlarge-{content.key}" aria-label="Enlarge the picture: {escape(name)}">
<label for="enlarge-{content.key}">\
<img alt="{escape(content.description)}" width="{width}" height="{height}" src="{source}"></label>
<figcaption class="note">Click, tap or press the space bar <span class="closed">to enlarge</span>\
<span class="open">to go back</span>.</figcaption>
</figure>"""


def results(content: Content) -> str:
    """What was measured, in a box of its own that scrolls; folded where it is long."""
    table, name = content.table, f"Results of {content.experiment.title}, {content.scale} scale"
    kinds = cell_kinds(table)
    body = "\n".join(
        "<tr>"
        + "".join(f"<td{classed(kind)}>{figures(cell)}</td>" for kind, cell in zip(kinds, row, strict=True))
        + "</tr>"
        for row in table.rows
    )
    box = f"""\
<div class="box" role="region" tabindex="0" aria-label="{escape(name)}">
<table>
<thead>{header(table, kinds)}</thead>
<tbody>
{body}
</tbody>
</table>
</div>
{TABLE_NOTE}"""
    if len(table.rows) <= LONG_TABLE:
        return box
    return f"<details><summary>Results, {len(table.rows)} rows</summary>\n{box}\n</details>"


def figures(cell: str) -> str:
    """A cell; the range over the seeds behind a mean is set smaller."""
    found = RANGE.fullmatch(cell)
    return escape(cell) if found is None else f"{escape(found[1])} <small>{escape(found[2])}</small>"


def groups(table: Table) -> list[str]:
    """Whose each column is: that of the last heading that said so, or nobody's."""
    found: list[str] = []
    for heading in table.headings:
        said = heading.split(": ", 1)[0] if heading.startswith(GROUPS) else None
        found.append(said or (found[-1] if found else ""))
    return found


def cell_kinds(table: Table) -> list[str]:
    """The classes of each column: numbers to the right, a line before each group."""
    owners = groups(table)
    begins = [owner != before for owner, before in zip(owners, ["", *owners], strict=False)]
    return [
        " ".join(["number"] * number + ["first"] * first) for number, first in zip(table.numeric, begins, strict=True)
    ]


def header(table: Table, kinds: Sequence[str]) -> str:
    """The headings, below those of their groups where there are such."""
    owners = groups(table)
    upper = "".join(
        f'<th class="group" colspan="{count}">{escape(owner)}</th>' if owner else f'<td colspan="{count}"></td>'
        for owner, count in ((owner, len(list(same))) for owner, same in itertools.groupby(owners))
    )
    cells = "".join(
        f'<th{classed(kind)} scope="col">{escape(heading.removeprefix(f"{owner}: "))}</th>'
        for heading, owner, kind in zip(table.headings, owners, kinds, strict=True)
    )
    return (f"<tr>{upper}</tr>" if any(owners) else "") + f"<tr>{cells}</tr>"


def classed(kind: str) -> str:
    """The attribute, if there is anything to say."""
    return f' class="{kind}"' if kind else ""


def facts(told: Mapping[str, str]) -> str:
    """Names and what they are; those that are nothing are left out."""
    inner = "".join(f"<dt>{name}</dt><dd>{value}</dd>\n" for name, value in told.items() if value)
    return f'<dl class="facts">\n{inner}</dl>'


def item_list(lines: Sequence[str]) -> str:
    """One line each."""
    return "<ul>" + "".join(f"<li>{prose(line)}</li>" for line in lines) + "</ul>"


def prose(text: str) -> str:
    """Words, escaped, in which no line breaks before a percent sign or within a date, 1e-5 or --option."""
    whole = OPTION.sub(WHOLE, HYPHENATED.sub(WHOLE, escape(text)))
    return whole.replace(" %", "&nbsp;%")


def count_lines(contents: Sequence[Content]) -> str:
    """How many claims hold."""
    return item_list(counted(contents))
