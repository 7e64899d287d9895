"""What the processes of a run must have in common before they begin, and who holds which samples."""

from __future__ import annotations

from typing import Any

from ipdlam.checks import differences
from ipdlam.distributed.group import Group, Span
from ipdlam.errors import DistributedError
from ipdlam.network.model import ModelView
from ipdlam.network.samples import Samples


def refuse_mismatch(given: list[dict[str, Any]]) -> None:
    """Raise where what the ranks were given, in plain JSON types, is not the same."""
    for rank, own in enumerate(given):
        found = differences(given[0], own, "")
        if found:
            raise DistributedError(
                f"all processes must be given the same, but from rank 0 to rank {rank}, {'; '.join(found)}"
            )


def divide(
    group: Group,
    settings: dict[str, Any],
    network: ModelView,
    samples: Samples,
    validation: Samples | None,
    *,
    fed: bool = False,
) -> tuple[Span, Span | None] | None:
    """Where this process's samples stand among all, once settings and model are known to be the same; None in one.

    A run that is ``fed`` has no samples: its batches come from elsewhere.
    """
    if group.size == 1:
        return None
    common = {
        "settings": settings,
        "network": network.to_dict(),
        "targets": "in the batches of a loader" if fed else kind_of(samples),
        "validation targets": None if validation is None else kind_of(validation),
    }
    parts = [samples] if validation is None else [samples, validation]
    everyones = group.everyones((common, [(len(part), part.count) for part in parts]), "start a run")
    refuse_mismatch([given for given, _ in everyones])
    spans = []
    for number, prefix in enumerate(("", "validation ")[: len(parts)]):
        lengths = [own[number][0] for _, own in everyones]
        if fed and number == 0:
            spans.append(Span(0, 0, 0))
            continue
        if sum(lengths) == 0:
            raise ValueError(f"{prefix}X is empty on every rank; give at least one sample")
        if not any(own[number][1] > 0.0 for _, own in everyones):
            raise ValueError(f"{prefix}sample_weight is zero for every sample of every rank; at least one must count")
        spans.append(Span.of_rank(group.rank, lengths))
    return spans[0], spans[1] if validation is not None else None


def kind_of(samples: Samples) -> str:
    """What there is to learn from samples."""
    goal = "class indices" if samples.labelled else "real targets"
    return goal if samples.weight is None else f"{goal} with sample_weight"
