"""A store's whole life on an object store: a local S3 server that the test starts itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import actstore
from actstore.cli import main
from actstore.errors import MissingDependencyError, MissingStoreError, StoreError
from actstore.store import Share, resume_run

ROOT = Path(__file__).parent.parent
NAMES = {"model_name": "tiny", "corpus_name": "words"}
STORE = "s3://bucket/acts.zarr"

CHILD = """
import json, sys, time
import actstore
from actstore.models import LanguageModel

capture = LanguageModel.capture

def slow(self, *arguments, **options):
    time.sleep(0.2)
    return capture(self, *arguments, **options)

LanguageModel.capture = slow
model, text, store = sys.argv[1:]
actstore.extract(model, text, store, model_name="tiny", corpus_name="words", shard_rows=8,
                 progress=False)
"""


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    pytest.importorskip("obstore")
    server = pytest.importorskip("moto.server").ThreadedMotoServer(
        ip_address="127.0.0.1", port=0, verbose=False
    )
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty bucket, and the environment that leads to it."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "someone",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
    }.items():
        monkeypatch.setenv(name, value)
    for method, path in (("POST", "/moto-api/reset"), ("PUT", "/bucket")):
        urllib.request.urlopen(urllib.request.Request(endpoint + path, method=method)).close()
    return endpoint


@pytest.fixture
def sources(tmp_path: Path, tiny_gpt2: Any, tiny_tokenizer: Any) -> tuple[Path, Path]:
    """Model folder and text file."""
    tiny_gpt2.save_pretrained(tmp_path / "model")
    tiny_tokenizer.save_pretrained(tmp_path / "model")
    lines = [f"the cat {n} sat on mat {n * 7} and looked" for n in range(60)]
    (tmp_path / "text.txt").write_text("\n".join(lines))
    return tmp_path / "model", tmp_path / "text.txt"


def extracted(sources: tuple[Path, Path], store: Any, **options: Any) -> actstore.Run:
    return actstore.extract(str(sources[0]), sources[1], store, shard_rows=8, **NAMES, **options)


@pytest.mark.fault
def test_extract_kill_resume_verify_repair_rename_remove(
    s3: str, sources: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    local = extracted(sources, tmp_path / "local.zarr")
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, *map(str, sources), STORE],
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=dict(os.environ),
    )
    try:
        deadline = time.monotonic() + 120
        while samples(STORE) < 16:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.communicate()
    half = actstore.open(STORE)["tiny", "words"]
    assert 16 <= half.n_samples < 60
    assert half.verify() == []
    close(half.resid.values, local.resid.values[:, : half.n_samples])

    run = extracted(sources, STORE)
    assert run.state == "complete"
    close(run.resid.values, local.resid.values)
    assert run.samples.identical(local.samples)
    assert run.verify() == []

    backend = run.stored.backend
    chunk = bytearray(backend.get("tiny/words/resid/c.2.1.0") or b"")
    chunk[7] ^= 1
    backend.put("tiny/words/resid/c.2.1.0", bytes(chunk))
    backend.delete("tiny/words/resid/c.0.3.0")
    capsys.readouterr()
    assert main(["repair", *map(str, sources), STORE, "--json", "--quiet"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {(p["layer"], p["shard"]) for p in told["found"]} == {(2, 1), (0, 3)}
    assert told["left"] == []
    close(actstore.open(STORE)["tiny", "words"].resid.values, local.resid.values)

    assert main(["mv", STORE, "tiny/words", "small/others"]) == 0
    assert list(actstore.open(STORE)) == [("small", "others")]
    assert actstore.open(STORE)["small", "others"].verify() == []
    assert main(["rm", STORE, "small/others", "--yes"]) == 0
    assert len(actstore.open(STORE)) == 0
    assert backend.folders("small/others") == []


def samples(store: str) -> int:
    try:
        return actstore.open(store)["tiny", "words"].n_samples
    except StoreError:
        return 0


def close(got: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_ranks_share_a_run_without_locks(s3: str, sources: tuple[Path, Path]) -> None:
    """Rank 0 plans; each rank is trusted to be one process."""
    extracted(sources, STORE, rank=0, world_size=2)
    run = extracted(sources, STORE, rank=1, world_size=2)
    assert run.state == "complete"
    assert run.verify() == []
    writer = resume_run(
        STORE, "tiny", "words", key=run.info()["key"], wanted=run.sites, sites={},
        dtype=run.dtype, share=Share(1, 2),
    )  # fmt: skip
    assert writer is not None
    assert writer.pending() == []


def test_a_rank_that_waits_in_vain_for_the_plan_says_so(
    s3: str, sources: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actstore.extraction.planning.PLAN_PATIENCE", 0.0)
    with pytest.raises(StoreError, match=r"rank 1 of 2 waited .* start rank 0 too"):
        extracted(sources, STORE, rank=1, world_size=2)


def test_what_is_missing_is_said_in_one_line(
    s3: str, monkeypatch: pytest.MonkeyPatch, sources: tuple[Path, Path]
) -> None:
    with pytest.raises(MissingStoreError, match=r"^s3://bucket/acts.zarr is not an actstore store"):
        actstore.open(STORE)
    for action in (actstore.open, lambda store: extracted(sources, store)):
        with pytest.raises(StoreError, match=r"^s3://nowhere/s.zarr: there is no such bucket$"):
            action("s3://nowhere/s.zarr")
    with pytest.raises(StoreError, match=r"zz://x/s.zarr cannot be opened as a store: .*$"):
        actstore.open("zz://x/s.zarr")
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'actstore\[cloud\]'"):
        actstore.open(STORE)


def test_a_store_object_can_be_passed(endpoint: str, s3: str) -> None:
    from obstore.store import S3Store
    from zarr.storage import ObjectStore

    place = ObjectStore(
        S3Store(
            "bucket",
            prefix="own.zarr",
            endpoint=endpoint,
            client_options={"allow_http": True},
            access_key_id="someone",
            secret_access_key="secret",
            region="us-east-1",
        )
    )
    with pytest.raises(MissingStoreError, match="not an actstore store"):
        actstore.open(place)
