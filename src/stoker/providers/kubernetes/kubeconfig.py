"""How to log in to a Kubernetes cluster: what `kubectl` reads, or the service account of the pod that this runs in."""

from __future__ import annotations

import base64
import binascii
import json
import os
import ssl
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from stoker.errors import LoginFailed, NotSetUp

UNSET = "no Kubernetes cluster is known: there is no kubeconfig"
HINT = "export KUBECONFIG=FILE, or write ~/.kube/config, and then `stoker server stop`; try it with `kubectl get pods`"
EXEC_S = 60.0  # for a program that logs in
_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class KubeLogin:
    """Of one context. What is empty is not used."""

    server: str
    namespace: str = "default"
    ca: bytes = b""  # PEM
    unverified: bool = False
    server_name: str = ""
    proxy: str = ""
    token: str = ""
    certificate: bytes = b""  # PEM
    key: bytes = b""

    def tls(self) -> ssl.SSLContext:
        context = _NamedContext(ssl.PROTOCOL_TLS_CLIENT)
        context.name = self.server_name
        try:
            if self.ca:
                context.load_verify_locations(cadata=self.ca.decode())
            else:
                context.load_default_certs()
            if self.unverified:
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            if self.certificate:
                _load_pair(context, self.certificate + b"\n" + self.key)
        except (ssl.SSLError, ValueError) as error:
            raise LoginFailed(f"the certificates for {self.server} are unusable: {error}", hint=HINT) from None
        return context


class _NamedContext(ssl.SSLContext):
    name = ""  # that the server's certificate is for, if it is not its address

    def wrap_socket(self, *words: Any, **more: Any) -> ssl.SSLSocket:
        return super().wrap_socket(*words, **{**more, **({"server_hostname": self.name} if self.name else {})})


def _load_pair(context: ssl.SSLContext, pem: bytes) -> None:
    """The standard library reads it from a file only: one of mode 0600, for this moment."""
    fd, name = tempfile.mkstemp()
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(pem)
        context.load_cert_chain(name)
    finally:
        Path(name).unlink()


def is_known(variables: Mapping[str, str]) -> bool:
    return any(path.is_file() for path in _files(variables)) or _in_pod(variables)


def read_login(variables: Mapping[str, str], context: str = "") -> KubeLogin:
    """Reads it anew: tokens expire. Raises NotSetUp and LoginFailed, with what to do."""
    config = _merged(_files(variables))
    if not config["contexts"]:
        if _in_pod(variables) and not context:
            return _of_pod(variables)
        raise NotSetUp(UNSET, hint=HINT)
    name = context or config["current-context"]
    if name not in config["contexts"]:
        known = ", ".join(f"`{one}`" for one in config["contexts"])
        what = f"the kubeconfig has no context `{name}`" if name else "the kubeconfig has no current context"
        raise NotSetUp(f"{what}; it has {known}", hint="`kubectl config get-contexts` lists them")
    chosen = config["contexts"][name]
    cluster, user = config["clusters"].get(chosen.get("cluster", "")), config["users"].get(chosen.get("user", ""), {})
    if not cluster or not cluster.get("server"):
        raise NotSetUp(f"the kubeconfig has no cluster `{chosen.get('cluster', '')}` of context `{name}`", hint=HINT)
    certificate, key, token = _proof(user, cluster, variables)
    return KubeLogin(
        server=str(cluster["server"]).rstrip("/"),
        namespace=str(chosen.get("namespace") or "default"),
        ca=_bytes(cluster, "certificate-authority"),
        unverified=bool(cluster.get("insecure-skip-tls-verify")),
        server_name=str(cluster.get("tls-server-name") or ""),
        proxy=str(cluster.get("proxy-url") or ""),
        token=token,
        certificate=certificate,
        key=key,
    )


def _files(variables: Mapping[str, str]) -> list[Path]:
    if given := variables.get("KUBECONFIG", ""):
        return [Path(one).expanduser() for one in given.split(os.pathsep) if one]
    return [Path(variables.get("HOME", "~"), ".kube", "config").expanduser()]


def _merged(files: list[Path]) -> dict[str, Any]:
    """As kubectl has it: of two entries with one name, the first counts. Paths are relative to their file."""
    found: dict[str, Any] = {"current-context": "", "contexts": {}, "clusters": {}, "users": {}}
    for path in files:
        try:
            said = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
            found["current-context"] = found["current-context"] or str(said.get("current-context") or "")
            for kind in ("contexts", "clusters", "users"):
                for one in said.get(kind) or ():
                    entry = {**(one.get(kind[:-1]) or {}), "folder": str(path.parent)}
                    found[kind].setdefault(str(one["name"]), entry)
        except FileNotFoundError:
            continue
        except (OSError, yaml.YAMLError, AttributeError, TypeError, KeyError) as error:
            words = " ".join(str(error).split())[:200]
            raise NotSetUp(f"{path} is not a kubeconfig that can be read: {words}", hint=HINT) from None
    return found


def _proof(
    user: Mapping[str, Any], cluster: Mapping[str, Any], variables: Mapping[str, str]
) -> tuple[bytes, bytes, str]:
    """A certificate, its key, and a token."""
    if user.get("exec"):
        return _executed(user["exec"], cluster, str(user["folder"]), variables)
    if user.get("auth-provider") or user.get("username"):
        form = "auth-provider" if user.get("auth-provider") else "username"
        raise NotSetUp(f"the kubeconfig logs in with `{form}`, which Kubernetes no longer supports", hint=HINT)
    token = str(user.get("token") or "")
    if not token and user.get("tokenFile"):
        token = _read(Path(str(user["folder"]), str(user["tokenFile"]))).decode().strip()
    return _bytes(user, "client-certificate"), _bytes(user, "client-key"), token


def _executed(
    given: Mapping[str, Any], cluster: Mapping[str, Any], folder: str, variables: Mapping[str, str]
) -> tuple[bytes, bytes, str]:
    """What a program says that logs in, such as those of the large clouds."""
    program = str(given.get("command") or "")
    words = [str(Path(folder, program)) if "/" in program else program, *map(str, given.get("args") or ())]
    spec: dict[str, Any] = {"interactive": False}
    if given.get("provideClusterInfo"):
        spec["cluster"] = {"server": cluster["server"], "certificate-authority-data": _encoded(cluster)}
    info = {"kind": "ExecCredential", "apiVersion": given.get("apiVersion"), "spec": spec}
    more = {str(one["name"]): str(one["value"]) for one in given.get("env") or ()}
    try:
        done = subprocess.run(
            words,
            env={**variables, **more, "KUBERNETES_EXEC_INFO": json.dumps(info)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=EXEC_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        hint = str(given.get("installHint") or HINT)
        raise LoginFailed(f"`{program}`, which logs in to the cluster, did not run: {error}", hint=hint) from None
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:300]
        raise LoginFailed(f"`{program}`, which logs in to the cluster, failed: {said}", hint="log in again with it")
    try:
        status = json.loads(done.stdout)["status"]
        pair = (str(status.get(f"client{one}Data") or "").encode() for one in ("Certificate", "Key"))
        return (*pair, str(status.get("token") or ""))  # type: ignore[return-value]  # two and one
    except (ValueError, KeyError, TypeError, AttributeError):
        raise LoginFailed(f"`{program}`, which logs in to the cluster, printed no ExecCredential") from None


def _encoded(cluster: Mapping[str, Any]) -> str:
    return base64.b64encode(_bytes(cluster, "certificate-authority")).decode()


def _bytes(entry: Mapping[str, Any], name: str) -> bytes:
    """Data in the file itself come before a path."""
    try:
        if given := entry.get(f"{name}-data"):
            return base64.b64decode(str(given), validate=True)
    except binascii.Error:
        raise NotSetUp(f"`{name}-data` in the kubeconfig is not base64", hint=HINT) from None
    return _read(Path(str(entry["folder"]), str(entry[name]))) if entry.get(name) else b""


def _read(path: Path) -> bytes:
    try:
        return path.expanduser().read_bytes()
    except OSError as error:
        raise NotSetUp(f"{path}, which the kubeconfig names, cannot be read: {error.strerror}", hint=HINT) from None


def _in_pod(variables: Mapping[str, str]) -> bool:
    return bool(variables.get("KUBERNETES_SERVICE_HOST")) and (_POD / "token").exists()


def _of_pod(variables: Mapping[str, str]) -> KubeLogin:
    host = variables["KUBERNETES_SERVICE_HOST"]
    host = f"[{host}]" if ":" in host else host
    return KubeLogin(
        server=f"https://{host}:{variables.get('KUBERNETES_SERVICE_PORT', '443')}",
        namespace=_read(_POD / "namespace").decode().strip(),
        ca=_read(_POD / "ca.crt"),
        token=_read(_POD / "token").decode().strip(),
    )
