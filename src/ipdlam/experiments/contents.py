"""What was made of the experiments in a folder: read, checked against the stored runs, in the order of the report."""

from __future__ import annotations

import json
import re
import shlex
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipdlam.config import ConfigError
from ipdlam.errors import CheckpointError
from ipdlam.experiments import EXPERIMENTS
from ipdlam.experiments.base import Experiment, Panel
from ipdlam.experiments.claims import FAILS, HOLDS, OPEN, PARTLY, UNMEASURED
from ipdlam.experiments.make import NAMES, all_runs, check
from ipdlam.experiments.runner import Store
from ipdlam.experiments.tables import Table, result_table

SHOWN_SCALES = ("paper", "small")
WARM_UP = "smoke"  # shown where there is nothing else
VERDICTS = (HOLDS, PARTLY, FAILS, UNMEASURED, OPEN)
DEFAULT_FOLDER = Path("results")
LONGEST_LIST = 12  # names of lines in the words for a picture

PNG_BEGINS, PNG_ENDS = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"


@dataclass(frozen=True)
class Content:
    """One experiment at one scale: its file, which was held against its runs, and its picture."""

    experiment: Experiment
    scale: str
    data: Mapping[str, Any]  # the JSON file, as ``make.summarise`` describes it
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
    def part(self) -> str | None:
        """How many of the runs there are, where some are missing."""
        made, declared = self.data["runs"], self.data["runs_declared"]
        return None if made == declared else f"{made} of {declared} runs"

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the picture."""
        width, height = struct.unpack(">II", self.image[16:24])
        return width, height


def load_contents(folder: Path) -> list[Content]:
    """Every experiment that was made in a folder, in the order of the paper and from the largest scale down.

    A file that its runs in ``folder/runs`` do not give is refused by name. The smoke scale, which says nothing of the
    paper, is left out as soon as anything was made at another.
    """
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise ConfigError(f"folder {folder} {what}; make results first: {first_command(folder)}")
    for scales in (SHOWN_SCALES, (WARM_UP,)):
        keys = [(name, scale) for name in EXPERIMENTS for scale in scales]
        found = [key for key in keys if (folder / f"{'-'.join(key)}.json").is_file()]
        if found:
            return [load(folder, *key) for key in found]
    raise ConfigError(
        f"folder {folder} holds no result of an experiment, such as fig1-small.json; make some first: "
        f"{first_command(folder)}"
    )


def first_command(folder: Path) -> str:
    """What makes all experiments in seconds."""
    return f"ipdlam reproduce all --scale {WARM_UP}{elsewhere(folder)}"


def elsewhere(folder: Path) -> str:
    """The option that sends results to another folder than the usual one."""
    return "" if folder == DEFAULT_FOLDER else f" --output {shlex.quote(str(folder))}"


def load(folder: Path, name: str, scale: str) -> Content:
    """One experiment at one scale; whatever is wrong with it is said with its file and what to do."""
    experiment, path = EXPERIMENTS[name], folder / f"{name}-{scale}.json"
    remedy = f"ipdlam reproduce {name} --scale {scale}"
    store = Store(folder / "runs", folder / "unfinished")
    try:
        data = json.loads(path.read_bytes())
        if not isinstance(data, dict) or (data.get("experiment"), data.get("scale")) != (name, scale):
            raise CheckpointError(f"it is not the result of {name} at the {scale} scale")
        remedy = checked_command(data, remedy)
        check(experiment, data, store)
        if not data["rows"]:
            raise CheckpointError("none of its runs was made")
    except (CheckpointError, ValueError, TypeError, KeyError, AttributeError) as error:
        reason = str(error) if isinstance(error, CheckpointError) else f"damaged, {type(error).__name__}: {error}"
        reason = re.split("(?:;|, then) make it again", reason)[0]  # the remedy below knows the folder too
        raise CheckpointError(f"{path} is refused: {reason}; make it again: {remedy}{elsewhere(folder)}") from error
    picture = path.with_suffix(".png")
    image = read_picture(picture, remedy + elsewhere(folder))
    return Content(experiment, scale, data, picture, image, describe(experiment, data))


def checked_command(data: Mapping[str, Any], expected: str) -> str:
    """The command of a file, which readers will copy: nothing but ``ipdlam reproduce`` and its plain arguments."""
    command, seeds = data["command"], data["seeds"]
    if not isinstance(seeds, int) or isinstance(seeds, bool) or seeds < 1:
        raise CheckpointError(f"its seeds must be a whole number from 1 on, got {seeds!r}")
    words = shlex.split(command)
    if shlex.join(words) != command or words[: len(expected.split())] != expected.split():
        raise CheckpointError(f"its command must begin with {expected!r} and hold nothing but arguments")
    return str(command)


def read_picture(path: Path, remedy: str) -> bytes:
    """A PNG file, whole."""
    try:
        image = path.read_bytes()
    except FileNotFoundError:
        raise CheckpointError(f"the picture {path} is missing; draw it again: {remedy}") from None
    if not image.startswith(PNG_BEGINS) or not image.endswith(PNG_ENDS):
        raise CheckpointError(f"the picture {path} is not a whole PNG file; draw it again: {remedy}")
    return image


def describe(experiment: Experiment, data: Mapping[str, Any]) -> str:
    """A picture in words, for those who cannot see it."""
    made = {row["run"] for row in data["rows"]}
    first = [spec for spec in all_runs(experiment, data["scale"], 1) if spec.key in made]
    panels = experiment.panels(first) if first else ()
    lines = list(dict.fromkeys(name for panel in panels for name in panel.lines))
    named = "; ".join(lines[:LONGEST_LIST]) + (f" and {len(lines) - LONGEST_LIST} more" * (len(lines) > LONGEST_LIST))
    return f"{experiment.title}. Panels: {'; '.join(map(describe_panel, panels))}. Lines: {named}."


def describe_panel(panel: Panel) -> str:
    """What is drawn against what."""
    against = NAMES[panel.against] if panel.across is None else panel.across.__name__
    return f"{panel.title}, {NAMES[panel.column]} by {against.removesuffix(' (s)')}"


def by_experiment(contents: Sequence[Content]) -> list[list[Content]]:
    """The scales of each experiment together."""
    found: dict[str, list[Content]] = {}
    for content in contents:
        found.setdefault(content.experiment.name, []).append(content)
    return list(found.values())


def counts(contents: Sequence[Content]) -> Table:
    """How many claims got which verdict, for each scale; what is no judgement is counted only where there is such."""
    by_scale: dict[str, Counter[str]] = {}
    for content in contents:
        found = by_scale.setdefault(content.scale, Counter())
        found.update(claim["verdict"] for claim in content.claims)
    everywhere = sum(by_scale.values(), Counter())
    words = [word for word in VERDICTS if word in VERDICTS[:3] or everywhere[word]]
    order = [scale for scale in (*SHOWN_SCALES, WARM_UP) if scale in by_scale]
    rows = tuple((scale, *(str(by_scale[scale][word]) for word in words)) for scale in order)
    return Table(("scale", *words), rows, (False, *(True for _ in words)))


def counted(contents: Sequence[Content]) -> list[tuple[str, str]]:
    """The counts of each scale in words."""
    table = counts(contents)
    found = []
    for scale, *numbers in table.rows:
        words = ", ".join(f"{word}: {number}" for word, number in zip(table.headings[1:], numbers, strict=True))
        found.append((scale, f"{plural(sum(map(int, numbers)), 'claim')}; {words}"))
    return found


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
