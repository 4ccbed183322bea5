"""What `${checkpoint.newest}` stands for."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from stoker.agent.checkpoints.resuming import newest
from stoker.model.job.sections import CheckpointPaths
from stoker.model.snapshot import CheckpointSet, Entry


def of(
    work: Path, named: list[str], paths: list[str], texts: list[str] | None = None, *, numbered: bool = False
) -> str:
    """Of files written in this order."""
    for path, text in zip(paths, texts or ["x" * 1000] * len(paths), strict=True):
        (work / path).parent.mkdir(parents=True, exist_ok=True)
        (work / path).write_text(text)
    entries = tuple(Entry(path, sha256="0" * 64, size_bytes=1) for path in sorted(paths))
    times = {path: number for number, path in enumerate(paths)}
    found = CheckpointSet(1, 1, datetime.now(UTC), entries, changed_ns=times)
    return newest(found, CheckpointPaths(named), work, numbered=numbered)


@pytest.mark.parametrize(
    ("named", "written", "expected"),
    [
        (["ckpt"], ["ckpt/epoch-9.pt", "ckpt/epoch-10.pt"], "ckpt/epoch-10.pt"),
        (["ckpt"], ["ckpt/epoch-10.pt", "ckpt/epoch-9.pt"], "ckpt/epoch-9.pt"),  # by time, not by name
        (["ckpt"], ["ckpt/last.pt", "ckpt/epoch-10.pt"], "ckpt/last.pt"),
        (["out"], ["out/model000004.pt", "out/ema_0.99_000004.pt", "out/opt000004.pt"], "out/model000004.pt"),
        (
            ["out"],
            ["out/checkpoint-5/a.bin", "out/checkpoint-10/a.bin", "out/checkpoint-10/b.bin"],
            "out/checkpoint-10",
        ),
        (["out"], ["out/checkpoint-5/a.bin", "out/runs/events.out.tfevents.1", "out/log.json"], "out/checkpoint-5"),
        (
            ["checkpoint.pth.tar", "model_best.pth.tar"],
            ["checkpoint.pth.tar", "model_best.pth.tar"],
            "checkpoint.pth.tar",
        ),
        (["*.pt"], ["model_best.pt"], "model_best.pt"),
        (
            ["lightning_logs/"],
            ["lightning_logs/version_0/checkpoints/epoch=1.ckpt", "lightning_logs/version_0/metrics.csv"],
            "lightning_logs/version_0/checkpoints/epoch=1.ckpt",
        ),
        (["logs/*/ckpts"], ["logs/a/ckpts/1.ckpt", "logs/b/ckpts/2.ckpt"], "logs/b/ckpts/2.ckpt"),
        (
            ["checkpoints"],
            ["checkpoints/iter_1/mp_rank_00.pt", "checkpoints/iter_1/mp_rank_01.pt"],
            "checkpoints/iter_1",
        ),
        (["study.db"], ["study.db"], "study.db"),
        (
            ["runs"],
            ["runs/train/exp/weights/last.pt", "runs/train/exp/weights/best.pt"],
            "runs/train/exp/weights/last.pt",
        ),
        (
            ["outputs"],
            ["outputs/2026-a/last.pth.tar", "outputs/2026-b/last.pth.tar", "outputs/2026-b/summary.csv"],
            "outputs/2026-b/last.pth.tar",
        ),
        (["out"], ["out/final/model.safetensors", "out/final/optimizer.bin"], "out/final"),
    ],
)
def test_the_newest_checkpoint_is_the_last_one_written(
    tmp_path: Path, named: list[str], written: list[str], expected: str
) -> None:
    assert of(tmp_path, named, written) == expected


def test_a_small_file_called_latest_is_followed(tmp_path: Path) -> None:
    written = ["ckpt/global_step5/a.pt", "ckpt/latest", "ckpt/global_step9/a.pt"]
    assert of(tmp_path, ["ckpt"], written, ["x", "global_step5\n", "x"]) == "ckpt/global_step5"
    assert of(tmp_path, ["ckpt"], written, ["x", "../../etc", "x"]) == "ckpt/latest"
    assert of(tmp_path, ["ckpt"], written, ["x", "gone", "x"]) == "ckpt/latest"


def test_a_set_without_files_has_none(tmp_path: Path) -> None:
    assert of(tmp_path, ["ckpt"], []) == ""


def test_a_name_with_a_number_wins_where_the_script_is_told_a_number(tmp_path: Path) -> None:
    written = ["ck/11_net_G.pth", "ck/opt.txt", "ck/12_net_G.pth", "ck/latest_net_G.pth"]
    assert of(tmp_path, ["ck"], written, numbered=True) == "ck/12_net_G.pth"
    assert of(tmp_path, ["ck"], written) == "ck/latest_net_G.pth"
    assert of(tmp_path, ["ck"], ["ck/latest_net_G.pth"], numbered=True) == "ck/latest_net_G.pth"
    inside = ["out/base_checkpoints/d20/model_000010.pt", "out/base_checkpoints/d20/meta_000010.json"]
    assert of(tmp_path, ["out"], inside, numbered=True) == "out/base_checkpoints/d20/model_000010.pt"
    parts = ["out/checkpoint-500/model-00001-of-2.bin", "out/checkpoint-500/model-00002-of-2.bin"]
    assert of(tmp_path, ["out"], parts, numbered=True) == "out/checkpoint-500"
    assert of(tmp_path, ["out"], ["out/500/a-1.bin"], numbered=True) == "out/500"
