"""Keeps secrets out of a snapshot: which files are not uploaded, which stop a submission, and which are reported."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath

from stoker.client.source.ignore import STOKERIGNORE, included_on_purpose
from stoker.client.source.secretvalues import FileKind, SecretHit
from stoker.errors import SnapshotRefused
from stoker.model.cause import Cause

_SCRIPTS = {".py", ".pyi", ".pyx", ".sh", ".bash", ".zsh", ".fish", ".r", ".jl", ".lua", ".pl", ".rb", ".m", ".sql"}
_COMPILED = {".c", ".cc", ".cpp", ".cxx", ".cu", ".cuh", ".h", ".hpp", ".rs", ".go", ".java", ".kt", ".scala", ".swift"}
_CODE = _SCRIPTS | _COMPILED | {".js", ".ts", ".jsx", ".tsx", ".cmake"}
_CODE_NAMES = frozenset({"makefile", "dockerfile", "snakefile", "cmakelists.txt"})
_SETTINGS = {".yaml", ".yml", ".toml", ".ini", ".cfg", ".conf", ".config", ".json", ".properties", ".cnf", ".tfvars"}
_SHELLS = {".sh", ".bash", ".zsh", ".fish"}
_LARGEST_SETTINGS = 64 << 10  # bytes: a larger file is data, and its values are rows
_SHOWN = 5


class Screened(StrEnum):
    LEFT_OUT = "left-out"  # not uploaded
    REFUSED = "refused"  # the run needs it, so nothing is uploaded
    SUSPECT = "suspect"  # uploaded: it is data, in which something looks like a secret
    INCLUDED = "included"  # uploaded: the user allowed it


@dataclass(frozen=True, slots=True)
class SecretFinding:
    """A secret in the source. Never its value: `line` and `kind` say where and what. `line` 0: the whole file."""

    path: str
    line: int
    kind: str
    verdict: Screened

    def __str__(self) -> str:
        path = self.path if self.path.isprintable() else os.fsencode(self.path).decode("utf-8", "backslashreplace")
        path = path if path.isprintable() else ascii(path)[1:-1]
        return f"{path}:{self.line} ({self.kind})" if self.line else f"{path} ({self.kind})"


class Screen:
    """For one source folder. `needed` are paths that the job itself names."""

    def __init__(self, root: Path, needed: Collection[str] = ()) -> None:
        self._root = root
        self._needed = needed
        self.findings: list[SecretFinding] = []

    def keeps(self, path: str, hits: Sequence[SecretHit], size_bytes: int) -> bool:
        """Whether the file is part of the snapshot. Records findings."""
        named = secret_file(path)
        if not named and not hits:
            return True
        if not named and size_bytes > _LARGEST_SETTINGS and not is_code(path) and not any(hit.sure for hit in hits):
            self._note(path, hits, Screened.SUSPECT)
            return True
        secrets = hits if not named else [SecretHit(0, named, True)]
        if included_on_purpose(self._root, path):
            self._note(path, secrets, Screened.INCLUDED)
            return True
        needed = path in self._needed or (not named and is_code(path))
        self._note(path, secrets, Screened.REFUSED if needed else Screened.LEFT_OUT)
        return False

    def _note(self, path: str, hits: Iterable[SecretHit], verdict: Screened) -> None:
        self.findings += [SecretFinding(path, hit.line, hit.kind, verdict) for hit in hits]


def is_code(path: str) -> bool:
    name = PurePosixPath(path).name.lower()
    return name in _CODE_NAMES or PurePosixPath(name).suffix in _CODE


def kind_of(path: str) -> FileKind:
    """What `secretvalues` has to know about a file."""
    name = path.rpartition("/")[2].lower()
    ending = f".{name.rpartition('.')[2]}" if "." in name else ""
    if ending in _CODE:
        return FileKind.TEXT if ending in _SHELLS else FileKind.PROGRAM
    return FileKind.SETTINGS if ending in _SETTINGS or name.endswith("rc") else FileKind.TEXT


def check(findings: Sequence[SecretFinding]) -> None:
    """Raises SnapshotRefused if a file that the run needs contains a secret."""
    refused = [one for one in findings if one.verdict is Screened.REFUSED]
    if not refused:
        return
    lines = [*map(str, refused[:_SHOWN]), *_more(refused)]
    files = (
        "a file that the run needs contains" if len({one.path for one in refused}) == 1 else "files of the run contain"
    )
    raise SnapshotRefused(
        f"{files} a secret, so nothing was uploaded\n" + "\n".join(lines),
        hint="read it from a variable, and list that under `secrets:` in the job;"
        f" or upload the file as it is: {_sending(refused[0])}",
        cause=Cause.SECRET_FOUND,
    )


def lines(findings: Sequence[SecretFinding]) -> list[str]:
    """Messages for the user about a submission, in a few lines. They never contain the value of a secret."""
    told = []
    left = [one for one in findings if one.verdict is Screened.LEFT_OUT]
    if left:
        told.append(f"not uploaded, because of secrets: {_listed(left)}")
        told.append(
            f"  list variables under `secrets:` in the job to pass them; to upload a file anyway: {_sending(left[0])}"
        )
    if included := [one for one in findings if one.verdict is Screened.INCLUDED]:
        told.append(f"uploaded with its secrets, because {STOKERIGNORE} includes it: {_listed(included)}")
    if suspect := [one for one in findings if one.verdict is Screened.SUSPECT]:
        told.append(f"warning: uploaded, but may contain a secret: {_listed(suspect)}")
    return told


def _sending(finding: SecretFinding) -> str:
    """The command that includes a file on purpose."""
    return f"echo {shlex.quote(f'!{finding.path}')} >> {STOKERIGNORE}"


def _listed(findings: Sequence[SecretFinding]) -> str:
    return ", ".join([*map(str, findings[:_SHOWN]), *_more(findings)])


def _more(findings: Sequence[SecretFinding]) -> list[str]:
    return [f"and {len(findings) - _SHOWN} more"] if len(findings) > _SHOWN else []


# Files that contain secrets by their name: those that tools keep logins, keys and states in.

_NAMES = {
    ".envrc": "environment variables",
    ".netrc": "host logins",
    "_netrc": "host logins",
    ".pypirc": "package index login",
    ".git-credentials": "git logins",
    ".pgpass": "database password",
    ".my.cnf": "database password",
    ".htpasswd": "passwords",
    ".dockercfg": "registry login",
    ".s3cfg": "S3 credentials",
    ".boto": "cloud credentials",
    ".databrickscfg": "Databricks token",
    ".vault-token": "Vault token",
    "rclone.conf": "storage credentials",
    "kaggle.json": "Kaggle credentials",
    "kubeconfig": "Kubernetes credentials",
    "application_default_credentials.json": "Google Cloud credentials",
    "accesstokens.json": "Azure tokens",
    "azureprofile.json": "Azure login",
    "credentials.tfrc.json": "Terraform token",
    "master.key": "master key",
}
_ENDINGS = {
    ".tfstate": "Terraform state",
    ".tfstate.backup": "Terraform state",
    ".kubeconfig": "Kubernetes credentials",
    ".p12": "private key",
    ".pfx": "private key",
    ".ppk": "private key",
    ".jks": "key store",
    ".keystore": "key store",
    ".kdbx": "password store",
}
_ENDS = tuple(_ENDINGS)
_PLACES = {  # a folder, and what is in it
    (".aws", "credentials"): "AWS credentials",
    (".kube", "config"): "Kubernetes credentials",
    (".docker", "config.json"): "registry login",
    (".cargo", "credentials"): "Cargo token",
    (".cargo", "credentials.toml"): "Cargo token",
    (".gem", "credentials"): "RubyGems token",
    ("gh", "hosts.yml"): "GitHub token",
    (".huggingface", "token"): "Hugging Face token",
    ("huggingface", "token"): "Hugging Face token",
    ("huggingface", "stored_tokens"): "Hugging Face token",
    (".streamlit", "secrets.toml"): "Streamlit secrets",
}
_FOLDERS = {".gnupg": "GnuPG keys", ".azure": "Azure login"}
_GCLOUD = ".config/gcloud"  # a `gcloud` in another place belongs to a project
_PRIVATE_KEY = re.compile(r"id_(rsa|dsa|ecdsa|ed25519|xmss)(_sk)?([._-].*)?(?<!\.pub)")
_ENV = re.compile(r"\.env(?:[. _-].+)?|.+\.env")
_COPY = re.compile(r"(?:~|[. _-](?:bak|backup|old|orig|save|copy))+$")  # what editors and people append
_SAMPLE = re.compile(r"(?:^|[._-])(?:example|sample|template|dist|defaults?|schema|tpl)(?:[._-]|$)")
_HARMLESS_SSH = ("known_hosts", "config", "authorized_keys")


def secret_file(path: str) -> str:
    """The kind of secret in a file of this name, as text; empty if the name does not tell."""
    folders, _, name = path.lower().rpartition("/")
    name = _COPY.sub("", name)
    parent = folders.rpartition("/")[2]
    if kind := _NAMES.get(name) or _PLACES.get((parent, name)) or _FOLDERS.get(parent):
        return kind
    if parent == "gcloud" and f"/{folders}".endswith(f"/{_GCLOUD}"):
        return "Google Cloud credentials"
    if name.startswith("id_") and _PRIVATE_KEY.fullmatch(name):
        return "SSH private key"
    if ".env" in name and _ENV.fullmatch(name) and not _SAMPLE.search(name):
        return "environment variables"
    if parent == ".ssh" and not name.endswith(".pub") and not name.startswith(_HARMLESS_SSH):
        return "SSH key"
    if not name.endswith(_ENDS):
        return ""
    return next(kind for ending, kind in _ENDINGS.items() if name.endswith(ending))
