"""Is an operator of one's own right? A wrong prox trains without a word, and Phi rises: certify it first.

The certificate is told nothing but the operator's own value. Its prox has to beat every candidate: a wide grid, small
and large steps from the result, random perturbations, and the points that a closed form may confuse. The judge works in
float64, whatever the precision of the judged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ipdlam.checks import check_number
from ipdlam.prox.base import Activation, Loss, Regularizer

MAGNITUDES = (1e-3, 0.1, 0.5, 1.0, 2.5, 10.0, 100.0)
OPERANDS = (0.0, *MAGNITUDES, *(-size for size in MAGNITUDES))
WEIGHTS = (1e-3, 0.1, 1.0, 2.0, 30.0, 1e3)  # r
PRECISIONS = (torch.float64, torch.float32)
SLACK = 64.0  # roundings that a result may be away, at the least
OUTPUTS = (1, 2, 4)  # columns of a loss


@dataclass(frozen=True)
class Case:
    """Many problems at once: their result, and what it has to minimise, one value for each."""

    words: str
    x: Tensor
    operands: dict[str, Tensor]
    objective: Callable[[Tensor], Tensor]
    anchors: Tensor  # further candidates


def check(operator: Activation | Loss | Regularizer, *, tolerance: float = 1e-6) -> None:
    """Raise unless ``operator.prox`` is the minimiser that its ``value`` defines, to within ``tolerance``.

    No candidate may have a lower objective, by more than the objective changes where the result moves by ``tolerance``
    relative to 1 and the operands (or by some roundings in float32). It also raises where results have another shape or
    precision than the operands, are not finite, or share memory with them. Operands go up to 100, weights ``r`` from
    0.001 to 1000.

    >>> from ipdlam.prox import ReLU, Huber, L1, check
    >>> check(ReLU()); check(Huber(0.5)); check(L1(0.1))
    >>> class Wrong(ReLU):
    ...     def _prox(self, w, v, r):
    ...         return v.clone()
    >>> check(Wrong())  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: Wrong().prox is not the minimiser in float64: at w=2.5, v=0, r=0.001 it returns 0, where ...
    """
    check_number("tolerance", tolerance, low=0.0, strict=True)
    if isinstance(operator, type):
        raise TypeError(f"operator must be an object, got the class {operator.__name__}; write {operator.__name__}()")
    for dtype in PRECISIONS:
        for r in WEIGHTS:
            for case in cases_of(operator, dtype, r):
                judge(case, r, max(tolerance, SLACK * torch.finfo(dtype).eps))


def cases_of(operator: object, dtype: torch.dtype, r: float) -> Iterator[Case]:
    """What an operator is tried on."""
    if isinstance(operator, Activation):
        return of_activation(operator, dtype, r)
    if isinstance(operator, Loss):
        return of_loss(operator, dtype, r)
    if isinstance(operator, Regularizer):
        return of_regularizer(operator, dtype, r)
    raise TypeError(f"operator must be an ipdlam.prox.Activation, Loss or Regularizer, got {operator!r}")


def judge(case: Case, r: float, tolerance: float) -> None:
    """Raise where some candidate is lower than the result of a case."""
    x, objective = case.x, case.objective
    here = objective(x)
    if here.shape != x.shape[: here.ndim] or not bool(torch.isfinite(here).all()):
        raise ValueError(f"{case.words}: the objective at the result is not finite, one number for each problem")
    scale = 1.0 + x.abs() + sum(tensor.abs() for tensor in case.operands.values())
    distance = tolerance * scale
    allowed = torch.maximum((objective(x + distance) - here).abs(), (objective(x - distance) - here).abs())
    allowed = allowed + 64.0 * torch.finfo(torch.float64).eps * here.abs()
    for candidates in (*around(x), *case.anchors):
        values = objective(candidates)
        excess = torch.nan_to_num(here - values - allowed, nan=-math.inf)
        worst = int(excess.argmax())
        if float(excess.flatten()[worst]) > 0.0:
            rows = x.reshape(here.numel(), -1)
            given = ", ".join(
                f"{name}={shown(tensor.reshape(here.numel(), -1)[worst])}" for name, tensor in case.operands.items()
            )
            raise ValueError(
                f"{case.words}: at {given}, r={r:g} it returns {shown(rows[worst])}, where the objective is "
                f"{float(here.flatten()[worst]):.6g}; at {shown(candidates.reshape(here.numel(), -1)[worst])} it is "
                f"{float(values.flatten()[worst]):.6g}"
            )


def shown(row: Tensor) -> str:
    """A number, or a few."""
    numbers = [f"{value:.6g}" for value in row.tolist()]
    return numbers[0] if len(numbers) == 1 else f"({', '.join(numbers)})"


def around(x: Tensor) -> Iterator[Tensor]:
    """Candidates: steps in either direction along every column, random ones, and a wide grid."""
    sizes = torch.logspace(-5, 2.5, 16, dtype=torch.float64).tolist()
    columns = range(x.shape[1]) if x.ndim == 2 else (None,)
    for size in sizes:
        for column in columns:
            step = torch.zeros_like(x)
            step[... if column is None else (slice(None), column)] = size
            yield x + step
            yield x - step
        yield x + size * torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for value in (*OPERANDS, -6.0, -3.0, -2.0, 2.0, 3.0, 6.0):
        yield torch.full_like(x, value)


def solved(operator: object, dtype: torch.dtype, solve: Callable[[], Tensor], *operands: Tensor) -> tuple[str, Tensor]:
    """The result of a prox, known to be a tensor of its own; and what to say of it."""
    before = [tensor.clone() for tensor in operands]
    x = solve()
    words = f"{operator!r}.prox"
    if any(not torch.equal(now, then) for now, then in zip(operands, before, strict=True)):
        raise ValueError(f"{words} writes into its operands; it has to leave them alone")
    like = operands[-1]
    if not isinstance(x, Tensor) or x.shape != like.shape or x.dtype != dtype:
        got = f"{tuple(x.shape)}, {x.dtype}" if isinstance(x, Tensor) else repr(x)
        raise ValueError(f"{words} must return a tensor of shape {tuple(like.shape)} and {dtype}, got {got}")
    if x.untyped_storage().data_ptr() in {tensor.untyped_storage().data_ptr() for tensor in operands}:
        raise ValueError(f"{words} returns one of its operands; it has to return a tensor of its own")
    if not bool(torch.isfinite(x).all()):
        raise ValueError(f"{words} is not finite everywhere in {dtype}")
    return f"{words} is not the minimiser in {str(dtype).removeprefix('torch.')}", x.double()


def of_activation(sigma: Activation, dtype: torch.dtype, r: float) -> Iterator[Case]:
    """Every pair of operands."""
    grid = torch.tensor(OPERANDS, dtype=dtype)
    v, w = (each.flatten().clone() for each in torch.meshgrid(grid, grid, indexing="ij"))
    value = sigma.value(w)
    if value.shape != w.shape or not torch.equal(value[:5], sigma.value(w[:5])):
        raise ValueError(f"{sigma!r}.value must treat every entry by itself, and keep the shape")
    words, x = solved(sigma, dtype, lambda: sigma.prox(w, v, r), w, v)
    w64, v64 = w.double(), v.double()
    yield Case(words, x, {"w": w64, "v": v64}, lambda x: sigma.prox_objective(x, w64, v64, r), torch.stack([v64, w64]))


def of_loss(loss: Loss, dtype: torch.dtype, r: float) -> Iterator[Case]:
    """Encoded labels and, where the loss takes them, real targets; one output and several."""
    generator = torch.Generator().manual_seed(1)
    for outputs in OUTPUTS:
        classes = loss.classes(outputs)
        v = torch.tensor(OPERANDS, dtype=dtype).repeat(4)[:, None].repeat(1, outputs)
        v = v * torch.randn(v.shape, generator=generator, dtype=torch.float64).to(dtype).clamp(-2.0, 2.0)
        choices = [torch.randn(v.shape, generator=generator, dtype=torch.float64).to(dtype)]
        if classes > 1:
            choices.append(loss.encode(torch.arange(len(v)) % classes, outputs, dtype))
        for targets in choices:
            try:
                loss.check_targets(targets)
            except (TypeError, ValueError):
                continue
            value = loss.value(targets, v)
            if value.shape != (len(v),):
                raise ValueError(f"{loss!r}.value must return one number for every row, got {tuple(value.shape)}")
            words, x = solved(loss, dtype, lambda targets=targets, v=v: loss.prox(targets, v, r), targets, v)  # type: ignore[misc]
            t64, v64 = targets.double(), v.double()
            yield Case(
                words,
                x,
                {"targets": t64, "v": v64},
                lambda x, t=t64, v=v64: loss.prox_objective(t, x, v, r),  # type: ignore[misc]
                torch.stack([v64, t64]),
            )


def of_regularizer(regularizer: Regularizer, dtype: torch.dtype, r: float) -> Iterator[Case]:
    """Each entry is a problem of its own: R must be a sum over entries."""
    v = torch.tensor(OPERANDS, dtype=dtype)

    def value(x: Tensor) -> Tensor:
        return torch.stack([regularizer.value(entry[None]) for entry in x])

    # Where a constraint is violated, R is infinite: the sum is compared where it is finite.
    words, x = solved(regularizer, dtype, lambda: regularizer.prox(v, r), v)
    whole, parts = regularizer.value(x), value(x).sum()
    if whole.numel() != 1 or not torch.allclose(whole.double(), parts.double(), rtol=1e-9):
        raise ValueError(f"{regularizer!r}.value must be the sum over the entries, a single number")
    v64 = v.double()
    yield Case(
        words,
        x,
        {"v": v64},
        lambda x: value(x) + 0.5 * r * (x - v64).square(),
        torch.stack([v64, torch.zeros_like(v64), 0.5 * (x + v64)]),
    )
