"""The report: everything that was measured is on it, nothing that the runs do not give, and it needs nothing else."""

from __future__ import annotations

import base64
import copy
import dataclasses
import io
import itertools
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

import browser
from ipdlam.cli import app
from ipdlam.errors import FileError
from ipdlam.experiments import EXPERIMENTS, contents
from ipdlam.experiments.claims import (
    FAILS,
    HOLDS,
    NOT_RUN,
    OPEN,
    PAPER,
    PARTLY,
    QUESTION,
    READING,
    UNJUDGED,
    UNMEASURED,
)
from ipdlam.experiments.contents import counted, counts, environments, grouped, load_contents, verdicts
from ipdlam.experiments.make import make
from ipdlam.experiments.overview import overview_picture, table_overview
from ipdlam.experiments.page import LONG_TABLE, cell_kinds, header, report_html
from ipdlam.experiments.report import report_markdown, verdict_markdown, write_report
from ipdlam.experiments.store import Store
from ipdlam.experiments.tables import Table, claim_table
from ipdlam.runs.config import ConfigError

NAMES = ("table1", "fig1", "order")
REPORT = Path(__file__).parents[2] / "results" / "report.html"
VOID = {"meta", "img", "input", "br", "hr", "link"}
HOSTILE = '<script>alert("1")</script> & <img src=x onerror=alert(2)> | "quoted" [click](javascript:alert(3))'


def ignore(spec, place, count):
    return lambda record: None


def small_enough(experiment):
    """The experiment with the smoke runs at every scale."""
    return dataclasses.replace(experiment, runs=lambda scale: EXPERIMENTS[experiment.name].runs("smoke"))


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """A folder of results at the smoke scale."""
    folder = tmp_path_factory.mktemp("smoke")
    store = Store(folder / "runs", folder / "unfinished")
    for name in NAMES:
        make(EXPERIMENTS[name], "smoke", 1, store, folder, ignore)
    return folder


@pytest.fixture(scope="module")
def scaled(tmp_path_factory):
    """A folder in which one experiment was made at all scales, and a part of another with two seeds."""
    folder = tmp_path_factory.mktemp("scaled results")
    store = Store(folder / "runs", folder / "unfinished")
    quick = {name: small_enough(EXPERIMENTS[name]) for name in EXPERIMENTS}
    make(quick["fig1"], "small", 2, store, folder, ignore, only="dlam")
    for scale in ("smoke", "small", "paper"):
        make(quick["order"], scale, 1, store, folder, ignore)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contents, "EXPERIMENTS", quick)
        yield folder


@pytest.fixture
def results(smoke, tmp_path):
    """A folder of results that a test may spoil."""
    return shutil.copytree(smoke, tmp_path / "results")


@pytest.fixture(scope="module")
def loaded(smoke):
    return load_contents(smoke)


def changed(content, **fields):
    """A content whose data are others."""
    return dataclasses.replace(content, data={**copy.deepcopy(dict(content.data)), **fields})


def judged(content, *words):
    """A content with these verdicts."""
    sources = [QUESTION if word == OPEN else PAPER for word in words]
    named = enumerate(zip(words, sources, strict=True))
    return changed(content, claims=[judged_claim(f"claim {k}", word, source) for k, (word, source) in named])


def judged_claim(claim, verdict, source=PAPER, ours="1"):
    return {"claim": claim, "paper": "", "ours": ours, "verdict": verdict, "source": source, "rule": "A rule."}


class Page(HTMLParser):
    """The page taken apart; elements that are not closed where they were opened are an error."""

    def __init__(self, text):
        super().__init__()
        self.stack, self.elements, self.words, self.rows, self.style = [], [], [], [], ""
        self.feed(text)
        self.close()
        assert self.stack == []

    def handle_starttag(self, tag, attributes):
        assert len(dict(attributes)) == len(attributes), f"{tag} has an attribute twice"
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.stack.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag == "td":
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, text):
        if self.stack[-1:] == ["style"]:
            self.style += text
        else:
            self.words.append(text)
            if "td" in self.stack:
                self.rows[-1][-1] += text

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def text(self):
        return " ".join("".join(self.words).split())


def test_everything_that_was_measured_is_on_the_page(loaded):
    page = Page(report_html(loaded))
    assert [content.experiment.name for content in loaded] == list(NAMES)
    for content in loaded:
        for claim in content.claims:
            for part in (*claim_table([claim]).rows[0], claim["rule"]):
                assert (
                    page.text.count(" ".join(part.split())) >= 2 or not part
                )  # among all verdicts, and in its section
        for line in (content.data["title"], content.data["about"], content.data["command"], *environments([content])):
            assert line in page.text
        for row in content.table.rows:
            assert list(row) in page.rows
    assert counted(loaded)[0] in page.text
    for word in ("Phi", "inertia", "proximity", "penalty", "passes", "best test", "the clock stops"):
        assert word in page.text[page.text.rindex("Glossary") :]


def test_the_page_is_whole(loaded):
    text = report_html(loaded)
    page = Page(text)
    assert text.startswith("<!DOCTYPE html>\n")
    assert page.all("html") == [{"lang": "en"}]
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in page.all("meta")
    assert {"charset": "utf-8"} in page.all("meta")
    (title,) = re.findall("<title>(.+)</title>", text)
    assert f"<h1>{title}</h1>" in text
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h\d", tag)]
    assert all(later <= earlier + 1 for earlier, later in itertools.pairwise(levels))


def test_links_lead_to_a_place_on_the_page(loaded):
    page = Page(report_html(loaded))
    places = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(set(places)) == len(places)
    targets = [attributes["href"] for attributes in page.all("a")]
    assert {target.removeprefix("#") for target in targets} <= set(places)
    for content in loaded:  # every row of the verdicts leads to its section
        assert targets.count(f"#{content.key}") == len(content.claims)
    assert {attributes["for"] for attributes in page.all("label")} <= set(places)
    for attributes in [found for _, found in page.elements]:
        assert attributes.get("aria-labelledby", places[0]) in places


def test_nothing_is_loaded(loaded):
    text = report_html(loaded)
    page = Page(text)
    assert re.findall(r"https?:|\b(?:src|href)=\W?//", text) == []
    assert not re.search(r"url\(|@import|@font-face|expression\(", page.style)
    assert {tag for tag, _ in page.elements} & {"script", "link", "iframe", "object", "embed", "base", "form"} == set()
    loading = ("src", "srcset", "poster", "background", "data", "action", "style")
    assert {key for _, found in page.elements for key in found if key in loading or key.startswith("on")} == {"src"}
    (policy,) = [found["content"] for found in page.all("meta") if "http-equiv" in found]
    assert policy.startswith("default-src 'none'; img-src data:;")


def test_pictures_are_inside_and_said_in_words(smoke, loaded):
    from matplotlib.image import imread

    images = Page(report_html(loaded)).all("img")
    assert len(images) == len(NAMES)
    for image, name in zip(images, NAMES, strict=True):
        kind, content = image["src"].split(",")
        assert kind == "data:image/png;base64"
        decoded = base64.b64decode(content, validate=True)
        assert decoded == (smoke / f"{name}-smoke.png").read_bytes()
        height, width, _ = imread(io.BytesIO(decoded), format="png").shape
        assert (image["width"], image["height"]) == (str(width), str(height))
    assert images[1]["alt"].startswith("Figure 1: iPDLAM against DLAM. Panels: digits, objective Φ by iteration;")
    assert images[1]["alt"].endswith("; iPDLAM, inertia 0.7; DLAM (Zeng et al.).")


def test_text_is_text(loaded):
    claims = [dict.fromkeys(("claim", "paper", "ours", "source", "rule"), HOSTILE) | {"verdict": HOLDS}]
    means = [{**row, "data": HOSTILE, "name": HOSTILE} for row in loaded[1].data["means"]]
    rows = [{**row, "environment": {**row["environment"], "processor": HOSTILE}} for row in loaded[1].data["rows"]]
    content = dataclasses.replace(
        changed(loaded[1], claims=claims, means=means, rows=rows, command=f"ipdlam {HOSTILE}"),
        experiment=dataclasses.replace(loaded[1].experiment, title=HOSTILE, about=HOSTILE),
        description=HOSTILE,
    )
    honest, hostile = (Page(report_html([each])) for each in (loaded[1], content))
    assert {tag for tag, _ in hostile.elements} == {tag for tag, _ in honest.elements}
    assert len(hostile.all("img")) == 1
    assert hostile.all("img")[0]["alt"] == HOSTILE
    assert hostile.text.count(HOSTILE) >= 12
    written = report_markdown([content], content.picture.parent)
    plain = re.sub("`[^`]*`", "", written.removeprefix("<!--"))  # code shows it as it is
    assert "<" not in plain
    assert "](javascript:" not in plain  # it would be a link
    for line in verdict_markdown([content]).splitlines():
        assert len(re.findall(r"(?<!\\)\|", line)) == 5


def test_verdicts_are_counted(loaded):
    first = judged(loaded[0], HOLDS, HOLDS, PARTLY, FAILS, OPEN)
    second = dataclasses.replace(judged(loaded[1], HOLDS, FAILS), scale="paper")
    assert counted([first, second]) == [
        "chosen reading, paper scale, the paper: holds: 1, does not hold: 1",
        "chosen reading, smoke scale, the paper: holds: 2, holds partly: 1, does not hold: 1",
        "chosen reading, smoke scale, others, our readings and questions: no claim: 1",
    ]
    assert counted([judged(loaded[0], UNMEASURED)]) == ["chosen reading, smoke scale, the paper: not measured: 1"]
    table = counts([first, second])
    assert table.headings == ("reading", "scale", "said by", HOLDS, PARTLY, FAILS, OPEN)
    assert table.rows[0] == ("chosen reading", "paper", "the paper", "1", "0", "1", "0")
    page = Page(report_html([first, second]))
    labels = [found["class"] for found in page.all("span") if "label" in found.get("class", "")]
    for kind, count in (("holds", 3), ("holds-partly", 1), ("does-not-hold", 2), ("no-claim", 1)):
        assert labels.count(f"label {kind}") == 2 * count  # once among all, once in its section
        assert f".{kind} {{" in page.style
    assert "No claim can be judged by these runs" in Page(report_html([judged(loaded[0])])).text


def test_what_others_say_is_not_counted_as_the_papers(loaded):
    claims = [judged_claim("its own", HOLDS), judged_claim("like it", FAILS, READING), judged_claim("else", HOLDS, "Z")]
    content = changed(loaded[0], claims=claims)
    assert counted([content]) == [
        "chosen reading, smoke scale, the paper: holds: 1",
        "chosen reading, smoke scale, others, our readings and questions: holds: 1, does not hold: 1",
    ]
    assert "| **like it (our reading)** | table1 | Rule: A rule. |  |\n| chosen reading |" in verdict_markdown(
        [content]
    )


def test_a_claim_stands_once_with_a_row_for_each_reading_and_scale(loaded):
    def content(name, scale, *verdicts):
        claims = [judged_claim(f"claim {k}", word, ours=f"{name} {scale} {k}") for k, word in enumerate(verdicts)]
        return changed(dataclasses.replace(loaded[0], experiment=EXPERIMENTS[name], scale=scale), claims=claims)

    contents = [
        content("table1", "paper", HOLDS),
        content("table1", "small", HOLDS, PARTLY),
        content("fig1", "small", HOLDS),
        content("table1-letter", "small", FAILS, FAILS),
    ]
    groups = {(group.experiment, group.claim["claim"]): group.verdicts for group in grouped(contents)}
    found = [(each.experiment, each.scale, each.claim["verdict"]) for each in groups["table1", "claim 0"]]
    assert found == [("table1", "paper", HOLDS), ("table1", "small", HOLDS), ("table1-letter", "small", FAILS)]
    assert [each.experiment for each in groups["fig1", "claim 0"]] == ["fig1"]  # the same words of another experiment
    assert {each.claim["ours"] for each in groups["fig2", "The algorithm is insensitive to delta"]} == {
        "not run; ipdlam reproduce fig2 --scale small"  # once: nobody needs to run the letter
    }
    lines = verdict_markdown(contents).splitlines()
    start = lines.index("| **claim 0** | table1 | Rule: A rule. |  |")
    assert lines[start + 1 : start + 5] == [
        "| chosen reading | paper | table1 paper 0 | holds |",
        "| chosen reading | small | table1 small 0 | holds |",
        "| to the letter | small | table1-letter small 0 | does not hold |",
        "| **claim 1** | table1 | Rule: A rule. |  |",
    ]
    text = Page(report_html(contents)).text
    places = [
        text.index(words) for words in ("claim 0 Rule: A rule.", "table1 paper 0", "table1-letter small 0", "claim 1")
    ]
    assert places == sorted(places)


def test_what_we_reported_before_comes_last_with_a_reason(loaded):
    letter = dataclasses.replace(loaded[0], experiment=EXPERIMENTS["table1-letter"], scale="small")
    chosen = dataclasses.replace(loaded[0], scale="small")
    heading = "What we reported before, and why it changed"
    for text in (Page(report_html([chosen, letter])).text, report_markdown([chosen, letter], chosen.picture.parent)):
        assert text.index(EXPERIMENTS["table1"].about) < text.index(heading) < text.index("Our earlier reports read")
        assert text.index("Our earlier reports read") < text.index(letter.experiment.about)
    assert heading not in Page(report_html([chosen])).text


def test_smoke_runs_judge_nothing(loaded):
    assert {claim["verdict"] for content in loaded for claim in content.claims} == {UNJUDGED}
    assert "not measured" not in Page(report_html(loaded)).text.split("Glossary")[0]


def test_a_claim_is_listed_where_it_was_measured_or_once(loaded):
    scales = [dataclasses.replace(loaded[0], scale=scale) for scale in ("paper", "small")]
    not_run = {"verdict": UNMEASURED, "ours": NOT_RUN}
    first = changed(
        scales[0],
        claims=[
            judged_claim("a", HOLDS),
            judged_claim("b", **not_run),
            judged_claim("c", UNMEASURED),
            judged_claim("d", FAILS),
        ],
    )
    second = changed(
        scales[1], claims=[judged_claim("a", **not_run), judged_claim("b", **not_run), judged_claim("c", HOLDS)]
    )
    found = verdicts([first, second])
    listed = [(each.scale, each.claim["claim"]) for each in found if each.experiment == loaded[0].experiment.name]
    assert listed[:5] == [("paper", "a"), ("paper", "c"), ("paper", "d"), ("small", "c"), ("small", "b")]
    known = {claim.claim for scale in ("small", "paper") for claim in loaded[0].experiment.claims([], scale)}
    assert {claim for _, claim in listed[5:]} == known  # what neither of the two speaks of


def test_experiments_that_were_not_made_are_listed_with_their_commands(loaded):
    small = dataclasses.replace(loaded[0], scale="small")
    found = [each for each in verdicts([small]) if each.experiment != loaded[0].experiment.name]
    assert {each.experiment for each in found} == set(EXPERIMENTS) - {loaded[0].experiment.name}
    for each in found:
        assert each.claim["verdict"] == UNMEASURED
        assert each.claim["ours"] == f"not run; ipdlam reproduce {each.experiment} --scale {each.scale}"
        small_enough = {claim.claim for claim in EXPERIMENTS[each.experiment].claims([], "small")}
        assert each.scale == ("small" if each.claim["claim"] in small_enough else "paper")
    bcd = {each.scale for each in found if each.experiment == "bcd"}
    assert bcd == {"paper"}  # whose authors' network is that size
    assert "not run; ipdlam reproduce fig3 --scale small" in Page(report_html([small])).text
    assert {each.key for each in verdicts(loaded[:1])} == {loaded[0].key}  # smoke runs would judge nothing


def test_a_claim_that_one_scale_alone_speaks_of_is_listed(loaded):
    content = dataclasses.replace(loaded[0], experiment=EXPERIMENTS["fig3"], scale="paper")
    claims = [dataclasses.asdict(claim) for claim in EXPERIMENTS["fig3"].claims([], "paper")]
    found = [each for each in verdicts([changed(content, claims=claims)]) if each.experiment == "fig3"]
    assert {each.claim["claim"] for each in found} == {claim.claim for claim in EXPERIMENTS["fig3"].claims([], "small")}


def test_long_tables_are_folded(loaded):
    rows = loaded[0].data["means"]
    longest = changed(loaded[0], means=(rows * 9)[:LONG_TABLE])
    longer = changed(loaded[0], means=(rows * 9)[: LONG_TABLE + 1])
    folded = {"class": "results"}
    assert folded not in Page(report_html([longest])).all("details")
    page = Page(report_html([longer]))
    assert page.all("details").count(folded) == 1
    assert f"Results, {LONG_TABLE + 1} rows" in page.text


def test_the_columns_of_the_paper_stand_under_its_name():
    table = Table(("data", "paper: Phi", "test", "ours: Phi", "ours: test", "at"), (), (False, *[True] * 5))
    head = Page(header(table, cell_kinds(table)))
    assert head.all("td") == [{"colspan": "1"}]
    assert [found.get("colspan") for found in head.all("th")] == ["2", "3", *[None] * 6]
    assert head.words == ["paper", "ours", "data", "Phi", "test", "Phi", "test", "at"]
    assert cell_kinds(table) == ["", "number first", "number", "number first", "number", "number"]
    plain = Table(("data", "Phi"), (), (False, True))
    assert header(plain, cell_kinds(plain)).count("<tr>") == 1


def test_environments_are_those_of_the_runs(loaded):
    rows = [dict(row) for row in loaded[0].data["rows"]]
    for day, row in enumerate(rows, start=1):
        row["environment"] = {
            **row["environment"],
            "processor": "A" if day < 9 else "B",
            "threads": 2,
            "date": f"2026-01-{day:02}",
        }
    found = environments([changed(loaded[0], rows=rows)])
    assert [re.sub(", torch.*;", ";", line) for line in found] == [
        "A, 2 threads; 2026-01-01 to 2026-01-08",
        f"B, 2 threads; 2026-01-09 to 2026-01-{len(rows)}",
    ]


def test_the_scales_of_an_experiment_stand_together(scaled):
    found = load_contents(scaled)
    assert [content.key for content in found] == ["fig1-small", "order-paper", "order-small"]  # no smoke
    assert found[0].part == "2 of 12 runs"
    page = Page(report_html(found))
    assert page.text.index("Paper scale") < page.text.rindex("Small scale")
    assert page.text.count(EXPERIMENTS["order"].about) == 1
    assert "Small scale (2 of 12 runs)" in page.text
    assert "makes 10 missing runs, too; with --collect none" in page.text
    assert "Smoke runs only" not in page.text
    assert "not made yet table1, fig2" in " ".join(" ".join(page.words).split())
    assert re.search(r"\d <small>\(\d+\.\d\d to \d+\.\d\d\)</small>", report_html(found))  # two seeds


def test_smoke_runs_are_shown_as_what_they_are(loaded):
    assert "Smoke runs only. A tiny network on 8 by 8 digits" in Page(report_html(loaded)).text
    assert "prove nothing about the paper" in report_markdown(loaded, loaded[0].picture.parent)


def test_the_markdown_holds_the_same(scaled):
    found = load_contents(scaled)
    text = report_markdown(found, scaled.parent / "elsewhere")
    table = verdict_markdown(found)
    assert table in text
    groups = grouped(found)
    assert table.count("\n") == 2 + len(groups) + sum(len(group.verdicts) for group in groups)
    for content in found:
        assert f"`{content.data['command']}`" in text
        for claim in content.claims:
            cells = " | ".join(cell or "-" for cell in claim_table([claim]).rows[0])
            assert f"| {cells} |" in text
            part = "" if content.part is None else f" ({content.part})"
            row = f"| chosen reading | {content.scale}{part} | {claim['ours']} | {claim['verdict']} |"
            assert claim["verdict"] == UNMEASURED or row in table
            assert f"Rule: {claim['rule']} |" in table or not claim["rule"]
    links = re.findall(r"!\[[^]]+\]\(([^)]+)\)", text)
    assert links == [f"../{scaled.name.replace(' ', '%20')}/{content.key}.png" for content in found]
    assert "| DLAM |" in text


def test_the_command_writes_both_files(results, monkeypatch):
    monkeypatch.chdir(results.parent)
    answer = CliRunner().invoke(app, ["report"], catch_exceptions=False)
    assert answer.exit_code == 0
    assert answer.output.splitlines()[-1] == "results/report.html, results/report.md"
    assert answer.output.startswith("chosen reading, smoke scale, the paper: not judged: ")
    assert (results / "report.html").read_text() == report_html(load_contents(results))
    assert "](table1-smoke.png)" in (results / "report.md").read_text()
    elsewhere = results.parent / "page.html"
    CliRunner().invoke(app, ["report", "results", "--output", str(elsewhere)], catch_exceptions=False)
    assert elsewhere.read_bytes() == (results / "report.html").read_bytes()  # the same whenever and wherever it is made
    assert "](results/table1-smoke.png)" in elsewhere.with_suffix(".md").read_text()
    assert CliRunner().invoke(app, ["report"]).exit_code == 0  # an earlier report is replaced


def rewrite(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda content: content["claims"][0].update(verdict="holds"), "claims is not what its runs give"),
        (lambda content: content["means"][0].update(test_accuracy=0.99), "means is not what its runs give"),
        (lambda content: content.update(about="better"), "about is not what its runs give"),
        (lambda content: content.update(scale="paper"), "not the result of fig1 at the smoke scale"),
        (lambda content: content.update(experiment="fig2"), "not the result of fig1 at the smoke scale"),
        (lambda content: content.update(seeds=0), "seeds must be a whole number from 1 on, got 0"),
        (lambda content: content.update(seeds="many"), "seeds must be a whole number from 1 on, got 'many'"),
        (lambda content: content.update(seeds=2), "command is not what its runs give"),
        (lambda content: content.pop("seeds"), "seeds must be a whole number from 1 on, got None"),
        (lambda content: content.pop("command"), "command is not what its runs give"),
        (lambda content: content.update(rows=3), "rows is not what its runs give"),
        (lambda content: content.update(command="rm -r ~"), "command is not what its runs give"),
        (lambda content: content.update(command=content["command"] + "; rm -r ~"), "command is not what its runs give"),
        (lambda content: content.update(command=content["command"] + " --only x"), "command is not what its runs give"),
    ],
)
def test_what_the_runs_do_not_give_is_refused(results, change, reason):
    write_report(results, results / "report.html")
    before = (results / "report.html").read_bytes()
    rewrite(results / "fig1-smoke.json", change)
    with pytest.raises(FileError, match=re.escape(reason)) as caught:
        write_report(results, results / "report.html")
    assert str(caught.value).startswith(f"{results}/fig1-smoke.json is refused: ")
    assert "; collect it again: ipdlam reproduce fig1 --scale smoke" in str(caught.value)
    assert str(caught.value).endswith(f" --output {results}")
    assert "rm -r ~" not in str(caught.value)
    assert (results / "report.html").read_bytes() == before


def test_a_run_that_was_changed_or_lost_is_noticed(results):
    run = json.loads((results / "fig1-smoke.json").read_text())["rows"][0]["run"]
    path = results / "runs" / f"{run}.json"
    rewrite(path, lambda content: content["columns"]["validation_accuracy"].__setitem__(-1, 0.999))
    with pytest.raises(FileError, match=r"-smoke\.json is refused: .* is not the file"):
        load_contents(results)
    path.write_text("{")
    with pytest.raises(FileError, match=f"{run}.json is damaged"):
        load_contents(results)
    path.unlink()
    with pytest.raises(FileError, match=rf"the run {run} \(.+\) is missing"):
        load_contents(results)
    (results / "fig1-smoke.json").write_text("{")
    (results / "table1-smoke.json").unlink()
    with pytest.raises(FileError, match=r"fig1-smoke\.json is refused: damaged, JSONDecodeError"):
        load_contents(results)
    (results / "fig1-smoke.json").write_text("[" * 100000)
    with pytest.raises(FileError, match=r"fig1-smoke\.json is refused: damaged, RecursionError"):
        load_contents(results)
    (results / "fig1-smoke.json").unlink()
    (results / "fig1-smoke.json").mkdir()
    with pytest.raises(FileError, match=r"fig1-smoke\.json cannot be read: Is a directory; .* collect it again"):
        load_contents(results)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda path: path.unlink(), "is missing"),
        (lambda path: (path.unlink(), path.mkdir()), "cannot be read: Is a directory"),
        (lambda path: path.write_bytes(b"GIF89a"), "is no PNG file"),
        (lambda path: path.write_bytes(path.read_bytes()[:20]), "is no PNG file"),
        (lambda path: path.write_bytes(b""), "is no PNG file"),
    ],
)
def test_a_picture_that_is_not_there_is_named(results, spoil, reason):
    spoil(results / "order-smoke.png")
    with pytest.raises(
        FileError,
        match=f"the picture .*order-smoke.png {reason}.*; draw it again: ipdlam reproduce order .*--collect",
    ):
        load_contents(results)


def test_no_results_say_what_to_do_first(tmp_path, monkeypatch):
    with pytest.raises(
        ConfigError, match=r"folder .*none does not exist; .* reproduce all --scale smoke --output .*none"
    ):
        load_contents(tmp_path / "none")
    (tmp_path / "page.html").write_text("")
    with pytest.raises(ConfigError, match=r"page\.html is a file; give the folder that it is in"):
        load_contents(tmp_path / "page.html")
    (tmp_path / "results").mkdir()
    monkeypatch.chdir(tmp_path)
    answer = CliRunner().invoke(app, ["report"])
    assert isinstance(answer.exception, ConfigError)
    assert str(answer.exception).startswith("folder results holds no result")
    assert str(answer.exception).endswith("ipdlam reproduce all --scale smoke")
    assert list((tmp_path / "results").iterdir()) == []


def test_only_reports_are_replaced(smoke, tmp_path):
    with pytest.raises(ConfigError, match=r"output must end in \.html, got '.*page\.md'"):
        write_report(smoke, tmp_path / "page.md")
    (tmp_path / "page.md").write_text("# My own\n")
    with pytest.raises(ConfigError, match=r"output would replace .*page\.md, which is of no report"):
        write_report(smoke, tmp_path / "page.html")
    assert [path.name for path in tmp_path.iterdir()] == ["page.md"]
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(ConfigError, match=r"output would replace .*folder\.html"):
        write_report(smoke, tmp_path / "folder.html")
    with pytest.raises(FileError, match=r"was not written: the folder .*nowhere does not exist"):
        write_report(smoke, tmp_path / "nowhere" / "page.html")


needs_browser = pytest.mark.skipif(
    browser.find() is None, reason=f"no browser on PATH to look at the page with: {', '.join(browser.NAMES)}"
)
IMAGES = "Array.from(document.images, image => image.complete ? image.naturalWidth : 0)"
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
SCREENS = [(360, 740), (768, 1024), (1400, 900)]


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with browser.Browser(browser.find(), tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def page(scaled, loaded, tmp_path_factory):
    """A page with everything that is hard to lay out: both scales, all verdicts, long tables and longer words."""
    worst = judged(loaded[0], HOLDS, PARTLY, FAILS, UNMEASURED, OPEN)
    worst.claims[0].update(claim="many words " * 40, paper="x" * 200, ours="8.25 % " * 30)
    means = [{**row, "data": "mnist"} for row in worst.data["means"]] * 10
    wide = changed(worst, means=means, command=worst.data["command"] + " --only " + "y" * 200)
    path = tmp_path_factory.mktemp("page") / "report.html"
    contents = [dataclasses.replace(wide, scale="small"), *load_contents(scaled)]
    path.write_text(report_html(contents, overview_picture(table_overview(contents), path.with_suffix(".png"))))
    return path


@needs_browser
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("screen", SCREENS, ids=lambda screen: f"{screen[0]}px")
def test_a_browser_shows_the_page(chromium, page, screen, dark):
    chromium.open(page, *screen, dark=dark)
    assert chromium.complaints == []
    widths = chromium.evaluate(IMAGES)
    assert len(widths) == 5
    assert min(widths) > 500
    assert chromium.evaluate("innerWidth") == screen[0]
    assert chromium.evaluate(OVERFLOW) == 0
    assert chromium.evaluate("document.body.getBoundingClientRect().width") <= 1100
    paper, ink = chromium.evaluate(
        "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    )
    assert (brightness(paper) < brightness(ink)) == dark
    assert brightness(chromium.evaluate("getComputedStyle(document.images[0]).backgroundColor")) == 255
    # Nothing but what lies in a box that scrolls reaches over the edge.
    over = """Array.from(document.body.querySelectorAll("*")).filter(each => !each.closest(".box, figure input")
        && each.getBoundingClientRect().right > innerWidth + 1).map(each => each.outerHTML.slice(0, 80))"""
    assert chromium.evaluate(over) == []


def brightness(colour):
    return sum(map(int, re.findall(r"\d+", colour)[:3])) / 3


@needs_browser
@pytest.mark.parametrize("screen", SCREENS, ids=lambda screen: f"{screen[0]}px")
def test_long_tables_can_be_used(chromium, page, screen):
    chromium.open(page, *screen)
    chromium.evaluate("""
        var fold = document.querySelector("details.results"), box = fold.querySelector(".box");
        fold.parentElement.closest("details").open = true;
        var closed = box.getBoundingClientRect().height;
        fold.open = true; box.scrollTop = 500;
    """)
    assert chromium.evaluate("closed") == 0
    assert chromium.evaluate("box.scrollHeight") > 2 * screen[1]
    assert chromium.evaluate("box.clientHeight") < screen[1]
    top = "box.querySelector('thead').getBoundingClientRect().top - box.getBoundingClientRect().top"
    assert 0 <= chromium.evaluate(top) <= 2  # the header stays
    assert chromium.evaluate("box.scrollTop") == 500
    assert chromium.evaluate("box.tabIndex") == 0  # and the keyboard scrolls it
    assert chromium.evaluate(OVERFLOW) == 0


@needs_browser
@pytest.mark.parametrize("screen", [SCREENS[0], SCREENS[-1]], ids=lambda screen: f"{screen[0]}px")
def test_the_keyboard_enlarges_a_picture_and_puts_it_back(chromium, page, screen):
    chromium.open(page, *screen)
    chromium.evaluate("var figure = document.querySelector('figure'), image = figure.querySelector('img')")
    chromium.evaluate("figure.querySelector('input').focus()")
    width = chromium.evaluate("image.getBoundingClientRect().width")
    chromium.press(" ", 32)
    assert chromium.evaluate("getComputedStyle(figure).position") == "fixed"
    assert chromium.evaluate("image.getBoundingClientRect().width") > max(1.2 * width, 1000)
    assert chromium.evaluate("figure.getBoundingClientRect().width") == screen[0]
    assert chromium.evaluate("figure.querySelector('figcaption').innerText").endswith("to go back.")
    chromium.press(" ", 32)
    assert chromium.evaluate("image.getBoundingClientRect().width") == width
    chromium.evaluate("figure.querySelector('label').click()")  # as a finger does
    assert chromium.evaluate("getComputedStyle(figure).position") == "fixed"


@needs_browser
def test_paper_shows_what_is_folded(chromium, page):
    chromium.open(page, 800, 1100, media="print")
    assert chromium.complaints == []
    assert chromium.evaluate("document.querySelector('details').open") is False
    height = "document.querySelector('details.results .box').getBoundingClientRect().height"
    assert chromium.evaluate(height) > 1100
    assert chromium.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"


@needs_browser
def test_a_link_unfolds_the_section_it_leads_to(chromium, page):
    chromium.open(page, 1400, 900)
    chromium.evaluate("var place = document.getElementById('order-paper'), fold = place.closest('details')")
    assert chromium.evaluate("[fold.open, place.checkVisibility()]") == [False, False]
    chromium.evaluate("document.querySelector('.verdicts a[href=\"#order-paper\"]').click()")
    chromium.evaluate("new Promise(done => setTimeout(done, 100))")
    assert chromium.evaluate("[fold.open, place.checkVisibility()]") == [True, True]
    assert -1 < chromium.evaluate("place.getBoundingClientRect().top") < 900


@needs_browser
@pytest.mark.skipif(not REPORT.exists(), reason="there is no results/ here, as in a source distribution")
def test_the_report_of_our_results_is_short_when_it_is_opened(chromium):
    chromium.open(REPORT, 1400, 900)
    assert chromium.evaluate("document.documentElement.scrollHeight") < 15 * 900


@needs_browser
def test_the_browser_would_complain(chromium, tmp_path):
    path = tmp_path / "bad.html"
    path.write_text(
        "<!DOCTYPE html><title>bad</title><meta name=viewport content='width=device-width'>"
        "<img src='gone.png' alt=''><p style='width: 900px'>wide</p>"
        "<script>console.error('so'); nonsense()</script>"
    )
    chromium.open(path, 360, 740)
    found = " ".join(map(str, chromium.complaints))
    assert "request failed" in found
    assert "console" in found
    assert "Uncaught" in found
    assert chromium.evaluate(IMAGES) == [0]
    assert chromium.evaluate(OVERFLOW) > 500
    path.write_text(
        "<!DOCTYPE html><title>bad</title><meta http-equiv=Content-Security-Policy content=\"default-src 'none'\">"
        "<script>1</script>"
    )
    chromium.open(path, 360, 740)
    assert "Content Security Policy" in " ".join(chromium.complaints)
