"""Two runs side by side give the moments between them, whatever samples each holds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import actstore
from actstore.errors import GramError
from actstore.grams import align, gram
from actstore.store import create_run


@dataclass(frozen=True)
class Site:
    dim: str
    size: int
    width: int
    module: str = "h.*"


def stored(
    folder: Path, model: str, where: list[tuple[int, int]], *, width: int, dtype: str, shard: int
) -> actstore.Run:
    """A run with one sample at each (document, position)."""
    n = len(where)
    document, position = (np.array(values) for values in zip(*where, strict=True))
    builder = create_run(folder / "s.zarr", model, "text")
    coords = {
        "document": document.astype(np.int64),
        "position": position.astype(np.int32),
        "token_id": np.zeros(n, np.int32),
        "sequence": np.arange(n),
    }
    builder.append(coords, [np.zeros(9, np.int32)] * n, document)
    writer = builder.finish(
        key={"model": {"fingerprint": f"print of {model}"}},
        info={},
        sites={"resid": Site("layer", 2, width)},
        wanted={"resid": [0, 1]},
        dtype=dtype,
        shard_rows=shard,
    )
    values = np.random.default_rng(len(model)).standard_normal((2, n, width)).astype(dtype)
    with writer:
        for k in writer.pending():
            writer.write(k, {"resid": values[:, shard * k : shard * (k + 1)]})
    return writer.run


def rows(run: actstore.Run, layer: int) -> dict[tuple[int, int], np.ndarray]:
    where = zip(
        run.coordinate("document").tolist(), run.coordinate("position").tolist(), strict=True
    )
    return dict(zip(where, run.resid.sel(layer=layer).values.astype(np.float64), strict=True))


def test_two_models_on_the_samples_they_share(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    every = [(d, p) for d in range(30) for p in range(4)]
    ours, theirs = (
        [w for w, kept in zip(every, rng.random(120) < 0.7, strict=True) if kept] for _ in range(2)
    )
    a = stored(tmp_path, "small", ours, width=4, dtype="float16", shard=13)
    b = stored(tmp_path, "larger", theirs, width=6, dtype="float32", shard=17)
    both = align(a, b)
    shared = sorted(set(ours) & set(theirs))
    assert both.n_samples == len(shared)
    assert repr(both).startswith("<AlignedRuns small/text beside larger/text: small:resid, larger")
    found = gram(both)
    for i, j in [(0, 0), (0, 1), (1, 1)]:
        x = np.stack([rows(a, i)[w] for w in shared])
        y = np.stack([rows(b, j)[w] for w in shared])
        at = ("small:resid", i), ("larger:resid", j)
        np.testing.assert_allclose(found.cross(*at), x.T @ y, rtol=1e-11, atol=1e-12)
        fitted = actstore.fit(both, pairs=[at])[at]
        expected = np.linalg.lstsq(x, y, rcond=None)[0]
        np.testing.assert_allclose(fitted.matrix, expected, rtol=1e-8, atol=1e-10)
    assert found.provenance["model_fingerprint"] == "print of small+print of larger"
    kept = gram(align(a, b))
    np.testing.assert_array_equal(kept.cross(*at), found.cross(*at))
    assert sum(part.n for part in gram(both, parts=3).parts) == len(shared)


def test_positions_shifted_inside_a_document(tmp_path: Path) -> None:
    where = [(d, p) for d in range(12) for p in range(1 + d % 5)]
    run = stored(tmp_path, "tiny", where, width=3, dtype="float32", shard=7)
    for shift in (1, 2, -1):
        both = align(run, run, shift=shift)
        kept = [(d, p) for d, p in where if (d, p + shift) in where]
        assert both.n_samples == len(kept)
        x = np.stack([rows(run, 1)[w] for w in kept])
        y = np.stack([rows(run, 0)[d, p + shift] for d, p in kept])
        at = ("t:resid", 1), (f"t{shift:+d}:resid", 0)
        np.testing.assert_allclose(gram(both).cross(*at), x.T @ y, rtol=1e-11, atol=1e-12)


def test_runs_that_do_not_align_are_said(tmp_path: Path) -> None:
    options = {"width": 3, "dtype": "float32", "shard": 7}
    a = stored(tmp_path, "a", [(0, 1), (1, 1)], **options)
    b = stored(tmp_path, "b", [(0, 2), (1, 2)], **options)
    c = stored(tmp_path, "c", [(1, 1), (0, 1)], **options)
    d = stored(tmp_path, "d", [(1, 1), (1, 1)], **options)
    for others, message, more in (
        ((a, b), "no samples in common by document, position", {}),
        ((a, b), "no samples in common by document, position with shift 2", {"shift": 2}),
        ((a, c), "stand in different orders", {}),
        ((a, d), r"do not tell the samples of d/text apart: give by=\('sequence'", {}),
        ((a, a), r"both runs would be called 'text': give names=", {}),
        ((a, b), "shift=1 moves positions, but by=", {"shift": 1, "by": ("document",)}),
    ):
        with pytest.raises(GramError, match=message):
            align(*others, **more)
    assert align(a, b, shift=1).n_samples == 2
