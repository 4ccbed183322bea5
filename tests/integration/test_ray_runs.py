"""Runs on a real Ray cluster: scripts that use Ray themselves, and runs whose head and nodes are lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from azuretwin import TRAIN, finishes, reaches
from shell import Shell, made_shell
from test_same_everywhere import HERE, RAY

from stoker.testing.ray_cluster import RayYard, ray_cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
OF_CLUSTER = {"python": str(RAY.with_name("python")), "packages": "none"}
PATIENCE_S = 240

# Two workers of Ray Train beside the agent, which holds one of the cluster's four CPUs.
RAY_TRAIN = """
    import os
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.data_parallel_trainer import DataParallelTrainer

    def work(config):
        import ray.train
        context = ray.train.get_context()
        for step in range(3):
            ray.train.report({"loss": 1 / (step + 1), "workers": context.get_world_size()})

    ray.init(address="auto")
    place = RunConfig(name="inner", storage_path=os.environ["STOKER_OUTPUTS"])
    result = DataParallelTrainer(work, scaling_config=ScalingConfig(num_workers=2), run_config=place).fit()
    with open(os.path.join(os.environ["STOKER_OUTPUTS"], "seen.txt"), "w") as file:
        file.write(str(len(ray.nodes())))
    print("trained", result.error, flush=True)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayYard]:
    with ray_cluster(RAY, count=2) as made:
        yield made


@pytest.fixture
def user(cluster: RayYard, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    with made_shell(tmp_path_factory.mktemp("ray")) as shell:
        shell.environ["RAY_ADDRESS"] = cluster.address
        yield shell


def train(shell: Shell, steps: int) -> None:
    shell.write("train.py", TRAIN)
    env = {"STEPS": str(steps), "STEP_S": "0.2", "REST_AT": "10", "REST_S": "120"}
    shell.job("python train.py", on="ray", environment=HERE, env=env)
    shell.stoker("run", "--detach")
    reaches(shell, "job-1", 10)


def test_a_script_that_uses_ray_train_itself_trains_on_the_same_cluster(user: Shell) -> None:
    user.write("train.py", RAY_TRAIN)
    user.job("python train.py", on="ray", environment=OF_CLUSTER)
    user.stoker("run", "--detach")
    user.wait_for(lambda: user.facts("job-1")["state"] in ("succeeded", "failed"), "its end", PATIENCE_S)
    said = user.stoker("logs", "job-1").stdout
    assert user.facts("job-1")["state"] == "succeeded", said
    assert "trained None" in said
    user.wait_for(lambda: user.facts("job-1")["landed"], "the outputs")
    assert (user.folder / "outputs" / "job-1" / "seen.txt").read_text() == "2"


def test_a_run_resumes_after_the_head_and_all_nodes_were_lost(user: Shell, cluster: RayYard) -> None:
    train(user, 20)
    for number in (0, 1):
        cluster.kill_node(number)
    cluster.start_head()
    cluster.await_nodes(1)
    cluster.start_node(1)
    cluster.await_nodes(2)
    facts = finishes(user, "job-1", 20)
    assert [one["state"] for one in facts["attempts"]] == ["lost", "ended"]
    assert user.stoker("logs", "job-1").stdout.count('"step": 20,') == 1
