"""The example's autoencoder keeps its k largest features, and is judged on all rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from store_like import memory_run

from examples import sae


def test_codes_are_the_k_largest_of_each_row():
    torch.manual_seed(0)
    model = sae.TopK(width=6, features=20, k=3)
    with torch.no_grad():
        model.bias += torch.randn(20)
        model.centre += torch.randn(6)
    x = torch.randn(15, 6)
    rebuilt, codes = model(x)
    before = ((x - model.centre) @ model.encoder + model.bias).detach().numpy()
    for row, code in zip(before, codes.detach().numpy(), strict=True):
        kept = sorted(range(20), key=lambda feature: -row[feature])[:3]
        expected = [max(row[feature], 0) if feature in kept else 0 for feature in range(20)]
        np.testing.assert_allclose(code, expected, rtol=1e-6)
    expected = codes @ model.decoder + model.centre
    torch.testing.assert_close(rebuilt, expected)


def test_evaluation_equals_numpy_on_all_rows_at_once(tmp_path):
    torch.manual_seed(1)
    rows = np.random.default_rng(0).normal(size=(90, 6)).astype(np.float32) * 3 + 5
    model = sae.TopK(width=6, features=12, k=2)
    mean, scale = torch.full((6,), 4.0), 2.5
    found = sae.evaluate(model, memory_run([rows]), 0, mean, scale)
    x = (torch.tensor(rows) - mean) / scale
    with torch.no_grad():
        rebuilt, codes = model(x)
    centred = (x - x.mean(0)).square().sum()
    assert found["FVU"] == pytest.approx(float((rebuilt - x).square().sum() / centred), rel=1e-4)
    assert found["L0"] == pytest.approx(float((codes > 0).sum(1).float().mean()))
    assert found["dead"] == pytest.approx(float((~(codes > 0).any(0)).float().mean()))

    curves = {"step": [1.0, 2.0], "FVU": [1.0, 0.5], "L0": [2.0, 2.0], "dead": [0.0, 0.1]}
    sae.draw(curves, found, tmp_path / "s.svg")
    assert "held-out articles" in (tmp_path / "s.svg").read_text("utf-8")
