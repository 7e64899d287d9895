"""Docstrings for the site: Sphinx roles become links, doctests code blocks, and names of defaults their values.

The docstrings are written for ``help()``: ``:meth:`save``` names a method of the same class, ``:class:`ipdlam.IPDLAM```
something by its full name. A name that the reference does not document stays code.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

from ipdlam import defaults

ROLE = re.compile(r":(?:class|meth|func|data|attr|mod|exc|obj):`(~?)([\w.]+)`")
DOCTEST = re.compile(r"(?:^[ ]*>>> .*\n?(?:^[ ]*\S.*\n?)*)", re.MULTILINE)
SHARED = re.compile(r"^(\w+(?:, \w+)+)\n((?: {4}.*\n?)+)", re.MULTILINE)  # several parameters with one text
SECTION = re.compile(r"^-{4,}$", re.MULTILINE)  # the line under a heading of numpydoc
GRID = re.compile(r"^={3,}(?: +={3,})+\n(.*?)\n={3,}(?: +={3,})+$", re.DOTALL | re.MULTILINE)


DEFAULT = re.compile(r"(?:defaults\.)?(([A-Z_]+)(?:\[[A-Z_]+\])?)")  # defaults.INERTIA, or LEARNING_RATES[OPTIMIZER]


class Docstrings(griffe.Extension):
    """Rewrites every docstring as it is read, and the defaults of signatures."""

    def on_object(self, *, obj: griffe.Object, loader: griffe.GriffeLoader, **kwargs: Any) -> None:
        """Called for modules, classes, functions and attributes."""
        if obj.docstring is not None:
            obj.docstring.value = rewritten(obj.docstring.value, obj)

    def on_function(self, *, func: griffe.Function, loader: griffe.GriffeLoader, **kwargs: Any) -> None:
        """A reader wants to see 0.7, not the name that trainers and command line share."""
        for parameter in func.parameters:
            found = DEFAULT.fullmatch(str(parameter.default))
            if found is not None and found[2] in vars(defaults):
                parameter.default = repr(eval(found[1], dict(vars(defaults))))


def rewritten(text: str, obj: griffe.Object) -> str:
    """A docstring in Markdown."""

    def linked(found: re.Match[str]) -> str:
        shown = found[2].rpartition(".")[2] if found[1] else found[2]
        line = text.rfind("\n", 0, found.start()) + 1
        if text.startswith("    ", line) and not SECTION.search(text, 0, line):
            return shown  # within a block of code
        return f'<autoref optional identifier="{full_name(found[2], obj)}"><code>{shown}</code></autoref>'

    text = ROLE.sub(linked, text)
    text = SHARED.sub(
        lambda found: "\n".join(f"{name}\n{found[2].rstrip()}" for name in found[1].split(", ")) + "\n", text
    )
    text = GRID.sub(lambda found: tabled(found[1]), text)
    return DOCTEST.sub(lambda found: fenced(found[0], text[: found.start()]), text)


def full_name(name: str, obj: griffe.Object) -> str:
    """What a role's name stands for: a name of its own class, of its module, or a full one."""
    if name.startswith("ipdlam."):
        return name
    place: griffe.Object | None = obj
    while place is not None:
        if place.is_class and name.split(".")[0] in place.all_members:
            return f"{place.path}.{name}"
        place = place.parent  # type: ignore[assignment]
    return f"{obj.module.path}.{name}"


def fenced(block: str, before: str) -> str:
    """A doctest as a code block at its own indentation; behind the sections of numpydoc, as the section Examples."""
    if SECTION.search(before):
        return block if "Examples\n---" in before else f"Examples\n--------\n{block}"
    indent = re.match(r" *", block)[0]  # type: ignore[index]
    return f"{indent}```pycon\n{block.rstrip()}\n{indent}```\n"


def tabled(rows: str) -> str:
    """A simple reStructuredText table without a heading as a Markdown one."""
    cells = [re.split(r"(?<=\S) {2,}", row, maxsplit=1) for row in rows.split("\n")]
    return "\n".join(["| | |", "|---|---|", *(f"| {' | '.join(row)} |" for row in cells)])
