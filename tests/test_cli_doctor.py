"""``actstore doctor`` tells what is there, and ``completion`` completes in a real shell."""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

from actstore.cli import health, main


@pytest.fixture
def found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["doctor", "--disk", str(tmp_path), "--json"]) == 0
    assert list(tmp_path.iterdir()) == []
    return json.loads(capsys.readouterr().out)


def test_doctor_tells_versions_devices_and_speeds(found: dict[str, Any], tmp_path: Path) -> None:
    assert found["packages"]["zarr"] == version("zarr")
    assert found["packages"]["torch"] == version("torch")
    assert set(found["extras"]) == {"plots", "cluster", "cloud", "demo", "probes"}
    assert found["devices"][0] == "cpu"
    assert found["products"]["float32"] > 1
    assert found["disk"]["folder"] == str(tmp_path.resolve())
    assert found["disk"]["write"] > 1
    assert found["disk"]["read"] > 1
    assert found["problems"] == []


def test_doctor_names_what_is_missing_or_too_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def other(name: str) -> str:
        if name in ("matplotlib", "dask"):
            raise PackageNotFoundError(name)
        return "0.0.1" if name == "xarray" else version(name)

    monkeypatch.setattr(health, "version", other)
    assert main(["doctor", "--disk", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "problem: dask is missing" in out
    assert "problem: xarray 0.0.1 is too old; pip install --upgrade xarray" in out
    assert "missing: matplotlib  (pip install 'actstore[plots]')" in out


def test_doctor_refuses_a_folder_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--disk", str(tmp_path / "absent")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "absent cannot be measured: No such file or directory" in line


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("words", "expected"),
    [(["extr"], ["extract"]), (["fit", "--hold"], ["--holdout"]), (["completion", "z"], ["zsh"])],
)
def test_bash_completes(
    words: list[str],
    expected: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["completion", "bash"]) == 0
    script = tmp_path / "actstore.bash"
    script.write_text(capsys.readouterr().out)
    lines = (
        f"source {script}; COMP_WORDS=(actstore {' '.join(words)}); COMP_CWORD={len(words)}; "
        '_shtab_actstore; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", lines], capture_output=True, text=True, check=True)
    assert done.stdout.split() == expected


def test_the_last_line_of_doctor_agrees_with_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def last_line(code: int) -> str:
        assert main(["doctor", "--disk", str(tmp_path)]) == code
        return capsys.readouterr().out.splitlines()[-1]

    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert last_line(0) == "no problems found"
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    assert last_line(0) == "no problems found, 1 hint for better speed"
    told = version
    monkeypatch.setattr(health, "version", lambda n: "0.0.1" if n == "xarray" else told(n))
    assert last_line(1) == "1 problem found, 1 hint for better speed"
