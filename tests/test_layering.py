"""The rooms import one way, and opening a store loads neither torch nor transformers."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# Each room may import those named after it, and nothing else of the project.
ALLOWED = {
    "errors": set(),
    "wording": set(),
    "corpus": {"errors", "wording"},
    "models": {"errors", "wording"},
    "store": {"errors", "wording"},
    "grams": {"errors", "wording", "store"},
    "fitting": {"errors", "wording", "store", "grams"},
    "extraction": {"errors", "wording", "corpus", "models", "store", "grams"},
}


def _project_imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
    return {name for name in found if name.split(".")[0] in ("actstore", "analysis")}


def _files(room: str) -> list[Path]:
    folder = ROOT / "actstore" / room
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]


@pytest.mark.parametrize("room", ALLOWED)
def test_a_room_imports_only_the_rooms_before_it(room: str) -> None:
    files = _files(room)
    assert files
    for path in files:
        for name in _project_imports(path):
            parts = name.split(".")
            assert parts[0] == "actstore", f"{path} imports {name}"
            if len(parts) == 1:
                continue  # `from actstore import __version__`
            assert parts[1] in ALLOWED[room] | {room}, f"{path} imports {name}"


def test_every_room_is_listed() -> None:
    rooms = {
        path.name.removesuffix(".py")
        for path in (ROOT / "actstore").iterdir()
        if (path.is_dir() and (path / "__init__.py").exists()) or path.suffix == ".py"
    }
    assert rooms - {"__init__", "__main__", "cli"} == set(ALLOWED)


def test_importing_and_opening_loads_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys, actstore, actstore.cli, actstore.grams, actstore.fitting\n"
        "try:\n    actstore.open(sys.argv[1])\n"
        "except actstore.errors.StoreError: pass\n"
        "else: raise SystemExit('opened what is not there')\n"
        "print([m for m in ('torch', 'transformers') if m in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "none.zarr")],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert done.stdout.strip() == "[]"
