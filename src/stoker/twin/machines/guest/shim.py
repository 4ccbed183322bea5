"""`systemctl`, `journalctl`, `cloud-init`, `poweroff` and `reboot` of a machine, chosen by the program's name."""

from __future__ import annotations

import itertools
import json
import os
import socket
import sys
import time

ROOT = ""  # of a machine without isolation, filled in when it is written there


def main(name: str, words: list[str]) -> int:
    if name == "journalctl":
        return journal(words)
    if name == "cloud-init":
        return status(words)
    return ask(words if name == "systemctl" else [name])


def ask(words: list[str]) -> int:
    """Through a relative path, because socket paths must be short."""
    os.chdir(f"{ROOT}/run/twin")
    with socket.socket(socket.AF_UNIX) as channel:
        channel.connect("init.sock")
        channel.sendall(json.dumps(words).encode() + b"\n")
        with channel.makefile("rb") as answers:
            answer = json.loads(answers.readline() or b'{"code": 1, "out": "", "err": "init is going down\\n"}')
    sys.stdout.write(answer["out"])
    sys.stderr.write(answer["err"])
    return int(answer["code"])


def journal(words: list[str]) -> int:
    """`-u UNIT`, and `-n LINES`."""
    unit = next((after for word, after in itertools.pairwise(words) if word in ("-u", "--unit")), "")
    lines = next((after for word, after in itertools.pairwise(words) if word in ("-n", "--lines")), "")
    folder = f"{ROOT}/var/log/journal"
    wanted = unit if "." in unit or not unit else f"{unit}.service"
    for file in sorted(os.listdir(folder)):  # noqa: PTH208
        if not wanted or file == f"{wanted}.log":
            with open(f"{folder}/{file}", errors="replace") as log:  # noqa: PTH123
                text = log.readlines()
            sys.stdout.writelines(text[-int(lines) :] if lines.isdigit() else text)
    return 0


def status(words: list[str]) -> int:
    """`cloud-init status [--wait]`: 0 when done, 1 with errors, as the real one does."""
    result = f"{ROOT}/run/cloud-init/result.json"
    while "--wait" in words and not os.path.exists(result):  # noqa: PTH110
        time.sleep(0.02)
    if not os.path.exists(result):  # noqa: PTH110
        sys.stdout.write("status: running\n")
        return 0
    with open(result) as file:  # noqa: PTH123
        errors = json.load(file)["v1"]["errors"]
    sys.stdout.write("status: error\n" if errors else "status: done\n")
    sys.stderr.writelines(f"{error}\n" for error in errors)
    return 1 if errors else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[0].rpartition("/")[2], sys.argv[1:]))
