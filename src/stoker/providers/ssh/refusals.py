"""Why a host cannot be used, from what ssh prints, and what to do about it. Pure."""

from __future__ import annotations

from stoker.errors import LoginFailed, ProviderFailed, ProviderUnavailable

LEAST_PYTHON = "3.11"
NO_PYTHON = "stoker-no-python"  # printed by the first command where no Python is new enough

_PASSING = {
    "connection refused": "refuses connections: its sshd is not running, or listens on another port",
    "timed out": "does not answer",
    "no route to host": "cannot be reached: no route to it",
    "network is unreachable": "cannot be reached: the network is down",
    "could not resolve hostname": "is unknown: its name cannot be resolved",
    "connection reset": "closed the connection",
    "connection closed": "closed the connection",
    "kex_exchange_identification": "closed the connection before the login",
    "broken pipe": "lost the connection",
    "stdio forwarding failed": "cannot be reached through its jump host",
    "no space left on device": "has a full disk",
}


def refusal(host: str, said: str) -> ProviderFailed:
    """`said` is what ssh printed on stderr. What passes by itself is ProviderUnavailable."""
    text = said.lower()
    if NO_PYTHON in text:
        found = said[text.index(NO_PYTHON) + len(NO_PYTHON) :].strip().splitlines()[:1]
        has = f": it has {found[0]}" if found and found[0] else ""
        return ProviderFailed(
            f"host `{host}` has no Python {LEAST_PYTHON} or newer{has}",
            hint=f"install one there, for example `uv python install {LEAST_PYTHON}`; no root is needed",
        )
    if "remote host identification has changed" in text:
        return LoginFailed(
            f"the host key of `{host}` has changed: it was reinstalled, or somebody else answers in its place",
            hint=f"compare the new key with its administrator, then `ssh-keygen -R {_bare(host)}` and `ssh {host}`",
        )
    if "host key verification failed" in text or "host key is known" in text:
        return LoginFailed(
            f"the host key of `{host}` is unknown",
            hint=f"log in once with `ssh {host}`, and compare the key that it shows before you accept it",
        )
    if "permission denied" in text or "too many authentication failures" in text:
        return LoginFailed(
            f"host `{host}` refuses the login: {_last(said)}",
            hint=f"`ssh {host} true` must work without a question: load your key with `ssh-add`",
        )
    for words, why in _PASSING.items():
        if words in text:
            return ProviderUnavailable(f"host `{host}` {why}", hint=f"try it with `ssh {host} true`")
    why = _last(said) or "ssh ended without a word"
    return ProviderUnavailable(f"host `{host}` cannot be used: {why}", hint=f"try it with `ssh {host} true`")


def refused(host: str, code: str, why: str) -> ProviderFailed:
    """What the program on the host has answered."""
    if code == "disk-full":
        return ProviderFailed(f"host `{host}`: {why}", hint="free some space in the home of its account")
    return ProviderFailed(f"host `{host}`: {why}")


def silent(host: str, seconds: float) -> ProviderUnavailable:
    return ProviderUnavailable(f"host `{host}` has not answered for {seconds:.0f} s", hint=f"try `ssh {host} true`")


def _bare(host: str) -> str:
    return host.removeprefix("ssh://").rpartition("@")[2].partition("/")[0]


def _last(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip() and not line.startswith("Warning:")]
    return lines[-1][:300] if lines else ""
