"""Scripts with not a line for Stoker, killed at random steps and resumed under the hook of `exact: true`."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from test_exact_drill import KILLED, Drill

pytestmark = pytest.mark.timeout(300)
SCRIPTS = Path(__file__).with_name("exact_scripts")


def drill(place: Path, script: str, *imports: str) -> Drill:
    return Drill(place, (SCRIPTS / f"{script}.py").read_text(encoding="utf-8"), imports=imports, patience_s=280)


def add(it: Drill, name: str, points: list[int], **env: Any) -> list[int]:
    """Bare and undisturbed, then killed and resumed under the hook; the exit codes that are expected."""
    it.add(f"{name}-undisturbed", **env)
    for point in points:
        it.add(name, kill_at=point, HOOK="1", **env)
    it.add(name, HOOK="1", **env)
    return [0, *[KILLED] * len(points), 0]


@pytest.mark.heavy
def test_a_script_that_saves_every_epoch_ends_with_the_same_bits(tmp_path: Path) -> None:
    it = drill(tmp_path, "epochs", "torch._dynamo", "torch.utils.data", "numpy")
    kinds = {"alone": {}, "workers": {"WORKERS": "2"}, "own": {"OWN": "1"}}
    kinds["lasting"] = {"WORKERS": "2", "LASTING": "1"}
    codes = [code for name, env in kinds.items() for code in add(it, name, [random.randrange(8, 27)], **env)]
    codes += add(it, "twice", [random.randrange(9, 13), 21])
    it.add("bare", kill_at=15)
    it.add("bare")
    assert it.run() == [*codes, KILLED, 0], it.said("alone")
    for name in kinds:
        it.assert_same(name, f"{name}-undisturbed")
        assert it.said(name).count("random states are as they were when `checkpoint.pth.tar` was saved") == 1
    it.assert_same("twice", "alone-undisturbed")
    assert it.final("bare")["model"] != it.final("alone-undisturbed")["model"]
    left = {one.name for one in (tmp_path / "alone").iterdir() if one.name.endswith(".stoker-exact")}
    assert left == {".checkpoint.pth.tar.stoker-exact", ".model_best.pth.tar.stoker-exact"}


@pytest.mark.heavy
def test_a_script_that_saves_within_epochs_continues_behind_the_batches_it_has_used(tmp_path: Path) -> None:
    it = drill(tmp_path, "midway", "torch._dynamo", "torch.utils.data", "numpy")
    kinds = {kind: {"KIND": kind} for kind in ("again", "skip", "endless", "before")}
    kinds["workers"] = {"KIND": "again", "WORKERS": "2"}
    codes = [code for name, env in kinds.items() for code in add(it, name, [random.randrange(5, 30)], **env)]
    assert it.run() == codes, it.said("again")
    for name in kinds:
        it.assert_same(name, f"{name}-undisturbed")


def test_a_batch_that_is_drawn_ahead_is_the_same_after_a_resume(tmp_path: Path) -> None:
    # It saves in place, every five steps: it is killed between.
    it = drill(tmp_path, "ahead", "torch._dynamo", "numpy")
    codes = add(it, "killed", [random.choice([8, 12, 13]), 29])
    it.add("bare", kill_at=15)
    it.add("bare")
    assert it.run() == [*codes, KILLED, 0], it.said("killed")
    it.assert_same("killed", "killed-undisturbed")
    assert it.final("bare")["model"] != it.final("killed-undisturbed")["model"]


@pytest.mark.parametrize("save", ["pickle", "numpy", "joblib"])
def test_generators_of_a_script_without_a_framework_are_restored(save: str, tmp_path: Path) -> None:
    it = drill(tmp_path, "partial_fit", "numpy")
    codes = add(it, "killed", [random.randrange(4, 9), 15], SAVE=save)
    it.add("bare", kill_at=8, SAVE=save)
    it.add("bare", SAVE=save)
    assert it.run() == [*codes, KILLED, 0], it.said("killed")
    it.assert_same("killed", "killed-undisturbed")
    assert it.final("bare") != it.final("killed-undisturbed")


def test_two_files_a_step_are_exact_and_a_save_in_a_thread_is_told_not_to_be(tmp_path: Path) -> None:
    """And the guide's own line for NumPy is exact without the hook."""
    it = drill(tmp_path, "plain_forms", "numpy")
    codes = add(it, "files", [random.randrange(4, 9), 15], KIND="files")
    codes += add(it, "thread", [random.randrange(4, 9)], KIND="thread")
    it.add("state", kill_at=8, KIND="state")
    it.add("state", KIND="state")
    assert it.run() == [*codes, KILLED, 0], it.said("files")
    it.assert_same("files", "files-undisturbed")
    it.assert_same("state", "files-undisturbed")
    assert "a save in another thread is not consistent with the training" in it.said("thread")
    assert it.final("thread") != it.final("files-undisturbed")


@pytest.mark.heavy
def test_ranks_of_ddp_end_with_the_same_bits_though_only_the_first_one_saves(tmp_path: Path) -> None:
    it = drill(tmp_path, "ddp", "torch._dynamo", "torch.utils.data", "numpy")
    kinds = ("epochs", "first", "midway", "own")  # `first`: only the first rank evaluates
    codes = [code for kind in kinds for code in add(it, kind, [random.randrange(8, 22)], KIND=kind)]
    # Wrapped once more after an epoch of the process that resumed: that wrapper starts as in the undisturbed one.
    codes += add(it, "four", [random.randrange(4, 6)], KIND="again", RANKS="4", WIDTH="600")
    it.add("bare", kill_at=15, KIND="epochs")
    it.add("bare", KIND="epochs")
    assert it.run() == [*codes, KILLED, 0], it.said("epochs")
    for kind, ranks in {**dict.fromkeys(kinds, 2), "four": 4}.items():
        it.assert_same(kind, f"{kind}-undisturbed")
        assert it.said(kind).count("random states are as they were") == ranks, it.said(kind)
    assert it.final("bare") != it.final("epochs-undisturbed")
