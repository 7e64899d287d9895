"""One mini-batch of the mini-batch method: a fresh forward pass, a sweep of targets, and a step of every layer to them.

Each layer's weights take a step along the minimiser of a proximal least-squares problem in the metric ``M_l`` of
:mod:`ipdlam.minibatch.input_memory`,

    N_l = argmin_D  -<D, (z_l* - z_l)^T a_(l-1) / m> + <D, D M_l> / 2  =  (z_l* - z_l)^T a_(l-1) M_l^-1 / m,

with ``a_(l-1)`` centred where there is a bias to make up for the mean. In wide hidden layers of a perceptron the metric
has a side for the outputs, too: ``(z_l* - z_l) D_l^(-1/2)`` stands for ``z_l* - z_l`` there. What that step does to the
layer's outputs is measured, and sets its length: see :meth:`Stepper.length`.

Several processes hold some of a batch's samples each. ``N_l`` is a sum over samples, so what a process works out is its
own part of it, and the rest is done by all of them alike. With p of them, a meeting of 24 p bytes
(:mod:`ipdlam.distributed.group`) and numbers of e bytes in the model's precision, a batch takes

    loss, and size of z_L* - z_L:                         a meeting and 16 p bytes
    size of the wish for the outputs of an activation:    L - 1 meetings, in a perceptron of L layers
    N_l and its bias:                                     a meeting and e sum_l (d_l d_(l-1) + d_l) bytes
    what the last layer's step does to its outputs:       a meeting

and now and then some more: sizes of what layers give and activations are given in the first one (8 p (2 L - 1)
bytes), what the other steps do in the first ten and every eighth (8 p L bytes, for L > 1), the memory of inputs in
the first two to four, every eighth, and every 17th after the 51st (a meeting and e sum_l (d_(l-1) (d_(l-1) + 1) / 2 +
d_(l-1)) bytes), and with them that of wishes (a meeting and e sum_l d_l (d_l + 1) / 2 bytes, for hidden layers of a
perceptron). Without bias a layer has no d_l, nor the last d_(l-1). Before that, batches that processes give (of
loaders, of ``step``) take a meeting, and so do sample weights, and one more where steps are measured, and where the
memory looks at a part of a batch. The ``N_l`` are sent in the model's precision, in which they are worked out: float64
would double the traffic and make no digit better. All processes get the same bits of a sum, and what follows it is done
element by element.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ipdlam import defaults
from ipdlam.checks import check_integer, check_number
from ipdlam.distributed.group import Group
from ipdlam.errors import SolveError
from ipdlam.minibatch.batch import Measure, Part, part_of
from ipdlam.minibatch.input_memory import BlockMemory, InputMemory, WishMemory, WordMemory
from ipdlam.minibatch.levelling import affordable, as_matrix, level
from ipdlam.minibatch.rescale import CONSTANT, knows_something, rescale
from ipdlam.minibatch.schedule import StepSchedule
from ipdlam.minibatch.sweep import output_change, sweep
from ipdlam.network.arithmetic import PLAIN, Products, check_precision
from ipdlam.network.graph import Graph, Pass, as_drawing
from ipdlam.network.layers import EmbeddingNode, LayerNode, LinearNode
from ipdlam.network.linalg import all_finite
from ipdlam.network.nodes import Node
from ipdlam.network.samples import Samples
from ipdlam.prox import LOSSES, Loss
from ipdlam.prox.registry import describe

SCHEDULE = StepSchedule()
EARLY = 51  # batches in which all that follows is done more often: everything changes fast
# The memory sees the first batches, until so many samples, or weights of samples, have gone by: at least two batches,
# for the very first one may be one sample, or one sample repeated.
FIRST_AT_LEAST, FIRST_AT_MOST, FIRST_SAMPLES = 2, 4, 1024
REMEMBERED_ROWS = 256  # of a batch of twice as many or more: what inputs and wishes are like shows in a part of it
# Batches; inputs change slowly, and what the memory does not see costs nothing. A prime number: a loader that gives its
# batches in a fixed order would show the memory the same ones in every epoch.
REMEMBER_EVERY, REMEMBER_EARLY = 17, 8
REFRESH_EVERY = 51  # batches from one metric to the next; early on, whenever the memory has seen something
MEASURE_EVERY = 8  # batches, and the first ten
MEASURED_ROWS = 64  # of a batch: a mean over so many rows and all outputs is exact enough
NORM_MEMORY = 0.9  # of the running average of what steps do
OUTLYING = 10.0  # times the usual leverage, above which a sample counts for less
SAMPLES_NEEDED = 8  # for every degree of freedom, for a batch to say where the last layer should be
SMALL_BATCH = 8  # samples; directions of smaller ones are mostly noise, and steps along them shorter
LARGEST = 1e30  # of a step: beyond it float32 overflows
GROWN_BY = 0.7  # of the plan: from there on the penalty has its last value
GROWN_BATCHES = 1000  # the same where nothing is planned
FADING = 0.2  # where the outputs' targets are nearer than this part of their first distance, steps become shorter


Memory = InputMemory | BlockMemory | WordMemory


@dataclass(frozen=True)
class StepSettings:
    """What defines a step besides the model and the batch."""

    loss: Loss
    step: float
    inertia: float  # beta in the paper
    proximity: float  # delta
    penalty: float  # rho
    rank: int
    weight_decay: float
    penalty_growth: float = 1.0  # what rho is multiplied by over the plan
    precision: str = defaults.PRECISION  # of the large products
    output_rank: int = defaults.OUTPUT_RANK

    def __post_init__(self) -> None:
        check_number("step", self.step, low=0.0, high=LARGEST, strict=True)
        for name in ("proximity", "penalty"):
            check_number(name, getattr(self, name), low=0.0, strict=True)
        for name in ("inertia", "weight_decay"):
            check_number(name, getattr(self, name), low=0.0)
        if self.inertia >= 1.0:
            raise ValueError(f"inertia must be below 1, got {self.inertia!r}")
        check_number("penalty_growth", self.penalty_growth, low=1.0, high=1e9)
        check_integer("rank", self.rank, 1)
        check_integer("output_rank", self.output_rank, 0)
        check_precision(self.precision)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types; the loss by its name in the registry."""
        return {**dataclasses.asdict(self), "loss": describe("loss", self.loss, LOSSES)}


@dataclass(frozen=True)
class Direction:
    """``N_l`` and what goes with it for the bias; ``N_l = left^T right`` is multiplied out only where it is added."""

    left: Tensor | None  # where None, N_l is right itself
    right: Tensor
    bias: Tensor | None
    products: Products = PLAIN  # how it is multiplied out

    def add_to(self, move: Tensor, keep: float, new: float) -> None:
        """``move <- keep move + new N_l``, in place."""
        if self.left is None:
            move.mul_(keep).add_(self.right, alpha=new)
        else:
            blocks = move if self.left.ndim == 2 else move.view(len(self.left), -1, move.shape[1])
            self.products.add_mm(blocks, self.left.mT, self.right, keep, new)

    def scaled(self, factor: float) -> Direction:
        """The same one, shorter or longer."""
        bias = None if self.bias is None else self.bias * factor
        return dataclasses.replace(self, right=self.right * factor, bias=bias)

    def multiplied_out(self) -> Direction:
        """The same one as a matrix of its own."""
        if self.left is None:
            return self
        return Direction(None, as_rows(self.products.mm(self.left.mT, self.right)), self.bias)

    def applied(self, layer: LayerNode, x: Tensor, kept: Any) -> Tensor:
        """What it does to the outputs of its layer at the inputs ``x``."""
        if self.left is None:
            return layer.effect(x, kept, self.right, self.bias)
        assert isinstance(layer, LinearNode)
        moved = layer.merge((layer.split(x) @ self.right.mT) @ self.left)
        return moved if self.bias is None else moved.add_(self.bias)


class Stepper:
    """What the method remembers from one batch to the next: nothing of it grows with the number of samples."""

    def __init__(self, network: Graph, settings: StepSettings, seed: int = 0) -> None:
        self.network, self.settings = network, settings
        self.memories: dict[int, Memory] = {
            l: make_memory(layer, settings, *self._kind())
            for l, layer in enumerate(network.layers, start=1)
            if has_memory(layer)
        }
        self.wish_memories = {
            l: WishMemory(len(network.weight(l)), settings.output_rank, *self._kind())
            for l in (network.numbers if settings.output_rank else ())
            if is_evened(network, l, settings.output_rank)
        }
        network.refuse_broken()
        W, b, _ = network.own()
        # W - W_previous as a matrix, but for its length; what is frozen has none
        self.move_W = {l: torch.zeros_like(as_matrix(w)) for l, w in W.items() if network[l].steps("weight")}
        self.move_b = {
            l: torch.zeros_like(bias) for l, bias in b.items() if bias is not None and network[l].steps("bias")
        }
        # The state of the generator of what is drawn (Dropout), where something is.
        self.draws = torch.Generator().manual_seed(seed).get_state() if network.draws else None
        self.prepared = False
        self.intact = True  # False in the middle of a batch, and for good where that fails
        self.weight_unit: float | None = None  # a sample's weight that counts as one sample; by default a batch's mean
        self.scores_batches = False  # whether nothing else says how good the model is: a loader's samples are not kept
        self.accuracy: float | None = None  # of the last batch, before the step
        self.batches = 0
        self.rise_from = 0  # the batch from which the steps rise
        self.rows = 0.0  # samples of a usual batch, or their weights
        self.sizes = dict.fromkeys(network.numbers, 0.0)  # root mean square of z_l at the start
        self.reaches = dict.fromkeys(network.activations, 0.0)  # the same of what activations are given
        self.norms = dict.fromkeys(network.numbers, 0.0)  # root mean square of what N_l does to z_l, on average
        self.levelled: dict[int, float] = {}  # layers with levelled moves, and what these do to z_l, on average
        self.measured = 0
        self.distance = 0.0  # root mean square of z_L* - z_L at the start

    def tensors(self) -> dict[str, Tensor]:
        """All tensors that the next batch depends on, besides the weights: its own, no copies."""
        found = {f"move.W{l}": move for l, move in self.move_W.items()}
        found |= {f"move.b{l}": move for l, move in self.move_b.items()}
        for l, memory in self.memories.items():
            found |= {f"memory{l}.{name}": tensor for name, tensor in memory.tensors().items()}
        for l, memory in self.wish_memories.items():
            found |= {f"wishes{l}.{name}": tensor for name, tensor in memory.tensors().items()}
        return found if self.draws is None else {**found, "draws": self.draws}

    def counters(self) -> dict[str, Any]:
        """Everything else that the next batch depends on, in plain JSON types."""
        return {
            "prepared": self.prepared,
            "weight_unit": self.weight_unit,
            "batches": self.batches,
            "rise_from": self.rise_from,
            "rows": self.rows,
            "sizes": list(self.sizes.values()),
            "reaches": list(self.reaches.values()),
            "norms": list(self.norms.values()),
            "levelled": [[l, size] for l, size in self.levelled.items()],
            "measured": self.measured,
            "distance": self.distance,
            "remembered": [memory.samples for memory in self.memories.values()],
            "freedom": [memory.freedom for memory in self.memories.values()],
            "wishes": [memory.samples for memory in self.wish_memories.values()],
        }

    def restore(self, counters: dict[str, Any]) -> None:
        """Take up :meth:`counters`; the tensors remain to be filled."""
        self.prepared, unit = bool(counters["prepared"]), counters["weight_unit"]
        self.weight_unit = None if unit is None else check_number("weight_unit", unit, low=0.0, strict=True)
        for name in ("batches", "rise_from", "measured"):
            setattr(self, name, check_integer(name, counters[name], 0))
        self.rows = check_number("rows", counters["rows"], low=0.0)
        self.distance = check_number("distance", counters["distance"], low=0.0)
        # Perceptrons were saved without reaches: what their activations are given are the outputs of layers.
        given = {"reaches": counters["sizes"][:-1], "wishes": [], **counters}
        found: dict[str, list[float]] = {}
        for name, wanted in (
            ("sizes", len(self.sizes)), ("reaches", len(self.reaches)), ("norms", len(self.norms)),
            ("remembered", len(self.memories)), ("freedom", len(self.memories)), ("wishes", len(self.wish_memories)),
        ):  # fmt: skip
            if len(given[name]) != wanted:
                raise ValueError(f"it has {len(given[name])} {name} for {wanted} layers")
            found[name] = [check_number(name, value, low=0.0) for value in given[name]]
        for name in ("sizes", "reaches", "norms"):
            setattr(self, name, dict(zip(getattr(self, name), found[name], strict=True)))
        self.levelled = {
            check_integer("levelled", l, 1): check_number("levelled", size, low=0.0)
            for l, size in counters.get("levelled", [])
        }
        for memory, samples, freedom in zip(self.memories.values(), found["remembered"], found["freedom"], strict=True):
            memory.samples, memory.freedom = samples, freedom
        for wished, samples in zip(self.wish_memories.values(), found["wishes"], strict=True):
            wished.samples = samples

    def update(self, batch: Samples, progress: float) -> float:
        """Step the model's weights in place; the mean loss of the batch before.

        ``progress`` is how much of the planned training is done, from 0 to 1. A loss that is not finite makes no step.
        """
        settings, graph, part = self.settings, self.network, part_of(batch)
        generator = self._generator()
        sizes = SizesAtStart(graph, part) if self.distance == 0.0 else None  # the first batch
        drawing = as_drawing(graph, generator, part.rows, part.positions)
        passed = graph.run(batch.X, drawing, after=None if sizes is None else sizes.look)
        outputs = passed.output
        targets = batch.targets(settings.loss, slice(None), outputs.shape[1], outputs.dtype)
        measures = [part.mean_of(settings.loss.value(targets, outputs))]
        if self.scores_batches:
            measures += self._correct(batch, outputs, part)
        first = self._wanted(targets, outputs, progress, math.isfinite(measures[0].own))
        measures.append(part.size_of(first))
        if sizes is not None:
            measures += sizes.measures
        loss, *found = part.complete(*measures)
        if self.scores_batches:
            correct, unlabelled = found.pop(0), found.pop(0)
            self.accuracy = None if unlabelled else correct
        distance, *rest = found
        if not math.isfinite(loss):
            return loss
        self.intact = False
        if sizes is not None:
            self.sizes, self.reaches = sizes.filled(rest)
            self.distance = distance
            self.levelled = dict.fromkeys(affordable(graph, sizes.positions, part.rows), 0.0)
        samples = self._samples_in(part)
        thinned = part.thinned(REMEMBERED_ROWS, self.batches) if self._remembers_now else None
        if thinned is not None:
            self._remember(passed, part, samples, *thinned)
        self.rows += (0.05 if self.batches else 1.0) * (samples - self.rows)
        counts = min(1.0, samples / self.rows)  # a ragged batch counts for what it is
        directions: dict[int, Direction] = {}
        wishes: dict[int, Tensor] = {}  # that are to be remembered

        def receive(l: int, wish: Tensor) -> None:
            directions[l] = self._direction(l, wish, passed, part)
            if l in self.wish_memories and thinned is not None:
                wishes[l] = wish[thinned[0]]

        sweep(graph, passed, first, settings.proximity, self.reaches, part, receive)
        if thinned is not None:
            self._remember_wishes(wishes, part, samples, thinned[1])
        directions = self._of_all(directions, part)
        self._measured(directions, passed, part, counts)
        for l, direction in directions.items():
            self._move(l, direction, counts)
        far = FADING * self.distance
        # Hidden layers' directions have no size of their own. Without this they would never come to rest.
        fade = min(1.0, distance / far) if far > 0.0 else 1.0
        self._step(self.length(progress), fade, self._level(passed, part, counts))
        graph.commit(passed)
        if self.draws is not None and generator is not None:
            self.draws.copy_(generator.get_state())
        self.batches += 1
        self.intact = True
        return loss

    def _wanted(self, targets: Tensor, outputs: Tensor, progress: float, finite: bool) -> Tensor:
        """``z_L* - z_L``, as long as with the first penalty where the loss is squared."""
        if not finite:  # nobody will need it
            return torch.full_like(outputs, torch.nan)
        settings, weight = self.settings, self.weight(progress)
        at_first = settings.penalty * (1.0 + settings.proximity)
        change = output_change(settings.loss, targets, outputs, weight)
        return change if weight == at_first else change.mul_((1.0 + weight) / (1.0 + at_first))

    def weight(self, progress: float) -> float:
        """``rho (1 + delta)``, the weight of the proximal term of the outputs.

        What a step minimises is not the loss but its Moreau envelope, which is the loss in the limit of a large
        weight. So the penalty grows over the plan, or where nothing is planned, over the first batches.
        """
        settings = self.settings
        if settings.loss.is_own_envelope:  # whose envelope is the loss itself, up to a factor
            return settings.penalty * (1.0 + settings.proximity)
        unplanned = (self.batches - self.rise_from) / GROWN_BATCHES if progress == 0.0 else 0.0
        growth = math.pow(settings.penalty_growth, min(1.0, max(progress / GROWN_BY, unplanned)))
        return settings.penalty * growth * (1.0 + settings.proximity)

    def _correct(self, batch: Samples, outputs: Tensor, part: Part) -> list[Measure]:
        """The part of the batch whose class the model knows, and whether some of it has no class."""
        if not batch.labelled:
            return [Measure(0.0, sum), Measure(float(len(batch) > 0), max)]
        known = self.settings.loss.predict(outputs).eq(batch.y)
        return [part.mean_of(known.to(outputs.dtype)), Measure(0.0, max)]

    def length(self, progress: float) -> float:
        """How far a step goes: the change of a hidden layer's outputs, in units of their size at the start.

        For the last layer, whose targets have a scale of their own, it is the part of the way that it goes to the
        least-squares solution for them.
        """
        settings = self.settings
        noise = min(1.0, math.sqrt(self.rows / SMALL_BATCH)) if self.rows else 1.0
        risen = SCHEDULE.at(self.batches - self.rise_from, progress)
        return settings.step * noise / math.sqrt(self.network.matrices) * risen

    def prepare(self, batch: Samples, start: str) -> None:
        """Once, on the first samples that differ: rescale the layers, unless the weights are to be kept."""
        if self.prepared:
            return
        part = part_of(batch)
        if batch.X.is_floating_point() and self._are_constant(batch.X.flatten(1), part):
            return
        if start == "rescale" or (start == "auto" and not knows_something(self.network, self.settings.loss, batch)):
            before, self.intact = self.network.read(), False
            try:
                rescale(self.network, self.settings.loss, batch, self._generator())
            except BaseException:
                self.network.write(*before)
                self.intact = True
                raise
            if not all(all_finite(parameter.detach()) for parameter in self.network.model.parameters()):
                self.network.write(*before)
                raise SolveError("the layers cannot be scaled: their outputs, or the targets, overflow")
            self.distance, self.intact = 0.0, True  # the distance is to be measured anew
        self.prepared = True

    @staticmethod
    def _are_constant(rows: Tensor, part: Part) -> bool:
        """Whether all samples are the same."""
        spread, plain = rows - part.mean_row(rows), part.unweighted()
        deviation, size = plain.complete(plain.size_of(spread), plain.size_of(rows))
        return deviation <= CONSTANT * size

    def _generator(self) -> torch.Generator | None:
        """What a pass draws from, as the last one left it."""
        if self.draws is None:
            return None
        generator = torch.Generator()
        generator.set_state(self.draws)
        return generator

    def _remember(self, passed: Pass, part: Part, samples: float, chosen: slice | Tensor, some: Part) -> None:
        """Look at the inputs of the layers for some of the rows, and more rarely make their metrics anew."""
        for l, memory in self.memories.items():
            layer = self.network[l]
            if not layer.trains:
                continue
            x, of_samples = passed.inputs(layer)[0], self.network.is_of_samples(layer)
            seen = part
            if isinstance(layer, LinearNode) and of_samples:  # others choose for themselves what to look at
                x, seen = x[chosen], some
            a = layer.memory_rows(x, self.batches, seen.rows, seen.positions if of_samples else None)
            each = max(1, a.shape[-2 if a.ndim > 1 else 0] // max(1, len(x)))  # rows of one sample
            share = None if len(x) != seen.rows and seen.positions is None else seen.share
            if share is not None and each > 1:
                share = share.repeat_interleave(each) / each
            counted = samples * seen.rows / part.rows
            memory.remember(a, share, counted, rows=seen.rows * each, past=part.group.is_first)
        sum_over(part.group, list(self.memories.values()))
        if self._refreshes_now:
            for memory in self.memories.values():
                memory.refresh()

    def _remember_wishes(self, wishes: dict[int, Tensor], part: Part, samples: float, some: Part) -> None:
        """The same for their wishes of a sweep, which count from the next batch on."""
        counted = samples * some.rows / part.rows
        for l, wish in wishes.items():
            memory = self.wish_memories[l]
            memory.remember(wish, some.share, counted, rows=some.rows, past=part.group.is_first)
        sum_over(part.group, [self.wish_memories[l] for l in wishes])
        if self._refreshes_now:
            for l in wishes:
                self.wish_memories[l].refresh()

    @property
    def _remembers_now(self) -> bool:
        every = REMEMBER_EARLY if self.batches < EARLY else REMEMBER_EVERY
        few = self.batches < FIRST_AT_LEAST or self.batches * self.rows < FIRST_SAMPLES
        return (few and self.batches < FIRST_AT_MOST) or self.batches % every == 0

    @property
    def _refreshes_now(self) -> bool:
        """Of the batches that are remembered."""
        return self.batches < EARLY or self.batches % REFRESH_EVERY == 0

    def _direction(self, l: int, wish: Tensor, passed: Pass, part: Part) -> Direction:
        """``N_l``, given ``z_l* - z_l``."""
        layer = self.network[l]
        x = passed.inputs(layer)[0]
        kept = passed.kept[self.network.positions[l]]
        if part.share is not None:
            refuse_weights(layer, len(wish), part)
            wish = wish * part.share.view(-1, *(1,) * (wish.ndim - 1))
        if l in self.wish_memories:
            wish = self.wish_memories[l].evened(wish)
        scale = 1.0 / part.rows if part.share is None else 1.0
        if not layer.steps("weight"):  # a bias alone goes by the mean wish
            _, total = layer.product(wish, x, kept)
            return Direction(None, torch.zeros_like(as_matrix(layer.weight)), None if total is None else total * scale)
        memory = self.memories.get(l)
        if isinstance(memory, (InputMemory, BlockMemory)) and isinstance(layer, LinearNode) and x.ndim == 2:
            return self._matrix_direction(layer.split(wish * scale), layer.split(x), memory, layer.products)
        product, total = layer.product(wish, x, kept)
        product, total = product * scale, None if total is None else total * scale
        if isinstance(memory, InputMemory) and memory.centred:
            assert total is not None
            right = memory.solve(product.addr_(total, memory.mean, alpha=-1.0))
            return Direction(None, right, total - right @ memory.mean)
        return Direction(None, product if memory is None else memory.solve(product), total)

    def _matrix_direction(
        self, change: Tensor, a: Tensor, memory: InputMemory | BlockMemory, products: Products
    ) -> Direction:
        """That of a Linear layer: the metric is applied to the inputs or to the product, whichever has fewer rows.

        Its thin products are never narrow: ``M^-1`` is a difference, whose leading digits cancel. Of several blocks
        there is a matrix for each.
        """
        centred = a - memory.mean.unsqueeze(-2) if memory.centred else a
        image = memory.image(centred)
        if memory.freedom > 0.0:
            # A sample far out would be fitted at any price, and change what all others get.
            unusual = memory.leverage(centred, image).div_(OUTLYING * memory.freedom)
            if unusual.numel() and float(unusual.max()) > 1.0:
                change = change / unusual.clamp_min_(1.0).unsqueeze(-1)
        if a.shape[-2] <= change.shape[-1]:
            left, right = change, memory.solve(centred, image)
        else:
            left, right = None, memory.solve(products.mm(change.mT, centred))
        bias = None
        if memory.centred:
            shift = times(right, memory.mean)  # where N_l is a product, of its right factor
            bias = (change.sum(-2) - shift if left is None else times(left.mT, 1.0 - shift)).flatten()
        return Direction(left, right if left is not None else as_rows(right), bias, products)

    def _of_all(self, directions: dict[int, Direction], part: Part) -> dict[int, Direction]:
        """The directions of the whole batch: sums of those of its parts."""
        if part.group.size == 1:
            return directions
        found = {l: direction.multiplied_out() for l, direction in directions.items()}
        pieces = ((direction.right, direction.bias) for direction in found.values())
        part.group.sum_(*(tensor for pair in pieces for tensor in pair if tensor is not None))
        return found

    def _measured(self, directions: dict[int, Direction], passed: Pass, part: Part, counts: float) -> None:
        """Shorten the last layer's direction where it would change the outputs by more than they were off at first.

        Every few batches, what the others would do to the outputs of their layers goes into the running averages.
        """
        last = self.network.last
        hidden = [l for l in sorted(directions) if l != last]
        measures = []
        if last is not None:
            measures.append(part.size_of(self._effect(last, directions[last], passed, None)))
        measuring = self._measures_now
        if measuring and hidden:
            here, some = part.leading(MEASURED_ROWS)
            measures += [some.size_of(self._effect(l, directions[l], passed, here)) for l in hidden]
        found = list(part.complete(*measures)) if measures else []
        moved = found.pop(0) if last is not None else 0.0
        if measuring:
            self.measured += 1
            new = max(1.0 - NORM_MEMORY, 1.0 / self.measured) * counts
            for l, norm in zip(hidden, found, strict=True):
                self.norms[l] += new * (norm - self.norms[l])
        if last is not None and moved > self.distance:
            directions[last] = directions[last].scaled(self.distance / moved)

    def _level(self, passed: Pass, part: Part, counts: float) -> dict[int, Tensor]:
        """The moves whose singular values are all made 1, so that no direction of the outputs is left behind.

        What they do to the outputs is measured like what other directions do.
        """
        found = {l: level(self.move_W[l]) for l in self.levelled}
        if found and self._measures_now:
            here, some = part.leading(MEASURED_ROWS)
            effects = []
            for l, move in found.items():
                shift, x = self._centring(l, move), passed.inputs(self.network[l])[0][:here]
                effects.append(some.size_of(self.network[l].effect(x, None, move, shift)))
            new = max(1.0 - NORM_MEMORY, 1.0 / max(1, self.measured)) * counts
            for l, size in zip(found, part.complete(*effects), strict=True):
                self.levelled[l] += new * (size - self.levelled[l])
        return found

    def _centring(self, l: int, move: Tensor) -> Tensor | None:
        """What the bias has to make up for: the mean of the inputs is not to be changed by."""
        memory = self.memories[l]
        return -(move @ memory.mean) if isinstance(memory, InputMemory) and memory.centred else None

    @property
    def _measures_now(self) -> bool:
        return self.batches < 10 or self.batches % MEASURE_EVERY == 0

    def _effect(self, l: int, direction: Direction, passed: Pass, rows: int | None) -> Tensor:
        """What a direction does to the outputs of its layer for the first rows of the batch, or for all."""
        layer = self.network[l]
        x = passed.inputs(layer)[0]
        kept = passed.kept[self.network.positions[l]]
        return direction.applied(layer, x if rows is None else x[:rows], kept)

    def _move(self, l: int, direction: Direction, counts: float) -> None:
        """``W_hat - W`` and the new direction are one running average of directions."""
        beta, move_W, move_b = self.settings.inertia, self.move_W.get(l), self.move_b.get(l)
        if move_W is not None:
            direction.add_to(move_W, beta, (1.0 - beta) * counts)
        if move_b is not None and direction.bias is not None:
            move_b.lerp_(direction.bias if counts == 1.0 else direction.bias * counts, 1.0 - beta)

    def _step(self, length: float, fade: float, levelled: dict[int, Tensor]) -> None:
        """All weights along their moves, or along the levelled ones; none of them where one would overflow."""
        graph, decay = self.network, self.settings.weight_decay
        lengths = {l: length * self._unit(l) * (1.0 if l == graph.last else fade) for l in graph.numbers}
        for moves in (self.move_W, self.move_b):
            for l, move in moves.items():
                if not lengths[l] * float(torch.linalg.vector_norm(move)) < LARGEST:
                    raise SolveError(f"the step of layer {l} is not finite")
        for l, move in self.move_W.items():
            W = graph.weight(l)
            if decay > 0.0 and not graph[l].diagonal:
                W.mul_(max(0.0, 1.0 - decay * length))
            if l not in levelled:
                W.add_(move.view(W.shape), alpha=lengths[l])
        for l, move in self.move_b.items():
            b = graph.bias(l)
            assert b is not None
            shift = self._centring(l, self.move_W[l]) if l in levelled else None
            b.add_(move if shift is None else move - shift, alpha=lengths[l])  # the mean wish alone
        for l, move in levelled.items():
            own = length * fade * self.sizes[l] / self.levelled[l] if self.levelled[l] > 0.0 else 0.0
            graph.weight(l).add_(move.view(graph.weight(l).shape), alpha=own)
            shift, b = self._centring(l, move), graph.bias(l)
            if shift is not None and b is not None:
                b.add_(shift, alpha=own)

    def _unit(self, l: int) -> float:
        """How much of its direction changes the outputs of a hidden layer by as much as they measure.

        The last layer's solves its problem for this batch. It goes a shorter way where the batch has few samples for
        the freedom of its inputs: it would forget what the other batches have taught.
        """
        if l == self.network.last:
            return min(1.0, self.rows / (SAMPLES_NEEDED * max(1.0, self.memories[l].freedom)))
        return self.sizes[l] / self.norms[l] if self.norms[l] > 0.0 else 0.0

    def _samples_in(self, part: Part) -> float:
        """For how many samples a batch counts; the unit of weights does not matter."""
        if part.share is None or self.weight_unit is None:
            return float(part.rows)
        return part.count / self.weight_unit

    def _kind(self) -> tuple[torch.dtype, torch.device]:
        return self.network.dtype, self.network.device


def refuse_weights(layer: LayerNode, rows: int, part: Part) -> None:
    """Refuse sample weights where a layer gives the same for all samples, such as an Embedding of positions."""
    if part.share is not None and rows != len(part.share):
        raise ValueError(
            f"{layer.place} is the same for all samples, so that their sample_weight cannot count there; leave "
            "sample_weight out, or freeze the layer"
        )


class SizesAtStart:
    """The root mean squares of what layers give and activations are given, as a pass goes by."""

    def __init__(self, graph: Graph, part: Part) -> None:
        self.graph, self.part = graph, part
        self.measures: list[Measure] = []
        self.positions: dict[int, int] = {}  # rows of a sample at a layer; a norm has none that count
        self.order: list[tuple[bool, int]] = []

    def look(self, number: int, node: Node, inputs: list[Any], output: Any) -> None:
        """What the pass calls after each node."""
        if number in self.graph.layer_at:
            l = self.graph.layer_at[number]
            refuse_weights(self.graph[l], len(output), self.part)
            each = math.prod(output.shape[1:]) // len(self.graph.weight(l))  # also where no sample is held here
            self.positions[l] = 0 if self.graph[l].diagonal else each
            self._add(True, l, output)
        elif number in self.graph.activations:
            self._add(False, number, inputs[0])

    def _add(self, is_layer: bool, key: int, tensor: Tensor) -> None:
        self.order.append((is_layer, key))
        self.measures.append(self.part.size_of(tensor))

    def filled(self, sizes: list[float]) -> tuple[dict[int, float], dict[int, float]]:
        """The sizes by layer, and by activation."""
        found: tuple[dict[int, float], dict[int, float]] = {}, {}
        for (is_layer, key), size in zip(self.order, sizes, strict=True):
            found[0 if is_layer else 1][key] = size
        return found


def sum_over(group: Group, memories: Sequence[Memory]) -> None:
    """Make what each process has remembered of its rows the memory of all rows."""
    if group.size == 1 or not memories:
        return
    sums = [memory.sums() for memory in memories]
    group.sum_(*(tensor for own in sums for tensor in own))
    for memory, summed in zip(memories, sums, strict=True):
        memory.put_back(summed)


def as_rows(matrices: Tensor) -> Tensor:
    """A matrix of each block as one, with a row for each output."""
    return matrices if matrices.ndim == 2 else matrices.flatten(0, 1)


def times(matrix: Tensor, vector: Tensor) -> Tensor:
    """Their product; of several blocks, that of each (as a row times a matrix, which torch does far sooner)."""
    return matrix @ vector if vector.ndim == 1 else (vector.unsqueeze(-2) @ matrix.mT).squeeze(-2)


def is_evened(graph: Graph, l: int, rank: int) -> bool:
    """Whether the metric of a layer has an output side: a hidden layer of a perceptron with more outputs than that."""
    layer = graph[l]
    wide = graph.chain is not None and l != graph.last and len(layer.weight) > rank
    return wide and layer.blocks == 1 and layer.steps("weight")


def has_memory(layer: LayerNode) -> bool:
    """Whether the metric of a layer depends on what it has been given; that of a norm does not."""
    return layer.trains and (not layer.diagonal or isinstance(layer, EmbeddingNode))


def make_memory(layer: LayerNode, settings: StepSettings, dtype: torch.dtype, device: torch.device) -> Memory:
    """What is to be remembered of the inputs of a layer."""
    if isinstance(layer, EmbeddingNode):
        return WordMemory(layer.width, settings.proximity, dtype, device)
    centred = layer.bias is not None and layer.steps("bias")
    kind = layer.width, settings.rank, settings.proximity, centred, dtype, device
    return InputMemory(*kind) if layer.blocks == 1 else BlockMemory(layer.blocks, *kind)
