"""What a script saves through its own functions and its own modules."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.client.script.script import look


def kept(tmp_path: Path, **files: str) -> list[str]:
    for name, text in files.items():
        path = tmp_path / f"{name.replace('__', '/', 1)}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    script = look(tmp_path / "train.py", "train.py")
    assert script
    script.follow(tmp_path)
    found = script.saving({})
    return [*found.checkpoints, *found.models]


def test_a_function_saves_where_it_is_told_to(tmp_path: Path) -> None:
    code = "import torch\ndef keep(state, path):\n    torch.save(state, path)\n"
    code += "keep(m, 'a/last.pt')\nkeep(m, path='b/x.pt')\n"
    assert kept(tmp_path, train=code) == ["a/last.pt", "b/x.pt"]


def test_a_default_counts_only_where_a_call_leaves_it_out(tmp_path: Path) -> None:
    code = "import torch\ndef keep(state, path='never.pt'):\n    torch.save(state, path)\nkeep(m, 'last.pt')\n"
    assert kept(tmp_path, train=code) == ["last.pt"]


def test_a_wrapper_that_passes_all_arguments_on_is_seen_through(tmp_path: Path) -> None:
    code = "import utils\nutils.save_on_master(state, 'out/checkpoint.pth')\n"
    utils = "import torch\ndef save_on_master(*args, **kwargs):\n    torch.save(*args, **kwargs)\n"
    assert kept(tmp_path, train=code, utils=utils) == ["out/checkpoint.pth"]


def test_an_object_that_saves_knows_its_folder_from_where_it_is_made(tmp_path: Path) -> None:
    code = "from engine.saver import Saver\nSaver('work', net).save(3)\n"
    saver = (
        "import os, torch\nclass Saver:\n"
        "    def __init__(self, folder, net):\n        self.folder, self.net = folder, net\n"
        "    def file(self, epoch):\n        return os.path.join(self.folder, f'epoch_{epoch}.pt')\n"
        "    def save(self, epoch):\n        torch.save(self.net, self.file(epoch))\n"
    )
    assert kept(tmp_path, train=code, engine____init__="", engine__saver=saver) == ["work/epoch_3.pt"]


def test_relative_imports_and_modules_of_modules_are_followed(tmp_path: Path) -> None:
    inner = "import torch\nPLACE = 'deep/ckpt.pt'\ndef keep(m):\n    torch.save(m, PLACE)\n"
    outer = "from .inner import keep\n"
    assert kept(tmp_path, train="from pkg import outer\n", pkg____init__="", pkg__outer=outer, pkg__inner=inner) == [
        "deep/ckpt.pt"
    ]


@pytest.mark.parametrize(
    "code",
    [
        "def a(x):\n    return b(x)\ndef b(x):\n    return a(x)\nimport torch\ntorch.save(m, a('x'))\n",
        "path = path / 'more'\nimport torch\ntorch.save(m, path)\n",
        "import train\nimport torch\ntorch.save(m, train.f(train.f))\n",
        "\n".join(f"def f{i}(p):\n    return f{i + 1}(p) + f{i + 1}(p)" for i in range(30))
        + "\ntorch.save(m, f0('a'))\n",
    ],
)
def test_a_script_that_goes_in_circles_is_read_in_no_time(tmp_path: Path, code: str) -> None:
    assert kept(tmp_path, train=code) == []


def test_a_text_that_is_replaced_is_no_file_that_is_moved(tmp_path: Path) -> None:
    assert kept(tmp_path, train="name = 'a'.replace('a', 'checkpoint.pt')\n") == []
    assert kept(tmp_path, train="import os\nos.replace('tmp', 'checkpoint.pt')\n") == ["checkpoint.pt"]
