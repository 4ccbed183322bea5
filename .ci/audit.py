"""What is installed against the lock, and the lock against known vulnerabilities. Ends with 1 where one is wrong.

Where no database of vulnerabilities can be reached, it says so: that is no proof that there are none.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

SERVICES = ("pypi", "osv")
LOCKS = Path(__file__).parents[1] / "requirements"
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)")


def pins(name: str) -> dict[str, set[str]]:
    """The versions that a lock allows, by package: several where they depend on the system or the Python."""
    found: dict[str, set[str]] = {}
    for line in (LOCKS / f"{name}.txt").read_text(encoding="utf-8").splitlines():
        if pin := _PIN.match(line):
            found.setdefault(plain(pin[1]), set()).add(pin[2])
    return found


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def differences() -> list[str]:
    wanted = pins("development")
    here = {plain(one.name): one.version for one in distributions()}
    return [
        f"{name} {here[name]} is installed, and the lock has {' or '.join(sorted(versions))}"
        for name, versions in sorted(wanted.items())
        if name in here and here[name] not in versions
    ]


def audited(service: str) -> list[dict[str, Any]]:
    """The packages of the server's lock that a service knows, each with its vulnerabilities; none if it is away."""
    words = [sys.executable, "-m", "pip_audit", "--requirement", str(LOCKS / "server.txt"), "--require-hashes"]
    words += ["--disable-pip", "--format", "json", "--progress-spinner", "off", "--vulnerability-service", service]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    try:
        return [one for one in json.loads(done.stdout)["dependencies"] if "vulns" in one]
    except (ValueError, KeyError):
        return []


def vulnerabilities() -> list[str]:
    checked = next(filter(None, map(audited, SERVICES)), [])
    missing = len(pins("server")) - len(checked)
    if not checked:
        print("vulnerabilities were NOT checked: no database of them could be reached from here")
    else:
        print(f"{len(checked)} packages of the server were checked for vulnerabilities, {missing} could not be")
    return [f"{one['name']} {one['version']}: {flaw['id']}" for one in checked for flaw in one["vulns"]]


def main() -> int:
    differing = differences()
    print(f"{len(differing)} of {len(pins('development'))} locked packages are installed in another version")
    flaws = vulnerabilities()
    for line in (*differing, *flaws):
        print(line)
    return 1 if differing or flaws else 0


if __name__ == "__main__":
    sys.exit(main())
