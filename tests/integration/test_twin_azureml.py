"""Azure ML's own SDK, unmodified: a tutorial from cluster to downloaded model runs against the twin."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from azuretwin import Cloud
from learningtwin import last_line, learning_twin, made_workspace, sdk

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]

CONNECT = """
import json, os, time
from azure.ai.ml import Input, MLClient, MpiDistribution, Output, PyTorchDistribution, command
from azure.ai.ml.entities import AmlCompute, BuildContext, Data, Environment
from azure.identity import ClientSecretCredential

told = json.loads(os.environ["TOLD"])
credential = ClientSecretCredential(
    told["tenant"], told["client_id"], told["client_secret"],
    authority=told["url"], disable_instance_discovery=True, connection_verify=told["authority"],
)
ml = MLClient(credential, told["subscription"], told["group"], told["workspace"])
"""

# The third workflow in today's spelling: an environment from a Dockerfile, a cluster that grows from nothing, a dataset
# that is mounted, a script on several nodes, and the weights afterwards.
TUTORIAL = (
    CONNECT
    + """
environment = ml.environments.create_or_update(
    Environment(name="CustomDockerEnvironment", build=BuildContext(path="docker"))
)
cluster = AmlCompute(
    name="MyCluster", size="Standard_D2s_v5", min_instances=0, max_instances=2, idle_time_before_scale_down=300,
    tier="low_priority",
)
cluster = ml.compute.begin_create_or_update(cluster).result()
data = ml.data.create_or_update(Data(name="coco2017_trainval", version="3", type="uri_folder", path="images"))
job = ml.jobs.create_or_update(command(
    code="train",
    command="python train_net.py --dataset ${{inputs.dataset}} --model ${{outputs.model}}",
    inputs={"dataset": Input(type="uri_folder", path=f"azureml:{data.name}:{data.version}", mode="ro_mount")},
    outputs={"model": Output(type="uri_folder")},
    environment=f"{environment.name}@latest",
    compute="MyCluster",
    instance_count=2,
    distribution=PyTorchDistribution(process_count_per_instance=2),
    experiment_name="MyExperiment",
))
ml.jobs.stream(job.name)
ml.jobs.download(job.name, download_path="down", all=True)
newest = next(iter(ml.jobs.list()))
print(json.dumps({"job": newest.name == job.name, "state": newest.status, "nodes": cluster.max_instances}))
"""
)

TRAIN = """
import argparse, os, pathlib, socket

parser = argparse.ArgumentParser()
parser.add_argument("--dataset")
parser.add_argument("--model")
given = parser.parse_args()
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
print("images", sorted(os.listdir(given.dataset)), flush=True)
if rank == 0:  # every other rank reaches it at the address that Azure ML tells
    with socket.create_server((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))) as server:
        ranks = sorted(int(server.accept()[0].recv(9)) for _ in range(world - 1))
    pathlib.Path("outputs", "final_weights.pkl").write_text(str(ranks))
    pathlib.Path(given.model, "model.txt").write_text("42")
else:
    for _ in range(300):
        try:
            with socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))) as rank_0:
                rank_0.sendall(str(rank).encode())
            break
        except OSError:
            __import__("time").sleep(0.1)
print("rank", rank, "of", world, flush=True)
"""

OTHERS = (
    CONNECT
    + """
ml.environments.create_or_update(Environment(name="plain", image="mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu22.04"))
ml.compute.begin_create_or_update(AmlCompute(name="cpu", size="Standard_D2s_v5", max_instances=1)).result()

def submit(line, **more):
    return ml.jobs.create_or_update(command(command=line, environment="plain@latest", compute="cpu", **more)).name

failing, sleeping = submit("echo here; exit 3"), submit("sleep 600")
try:
    ml.jobs.stream(failing)
    told = ""
except Exception as error:
    told = str(error)
while ml.jobs.get(sleeping).status != "Running":
    time.sleep(0.2)
ml.jobs.begin_cancel(sleeping).result()
while ml.jobs.get(sleeping).status != "Canceled":
    time.sleep(0.2)
try:
    submit("true", instance_count=2)
    refused = ""
except Exception as error:
    refused = str(error)
ml.compute.begin_delete("cpu").result()
print(json.dumps({"failed": "exit status 3" in told, "refused": "at most 1" in refused,
                  "left": "cpu" in [one.name for one in ml.compute.list()]}))
"""
)


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    with learning_twin(tmp_path_factory.mktemp("azureml")) as cloud:
        made_workspace(cloud)
        yield cloud


def test_the_tutorial_of_the_sdk_trains_on_two_nodes_and_downloads_its_model(cloud: Cloud, tmp_path: Path) -> None:
    for name, text in {
        "train/train_net.py": TRAIN,
        "images/1.jpg": "a",
        "images/2.jpg": "b",
        "docker/Dockerfile": "FROM mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu22.04\n",
    }.items():
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    done = sdk(cloud, tmp_path, TUTORIAL)
    assert last_line(done) == {"job": True, "state": "Completed", "nodes": 2}
    assert "images ['1.jpg', '2.jpg']" in done.stdout
    assert "rank 0 of 4" in done.stdout
    down = tmp_path / "down"
    assert (down / "artifacts/outputs/final_weights.pkl").read_text() == "[1, 2, 3]"
    assert (down / "named-outputs/model/model.txt").read_text() == "42"
    logs = sorted(one.name for one in (down / "artifacts/user_logs").iterdir())
    assert logs == [f"std_log_process_{rank}.txt" for rank in range(4)]


def test_a_failure_a_cancellation_and_a_refusal_reach_the_sdk_in_its_own_words(cloud: Cloud, tmp_path: Path) -> None:
    assert last_line(sdk(cloud, tmp_path, OTHERS)) == {"failed": True, "refused": True, "left": False}
