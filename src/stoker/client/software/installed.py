"""The packages of an interpreter, read from its folders: which module belongs to which, and where each came from."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from urllib.parse import unquote, urlsplit

from stoker.client.software.imports import module_files
from stoker.client.software.markers import Requirement, normal, parse
from stoker.client.software.packages import folders_of

_COMPILED = re.compile(rb"\.(so|pyd|dylib)(?:\.\d+)*,")
_INSIDE = ("", "src", "lib", "python")  # where a project's folder has its packages


@dataclass(frozen=True)
class Distribution:
    """One installed package. `folder` is that of its metadata, in `site`."""

    name: str  # normal
    version: str
    folder: Path
    site: Path

    @property
    def public(self) -> str:
        """Its version without a local part that only its index knows: `2.4.0+cpu` is `2.4.0` elsewhere."""
        return self.version.partition("+")[0]

    @cached_property
    def record(self) -> bytes:
        """The list of its files; empty if there is none."""
        for name in ("RECORD", "installed-files.txt", "SOURCES.txt"):
            with suppress(OSError):
                return (self.folder / name).read_bytes()
        return b""

    @cached_property
    def requires(self) -> list[Requirement]:
        from importlib.metadata import PathDistribution  # reads both kinds of metadata

        try:
            told = PathDistribution(self.folder).requires or []
        except (OSError, UnicodeDecodeError, ValueError):
            told = []
        return [one for text in told if (one := parse(text))]

    @cached_property
    def origin(self) -> dict[str, object]:
        """The content of `direct_url.json`; empty if it came from an index. Conda's packages name folders of their
        build machines, and need libraries of Conda's own: an index has packages that run without."""
        with suppress(OSError):
            if (self.folder / "INSTALLER").read_bytes().strip() == b"conda":
                return {}
        try:
            told = json.loads((self.folder / "direct_url.json").read_bytes())
        except (OSError, ValueError):
            return {}
        return told if isinstance(told, dict) else {}

    @property
    def project(self) -> Path | None:
        """The local folder that it is an editable install of."""
        info, url = self.origin.get("dir_info"), str(self.origin.get("url", ""))
        if not isinstance(info, dict) or not info.get("editable") or not url.startswith("file:"):
            return None
        return Path(unquote(urlsplit(url).path))

    @property
    def is_compiled(self) -> bool:
        return _COMPILED.search(self.record) is not None

    @property
    def size_bytes(self) -> int:
        sizes = (line.rpartition(b",")[2].strip() for line in self.record.splitlines())
        return sum(int(size) for size in sizes if size.isdigit())

    def holds(self, module: str) -> bool:
        """A dotted name is a module of this package, and not only in a folder that several packages share."""
        path = b"\n" + module.replace(".", "/").encode()
        if path + b"/" in self._lines or path + b".py," in self._lines:
            return True
        return (
            path + b"." in self._lines
            and re.search(re.escape(path) + rb"\.(?:[\w-]+\.)?(so|pyd),", self._lines) is not None
        )

    @cached_property
    def _lines(self) -> bytes:
        return b"\n" + self.record

    def commands(self) -> Iterator[str]:
        with suppress(OSError):
            text = (self.folder / "entry_points.txt").read_text(encoding="utf-8", errors="replace")
            section = re.search(r"\[console_scripts\](.*?)(?:\n\[|\Z)", text, re.S)
            yield from re.findall(r"^\s*([\w.-]+)\s*=", section[1] if section else "", re.M)

    def project_files(self, module: str) -> list[Path]:
        """Of an editable install: the files that importing the module runs."""
        if self.project is None:
            return []
        places = [*(self.project / one for one in _INSIDE), *self._named_places()]
        return next((found for place in places if (found := module_files(module, place))), [])

    def _named_places(self) -> Iterator[Path]:
        """Folders that the install itself names, one on each line of its `.pth` files."""
        for name in re.findall(rb"^([^/,\n]+\.pth),", self.record, re.M):
            with suppress(OSError):
                lines = (self.site / name.decode(errors="replace")).read_text(errors="replace").splitlines()
                yield from (Path(line.strip()) for line in lines if line.startswith("/"))


@dataclass(frozen=True)
class Installed:
    """All of an interpreter's."""

    by_name: dict[str, Distribution] = field(default_factory=dict)

    @classmethod
    def of(cls, python: str) -> Installed:
        found: dict[str, Distribution] = {}
        for site in folders_of(python):
            with suppress(OSError):
                for folder in sorted(site.iterdir()):
                    if folder.suffix in (".dist-info", ".egg-info"):
                        name, _, rest = folder.name.rpartition(".")[0].partition("-")
                        version = rest.partition("-py")[0]
                        found.setdefault(normal(name), Distribution(normal(name), version, folder, site))
        return cls(found)

    def owners(self, module: str) -> list[Distribution]:
        """The packages with this module. Several share names such as `google`: then those that contain the
        submodule."""
        top = module.partition(".")[0]
        namesake = self.by_name.get(normal(top))
        if namesake and namesake.holds(module):
            return [namesake]
        sharing = [one for one in self.by_name.values() if one.holds(top)]
        name = module
        while len(sharing) > 1 and "." in name:
            if inside := [one for one in sharing if one.holds(name)]:
                return inside
            name = name.rpartition(".")[0]
        return sharing or [one for one in self.by_name.values() if one.project_files(top)]

    def of_command(self, name: str) -> list[Distribution]:
        return [one for one in self.by_name.values() if name in one.commands()]
