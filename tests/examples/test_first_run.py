"""The first example does what its page says."""

import json
import subprocess
import sys
from pathlib import Path

from stoker.client.submit import jobfile

FOLDER = Path(__file__).parents[2] / "examples" / "first_run"


def test_the_script_learns_to_tell_two_moons_apart(tmp_path: Path) -> None:
    command = [sys.executable, str(FOLDER / "train.py"), "--epochs", "12", "--output_dir", str(tmp_path / "outputs")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["epoch"] for one in told] == list(range(1, 13))
    assert told[-1]["accuracy"] >= 0.95
    model = json.loads((tmp_path / "outputs" / "model.json").read_text())
    assert len(model["outer"]) == len(model["inner"]) + 1


def test_the_job_file_is_one_that_stoker_can_run() -> None:
    job = jobfile.read(FOLDER / "stoker.yaml").job
    assert (job.name, str(job.stop_when)) == ("two-moons", "accuracy >= 0.99")
