"""The rules by which a claim of the paper holds or does not: each experiment's, on rows made for it."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from ipdlam.experiments import EXPERIMENTS, defaults, fig3, penalty, table1, warmup
from ipdlam.experiments.claims import NOT_RUN, ahead, alike, judged, lower, reaches, spread, within_a_decade
from ipdlam.experiments.spec import RunResult, RunSpec, reached, rises
from ipdlam.runs.config import DEFAULTS, TrainConfig

RESULTS = Path(__file__).parents[2] / "results"


def row(**fields):
    plain = {"data": "mnist", "method": "ipdlam", "diverged": False, "objective": 1.0, "best_iteration": 5}
    plain |= {
        "objective_per_sample": 1.0,
        "objective_reweighed": 1.0,
        "iterations": 200,
        "evaluated_every": 1,
        "rises": 150,
    }
    accuracies = dict.fromkeys(("train_accuracy", "test_accuracy", "best_test_accuracy"), 0.9)
    seeds = {"seeds": 1, "diverged_seeds": 0}
    return {**plain, **accuracies, **seeds, "hidden": [1500, 1500], **fields}


def diverged(one, of=1):
    """A run that diverged with one seed, of one or of several."""
    ends = ("objective", "objective_per_sample", "objective_reweighed", "train_accuracy", "test_accuracy")
    known = {f"{key}_known": of - 1 for key in ends} if of > 1 else {}
    return {**one, **dict.fromkeys(ends), **known, "diverged": True, "seeds": of, "diverged_seeds": 1}


SOME_BEST = {"best_test_accuracy": None, "best_test_accuracy_known": 2, "diverged": True, "seeds": 3}
SOME_BEST |= {"diverged_seeds": 1}


def made(name, *rows, scale="small"):
    """The claims that some run speaks for."""
    return [claim for claim in EXPERIMENTS[name].claims(rows, scale) if claim.ours != NOT_RUN]


def words(name, *rows):
    return [claim.verdict for claim in made(name, *rows)]


@pytest.mark.parametrize(
    ("tests", "word"),
    [
        ([], "not measured"),
        ([None, None], "not measured"),
        ([True, True], "holds"),
        ([True, None], "holds partly"),
        ([True, False], "holds partly"),
        ([False, None], "does not hold"),
        ([False], "does not hold"),
    ],
)
def test_what_was_not_measured_can_refute_nothing_and_proves_nothing(tests, word):
    assert judged(tests) == word


def test_small_differences_are_none():
    assert ahead(0.906, 0.9)
    assert not ahead(0.904, 0.9)
    assert ahead(0.1, None)
    assert not ahead(None, None)
    assert lower(1.0, 2.0)
    assert lower(1.0, None)
    assert not lower(None, 2.0)
    assert reaches(0.9321, 0.942)
    assert not reaches(0.9319, 0.942)
    assert not reaches(None, 0.1)
    assert within_a_decade(0.3, 0.03)
    assert not within_a_decade(0.31, 0.03)
    assert not within_a_decade(0.002, 0.03)
    assert not within_a_decade(0.0, 0.03)


def test_what_diverged_is_like_nothing():
    def rows(*accuracies):
        return [row(test_accuracy=accuracy) for accuracy in accuracies]

    assert alike(rows(0.9, 0.909), "test_accuracy")
    assert not alike(rows(0.9, 0.911), "test_accuracy")
    assert not alike([diverged(row()), diverged(row())], "test_accuracy")
    assert alike([row(), diverged(row(), of=3)], "test_accuracy") is None  # two of three may be like it
    assert spread([0.9, 0.911]) == "1.1 points apart"
    assert spread([0.9, None]) == "not to be compared (1 of 2 diverged)"


def leads(*rows):
    return [claim.verdict for claim in made("fig1", *rows) if " than DLAM" in claim.claim]


def test_the_verdicts_of_figure_1_follow_the_rows():
    base = row(method="dlam", inertia=None, best_iteration=9)
    good = row(objective=0.5, train_accuracy=0.95, test_accuracy=0.95, best_test_accuracy=0.96)
    better = [{**good, "inertia": inertia} for inertia in (0.2, 0.5, 0.7)]
    assert leads(base, *better) == ["holds"] * 5
    larger = [{**each, "objective": 3.0} for each in better]
    assert leads(base, *larger) == ["does not hold", *["holds"] * 4]
    assert leads(base, *better[1:], row(inertia=0.2, best_iteration=9)) == ["holds partly"] * 5
    assert leads(base, *better[:2], diverged(better[2])) == ["holds partly"] * 3 + ["holds"] * 2
    assert leads(base, better[2]) == ["holds partly"] * 5  # the others were not made
    assert leads(diverged(base), *better) == ["holds"] * 5  # it has a best iterate, and is behind at the end
    assert leads(diverged({**base, "best_test_accuracy": 0.97}), *better)[3] == "does not hold"
    equal = [row(inertia=inertia, best_test_accuracy=0.904) for inertia in (0.2, 0.5, 0.7)]
    assert leads(base, *equal)[3] == "does not hold"  # less than half a point is chance


def test_the_other_dlam_is_held_against_accuracies_only():
    base = row(method="bcd", inertia=None, objective=0.0, best_iteration=9)
    better = [row(inertia=inertia, train_accuracy=0.95, test_accuracy=0.95) for inertia in (0.2, 0.5, 0.7)]
    assert leads(base, *better) == ["holds", "holds", "does not hold", "holds"]


def test_what_inertia_adds_to_the_proximal_terms_is_said():
    rows = [row(method="dlam", inertia=None), row(inertia=0.0, test_accuracy=0.8), row(inertia=0.7, test_accuracy=0.7)]
    claim = made("fig1", *rows)[-1]
    assert made("fig1", *rows)[-2].claim == "mnist: Phi does not always descend"
    assert claim.verdict == "no claim"
    assert re.search(
        r"DLAM: .*90\.0 %; proximal terms without inertia: .*80\.0 %; inertia 0\.7, too: .*70\.0 %", claim.ours
    )
    assert len(leads(*rows)) == 5  # inertia 0 is none of those the paper compares


@pytest.mark.parametrize(
    ("counts", "word"),
    [
        ((9, 9, 1), "holds"),
        ((0, 9, 0), "holds"),
        ((0, 0, 0.3), "holds"),
        ((9,), "holds"),
        ((0, 0, 0), "does not hold"),
        ((0,), "not measured"),
    ],
)
def test_that_phi_does_not_always_descend_is_counted(counts, word):
    rows = [row(inertia=inertia, rises=count) for inertia, count in zip((0.2, 0.5, 0.7), counts, strict=False)]
    (claim,) = made("fig1", *rows)
    assert (claim.claim, claim.verdict) == ("mnist: Phi does not always descend", word)
    assert claim.ours.startswith(f"iterations in which it rises, inertia 0.2: {counts[0]} of 199")
    assert claim.ours.endswith(f": {counts[-1]} of 199")  # a third of a rise, with three seeds, is not 0
    assert made("fig1", *({**each, "iterations": 1} for each in rows)) == []
    assert made("fig1", *rows, row(method="dlam", inertia=None, rises=3))[-1].ours.endswith(", DLAM: 3 of 199")


def test_rises_are_counted():
    assert rises([3.0, 2.0, 2.0, 2.5, 1.0, 4.0]) == 2
    assert rises([None, 1.0, None, 2.0]) == rises([]) == 0  # nothing to compare with


@pytest.mark.parametrize("scale", ["small", "paper"])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_claim_without_runs_is_named_with_what_is_said(name, scale):
    claims = EXPERIMENTS[name].claims([], scale)
    assert {(claim.verdict, claim.ours) for claim in claims} <= {("not measured", NOT_RUN)}
    assert all(claim.paper for claim in claims)
    assert all(re.fullmatch(r"[A-Z1].{20,}\.", claim.rule) for claim in claims)  # a plain sentence, or some
    assert claims or (name, scale) == ("bcd", "small")  # whose authors' network is another
    assert len({claim.claim for claim in claims}) == len(claims)


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*-small.json")), ids=lambda path: path.stem)
def test_claims_are_the_same_with_runs_and_without(path):
    content = json.loads(path.read_text())
    fields = ("claim", "paper", "source", "rule")
    said = [dataclasses.asdict(claim) for claim in EXPERIMENTS[content["experiment"]].claims([], "small")]
    judged = [claim for claim in content["claims"] if claim["verdict"] != "no claim"]
    assert [[claim[field] for field in fields] for claim in judged] == [
        [claim[field] for field in fields] for claim in said
    ]


def test_a_rule_says_what_a_tie_is():
    """94.6 % against 94.7 % does not hold, and must not look like an error."""
    rows = [row(method="dlam", inertia=None, best_test_accuracy=0.946), row(inertia=0.7, best_test_accuracy=0.947)]
    claim = next(claim for claim in made("fig1", *rows) if "at its best" in claim.claim)
    assert (claim.ours, claim.verdict) == ("DLAM 94.6 %; inertia 0.7: 94.7 %", "does not hold")
    assert claim.rule.startswith(
        "Higher means by more than half a point: 94.6 % against 94.7 % is a tie, and a tie does"
    )


def at_paper_size(*rows):
    return [claim.verdict for claim in made("table1", *rows, scale="paper")]


def test_the_verdicts_of_table_1_follow_the_rows():
    low = row(inertia=0.1)
    high = row(inertia=0.7, objective=0.03, objective_reweighed=0.9, train_accuracy=0.97, test_accuracy=0.94)
    high["best_test_accuracy"] = 0.95
    broken = [
        diverged(row(inertia=value)) if value > 1.0 else row(inertia=1.0, objective=5000.0) for value in (1.0, 1.1, 1.2)
    ]
    unknown = "not measured"  # whether 1.1 is behind inertias that were not run
    assert at_paper_size(low, high, *broken) == [*["holds"] * 3, unknown, "holds"]
    worse = {**high, "test_accuracy": 0.8}
    assert at_paper_size(low, worse, *broken) == ["holds partly", "holds partly", "holds", unknown, "holds"]
    decayed = {**worse, "train_accuracy": 0.8, "objective": 7e5}  # the best iterate says nothing of the last
    assert at_paper_size(low, decayed)[1:] == ["does not hold", "holds"]
    for key in ("objective_reweighed", "objective_per_sample"):  # at a small rho, or as a mean, it has the paper's Phi
        assert at_paper_size(low, {**decayed, key: 0.1})[1:] == ["holds partly", "holds"]
    assert words("table1", low, high) == ["holds"]  # a narrower network has no numbers in the paper
    lost = "does not hold"
    assert at_paper_size(low, diverged(high), *broken) == [lost, lost, "holds", lost, "holds partly"]
    assert at_paper_size(low, diverged(high, of=3))[1:] == ["not measured", "holds"]  # two seeds of three may reach it
    best = {**low, "inertia": 0.7, "objective": 3.0, "best_test_accuracy": 0.95}  # which the table does not speak of
    assert words("table1", low, best) == [lost]
    assert words("table1", diverged(low, of=3), high) == ["not measured"]  # the two others may have been better


def test_inertia_above_one_is_judged_by_the_network_and_by_overflow_apart():
    usual = [row(inertia=value, objective=1.0, test_accuracy=0.9) for value in table1.BETWEEN]

    def words(*rows):
        return [claim.verdict for claim in made("table1", *rows) if re.search("poorly|overflow", claim.claim)]

    large, *over = row(inertia=1.0, objective=5000.0), *(diverged(row(inertia=value)) for value in (1.1, 1.2))
    assert words(*usual, large, *over) == ["holds", "holds"]
    calm = [row(inertia=value, objective=50.0, test_accuracy=0.9) for value in (1.0, 1.1, 1.2)]
    assert words(*usual, *calm) == ["does not hold"] * 2
    guessing = [{**each, "objective": 1e29, "test_accuracy": 0.1} for each in calm]
    assert words(*usual, *guessing) == ["holds", "holds partly"]  # whatever it is, 1e29 is a number
    poor, broken = (claim for claim in made("table1", *usual, *guessing) if re.search("poorly|overflow", claim.claim))
    assert poor.ours == "test at the end 1.1: 10.0 %, 1.2: 10.0 %; below 1 at the least 90.0 % (at 0.1)"
    assert broken.ours == "Phi 0.7: 1, 1.0: 1e+29, 1.1: 1e+29, 1.2: 1e+29"
    some = [diverged(each, of=3) for each in over]
    assert words(*usual, large, *some) == ["not measured", "holds partly"]  # two of three do not overflow
    assert "1.1: diverged in 1 of 3 seeds" in made("table1", *usual, large, *some)[-1].ours
    assert words(*usual, large, over[0]) == ["holds partly"] * 2  # of 1.2 nothing is known
    assert words(*usual, calm[1]) == ["does not hold"] * 2  # whatever the others do
    assert words(over[1]) == ["holds partly"]
    assert words(large) == ["not measured"]  # there is nothing to compare it with
    assert words(*map(diverged, usual), large) == ["not measured"]
    assert words(*map(diverged, usual), *over) == ["does not hold", "holds partly"]  # it is so below 1, too
    assert words(*(diverged(each, of=3) for each in usual), *over)[0] == "not measured"
    assert words(*usual[1:], *over)[0] == "not measured"  # the one that was not run may be behind them
    assert words(*usual[1:], *calm)[0] == "does not hold"


def test_inertia_contributes_where_it_is_better_than_none():
    none = row(inertia=0.0, objective=3.0, train_accuracy=0.8, test_accuracy=0.8)
    better = {"objective": 2.0, "train_accuracy": 0.9, "test_accuracy": 0.9}
    all_nine = [row(inertia=value, **better) for value in table1.BETWEEN]

    def contribution(*rows):
        return next(claim for claim in made("table1", *rows) if "contributes" in claim.claim)

    assert contribution(none, *all_nine).verdict == "holds"
    assert contribution(none, *all_nine[:-1]).verdict == "not measured"  # the last may be worse
    assert contribution(none, *all_nine[:-1]).ours.endswith("(8 of 9 inertias between 0 and 1 were run)")
    assert contribution(none, *all_nine[:-1], {**all_nine[-1], "test_accuracy": 0.7}).verdict == "holds partly"
    worse = [{**each, "objective": 4.0, "train_accuracy": 0.8, "test_accuracy": 0.8} for each in all_nine[:1]]
    assert contribution(none, *worse).verdict == "does not hold"
    lost = contribution(none, *all_nine[:-1], diverged(all_nine[-1]))
    assert lost.verdict == "does not hold"
    assert "with it Phi 2 to 2 (1 of 9 diverged), training" in lost.ours
    assert contribution(none, *worse).ours.startswith(
        "without it Phi 3, at the end training 80.0 %, test 80.0 %; with it Phi 4 to 4, training 80.0 % to 80.0 %"
    )
    assert not any("contributes" in claim.claim for claim in made("table1", *all_nine))


@pytest.mark.parametrize(("above", "word"), [(0.58, "holds"), (0.586, "does not hold"), (0.6, "does not hold")])
def test_what_performs_poorly_is_behind_every_inertia_below_one(above, word):
    below = [row(inertia=value, test_accuracy=0.68 - 0.1 * value) for value in table1.BETWEEN]
    high = [row(inertia=value, objective=0.1, test_accuracy=above) for value in (1.1, 1.2)]
    claim = next(claim for claim in made("table1", *below, *high) if "poorly" in claim.claim)
    assert claim.verdict == word
    assert claim.ours.endswith("below 1 at the least 59.0 % (at 0.9)")


def test_test_accuracies_are_put_where_they_belong():
    assert table1.printed("mnist", 0.7)["paper_test_accuracy_printed"] == pytest.approx(0.896)
    assert table1.printed("mnist", 0.7)["paper_test_accuracy_corrected"] == pytest.approx(0.942)
    assert table1.printed("mnist", 1.1) == dict.fromkeys(table1.printed("mnist", 1.1), "nan")
    broken = table1.printed("fashion-mnist", 1.1)  # where training and test agree, nothing is exchanged
    assert broken["paper_test_accuracy_corrected"] == broken["paper_train_accuracy"] == pytest.approx(0.104)
    assert set(table1.printed("digits", 0.7).values()) == {None}


def rival(method, lead, **fields):
    leads = {"smallest_train_lead": lead, "smallest_test_lead": lead}
    times = {
        "late_gain": 0.01,
        "stable_iteration": 50,
        "train_level_iteration": 30,
        "level_iteration": 30,
        "level_seconds": 60.0,
    }
    return row(**{"method": method, "learning_rate": 0.001, "test_accuracy_in_few": 0.5, **leads, **times, **fields})


MINE = {**rival("ipdlam", 0.0), "learning_rate": None, "test_accuracy": 0.94, "test_accuracy_in_few": 0.945}
MINE |= {"best_test_accuracy": 0.95, "stable_iteration": 20, "level_iteration": 4, "level_seconds": 9.0}
MINE |= {"train_level_iteration": 4}


def test_the_verdicts_of_the_optimizers_follow_the_rows():
    slow = [rival(name, 0.3, test_accuracy=0.8, train_accuracy=0.95) for name in fig3.OPTIMIZERS]
    assert words("fig3", MINE, *slow) == ["holds"] * 7 + ["no claim", "holds"]
    one = ["holds", "holds partly", "not measured", *["holds partly"] * 4, "no claim", "holds"]
    assert words("fig3", MINE, slow[0]) == one  # one of five is neither all nor most
    fast = [rival(name, -0.01, test_accuracy=0.98, level_iteration=2, stable_iteration=9) for name in fig3.OPTIMIZERS]
    mixed = [*slow[:4], *fast[4:]]
    partly = "holds partly"
    assert words("fig3", MINE, *mixed)[1:7] == [partly, "holds", "holds", partly, "holds", partly]
    assert words("fig3", MINE, *slow[:3], *fast[3:])[2] == "holds"  # three of the five in the figure
    assert words("fig3", MINE, *slow[:2], *fast[2:])[2] == "does not hold"
    lost = "does not hold"
    assert words("fig3", MINE, *fast) == ["holds", lost, lost, "holds", lost, "holds", lost, "no claim", "holds"]
    assert words("fig3", MINE, *fast[:2])[2] == "not measured"  # the other three may still be worse
    behind = [{**each, "smallest_train_lead": -0.1} for each in slow]
    assert words("fig3", MINE, *behind)[1] == "does not hold"
    assert "is on sgd +30.0 (-10.0), adagrad" in made("fig3", MINE, *behind)[1].ours
    once = [diverged(each, of=3) for each in fast]
    assert words("fig3", MINE, *once)[2] == "not measured"  # two seeds of three may have been better
    assert words("fig3", {**MINE, "train_accuracy": 0.99}, *slow)[3] == "does not hold"


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"test_accuracy": 0.879, "late_gain": 0.003}, "does not hold"),
        ({"test_accuracy": 0.755, "late_gain": 0.014}, "holds"),  # it still rises
        ({"test_accuracy": 0.5, "late_gain": -0.006}, "holds"),
        ({"test_accuracy": 0.113, "late_gain": 0.0}, "holds"),  # it never learned anything
    ],
)
def test_sgd_converges_where_it_learns_and_comes_to_rest(fields, word):
    assert made("fig3", rival("sgd", 0.3, **fields))[-1].verdict == word
    assert made("fig3", diverged(rival("sgd", 0.3, **fields)))[-1].verdict == "holds"
    assert made("fig3", diverged(rival("sgd", 0.3, **fields), of=3))[-1].verdict == "not measured"
    assert not made("fig3", rival("adam", 0.3, **fields))


def test_a_rate_that_only_some_seeds_end_with_may_be_the_best():
    rates = [(0.001, 0.6), (0.01, 0.5), (0.05, 0.5)]
    rivals = [
        rival(name, 0.3, learning_rate=rate, best_test_accuracy=score, test_accuracy=score)
        for name in fig3.OPTIMIZERS
        for rate, score in rates
    ]
    best = [claim for claim in made("fig3", MINE, *rivals) if "each at its best rate" in claim.claim]
    assert best[1].verdict == "holds"
    once = [{**diverged(each, of=3), **SOME_BEST} if each["learning_rate"] == 0.01 else each for each in rivals]
    claims = made("fig3", MINE, *once)
    most = next(claim for claim in claims if "most" in claim.paper and "best rate" in claim.claim)
    assert most.verdict == "not measured"
    assert claims[-2].verdict == "not measured"  # whether the rates are alike


def test_of_two_that_are_first_seen_by_one_evaluation_neither_is_faster():
    equal = [rival(name, 0.3, level_iteration=4, stable_iteration=20) for name in fig3.OPTIMIZERS]
    lost, unknown = "does not hold", "not measured"
    assert [words("fig3", MINE, *equal)[place] for place in (4, 6)] == [lost, lost]  # all iterations were evaluated
    rarely = {**MINE, "evaluated_every": 2}
    assert [words("fig3", rarely, *equal)[place] for place in (4, 6)] == [unknown, unknown]
    never = [{**each, "level_iteration": None, "stable_iteration": None} for each in equal]
    assert words("fig3", {**rarely, "stable_iteration": None}, *never)[4] == lost


def test_what_some_seeds_have_is_not_known():
    slow = [{**rival(name, 0.3), "seeds": 3} for name in fig3.OPTIMIZERS]
    never = [{**each, "level_iteration": None, "level_seconds": None} for each in slow]
    assert words("fig3", MINE, *never)[6] == "holds"
    some = [{**each, "level_iteration_known": 2, "level_seconds_known": 2} for each in never]
    assert words("fig3", MINE, *some)[6] == "not measured"
    claims = made("fig3", MINE, *some)
    assert "sgd only in 2 of 3 seeds" in claims[6].ours
    assert "sgd only in 2 of 3 seeds" in claims[7].ours
    apart = [{**each, "smallest_test_lead": None, "smallest_train_lead": None} for each in slow]
    assert words("fig3", MINE, *apart)[1] == "not measured"


def test_the_early_parameters_have_to_be_good():
    assert words("fig3", {**MINE, "test_accuracy_in_few": 0.93}) == [
        "does not hold"
    ]  # neither its best nor the paper's
    assert words("fig3", {**MINE, "test_accuracy_in_few": 0.935}) == ["holds partly"]
    assert words("fig3", {**MINE, "hidden": [300, 300], "test_accuracy_in_few": 0.93}) == ["does not hold"]
    guess = {**MINE, "test_accuracy_in_few": 0.113, "best_test_accuracy": 0.113, "best_iteration": 1}
    assert words("fig3", guess) == ["holds partly"]  # it does not get better, but it is no good either
    assert words("fig3", {**MINE, "test_accuracy_in_few": None}) == ["does not hold"]


def test_other_rates_are_compared():
    rates = (0.001, 0.01, 0.05)
    scores = {name: [0.9, 0.905, 0.908] for name in fig3.OPTIMIZERS}
    table = [
        {**rival(name, 0.3), "learning_rate": rate, "best_test_accuracy": score}
        for name, values in scores.items()
        for rate, score in zip(rates, values, strict=True)
    ]
    assert words("fig3", MINE, *table)[-2] == "holds"
    assert len(words("fig3", MINE, *table)) == 1 + 2 * 7 + 2
    trained = [{**each, "train_accuracy": 0.5} if each is table[0] else each for each in table]
    table[0]["best_test_accuracy"] = 0.5
    assert words("fig3", MINE, *table)[-2] == words("fig3", MINE, *trained)[-2] == "holds partly"
    assert "sgd 50.0 % (90.0 %) at 0.001, 90.5 % (90.0 %) at 0.01" in made("fig3", MINE, *table)[-2].ours
    two = [each for each in table[1:] if each["learning_rate"] > 0.001]
    assert words("fig3", MINE, *two)[-1] == "holds partly"  # of the third nothing is known
    other = [each for each in table if each["learning_rate"] == 0.001 or each["method"] == "sgd"]
    best = [claim for claim in made("fig3", MINE, *other) if "each at its best rate" in claim.claim]
    assert {claim.ours.count("adam") for claim in best} == {0}  # which has no best of one


def scored(values, every=1, seconds=1.0):
    """A run that was evaluated every so many iterations."""
    count = every * len(values)
    accuracies = [values[k // every - 1] if k % every == 0 else None for k in range(1, count + 1)]
    columns = {"iteration": list(range(1, count + 1)), "validation_accuracy": accuracies, "train_accuracy": accuracies}
    columns["seconds"] = [seconds * k for k in range(1, count + 1)]
    return RunResult(RunSpec("mnist", "sgd", (3,), count), columns, "iterations", 1, {})


def test_leads_are_taken_where_both_were_evaluated():
    mine, theirs = scored([0.8, 0.9, 0.85, 0.7, 0.6, 0.5], every=2), scored([0.1, 0.9, 0.3, 0.6], every=3)
    assert fig3.smallest_lead(mine, theirs, "validation_accuracy") == pytest.approx(0.5 - 0.6)  # of 6 and 12
    late = scored([0.9] * 40 + [0.1])
    assert fig3.smallest_lead(late, scored([0.5] * 41), "validation_accuracy") == pytest.approx(
        0.4
    )  # only the first 40
    assert fig3.smallest_lead(scored([0.5], every=2), scored([0.5], every=3), "validation_accuracy") is None


def test_what_diverged_early_is_behind_from_then_on():
    """It has nothing right where it would have been evaluated."""
    whole = scored([0.5] * 6, every=2)
    broken = dataclasses.replace(scored([0.9] * 3, every=2), spec=whole.spec, stop_reason="diverged")
    broken = dataclasses.replace(broken, spec=whole.spec.changed(evaluate_every=2))
    assert fig3.smallest_lead(whole, broken, "validation_accuracy") == pytest.approx(0.5 - 0.9)
    assert fig3.smallest_lead(broken, whole, "validation_accuracy") == pytest.approx(-0.5)
    at_once = dataclasses.replace(broken, columns={name: [] for name in broken.columns})
    assert fig3.smallest_lead(whole, at_once, "validation_accuracy") == pytest.approx(0.5)
    assert fig3.stable(broken) is None


def test_stable_is_close_to_the_end_from_then_on():
    assert fig3.stable(scored([0.1, 0.5, 0.9, 0.905])) == 3
    assert fig3.stable(scored([0.9, 0.5, 0.9], every=5)) == 15
    assert fig3.stable(scored([0.9, 0.9])) == 1
    assert fig3.stable(scored([])) is None
    assert fig3.stable(scored([0.1, 0.1])) is None  # it never learned anything
    mine = scored([0.2, 0.9, 0.3])
    assert reached(mine, scored([0.5, 0.895, 0.9], every=2), "validation_accuracy") == 4
    assert reached(mine, scored([0.5]), "validation_accuracy") is None
    assert reached(mine, mine, "train_accuracy") == 2


def test_the_verdicts_on_closeness_follow_the_rows():
    five = [row() for _ in range(5)]
    assert words("fig2", *five[:4], row(test_accuracy=0.905)) == ["holds"]
    assert words("fig2", *five[:4], row(test_accuracy=0.85)) == ["holds partly"]
    assert words("fig2", *five[:4], row(train_accuracy=0.85)) == ["holds partly"]
    assert words("fig2", *five[:2]) == ["holds partly"]  # three were not made
    assert [(claim.verdict, claim.ours) for claim in made("fig2", five[0])] == [("not measured", "one proximity only")]
    assert words("fig2", *five[:4], {**diverged(row()), "best_test_accuracy": None}) == ["does not hold"]
    assert "1 of 5 diverged" in made("fig2", *five[:4], diverged(row()))[0].ours
    orders = [row(order=name, same_as_reverse=True) for name in ("reverse", "increase")]
    orders.append(row(order="nested-reverse", same_as_reverse=False, test_accuracy=0.7))
    assert words("order", *orders) == ["holds partly", "does not hold"]
    assert words("order", *(diverged(each) for each in orders))[0] == "holds partly"  # their best, and no end at all
    assert words("order", *orders[:2]) == ["holds partly", "does not hold"]  # two tell that they are one
    assert words("order", orders[0], orders[2]) == ["holds partly"]
    assert words("order", orders[0]) == []
    assert words("order", *({**each, "same_as_reverse": False} for each in orders))[1] == "holds"


def test_the_verdict_on_the_warm_up_follows_the_rows():
    times = {"speed_gain": 2.5, "level_seconds": 4.0, "level_seconds_alone": 10.0}
    warm = row(optimizer="adam", seeds=3, gain=0.01, gain_in_equal_time=0.006, **times)
    assert words("warmup", warm) == ["holds", "holds"]
    assert words("warmup", {**warm, "speed_gain_range": [1.05, 3.0]}) == ["does not hold", "holds"]
    assert words("warmup", {**warm, "speed_gain_range": [1.5, 3.0]}) == ["holds partly", "holds"]  # but not greatly
    some = {**warm, "level_seconds": None, "level_seconds_known": 2, "speed_gain": 1.7, "speed_gain_range": [0.0, 3.0]}
    assert "has alone: only in 2 of 3 seeds, alone 10 s" in made("warmup", some)[0].ours
    never = {**warm, "speed_gain": 0.0, "level_seconds": None}
    assert words("warmup", never) == ["does not hold", "holds"]
    assert "has alone: never, alone 10 s; 0.00 times as fast" in made("warmup", never)[0].ours
    assert words("warmup", {**warm, "speed_gain": None}) == ["not measured", "holds"]
    assert words("warmup", {**warm, "gain_in_equal_time": -0.005})[1] == "holds partly"
    assert words("warmup", {**warm, "gain_range": [0.0, 0.02]})[1] == "holds partly"  # not in every seed
    assert words("warmup", {**warm, "gain": 0.0005, "gain_in_equal_time": 0.0})[1] == "does not hold"  # chance
    unknown = {**warm, "gain_in_equal_time": None}
    assert words("warmup", unknown)[1] == "holds partly"
    assert words("warmup", {**warm, "diverged": True, "seeds": 1}) == ["does not hold"] * 2
    assert "not known in equal time" in made("warmup", unknown)[1].ours


def test_the_time_to_a_level_is_that_of_the_first_evaluation_there():
    alone, warm = scored([0.5, 0.9, 0.95, 0.951], seconds=2.0), scored([0.946, 0.96])
    assert (warmup.seconds_to(alone, alone), warmup.seconds_to(warm, alone)) == (6.0, 1.0)
    assert warmup.seconds_to(scored([0.5]), alone) is None
    assert (warmup.speed_gain(1.0, 6.0), warmup.speed_gain(None, 6.0), warmup.speed_gain(1.0, None)) == (6.0, 0.0, None)


def test_the_verdict_on_the_decay_follows_the_rows():
    plain = row(
        variant="as in the paper",
        decay=0.1,
        objective_at_best=1.0,
        gaps=1.0,
        gaps_at_first=5.0,
        iterations=9,
        first_iteration=2,
    )
    plain["first_test_accuracy"] = 0.5
    assert words("decay", plain) == ["does not hold"]
    assert words("decay", {**plain, "decay": 0.001}) == ["holds"]
    assert words("decay", {**plain, "decay": 0.0, "first_test_accuracy": 0.9}) == ["does not hold"]  # no better
    assert words("decay", {**plain, "decay": 0.0, "best_iteration": 9}) == ["holds"]  # the last one is the best
    assert words("decay", {**plain, "gaps": 6.0}) == ["not measured"]  # nothing fell
    assert words("decay", diverged({**plain, "decay": None})) == ["not measured"]
    lost = diverged({**plain, "variant": "penalty 10", "decay": None})
    assert "penalty 10: diverged (best 90.0 %)" in made("decay", plain, lost)[1].ours
    constant = {**plain, "variant": "constant penalty", "decay": 0.0}
    assert words("decay", plain, constant) == ["holds", "no claim"]


def test_the_verdict_on_block_coordinate_descent_follows_the_rows():
    mine = row(method="bcd", hidden=[1500] * 3, test_accuracy=0.947)
    for score, word in ((0.947, "holds"), (0.97, "does not hold"), (0.9503, "does not hold")):
        (claim,) = made("bcd", {**mine, "test_accuracy": score}, scale="paper")
        assert (claim.verdict, claim.source) == (word, "Zeng et al.")
    assert made("bcd", diverged(mine, of=3), scale="paper")[0].verdict == "not measured"
    assert words("bcd", mine) == []  # their network is that of the paper scale


def test_the_verdict_on_depth_follows_the_rows():
    cases = [(a, i) for a in ("relu", "tanh", "sigmoid") for i in ("paper", "torch")]
    rows = [
        row(method=method, activation=a, initialisation=i, depth=20, hidden=[100] * 20, best_test_accuracy=score)
        for a, i in cases
        for method, score in (("ipdlam", 0.5 if i == "paper" else 0.1), ("dlam", 0.1), ("sgd", 0.1), ("adam", 0.3))
    ]
    assert words("deep", *rows) == ["holds", "does not hold", "no claim", "no claim"]
    assert "tanh: iPDLAM none, DLAM none, sgd none, adam 20" in made("deep", *rows)[3].ours
    relu = (each for each in rows if each["activation"] == "relu")
    assert words("deep", *relu)[:2] == ["holds partly", "does not hold"]
    guesses = [{**each, "best_test_accuracy": 0.125 if each["method"] == "ipdlam" else 0.1} for each in rows]
    near = [{**each, "best_test_accuracy": 0.309 if each["method"] == "ipdlam" else 0.3} for each in rows]
    assert words("deep", *near)[:2] == ["does not hold"] * 2  # less than a point
    broken = [diverged({**each, "best_test_accuracy": None}) if each["method"] == "ipdlam" else each for each in rows]
    assert words("deep", *broken)[0] == "does not hold"
    assert "relu: iPDLAM diverged, DLAM 10.0 %" in made("deep", *broken)[0].ours
    once = [{**each, **SOME_BEST} if each["method"] == "adam" else each for each in rows]
    assert words("deep", *once)[:2] == ["not measured", "does not hold"]  # Adam may be ahead of it, and was not caught
    assert "relu: iPDLAM 50.0 %, DLAM 10.0 %, adam diverged in 1 of 3 seeds" in made("deep", *once)[0].ours
    assert "relu: iPDLAM 20, DLAM none, sgd none, adam none, 20 not known" in made("deep", *once)[2].ours
    assert words("deep", *guesses)[:2] == ["does not hold", "does not hold"]  # nobody has learned anything
    shallow = [{**each, "depth": 2, "hidden": [100] * 2} for each in rows]
    assert words("deep", *shallow) == ["no claim", "no claim"]  # gradients vanish in deep networks


def test_the_penalty_that_fits_the_paper_is_named():
    near = row(variant="near", objective=0.03, train_accuracy=0.968, test_accuracy=0.942)
    far = row(variant="far", objective=30.0, best_test_accuracy=0.99)
    table = [{**each, "misfit": penalty.misfit(each)} for each in (near, far)]
    assert table[0]["misfit"] == pytest.approx(0.0)
    assert table[1]["misfit"] == pytest.approx(3.0 + 0.68 + 0.42)
    fits, serves, rising = made("penalty", *table)
    assert fits.ours.startswith("near")
    assert serves.ours.startswith("far")
    assert rising.ours == "near: 150; far: 150"
    assert penalty.misfit(diverged(near)) is None


@pytest.mark.parametrize(
    ("growing", "constant", "word"),
    [(5, 9, "holds"), (9, 9, "does not hold"), (9, 5, "does not hold"), (None, 5, "does not hold"), (5, None, "holds")],
)
def test_the_verdict_on_a_growing_penalty_follows_the_rows(growing, constant, word):
    rows = [
        row(variant=variant, level_iteration=iteration, misfit=None)
        for variant, iteration in ((penalty.GROWING, growing), (penalty.CONSTANT, constant), (penalty.SMALL, constant))
    ]
    assert made("penalty", *rows)[0].verdict == word
    partly = [{**each, "level_iteration": None, "level_iteration_known": 2} for each in rows[1:]]
    assert made("penalty", rows[0], *partly)[0].verdict == "not measured"
    alone = made("penalty", *rows[:2])[0].verdict  # whether the growth or the small start does it is open
    assert alone == ("holds partly" if word == "holds" else word)
    rarely = [{**each, "evaluated_every": 2} for each in rows]
    assert made("penalty", *rarely)[0].verdict == ("not measured" if growing == constant else word)
    assert "A penalty" not in made("penalty", rows[0])[0].claim  # nothing to hold it against


def test_the_verdict_on_the_default_penalty_follows_the_rows():
    def ends(variant, *accuracies):
        kinds = zip(defaults.INITIALISATIONS, accuracies, strict=False)
        shape = {"activation": "relu", "depth": 2, "variant": variant}
        return [row(**shape, initialisation=kind, test_accuracy=accuracy) for kind, accuracy in kinds]

    def words(*rows):
        return [claim.verdict for claim in made("defaults", *rows) if "penalty" in claim.claim]

    default = ends(defaults.DEFAULT, 0.9, 0.8, 0.85)
    equal = [one for variant, _ in defaults.VARIANTS[1:] for one in ends(variant, 0.99, 0.8, 0.99)]
    assert words(*default, *equal) == ["holds"]  # at its worst it is as good
    better = [one for variant, _ in defaults.VARIANTS[1:] for one in ends(variant, 0.81, 0.82, 0.83)]
    assert words(*default, *better) == ["does not hold"]
    assert words(*default, *better[:3], *equal[3:]) == ["holds partly"]
    assert words(*default, *equal[:4]) == ["holds partly"]  # what was not run is not known
    assert words(*default[:2], *equal) == []
    assert words(*default, *map(diverged, better)) == ["holds"]
    assert words(*default, *(diverged(one, of=3) for one in better)) == ["not measured"]
    claim = made("defaults", *default, *equal)[0]
    assert "0.1, growing (default): 80.0 % at the least (paper 90.0 %, he 80.0 %, torch 85.0 %)" in claim.ours


def test_the_verdict_on_the_default_initial_weights_follows_the_rows():
    def ends(activation, depth, *accuracies):
        kinds = zip(defaults.INITIALISATIONS, accuracies, strict=True)
        shape = {"activation": activation, "depth": depth, "variant": defaults.DEFAULT}
        return [row(**shape, initialisation=kind, test_accuracy=accuracy) for kind, accuracy in kinds]

    def word(*rows):
        return made("defaults", *rows)[-1].verdict

    shapes = [defaults.USUAL, *defaults.SHAPES["small"]]
    best = [one for shape in shapes for one in ends(*shape, 0.8, 0.9, 0.9)]
    assert word(*best) == "holds"
    assert word(*best[3:]) == "holds partly"  # of one network nothing is known
    worse = ends(*shapes[0], 0.8, 0.91, 0.9)
    assert word(*worse, *best[3:]) == "holds partly"
    assert word(*(one for shape in shapes for one in ends(*shape, 0.96, 0.91, 0.9))) == "does not hold"
    other = [{**one, "variant": defaults.VARIANTS[1][0], "test_accuracy": 0.99} for one in best[:3]]
    assert word(*best, *other) == "holds"  # another penalty is not compared with the default
    assert "relu, 1 hidden layer: paper 80.0 %, he 90.0 %, torch 90.0 %" in made("defaults", *best)[-1].ours


def test_the_defaults_that_are_judged_are_those_of_the_library():
    assert TrainConfig().initialisation == defaults.DEFAULT_WEIGHTS
    assert defaults.DEFAULT.startswith(f"{DEFAULTS['ipdlam']['penalty']}, growing")
    assert DEFAULTS["ipdlam"]["penalty_growth"] > 1.0


@pytest.mark.parametrize(("made", "passes"), [(2, 6), (3, 9), (5, 11)])
def test_passes_of_a_second_method_are_its_own(made, passes):
    spec = RunSpec("mnist", "ipdlam", (3,), 3, then=RunSpec("mnist", "adam", (3,), 4))
    assert RunResult(spec, {"iteration": list(range(made))}, "iterations", 3, {}).total_passes == passes
