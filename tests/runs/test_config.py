"""The one table of settings: what it takes, what it refuses and in which words, and its trip through TOML."""

from __future__ import annotations

import dataclasses
import string
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipdlam import baselines, prox
from ipdlam.cli import options
from ipdlam.datasets import NAMES, tables
from ipdlam.defaults import LEARNING_RATES
from ipdlam.fullbatch import orders
from ipdlam.network import initialise as initialisation
from ipdlam.runs import config
from ipdlam.runs.config import ConfigError, TrainConfig, convert, read_toml

KINDS = {item.name: str(item.type) for item in dataclasses.fields(TrainConfig)}
POSITIVE = st.floats(min_value=1e-300, max_value=1e300)
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
WHOLE = st.integers(1, 10**18)


def choice(names):
    return st.sampled_from(names)


def optional(strategy):
    return st.none() | strategy


FIELDS = {
    "data": TEXT,
    "data_dir": optional(TEXT),
    "offline": st.booleans(),
    "label": optional(TEXT),
    "drop": optional(TEXT),
    "categories": optional(TEXT),
    "task": choice(config.TASKS),
    "validation": choice(["auto", "test", "none"]) | st.floats(0.001, 0.999).map(repr),
    "standardize": optional(st.booleans()),
    "limit": optional(WHOLE),
    "network": st.none(),  # it does not go with the three that follow
    "hidden": st.lists(WHOLE, max_size=4).map(tuple),
    "activation": choice(config.ACTIVATIONS),
    "initialisation": choice(config.INITIALISATIONS),
    "dtype": choice(config.DTYPES),
    "device": TEXT,
    "method": optional(st.just("ipdlam")),
    "loss": choice(config.LOSSES),
    "regularizer": optional(choice(["ridge", "l1", "elastic_net"])),
    "regularizer_strength": optional(POSITIVE),
    "inertia": optional(st.lists(POSITIVE, min_size=3, max_size=3).map(tuple) | st.tuples(POSITIVE)),
    "proximity": optional(POSITIVE),
    "weight_proximity": optional(st.just("none") | POSITIVE.map(repr) | st.just("0.002,1")),
    "penalty": optional(POSITIVE),
    "penalty_growth": optional(POSITIVE),
    "penalty_max": optional(POSITIVE),
    "order": optional(choice(config.ORDERS) | st.just("z1,W1")),
    "chunk_size": optional(WHOLE),
    "batch_size": st.none(),
    "learning_rate": st.none(),
    "step": st.none(),
    "rank": st.none(),
    "output_rank": st.none(),
    "weight_decay": st.none(),
    "precision": st.none(),
    "iterations": optional(st.integers(0, 10**18)),
    "epochs": st.none(),
    "then": choice(list(LEARNING_RATES)),
    "then_epochs": optional(WHOLE),
    "then_learning_rate": optional(st.floats(min_value=1e-300, max_value=1e30)),
    "then_batch_size": optional(WHOLE),
    "restore_best": st.booleans(),
    "patience": optional(WHOLE),
    "target_score": optional(st.floats(-1e300, 1e300)),
    "evaluate_every": WHOLE,
    "seed": st.integers(0, 2**64 - 1),
    "threads": optional(st.integers(1, 1024)),
    "storage": optional(TEXT),
    "output": optional(TEXT),
    "checkpoint": choice(config.CHECKPOINTS),
    "checkpoint_every": WHOLE,
    "tensorboard": st.booleans(),
}
WHOLE_BATCH = st.builds(TrainConfig, **FIELDS)
MINIBATCH = {
    "method": st.just("minibatch"),
    "inertia": optional(st.tuples(POSITIVE)),
    "batch_size": optional(WHOLE),
    "step": optional(POSITIVE),
    "rank": optional(WHOLE),
    "output_rank": optional(st.integers(0, 100)),
    "weight_decay": optional(POSITIVE),
    "dtype": st.just("float32"),
    "precision": optional(choice(config.PRECISIONS)),
    "epochs": optional(st.integers(0, 10**18)),
    **dict.fromkeys(("regularizer", "regularizer_strength", "penalty_growth", "penalty_max", "order"), st.none()),
    "weight_proximity": st.none(),
    "iterations": st.none(),
    "storage": st.none(),
}
CONFIGS = WHOLE_BATCH | st.builds(TrainConfig, **{**FIELDS, **MINIBATCH})


def test_every_setting_is_among_those_tried():
    assert list(FIELDS) == list(KINDS)


# --- the trip through TOML and the command line -----------------------------------------------------------------------


@settings(deadline=None, max_examples=150)
@given(CONFIGS)
def test_every_setting_survives_the_trip_through_toml(tmp_path_factory, made):
    path = tmp_path_factory.getbasetemp() / "config.toml"
    path.write_bytes(made.to_toml().encode())
    assert TrainConfig().changed(read_toml(path)) == made
    path.write_bytes(made.resolved().to_toml().encode())
    again = TrainConfig().changed(read_toml(path))
    assert again == made.resolved() == again.resolved()


@settings(deadline=None, max_examples=100)
@given(CONFIGS)
def test_every_setting_survives_the_trip_through_the_command_line(made):
    """What an option holds is text: numbers as repr writes them, lists with commas."""

    def typed(value):
        if isinstance(value, tuple):
            return ",".join(map(repr, value))
        return value if value is None or isinstance(value, (bool, str)) else repr(value)

    assert TrainConfig().changed({name: typed(getattr(made, name)) for name in KINDS}) == made


@pytest.mark.parametrize(
    "name",
    ["plain", "with space", 'quo"te', "back\\slash", "tab\t", "ünï", "\N{GRINNING FACE}", "\x7f\x01\n", "#[1]"],
)
def test_names_of_every_kind_are_written_as_toml_wants_them(tmp_path, name):
    path = tmp_path / "c.toml"
    path.write_bytes(TrainConfig(data=name).to_toml().encode())
    assert read_toml(path)["data"] == name


def test_the_file_has_the_sections_of_the_help_and_leaves_out_what_is_not_set():
    text = TrainConfig(method="ipdlam").resolved().to_toml()
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        "# Data",
        "# Network",
        "# Method",
        "# Run",
        "# Output",
    ]
    assert "patience" not in text
    assert "iterations = 50" in text.splitlines()
    assert "epochs" not in text


def test_to_dict_holds_plain_types():
    plain = TrainConfig().to_dict()
    assert list(plain) == list(KINDS)
    assert plain["hidden"] == [300, 300]
    assert all(value is None or type(value) in (bool, int, float, str, list) for value in plain.values())


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("hidden", "1500,1500", (1500, 1500)),
        ("hidden", " 10, 20 ", (10, 20)),
        ("hidden", "10,", (10,)),
        ("hidden", "", ()),
        ("hidden", 30, (30,)),
        ("hidden", [30, 40], (30, 40)),
        ("inertia", "0.1,0.2,0.3", (0.1, 0.2, 0.3)),
        ("inertia", 0.5, (0.5,)),
        ("iterations", "1e3", 1000),
        ("iterations", "2.0", 2),
        ("iterations", 2.0, 2),
        ("seed", str(2**53 + 1), 2**53 + 1),  # a float has no such number
        ("seed", 2**64 - 1, 2**64 - 1),
        ("penalty", "1e-3", 1e-3),
        ("penalty", 2, 2.0),
        ("validation", 0.25, "0.25"),
        ("validation", "0.25", "0.25"),
        ("label", 0, "0"),
        ("label", "-1", "-1"),
        ("order", ["z1", "W1"], "z1,W1"),
        ("offline", True, True),
        ("patience", None, None),
    ],
)
def test_values_become_the_type_of_their_setting(name, text, value):
    changed = TrainConfig().changed({name: text})
    assert getattr(changed, name) == value
    assert type(getattr(changed, name)) is type(value)


# --- refusals, by name ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("iterations", "many", "iterations must be a whole number, got 'many'"),
        ("iterations", 2.5, "iterations must be a whole number, got 2.5"),
        ("iterations", "2.5", "iterations must be a whole number"),
        ("iterations", True, "iterations must be a whole number, got True"),
        ("iterations", -1, "iterations must be an integer >= 0, got -1"),
        ("iterations", "inf", "iterations must be a whole number"),
        ("iterations", "nan", "iterations must be a whole number"),
        ("iterations", [1], "iterations must be a whole number"),
        ("evaluate_every", 0, "evaluate_every must be an integer >= 1, got 0"),
        ("checkpoint_every", 0, "checkpoint_every must be an integer >= 1"),
        ("patience", 0, "patience must be an integer >= 1"),
        ("limit", 0, "limit must be an integer >= 1"),
        ("threads", 0, "threads must be an integer >= 1"),
        ("threads", 5000, "threads must be at most 1024, got 5000"),
        ("chunk_size", 0, "chunk_size must be an integer >= 1"),
        ("seed", -1, "seed must be an integer >= 0"),
        ("seed", 2**64, "seed must be at most 18446744073709551615"),
        ("hidden", "3,x", "hidden must be a whole number, got 'x'"),
        ("hidden", "3,,4", "hidden must be a whole number, got ''"),
        ("hidden", "0", "hidden must be an integer >= 1, got 0"),
        ("hidden", [3, True], "hidden must be a whole number, got True"),
        ("hidden", {"a": 1}, "hidden must be whole numbers with commas between them"),
        ("hidden", True, "hidden must be whole numbers with commas between them, got True"),
        ("inertia", "0.1,0.2", "inertia must be one number or three"),
        ("inertia", "", "inertia must be one number or three"),
        ("inertia", -0.1, "inertia must be a finite number >= 0"),
        ("inertia", "big", "inertia must be a number, got 'big'"),
        ("penalty", "nan", "penalty must be a number, got 'nan'"),
        ("penalty", "inf", "penalty must be a finite number >= 0"),
        ("penalty", 10**400, "penalty must be a finite number >= 0"),
        ("proximity", -1, "proximity must be a finite number >= 0"),
        ("weight_proximity", -1, "weight_proximity must be none, a finite number >= 0, or two"),
        ("weight_proximity", "0.1,0.2,0.3", "weight_proximity must be none, .*, got '0.1,0.2,0.3'"),
        ("weight_proximity", "some", "weight_proximity must be none, .*, got 'some'"),
        ("weight_proximity", "inf", "weight_proximity must be none, .*, got 'inf'"),
        ("weight_proximity", "", "weight_proximity must be none, .*, got ''"),
        ("regularizer_strength", -1, "regularizer_strength must be a finite number >= 0"),
        ("target_score", "best", "target_score must be a number"),
        ("offline", "yes", "offline must be true or false, got 'yes'"),
        ("offline", 1, "offline must be true or false, got 1"),
        ("data", True, "data must be text, got True"),
        ("data", "zero\0byte", "data must be text that UTF-8 can hold, without zero bytes"),
        ("data", "\udcff", "data must be text that UTF-8 can hold"),  # a file name that is not UTF-8
        ("data", [1], "data must be text"),
        ("loss", "hing", "loss must be one of squared, huber, .*, got 'hing'"),
        ("activation", "maxout", "activation must be one of relu, "),
        ("regularizer", "l2", "regularizer must be one of ridge, l1"),
        ("initialisation", "xavier", "initialisation must be one of torch, he, paper"),
        ("method", "lion", "method must be one of minibatch, ipdlam, dlam, bcd, dladmm, sgd, .*, got 'lion'"),
        ("dtype", "float16", "dtype must be one of float32, float64"),
        ("task", "clustering", "task must be one of auto, classification, regression"),
        ("then", "lion", "then must be one of sgd, .*, adam, amsgrad, adamax, adamw, nadam, radam, got 'lion'"),
        ("then", "", "then must be one of sgd, "),
        ("then", True, "then must be text, got True"),
        ("checkpoint", "heavy", "checkpoint must be one of exact, light, none"),
    ],
)
def test_wrong_values_are_refused_by_name(name, value, words):
    with pytest.raises(ConfigError, match=words):
        TrainConfig().changed({name: value})


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("then_epochs", 0, "then_epochs must be an integer >= 1, got 0"),
        ("then_epochs", "few", "then_epochs must be a whole number, got 'few'"),
        ("then_learning_rate", 0, "then_learning_rate must be a finite number > 0 .*, got 0"),
        ("then_learning_rate", "1e31", r"then_learning_rate must be a finite number > 0 and <= 1e\+30, got 1e\+31"),
        ("then_batch_size", 0, "then_batch_size must be an integer >= 1, got 0"),
    ],
)
def test_wrong_values_of_the_second_stage_are_refused_by_name(name, value, words):
    with pytest.raises(ConfigError, match=words):
        TrainConfig().changed({"then": "adam", name: value})


@pytest.mark.parametrize("name", ["then_epochs", "then_learning_rate", "then_batch_size"])
def test_settings_of_a_second_stage_need_one(name):
    with pytest.raises(ConfigError, match=f"{name} is for the optimizer of a second stage, .* such as --then adam"):
        TrainConfig().changed({name: 3})
    assert getattr(TrainConfig(then="adam").changed({name: 3}), name) == 3


def test_a_second_stage_has_defaults():
    assert TrainConfig(then="sgd").second_epochs == TrainConfig(method="ipdlam").rounds == 50
    assert TrainConfig(then="sgd", then_epochs=3).second_epochs == 3
    rates = {name: TrainConfig(then=name).second_rate for name in LEARNING_RATES}
    others = dict.fromkeys(("rmsprop", "adam", "amsgrad", "adamax", "adamw", "nadam", "radam"), 0.001)
    assert rates == {"sgd": 0.05, "adagrad": 0.01, "adadelta": 1.0, **others}
    assert TrainConfig(then="sgd", then_learning_rate=0.2).second_rate == 0.2
    assert (TrainConfig().second_epochs, TrainConfig().second_rate) == (0, None)


def test_a_file_from_before_there_were_second_stages_is_read(tmp_path):
    path = tmp_path / "c.toml"
    text = TrainConfig().resolved().to_toml()
    path.write_text("".join(f"{line}\n" for line in text.splitlines() if "then" not in line))
    assert TrainConfig().changed(read_toml(path)) == TrainConfig().resolved()


@pytest.mark.parametrize("name", KINDS)
def test_a_table_is_refused_for_every_setting(name):
    with pytest.raises(ConfigError, match=f"^{name} must be "):
        convert(name, {"a": 1}, KINDS[name])


@pytest.mark.parametrize("value", ["auto", "test", "none", "0.2", "1e-3", "0.999"])
def test_what_validation_may_be(value):
    assert TrainConfig(validation=value).validation == value


@pytest.mark.parametrize("value", ["0", "1", "1.5", "-0.1", "nan", "inf", "half", "", "training"])
def test_what_validation_may_not_be(value):
    with pytest.raises(ConfigError, match="validation must be auto, test, none, or a fraction between 0 and 1, got"):
        TrainConfig(validation=value)


def test_dlam_has_neither_inertia_nor_proximity():
    assert TrainConfig(method="dlam", inertia=(0.0, 0.0, 0.0), proximity=0.0).method == "dlam"
    # The defaults of the other method, which nobody asked for: earlier versions wrote them into every file.
    old = TrainConfig(method="dlam", inertia=(0.7,), proximity=1.0)
    assert not {"inertia", "proximity"} & set(old.suited())
    assert TrainConfig(method="dlam").resolved().inertia is None
    for name, value in (
        ("inertia", (0.5,)),
        ("inertia", (0.0, 0.1, 0.0)),
        ("proximity", 2.0),
        ("weight_proximity", "0.1"),
    ):
        with pytest.raises(ConfigError, match=f"{name} means nothing to dlam"):
            TrainConfig(method="dlam", **{name: value})


# --- which method, and what it means to have it -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "method"),
    [
        ({}, "minibatch"),
        ({"inertia": (0.1, 0.2, 0.3)}, "ipdlam"),
        ({"iterations": 3}, "ipdlam"),
        ({"batch_size": 32}, "minibatch"),
        ({"epochs": 3}, "minibatch"),
        ({"epochs": 3, "batch_size": 32}, "minibatch"),
        ({"epochs": 0}, "minibatch"),
        ({"method": "minibatch"}, "minibatch"),
        ({"method": "dlam", "iterations": 3}, "dlam"),
    ],
    ids=str,
)
def test_batches_and_epochs_choose_the_method(given, method):
    made = TrainConfig().changed(given)
    assert made.chosen == made.resolved().method == method
    assert made.rounds == given.get("iterations", given.get("epochs", 10 if method == "minibatch" else 50))
    assert made.resolved().resolved() == made.resolved()


def test_defaults_of_one_method_do_not_reach_another():
    assert TrainConfig(method="ipdlam").suited()["proximity"] == 1.0
    assert TrainConfig(epochs=3).suited()["proximity"] == 3.0
    assert TrainConfig(epochs=3, proximity=1.0).suited()["proximity"] == 1.0
    assert TrainConfig().of_method("minibatch").suited()["proximity"] == 3.0
    made = TrainConfig(regularizer="l1", iterations=7, proximity=2.0).of_method("minibatch", step=0.25)
    assert (made.regularizer, made.iterations, made.proximity, made.step) == (None, None, 2.0, 0.25)
    assert TrainConfig(epochs=3).resolved().iterations is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"method": "ipdlam", "batch_size": 512},
            "batch_size means nothing to ipdlam, got 512; say --method minibatch, or leave it out",
        ),
        (
            {"method": "ipdlam", "batch_size": 512, "then": "adam"},
            "batch_size means nothing to ipdlam, got 512; give --then-batch-size for the batches of adam, or say "
            "--method minibatch",
        ),
        (
            {"method": "dlam", "epochs": 5},
            "epochs means nothing to dlam, got 5; give --iterations instead, or say --method minibatch",
        ),
        (
            {"method": "ipdlam", "step": 0.25},
            "step means nothing to ipdlam, got 0.25; say --method minibatch, or leave it out",
        ),
        (
            {"iterations": 3, "rank": 8},
            "iterations means nothing to minibatch, which --rank selects, got 3; give --epochs instead, or leave",
        ),
        (
            {"method": "adam", "weight_decay": 0.0},
            "weight_decay means nothing to adam, got 0; say --method minibatch, or leave it out",
        ),
        ({"method": "minibatch", "iterations": 50}, "iterations means nothing to minibatch, got 50; give --epochs"),
        (
            {"batch_size": 64, "iterations": 50},
            "iterations means nothing to minibatch, which --batch-size selects, got 50; give --epochs instead, or "
            "leave out --batch-size",
        ),
        (
            {"epochs": 5, "iterations": 50},
            "which --epochs selects, got 50; give --epochs instead, or leave out",
        ),
        (
            {"epochs": 5, "penalty_growth": 1.1},
            "penalty_growth means nothing to minibatch, .*, got 1.1; leave it out",
        ),
        ({"method": "minibatch", "penalty_max": 1e6}, r"penalty_max means nothing to minibatch, got 1e\+06; leave"),
        ({"method": "minibatch", "order": "reverse"}, "order means nothing to minibatch, got reverse; leave it out"),
        ({"method": "minibatch", "regularizer": "l1"}, "regularizer means nothing to minibatch, got l1; leave it out"),
        ({"method": "minibatch", "regularizer_strength": 1}, "regularizer_strength means nothing to minibatch, got 1"),
        (
            {"method": "minibatch", "inertia": "0.1,0.2,0.3"},
            "inertia of minibatch is one number, that of the weights, got 0.1,0.2,0.3; give one number",
        ),
        ({"epochs": -1}, "epochs must be an integer >= 0, got -1"),
        ({"batch_size": 0}, "batch_size must be an integer >= 1, got 0"),
        ({"epochs": 1, "rank": 0}, "rank must be an integer >= 1, got 0"),
        ({"epochs": 1, "weight_decay": -1}, "weight_decay must be a finite number >= 0, got -1"),
        (
            {"method": "adam", "precision": "bfloat16"},
            "precision means nothing to adam, got bfloat16; say --method mini",
        ),
        ({"precision": "half"}, "precision must be one of float32, bfloat16, got 'half'"),
        (
            {"precision": "bfloat16", "dtype": "float64"},
            "precision bfloat16 is for dtype float32, got dtype float64; leave",
        ),
        ({"epochs": "few"}, "epochs must be a whole number, got 'few'"),
        ({"batch_size": 2.5}, "batch_size must be a whole number, got 2.5"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_settings_of_other_methods_are_refused_by_name(given, words):
    with pytest.raises(ConfigError, match=words):
        TrainConfig().changed(given)


@pytest.mark.parametrize("regularizer", ["none", "non_negative"])
def test_a_strength_of_nothing_is_refused(regularizer):
    with pytest.raises(ConfigError, match=f"regularizer_strength means nothing to the regularizer {regularizer}"):
        TrainConfig(regularizer=regularizer, regularizer_strength=1.0)


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("iteration = 3", "sets 'iteration', which is no setting; did you mean 'iterations'?"),
        ("itertions = 3", "did you mean 'iterations'?"),
        ("learning-rate = 3", "which is no setting"),
        ("zzz = 3", "sets 'zzz', which is no setting; known are data, data_dir, "),
        ("iterations = ", "is not a TOML file"),
        ("iterations = 3\niterations = 4", "is not a TOML file"),
        ("iterations = " + "9" * 5000, "is not a TOML file"),
        ("hidden = " + "[" * 100_000, "is not a TOML file"),
    ],
)
def test_bad_files_are_refused_by_name(tmp_path, text, words):
    path = tmp_path / "c.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_toml(path)
    assert str(path) in str(caught.value)
    assert words in str(caught.value)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.toml cannot be read: No such file"):
        read_toml(tmp_path / "nowhere.toml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read_toml(tmp_path)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is not a TOML file"):
        read_toml(tmp_path / "binary.toml")


def test_a_date_is_no_number(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text("iterations = 2020-01-01")
    with pytest.raises(ConfigError, match="iterations must be a whole number"):
        TrainConfig().changed(read_toml(path))


# --- what is written in two places is the same in both ----------------------------------------------------------------


def test_the_choices_are_those_of_the_library():
    assert sorted(config.ACTIVATIONS) == sorted(prox.ACTIVATIONS)
    assert sorted(config.LOSSES) == sorted(prox.LOSSES)
    assert sorted(config.REGULARIZERS) == sorted([*prox.REGULARIZERS, "none"])
    assert sorted(config.ORDERS) == sorted(orders.ORDERS)
    assert sorted(config.INITIALISATIONS) == sorted([*initialisation.INITIALISATIONS, "torch"])
    assert list(LEARNING_RATES) == list(baselines.OPTIMIZERS)
    assert config.LARGEST_RATE == baselines.optimizers.LARGEST_RATE
    assert config.TASKS == tables.TASKS
    assert options.COMPLETIONS["data"] == NAMES


def test_the_help_of_compare_names_every_method():
    import inspect

    from ipdlam.cli.compare import compare

    declared = inspect.signature(compare).parameters["methods"].annotation.__metadata__[0]
    assert sorted(declared.help.split(", ")) == sorted(config.METHODS)
    assert set(config.METHODS) == {*config.OURS, "bcd", "dladmm", *baselines.OPTIMIZERS}


def test_the_defaults_are_those_of_the_trainer():
    import inspect

    from ipdlam import IPDLAM, MiniBatchIPDLAM, defaults
    from ipdlam.minibatch.batch import default_batch_size

    parameters = inspect.signature(IPDLAM).parameters
    made = TrainConfig(method="ipdlam").resolved()
    for name in ("loss", "regularizer", "proximity", "penalty", "penalty_growth", "penalty_max", "order", "chunk_size"):
        assert getattr(made, name) == parameters[name].default, name
    assert config.as_weight_proximity(made.weight_proximity) == parameters["weight_proximity"].default
    assert made.inertia == (parameters["inertia"].default,)
    assert made.iterations == inspect.signature(IPDLAM.fit).parameters["iterations"].default
    assert made.unit == IPDLAM.unit
    parameters = inspect.signature(MiniBatchIPDLAM).parameters
    made = TrainConfig(method="minibatch").resolved()
    for name in ("penalty", "rank", "weight_decay", "precision", "batch_size", "chunk_size", "seed"):
        assert getattr(made, name) == parameters[name].default, name
    assert {"step": made.step, "proximity": made.proximity} == defaults.PERCEPTRON
    of_network = TrainConfig(method="minibatch", network="cnn").resolved()
    assert {"step": of_network.step, "proximity": of_network.proximity} == defaults.NETWORK
    few = defaults.FEW_SAMPLES
    assert (default_batch_size(few), default_batch_size(few - 1)) == (defaults.BATCH_SIZE, defaults.BATCH_SIZE_OF_FEW)
    assert made.inertia == (parameters["inertia"].default,)
    assert made.epochs == inspect.signature(MiniBatchIPDLAM.fit).parameters["epochs"].default
    assert made.unit == MiniBatchIPDLAM.unit


def test_what_may_change_on_the_way_are_settings():
    assert set(config.CHANGEABLE) <= set(KINDS)
    assert set(config.MOST) <= set(KINDS)


def test_the_shell_completes_names():
    complete = options.completion("loss")
    assert complete("sq") == ["squared", "squared_hinge"]
    assert complete("x") == []
    assert options.completion("iterations") is None
    for name, choices in options.COMPLETIONS.items():
        assert name in KINDS
        assert all(set(word) <= set(string.ascii_lowercase + string.digits + "_-") for word in choices)


def test_settings_need_no_torch():
    import subprocess

    code = "import sys, ipdlam.runs.config, ipdlam.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
