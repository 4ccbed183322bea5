"""How Stoker logs in to a cluster: as `kubectl` does with the same file."""

from __future__ import annotations

import base64
import datetime
import json
import ssl
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from stoker.errors import LoginFailed, NotSetUp
from stoker.providers.kubernetes import kubeconfig
from stoker.providers.kubernetes.kubeconfig import is_known, read_login


def config(folder: Path, name: str = "config", user: Mapping[str, Any] | None = None, **cluster: Any) -> dict[str, str]:
    """The variables of somebody whose file this is."""
    said = {
        "current-context": "here",
        "contexts": [
            {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "team"}},
            {"name": "plain", "context": {"cluster": "c", "user": "u"}},
        ],
        "clusters": [{"name": "c", "cluster": {"server": "https://k8s.example:6443/", **cluster}}],
        "users": [{"name": "u", "user": dict(user or {})}],
    }
    (folder / name).write_text(json.dumps(said))
    return {"KUBECONFIG": str(folder / name), "PATH": "/usr/bin:/bin"}


def made_pair() -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "jane")])
    now = datetime.datetime.now(datetime.UTC)
    built = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    built = built.serial_number(7).not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
    pem = serialization.Encoding.PEM
    hidden = serialization.NoEncryption()
    return built.sign(key, hashes.SHA256()).public_bytes(pem), key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, hidden
    )


def test_a_token_and_the_namespace_of_the_current_context_are_read(tmp_path: Path) -> None:
    found = read_login(config(tmp_path, user={"token": "t"}))
    assert (found.server, found.namespace, found.token) == ("https://k8s.example:6443", "team", "t")
    assert read_login(config(tmp_path), "plain").namespace == "default"


def test_a_token_is_read_from_its_file_beside_the_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-file\n")
    assert read_login(config(tmp_path, user={"tokenFile": "token"})).token == "from-file"


def test_a_client_certificate_is_used_from_data_and_from_files(tmp_path: Path) -> None:
    certificate, key = made_pair()
    (tmp_path / "cert.pem").write_bytes(certificate)
    (tmp_path / "key.pem").write_bytes(key)
    of_files = {"client-certificate": "cert.pem", "client-key": "key.pem"}
    of_data = {
        f"{name}-data": base64.b64encode((tmp_path / file).read_bytes()).decode() for name, file in of_files.items()
    }
    for user in (of_files, of_data):
        found = read_login(config(tmp_path, user=user, **{"certificate-authority": "cert.pem"}))
        assert (found.certificate, found.key, found.ca) == (certificate, key, certificate)
        assert isinstance(found.tls(), ssl.SSLContext)
    assert {one.name for one in tmp_path.iterdir()} == {"cert.pem", "key.pem", "config"}


def test_a_program_that_logs_in_is_asked_as_kubectl_asks_it(tmp_path: Path) -> None:
    program = tmp_path / "login.py"
    program.write_text(
        "import json, os\n"
        "asked = json.loads(os.environ['KUBERNETES_EXEC_INFO'])\n"
        "assert asked['spec']['cluster']['server'] == 'https://k8s.example:6443/'\n"
        "print(json.dumps({'status': {'token': os.environ['PROFILE'] + asked['apiVersion']}}))\n"
    )
    asked = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": [str(program)],
        "env": [{"name": "PROFILE", "value": "work-"}],
        "provideClusterInfo": True,
    }
    assert read_login(config(tmp_path, user={"exec": asked})).token == "work-client.authentication.k8s.io/v1"


@pytest.mark.parametrize("script", ["import sys; sys.exit('expired-17')", "print('no json')"])
def test_a_program_that_cannot_log_in_is_told_as_that(tmp_path: Path, script: str) -> None:
    asked = {"apiVersion": "client.authentication.k8s.io/v1", "command": sys.executable, "args": ["-c", script]}
    with pytest.raises(LoginFailed) as refused:
        read_login(config(tmp_path, user={"exec": asked}))
    assert ("expired-17" in refused.value.message) == ("expired" in script)


def test_a_program_that_is_not_there_is_told_with_its_own_hint(tmp_path: Path) -> None:
    asked = {"command": "no-such-login", "installHint": "install it-17"}
    with pytest.raises(LoginFailed) as refused:
        read_login(config(tmp_path, user={"exec": asked}))
    assert refused.value.hint == "install it-17"


def test_of_several_files_the_first_entry_counts(tmp_path: Path) -> None:
    first = config(tmp_path, "one", {"token": "first"})["KUBECONFIG"]
    second = config(tmp_path, "two", {"token": "second"})["KUBECONFIG"]
    found = read_login({"KUBECONFIG": f"{tmp_path}/none:{first}:{second}"})
    assert found.token == "first"


@pytest.mark.parametrize(
    ("text", "context"),
    [
        ("contexts: [", ""),
        ("contexts: 7", ""),
        ("- 1", ""),
        ('{"contexts": [{"name": "a", "context": {"cluster": "b"}}], "current-context": "a"}', ""),
        ('{"contexts": [{"name": "a", "context": {}}]}', ""),
        ('{"contexts": [{"name": "a", "context": {}}]}', "other"),
        ("{}", ""),
    ],
)
def test_a_file_that_cannot_be_used_is_told_as_that(tmp_path: Path, text: str, context: str) -> None:
    (tmp_path / "config").write_text(text)
    with pytest.raises(NotSetUp):
        read_login({"KUBECONFIG": str(tmp_path / "config")}, context)


@pytest.mark.parametrize("user", [{"auth-provider": {"name": "gcp"}}, {"username": "u", "password": "p"}])
def test_a_login_that_kubernetes_has_removed_is_refused(tmp_path: Path, user: Mapping[str, Any]) -> None:
    with pytest.raises(NotSetUp):
        read_login(config(tmp_path, user=user))


def test_a_certificate_that_is_none_is_a_login_that_fails(tmp_path: Path) -> None:
    given = base64.b64encode(b"nothing").decode()
    found = read_login(config(tmp_path, user=None, **{"certificate-authority-data": given}))
    with pytest.raises(LoginFailed):
        found.tls()
    with pytest.raises(NotSetUp):
        read_login(config(tmp_path, user=None, **{"certificate-authority-data": "%%%"}))


def test_inside_a_pod_its_service_account_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"HOME": str(tmp_path), "KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    assert not is_known({"HOME": str(tmp_path)})
    for name, text in (("token", "of-pod"), ("namespace", "batch"), ("ca.crt", "")):
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(kubeconfig, "_POD", tmp_path)
    assert is_known(variables)
    found = read_login(variables)
    assert (found.server, found.namespace, found.token) == ("https://[fd00::1]:443", "batch", "of-pod")
