"""The provider of Kubernetes keeps the provider contract, on a small Kubernetes of our own that refuses every manifest
that the official schema does not allow."""

from __future__ import annotations

import base64
import json
import os
import ssl
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from kubeschema import check
from stoker.errors import (
    JobInvalid,
    LoginFailed,
    NotAllowed,
    NotSetUp,
    ProviderFailed,
    ProviderUnavailable,
    QuotaReached,
)
from stoker.model import wire
from stoker.model.job.job import Job
from stoker.model.node import Need, NodeRequest, NodeSight, NodeState, Pool
from stoker.model.orders import Orders
from stoker.model.snapshot import Snapshot
from stoker.model.workspace import layout
from stoker.model.workspace.home import Home
from stoker.providers import Provider, Setup
from stoker.providers.kubernetes import KubernetesProvider
from stoker.providers.kubernetes.cluster import KubeCluster
from stoker.stores.folder.store import FolderStore
from stoker.testing.kubernetes import KubeFault, fake_kubernetes, kubeconfig
from stoker.testing.kubernetes.objects import KubeObjects
from stoker.testing.kubernetes.server import KubeServer
from stoker.testing.providers import PATIENCE_S, ProviderContract

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(os.geteuid() != 0, reason="pods have namespaces of their own: it requires root"),
]
GANG = ("g-1", "g-1-1", "g-1-2")


class TestKubernetesProvider(ProviderContract):
    @pytest.fixture(autouse=True)
    def cluster(self, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        folder = tmp_path_factory.mktemp("kube")
        with fake_kubernetes(folder, check) as self.kube:
            (folder / "config").write_text(kubeconfig(self.kube.server.url, token="first"))
            monkeypatch.setenv("KUBECONFIG", str(folder / "config"))
            self.folder = folder
            yield
            assert self.kube.left() == [], "everything goes with its Job"

    def make(self, folder: Path) -> Provider:
        self.kube.claims["store"] = folder
        return KubernetesProvider(Setup(Home(folder)))

    def request(self, folder: Path, key: str, **settings: str) -> NodeRequest:
        store, empty = FolderStore(Home(folder).store), Snapshot(())
        store.put(layout.snapshot(empty.id), wire.dump(empty))
        orders = Orders(key, "sleeper-1", 1, 0, key, Job(name="sleeper", run="sleep 60"), empty.id, sys.executable)
        where = layout.orders(key, 1)
        store.put(where, wire.dump(orders))
        pool = Pool("kube", {"volumes": f"store:{folder}", **settings})
        together = GANG if key in GANG else ()
        return NodeRequest(key, where, store.url, need=Need(cpus=1), pool=pool, together=together)

    def take_away(self, provider: Provider, key: str) -> None:
        """Kills all processes of its pod, as soon as there are some."""
        self.kube.pods.kill(self._pod(key))

    def _pod(self, key: str) -> dict[str, Any]:
        first = next((one for one in GANG if key in GANG), key)
        index = GANG.index(key) if key in GANG else 0
        deadline = time.monotonic() + PATIENCE_S
        while not (
            found := [one for one in self.kube.running(first) if f"{first}-{index}-" in one["metadata"]["name"]]
        ):
            assert time.monotonic() < deadline, f"no pod of {key} runs"
            time.sleep(0.02)
        return found[0]

    def _sees(self, provider: Provider, key: str, what: str, state: NodeState = NodeState.STARTING) -> NodeSight:
        deadline = time.monotonic() + PATIENCE_S
        while what not in (sight := self._seen(provider, key)).waits + sight.reason or sight.state is not state:
            assert time.monotonic() < deadline, f"{what} was never said, but {sight}"
            time.sleep(0.05)
        return sight

    # What is created

    def test_a_gang_is_one_job_with_names_for_its_pods(self, provider: Provider, tmp_path: Path) -> None:
        for key in GANG:
            assert self.kube.left() == []
            provider.start(self.request(tmp_path, key))
        kinds = [one.partition("/")[0] for one in self.kube.left()]
        assert (kinds.count("jobs"), kinds.count("secrets"), kinds.count("services")) == (1, 1, 1)
        for key in GANG:
            provider.stop(key)

    def test_secrets_are_in_a_secret_alone_and_the_script_finds_no_file_of_them(
        self, provider: Provider, tmp_path: Path
    ) -> None:
        provider.start(replace(self.request(tmp_path, "r-1"), secrets={"HF_TOKEN": "hidden-17"}))
        self._becomes(provider, "r-1", NodeState.UP)
        for kind in ("jobs", "pods", "services", "events"):
            assert "hidden-17" not in json.dumps(self.kube.objects.select(kind))
        (secret,) = self.kube.objects.select("secrets")
        assert b"hidden-17" in base64.b64decode(secret["data"]["nodes.json"])
        (agent,) = self._pod("r-1")["spec"]["containers"]
        assert "given" not in [one["name"] for one in agent["volumeMounts"]]
        deadline = time.monotonic() + PATIENCE_S
        while (left := list(self.folder.rglob("memory/.stoker-given"))) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert left == []
        provider.stop("r-1")

    def test_a_lost_answer_and_errors_of_the_api_server_make_nothing_twice(
        self, provider: Provider, tmp_path: Path
    ) -> None:
        self.kube.server.faults = [
            KubeFault("POST /apis/batch", lost=True),
            KubeFault("POST /api/v1/namespaces/team/secrets", 500),
            KubeFault("POST /api/v1/namespaces/team/secrets", 429),
            KubeFault("GET /api/v1/namespaces/team/pods", 503, times=2),
        ]
        provider.start(self.request(tmp_path, "r-1"))
        assert [sight.key for sight in provider.look()] == ["r-1"]
        assert [one.times for one in self.kube.server.faults] == [0, 0, 0, 0]
        assert len(self.kube.objects.select("jobs")) == 1
        provider.stop("r-1")

    def test_a_server_that_died_between_two_objects_continues(self, provider: Provider, tmp_path: Path) -> None:
        self.kube.server.faults = [KubeFault("POST /api/v1/namespaces/team/secrets", times=9)]
        with pytest.raises(ProviderUnavailable):
            provider.start(self.request(tmp_path, "r-1"))
        assert self._seen(provider, "r-1").state is NodeState.STARTING
        self.kube.server.faults = []
        again = self.make(tmp_path)
        again.start(self.request(tmp_path, "r-1"))
        self._becomes(again, "r-1", NodeState.UP)
        again.stop("r-1")

    def test_a_start_that_is_given_up_halfway_leaves_nothing(self, provider: Provider, tmp_path: Path) -> None:
        self.kube.server.forbidden = {("create", "secrets")}
        with pytest.raises(NotAllowed) as refused:
            provider.start(self.request(tmp_path, "r-1"))
        assert 'cannot create resource "secrets"' in refused.value.message
        provider.stop("r-1")
        assert self.kube.left() == []

    # How nodes end, in words of Kubernetes

    @pytest.mark.parametrize(
        "reason", ["EvictionByEvictionAPI", "PreemptionByScheduler", "DeletionByTaintManager", "TerminationByKubelet"]
    )
    def test_a_disrupted_pod_is_taken_and_told_with_its_reason(
        self, provider: Provider, tmp_path: Path, reason: str
    ) -> None:
        provider.start(self.request(tmp_path, "r-1", grace="1"))
        pod = self._pod("r-1")
        self._becomes(provider, "r-1", NodeState.UP)
        self.kube.evict(pod, reason)
        provider.look()
        sight = self._sees(provider, "r-1", reason, NodeState.GONE)
        assert sight.taken
        provider.stop("r-1")

    def test_a_pod_without_memory_is_told_as_that_and_is_not_taken(self, provider: Provider, tmp_path: Path) -> None:
        provider.start(self.request(tmp_path, "r-1"))
        self.kube.pods.kill(self._pod("r-1"), out_of_memory=True)
        assert not self._sees(provider, "r-1", "OOMKilled", NodeState.GONE).taken
        provider.stop("r-1")

    def test_a_lease_that_nobody_renews_ends_the_job(self, provider: Provider, tmp_path: Path) -> None:
        assert isinstance(provider, KubernetesProvider)
        provider.start(self.request(tmp_path, "r-1", grace="1"))
        self._becomes(provider, "r-1", NodeState.UP)
        provider.renew("r-1", 5000)
        (job,) = self.kube.objects.select("jobs")
        assert 4990 < job["spec"]["activeDeadlineSeconds"] < 5100
        self.kube.objects.merge("jobs", "team", job["metadata"]["name"], {"spec": {"activeDeadlineSeconds": 1}})
        self._sees(provider, "r-1", "DeadlineExceeded", NodeState.GONE)
        provider.stop("r-1")

    def test_a_job_that_somebody_deletes_is_told_as_that_and_takes_everything_along(
        self, provider: Provider, tmp_path: Path
    ) -> None:
        provider.start(self.request(tmp_path, "r-1", grace="1"))
        self._becomes(provider, "r-1", NodeState.UP)
        self.kube.objects.delete("jobs", "team", self.kube.objects.select("jobs")[0]["metadata"]["name"])
        self._becomes(provider, "r-1", NodeState.GONE)
        deadline = time.monotonic() + PATIENCE_S
        while self.kube.left() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert self.kube.left() == []
        provider.stop("r-1")

    # Why nodes wait

    def test_what_does_not_fit_waits_and_says_why(self, provider: Provider, tmp_path: Path) -> None:
        provider.start(replace(self.request(tmp_path, "r-1"), need=Need(cpus=64)))
        self._sees(provider, "r-1", "Insufficient cpu")
        provider.stop("r-1")

    def test_an_image_that_does_not_exist_waits_and_says_so(self, provider: Provider, tmp_path: Path) -> None:
        provider.start(self.request(tmp_path, "r-1", image="example.org/none"))
        self._sees(provider, "r-1", "ImagePullBackOff")
        provider.stop("r-1")

    def test_an_image_without_a_python_is_told_as_that(self, provider: Provider, tmp_path: Path) -> None:
        provider.start(self.request(tmp_path, "r-1", image="example.org/no-python"))
        self._sees(provider, "r-1", "the image has no Python", NodeState.GONE)
        provider.stop("r-1")

    def test_a_quota_of_pods_waits_and_says_so(self, provider: Provider, tmp_path: Path) -> None:
        self.kube.jobs.most_pods = 0
        provider.start(self.request(tmp_path, "r-1"))
        self._sees(provider, "r-1", "exceeded quota")
        provider.stop("r-1")

    def test_a_queue_of_kueue_admits_a_job_and_takes_it_back(self, provider: Provider, tmp_path: Path) -> None:
        self.kube.server.kueue = True
        self.kube.objects.create("localqueues", "team", {"metadata": {"name": "gpus"}})
        provider.start(self.request(tmp_path, "r-1", queue="gpus", grace="1"))
        (job,) = self.kube.objects.select("jobs")
        assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
        self.kube.queue(job, "QuotaReserved", "Pending", "insufficient unused quota for cpu")
        self._sees(provider, "r-1", "insufficient unused quota")
        self.kube.admit(job["metadata"]["name"])
        self._becomes(provider, "r-1", NodeState.UP)
        self.kube.queue(job, "Evicted", "Preempted", "to accommodate a workload of higher priority")
        self.kube.admit(job["metadata"]["name"], suspend=True)
        assert self._sees(provider, "r-1", "to accommodate a workload", NodeState.GONE).taken
        assert self._seen(self.make(tmp_path), "r-1").taken, "also told by a server that was restarted"
        provider.stop("r-1")
        self.kube.objects.remove("localqueues", "team", "gpus")

    # What is refused

    def test_settings_and_jobs_that_do_not_fit_are_refused_with_the_field(
        self, provider: Provider, tmp_path: Path
    ) -> None:
        self.kube.server.kueue = True
        self.kube.objects.create("localqueues", "team", {"metadata": {"name": "gpus"}})
        cases = [
            (Need(pool=Pool("k", {"namespace": "taem"})), "setting namespace", "team"),
            (Need(pool=Pool("k", {"queue": "gpu"})), "setting queue", "gpus"),
            (Need(pool=Pool("k", {"imgae": "x"})), "setting imgae", "image"),
            (Need(pool=Pool("k", {"tolerations": "a=b:NoSchedul"})), "setting tolerations", "NoSchedule"),
            (Need(contained=True), "environment.dockerfile", ""),
            (Need(contained=True, image="a", image_login="B"), "environment.login", ""),
            (Need(gpus=1, gpu="A100"), "gpu", ""),
        ]
        for need, field, near in cases:
            with pytest.raises(JobInvalid) as refused:
                provider.offers(need)
            (problem,) = refused.value.problems
            assert (problem.field, problem.nearest) == (field, near)
        self.kube.objects.remove("localqueues", "team", "gpus")

    def test_a_gpu_is_found_by_the_label_of_its_node(self, provider: Provider, tmp_path: Path) -> None:
        self.kube.nodes[1].labels["nvidia.com/gpu.product"] = "NVIDIA-A100-SXM4-80GB"
        self.kube.nodes[1].room["nvidia.com/gpu"] = 8
        assert provider.offers(Need(gpus=1, gpu="H100")) == []
        need = Need(gpus=1, gpu="A100")
        assert len(provider.offers(need)) == 1
        provider.start(replace(self.request(tmp_path, "r-1"), need=need))
        assert self._pod("r-1")["spec"]["nodeName"] == "node-1"
        provider.stop("r-1")

    def test_a_folder_that_no_claim_brings_to_a_pod_is_refused(self, provider: Provider, tmp_path: Path) -> None:
        with pytest.raises(NotSetUp):
            provider.start(replace(self.request(tmp_path, "r-1"), pool=None))
        assert self.kube.left() == []

    def test_logins_rights_and_quotas_are_told_as_errors_of_their_own(self, provider: Provider, tmp_path: Path) -> None:
        self.kube.server.tokens = {"second"}
        with pytest.raises(LoginFailed):
            provider.offers(Need())
        (self.folder / "config").write_text(kubeconfig(self.kube.server.url, token="second"))
        assert provider.offers(Need()), "a new token is read from the file"
        self.kube.server.most_jobs = 0
        with pytest.raises(QuotaReached):
            provider.start(self.request(tmp_path, "r-1"))
        provider.stop("r-1")
        self.kube.server.forbidden = {("list", "jobs")}
        with pytest.raises(NotAllowed):
            self.make(tmp_path).offers(Need())

    def test_an_api_server_that_is_away_loses_nothing(self, provider: Provider, tmp_path: Path) -> None:
        provider.start(self.request(tmp_path, "r-1"))
        self._becomes(provider, "r-1", NodeState.UP)
        self.kube.server.faults = [KubeFault("", 503, times=100)]
        for ask in (provider.look, lambda: provider.start(self.request(tmp_path, "r-2"))):
            with pytest.raises(ProviderUnavailable):
                ask()
        self.kube.server.faults = []
        self.kube.restart()
        provider.start(self.request(tmp_path, "r-2"))
        for key in ("r-1", "r-2"):
            self._becomes(provider, key, NodeState.UP)
            provider.stop(key)

    def test_looking_at_many_pods_takes_two_lists(self, provider: Provider, tmp_path: Path) -> None:
        for number in range(3):
            provider.start(self.request(tmp_path, f"r-{number}"))
        self._becomes(provider, "r-2", NodeState.UP)
        before = len(self.kube.server.asked)
        assert len(provider.look()) == 3
        assert len(self.kube.server.asked) - before == 2
        for number in range(3):
            provider.stop(f"r-{number}")


def test_an_old_cluster_is_refused_for_what_it_cannot_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_kubernetes(tmp_path / "kube", check) as kube:
        (tmp_path / "config").write_text(kubeconfig(kube.server.url))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        kube.server.minor = 27
        provider = KubernetesProvider(Setup(Home(tmp_path)))
        assert provider.offers(Need())
        with pytest.raises(NotSetUp):
            provider.offers(Need(nodes=2))


def test_an_object_that_the_schema_does_not_allow_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_kubernetes(tmp_path / "kube", check) as kube:
        (tmp_path / "config").write_text(kubeconfig(kube.server.url))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        with pytest.raises(ProviderFailed):
            KubeCluster("").create("jobs", "team", {"metadata": {"name": "x"}, "spec": {"backofLimit": 0}})


def made_certificate(folder: Path) -> str:
    """One for both sides: it is its own authority. Its name is no address."""
    key = ec.generate_private_key(ec.SECP256R1())
    name, now = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "cluster.test")]), datetime.now(UTC)
    built = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    built = built.add_extension(x509.SubjectAlternativeName([x509.DNSName("cluster.test")]), critical=False)
    built = built.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    made = built.serial_number(7).not_valid_before(now).not_valid_after(now + timedelta(days=1))
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    private = key.private_bytes(pem, form, serialization.NoEncryption())
    (folder / "pair.pem").write_bytes(made.sign(key, hashes.SHA256()).public_bytes(pem) + private)
    return str(folder / "pair.pem")


def test_a_cluster_is_reached_by_its_authority_and_a_client_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = made_certificate(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pair)
    tls.load_verify_locations(pair)
    tls.verify_mode = ssl.CERT_REQUIRED
    server = KubeServer(KubeObjects(), check, tls=tls)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    named = {"certificate-authority": pair, "tls-server-name": "cluster.test"}
    mine = {"client-certificate": pair, "client-key": pair}
    cases: list[tuple[dict[str, str], dict[str, str], type[ProviderFailed] | None]] = [
        (named, mine, None),
        ({"insecure-skip-tls-verify": "yes"}, mine, None),
        ({"certificate-authority": pair}, mine, LoginFailed),
        ({}, mine, LoginFailed),
        (named, {}, ProviderUnavailable),
    ]
    for cluster, user, refused in cases:
        (tmp_path / "config").write_text(kubeconfig(server.url, cluster, **user))
        with pytest.raises(refused) if refused else nullcontext():
            assert KubeCluster("").version() == (1, server.minor)
    server.close()


def test_a_cluster_that_is_unknown_is_told_before_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    provider = KubernetesProvider(Setup(Home(tmp_path)))
    assert [bool(one.unready) for one in provider.offers(Need())] == [True]
    assert provider.look() == []
