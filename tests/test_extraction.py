"""Extraction end to end on tiny models: the right rows, and nothing lost or done twice."""

from __future__ import annotations

import filecmp
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import actstore
from actstore.errors import (
    ActstoreError,
    DtypeOverflowError,
    KeyMismatchError,
    ModelError,
    SamplingError,
    SiteError,
)
from actstore.models import LanguageModel

ROOT = Path(__file__).parent.parent
WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "and",
    "saw",
    "dog",
    "run",
    "over",
    "hill",
    "in",
    "rain",
]


def sentences(count: int, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(1, 14))) for _ in range(count)]


def alone(model: Any, ids: np.ndarray) -> np.ndarray:
    """All layers at all positions of a text run by itself: (L + 1, length, width)."""
    seen: list[torch.Tensor] = []
    handles = [
        block.register_forward_hook(
            lambda _m, _a, out: seen.append((out if torch.is_tensor(out) else out[0]).clone())
        )
        for block in _blocks(model)
    ]
    with torch.no_grad():
        out = model(torch.tensor(ids)[None].long(), output_hidden_states=True)
    for handle in handles:
        handle.remove()
    states = [out.hidden_states[0], *seen]
    return np.stack([state[0].numpy() for state in states])


def _blocks(model: Any) -> Any:
    for path in ("transformer.h", "model.layers", "bert.encoder.layer", "encoder.layer"):
        found = model
        for part in path.split("."):
            found = getattr(found, part, None)
            if found is None:
                break
        else:
            return found
    raise AssertionError("no blocks")


@pytest.mark.parametrize("positions", ["random", "all", "last"])
@pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
def test_every_row_equals_the_text_run_alone(
    family: str, positions: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue(f"tiny_{family}")
    tokenizer = request.getfixturevalue("bert_tokenizer" if family == "bert" else "tiny_tokenizer")
    run = actstore.extract(
        model,
        sentences(23),
        tmp_path / "s.zarr",
        tokenizer=tokenizer,
        positions=positions,
        shard_rows=8,
        batch_tokens=40,
        model_name=family,
        corpus_name="words",
    )
    samples, values = run.samples, run.resid.values
    ids = run.input_ids(samples.sequence.values)
    assert values.shape == (_n_blocks(model) + 1, run.n_samples, 32)
    assert run.resid.dtype == np.float32
    previous, states = -1, np.empty(0)
    for row in range(run.n_samples):
        position = int(samples.position[row])
        if samples.sequence[row] != previous:
            previous, states = int(samples.sequence[row]), alone(model, ids[row])
        np.testing.assert_allclose(values[:, row], states[:, position], rtol=2e-5, atol=2e-5)
        assert samples.token_id[row] == ids[row][position]
        if position + 1 < len(ids[row]):
            assert samples.target_id[row] == ids[row][position + 1]
    special = {tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.bos_token_id}
    eligible = [[p for p, one in enumerate(seq) if one not in special] for seq in ids]
    drawn = list(
        zip(samples.document.values.tolist(), samples.position.values.tolist(), strict=True)
    )
    if positions == "last":
        assert [p for _, p in drawn] == [e[-1] for e in eligible]
    elif positions == "all":
        by_document = {d: e for (d, _), e in zip(drawn, eligible, strict=True)}
        assert drawn == [(d, p) for d, e in by_document.items() for p in e]
    else:
        assert len(drawn) == 23
        assert all(p in e for (_, p), e in zip(drawn, eligible, strict=True))


def _n_blocks(model: Any) -> int:
    return len(_blocks(model))


def extract_tiny(model: Any, tokenizer: Any, store: Path, **options: Any) -> actstore.Run:
    return actstore.extract(
        model,
        options.pop("corpus", sentences(50)),
        store,
        tokenizer=tokenizer,
        model_name="tiny",
        corpus_name="words",
        shard_rows=options.pop("shard_rows", 8),
        **options,
    )


@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(batch_tokens=st.integers(1, 300), shard_rows=st.integers(1, 60), seed=st.integers(0, 3))
def test_batches_and_shards_do_not_change_what_is_stored(
    batch_tokens: int,
    shard_rows: int,
    seed: int,
    tiny_gpt2: Any,
    tiny_tokenizer: Any,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    tmp_path = tmp_path_factory.mktemp("stores")
    whole = extract_tiny(tiny_gpt2, tiny_tokenizer, tmp_path / "a", shard_rows=64, seed=seed)
    cut = extract_tiny(
        tiny_gpt2,
        tiny_tokenizer,
        tmp_path / "b",
        shard_rows=shard_rows,
        batch_tokens=batch_tokens,
        seed=seed,
    )
    assert cut.samples.equals(whole.samples)
    np.testing.assert_allclose(cut.resid.values, whole.resid.values, rtol=1e-5, atol=1e-5)


def test_documents_that_bring_their_ids_need_no_tokenizer(tiny_gpt2: Any, tmp_path: Path) -> None:
    documents = [actstore.Document(input_ids=[1, 2, 3, 4, 5]), actstore.Document(input_ids=[9, 8])]
    options = {"tokenizer": False, "model_name": "t", "corpus_name": "ids"}
    run = actstore.extract(tiny_gpt2, documents, tmp_path / "s", positions="all", **options)
    assert run.samples.token_id.values.tolist() == [1, 2, 3, 4, 5, 9, 8]
    np.testing.assert_allclose(
        run.resid.values[:, 5:], alone(tiny_gpt2, np.array([9, 8])), rtol=2e-5, atol=2e-5
    )
    with pytest.raises(SamplingError, match="no tokenizer"):
        extract_tiny(tiny_gpt2, None, tmp_path / "s")


def test_a_complete_run_is_not_computed_again(
    tiny_gpt2: Any, tiny_tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = extract_tiny(tiny_gpt2, tiny_tokenizer, tmp_path / "s")

    def forbidden(*_: Any, **__: Any) -> None:
        raise AssertionError("a forward pass for a run that is complete")

    monkeypatch.setattr(LanguageModel, "capture", forbidden)
    second = extract_tiny(tiny_gpt2, tiny_tokenizer, tmp_path / "s")
    assert second.resid.identical(first.resid)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seed": 1}, "seed"),
        ({"positions": "last"}, "positions"),
        ({"corpus": sentences(50, seed=1)}, "corpus"),
        ({"dtype": "float16"}, "dtype"),
        ({"max_length": 3}, "max_length"),
    ],
)
def test_another_key_under_the_same_name_is_refused(
    change: dict[str, Any], said: str, tiny_gpt2: Any, tiny_tokenizer: Any, tmp_path: Path
) -> None:
    run = extract_tiny(tiny_gpt2, tiny_tokenizer, tmp_path / "s")
    before = run.resid.values
    with pytest.raises(KeyMismatchError, match=said):
        extract_tiny(tiny_gpt2, tiny_tokenizer, tmp_path / "s", **change)
    np.testing.assert_array_equal(actstore.open(tmp_path / "s")["tiny", "words"].resid, before)


def test_other_weights_under_the_same_name_are_refused(
    tiny_gpt2: Any, tiny_tokenizer: Any, tmp_path: Path
) -> None:
    extract_tiny(tiny_gpt2, tiny_tokenizer, tmp_path / "s")
    with torch.no_grad():
        next(tiny_gpt2.parameters())[0, 0] += 1
    with pytest.raises(KeyMismatchError, match="fingerprint"):
        extract_tiny(tiny_gpt2, tiny_tokenizer, tmp_path / "s")


def test_layers_can_be_added_to_a_run(tiny_gpt2: Any, tiny_tokenizer: Any, tmp_path: Path) -> None:
    few = extract_tiny(tiny_gpt2, tiny_tokenizer, tmp_path / "s", layers=[0, -1])
    assert few.resid.layer.values.tolist() == [0, 3]
    more = extract_tiny(tiny_gpt2, tiny_tokenizer, tmp_path / "s", layers=[1, 3])
    assert more.resid.layer.values.tolist() == [0, 1, 3]
    whole = extract_tiny(tiny_gpt2, tiny_tokenizer, tmp_path / "t")
    np.testing.assert_allclose(more.resid, whole.resid.sel(layer=[0, 1, 3]), rtol=1e-5, atol=1e-5)
    assert more.verify() == []


def test_two_corpora_and_two_models_in_one_store(
    tiny_gpt2: Any, tiny_llama: Any, tiny_tokenizer: Any, tmp_path: Path
) -> None:
    for name, model in (("gpt2", tiny_gpt2), ("llama", tiny_llama)):
        for corpus in ("one", "two"):
            actstore.extract(
                model,
                sentences(9, seed=len(corpus)),
                tmp_path / "s",
                tokenizer=tiny_tokenizer,
                model_name=name,
                corpus_name=corpus,
            )
    store = actstore.open(tmp_path / "s")
    assert sorted(store) == [(m, c) for m in ("gpt2", "llama") for c in ("one", "two")]
    assert all(run.state == "complete" and run.n_samples == 9 for run in store.values())


def test_an_activation_float16_cannot_hold_is_an_error(
    tiny_gpt2: Any, tiny_tokenizer: Any, tmp_path: Path
) -> None:
    with torch.no_grad():
        _blocks(tiny_gpt2)[1].mlp.c_proj.bias[5] = 1e6
    with pytest.raises(DtypeOverflowError, match=r"resid.*layer 2.*1e\+06"):
        extract_tiny(tiny_gpt2, tiny_tokenizer, tmp_path / "s", dtype="float16")
    exact = extract_tiny(tiny_gpt2, tiny_tokenizer, tmp_path / "t", dtype="bfloat16")
    assert np.isfinite(exact.resid.values).all()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"layers": [13]}, SiteError),
        ({"sites": ["nonsense"]}, SiteError),
        ({"positions": "nonsense"}, SamplingError),
        ({"bos": "<no-such-token>"}, SamplingError),
        ({"dtype": "int4"}, ModelError),
        ({"corpus": []}, ActstoreError),
        ({"corpus": ["", ""]}, ActstoreError),
        ({"corpus": ["cat " * 99]}, SamplingError),
    ],
)
def test_what_is_refused_leaves_nothing_behind(
    options: dict[str, Any], error: type, tiny_gpt2: Any, tiny_tokenizer: Any, tmp_path: Path
) -> None:
    with pytest.raises(error):
        extract_tiny(tiny_gpt2, tiny_tokenizer, tmp_path / "s", **options)
    if (tmp_path / "s").exists():
        assert list(actstore.open(tmp_path / "s")) == []


CHILD = """
import json, resource, signal, sys, time
import actstore
from actstore.models import LanguageModel

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where a shell began it with &
job = json.loads(sys.argv[1])
if job["pause"]:
    capture = LanguageModel.capture

    def slow(self, *arguments, **options):
        time.sleep(job["pause"])
        return capture(self, *arguments, **options)

    LanguageModel.capture = slow
corpus = [line.strip() for line in open(job["text"])] * job["repeat"]
labels = {"model_name": "tiny", "corpus_name": "words"}
actstore.extract(job["model"], corpus, job["store"], **labels, **job["options"])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.fixture
def child(tmp_path: Path, tiny_gpt2: Any, tiny_tokenizer: Any) -> Iterator[Any]:
    """Start an extraction in a process of its own."""
    tiny_gpt2.save_pretrained(tmp_path / "model")
    tiny_tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "text.txt").write_text("\n".join(sentences(80)))
    processes: list[subprocess.Popen[str]] = []

    def start(
        store: Path, pause: float = 0.0, repeat: int = 1, **options: Any
    ) -> subprocess.Popen[str]:
        job = {
            "model": str(tmp_path / "model"),
            "text": str(tmp_path / "text.txt"),
            "store": str(store),
            "pause": pause,
            "repeat": repeat,
            "options": {"shard_rows": 8, **options},
        }
        process = subprocess.Popen(
            [sys.executable, "-c", CHILD, json.dumps(job)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def committed(store: Path) -> int:
    return len(list((store / "tiny" / "words" / "journal" / "resid").glob("c.0.*.0")))


def same_tree(a: Path, b: Path) -> bool:
    files = [sorted(p.relative_to(x) for p in x.rglob("*") if p.is_file()) for x in (a, b)]
    return files[0] == files[1] and not filecmp.cmpfiles(a, b, files[0], shallow=False)[1]


@pytest.mark.fault
@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGINT])
def test_killed_and_resumed_equals_uninterrupted_byte_for_byte(
    signal_number: signal.Signals, child: Any, tmp_path: Path
) -> None:
    whole, killed = tmp_path / "whole.zarr", tmp_path / "killed.zarr"
    out, err = child(whole).communicate(timeout=120)
    assert out, err
    for shards in (2, 5):
        process = child(killed, pause=0.3)
        deadline = time.monotonic() + 120
        while committed(killed) < shards:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal_number)
        process.wait(60)
        assert process.returncode != 0
        half = actstore.open(killed)["tiny", "words"]
        assert half.state != "complete"
        assert 8 * shards <= half.n_samples < 80
        reference = actstore.open(whole)["tiny", "words"]
        np.testing.assert_array_equal(
            half.resid.values, reference.resid.values[:, : half.n_samples]
        )
    done, err = child(killed).communicate(timeout=120)
    assert done, err
    assert actstore.open(killed)["tiny", "words"].state == "complete"
    assert same_tree(whole, killed)


@pytest.mark.fault
def test_a_second_writer_is_refused(
    child: Any, tmp_path: Path, tiny_gpt2: Any, tiny_tokenizer: Any
) -> None:
    store = tmp_path / "s.zarr"
    process = child(store, pause=60)
    while not (store / "tiny" / "words" / "journal").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    _, err = child(store).communicate(timeout=120)
    assert "LockedError" in err
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    out, err = child(store).communicate(timeout=120)
    assert out, err
    assert actstore.open(store)["tiny", "words"].verify() == []


@pytest.mark.fault
def test_peak_memory_does_not_grow_with_the_corpus(child: Any, tmp_path: Path) -> None:
    peaks, rows = {}, {}
    for repeat in (12, 192):
        store = tmp_path / f"{repeat}.zarr"
        options = {"positions": "all", "shard_rows": 1024, "batch_tokens": 20_000}
        out, err = child(store, repeat=repeat, **options).communicate(timeout=250)
        assert out, err
        peaks[repeat] = int(out.split()[-1]) / 1024
        run = actstore.open(store)["tiny", "words"]
        rows[repeat] = run.nbytes / 2**20
    # 16 times the rows add far more to the disk than they may add to the memory.
    assert rows[192] - rows[12] > 100
    assert peaks[192] - peaks[12] < 25, (peaks, rows)
