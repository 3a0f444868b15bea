"""`logits` is `decode` with gradients: the model's own, by finite differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import actstore
from actstore.errors import ModelError


@pytest.mark.parametrize("which", ["tiny_gpt2", "tiny_llama", "tiny_bert"])
def test_same_as_decode_and_gradients_flow(which, request):
    raw = request.getfixturevalue(which).train()
    model = actstore.load_model(raw, name="tiny")
    hidden = torch.randn(5, 32, requires_grad=True)
    logits = model.logits(hidden)
    np.testing.assert_allclose(
        logits.detach().numpy(), model.decode(hidden.detach().numpy()), rtol=1e-4, atol=1e-5
    )
    aim = torch.randn_like(logits)
    (gradient,) = torch.autograd.grad((logits * aim).sum(), [hidden])
    step = torch.zeros_like(hidden)
    step[3, 7] = 1e-2
    with torch.no_grad():
        ahead = (model.logits(hidden + step) * aim).sum()
        behind = (model.logits(hidden - step) * aim).sum()
    assert float((ahead - behind) / 2e-2) == pytest.approx(float(gradient[3, 7]), rel=2e-2)
    assert all(weight.grad is None for weight in raw.parameters())
    assert raw.training


def test_refusals(tiny_gpt2):
    model = actstore.load_model(tiny_gpt2, name="tiny")
    with pytest.raises(ModelError, match=r"\(n, 32\)"):
        model.logits(torch.zeros(3, 31))
    with pytest.raises(ModelError, match="no language-model head"):
        actstore.load_model(tiny_gpt2.transformer, name="bare").logits(torch.zeros(3, 32))


def test_holding_a_model_twice_leaves_it_as_it_was(tiny_gpt2):
    raw = tiny_gpt2.train()
    raw.transformer.h[1].eval()
    before = [module.training for module in raw.modules()]
    model = actstore.load_model(raw, name="tiny")

    def fail():
        with model.exclusive():
            assert torch.is_inference_mode_enabled()
            raise ZeroDivisionError

    for _ in range(2):
        with model.exclusive():
            with pytest.raises(ZeroDivisionError):
                fail()
            assert torch.is_inference_mode_enabled()
            assert not any(module.training for module in raw.modules())
            model.decode(np.zeros((1, 32), np.float32))
            assert not any(module.training for module in raw.modules())
        assert [module.training for module in raw.modules()] == before
        assert not torch.is_inference_mode_enabled()
