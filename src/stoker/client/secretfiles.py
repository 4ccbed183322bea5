"""Files that hold secrets by their name: those that tools keep logins, keys and states in."""

from __future__ import annotations

import re

_NAMES = {
    ".envrc": "environment variables",
    ".netrc": "logins of hosts",
    "_netrc": "logins of hosts",
    ".pypirc": "login of a package index",
    ".git-credentials": "logins of git",
    ".pgpass": "database password",
    ".my.cnf": "database password",
    ".htpasswd": "passwords",
    ".dockercfg": "login of a registry",
    ".s3cfg": "S3 credentials",
    ".boto": "cloud credentials",
    ".databrickscfg": "Databricks token",
    ".vault-token": "Vault token",
    "rclone.conf": "credentials of stores",
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
    (".docker", "config.json"): "login of a registry",
    (".cargo", "credentials"): "Cargo token",
    (".cargo", "credentials.toml"): "Cargo token",
    (".gem", "credentials"): "RubyGems token",
    ("gh", "hosts.yml"): "GitHub token",
    (".huggingface", "token"): "Hugging Face token",
    ("huggingface", "token"): "Hugging Face token",
    ("huggingface", "stored_tokens"): "Hugging Face token",
    (".streamlit", "secrets.toml"): "secrets of Streamlit",
}
_FOLDERS = {".gnupg": "GnuPG keys", ".azure": "Azure login"}
_GCLOUD = ".config/gcloud"  # a `gcloud` elsewhere is a project's own
_PRIVATE_KEY = re.compile(r"id_(rsa|dsa|ecdsa|ed25519|xmss)(_sk)?([._-].*)?(?<!\.pub)")
_ENV = re.compile(r"\.env(?:[. _-].+)?|.+\.env")
_COPY = re.compile(r"(?:~|[. _-](?:bak|backup|old|orig|save|copy))+$")  # what editors and people append
_SAMPLE = re.compile(r"(?:^|[._-])(?:example|sample|template|dist|defaults?|schema|tpl)(?:[._-]|$)")
_HARMLESS_SSH = ("known_hosts", "config", "authorized_keys")


def secret_file(path: str) -> str:
    """What kind of secret a file of this name holds, in words; empty where the name says nothing."""
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
