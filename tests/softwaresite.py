"""A virtual environment made of files alone, with whatever packages a test wants in it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class Site:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / "lib" / "python3.11" / "site-packages"
        self.folder.mkdir(parents=True)
        (root / "bin").mkdir()
        (root / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.11.4\n")

    @property
    def python(self) -> str:
        return str(self.root / "bin" / "python")

    def install(
        self,
        name: str,
        version: str = "1.0",
        files: Mapping[str, str] | None = None,
        requires: Sequence[str] = (),
        origin: Mapping[str, Any] | None = None,
        commands: Sequence[str] = (),
    ) -> None:
        info = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        (info / "METADATA").write_text("\n".join([*lines, *(f"Requires-Dist: {one}" for one in requires)]) + "\n")
        (info / "WHEEL").write_text("Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        if origin is not None:
            (info / "direct_url.json").write_text(json.dumps(origin))
        if commands:
            listed = "".join(f"{one} = {name}:main\n" for one in commands)
            (info / "entry_points.txt").write_text(f"[console_scripts]\n{listed}")
        rows = []
        for path, text in (files if files is not None else {f"{name.replace('-', '_')}/__init__.py": ""}).items():
            target = self.folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
            rows.append(f"{path},sha256=x,{len(text)}")
        rows += [f"{info.name}/{one.name},," for one in sorted(info.iterdir())]
        (info / "RECORD").write_text("\n".join([*rows, f"{info.name}/RECORD,,"]) + "\n")
