"""Keras, Lightning and Hugging Face under the hook of `exact: true`, killed and resumed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from test_exact_drill import KILLED
from test_exact_hook import add, drill

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(300)]


def test_keras_ends_with_the_same_bits(tmp_path: Path) -> None:
    it = drill(tmp_path, "keras_fit", "torch._dynamo", "torch.utils.data", "h5py", "numpy")
    codes = add(it, "killed", [random.randrange(3, 8)])
    it.add("bare", kill_at=4)
    it.add("bare")
    assert it.run() == [*codes, KILLED, 0], it.said("killed")
    it.assert_same("killed", "killed-undisturbed")
    assert it.final("bare")["model"] != it.final("killed-undisturbed")["model"]
    assert "random states are as they were when `cp-" in it.said("killed")


def test_lightning_ends_with_the_same_bits_at_and_within_epochs(tmp_path: Path) -> None:
    it = drill(tmp_path, "lightning_fit", "torch._dynamo", "lightning", "lightning.pytorch.callbacks")
    codes = add(it, "epochs", [random.randrange(12, 30)])
    codes += add(it, "within", [random.randrange(12, 30)], EVERY="3")
    it.add("bare", kill_at=20)
    it.add("bare")
    assert it.run() == [*codes, KILLED, 0], it.said("epochs")
    it.assert_same("epochs", "epochs-undisturbed")
    it.assert_same("within", "within-undisturbed")
    assert it.final("bare")["model"] != it.final("epochs-undisturbed")["model"]


def test_hugging_face_is_exact_by_itself_and_stays_so(tmp_path: Path) -> None:
    it = drill(tmp_path, "hf_train", "torch._dynamo", "transformers", "transformers.trainer")
    codes = add(it, "killed", [random.choice([8, 13, 18])])  # Hugging Face saves in place
    assert it.run() == codes, it.said("killed")
    it.assert_same("killed", "killed-undisturbed")
    assert not list((tmp_path / "killed").rglob("*.stoker-exact"))


def test_a_jax_key_in_a_variable_of_the_module_is_restored(tmp_path: Path) -> None:
    it = drill(tmp_path, "jax_loop", "numpy", "jax")
    codes = add(it, "typed", [random.randrange(6, 20)])
    codes += add(it, "plain", [random.randrange(6, 20)], OLD="1")
    it.add("bare", kill_at=10)
    it.add("bare")
    assert it.run() == [*codes, KILLED, 0], it.said("typed")
    it.assert_same("typed", "typed-undisturbed")
    it.assert_same("plain", "plain-undisturbed")
    assert it.final("bare") != it.final("typed-undisturbed")
