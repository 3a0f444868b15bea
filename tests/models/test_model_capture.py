"""Which rows come out, what runs to get them, and how the model is left."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import every_position, fingers, relative, run_base, sequences, tiny

from actstore.errors import ModelError
from actstore.models import LanguageModel

MODELS = {family: LanguageModel(tiny(family)) for family in ("gpt2", "bert", "roberta", "albert")}


@st.composite
def batches(draw):
    lengths = draw(st.lists(st.integers(1, 12), min_size=1, max_size=5))
    batch = sequences(*lengths, seed=draw(st.integers(0, 99)))
    places = [
        np.array(draw(st.lists(st.integers(0, n - 1), max_size=4)), dtype=np.int32) for n in lengths
    ]
    return batch, places


@settings(max_examples=15, deadline=None)
@given(family=st.sampled_from(sorted(MODELS)), drawn=batches())
def test_any_positions_of_any_batch_are_rows_of_the_sequences_run_alone(family, drawn):
    lm = MODELS[family]
    batch, places = drawn
    got = lm.capture(batch, places, {"resid": [0, 2, 3]})["resid"]
    assert got.shape == (3, sum(map(len, places)), 32)
    assert got.dtype == np.float32
    row = 0
    for ids, at in zip(batch, places, strict=True):
        own = run_base(lm.model.base_model, ids, output_hidden_states=True)
        for position in at:
            for k, layer in ((0, 0), (1, 2)):
                expected = own.hidden_states[layer][0, position].numpy()
                assert relative(got[k, row], expected) < 1e-4
            row += 1


def test_layer_zero_is_token_plus_position_in_gpt2_and_embed_the_token_alone():
    lm = MODELS["gpt2"]
    ids = sequences(6)[0]
    got = lm.capture([ids], [np.arange(6)], {"resid": [0], "embed": [0]})
    tokens = lm.model.transformer.wte.weight.detach().numpy()[ids]
    places = lm.model.transformer.wpe.weight.detach().numpy()[:6]
    assert np.array_equal(got["embed"][0], tokens)
    assert np.allclose(got["resid"][0], tokens + places, atol=1e-6)


def test_the_last_layer_is_before_the_final_norm():
    lm = MODELS["gpt2"]
    ids = sequences(6)[0]
    got = lm.capture([ids], [np.arange(6)], {"resid": [3], "final_norm": [0]})
    own = run_base(lm.model.base_model, ids, output_hidden_states=True)
    trap = own.hidden_states[-1][0].numpy()
    assert relative(got["resid"][0], trap) > 0.1
    assert relative(got["final_norm"][0], trap) < 1e-5


@pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
def test_changing_block_l_moves_layer_l_plus_one_first(family):
    lm = LanguageModel(tiny(family))
    batch = sequences(5)
    wanted = lm.resolve(["resid"])
    before = lm.capture(batch, every_position(batch), wanted)["resid"]
    block = lm.model.get_submodule(lm.sites["resid"].module.replace("*", "1"))
    with torch.no_grad():
        for weight in block.parameters():
            weight.mul_(1.5)
    after = lm.capture(batch, every_position(batch), wanted)["resid"]
    moved = [not np.array_equal(a, b) for a, b in zip(before, after, strict=True)]
    assert moved == [False, False, True, True]


def test_no_block_runs_that_nobody_wants():
    lm = LanguageModel(tiny("gpt2"))
    ran: list[int] = []
    for number, block in enumerate(lm.model.transformer.h):
        block.mlp.register_forward_hook(lambda *_, n=number: ran.append(n))
    lm.model.lm_head.register_forward_hook(lambda *_: ran.append(-1))
    batch = sequences(4, 6)
    for wanted, expected in (
        ({"embed": [0]}, []),
        ({"resid": [0]}, []),
        ({"resid": [1]}, [0]),
        ({"attn": [1]}, [0, 1]),
        ({"resid": [0, 2]}, [0, 1]),
        ({"final_norm": [0]}, [0, 1, 2]),
    ):
        ran.clear()
        lm.capture(batch, every_position(batch), wanted)
        assert ran == expected, wanted


def test_the_model_is_left_as_it_was_found():
    model = tiny("gpt2")
    model.train()
    model.transformer.h[1].eval()
    model.transformer.h[2].mlp.register_forward_hook(lambda *_: None)
    before = fingers(model)
    lm = LanguageModel(model)
    batch = sequences(4, 6)
    rows = lm.capture(batch, every_position(batch), {"resid": [1, 3], "attn": [0]})
    again = lm.capture(batch, every_position(batch), {"resid": [1, 3], "attn": [0]})
    lm.decode(rows["resid"][1])
    assert fingers(model) == before
    # dropout is off although the model is in training mode
    assert np.array_equal(rows["resid"], again["resid"])
    assert all(weight.grad is None and weight.requires_grad for weight in model.parameters())


@pytest.mark.parametrize("what", ["capture", "decode"])
def test_hooks_and_modes_are_put_back_after_an_error(what):
    model = tiny("bert")
    model.train()
    lm = LanguageModel(model)

    def fail(*_):
        raise RuntimeError("out of memory")

    broken = model.bert.encoder.layer[1] if what == "capture" else model.cls.predictions.transform
    broken.register_forward_hook(fail)
    before = fingers(model)
    batch = sequences(4)
    calls = {
        "capture": lambda: lm.capture(batch, every_position(batch), {"resid": [0, 3]}),
        "decode": lambda: lm.decode(np.ones((2, 32), np.float32)),
    }
    with pytest.raises(RuntimeError, match="out of memory"):
        calls[what]()
    assert fingers(model) == before


def test_hooks_copy_what_falcon_overwrites_in_place():
    lm = LanguageModel(tiny("falcon"))
    batch = sequences(6)
    got = lm.capture(batch, every_position(batch), {"ln1": [1], "mlp": [1]})
    with torch.inference_mode():
        own = lm.model.transformer.h[1].mlp(torch.from_numpy(got["ln1"]))[0].numpy()
    assert relative(got["mlp"][0], own) < 1e-5


def test_padding_never_reaches_a_row_even_as_nan():
    lm = LanguageModel(tiny("bert"))
    short, long = sequences(2, 9)
    rows = [np.array([1]), np.array([0])]
    expected = lm.capture([short, long], rows, {"resid": [3]})["resid"]

    def poison(module, args, output):
        output = output.clone()
        output[0, 2:] = float("nan")
        return output

    handle = lm.model.bert.encoder.layer[2].register_forward_hook(poison)
    got = lm.capture([short, long], rows, {"resid": [3]})["resid"]
    handle.remove()
    assert np.array_equal(got, expected)


def test_positions_of_roberta_are_left_to_the_model():
    lm = MODELS["roberta"]
    pad = lm.model.config.pad_token_id
    seen = []
    table = lm.model.roberta.embeddings.position_embeddings
    handle = table.register_forward_pre_hook(lambda _, args: seen.append(args[0].numpy()))
    lm.capture(sequences(2, 4), [np.array([0]), np.array([0])], {"resid": [0]})
    handle.remove()
    assert seen[0].tolist() == [[pad + 1, pad + 2, pad, pad], [pad + 1, pad + 2, pad + 3, pad + 4]]


@pytest.mark.parametrize(
    ("dtype", "given_back", "tolerance"),
    [
        (torch.float64, np.float64, 1e-10),
        (torch.float16, np.float16, 1e-2),
        (torch.bfloat16, np.float32, 5e-2),
    ],
)
@pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
def test_dtypes(family, dtype, given_back, tolerance):
    lm = LanguageModel(tiny(family).to(dtype))
    batch = sequences(5, 8)
    got = lm.capture(batch, every_position(batch), {"resid": [1, 3]})["resid"]
    assert got.dtype == given_back
    if dtype == torch.bfloat16:
        assert np.array_equal(torch.from_numpy(got).bfloat16().float().numpy(), got)
    alone = [lm.capture([b], [np.arange(len(b))], {"resid": [1, 3]})["resid"] for b in batch]
    assert relative(got.astype(np.float64), np.concatenate(alone, axis=1)) < tolerance
    logits = np.concatenate([run_base(lm.model, ids).logits[0].float().numpy() for ids in batch])
    ours = lm.decode(got[1])
    assert ours.dtype == np.float32
    assert relative(ours, logits) < max(tolerance, 1e-5)


def test_nothing_wanted_gives_empty_rows():
    lm = MODELS["gpt2"]
    nowhere = np.empty(0, np.int32)
    got = lm.capture(sequences(3), [nowhere], {"resid": [1, 2], "final_norm": [0]})
    assert (got["resid"].shape, got["final_norm"].shape) == ((2, 0, 32), (1, 0, 32))


@pytest.mark.parametrize(
    ("ids", "positions", "message"),
    [
        ([np.array([5, 97])], [np.array([0])], r"token id 97 given, but .* embeds ids 0…96"),
        ([np.array([5, -1])], [np.array([0])], r"token id -1 given"),
        ([np.array([5, 6])], [np.array([2])], r"position 2 .* sequence 0, which has 2 tokens"),
        ([np.full(65, 5)], [np.array([0])], r"65 tokens given, but .* positions for 64"),
        ([np.array([5])], [], r"1 sequence but positions for 0"),
        ([np.array([5]), np.array([], int)], [np.array([0]), np.array([], int)], r"sequence 1 has"),
    ],
)
def test_bad_batches_are_refused_in_one_line(ids, positions, message):
    with pytest.raises(ModelError, match=message) as caught:
        MODELS["gpt2"].capture(ids, positions, {"resid": [0]})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_rows_may_be_written_where_the_caller_wants_them(dtype):
    lm = LanguageModel(tiny("granite").to(dtype))  # attn and mlp are scaled
    batch = sequences(5, 3, 4)
    places = [np.array([4, 1]), np.array([], int), np.array([0, 3])]
    wanted = {"resid": [0, 3], "mlp": [1], "final_norm": [0], "embed": [0]}
    expected = lm.capture(batch, places, wanted)
    at = np.array([6, 2, 3, 0])
    out = {
        site: np.full((rows.shape[0], 8, rows.shape[2]), 7, lm.row_dtype)
        for site, rows in expected.items()
    }
    got = lm.capture(batch, places, wanted, out=out, at=at)
    for site, rows in expected.items():
        assert rows.dtype == lm.row_dtype
        assert got[site] is out[site]
        assert np.array_equal(out[site][:, at], rows)
        assert (out[site][:, [1, 4, 5, 7]] == 7).all()
    lm.capture(batch, places, wanted, out=out)
    assert np.array_equal(out["mlp"][:, :4], expected["mlp"])


@pytest.mark.parametrize(
    ("shape", "dtype", "message"),
    [
        ((2, 5, 32), "float64", r"is float64 \(2, 5, 32\), expected contiguous float32 \(2, 5 or"),
        ((3, 5, 32), "float32", r"expected contiguous float32 \(2, 5 or more, 32\)"),
        ((2, 4, 32), "float32", r"is float32 \(2, 4, 32\)"),
    ],
)
def test_what_cannot_be_written_to_is_refused(shape, dtype, message):
    out = {"resid": np.empty(shape, dtype)}
    with pytest.raises(ModelError, match=message):
        MODELS["gpt2"].capture(sequences(5), [np.arange(5)], {"resid": [0, 1]}, out=out)
    with pytest.raises(ModelError, match=r"at= has shape \(2,\), but the batch gives 5 rows"):
        MODELS["gpt2"].capture(
            sequences(5), [np.arange(5)], {"resid": [0]}, out=out, at=np.arange(2)
        )
