"""Paths in a machine. In one without isolation, its root is a folder of the host."""

from __future__ import annotations

from pathlib import Path

UNIT_FOLDERS = (
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
)
START_AT_BOOT = "/etc/systemd/system"
SOCKET_FOLDER = "/run/twin"
SOCKET = "init.sock"


class GuestFolders:
    def __init__(self, root: str = "") -> None:
        self.root = root.rstrip("/")

    def __call__(self, path: str) -> str:
        """The path as this process reaches it; one below the root is unchanged."""
        inside = self.root and (path == self.root or path.startswith(f"{self.root}/"))
        return path if inside else f"{self.root}{path}"

    def path(self, path: str) -> Path:
        return Path(self(path))

    def unit_file(self, name: str) -> Path:
        for folder in UNIT_FOLDERS:
            found = self.path(folder) / name
            if found.is_file():
                return found
        raise FileNotFoundError(name)

    def enabled(self) -> list[str]:
        """Units that some target wants, by the links in `*.wants`."""
        return sorted({link.name for link in self.path(START_AT_BOOT).glob("*.wants/*.service")})

    def journal(self, unit: str) -> Path:
        return self.path("/var/log/journal") / f"{unit}.log"
