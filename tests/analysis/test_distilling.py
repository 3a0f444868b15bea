"""Distillation trains what it says towards what it says, and the curves are of those models."""

from __future__ import annotations

from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf

import actstore
from actstore.errors import AnalysisError
from actstore.models.provenance import weights_fingerprint
from analysis import perplexity, plots, pruning, report, results, stats
from analysis.pruning import distilling
from analysis.pruning.modules import blocks_of
from analysis.training import Batches, Recipe

VOCABULARY, WIDTH, BLOCKS = 60, 16, 4


def make(seed: int = 0) -> actstore.LanguageModel:
    torch.manual_seed(seed)
    config = hf.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=24,
        num_hidden_layers=BLOCKS,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        initializer_range=0.3,
        bos_token_id=1,
        eos_token_id=2,
    )
    return actstore.load_model(
        hf.AutoModelForCausalLM.from_config(config).eval(), tokenizer=False, name="tiny"
    )


def documents(count: int, seed: int) -> list[actstore.Document]:
    rng = np.random.default_rng(seed)
    return [
        actstore.Document(input_ids=rng.integers(5, VOCABULARY, 24).tolist()) for _ in range(count)
    ]


def text(seed: int = 0, context: int = 12, size: int = 4) -> Batches:
    ids = np.random.default_rng(seed).integers(5, VOCABULARY, 2000)
    return Batches(ids, context, size, seed=0)


def test_losses_equal_loops() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 2, 3, 5))
    p, q = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in (a, b))
    loops = [
        sum(p[i, j, k] * np.log(p[i, j, k] / q[i, j, k]) for k in range(5))
        for i in range(2)
        for j in range(3)
    ]
    got = distilling.divergence(torch.tensor(a), torch.tensor(b))
    assert float(got) == pytest.approx(np.mean(loops))
    flat_a, flat_b = a.reshape(6, 5), b.reshape(6, 5)
    expected = ((flat_b - flat_a) ** 2).sum() / ((flat_a - flat_a.mean(0)) ** 2).sum()
    got = distilling.relative_error(torch.tensor(b), torch.tensor(a))
    assert float(got) == pytest.approx(expected)


def entering(student: Any, ids: torch.Tensor, block: int) -> np.ndarray:
    seen: list[torch.Tensor] = []
    handle = blocks_of(student)[block].register_forward_pre_hook(
        lambda _, args: seen.append(args[0])
    )
    with torch.inference_mode():
        student(input_ids=ids)
    handle.remove()
    return seen[0].flatten(0, 1).double().numpy()


def leaving(teacher: Any, ids: torch.Tensor, block: int) -> np.ndarray:
    seen: list[torch.Tensor] = []
    handle = blocks_of(teacher)[block].register_forward_hook(lambda _, __, out: seen.append(out))
    with torch.inference_mode():
        teacher(input_ids=ids)
    handle.remove()
    return seen[0].flatten(0, 1).double().numpy()


def error(student: Any, teacher: Any, ids: torch.Tensor, block: int) -> float:
    linear = blocks_of(student)[block].linear
    x, y = entering(student, ids, block), leaving(teacher, ids, block)
    made = x @ linear.weight.detach().double().numpy().T + linear.bias.detach().double().numpy()
    return float(((made - y) ** 2).sum() / ((y - y.mean(0)) ** 2).sum())


def test_maps_go_to_least_squares_on_what_the_student_gives_them(tmp_path: Path) -> None:
    teacher = make()
    run = pruning.states(teacher, documents(40, 0), tmp_path / "s.zarr", bos="none", progress=False)
    maps = pruning.fit_maps(run, [1, 2], progress=False)
    student = pruning.replace(teacher, maps)
    frozen = {
        name: value.clone() for name, value in student.state_dict().items() if "linear" not in name
    }
    before = weights_fingerprint(teacher.model)
    ids = torch.cat([text(seed=1)(step) for step in range(30)])
    start = [error(student, teacher.model, ids, block) for block in (1, 2)]
    recipe = changed(distilling.MAPS, steps=300, learning_rate=0.2)
    log = pruning.distil_maps(
        teacher, student, text(size=16), recipe=recipe, seed=0, progress=False
    )
    for name, value in frozen.items():
        assert torch.equal(student.state_dict()[name], value), name
    assert weights_fingerprint(teacher.model) == before
    end = [error(student, teacher.model, ids, block) for block in (1, 2)]
    best = []
    for block in (1, 2):
        x, y = entering(student, ids, block), leaving(teacher.model, ids, block)
        x = np.column_stack([x, np.ones(len(x))])
        rest = y - x @ np.linalg.lstsq(x, y, rcond=None)[0]
        best.append(float((rest**2).sum() / ((y - y.mean(0)) ** 2).sum()))
    assert set(log) >= {"loss", "block 1", "block 2"}
    assert end[1] < start[1]  # the second map's inputs are no longer those it was fitted on
    np.testing.assert_allclose(end, best, rtol=0.05)
    np.testing.assert_allclose(log["block 2"][-30:].mean(), end[1], rtol=0.1)


def test_an_outlier_that_nobody_saw_does_not_blow_the_maps_up(tmp_path: Path) -> None:
    teacher = make()
    with torch.no_grad():  # one rare token, five hundred times as large
        teacher.model.get_input_embeddings().weight[3] *= 500
    run = pruning.states(teacher, documents(40, 0), tmp_path / "s.zarr", bos="none", progress=False)
    student = pruning.replace(teacher, pruning.fit_maps(run, [1], progress=False))
    batches = text()
    batches.ids[1000::50] = 3
    log = pruning.distil_maps(
        teacher, student, batches, recipe=changed(distilling.MAPS, steps=40), progress=False
    )
    assert np.isfinite(log["loss"]).all()


@pytest.mark.parametrize(("logits", "hidden"), [(1.0, 0.0), (0.0, 1.0), (1.0, 0.5)])
def test_distilling_everything_comes_closer_to_the_teacher(logits: float, hidden: float) -> None:
    teacher, gone = make(), [1]
    kept = [0, 2, 3]
    student = pruning.remove(teacher, gone)
    before = weights_fingerprint(teacher.model)
    ids = torch.cat([text(seed=2)(step) for step in range(10)])

    def away() -> tuple[float, float]:
        with torch.inference_mode():
            aim, made = teacher.model(input_ids=ids).logits, student(input_ids=ids).logits
        states = [
            distilling.relative_error(
                torch.tensor(leaving(student, ids, n)),
                torch.tensor(leaving(teacher.model, ids, block)),
            )
            for n, block in enumerate(kept)
        ]
        return float(distilling.divergence(aim, made)), float(torch.stack(states).mean())

    first = away()
    log = pruning.distil(
        teacher,
        student,
        text(),
        kept=kept,
        logits=logits,
        hidden=hidden,
        recipe=Recipe(60, 3e-3, weight_decay=0.0),
        progress=False,
    )
    last = away()
    if logits:
        assert last[0] < 0.9 * first[0]
        assert log["kl"][0] == pytest.approx(first[0], rel=0.5)
    if hidden:
        assert last[1] < 0.9 * first[1]
    parts = logits * log.get("kl", 0) + hidden * log.get("hidden", 0)
    np.testing.assert_allclose(log["loss"], parts, rtol=1e-5)
    assert weights_fingerprint(teacher.model) == before
    assert all(not module.training for module in teacher.model.modules())


def test_distillation_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    teacher = make()
    run = pruning.states(teacher, documents(30, 0), tmp_path / "s.zarr", bos="none", progress=False)
    maps = pruning.fit_maps(run, [1], progress=False)
    recipe = changed(distilling.MAPS, steps=12)

    class Interrupted(Exception):
        pass

    class Stopping(Batches):
        def __call__(self, step: int) -> torch.Tensor:
            if step == 9:
                raise Interrupted
            return super().__call__(step)

    whole = pruning.replace(teacher, maps)
    log = pruning.distil_maps(teacher, whole, text(), recipe=recipe, progress=False)
    options: dict[str, Any] = {"recipe": recipe, "folder": tmp_path / "c", "every": 5}
    stopping = Stopping(text().ids, 12, 4, seed=0)
    with pytest.raises(Interrupted):
        pruning.distil_maps(
            teacher, pruning.replace(teacher, maps), stopping, progress=False, **options
        )
    resumed = pruning.replace(teacher, maps)
    again = pruning.distil_maps(teacher, resumed, text(), progress=False, **options)
    assert weights_fingerprint(resumed) == weights_fingerprint(whole)
    for name, values in log.items():
        assert np.array_equal(values, again[name]), name
    with pytest.raises(AnalysisError, match="of another run: first_token is 'keep' there"):
        pruning.distil_maps(
            teacher,
            pruning.replace(teacher, maps),
            text(),
            first_token="drop",
            progress=False,
            **options,
        )


def test_refusals() -> None:
    teacher = make()
    with pytest.raises(AnalysisError, match="no linear blocks to distil"):
        pruning.distil_maps(teacher, pruning.remove(teacher, [0]), text())
    with pytest.raises(AnalysisError, match="one of the two must be positive"):
        pruning.distil(teacher, pruning.remove(teacher, [0]), text(), logits=0.0)
    with pytest.raises(AnalysisError, match="each of the 3 blocks"):
        pruning.distil(teacher, pruning.remove(teacher, [0]), text(), hidden=1.0)
    with pytest.raises(AnalysisError, match=r"0…3 can be taken out"):
        pruning.curves(teacher, documents(3, 0), documents(2, 1), [4])
    with pytest.raises(AnalysisError, match="choose from"):
        pruning.curves(teacher, documents(3, 0), documents(2, 1), [1], variants=["fold"])


def test_curves_are_of_the_models_they_name(tmp_path: Path) -> None:
    model, train, held_out = make(), documents(30, 0), documents(6, 1)
    before = weights_fingerprint(model.model)
    recipes = {
        "maps_recipe": changed(distilling.MAPS, steps=6),
        "whole_recipe": Recipe(4, 1e-3, weight_decay=0.0),
    }
    options: dict[str, Any] = {
        "context": 16,
        "stride": 8,
        "bos": "none",
        "distil_context": 12,
        "folder": tmp_path / "kept",
        "progress": False,
        **recipes,
    }
    got = pruning.curves(model, train, held_out, [0, 1, 2], **options)
    assert weights_fingerprint(model.model) == before

    run = pruning.states(model, train, tmp_path / "s.zarr", context=16, bos="none", progress=False)
    order = pruning.rank_blocks(run, count=2, progress=False).order
    assert got.order.values.tolist() == order
    maps = pruning.fit_maps(run, order, progress=False)
    stream = np.concatenate([document.input_ids or () for document in train])
    batches = Batches(stream, 12, 4, seed=0)
    whole = perplexity.perplexity(model, held_out, context=16, stride=8, bos="none", progress=False)
    for count in (1, 2):
        blocks = order[:count]
        made = {
            "remove": pruning.remove(model, blocks),
            "replace": pruning.replace(model, {block: maps[block] for block in blocks}),
            "replace_distilled": pruning.replace(model, {block: maps[block] for block in blocks}),
            "remove_distilled": pruning.remove(model, blocks),
        }
        pruning.distil_maps(
            model, made["replace_distilled"], batches, recipe=recipes["maps_recipe"], progress=False
        )
        pruning.distil(
            model, made["remove_distilled"], batches, recipe=recipes["whole_recipe"], progress=False
        )
        for variant, pruned in made.items():
            known = actstore.load_model(pruned, tokenizer=False, name=variant)
            own = perplexity.perplexity(
                known, held_out, context=16, stride=8, bos="none", progress=False
            )
            at = got.sel(variant=variant, count=count)
            for end in ("", "_low", "_high"):
                assert float(at["perplexity" + end]) == pytest.approx(
                    float(own["perplexity" + end]), rel=1e-5
                )
            apart = perplexity.compare(whole, own)
            assert float(at.ratio_high) == pytest.approx(float(apart.ratio_high), rel=1e-5)
            saved = hf.AutoModelForCausalLM.from_pretrained(
                tmp_path / "kept" / f"{variant}-{count}"
            )
            assert weights_fingerprint(saved) == weights_fingerprint(pruned)
    assert (got.ratio.sel(count=0) == 1).all()
    two = got.sel(count=2)
    pair = pruning.compare_variants(got, "remove", "replace", 2)
    factor = two.perplexity.sel(variant="replace") / two.perplexity.sel(variant="remove")
    assert float(pair.value) == pytest.approx(float(factor))
    apart = two.document_nll.sel(variant="replace") - two.document_nll.sel(variant="remove")
    per_token = np.repeat(apart.values / got.document_tokens.values, got.document_tokens.values)
    expected = stats.mean(per_token, np.repeat(np.arange(6), got.document_tokens.values))
    assert float(pair.high) == pytest.approx(float(np.exp(expected.high)))
    assert got.generates.all()
    assert got.perplexity.sel(count=0).values == pytest.approx(float(whole.perplexity))

    again = pruning.curves(model, train, held_out, [0, 1, 2], **options)
    assert again.equals(got)
    back = results.load(results.save(got, tmp_path / "r.zarr"))
    page = report.build(tmp_path / "r.html", [back]).read_text()
    assert "removed, all distilled" in page
    figure = plots.pruning(back)
    np.testing.assert_allclose(
        figure.axes[0].lines[1].get_ydata(), got.perplexity.sel(variant="replace")
    )
