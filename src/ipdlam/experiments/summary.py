"""The report in five sentences, made of its verdicts and rows: what holds, what does not, why, and what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ipdlam.experiments.claims import CLOSE, FAILS, HOLDS, NEAR, PAPER, PARTLY, Row, ahead, at_best, percent
from ipdlam.experiments.contents import WARM_UP, Content, Group, base_name, grouped
from ipdlam.experiments.make import command
from ipdlam.experiments.paper.decay import PLAIN
from ipdlam.experiments.paper.readings import weighed
from ipdlam.experiments.paper.setup import BATCH, CHOSEN, IMAGES, LETTER, Reading

JUDGEMENTS = (HOLDS, PARTLY, FAILS)
NAMED = 3  # claims that a sentence names
DATA_NAMES = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST"}
SUMS = {CHOSEN.name: f"batches of {BATCH}", LETTER.name: "all samples"}
WHERE = {CHOSEN.name: "in the chosen reading", LETTER.name: "to the letter"}
SETTLED = 0.7  # the inertia at which the paper is best


def five_sentences(contents: Sequence[Content]) -> dict[str, str]:
    """The question that each answers, and the sentence."""
    if contents[0].scale == WARM_UP:
        return smoke_sentences(contents)
    groups = [group for group in grouped(contents) if group.claim["source"] == PAPER]
    found = {reading: judged_in(groups, reading) for reading in (CHOSEN, LETTER)}
    lead = CHOSEN if found[CHOSEN] or not found[LETTER] else LETTER
    return {
        "What holds": what_holds(found[lead], lead),
        "What does not": what_fails(found[lead], still_open(groups, lead)),
        "Why": why(contents),
        "In which reading": in_which_reading(contents, found, lead),
        "What to do about it": what_to_do(contents, lead),
    }


def smoke_sentences(contents: Sequence[Content]) -> dict[str, str]:
    """Nothing is judged by smoke runs, and the sentences say so."""
    claims = sum(len(content.claims) for content in contents)
    return {
        "What holds": "Nothing is judged here: these are smoke runs, a tiny network on 8 by 8 digits.",
        "What does not": f"Nothing is judged here either: {counted(claims, 'claim')} stand below, with what was found.",
        "Why": "A few iterations on other data show that everything works, and prove nothing about the paper.",
        "In which reading": f"Where nothing else is said, {in_words(CHOSEN)}.",
        "What to do about it": f"Make runs that can judge: {command('all', 'small')}.",
    }


def judged_in(groups: Sequence[Group], reading: Reading) -> dict[str, list[Group]]:
    """The claims on which there is a judgement in a reading, by verdict; the largest scale that has one decides."""
    found: dict[str, list[Group]] = {}
    for group in groups:
        words = [each.claim["verdict"] for each in group.verdicts if each.reading == reading]
        verdict = next((word for word in words if word in JUDGEMENTS), None)
        if verdict is not None:
            found.setdefault(verdict, []).append(group)
    return found


def still_open(groups: Sequence[Group], reading: Reading) -> int:
    """How many claims of the paper's tables and figures have no judgement in a reading."""
    asked = [group for group in groups if any(each.reading is not None for each in group.verdicts)]
    return len(asked) - total(judged_in(groups, reading))


def total(found: Mapping[str, Sequence[Group]]) -> int:
    """How many claims were judged."""
    return sum(map(len, found.values()))


def what_holds(found: Mapping[str, Sequence[Group]], lead: Reading) -> str:
    """How many claims hold, and the first of them."""
    judged, holding = total(found), found.get(HOLDS, ())
    if not judged:
        return "No claim of the paper's tables and figures is judged yet, because their runs are not made."
    where = WHERE[lead.name].capitalize()
    asked = f"judged {'claim' if judged == 1 else 'claims'} of the paper's tables and figures"
    if not holding:
        few = f"the one {asked} does not hold" if judged == 1 else f"none of the {judged} {asked} holds in full"
        return f"{where} {few}."
    all_of_them = "the one" if judged == 1 else f"all {judged}"
    share = all_of_them if len(holding) == judged else f"{len(holding)} of the {judged}"
    return f"{where} {share} {asked} {verb(holding, 'holds', 'hold')}: {named(holding)}."


def what_fails(found: Mapping[str, Sequence[Group]], unknown: int) -> str:
    """How many claims fail, and the first of them; how many hold partly, and how many are open."""
    failing, partly = found.get(FAILS, ()), found.get(PARTLY, ())
    if not total(found):
        return f"Nothing is refuted either: {counted(unknown, 'claim')} wait for their runs."
    first = (
        f"{len(failing)} {verb(failing, 'does', 'do')} not hold: {named(failing)}" if failing else "None of them fails"
    )
    rest = [f"{len(partly)} {verb(partly, 'holds', 'hold')} only in part"] if partly else []
    rest += [f"{unknown} {'is' if unknown == 1 else 'are'} not judged yet"] if unknown else []
    return f"{first}{'; ' if rest else ''}{' and '.join(rest)}."


def named(groups: Sequence[Group]) -> str:
    """The first claims in a few words, each once for all data sets, and how many more there are."""
    found: dict[str, list[str]] = {}
    for group in groups:
        data, _, words = group.claim["claim"].partition(": ")
        words = words if data in IMAGES else group.claim["claim"]
        found.setdefault(words.split(". ")[0], []).extend([DATA_NAMES[data]] if data in IMAGES else [])
    told = [f"“{words}”" + (f" ({' and '.join(data)})" if data else "") for words, data in found.items()]
    more = len(told) - NAMED
    return listed([*told[:NAMED], *([f"{more} more"] if more > 0 else [])])


def listed(words: Sequence[str]) -> str:
    """Things in a sentence."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def verb(things: Sequence[object], one: str, several: str) -> str:
    """The verb that goes with so many."""
    return one if len(things) == 1 else several


def counted(number: int, word: str) -> str:
    """A number of things."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def in_words(reading: Reading) -> str:
    """What a reading is, within a sentence."""
    return f"delta is added to sums over {SUMS[reading.name]} and rho starts at {plain(reading.penalty)}"


def plain(value: float) -> str:
    """A setting in few digits."""
    return f"{value:.3g}".replace("e-0", "e-")


def why(contents: Sequence[Content]) -> str:
    """What the test accuracy at inertia 0.7 does in each reading: the last iterate is what the paper compares."""
    found = {reading: settled(contents, reading) for reading in (CHOSEN, LETTER)}
    known = {reading: each for reading, each in found.items() if each is not None}
    if not known:
        return f"The runs of Table 1 at inertia {SETTLED}, which would tell, are not made yet."
    falls = decays(list(known.values())[-1][0])
    cause = ", because the activations of a sample learn its label faster than the weights can follow" if falls else ""
    data = DATA_NAMES[next(iter(known.values()))[0]["data"]]
    subjects = (f"the test accuracy at inertia {SETTLED} on {data}", "it")
    told = (
        f"{WHERE[reading.name]} {subject} {course(*each)}"
        for subject, (reading, each) in zip(subjects, known.items(), strict=False)
    )
    return f"The paper compares last iterates: {', and '.join(told)}{cause}."


def settled(contents: Sequence[Content], reading: Reading) -> tuple[Row, str] | None:
    """The row of Table 1 at inertia 0.7 on the first data set that has one, at the largest scale, and that scale."""
    mine = [each for each in contents if each.reading == reading and base_name(each.experiment.name) == "table1"]
    for data in IMAGES:
        for content in mine:
            for row in content.data["means"]:
                if (row["data"], row["inertia"]) == (data, SETTLED) and row["best_iteration"] is not None:
                    return row, content.scale
    return None


def decays(row: Row) -> bool:
    """Whether a run ends clearly below its best."""
    return row["test_accuracy"] is not None and row["best_test_accuracy"] - row["test_accuracy"] > CLOSE


def course(row: Row, scale: str) -> str:
    """What the test accuracy of a run does."""
    if row["test_accuracy"] is None:
        return f"is lost to overflow ({scale} scale)"
    if decays(row):
        return f"falls from {at_best(row)} to {percent(row['test_accuracy'])} at the end ({scale} scale)"
    return f"ends at {percent(row['test_accuracy'])}, within {NEAR} of its best ({scale} scale)"


def in_which_reading(
    contents: Sequence[Content], found: Mapping[Reading, Mapping[str, Sequence[Group]]], lead: Reading
) -> str:
    """What was taken for what the paper leaves open, how well that fits, and what the other reading comes to."""
    fits = fit(contents)
    chosen, letter = in_words(CHOSEN) + (f", {fits}" if fits else ""), in_words(LETTER)
    if lead == LETTER:
        return f"All this is to the letter, where {letter}; in the reading that we have chosen since, {chosen}, but no \
claim is judged in it yet."
    judged, holding = total(found[LETTER]), len(found[LETTER].get(HOLDS, ()))
    score = f", and {holding} of {judged} judged claims hold" if judged else ""
    return f"In the chosen reading {chosen}; to the letter {letter}{score}."


def fit(contents: Sequence[Content]) -> str:
    """How well the chosen reading fits Table 1 among all that were tried, where that is known."""
    chosen, letter = weighed(f"1/{BATCH}", CHOSEN.penalty).name, weighed("1/N", LETTER.penalty).name
    for content in contents:
        if content.experiment.name != "readings":
            continue
        shown = [row for row in content.experiment.shown(content.data["means"]) if row["total"] is not None]
        totals = {row["reading"]: row["total"] for row in shown}
        if {chosen, letter} <= set(totals):
            place = 1 + sum(value < totals[chosen] for value in totals.values())
            tried = counted(len(totals), "reading")
            fits = (
                f"fits Table 1 best of {tried}" if place == 1 else f"is number {place} of {tried} by its fit to Table 1"
            )
            return f"which {fits} (misfit {totals[chosen]:.1f}, to the letter {totals[letter]:.1f})"
    return ""


def what_to_do(contents: Sequence[Content], lead: Reading) -> str:
    """The settings of the chosen reading where they keep the accuracy, else what does, by the experiment on decay."""
    chosen, keep = settled(contents, CHOSEN), "keep the best iterate (restore_best=True)"
    if lead == LETTER:
        first = f"Make the runs of the chosen reading ({command('table1', 'small')}); until then {keep}"
    elif chosen is not None and not decays(chosen[0]):
        settings = " and ".join(f"{name}={plain(value)}" for name, value in CHOSEN.settings(1.0))
        first = f"Train with the settings of the chosen reading ({settings})"
    else:
        first = f"K{keep[1:]}"
    return f"{first}{cures(max(map(of_decay, contents), key=len))}."


def cures(variants: Mapping[str, Row]) -> str:
    """Which variants end better than the method as in the paper, the two best ones, in words."""
    if PLAIN not in variants:
        return ""
    letter, key = variants[PLAIN], "test_accuracy"
    best = sorted((row for row in variants.values() if ahead(row[key], letter[key])), key=lambda row: row[key])[-2:]
    if not best:
        return ""
    told = " and ".join(f"at {percent(row[key])} with {row['variant']}" for row in best)
    data, size = DATA_NAMES.get(letter["data"], letter["data"]), f"hidden layers of {letter['hidden'][0]}"
    end = f"on {data} with {size} the method to the letter ends at {percent(letter[key])}, {told}"
    return f", or add what helps: {end}"


def of_decay(content: Content) -> dict[str, Any]:
    """The variants of the experiment on the decay that have an end, by name."""
    if content.experiment.name != "decay":
        return {}
    return {row["variant"]: row for row in content.data["means"] if row["test_accuracy"] is not None}


def why_it_changed(contents: Sequence[Content]) -> str:
    """What the reading to the letter is, and why it is no longer the one we report."""
    fits = fit(contents)
    return (
        f"Our earlier reports read the paper to the letter: {in_words(LETTER)}. But its formulas do not agree with "
        "each other. The update of W adds delta to a sum over samples. That of b divides by 1 + delta, which is right "
        f"for a mean. And the paper speaks of batches of {BATCH}, which have no place in its algorithm. So we held "
        f"other readings against Table 1, and chose one: {in_words(CHOSEN)}{f', {fits}' if fits else ''}. The earlier "
        "runs and verdicts stay here. The list of verdicts above shows both readings under each claim."
    )
