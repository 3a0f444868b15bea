"""Sub-module splices against the formulas of the paper, one sequence at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from rerun_models import (
    BLOCKS,
    layers_of,
    matrix,
    plain_block,
    plain_logits,
    plain_parts,
    plain_scores,
)
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

import actstore
from actstore.errors import AnalysisError, SiteError
from analysis import prediction, results, submodules


def plain(
    case: Any, parts: Any, kind: str, layer: int, x: torch.Tensor, spared: int
) -> torch.Tensor:
    def mixed(made: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        return torch.cat([own[:spared], made[spared:]])

    for block in range(layer, BLOCKS):
        ln1, attn, ln2, ffn = plain_parts(case, block)

        def a(source: str, target: str, block: int = block) -> torch.Tensor:
            return matrix(parts[(source, block), (target, block)])

        with torch.inference_mode():
            if kind == "attn":
                c = x + mixed(ln1(x) @ a("ln1", "attn"), attn(ln1(x)))
                x = c + ffn(ln2(c))
            elif kind == "ffn":
                c = x + attn(ln1(x))
                x = c + mixed(ln2(c) @ a("ln2", "mlp"), ffn(ln2(c)))
            else:
                c = x + attn(mixed(x @ a("resid", "ln1"), ln1(x)))
                x = c + ffn(mixed(c @ a("resid_mid", "ln2"), ln2(c)))
    return x


@pytest.mark.parametrize(
    ("family", "spared"),
    [("gpt2", 0), ("gpt2", 1), ("opt", 0), ("opt", 1), ("opt", 2), ("gpt2", 2), ("llama", 0)],
)
def test_curves_equal_a_loop_over_sequences_and_blocks(family: str, spared: int, case: Any) -> None:
    at = case(family)
    parts = submodules.fit(at.run, ridge=1e-2, progress=False)
    run = at.held_out
    got = submodules.curves(
        run,
        parts,
        at.model,
        maps=at.maps,
        ks=(1, 3),
        spare_first=spared,
        batch_tokens=60,
        progress=False,
    )
    ranks = np.empty((3, BLOCKS + 1, run.n_samples))
    surprisals = np.empty(ranks.shape)
    for i in range(run.n_samples):
        position = at.position(run, i)
        layers = layers_of(at, at.ids(run, i))
        rerun = plain_block(at, 0, layers[0])
        assert torch.allclose(rerun, layers[1], atol=1e-5)  # the reference's own check
        original = plain_logits(at, layers[-1][position])
        for k, kind in enumerate(submodules.PARTS):
            for layer in range(BLOCKS + 1):
                state = plain(at, parts, kind, layer, layers[layer], spared)[position]
                ranks[k, layer, i], surprisals[k, layer, i] = plain_scores(
                    original, plain_logits(at, state)
                )
    spliced = got.sel(shortcut=list(submodules.PARTS))
    for k in (1, 3):
        np.testing.assert_allclose(spliced.precision.sel(k=k), (ranks < k).mean(axis=2))
    np.testing.assert_allclose(spliced.surprisal, surprisals.mean(axis=2), atol=1e-3)
    assert len(np.unique(spliced.surprisal.values[:, 0])) == 3
    whole = prediction.curves(run, at.maps, at.model, ks=(1, 3), progress=False)
    both = got.sel(shortcut=["mat", "id"])
    np.testing.assert_allclose(both.precision, whole.precision)
    np.testing.assert_allclose(
        got.precision_over_mat.sel(shortcut="id"), -whole.precision_gain, atol=1e-12
    )


def test_parts_are_least_squares_and_are_saved(case: Any, tmp_path: Any) -> None:
    at = case("llama")
    parts = submodules.fit(at.run, progress=False)
    for block in range(BLOCKS):
        for source, target in submodules.SITE_PAIRS:
            x = at.run[source].sel({at.run.dim(source): block}).values.astype(np.float64)
            y = at.run[target].sel({at.run.dim(target): block}).values.astype(np.float64)
            expected = np.linalg.lstsq(x, y, rcond=None)[0]
            found = parts[(source, block), (target, block)]
            np.testing.assert_allclose(found.matrix, expected, atol=1e-6)
            assert found.bias is None
    parts.save(tmp_path / "parts.safetensors")
    loaded = actstore.load_maps(tmp_path / "parts.safetensors")
    assert set(loaded) == set(parts)
    got = submodules.curves(at.held_out, loaded, at.model, kinds=("ffn",), layers=[2, 4], samples=5)
    assert got.attrs["samples"] == 5
    assert (got.precision.sel(layer=4) == 1).all()
    path = results.save(got, tmp_path / "r.zarr")
    assert results.load(path).identical(got)


def test_refusals_name_the_reason(case: Any) -> None:
    bert, llama = case("bert"), case("llama")
    parts = submodules.fit(llama.run, progress=False)
    with pytest.raises(AnalysisError, match="no site 'ln1'"):
        submodules.curves(bert.run, parts, bert.model)
    with pytest.raises(SiteError, match="need site 'ln1', but bert/text has resid"):
        submodules.fit(bert.run)
    with pytest.raises(AnalysisError, match="kind 'norm'"):
        submodules.curves(llama.run, parts, llama.model, kinds=("norm",))
    with pytest.raises(AnalysisError, match="spare_first=-1"):
        submodules.curves(llama.run, parts, llama.model, spare_first=-1)
    few = submodules.fit(llama.run.sel(block=[0, 1]), progress=False)
    with pytest.raises(AnalysisError, match="no map ln1 → attn of block 2"):
        submodules.curves(llama.run, few, llama.model)


def test_parallel_blocks_are_refused_by_name(case: Any) -> None:
    config = GPTNeoXConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        bos_token_id=1,
        eos_token_id=2,
    )
    neox = actstore.load_model(GPTNeoXForCausalLM(config), name="neox")
    llama = case("llama")
    parts = submodules.fit(llama.run, progress=False)
    with pytest.raises(AnalysisError, match=r"neox has no site 'resid_mid': .*parallel"):
        submodules.curves(llama.run, parts, neox)


def test_the_model_is_left_as_it_was(case: Any) -> None:
    at = case("gpt2")

    def traces() -> dict[str, Any]:
        return {
            name: (set(vars(m)), list(m._forward_hooks), list(m._forward_pre_hooks))
            for name, m in at.hf.named_modules()
        }

    before = traces()
    parts = submodules.fit(at.run, progress=False)
    submodules.curves(at.held_out, parts, at.model, layers=[0], progress=False)
    assert traces() == before


def test_states_that_blow_up_count_as_wrong(case: Any) -> None:
    at = case("llama")
    parts = submodules.fit(at.run, ridge=1e-2, progress=False)
    for block in range(BLOCKS):
        parts[("ln1", block), ("attn", block)].matrix[:] *= 1e60
    got = submodules.curves(at.held_out, parts, at.model, kinds=("attn",), progress=False)
    assert got.nonfinite.sel(layer=[0, BLOCKS]).values.tolist() == [[1, 0]]
    assert (got.precision.sel(layer=0) == 0).all()
    surprisal = got.surprisal.sel(shortcut="attn")
    assert float(surprisal.sel(layer=0)) > float(surprisal.sel(layer=BLOCKS))
    assert np.isfinite(got.surprisal).all()
