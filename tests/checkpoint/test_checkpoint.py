"""Checkpoints: exact, whole or absent, and nothing in them is ever run."""

from __future__ import annotations

import ast
import errno
import json
import os
import shutil
import stat
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import ipdlam
from ipdlam import IPDLAM, CheckpointError
from ipdlam.checkpoint import format as checkpoints
from ipdlam.checkpoint.files import REPLACED, write_file
from ipdlam.prox import LOSSES, REGULARIZERS, Huber, Ridge, Squared
from ipdlam.training.callbacks import Checkpoints

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(90, 6, generator=GENERATOR)
Y = torch.randint(0, 3, (90,), generator=GENERATOR)
WEIGHT = torch.rand(90, generator=GENERATOR)
VALIDATION = (X[:30], Y[:30])


def make_model(seed=0, dtype=torch.float32, bias=True):
    model = nn.Sequential(nn.Linear(6, 8, bias=bias), nn.ReLU(), nn.Linear(8, 7), nn.Tanh(), nn.Linear(7, 3))
    return ipdlam.initialise(model.to(dtype), "he", seed=seed)


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def without_seconds(history):
    return [{**record.to_dict(), "seconds": None} for record in history]


CASES = {
    "defaults": {},
    "nested": {"order": "nested-reverse"},
    "increase": {"order": "increase", "chunk_size": 7},
    "blocks": {"order": ["W1", "z1", "a1", "z2", "W2", "a2", "z3", "W3"]},
    "cross-entropy": {"loss": "cross_entropy", "inertia": (0.1, 0.2, 0.3), "chunk_size": 64},
    "huber and l1": {"loss": Huber(0.5), "regularizer": [Ridge(1e-3), None, "non_negative"]},
    "growing": {"penalty_growth": 2.0, "penalty_max": 1.0, "proximity": 0.5},
    "for each sample": {"weight_proximity": (0.002, 1.0)},
}


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_of_any_settings_has_the_bits_of_one_that_never_stopped(tmp_path, case):
    dtype = (torch.float32, torch.float64)[list(CASES).index(case) % 2]
    data = {"sample_weight": WEIGHT if case == "nested" else None, "validation_data": VALIDATION}
    straight = make_model(dtype=dtype, bias=case != "growing")
    whole = IPDLAM(straight, **CASES[case])
    history = whole.fit(X, Y, iterations=9, **data)
    first = IPDLAM(make_model(dtype=dtype, bias=case != "growing"), **CASES[case])
    first.fit(X, Y, iterations=4, **data)
    first.save(tmp_path / "c")
    model = make_model(seed=5, dtype=dtype, bias=case != "growing")
    second = IPDLAM.load(tmp_path / "c", model, X, Y, **data)
    assert second.settings == whole.settings
    assert same(model, first.model)
    assert second.objective() == first.objective()
    resumed = second.continue_fit(iterations=5)
    assert same(model, straight)
    assert without_seconds(resumed) == without_seconds(history)
    for kind in ("z", "a", "W", "b"):
        one, other = getattr(whole.iterate(), kind), getattr(second.iterate(), kind)
        for l in one:
            assert one[l] is None or torch.equal(one[l], other[l])


def test_a_light_checkpoint_is_a_fraction_of_an_exact_one(tmp_path):
    trainer = IPDLAM(make_model(), inertia=0.3, loss="cross_entropy")
    trainer.fit(X, Y, iterations=3)
    trainer.save(tmp_path / "light", light=True)
    trainer.save(tmp_path / "exact")
    size = sum(file.stat().st_size for file in (tmp_path / "light").glob("*.safetensors"))
    assert size < 0.2 * sum(file.stat().st_size for file in (tmp_path / "exact").glob("*.safetensors"))
    assert trainer.checkpoint_bytes(light=True) < size < trainer.checkpoint_bytes()
    loaded = IPDLAM.load(tmp_path / "light", make_model(seed=4))
    assert loaded.settings == trainer.settings
    with pytest.raises(RuntimeError, match="no run has been started"):
        loaded.step()


@pytest.fixture
def saved(tmp_path):
    trainer = IPDLAM(make_model())
    trainer.fit(X, Y, iterations=3, validation_data=VALIDATION)
    trainer.save(tmp_path / "c")
    return tmp_path / "c"


# --- damaged and hostile files ---------------------------------------------------------------------------------------


def load(path):
    return IPDLAM.load(path, make_model(), X, Y, validation_data=VALIDATION)


def test_every_bit_counts(saved):
    load(saved)
    generator = torch.Generator().manual_seed(1)
    for file in sorted(saved.iterdir()):
        content = file.read_bytes()
        for _ in range(25):
            place = int(torch.randint(len(content), (), generator=generator))
            bit = int(torch.randint(8, (), generator=generator))
            flipped = content[:place] + bytes([content[place] ^ (1 << bit)]) + content[place + 1 :]
            file.write_bytes(flipped)
            # Between two JSON tokens one blank is as good as another; nothing else may change.
            try:
                same_json = file.suffix == ".json" and json.loads(flipped) == json.loads(content)
            except ValueError:
                same_json = False
            if not same_json:
                with pytest.raises(CheckpointError, match=r"damaged|no checkpoint has|version"):
                    load(saved)
        file.write_bytes(content)
    load(saved)


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_truncated_files_are_refused(saved, fraction):
    for file in saved.iterdir():
        content = file.read_bytes()
        file.write_bytes(content[: int(fraction * len(content))])
        with pytest.raises(CheckpointError, match="damaged"):
            load(saved)
        file.write_bytes(content)


def test_missing_files_are_refused(saved):
    for file in sorted(saved.iterdir()):
        aside = file.rename(saved.parent / "aside")
        with pytest.raises(CheckpointError, match=r"missing|no manifest\.json|no whole checkpoint"):
            load(saved)
        aside.rename(file)
    with pytest.raises(CheckpointError, match=r"no manifest\.json"):
        load(saved / "nowhere")


def reseal(folder, change):
    """A manifest that was changed by somebody who knows the format."""
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest.pop("sha256")
    change(manifest)
    (folder / "manifest.json").write_text(checkpoints.seal(manifest))


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/passwd", "state-0.safetensors", "a\nb", ""])
def test_a_manifest_cannot_name_files_elsewhere(saved, name):
    reseal(saved, lambda manifest: manifest["files"][0].update(name=name))
    with pytest.raises(CheckpointError, match="which no checkpoint has"):
        load(saved)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m["content"]["run"].update(iteration="many"),
        lambda m: m["content"]["run"].update(iteration=float("inf")),
        lambda m: m["content"]["run"].update(iteration=-1),
        lambda m: m["content"]["run"]["moments"].pop("1"),
        lambda m: m["content"]["settings"].update(order=["z1"]),
        lambda m: m["content"]["settings"].update(proximity=-1.0),
        lambda m: m["content"]["settings"].update(regularizers=[]),
    ],
)
def test_a_manifest_with_nonsense_about_the_method_is_refused(saved, change):
    reseal(saved, change)
    with pytest.raises(CheckpointError):
        load(saved)


def test_nothing_is_pickled_or_run(saved):
    assert {file.suffix for file in saved.iterdir()} == {".json", ".safetensors"}
    json.loads((saved / "manifest.json").read_text())
    for source in Path(ipdlam.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(source.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
            assert not {"pickle", "marshal", "shelve", "joblib"} & set(names), source
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            assert called not in ("torch.load", "torch.save", "eval", "exec"), (source, called)
            assert called != "np.load" or "allow_pickle=False" in ast.unparse(node), source


def test_a_loss_of_the_users_is_saved_by_its_registered_name(tmp_path, monkeypatch):
    class Mine(Squared):
        """A loss of the user's."""

    trainer = IPDLAM(make_model(), loss=Mine())
    trainer.fit(X, Y, iterations=2)
    with pytest.raises(ValueError, match=r"in no registry, so it cannot be saved; add its class to ipdlam.prox.LOSSES"):
        trainer.save(tmp_path / "c")
    assert not (tmp_path / "c").exists()
    monkeypatch.setitem(LOSSES, "mine", Mine)
    trainer.save(tmp_path / "c")
    assert type(IPDLAM.load(tmp_path / "c", make_model(), X, Y).settings.loss) is Mine
    monkeypatch.delitem(LOSSES, "mine")
    with pytest.raises(CheckpointError, match="register it first"):
        IPDLAM.load(tmp_path / "c", make_model(), X, Y)


def test_every_registered_loss_and_regularizer_survives_the_trip():
    for loss in LOSSES:
        for regularizer in REGULARIZERS:
            settings = IPDLAM(make_model(), loss=loss, regularizer=regularizer).settings
            assert type(settings).from_dict(json.loads(json.dumps(settings.to_dict()))) == settings


# --- a series, and writing that fails --------------------------------------------------------------------------------


def test_two_are_kept_and_the_newest_whole_one_wins(tmp_path):
    trainer = IPDLAM(make_model())
    snapshots = {}
    keep = Checkpoints(trainer, tmp_path / "all", every=2)
    trainer.fit(
        X,
        Y,
        iterations=7,
        callbacks=[lambda r: snapshots.update({r.iteration: make_copy(trainer.model)}), keep],
    )
    names = sorted(path.name for path in (tmp_path / "all").iterdir())
    assert names == ["iteration-00000004", "iteration-00000006"]
    loaded = IPDLAM.load(tmp_path / "all", make_model(), X, Y)
    assert len(loaded.history) == 6
    assert same(loaded.model, snapshots[6])
    damaged = tmp_path / "all" / "iteration-00000006" / "state-00000.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    with pytest.warns(UserWarning, match=r"iteration-00000006 is damaged.*looking for an older one"):
        loaded = IPDLAM.load(tmp_path / "all", make_model(), X, Y)
    assert len(loaded.history) == 4
    assert same(loaded.model, snapshots[4])
    shutil.rmtree(tmp_path / "all" / "iteration-00000004")
    with pytest.warns(UserWarning, match="damaged"), pytest.raises(CheckpointError, match="no whole checkpoint"):
        IPDLAM.load(tmp_path / "all", make_model(), X, Y)


def make_copy(model):
    copy = make_model()
    copy.load_state_dict(model.state_dict())
    return copy


def test_the_checkpoints_of_another_run_are_left_alone(tmp_path):
    first = IPDLAM(make_model())
    first.fit(X, Y, iterations=4, callbacks=[Checkpoints(first, tmp_path, every=2)])
    with pytest.raises(CheckpointError, match=r"holds iteration-00000004 of another run.*choose another folder"):
        Checkpoints(IPDLAM(make_model()), tmp_path)
    again = Checkpoints(first, tmp_path, every=2)  # of the same run: it goes on
    first.continue_fit(iterations=2, callbacks=[again])
    with pytest.raises(CheckpointError, match="of another run"):
        first.fit(X, Y, iterations=2, callbacks=[again])  # from the beginning: a new run
    assert sorted(path.name for path in tmp_path.iterdir()) == ["iteration-00000004", "iteration-00000006"]


def test_what_kills_left_behind_goes_with_the_next_save(tmp_path):
    trainer = IPDLAM(make_model())
    keep = Checkpoints(trainer, tmp_path, every=1)
    trainer.fit(X, Y, iterations=2, callbacks=[keep])
    for name in (".unfinished-iteration-00000009", ".replaced-iteration-00000001", ".replaced-iteration-00000003"):
        shutil.copytree(tmp_path / "iteration-00000002", tmp_path / name)
    trainer.continue_fit(iterations=2, callbacks=[keep])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["iteration-00000003", "iteration-00000004"]


def test_what_was_left_unfinished_is_never_taken_for_a_checkpoint(tmp_path):
    trainer = IPDLAM(make_model())
    trainer.fit(X, Y, iterations=2, callbacks=[Checkpoints(trainer, tmp_path, every=1)])
    shutil.copytree(tmp_path / "iteration-00000002", tmp_path / ".unfinished-iteration-00000009")
    shutil.copytree(tmp_path / "iteration-00000002", tmp_path / ".replaced-iteration-00000008")
    assert len(IPDLAM.load(tmp_path, make_model(), X, Y).history) == 2


def test_a_replacement_interrupted_between_its_renames_is_undone(tmp_path):
    trainer = IPDLAM(make_model())
    trainer.fit(X, Y, iterations=2)
    trainer.save(tmp_path / "c")
    (tmp_path / "c").rename(tmp_path / ".replaced-c")
    assert len(load_without_validation(tmp_path / "c").history) == 2
    trainer.step()
    trainer.save(tmp_path / "c")
    assert len(load_without_validation(tmp_path / "c").history) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def load_without_validation(path):
    return IPDLAM.load(path, make_model(), X, Y)


def fails_with(number, after):
    """A save_file that fails with a system error at one of its calls, leaving half a file."""
    calls = {"left": after}

    def failing(tensors, path):
        if calls["left"] == 0:
            path.write_bytes(b"half")
            raise OSError(number, os.strerror(number))
        calls["left"] -= 1
        save_file(tensors, path)

    return failing


@pytest.mark.parametrize("after", [0, 2])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_a_failing_disk_loses_nothing(tmp_path, monkeypatch, number, after):
    monkeypatch.setattr(checkpoints, "PART_BYTES", 2000)  # several files
    trainer = IPDLAM(make_model())
    trainer.fit(X, Y, iterations=2)
    trainer.save(tmp_path / "c")
    trainer.step()
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "save_file", fails_with(number, after))
        with pytest.raises(CheckpointError, match=r"c was not written: .*Nothing in memory is lost"):
            trainer.save(tmp_path / "c")
    assert [path.name for path in tmp_path.iterdir()] == ["c"]
    assert len(load_without_validation(tmp_path / "c").history) == 2  # the older one is whole
    trainer.step()
    trainer.save(tmp_path / "c")
    resumed = load_without_validation(tmp_path / "c")
    twin = IPDLAM(make_model())
    twin.fit(X, Y, iterations=4)
    assert same(resumed.model, twin.model)


def test_all_is_on_the_disk_before_it_gets_its_name_and_then_the_name(saved, monkeypatch):
    """The tests replace ``os.fsync``; here its calls count, of a checkpoint that replaces one, and of a single file."""
    calls = []

    def synced(descriptor):
        found = os.fstat(descriptor)
        calls.append(("sync", found.st_ino, found.st_size if stat.S_ISREG(found.st_mode) else None))

    def noted(rename):
        def renamed(path, target):
            calls.append(("rename", path.stat().st_ino, Path(target).name))
            return rename(path, target)

        return renamed

    monkeypatch.setattr(os, "fsync", synced)
    for name in ("rename", "replace"):
        monkeypatch.setattr(Path, name, noted(getattr(Path, name)))

    folder, old = saved.parent.stat().st_ino, saved.stat().st_ino
    load(saved).save(saved)
    *before, aside, named, last = calls
    files = [("sync", file.stat().st_ino, file.stat().st_size) for file in saved.iterdir()]
    assert len(files) > 1
    assert sorted(before[:-1]) == sorted(files)  # each of them whole
    assert before[-1] == ("sync", saved.stat().st_ino, None)
    assert aside == ("rename", old, REPLACED + saved.name)
    assert named == ("rename", saved.stat().st_ino, saved.name)
    assert last == ("sync", folder, None)

    calls.clear()
    file = saved.parent / "summary.json"
    write_file(file, b"a result")
    number = file.stat().st_ino
    assert calls == [("sync", number, 8), ("rename", number, file.name), ("sync", folder, None)]


def test_a_full_disk_is_noticed_before_anything_is_written(tmp_path, monkeypatch):
    trainer = IPDLAM(make_model())
    trainer.fit(X, Y, iterations=1)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(CheckpointError, match=r"needs 1\.\d MB and the disk has 1\.0 kB left; make room"):
        trainer.save(tmp_path / "c")
    assert list(tmp_path.iterdir()) == []


def test_a_vanished_folder(tmp_path):
    trainer = IPDLAM(make_model())
    keep = Checkpoints(trainer, tmp_path / "run", every=1)
    trainer.fit(X, Y, iterations=1, callbacks=[keep])
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(CheckpointError, match=r"run does not exist \(any more\)"):
        trainer.continue_fit(iterations=1, callbacks=[keep])
    assert trainer.history[-1].iteration == 2
    trainer.step()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder(tmp_path):
    trainer = IPDLAM(make_model())
    trainer.fit(X, Y, iterations=1)
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        with pytest.raises(CheckpointError, match="cannot be written to"):
            trainer.save(tmp_path / "c")
    finally:
        tmp_path.chmod(stat.S_IRWXU)


def test_a_folder_of_something_else_is_never_replaced(tmp_path):
    trainer = IPDLAM(make_model())
    trainer.fit(X, Y, iterations=1)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("years of work")
    with pytest.raises(CheckpointError, match="exists and is not a checkpoint"):
        trainer.save(tmp_path / "thesis")
    assert (tmp_path / "thesis" / "chapter.tex").read_text() == "years of work"


def test_long_tensors_are_written_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "PART_BYTES", 1000)
    trainer = IPDLAM(make_model())
    trainer.fit(X, Y, iterations=2, validation_data=VALIDATION)
    trainer.save(tmp_path / "c")
    files = sorted((tmp_path / "c").glob("*.safetensors"))
    assert len(files) > 10
    assert max(file.stat().st_size for file in files) < 4000
    assert "z1@31" in {name for file in files for name in load_file(file)}
    trainer.step()
    resumed = load(tmp_path / "c")
    resumed.step()
    assert same(resumed.model, trainer.model)


def test_folders_of_others_are_never_removed(tmp_path):
    photos, app = tmp_path / "iteration-00000001", tmp_path / "iteration-00000000"
    mine = tmp_path / ".unfinished-iteration-00000007"
    for folder, name in ((photos, "photo.jpg"), (app, "manifest.json"), (mine, "notes.txt")):
        folder.mkdir()
        (folder / name).write_text('{"name": "of another program"}')
    left = tmp_path / ".unfinished-iteration-00000009"
    left.mkdir()
    (left / "state-00000.safetensors").write_bytes(b"half of it")
    trainer = IPDLAM(make_model())
    trainer.start(X, Y)
    trainer.step()
    keep = Checkpoints(trainer, tmp_path, every=1, keep=1)
    with pytest.raises(CheckpointError, match="iteration-00000001 exists and is not a checkpoint"):
        keep.save(1)
    trainer.continue_fit(iterations=4, callbacks=[keep])
    there = {path.name for path in tmp_path.iterdir()}
    assert there == {photos.name, app.name, mine.name, "iteration-00000005"}
    assert [len(list(folder.iterdir())) for folder in (photos, app, mine)] == [1, 1, 1]


def test_another_programs_manifest_is_no_checkpoint(tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "manifest.json").write_text('{"name": "an app"}')
    trainer = IPDLAM(make_model())
    trainer.start(X, Y)
    with pytest.raises(CheckpointError, match="site exists and is not a checkpoint; choose another name"):
        trainer.save(tmp_path / "site")
    assert (tmp_path / "site" / "manifest.json").is_file()


def test_a_folder_without_a_name_is_no_checkpoint(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in (".", "..", "/"):
        with pytest.raises(CheckpointError, match="holds no whole checkpoint"):
            IPDLAM.load(path, make_model(), X, Y)
