"""An order is data: a tuple of blocks. The planner fuses it into passes over the samples.

The blocks z_l and a_l touch one sample at a time; W_l (with b_l) needs sums over all samples. So the blocks between
two W blocks fuse into one visit of every chunk of samples, and W blocks are the barriers between visits. A visit may
run across the end of an iteration: the a updates of one iteration, the objective after it, and the z updates of the
next belong to the same visit. Reverse and increase therefore cost one pass over the data an iteration, nested reverse
L.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple


class Block(NamedTuple):
    """One block of variables: ``kind`` is ``z``, ``W`` (with its bias) or ``a``; layers count from 1."""

    kind: str
    layer: int

    def __str__(self) -> str:
        return f"{self.kind}{self.layer}"


Order = tuple[Block, ...]


def reverse(layers: int) -> Order:
    """z_L ... z_1, W_L ... W_1, a_(L-1) ... a_1. (The paper lists an a_L too, which its own problem does not have.)"""
    down = range(layers, 0, -1)
    return (
        *(Block("z", l) for l in down),
        *(Block("W", l) for l in down),
        *(Block("a", l) for l in down if l < layers),
    )


def increase(layers: int) -> Order:
    """z_1 ... z_L, W_1 ... W_L, a_1 ... a_(L-1)."""
    up = range(1, layers + 1)
    return (*(Block("z", l) for l in up), *(Block("W", l) for l in up), *(Block("a", l) for l in up if l < layers))


def nested_reverse(layers: int) -> Order:
    """z_L, W_L, a_(L-1), z_(L-1), W_(L-1), ..., a_1, z_1, W_1."""
    blocks = [Block("z", layers), Block("W", layers)]
    for l in range(layers - 1, 0, -1):
        blocks += [Block("a", l), Block("z", l), Block("W", l)]
    return tuple(blocks)


ORDERS: dict[str, Callable[[int], Order]] = {"reverse": reverse, "increase": increase, "nested-reverse": nested_reverse}
"""Name to order, as a function of the number of layers; open to users."""


def resolve_order(order: str | Iterable[str | tuple[str, int]], layers: int) -> Order:
    """An order by name, or from blocks such as ``"z3"`` or ``("z", 3)``, checked against the network's blocks."""
    if isinstance(order, str):
        if order not in ORDERS:
            raise ValueError(f"order must be one of {', '.join(ORDERS)} or a sequence of blocks, got {order!r}")
        blocks = tuple(parse_block(item) for item in ORDERS[order](layers))
    elif isinstance(order, Iterable):
        blocks = tuple(parse_block(item) for item in order)
    else:
        raise TypeError(f"order must be one of {', '.join(ORDERS)} or a sequence of blocks, got {order!r}")
    expected = set(increase(layers))
    seen: set[Block] = set()
    for block in blocks:
        if block not in expected:
            raise ValueError(f"order names the block {block}, which a network of {layers} layers does not have")
        if block in seen:
            raise ValueError(f"order repeats the block {block}; every block must come exactly once")
        seen.add(block)
    missing = [str(block) for block in increase(layers) if block not in seen]
    if missing:
        raise ValueError(
            f"order omits the block{'s' if len(missing) > 1 else ''} {', '.join(missing)}; every block must come "
            "exactly once"
        )
    return blocks


def parse_block(item: str | tuple[str, int]) -> Block:
    """``"z3"`` or ``("z", 3)`` as a block."""
    if isinstance(item, str) and item[:1] in ("z", "W", "a") and item[1:].isascii() and item[1:].isdigit():
        return Block(item[0], int(item[1:]))
    if isinstance(item, tuple) and len(item) == 2 and item[0] in ("z", "W", "a") and isinstance(item[1], int):
        return Block(*item)
    raise ValueError(f"order holds {item!r}, which is not a block; write blocks as 'z3', 'W3' or 'a2'")


@dataclass(frozen=True)
class Visit:
    """A chunk of samples is visited: updates, the objective, updates of the next iteration, moments, in this order."""

    before: Order = ()
    measures: bool = False
    after: Order = ()
    moments: tuple[int, ...] = ()


@dataclass(frozen=True)
class Stage:
    """W solves, then one pass over the data."""

    solves: tuple[int, ...]
    visit: Visit


@dataclass(frozen=True)
class Plan:
    """``opening`` comes once, before the first iteration; ``stages`` are one iteration.

    ``foreseen`` are the layers whose z update reads the same product ``a_(l-1) W_l^T`` as the objective before it. It
    is then taken once, whichever pass the update comes in. ``ahead`` are the blocks that a finished iteration has
    already updated for the next one.
    """

    opening: Visit
    stages: tuple[Stage, ...]
    foreseen: frozenset[int]
    ahead: frozenset[Block]

    @property
    def passes(self) -> int:
        """Passes over the data an iteration."""
        return len(self.stages)


def plan(order: Sequence[Block]) -> Plan:
    """Fuse consecutive sample-local blocks into visits, with the W solves as barriers and the objective at the end."""
    runs = [(is_solve, tuple(run)) for is_solve, run in groupby(order, key=lambda block: block.kind == "W")]
    head: Order = () if runs[0][0] else runs.pop(0)[1]
    solves = [tuple(block.layer for block in run) for is_solve, run in runs if is_solve]
    locals_after: list[Order] = [run for is_solve, run in runs if not is_solve]
    if len(locals_after) < len(solves):
        locals_after.append(())
    stages = []
    for index, (layers, blocks) in enumerate(zip(solves, locals_after, strict=True)):
        if index + 1 < len(solves):
            visit = Visit(before=blocks, moments=solves[index + 1])
        else:
            visit = Visit(before=blocks, measures=True, after=head, moments=solves[0])
        stages.append(Stage(layers, visit))
    place = {block: index for index, block in enumerate(order)}
    foreseen = frozenset(
        block.layer
        for block in order
        if block.kind == "z"
        and place[block] < place[Block("W", block.layer)]
        and (block.layer == 1 or place[block] < place[Block("a", block.layer - 1)])
    )
    return Plan(Visit(measures=True, after=head, moments=solves[0]), tuple(stages), foreseen, frozenset(head))
