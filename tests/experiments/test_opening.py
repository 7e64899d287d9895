"""How the report opens: five sentences that the verdicts and rows give, and one picture of Table 1."""

from __future__ import annotations

import dataclasses
import itertools
import re
from pathlib import Path

import pytest

from ipdlam.experiments import EXPERIMENTS, readings, table1
from ipdlam.experiments.claims import HOLDS, UNJUDGED
from ipdlam.experiments.contents import Content, base_name
from ipdlam.experiments.overview import MARK, overview_picture, table_overview
from ipdlam.experiments.page import report_html
from ipdlam.experiments.report import report_markdown, write_report
from ipdlam.experiments.summary import fit, five_sentences, why_it_changed
from ipdlam.runs.config import ConfigError

ASKED = ["What holds", "What does not", "Why", "In which reading", "What to do about it"]
GOOD = {"objective": 1800.0, "train_accuracy": 0.97, "test_accuracy": 0.945}
DECAYED = {"objective": 7e5, "train_accuracy": 0.88, "test_accuracy": 0.876}


def row(inertia, data="mnist", **fields):
    """One of Table 1, as the means over its seeds are."""
    plain = {"data": data, "method": "ipdlam", "hidden": [1500, 1500], "inertia": inertia, "diverged": False}
    plain |= {"seeds": 1, "diverged_seeds": 0, "iterations": 200, "evaluated_every": 5, "environment": {}}
    plain |= {"best_test_accuracy": 0.947, "best_iteration": 5, "objective_reweighed": 1.0, "run": "0"}
    plain |= {**GOOD, **fields}
    objective = plain["objective"]
    return {**plain, "objective_per_sample": None if objective is None else objective / 60000}


def overflow(inertia, data="mnist"):
    lost = dict.fromkeys(("objective", "train_accuracy", "test_accuracy"))
    return row(inertia, data, **lost, diverged=True, diverged_seeds=1)


def content(name, means, scale="paper", declared=None):
    """An experiment of which there are these means."""
    experiment = EXPERIMENTS[name]
    claims = [dataclasses.asdict(claim) for claim in experiment.claims(means, scale)]
    if scale == "smoke":
        claims = [{**claim, "verdict": UNJUDGED} for claim in claims]
    data = {"claims": claims, "means": means, "rows": means, "seeds": 1, "runs": len(means), "command": "ipdlam"}
    return Content(
        experiment, scale, {**data, "runs_declared": declared or len(means)}, Path(f"{name}.png"), b"", "a picture"
    )


def letter(scale="paper"):
    return content("table1-letter", [row(0.1, **DECAYED), row(0.7, **DECAYED)], scale)


def chosen(*inertias):
    usual = inertias or tuple(value for value in table1.INERTIAS if value < 1.0)
    return content("table1", [*(row(value) for value in usual), overflow(1.1), overflow(1.2)], declared=26)


def told(*contents):
    """The five sentences, each of which is one."""
    found = five_sentences(contents)
    assert list(found) == ASKED
    for words in found.values():
        assert re.fullmatch(r"[A-Z0-9][^\n]+\.", words)
        assert not re.search(r"\.\s+[A-Z]|  |,,|, \.|None\b(?! of)|nan\b", words)
    return found


def test_without_runs_of_the_chosen_reading_the_sentences_speak_of_the_letter():
    found = told(letter())
    assert found["What holds"] == (
        "To the letter the one judged claim of the paper's tables and figures does not hold."
    )
    assert found["What does not"].startswith(
        "1 does not hold: “after 200 iterations inertia 0.7 has the numbers of the table” (MNIST); "
    )
    assert "falls from 94.7 % at iteration 5 to 87.6 % at the end (paper scale), because" in found["Why"]
    assert found["In which reading"].endswith("but no claim is judged in it yet.")
    assert found["What to do about it"].startswith("Make the runs of the chosen reading (ipdlam reproduce table1 ")


def test_with_a_part_of_the_runs_the_rest_is_said_to_be_open():
    found = told(chosen(0.1, 0.7), letter())
    assert found["What holds"].startswith("In the chosen reading the one judged claim")
    assert re.fullmatch(r"None of them fails; \d+ are not judged yet\.", found["What does not"])
    assert "in the chosen reading the test accuracy at inertia 0.7 on MNIST ends at 94.5 %" in found["Why"]
    assert "to the letter it falls from 94.7 % at iteration 5 to 87.6 % at the end" in found["Why"]
    assert found["In which reading"].endswith("and 0 of 1 judged claims hold.")
    settings = "(weight_proximity=0.00195 and penalty=1e-6)"
    assert found["What to do about it"] == f"Train with the settings of the chosen reading {settings}."


def test_with_all_runs_the_claims_are_counted_and_named_once_for_both_data_sets():
    both = [
        each
        for data in ("mnist", "fashion-mnist")
        for each in (
            *(row(value, data) for value in table1.INERTIAS if value < 1.0),
            overflow(1.1, data),
            overflow(1.2, data),
        )
    ]
    found = told(content("table1", both), letter())
    assert "“above inertia 1 the method performs poorly” (MNIST and Fashion-MNIST)" in str(found)
    groups = {
        claim["claim"]: claim["verdict"] for claim in content("table1", both).claims if claim["source"] == "the paper"
    }
    holding = sum(verdict == HOLDS for verdict in groups.values())
    assert f"{holding} of the {len(groups)} judged claims" in found["What holds"]


def test_a_number_of_a_sentence_is_that_of_its_row():
    better = content("table1", [row(0.7, test_accuracy=0.9393, best_test_accuracy=0.94)])
    assert "ends at 93.9 %, within a point of its best" in told(better)["Why"]
    worse = content("table1", [row(0.7, test_accuracy=0.85)])
    assert "falls from 94.7 % at iteration 5 to 85.0 %" in told(worse)["Why"]
    assert told(worse)["What to do about it"].startswith("Keep the best iterate (restore_best=True)")
    assert "is lost to overflow (paper scale)" in told(content("table1", [overflow(0.7)]))["Why"]
    small = content("table1", [row(0.7)], "small")
    assert "(small scale)" in told(small)["Why"]
    assert "(paper scale)" in told(content("table1", [row(0.7)]), small)["Why"]  # the largest there is
    assert told(content("fig2", []))["Why"].endswith("are not made yet.")


def test_what_helps_is_read_from_the_experiment_on_the_decay():
    ends = {
        "as in the paper": 0.65,
        "ridge 1e-5": 0.915,
        "penalty 10": 0.9,
        "ridge 1e-6": 0.651,
        "constant penalty": 0.982,
    }
    more = {"decay": 0.2, "gaps": 1.0, "gaps_at_first": 5.0, "first_iteration": 2, "first_test_accuracy": 0.8}
    rows = [row(0.7, variant=name, test_accuracy=end, objective_at_best=1.0, **more) for name, end in ends.items()]
    advice = told(content("decay", rows, "small"), letter())["What to do about it"]
    assert advice.endswith("ends at 65.0 %, at 91.5 % with ridge 1e-5 and at 98.2 % with constant penalty.")
    none = [each for each in rows if each["test_accuracy"] < 0.655]
    assert "what helps" not in told(content("decay", none, "small"), letter())["What to do about it"]


def test_how_well_the_chosen_reading_fits_is_read_from_the_readings():
    names = [readings.weighed("1/512", 1e-6).name, readings.weighed("1/N", 0.1).name]
    cells = {0.1: 0.95, 0.7: 0.96, 0.8: 0.92, 1.0: 0.9}

    def held(*accuracies):
        rows = []
        for name, lost in zip(names, accuracies, strict=True):
            for inertia, accuracy in cells.items():
                mine = row(inertia, test_accuracy=accuracy - lost, train_accuracy=accuracy - lost)
                rows.append({**mine, "reading": name, "misfit": readings.misfit(mine)})
            rows.append({**overflow(1.1), "reading": name, "misfit": None})
        return content("readings", rows, "small")

    assert re.fullmatch(
        r"which fits Table 1 best of 2 readings \(misfit [\d.]+, to the letter [\d.]+\)", fit([held(0.0, 0.2)])
    )
    assert fit([held(0.2, 0.0)]).startswith("which is number 2 of 2 readings by its fit to Table 1")
    assert fit([letter()]) == ""
    assert fit([held(0.0, 0.2)]) in told(held(0.0, 0.2), letter())["In which reading"]
    assert fit([held(0.0, 0.2)]) in why_it_changed([held(0.0, 0.2)])


def test_smoke_runs_say_that_nothing_is_judged():
    smoke = content("table1", [row(0.7, "digits")], "smoke")
    found = told(smoke)
    assert found["What holds"].startswith("Nothing is judged here: these are smoke runs")
    assert found["What does not"].startswith(f"Nothing is judged here either: {len(smoke.claims)} claims stand below")
    assert found["What to do about it"] == "Make runs that can judge: ipdlam reproduce all --scale small."
    assert table_overview([smoke]) is None  # digits are not in the table


def test_page_and_markdown_open_with_the_sentences_and_then_the_picture(tmp_path):
    contents = [letter("small")]
    picture = tmp_path / "report.png"
    image = overview_picture(table_overview(contents), picture)
    contents = [dataclasses.replace(contents[0], image=image)]
    sentences = five_sentences(contents)
    page = report_html(contents, image)
    places = [page.index(f"<dt>{asked}</dt>") for asked in ASKED]
    assert [*places, page.index("<figure>"), page.index('<h2 id="verdicts">')] == sorted(
        [*places, page.index("<figure>"), page.index('<h2 id="verdicts">')]
    )
    text = report_markdown(contents, tmp_path, picture)
    lines = [f"- **{asked}.** {words}" for asked, words in sentences.items()]
    assert "\n".join(lines) + "\n\n![Table 1: the paper's beside ours](report.png)\n\n## Verdicts" in text


# --- the picture ---


def test_the_picture_shows_the_paper_and_every_reading_and_scale():
    overview = table_overview([chosen(0.1, 0.7), letter(), letter("small")])
    assert [each.name for each in overview.series] == [
        "the paper",
        "chosen reading, size of the paper",
        "to the letter, size of the paper",
        "to the letter, small scale",
    ]
    assert overview.datasets == ["mnist"]
    phi, train, test = overview.series[1].points["mnist"]
    assert phi == ((0.1, 0.03), (0.7, 0.03), (1.1, None), (1.2, None))
    assert train[1] == (0.7, pytest.approx(97.0))
    assert test[1] == (0.7, pytest.approx(94.5))
    paper = dict(overview.series[0].points["mnist"][2])
    assert paper[0.7] == pytest.approx(94.2)  # in the column it belongs to
    assert paper[1.1] is None
    for words in ("mnist, Phi for each sample", "test accuracy (%)", "to the letter, small scale"):
        assert words in overview.description
    assert table_overview([content("fig2", [])]) is None


def test_the_picture_is_the_same_whenever_it_is_drawn(tmp_path):
    overview = table_overview([chosen(), letter("small")])
    first, second = (overview_picture(overview, tmp_path / name) for name in ("a.png", "b.png"))
    assert first == second
    assert MARK.encode() in first


def test_the_picture_of_an_earlier_report_is_replaced(tmp_path, monkeypatch):
    path, smoke = tmp_path / "page.png", [letter("small")]
    image = overview_picture(table_overview(smoke), path)
    path.write_bytes(image[:-1])
    contents = [dataclasses.replace(smoke[0], image=image)]
    monkeypatch.setattr("ipdlam.experiments.report.load_contents", lambda folder: contents)
    write_report(tmp_path, tmp_path / "page.html")
    assert path.read_bytes() == image


def test_values_that_are_beyond_the_axes_are_drawn_at_their_edges(tmp_path):
    far = [row(0.7, objective=1e29, test_accuracy=0.1), row(0.1, objective=-1.0), row(1.0, test_accuracy=None)]
    overview = table_overview([content("table1-letter", far)])
    assert len(overview_picture(overview, tmp_path / "far.png")) > 10000
    lost = table_overview([content("table1-letter", [overflow(0.7)])])
    assert len(overview_picture(lost, tmp_path / "lost.png")) > 10000


def test_a_picture_that_is_of_no_report_is_not_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr("ipdlam.experiments.report.load_contents", lambda folder: [letter("small")])
    for wrong, image in itertools.product(("page.png",), (b"\x89PNG", b"")):
        (tmp_path / wrong).write_bytes(image)
        with pytest.raises(ConfigError, match=r"output would replace .*page\.png, which is of no report"):
            write_report(tmp_path, tmp_path / "page.html")
    assert [path.name for path in tmp_path.iterdir()] == ["page.png"]


def test_the_name_of_an_experiment_is_one_in_both_readings():
    letters = {name for name in EXPERIMENTS if name != base_name(name)}
    assert {base_name(name) for name in letters} == {"table1", "fig1", "fig2", "fig3", "order"}
    for name in letters:
        mine, other = (
            [claim.claim for claim in EXPERIMENTS[each].claims([], "paper")] for each in (name, base_name(name))
        )
        assert mine == other
