"""The methods of a run: made by name with its settings, stopped and taken up to the bit, their passes counted."""

from __future__ import annotations

import dataclasses
import os
import signal

import pytest

from ipdlam import DLAM, IPDLAM, MiniBatchIPDLAM
from ipdlam.baselines import BCD, DLADMM, OPTIMIZERS, BackPropagation
from ipdlam.experiments import store as runner
from ipdlam.experiments.spec import RunSpec
from ipdlam.experiments.store import Store, advance, begun, columns, config_of, make_trainer, passes_of, problem_of
from ipdlam.fullbatch.orders import ORDERS
from ipdlam.minibatch.epoch import START_ROWS
from ipdlam.minibatch.step import Stepper
from ipdlam.prox import Ridge
from ipdlam.runs.config import METHODS
from ipdlam.runs.problem import TRAINERS
from problems import assert_same_runs, make_data, make_model

LIMIT, BATCH = 100, 16
BATCHES = -(-LIMIT // BATCH)  # of an epoch
SPEC = RunSpec("digits", "minibatch", (6,), 7, (("batch_size", BATCH), ("inertia", 0.5)), limit=LIMIT, seed=3)


@pytest.fixture(autouse=True)
def hears_ctrl_c():
    """Where the tests run in the background, the shell has made them deaf to it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def ignore(record):
    pass


def new_model(spec=SPEC):
    problem = problem_of(config_of(spec))
    return problem.make_model(dataclasses.replace(problem.config, seed=spec.seed))


def taken_up(work, callback=ignore, spec=SPEC):
    """The run in this folder, begun or taken up with a new model and brought to its end, or to where it is stopped."""
    trainer = begun(make_trainer(spec, spec.seed, new_model(spec)), problem_of(config_of(spec)), work)
    return trainer, advance(trainer, spec.iterations, spec, work, callback)


# --- by name ----------------------------------------------------------------------------------------------------------


def test_the_methods_of_train_are_the_first_of_the_trainers():
    assert {*TRAINERS, *OPTIMIZERS} - {"batch-by-batch"} == set(METHODS)
    assert not set(TRAINERS) & set(OPTIMIZERS)


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        *(("ipdlam", IPDLAM), ("dlam", DLAM), ("minibatch", MiniBatchIPDLAM), ("bcd", BCD), ("dladmm", DLADMM)),
        *((name, BackPropagation) for name in OPTIMIZERS),
    ],
)
def test_a_name_is_a_class_with_the_settings(method, kind):
    spec = RunSpec("digits", method, (6,), 1, (("chunk_size", 17),), loss="huber")
    trainer = make_trainer(spec, 5, make_model((64, 6, 10)))
    assert type(trainer) is kind
    assert (trainer.chunk_size, trainer.settings_dict()["loss"]["name"]) == (17, "huber")
    assert getattr(trainer, "seed", 5) == 5


@pytest.mark.parametrize("method", ["ipdlam", "dlam"])
@pytest.mark.parametrize(("given", "expected"), [((), None), ((("ridge", 0.25),), Ridge(0.25))])
def test_there_is_no_ridge_but_the_one_that_is_given(method, given, expected):
    trainer = make_trainer(RunSpec("digits", method, (6,), 1, given), 0, make_model((64, 6, 10)))
    assert trainer.settings.regularizers == (expected, expected)


@pytest.mark.parametrize("method", ["minibatch", "bcd", "dladmm", "adam"])
def test_a_setting_that_a_method_has_not_is_refused_by_name(method):
    spec = RunSpec("digits", method, (6,), 1, (("ridge", 0.25),))
    with pytest.raises(TypeError, match="'ridge'"):
        make_trainer(spec, 0, make_model((64, 6, 10)))


def test_a_run_on_mini_batches_is_that_of_the_library(tmp_path):
    result = Store(tmp_path / "runs", tmp_path / "unfinished").make(SPEC, ignore)
    model, split = new_model(), problem_of(config_of(SPEC)).split
    trainer = MiniBatchIPDLAM(model, inertia=0.5, batch_size=BATCH, seed=3)
    expected = columns(trainer.fit(split.X, split.y, epochs=7, validation_data=split.validation))
    for name in expected.keys() - {"seconds"}:
        assert result.columns[name] == [runner.rounded(value) for value in expected[name]], name
    assert result.columns["train_accuracy"][-1] > result.columns["train_accuracy"][0]


# --- stopped and taken up ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epochs", [1, 4, 6])
def test_interrupted_after_an_epoch_it_goes_on_with_the_same_bits(tmp_path, epochs):
    seen = []

    def interrupt(record):
        seen.append(record.epoch)
        if record.epoch == epochs:
            raise KeyboardInterrupt

    whole, _ = taken_up(tmp_path / "whole")
    assert taken_up(tmp_path / "stopped", interrupt)[1].stop_reason == "interrupted"
    trainer, history = taken_up(tmp_path / "stopped", lambda record: seen.append(record.epoch))
    assert seen == [1, 2, 3, 4, 5, 6, 7]  # nothing is done twice
    assert history.stop_reason == "iterations"
    assert_same_runs(trainer, whole)


def test_interrupted_within_an_epoch_it_goes_on_with_the_next_batch(tmp_path, monkeypatch):
    whole, _ = taken_up(tmp_path / "whole")
    real, seen = Stepper.update, []

    def update(self, batch, progress):
        seen.append(len(batch.X))
        if len(seen) == 3 * BATCHES + 2:
            os.kill(os.getpid(), signal.SIGINT)
        return real(self, batch, progress)

    monkeypatch.setattr(Stepper, "update", update)
    assert len(taken_up(tmp_path / "stopped")[1]) == 3
    trainer, _ = taken_up(tmp_path / "stopped")
    assert len(seen) == 7 * BATCHES
    assert_same_runs(trainer, whole)


def test_what_ends_without_a_word_goes_on_from_its_last_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "CHECKPOINT_EVERY", 2)
    whole, _ = taken_up(tmp_path / "whole")
    seen = []

    def fail(record):
        seen.append(record.epoch)
        if record.epoch == 5:
            raise OSError

    with pytest.raises(OSError):  # noqa: PT011 (it has no message)
        taken_up(tmp_path / "stopped", fail)
    trainer, _ = taken_up(tmp_path / "stopped", lambda record: seen.append(record.epoch))
    assert seen == [1, 2, 3, 4, 5, 5, 6, 7]
    assert_same_runs(trainer, whole)


@pytest.mark.parametrize("stopped", [2, 9])
def test_an_optimizer_goes_on_after_mini_batches(tmp_path, stopped):
    """Interrupted in the first method and in the second."""
    spec = SPEC.changed(then=SPEC.without("inertia").changed(method="adam", iterations=4))
    undisturbed = Store(tmp_path / "other", tmp_path / "elsewhere").make(spec, ignore)
    store, seen = Store(tmp_path / "runs", tmp_path / "unfinished"), []

    def interrupt(record):
        seen.append(record.iteration)
        if record.iteration == stopped:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.make(spec, interrupt)
    result = store.make(spec, lambda record: seen.append(record.iteration))
    assert seen == list(range(1, 12))
    assert {**result.columns, "seconds": None} == {**undisturbed.columns, "seconds": None}


# --- passes over the data ---------------------------------------------------------------------------------------------


def passes_by_rule(updates):
    """Passes of an iteration, by what its updates wait for: ``updates`` are pairs of a variable and of such variables.

    Where one of them has changed since the last pass ended, the update waits for a pass.
    """
    passes, changed = [], set()
    for _ in range(3):  # a pass may run across the end of an iteration, so the first one is no measure
        passes.append(0)
        for variable, awaited in updates:
            if changed & awaited:
                passes[-1] += 1
                changed = set()
            changed.add(variable)
    assert passes[1] == passes[2]
    return passes[2]


def trained(kind, layers, **settings):
    """A trainer after an iteration of a network of so many layers."""
    X, y = make_data(20, 5, 3, "cross_entropy")
    trainer = kind(make_model((5, *(4,) * (layers - 1), 3)), **settings)
    trainer.fit(X, y, iterations=1)
    return trainer


@pytest.mark.parametrize("layers", [1, 2, 3, 5])
@pytest.mark.parametrize("order", ORDERS)
def test_the_rule_is_that_of_the_planner(order, layers):
    updates = [
        (str(block), {f"z{block.layer}", f"a{block.layer - 1}"} if block.kind == "W" else set())
        for block in ORDERS[order](layers)
    ]
    assert passes_of(trained(IPDLAM, layers, order=order)) == passes_by_rule(updates)


def awaited_in_dladmm(kind, l, layers):
    """W and b wait for moments of their layer, the step of an a for what its gradient sums to over all samples."""
    if kind == "z":
        return set()
    own = {f"z{l}", f"a{l - 1}"} if kind in "Wb" else {f"a{l}", f"z{l}", f"z{l + 1}", f"W{l + 1}", f"b{l + 1}"}
    return own | ({"U"} if l + (kind == "a") == layers else set())


@pytest.mark.parametrize("layers", [1, 2, 3, 5])
def test_passes_of_dladmm(monkeypatch, layers):
    updates = []
    for kind in ("a", "z", "b", "W"):
        real = getattr(DLADMM, f"_update_{kind}")

        def watched(self, state, l, real=real, kind=kind):
            updates.append((f"{kind}{l}", awaited_in_dladmm(kind, l, layers)))
            real(self, state, l)

        monkeypatch.setattr(DLADMM, f"_update_{kind}", watched)
    trainer = trained(DLADMM, layers)
    assert passes_of(trainer) == passes_by_rule([*updates, ("U", set())]) == 4 * layers - 3


@pytest.mark.parametrize("layers", [1, 2, 4])
def test_passes_of_bcd(monkeypatch, layers):
    real, visits = BCD._visit, []
    monkeypatch.setattr(BCD, "_visit", lambda self, state, l: (visits.append(l), real(self, state, l)))
    assert passes_of(trained(BCD, layers)) == len(visits) == layers


def test_an_epoch_on_mini_batches_reads_every_sample_once(monkeypatch, tmp_path):
    update, prepare = Stepper.update, Stepper.prepare
    trained_on, scaled_on = [], []

    def watched_update(self, batch, progress):
        trained_on.append(len(batch.X))
        return update(self, batch, progress)

    def watched_prepare(self, batch, start):
        if not self.prepared:
            scaled_on.append(len(batch.X))
        prepare(self, batch, start)

    monkeypatch.setattr(Stepper, "update", watched_update)
    monkeypatch.setattr(Stepper, "prepare", watched_prepare)
    trainer, history = taken_up(tmp_path)
    assert sum(trained_on) == LIMIT * len(history) * passes_of(trainer)
    assert scaled_on == [min(LIMIT, START_ROWS)]  # once in a run
