"""Failures that people met elsewhere (by their numbers in the list of cases), end to end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import actstore
from actstore.corpus import Sampling
from actstore.errors import NonFiniteError, StoreError

TEXT = [f"the cat {n} sat on mat {n * 7} and looked" for n in range(30)]
NAMES = {"model_name": "tiny", "corpus_name": "words", "shard_rows": 8}


def test_a_bfloat16_model_is_stored_exactly_as_it_is(
    tiny_llama: Any, tiny_tokenizer: Any, tmp_path: Path
) -> None:
    """CASES 18 and 19: nothing on the way is more or less than bfloat16."""
    model = actstore.load_model(tiny_llama.to(torch.bfloat16), tokenizer=tiny_tokenizer)
    run = actstore.extract(model, TEXT, tmp_path / "s", **NAMES)
    assert run.dtype == "bfloat16"
    assert run.resid.dtype == np.float32
    values = run.resid.values
    bits = values.view(np.uint32)
    assert np.all(bits & 0xFFFF == 0)
    ids, position = run.input_ids([3])[0], int(run.samples.position[3])
    assert run.samples.sequence[3] == 3
    alone = model.capture([ids], [np.array([position])], {"resid": [0, 1, 2, 3]})["resid"][:, 0]
    np.testing.assert_allclose(values[:, 3], alone, rtol=0.05, atol=0.05)
    whole = actstore.extract(model, TEXT, tmp_path / "t", dtype="float32", **NAMES)
    np.testing.assert_array_equal(whole.resid.values, values)


def test_rows_that_are_no_numbers_are_refused_by_site_and_sample(
    tiny_gpt2: Any, tiny_tokenizer: Any, tmp_path: Path
) -> None:
    """CASES 12: what was whole before stays, and nothing of the bad shard is there."""
    model = actstore.load_model(tiny_gpt2, tokenizer=tiny_tokenizer)
    capture = model.capture
    calls: list[int] = []

    def broken(*arguments: Any, **options: Any) -> Any:
        found = capture(*arguments, **options)
        calls.append(1)
        if len(calls) == 2:
            found["resid"][2, options["at"][3]] = np.nan
        return found

    model.capture = broken  # type: ignore[method-assign]
    with pytest.raises(NonFiniteError, match=r"resid layer 2: NaN .* in 1 of 8 rows \(samples \d+"):
        actstore.extract(model, TEXT, tmp_path / "s", **NAMES)
    run = actstore.open(tmp_path / "s")["tiny", "words"]
    assert run.state == "1 of 4 shards"
    assert np.isfinite(run.resid.values).all()


@pytest.mark.parametrize("positions", ["random", "every:3", "all"])
def test_what_was_asked_is_what_is_on_the_disk(
    positions: str, tiny_gpt2: Any, tiny_tokenizer: Any, tmp_path: Path
) -> None:
    """CASES 25, checked after opening again."""
    actstore.extract(
        tiny_gpt2, TEXT, tmp_path / "s", tokenizer=tiny_tokenizer, positions=positions, seed=3,
        **NAMES,
    )  # fmt: skip
    run = actstore.open(tmp_path / "s")["tiny", "words"]
    sampling = Sampling(**run.info()["key"]["sampling"])
    assert (sampling.positions, sampling.seed) == (positions, 3)
    for document in range(len(TEXT)):
        ids = np.array(tiny_tokenizer(TEXT[document])["input_ids"], np.int32)
        drawn = sampling.draw(document, ids, np.zeros(len(ids), bool))
        here = run.sel(document=document).samples
        np.testing.assert_array_equal(here.position, drawn)
        np.testing.assert_array_equal(here.token_id, ids[drawn])


@pytest.fixture
def unprivileged(tmp_path: Path) -> Iterator[None]:
    """No rights beyond those of the files; an administrator's are laid down for the test."""
    if os.geteuid() != 0:
        yield
        return
    for folder in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        folder.chmod(0o755)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def half(tiny_gpt2: Any, tiny_tokenizer: Any, tmp_path: Path) -> tuple[Any, Path]:
    """A model, and a store that only lets itself be read, with half of its run."""
    model = actstore.load_model(tiny_gpt2, tokenizer=tiny_tokenizer)
    actstore.extract(model, TEXT, tmp_path / "s", rank=0, world_size=2, **NAMES)
    for path in [tmp_path / "s", *(tmp_path / "s").rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    return model, tmp_path / "s"


@pytest.mark.fault
def test_a_read_only_folder_says_so_and_can_be_read(
    half: tuple[Any, Path], unprivileged: None
) -> None:
    model, store = half
    run = actstore.open(store)["tiny", "words"]
    assert run.verify() == []
    assert np.isfinite(run.resid.values).all()
    with pytest.raises(StoreError, match="permission denied"):
        actstore.extract(model, TEXT, store, **NAMES)
    with pytest.raises(StoreError, match="permission denied"):
        actstore.extract(model, TEXT, store, rank=1, world_size=2, **NAMES)
    with pytest.raises(StoreError, match="permission denied"):
        actstore.extract(model, TEXT, store, **{**NAMES, "corpus_name": "other"})
    with pytest.raises(StoreError, match="permission denied"):
        actstore.open(store).remove("tiny", "words")
    again = actstore.open(store)["tiny", "words"]
    assert again.n_samples == run.n_samples
