"""The page of the report as one HTML file: pictures inside, no script, nothing loaded from anywhere."""

from __future__ import annotations

import base64
import itertools
import re
import struct
from collections.abc import Mapping, Sequence
from html import escape

from ipdlam.experiments import EXPERIMENTS
from ipdlam.experiments.claims import OPEN, PAPER
from ipdlam.experiments.contents import (
    WARM_UP,
    Content,
    Group,
    Verdict,
    by_experiment,
    counted,
    environments,
    grouped,
    missing,
    plural,
    reading_label,
)
from ipdlam.experiments.overview import TITLE as OVERVIEW_TITLE
from ipdlam.experiments.overview import table_overview
from ipdlam.experiments.page_style import STYLE
from ipdlam.experiments.page_words import GLOSSARY, INTRODUCTION, READING_NOTE, TABLE_NOTE, WARNING
from ipdlam.experiments.paper.setup import LETTER
from ipdlam.experiments.summary import five_sentences, why_it_changed
from ipdlam.experiments.tables import CLAIM_HEADINGS, Table, attributed, claim_table

MARK = '<meta name="generator" content="ipdlam report">'
TITLE = "What the iPDLAM paper claims, and what was measured"
LONG_TABLE = 30  # rows; a longer table is folded
VERDICT_HEADINGS = ("reading", "scale", "ours", "verdict")
GROUPS = ("paper: ", "ours: ")  # a heading that begins so begins the columns of the paper, or ours

WHOLE = r'<span class="whole">\g<0></span>'  # no line breaks within it
OPTION = re.compile(r"--\w+")
HYPHENATED = re.compile(r"[\w.]*\d[a-z]?-\d[\w.-]*")
RANGE = re.compile(r"(\S+) (\(\S+ to \S+\))")

# Whatever slips through the escaping runs no script and loads nothing.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def report_html(contents: Sequence[Content], overview: bytes | None = None) -> str:
    """The whole page; ``overview`` is the picture of Table 1, where there is one."""
    groups = by_experiment(contents)
    names = "".join(
        f'<li><a href="#{group[0].experiment.name}">{escape(group[0].experiment.title)}</a></li>'
        for group in groups
        if group[0].reading != LETTER
    )
    before = '<li><a href="#letter">What we reported before</a></li>' if any(is_letter(each) for each in groups) else ""
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
{sentences(contents)}
{opening_picture(contents, overview)}
<nav aria-label="Parts of this page"><ul><li><a href="#verdicts">Verdicts</a></li>{names}{before}\
<li><a href="#glossary">Glossary</a></li></ul></nav>
</header>
<main>
<section aria-labelledby="verdicts">
<h2 id="verdicts">Verdicts</h2>
<p>{INTRODUCTION}</p>
<p class="note">{READING_NOTE}</p>
<details><summary>How many claims hold, by reading and scale</summary>
{facts({"claims": item_list(counted(contents)), "not made yet": ", ".join(missing(contents))})}
</details>
{all_claims(contents)}
</section>
{experiment_sections(groups, contents)}
<section aria-labelledby="glossary">
<h2 id="glossary">Glossary</h2>
<details><summary>What the words mean, and what the runs were made on</summary>
<dl class="glossary">
{GLOSSARY}
</dl>
{facts({"measured on": item_list(environments(contents))})}
</details>
</section>
</main>
</body>
</html>
"""


def sentences(contents: Sequence[Content]) -> str:
    """What the report comes to, first of all."""
    inner = "".join(f"<dt>{escape(ask)}</dt><dd>{prose(told)}</dd>\n" for ask, told in five_sentences(contents).items())
    return f'<dl class="sentences">\n{inner}</dl>'


def opening_picture(contents: Sequence[Content], image: bytes | None) -> str:
    """Our Table 1 beside the paper's."""
    shown = table_overview(contents)
    return "" if shown is None or image is None else figure("overview", OVERVIEW_TITLE, shown.description, image)


def is_letter(group: Sequence[Content]) -> bool:
    """Whether an experiment is one that we reported before."""
    return group[0].reading == LETTER


def experiment_sections(groups: Sequence[Sequence[Content]], contents: Sequence[Content]) -> str:
    """All experiments, folded; the letter's come last, with why they do."""
    parts = []
    for title, place, letter, words in (
        ("The experiments", "experiments", False, ""),
        ("What we reported before, and why it changed", "letter", True, f"<p>{prose(why_it_changed(contents))}</p>"),
    ):
        inner = "\n".join(section(group) for group in groups if is_letter(group) == letter)
        if inner:
            parts.append(
                f'<section aria-labelledby="{place}">\n<h2 id="{place}">{title}</h2>\n{words}\n{inner}\n</section>'
            )
    return "\n".join(parts)


def section(group: Sequence[Content]) -> str:
    """An experiment at all its scales, folded. A link to its first paragraph unfolds it."""
    experiment = group[0].experiment
    scales = ", ".join(content.scale for content in group)
    return f"""\
<details class="experiment">
<summary><h3>{escape(experiment.title)}</h3> <span class="note">{escape(scales)} scale</span></summary>
<p class="about" id="{experiment.name}">{prose(experiment.about)}</p>
{"".join(one_scale(content) for content in group)}
<p class="note back"><a href="#verdicts">Back to the verdicts</a></p>
</details>"""


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
<h4 id="{content.key}">{escape(content.scale.capitalize())} scale{escape(part)}</h4>
{judged}
{figure(content.key, f"{content.experiment.title}, {content.scale} scale", content.description, content.image)}
{results(content)}
{facts(told)}
"""


def all_claims(contents: Sequence[Content]) -> str:
    """Every claim once, with its verdicts: first the paper's own, then, folded, what others say and what we ask."""
    groups = grouped(contents)
    own = [group for group in groups if group.claim["source"] == PAPER]
    asked = [group for group in groups if group.claim["verdict"] == OPEN]
    others = [group for group in groups if group not in own and group not in asked]
    found = claim_groups("What the paper claims", own)
    for title, mine in (("Our readings, and what others say", others), ("What the paper leaves open", asked)):
        if mine:
            inner = claim_groups(title, mine)
            found += f"<details><summary>{title}: {plural(len(mine), 'claim')}</summary>\n{inner}\n</details>"
    return found


def claim_groups(name: str, groups: Sequence[Group]) -> str:
    """For each experiment its claims, for each claim its verdicts."""
    found = []
    for experiment, mine in itertools.groupby(groups, lambda group: group.experiment):
        title = EXPERIMENTS[experiment].title
        body = "\n".join(claim_group(group) for group in mine)
        found.append(f"""\
<h3>{escape(title)}</h3>
<table class="verdicts" role="table" aria-label="{escape(name)}: {escape(title)}">
<thead role="rowgroup"><tr role="row">{column_heads(VERDICT_HEADINGS)}</tr></thead>
{body}
</table>""")
    return "\n".join(found)


def claim_group(group: Group) -> str:
    """A claim with what is said and the rule, and a row for each reading and scale."""
    said = f' <span class="said">The paper: {prose(group.claim["paper"])}.</span>' if group.claim["paper"] else ""
    rows = "\n".join(table_row(VERDICT_HEADINGS, verdict_cells(verdict)) for verdict in group.verdicts)
    return f"""\
<tbody role="rowgroup">
<tr role="row" class="asked"><th role="rowheader" scope="rowgroup" colspan="{len(VERDICT_HEADINGS)}">\
<span class="words">{prose(attributed(group.claim))}</span>{said}{rule_of(group.claim)}</th></tr>
{rows}
</tbody>"""


def verdict_cells(verdict: Verdict) -> dict[str, str]:
    """One reading at one scale, with a way to its section, if there is one."""
    part = "" if verdict.part is None else f' <span class="whole">({escape(verdict.part)})</span>'
    name = escape(reading_label(verdict.reading))
    link = name if verdict.key is None else f'<a href="#{verdict.key}">{name}</a>'
    cells = claim_cells(verdict.claim)
    return {
        "reading": link,
        "scale": escape(verdict.scale) + part,
        "ours": cells["ours"],
        "verdict": cells["verdict"],
    }


def claims(content: Content) -> str:
    """The claims of one section."""
    rows = []
    for claim in content.claims:
        cells = claim_cells(claim)
        rows.append({**cells, "ours": cells["ours"] + rule_of(claim)})
    return claim_rows(f"Claims, {content.scale} scale", CLAIM_HEADINGS, rows)


def claim_cells(claim: Mapping[str, str]) -> dict[str, str]:
    """A claim, escaped, its verdict as a label."""
    words = claim_table([claim]).rows[0]
    found = {name: prose(word) or "&ndash;" for name, word in zip(CLAIM_HEADINGS, words, strict=True)}
    kind = "-".join(claim["verdict"].split())
    label = f'<span class="label {escape(kind)}">{found["verdict"]}</span>'
    return {**found, "verdict": label}


def rule_of(claim: Mapping[str, str]) -> str:
    """How the verdict is reached, in small print; a question has no rule."""
    return f' <span class="rule">Rule: {prose(claim["rule"])}</span>' if claim["rule"] else ""


def claim_rows(name: str, headings: Sequence[str], rows: Sequence[Mapping[str, str]]) -> str:
    """A table that becomes a list on a narrow screen; the roles keep it a table for screen readers there."""
    if not rows:
        return ""
    body = "\n".join(table_row(headings, row) for row in rows)
    return f"""\
<table class="claims" role="table" aria-label="{escape(name)}">
<thead role="rowgroup"><tr role="row">{column_heads(headings)}</tr></thead>
<tbody role="rowgroup">
{body}
</tbody>
</table>"""


def column_heads(headings: Sequence[str]) -> str:
    """The heads of the columns."""
    return "".join(f'<th class="{each}" role="columnheader" scope="col">{each}</th>' for each in headings)


def table_row(headings: Sequence[str], row: Mapping[str, str]) -> str:
    """One row of claims."""
    cells = (f'<td class="{each}" role="cell" data-label="{each}">{row[each]}</td>' for each in headings)
    return f'<tr role="row">{"".join(cells)}</tr>'


def figure(key: str, name: str, description: str, image: bytes) -> str:
    """A picture; a hidden check box, which needs no script, lays it over the page and back."""
    width, height = struct.unpack(">II", image[16:24])  # where a PNG file has them
    source = "data:image/png;base64," + base64.b64encode(image).decode("ascii")
    return f"""\
<figure>
<input type="checkbox" id="enlarge-{key}" aria-label="Enlarge the picture: {escape(name)}">
<label for="enlarge-{key}">\
<img alt="{escape(description)}" width="{width}" height="{height}" src="{source}"></label>
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
    return f'<details class="results"><summary>Results, {len(table.rows)} rows</summary>\n{box}\n</details>'


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
