"""A hub that does not answer is asked once; what is in the local cache loads without it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
CHILD = """
import json, sys
from actstore.errors import ModelError
from actstore.models import load_model
try:
    print(json.dumps(repr(load_model(sys.argv[1]))))
except ModelError as error:
    print(json.dumps(str(error)))
"""


@pytest.fixture
def hub() -> Iterator[tuple[str, list[str]]]:
    """Address of a server that hangs up on everybody, and what it was asked for."""
    calls: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            while True:
                try:
                    caller, _ = server.accept()
                except OSError:
                    return
                with caller:
                    calls.append(caller.recv(1000).decode(errors="replace").partition("\r")[0])

        thread = threading.Thread(target=hang_up, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", calls


def loaded(model: str, endpoint: str, home: Path) -> str:
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(home)}
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_CACHE"):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, model],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={**environment, "OMP_NUM_THREADS": "1"},
    )
    return json.loads(done.stdout)


def test_a_mistyped_id_without_a_network_is_asked_for_once(
    hub: tuple[str, list[str]], tmp_path: Path
) -> None:
    endpoint, calls = hub
    line = loaded("no-such-owner/no-such-model", endpoint, tmp_path)
    assert line.startswith("no-such-owner/no-such-model cannot be loaded: it is no folder here")
    assert "is the id right?" in line
    assert len([call for call in calls if "no-such-model" in call]) == 1


def test_what_is_cached_loads_without_the_hub(
    hub: tuple[str, list[str]], tmp_path: Path, tiny_gpt2: Any, tiny_tokenizer: Any
) -> None:
    endpoint, calls = hub
    there = tmp_path / "hub/models--some-owner--tiny"
    commit = "a" * 40
    tiny_gpt2.save_pretrained(tmp_path / "model")
    tiny_tokenizer.save_pretrained(tmp_path / "model")
    shutil.copytree(tmp_path / "model", there / "snapshots" / commit)
    (there / "refs").mkdir()
    (there / "refs/main").write_text(commit)
    assert loaded("some-owner/tiny", endpoint, tmp_path).startswith("<LanguageModel tiny: GPT2")
    assert len([call for call in calls if "tiny" in call]) == 1
