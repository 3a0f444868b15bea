"""More documents for a run that exists: only they are computed, and nobody sees it half done."""

from __future__ import annotations

import filecmp
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import actstore
from actstore.errors import CorruptionError, KeyMismatchError, StoreError
from actstore.models import LanguageModel

TEXT = [f"the cat {n} sat on mat {n * 7} and looked" for n in range(60)]


@pytest.fixture
def extracted(tiny_gpt2: Any, tiny_tokenizer: Any) -> Any:
    model = actstore.load_model(tiny_gpt2, tokenizer=tiny_tokenizer, name="tiny")

    def run(store: Path, n: int, **options: Any) -> actstore.Run:
        names = {"corpus_name": "words", "shard_rows": 8}
        return actstore.extract(model, TEXT[:n], store, **{**names, **options})

    return run


def same_tree(a: Path, b: Path) -> bool:
    files = [sorted(p.relative_to(x) for p in x.rglob("*") if p.is_file()) for x in (a, b)]
    return files[0] == files[1] and not any(filecmp.cmpfiles(a, b, files[0], shallow=False)[1:])


@pytest.mark.parametrize("before", [20, 24, 3])
def test_a_grown_run_is_the_one_that_was_made_whole(
    before: int, extracted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CASES 36: behind a partly filled shard as behind a full one."""
    extracted(tmp_path / "whole", 60)
    extracted(tmp_path / "s", before)
    if before == 20:
        with pytest.raises(
            KeyMismatchError, match=r"the first 20 of these 60 documents: append=True"
        ):
            extracted(tmp_path / "s", 60)
    rows: list[int] = []
    capture = LanguageModel.capture

    def counted(self: Any, ids: Any, positions: Any, wanted: Any, **options: Any) -> Any:
        rows.append(sum(map(len, positions)))
        return capture(self, ids, positions, wanted, **options)

    monkeypatch.setattr(LanguageModel, "capture", counted)
    grown = extracted(tmp_path / "s", 60, append=True, shard_rows=None)
    # shard_rows stays what it was: 8, or the 3 rows there were.
    taken = before // grown.stored.record.shard_rows * grown.stored.record.shard_rows
    assert sum(rows) == 60 - taken
    assert list(actstore.open(tmp_path / "s")) == [("tiny", "words")]
    if before >= 8:
        assert same_tree(tmp_path / "s", tmp_path / "whole")
    whole = actstore.open(tmp_path / "whole")["tiny", "words"]
    np.testing.assert_allclose(grown.resid.values, whole.resid.values, rtol=1e-5, atol=1e-6)
    assert grown.samples.identical(whole.samples)
    assert grown.verify() == []
    rows.clear()
    assert extracted(tmp_path / "s", 60, append=True).state == "complete"
    assert rows == []


@pytest.mark.parametrize("moment", ["planning", "taking over", "computing", "swapping", "removing"])
def test_interrupted_and_gone_on_with_it_ends_the_same(
    moment: str, extracted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extracted(tmp_path / "whole", 60)
    old = extracted(tmp_path / "s", 20)
    values = old.resid.values
    place = {
        "planning": "actstore.store.builder.commit_record",
        "taking over": "actstore.store.journal.Journal.commit",
        "computing": "actstore.models.LanguageModel.capture",
        "swapping": "actstore.extraction.growing.finish_growing",
        "removing": "actstore.store.catalog.Store.remove",
    }[moment]

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(place, interrupted)
        with pytest.raises(KeyboardInterrupt):
            extracted(tmp_path / "s", 60, append=True)
    if moment not in ("swapping", "removing"):
        there = actstore.open(tmp_path / "s")["tiny", "words"]
        np.testing.assert_array_equal(there.resid.values, values)
    extracted(tmp_path / "s", 60, append=True)
    assert list(actstore.open(tmp_path / "s")) == [("tiny", "words")]
    assert same_tree(tmp_path / "s", tmp_path / "whole")


def test_a_reader_of_the_old_run_is_never_given_wrong_rows(extracted: Any, tmp_path: Path) -> None:
    old = extracted(tmp_path / "s", 20)
    values = old.resid.values
    again = actstore.open(tmp_path / "s")["tiny", "words"]
    late = actstore.open(tmp_path / "s")["tiny", "words"]
    assert again.samples.sizes["sample"] == 20
    extracted(tmp_path / "s", 60, append=True)
    np.testing.assert_array_equal(again.isel(sample=slice(0, 16)).resid.values, values[:, :16])
    for run in (again, late):
        with pytest.raises(CorruptionError, match=r"changed since it was opened.* open it again"):
            run.resid.compute()


def test_more_layers_come_along(extracted: Any, tmp_path: Path) -> None:
    extracted(tmp_path / "s", 20, layers=[0])
    extracted(tmp_path / "s", 20, layers=[2], sites=["resid", "mlp"])
    grown = extracted(tmp_path / "s", 60, layers=[3], append=True)
    assert grown.sites == {"resid": [0, 2, 3], "mlp": [2]}
    assert (grown.n_samples, grown.state, grown.verify()) == (60, "complete", [])


def test_what_cannot_grow_says_why(extracted: Any, tmp_path: Path) -> None:
    extracted(tmp_path / "s", 20, rank=0, world_size=2)
    with pytest.raises(StoreError, match=r"2 of 3 shards: complete it with the documents"):
        extracted(tmp_path / "s", 60, append=True)
    extracted(tmp_path / "s", 20)
    with pytest.raises(KeyMismatchError, match="without ranks or a client"):
        extracted(tmp_path / "s", 60, append=True, rank=0, world_size=2)
    for other in ({"seed": 1}, {"dtype": "float16"}):
        with pytest.raises(KeyMismatchError, match=next(iter(other))):
            extracted(tmp_path / "s", 60, append=True, **other)
    with pytest.raises(KeyMismatchError, match="corpus"):
        extracted(tmp_path / "s", 19, append=True)
    assert extracted(tmp_path / "s", 20, append=True).n_samples == 20
