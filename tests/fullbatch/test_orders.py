"""Orders are data: what they may hold, and that the planner unrolls to exactly the order it was given."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ipdlam
from ipdlam.fullbatch.orders import ORDERS, Block, increase, plan, resolve_order
from problems import make_model

NAMED = {
    ("reverse", 1): "z1 W1",
    ("reverse", 2): "z2 z1 W2 W1 a1",
    ("reverse", 3): "z3 z2 z1 W3 W2 W1 a2 a1",
    ("increase", 1): "z1 W1",
    ("increase", 2): "z1 z2 W1 W2 a1",
    ("increase", 3): "z1 z2 z3 W1 W2 W3 a1 a2",
    ("nested-reverse", 1): "z1 W1",
    ("nested-reverse", 2): "z2 W2 a1 z1 W1",
    ("nested-reverse", 3): "z3 W3 a2 z2 W2 a1 z1 W1",
}


def words(blocks):
    return " ".join(str(block) for block in blocks)


def orders(max_layers=4):
    """Every block of a network of some depth, in any order."""
    return st.integers(1, max_layers).flatmap(lambda layers: st.permutations(list(increase(layers)))).map(tuple)


def layers_of(order):
    return sum(block.kind == "W" for block in order)


def unroll(order, iterations):
    """What the engine does, event by event: ``solve``, ``update``, ``measure`` and ``sum`` in the order they happen.

    This is a reading of the plan, independent of how it was made: the opening visit, then the stages again and again.
    """
    planned = plan(order)
    events = []

    def visit(number, planned_visit):
        events.extend(("update", block) for block in planned_visit.before)
        if planned_visit.measures:
            events.append(("measure", None))
        events.extend(("update", block) for block in planned_visit.after)
        events.extend(("sum", (layer, number)) for layer in planned_visit.moments)

    visit(0, planned.opening)
    number = 0
    for _ in range(iterations):
        for stage in planned.stages:
            events.extend(("solve", layer) for layer in stage.solves)
            number += 1
            visit(number, stage.visit)
    return events


def blocks_in(events):
    """The blocks in the order they are updated, W blocks where they are solved for."""
    return [Block("W", what) if kind == "solve" else what for kind, what in events if kind in ("solve", "update")]


@pytest.mark.parametrize(("name", "layers"), NAMED)
def test_named_orders_are_those_of_the_paper(name, layers):
    assert words(resolve_order(name, layers)) == NAMED[name, layers]


def test_every_named_order_is_covered():
    assert {name for name, _ in NAMED} == set(ORDERS)


def test_blocks_may_be_strings_or_tuples_or_both():
    expected = (Block("z", 2), Block("W", 2), Block("a", 1), Block("z", 1), Block("W", 1))
    assert resolve_order(["z2", "W2", "a1", "z1", "W1"], 2) == expected
    assert resolve_order([("z", 2), ("W", 2), ("a", 1), ("z", 1), ("W", 1)], 2) == expected
    assert resolve_order(("z2", ("W", 2), "a1", Block("z", 1), "W1"), 2) == expected
    assert resolve_order((item for item in ["z2", "W2", "a1", "z1", "W1"]), 2) == expected


def test_layers_have_more_than_one_digit():
    assert Block("z", 12) in resolve_order([str(block) for block in increase(12)], 12)


def test_trainer_takes_a_given_order():
    trainer = ipdlam.IPDLAM(make_model([3, 4, 2]), order=["W1", ("z", 1), "a1", "W2", "z2"])
    assert words(trainer.settings.order) == "W1 z1 a1 W2 z2"


@pytest.mark.parametrize("name", ORDERS)
def test_trainer_resolves_a_name_for_its_depth(name):
    trainer = ipdlam.IPDLAM(make_model([3, 4, 4, 2]), order=name)
    assert words(trainer.settings.order) == NAMED[name, 3]


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (["z2", "W2", "z1", "W1"], r"omits the block a1; every block must come exactly once"),
        (["z2", "a1", "z1"], r"omits the blocks W1, W2;"),
        ([], r"omits the blocks z1, z2, W1, W2, a1;"),
        (["z2", "W2", "a1", "z1", "z2", "W1"], r"repeats the block z2; every block must come exactly once"),
        (["z2", "W2", "a1", "z1", "W1", ("W", 1)], r"repeats the block W1"),
        (["z3", "W2", "a1", "z1", "W1"], r"names the block z3, which a network of 2 layers does not have"),
        (["z2", "W2", "a2", "z1", "W1"], r"names the block a2, which a network of 2 layers does not have"),
        (["z2", "W2", "a1", "z0", "W1"], r"names the block z0"),
        ([("z", -1), "W2", "a1", "z1", "W1"], r"names the block z-1"),
        (["z2", "W2", "b1", "z1", "W1"], r"holds 'b1', which is not a block; write blocks as 'z3'"),
        (["w2"], r"holds 'w2', which is not a block"),
        (["z"], r"holds 'z', which is not a block"),
        (["z-1"], r"holds 'z-1', which is not a block"),
        (["z 1"], r"holds 'z 1', which is not a block"),
        ([""], r"holds '', which is not a block"),
        ([("z", "1")], r"holds \('z', '1'\), which is not a block"),
        ([("z", 1, 1)], r"holds \('z', 1, 1\), which is not a block"),
        ([("z", 1.0)], r"holds \('z', 1\.0\), which is not a block"),
        ([3], r"holds 3, which is not a block"),
        ([None], r"holds None, which is not a block"),
        (["z\u00b2"], r"holds 'z\u00b2', which is not a block"),  # a digit to str.isdigit, but not to int
        ("backward", r"order must be one of reverse, increase, nested-reverse .* got 'backward'"),
        ("Reverse", r"got 'Reverse'"),
        ("", r"got ''"),
    ],
)
def test_bad_orders_are_refused_by_the_block(order, message):
    with pytest.raises(ValueError, match=message):
        resolve_order(order, 2)
    with pytest.raises(ValueError, match=message):
        ipdlam.IPDLAM(make_model([3, 4, 2]), order=order)


@pytest.mark.parametrize("order", [None, 3, 0.5])
def test_what_is_no_order_at_all_is_refused_by_name(order):
    with pytest.raises((TypeError, ValueError), match=rf"order must be .*{order}"):
        ipdlam.IPDLAM(make_model([3, 4, 2]), order=order)


@settings(derandomize=True, deadline=None, max_examples=100)
@given(orders())
def test_any_permutation_of_the_blocks_is_an_order(order):
    layers = layers_of(order)
    assert resolve_order([str(block) for block in order], layers) == order
    assert resolve_order([tuple(block) for block in order], layers) == order


@settings(derandomize=True, deadline=None, max_examples=50)
@given(orders(), st.data())
def test_dropping_or_doubling_any_block_is_refused(order, data):
    block = data.draw(st.sampled_from(order))
    layers = layers_of(order)
    with pytest.raises(ValueError, match=f"omits the block {block};"):
        resolve_order([other for other in order if other != block], layers)
    with pytest.raises(ValueError, match=f"repeats the block {block};"):
        resolve_order([*order, block], layers)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(orders(), st.integers(1, 3))
def test_the_plan_unrolls_to_the_order_again_and_again(order, iterations):
    events = unroll(order, iterations)
    done = blocks_in(events)
    ahead = plan(order).ahead
    # What is ahead is the start of the iteration after the last.
    assert done == list(order * iterations) + list(order[: len(ahead)])
    assert set(order[: len(ahead)]) == ahead


@settings(derandomize=True, deadline=None, max_examples=200)
@given(orders(), st.integers(1, 3))
def test_the_objective_is_measured_once_at_the_end_of_every_iteration(order, iterations):
    events = unroll(order, iterations)
    measured_after = [len(blocks_in(events[:index])) for index, (kind, _) in enumerate(events) if kind == "measure"]
    # In terms of blocks: after 0, 1, 2 ... whole iterations, whatever the visit goes on to do for the next one.
    assert measured_after == [iteration * len(order) for iteration in range(iterations + 1)]


@settings(derandomize=True, deadline=None, max_examples=200)
@given(orders())
def test_moments_are_summed_in_the_last_visit_before_their_solve(order):
    last_visit = -1
    pending = {}
    for kind, what in unroll(order, 3):
        if kind == "sum":
            layer, last_visit = what
            assert layer not in pending, "summed twice for one solve"
            pending[layer] = last_visit
        elif kind == "solve":
            assert pending.pop(what) == last_visit


@settings(derandomize=True, deadline=None, max_examples=200)
@given(orders())
def test_every_solve_sees_the_moments_of_the_current_iterate(order):
    """The sums of z_l and a_(l-1) are those of the generation that is current when W_l is solved for."""
    generation = dict.fromkeys((*order, Block("a", 0)), 0)
    summed = {}
    for kind, what in unroll(order, 3):
        if kind == "update":
            generation[what] += 1
        elif kind == "sum":
            layer = what[0]
            summed[layer] = (generation[Block("z", layer)], generation[Block("a", layer - 1)])
        elif kind == "solve":
            assert summed.pop(what) == (generation[Block("z", what)], generation[Block("a", what - 1)])
            generation[Block("W", what)] += 1


@settings(derandomize=True, deadline=None, max_examples=200)
@given(orders())
def test_foreseen_are_the_layers_whose_product_does_not_change_before_their_z_update(order):
    """By definition: a_(l-1) and W_l are of the same generation when the objective is measured and when z_l moves."""
    generation = dict.fromkeys((*order, Block("a", 0)), 0)
    layers = range(1, layers_of(order) + 1)
    measured = {}
    unchanged = {layer: [] for layer in layers}

    def product(layer):
        return generation[Block("a", layer - 1)], generation[Block("W", layer)]

    for kind, what in unroll(order, 3):
        if kind == "measure":
            measured = {layer: product(layer) for layer in layers}
        elif kind == "update":
            if what.kind == "z":
                unchanged[what.layer].append(product(what.layer) == measured[what.layer])
            generation[what] += 1
        elif kind == "solve":
            generation[Block("W", what)] += 1
    assert all(len(set(verdicts)) == 1 for verdicts in unchanged.values())
    assert plan(order).foreseen == {layer for layer, verdicts in unchanged.items() if all(verdicts)}


@settings(derandomize=True, deadline=None, max_examples=200)
@given(orders())
def test_one_pass_for_every_group_of_consecutive_solves(order):
    kinds = "".join(block.kind for block in order)
    groups = [group for group in kinds.replace("a", "z").split("z") if group]
    assert plan(order).passes == len(groups)


@pytest.mark.parametrize("layers", [1, 2, 3, 6])
@pytest.mark.parametrize(("name", "cost"), [("reverse", "one"), ("increase", "one"), ("nested-reverse", "one a layer")])
def test_passes_of_the_named_orders(name, cost, layers):
    assert plan(resolve_order(name, layers)).passes == (1 if cost == "one" else layers)


def test_foreseen_of_the_named_orders():
    assert plan(resolve_order("reverse", 3)).foreseen == {1, 2, 3}
    assert plan(resolve_order("increase", 3)).foreseen == {1, 2, 3}
    # Nested reverse moves a_(l-1) only after z_l, so the products stand here too.
    assert plan(resolve_order("nested-reverse", 3)).foreseen == {1, 2, 3}
    assert plan(resolve_order(["W2", "a1", "z1", "z2", "W1"], 2)).foreseen == {1}
