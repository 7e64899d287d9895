"""What was made of the experiments in a folder: read, checked against the stored runs, in the order of the report."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipdlam.errors import FileError
from ipdlam.experiments import EXPERIMENTS
from ipdlam.experiments.claims import FAILS, HOLDS, NOT_RUN, OPEN, PAPER, PARTLY, UNJUDGED, UNMEASURED
from ipdlam.experiments.make import NAMES, axis_labels, check, command, drawn_panels, elsewhere
from ipdlam.experiments.paper.setup import CHOSEN, LETTER, Reading
from ipdlam.experiments.spec import Experiment, Panel
from ipdlam.experiments.store import Store
from ipdlam.experiments.tables import Table, result_table
from ipdlam.runs.config import ConfigError

SHOWN_SCALES = ("paper", "small")
WARM_UP = "smoke"  # shown where there is nothing else
OTHERS = "others, our readings and questions"
VERDICTS = (HOLDS, PARTLY, FAILS, UNMEASURED, UNJUDGED, OPEN)
LONGEST_LIST = 12  # names of lines in the words for a picture


@dataclass(frozen=True)
class Content:
    """One experiment at one scale: its file, which was held against its runs, and its picture."""

    experiment: Experiment
    scale: str
    data: Mapping[str, Any]  # the JSON file, as ``make.collected`` describes it
    picture: Path
    image: bytes  # the PNG file
    description: str  # of the picture, in words

    @property
    def key(self) -> str:
        """The name of its files and of its place in the report."""
        return f"{self.experiment.name}-{self.scale}"

    @property
    def claims(self) -> Sequence[Mapping[str, str]]:
        return self.data["claims"]  # type: ignore[no-any-return]

    @property
    def table(self) -> Table:
        return result_table(self.experiment, self.data)

    @property
    def warning(self) -> str:
        """That the command does more than was done, where some runs are missing."""
        missing = self.data["runs_declared"] - self.data["runs"]
        return f"makes {plural(missing, 'missing run')}, too; with --collect none" if missing else ""

    @property
    def part(self) -> str | None:
        """How many of the runs there are, where some are missing."""
        made, declared = self.data["runs"], self.data["runs_declared"]
        return None if made == declared else f"{made} of {declared} runs"

    @property
    def reading(self) -> Reading | None:
        return reading_of(self.experiment.name)


def load_contents(folder: Path) -> list[Content]:
    """Every experiment that was made in a folder, in the order of the paper and from the largest scale down.

    A file that its runs in ``folder/runs`` do not give is refused by name, and so is a lost picture. The smoke scale,
    which says nothing of the paper, is left out as soon as anything was made at another.
    """
    if not folder.is_dir():
        if folder.exists():
            raise ConfigError(f"folder {folder} is a file; give the folder that it is in")
        raise ConfigError(f"folder {folder} does not exist; make results first: {first_command(folder)}")
    for scales in (SHOWN_SCALES, (WARM_UP,)):
        keys = [(name, scale) for name in EXPERIMENTS for scale in scales]
        found = [key for key in keys if (folder / f"{'-'.join(key)}.json").exists()]
        if found:
            return [load(folder, *key) for key in found]
    raise ConfigError(
        f"folder {folder} holds no result of an experiment, such as fig1-small.json; make some first: "
        f"{first_command(folder)}"
    )


def first_command(folder: Path) -> str:
    """What makes all experiments in seconds."""
    return f"{command('all', WARM_UP)}{elsewhere(folder)}"


def load(folder: Path, name: str, scale: str) -> Content:
    """One experiment at one scale; whatever is wrong with it is said with its file and what to do."""
    experiment, path = EXPERIMENTS[name], folder / f"{name}-{scale}.json"
    again = f"again: {command(name, scale)} --collect{elsewhere(folder)}"
    try:
        data = json.loads(path.read_bytes())
        wrong = misfit(data, name, scale)
        if wrong:
            raise FileError(f"{wrong}; collect it {again}")
        results = check(experiment, data, Store(folder / "runs", folder / "unfinished"))
        panels = drawn_panels(experiment, results)
        if not panels:
            raise FileError(f"it has no run of the first seed; make its runs: {data['command']}{elsewhere(folder)}")
    except OSError as error:
        raise FileError(
            f"{error.filename or path} cannot be read: {error.strerror or error}; change its permissions, or "
            f"remove what is in its place, then collect it {again}"
        ) from error
    except (FileError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        damaged = f"damaged, {type(error).__name__}: {error}; collect it {again}"
        reason = str(error) if isinstance(error, FileError) else damaged
        raise FileError(f"{path} is refused: {reason}") from error
    picture = path.with_suffix(".png")
    image = read_picture(picture, f"draw it {again}")
    return Content(experiment, scale, data, picture, image, describe(experiment.title, panels))


def misfit(data: object, name: str, scale: str) -> str | None:
    """Why the content of a JSON file cannot even be held against the runs of an experiment."""
    if not isinstance(data, dict) or (data.get("experiment"), data.get("scale")) != (name, scale):
        return f"it is not the result of {name} at the {scale} scale"
    seeds = data.get("seeds")
    if not isinstance(seeds, int) or isinstance(seeds, bool) or seeds < 1:
        return f"its seeds must be a whole number from 1 on, got {seeds!r}"
    digests = data.get("digests")
    # Before the runs of all these seeds are listed, which may take for ever. (One seed is no trouble: ``check`` tells.)
    if isinstance(digests, dict) and seeds > max(1, len(digests)):
        return f"its seeds, {seeds}, are more than the {len(digests)} runs that it names"
    return None


def reading_of(name: str) -> Reading | None:
    """The reading of the paper that an experiment is made in; None where it has settings of its own."""
    if name.endswith(LETTER.suffix):
        return LETTER
    return CHOSEN if f"{name}{LETTER.suffix}" in EXPERIMENTS else None


def base_name(name: str) -> str:
    """The name of an experiment, whatever the reading."""
    return name.removesuffix(LETTER.suffix)


def reading_label(reading: Reading | None) -> str:
    """A reading in the rows of a table."""
    return "its own settings" if reading is None else "chosen reading" if reading == CHOSEN else "to the letter"


def read_picture(path: Path, remedy: str) -> bytes:
    """A picture as ``make.collect`` left it beside its JSON file."""
    try:
        image = path.read_bytes()
    except FileNotFoundError:
        raise FileError(f"the picture {path} is missing; {remedy}") from None
    except OSError as error:
        raise FileError(f"the picture {path} cannot be read: {error.strerror or error}; {remedy}") from error
    if not image.startswith(b"\x89PNG") or len(image) < 24:
        raise FileError(f"the picture {path} is no PNG file; {remedy}")
    return image


def describe(title: str, panels: Sequence[Panel]) -> str:
    """A picture in words, for those who cannot see it."""
    lines = list(dict.fromkeys(name for panel in panels for name in panel.lines))
    named = "; ".join(lines[:LONGEST_LIST]) + (f" and {len(lines) - LONGEST_LIST} more" * (len(lines) > LONGEST_LIST))
    return f"{title}. Panels: {'; '.join(map(describe_panel, panels))}. Lines: {named}."


def describe_panel(panel: Panel) -> str:
    """What is drawn against what."""
    return f"{panel.title}, {NAMES[panel.column]} by {axis_labels(panel)[0].removesuffix(' (s)')}"


def by_experiment(contents: Sequence[Content]) -> list[list[Content]]:
    """The scales of each experiment together."""
    found: dict[str, list[Content]] = {}
    for content in contents:
        found.setdefault(content.experiment.name, []).append(content)
    return list(found.values())


@dataclass(frozen=True)
class Verdict:
    """A claim in the list of all of them."""

    experiment: str
    scale: str
    part: str | None  # of the runs
    key: str | None  # of its place in the report, where the experiment was made
    claim: Mapping[str, str]

    @property
    def reading(self) -> Reading | None:
        return reading_of(self.experiment)


@dataclass(frozen=True)
class Group:
    """A claim, and what became of it in each reading and at each scale."""

    experiment: str  # its name without that of the reading
    claim: Mapping[str, str]  # of any of the verdicts: claim, paper, source and rule are the same in all
    verdicts: Sequence[Verdict]


def grouped(contents: Sequence[Content]) -> list[Group]:
    """All verdicts, those on one claim together: the chosen reading first, then the letter, large scales first.

    That the letter was not run is not worth a line where anything else is known of the claim.
    """
    found: dict[tuple[str, str], list[Verdict]] = {}
    for verdict in verdicts(contents):
        found.setdefault((base_name(verdict.experiment), verdict.claim["claim"]), []).append(verdict)
    places = {name: place for place, name in enumerate(EXPERIMENTS)}
    groups = []
    for (name, _), mine in sorted(found.items(), key=lambda item: places[item[0][0]]):
        told = [each for each in mine if each.reading != LETTER or not each.claim["ours"].startswith(NOT_RUN)]
        groups.append(Group(name, mine[0].claim, told or mine))
    return groups


def verdicts(contents: Sequence[Content]) -> list[Verdict]:
    """Every claim of every experiment, made or not. What was run at no scale is named once, at the cheapest."""
    found: list[Verdict] = []
    for name, experiment in EXPERIMENTS.items():
        made = [content for content in contents if content.experiment.name == name]
        listed = [Verdict(name, each.scale, each.part, each.key, claim) for each in made for claim in each.claims]
        measured = [verdict for verdict in listed if verdict.claim["ours"] != NOT_RUN]
        known = {verdict.claim["claim"] for verdict in measured}
        once = {verdict.claim["claim"]: verdict for verdict in listed if verdict.claim["claim"] not in known}
        found += [*measured, *once.values(), *not_run(experiment, known | set(once))]
    return [verdict for verdict in found if verdict.key or contents[0].scale != WARM_UP]  # which judges nothing


def not_run(experiment: Experiment, known: Set[str]) -> list[Verdict]:
    """The claims that no result speaks of, with what would judge them."""
    found = {
        claim.claim: Verdict(
            experiment.name,
            scale,
            None,
            None,
            {**dataclasses.asdict(claim), "ours": f"{NOT_RUN}; {command(experiment.name, scale)}"},
        )
        for scale in SHOWN_SCALES  # the cheapest comes last
        for claim in experiment.claims([], scale)
    }
    return [verdict for claim, verdict in found.items() if claim not in known]


def counts(contents: Sequence[Content]) -> Table:
    """How many claims got which verdict, for each reading and scale; the paper's own are counted apart.

    What is no judgement is counted only where there is such.
    """
    found: dict[tuple[str, str, str], Counter[str]] = {}
    for verdict in verdicts(contents):
        said_by = PAPER if verdict.claim["source"] == PAPER else OTHERS
        found.setdefault((reading_label(verdict.reading), verdict.scale, said_by), Counter())[
            verdict.claim["verdict"]
        ] += 1
    everywhere = sum(found.values(), Counter())
    words = [word for word in VERDICTS if word in VERDICTS[:3] or everywhere[word]]
    readings = map(reading_label, (CHOSEN, None, LETTER))
    order = list(itertools.product(readings, (*SHOWN_SCALES, WARM_UP), (PAPER, OTHERS)))
    rows = tuple((*key, *(str(found[key][word]) for word in words)) for key in order if key in found)
    return Table(("reading", "scale", "said by", *words), rows, (False, False, False, *(True for _ in words)))


def counted(contents: Sequence[Content]) -> list[str]:
    """The counts in words, a line for each reading, each scale and who says it."""
    table = counts(contents)
    lines = []
    for reading, scale, said_by, *numbers in table.rows:
        words = ", ".join(
            f"{word}: {number}" for word, number in zip(table.headings[3:], numbers, strict=True) if number != "0"
        )
        lines.append(f"{reading}, {scale} scale, {said_by}: {words}")
    return lines


def missing(contents: Sequence[Content]) -> list[str]:
    """The experiments that were not made."""
    there = {content.experiment.name for content in contents}
    return [name for name in EXPERIMENTS if name not in there]


def environments(contents: Sequence[Content]) -> list[str]:
    """What the runs were made on and when, once for each kind of machine; from the runs, not from who drew them."""
    dates: dict[str, set[str]] = {}
    for content in contents:
        for row in content.data["rows"]:
            where = row["environment"]
            machine = (
                f"{where.get('processor') or 'unknown processor'}, {plural(where.get('threads', '?'), 'thread')}, "
                f"torch {where.get('torch')}, Python {where.get('python')}, ipdlam {where.get('ipdlam')}"
            )
            dates.setdefault(machine, set()).add(str(where.get("date")))
    return [f"{machine}; {period(found)}" for machine, found in dates.items()]


def period(dates: set[str]) -> str:
    """A day, or the first and the last."""
    first, last = min(dates), max(dates)
    return first if first == last else f"{first} to {last}"


def plural(count: object, word: str) -> str:
    """A number of things."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
