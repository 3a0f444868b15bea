"""Decoding: the model's own head, by whichever way."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers as hf
from tiny_models import FAMILIES, fingers, relative, run_base, sequences, tiny

from actstore.errors import ModelError
from actstore.models import LanguageModel

HEADS = [name for name, (_, _, has_head, _) in FAMILIES.items() if has_head]


@pytest.mark.parametrize("family", HEADS)
def test_numpy_product_gives_the_logits_of_the_models_own_head(family):
    model = tiny(family)
    lm = LanguageModel(model)
    states = np.random.default_rng(0).normal(size=(9, lm.width)).astype(np.float32) * 3
    before = fingers(model)
    quick = lm.decode(states)
    assert lm._found.head._quick
    lm._found.head._quick = False
    assert relative(quick, lm.decode(states)) < 1e-4
    assert fingers(model) == before


@pytest.mark.parametrize(
    ("family", "change"),
    [
        ("gemma2", {"final_logit_softcapping": 2.0}),
        ("granite", {"logits_scaling": 7.0}),
        ("cohere", {"logit_scale": 0.25}),
    ],
)
def test_caps_and_scales_of_logits_are_honoured(family, change):
    model = tiny(family)
    plain = LanguageModel(model)
    ids = sequences(8)[0]
    states = plain.capture([ids], [np.arange(8)], {"resid": [3]})["resid"][0]
    changed = type(model)(type(model.config)(**{**model.config.to_dict(), **change}))
    changed.load_state_dict(model.state_dict())
    lm = LanguageModel(changed.eval())
    logits = lm.decode(states)
    assert relative(logits, run_base(changed, ids).logits[0].numpy()) < 1e-4
    assert relative(logits, plain.decode(states)) > 1e-2


def test_width_of_the_head_in_opt_350m_is_that_of_the_projection():
    lm = LanguageModel(tiny("opt_350m_shape"))
    assert (lm.width, lm.sites["final_norm"].width) == (32, 16)
    ids = sequences(5)[0]
    got = lm.capture([ids], [np.arange(5)], {"resid": [3], "final_norm": [0]})
    assert got["final_norm"].shape == (1, 5, 16)
    normed = lm.decode(got["final_norm"][0], normed=True)
    assert relative(normed, lm.decode(got["resid"][0])) < 1e-5


@pytest.mark.parametrize("kind", [hf.BertModel, hf.BertForSequenceClassification])
def test_models_without_a_vocabulary_head_refuse_to_decode(kind):
    lm = LanguageModel(kind(tiny("bert").config).eval(), name="mini")
    assert not lm.has_head
    with pytest.raises(ModelError, match="mini has no language-model head"):
        lm.decode(np.ones((1, 32), np.float32))


def test_a_model_with_several_outputs_still_gives_its_stream():
    lm = LanguageModel(hf.BertForPreTraining(tiny("bert").config).eval())
    assert not lm.has_head
    ids = sequences(4)[0]
    got = lm.capture([ids], [np.arange(4)], {"resid": [3]})["resid"][0]
    own = run_base(lm.model.bert, ids).last_hidden_state[0].numpy()
    assert relative(got, own) < 1e-5


@pytest.mark.parametrize("shape", [(32,), (2, 31), (1, 2, 32)])
def test_states_of_another_shape_are_refused(shape):
    lm = LanguageModel(tiny("gpt2"), name="mini")
    with pytest.raises(ModelError, match=r"expected \(n, 32\) for layer 3 of mini"):
        lm.decode(np.ones(shape, np.float32))


def test_no_rows_give_no_logits():
    assert LanguageModel(tiny("gpt2")).decode(np.empty((0, 32), np.float32)).shape == (0, 97)


def test_half_precision_states_and_strided_arrays_are_taken():
    lm = LanguageModel(tiny("gpt2"))
    states = np.random.default_rng(0).normal(size=(32, 6)).astype(np.float16).T
    expected = lm.decode(np.ascontiguousarray(states).astype(np.float32))
    assert np.array_equal(lm.decode(states), expected)


def test_two_threads_may_use_one_model():
    from concurrent.futures import ThreadPoolExecutor

    lm = LanguageModel(tiny("bert"))
    ids = sequences(8)[0]
    states = lm.capture([ids], [np.arange(8)], {"resid": [3]})["resid"][0]
    expected = lm.decode(states)

    def work(turn: int) -> bool:
        if turn % 2:
            again = lm.capture([ids], [np.arange(8)], {"resid": [3]})["resid"][0]
            return np.array_equal(again, states)
        return np.allclose(lm.decode(states), expected, atol=1e-5)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(40)))
    assert not torch.is_inference_mode_enabled()
