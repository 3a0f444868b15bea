"""Training is what its formula says, the same every time, and goes on after a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import actstore
from actstore.errors import AnalysisError, CorruptionError, NonFiniteError
from actstore.models.provenance import weights_fingerprint
from analysis import linearity, perplexity, plots, pretraining, report, results, stats
from analysis.pretraining.regulariser import run_with_states, term
from analysis.training import Batches, Recipe, token_stream, train

ROOT = Path(__file__).parents[2]
STORY = [
    f"And the {who} went up to {where}, and there he saw {what}; and it was so for {n} days."
    for who in ("king", "son of the king", "servant")
    for where in ("the town", "the mountain", "the sea")
    for what in ("a great light", "no one", "his brother")
    for n in ("three", "seven")
]


def config(**options: Any) -> Any:
    return hf.MistralConfig(
        **{
            "vocab_size": 280,
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": 32,
            "sliding_window": None,
            "bos_token_id": 0,
            "eos_token_id": 0,
            "pad_token_id": 0,
            **options,
        }
    )


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return pretraining.train_tokenizer(STORY, 280)


def run(tokenizer: Any, **options: Any) -> pretraining.Trained:
    chosen: dict[str, Any] = {
        "recipe": Recipe(8, 3e-3),
        "context": 16,
        "batch": 3,
        "progress": False,
        **options,
    }
    return pretraining.train(chosen.pop("config", config()), STORY, tokenizer, **chosen)


def test_terms_equal_loops() -> None:
    rng = np.random.default_rng(0)
    states = rng.normal(size=(3, 2, 4, 5))
    cosine = squared = 0.0
    for layer in (1, 2):
        for text in range(2):
            for place in range(4):
                a, b = states[layer, text, place], states[layer - 1, text, place]
                cosine += (1 - a @ b / np.linalg.norm(a) / np.linalg.norm(b)) / 8
                squared += ((a - b) ** 2).sum() / 8
    tensors = list(torch.tensor(states))
    assert float(term(tensors, "cosine")) == pytest.approx(cosine)
    assert float(term(tensors, "mse")) == pytest.approx(squared)
    with pytest.raises(AnalysisError, match="choose from"):
        term(tensors, "l1")


def test_states_are_the_stream_before_the_final_norm() -> None:
    model = hf.AutoModelForCausalLM.from_config(config()).eval()
    ids = torch.arange(5, 17)[None]
    logits, states = run_with_states(model, list(model.model.layers), ids)
    assert len(states) == 4
    torch.testing.assert_close(states[0], model.get_input_embeddings()(ids))
    torch.testing.assert_close(model.lm_head(model.model.norm(states[-1])), logits)
    torch.testing.assert_close(logits, model(input_ids=ids).logits)


@pytest.mark.parametrize(("kind", "strength"), [(None, 0.5), ("cosine", 0.7), ("mse", 0.01)])
def test_steps_are_those_of_a_plain_loop(kind: Any, strength: float, tokenizer: Any) -> None:
    recipe = Recipe(6, 3e-3, warmup=0.5, weight_decay=0.1, clip=0.4)
    got = run(tokenizer, regulariser=kind, strength=strength, seed=5, recipe=recipe)

    torch.manual_seed(5)
    model = hf.AutoModelForCausalLM.from_config(config()).train()
    stream = [0]
    for text in STORY:
        stream += [*tokenizer(text)["input_ids"], 0]
    batches = Batches(np.array(stream[:-1]), 16, 3, seed=5)
    decayed = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim == 1]
    optimiser = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
        betas=(0.9, 0.95),
    )
    rates = [1e-3, 2e-3, 3e-3, 3e-3, 3e-3 * 0.75, 3e-3 * 0.25]
    for step, rate in enumerate(rates):
        ids = batches(step)
        logits, states = run_with_states(model, list(model.model.layers), ids)
        log_p = logits.log_softmax(-1)
        nll = [-log_p[b, t, ids[b, t + 1]] for b in range(3) for t in range(15)]
        loss = entropy = torch.stack(nll).mean()
        if kind:
            loss = entropy + strength * term(states, kind)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.4)
        for group in optimiser.param_groups:
            group["lr"] = rate
        optimiser.step()
        at = got.log.isel(step=step)
        assert float(at.learning_rate) == pytest.approx(rate)
        assert float(at.loss) == pytest.approx(loss.item(), rel=1e-4)
        assert float(at.cross_entropy) == pytest.approx(entropy.item(), rel=1e-4)
        assert float(at.cosine) == pytest.approx(term(states, "cosine").item(), rel=1e-4)
    for name, value in got.model.state_dict().items():
        torch.testing.assert_close(value, model.state_dict()[name], rtol=1e-3, atol=1e-5)


def test_same_seed_same_bits_and_dropout_is_drawn_from_it(tokenizer: Any) -> None:
    shape = config(attention_dropout=0.3)
    torch.manual_seed(11)
    one = run(tokenizer, config=shape, seed=1)
    torch.manual_seed(12)  # what the caller drew does not matter, and goes on as it was
    state = torch.random.get_rng_state()
    two = run(tokenizer, config=shape, seed=1)
    assert torch.equal(state, torch.random.get_rng_state())
    assert weights_fingerprint(one.model) == weights_fingerprint(two.model)
    assert one.log.equals(two.log)
    assert weights_fingerprint(run(tokenizer, config=shape, seed=2).model) != weights_fingerprint(
        one.model
    )
    without = run(tokenizer, seed=1)
    assert not without.log.loss.equals(one.log.loss)


def test_a_regulariser_pulls_layers_together(tokenizer: Any) -> None:
    recipe = Recipe(40, 3e-3)
    plain, cosine, free, mse = (
        run(tokenizer, regulariser=kind, strength=strength, recipe=recipe).log
        for kind, strength in ((None, 0.0), ("cosine", 1.0), ("mse", 0.0), ("mse", 10.0))
    )
    assert float(cosine.cosine[-1]) < 0.5 * float(plain.cosine[-1])
    assert float(mse.mse[-1]) < 0.5 * float(free.mse[-1])
    zero = run(tokenizer, regulariser="cosine", strength=0.0, recipe=recipe).log
    np.testing.assert_array_equal(zero.cross_entropy, plain.cross_entropy)
    assert (plain.loss == plain.cross_entropy).all()


CHILD = """
import os, signal, sys
sys.path.insert(0, {tests!r})
import torch
from test_pretraining import STORY, Recipe, pretraining, run
from analysis.training import {module} as patched

plain, calls = patched.{name}, []

def counted(*args, **kwargs):
    calls.append(None)
    if len(calls) == {count}:
        os.kill(os.getpid(), signal.SIGKILL)
    return plain(*args, **kwargs)

patched.{name} = counted
torch.set_num_threads(1)
run(
    pretraining.train_tokenizer(STORY, 280),
    folder=sys.argv[1],
    recipe=Recipe(40, 3e-3),
    **{options!r},
)
"""


@pytest.mark.fault
@pytest.mark.parametrize(
    ("module", "name", "count", "kept"),
    [
        ("loop", "_step", 24, "step-00000020"),  # in the middle of training
        ("checkpoints", "save_file", 4, "step-00000010"),  # in the middle of a checkpoint
    ],
)
def test_a_killed_run_ends_with_the_same_bits(
    module: str, name: str, count: int, kept: str, tokenizer: Any, tmp_path: Path
) -> None:
    shape = {"regulariser": "cosine", "seed": 3, "every": 10}
    code = CHILD.format(
        tests=str(Path(__file__).parent),
        module=module,
        name=name,
        count=count,
        options=shape,
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "killed")],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    state = tmp_path / "killed" / "checkpoints"
    assert [path.name for path in state.glob("step-*")] == [kept]
    for folder in ("killed", "whole"):
        run(tokenizer, folder=tmp_path / folder, recipe=Recipe(40, 3e-3), **shape)
    for file in ("weights.safetensors", "optimiser.safetensors"):
        one, two = (
            (tmp_path / folder / "checkpoints" / "step-00000040" / file).read_bytes()
            for folder in ("killed", "whole")
        )
        assert one == two, file
    one, two = (
        hf.AutoModelForCausalLM.from_pretrained(tmp_path / folder / "model")
        for folder in ("killed", "whole")
    )
    assert weights_fingerprint(one) == weights_fingerprint(two)


def test_checkpoints_are_refused_where_they_do_not_fit(tokenizer: Any, tmp_path: Path) -> None:
    first = run(tokenizer, folder=tmp_path, every=3)
    again = run(tokenizer, folder=tmp_path, every=3)  # done: nothing is computed
    assert weights_fingerprint(first.model) == weights_fingerprint(again.model)
    assert first.log.equals(again.log)
    assert not list((tmp_path / "checkpoints").glob("step-00000006"))
    kinds = {path.suffix for path in (tmp_path / "checkpoints").rglob("*") if path.is_file()}
    assert kinds == {".json", ".safetensors"}
    with pytest.raises(AnalysisError, match="seed is 0 there and 4 here"):
        run(tokenizer, folder=tmp_path, seed=4)
    with pytest.raises(AnalysisError, match="regulariser is None there and 'cosine' here"):
        run(tokenizer, folder=tmp_path, regulariser="cosine")
    path = tmp_path / "checkpoints" / "step-00000008" / "weights.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptionError, match="is not what was written"):
        run(tokenizer, folder=tmp_path)


def test_a_loss_that_is_not_finite_stops_the_run() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    with pytest.raises(NonFiniteError, match="step 0: loss inf"):
        train(
            {"w": weight},
            lambda step: {"loss": (weight * torch.inf).sum()},
            Recipe(2),
            seed=0,
            progress=False,
        )
    assert torch.isfinite(weight).all()


@given(
    tokens=st.integers(20, 200),
    context=st.integers(2, 9),
    size=st.integers(1, 4),
    before=st.integers(0, 1),
    seed=st.integers(0, 5),
)
@settings(max_examples=50, deadline=None)
def test_an_epoch_shows_each_window_once(
    tokens: int, context: int, size: int, before: int, seed: int
) -> None:
    assume(tokens // (context - before) >= size)
    prefix = np.full(before, 999, np.int64)
    batches = Batches(np.arange(tokens), context, size, seed, prefix)
    for epoch in range(2):
        steps = range(epoch * batches.per_epoch, (epoch + 1) * batches.per_epoch)
        rows = torch.cat([batches(step) for step in steps])
        assert rows.shape == (batches.per_epoch * size, context)
        assert (rows[:, :before] == 999).all()
        text = rows[:, before:].numpy()
        assert (np.diff(text, axis=1) == 1).all()
        starts = np.sort(text[:, 0])
        assert (np.diff(starts) == batches.room).all()
        assert text.max() < tokens
        step = steps[len(steps) // 2]
        fresh = Batches(np.arange(tokens), context, size, seed, prefix)
        assert torch.equal(fresh(step), batches(step))


def test_texts_and_batches_that_do_not_fit(tokenizer: Any) -> None:
    with pytest.raises(AnalysisError, match="5 tokens of text for batches of 2 windows"):
        Batches(np.arange(5), 4, 2, 0)
    stream, prefix = token_stream(tokenizer, ["And so", "it was."], "<|endoftext|>")
    first, second = (tokenizer(text)["input_ids"] for text in ("And so", "it was."))
    assert stream.tolist() == [0, *first, 0, *second]
    assert prefix.tolist() == [0]
    assert tokenizer.decode(first) == "And so"
    other = pretraining.train_tokenizer(STORY, 280)
    assert other.get_vocab() == tokenizer.get_vocab()
    with pytest.raises(AnalysisError, match="257 tokens"):
        pretraining.train_tokenizer(STORY, 200)
    with pytest.raises(AnalysisError, match="vocab_size=100, but the tokenizer has 280"):
        run(tokenizer, config=config(vocab_size=100))
    with pytest.raises(AnalysisError, match="regulariser='l1'"):
        run(tokenizer, regulariser="l1")
    with pytest.raises(AnalysisError, match="strength=-1"):
        run(tokenizer, regulariser="mse", strength=-1)
    with pytest.raises(AnalysisError, match="learning_rate=0"):
        Recipe(3, learning_rate=0)
    with pytest.raises(AnalysisError, match="optimiser='lion'"):
        Recipe(3, optimiser="lion")


def test_comparison_is_of_the_models_it_trained(tokenizer: Any, tmp_path: Path) -> None:
    train_on, held_out = STORY[:40], STORY[40:]
    arms: dict[str, Any] = {"plain": (None, 0.0), "cosine": ("cosine", 0.5)}
    options: dict[str, Any] = {
        "folder": tmp_path / "kept",
        "arms": arms,
        "seeds": (0, 4),
        "recipe": Recipe(10, 3e-3),
        "context": 16,
        "batch": 3,
        "progress": False,
        "probe": lambda one: one.resid.mean(("sample", "feature")).compute(),
    }
    got = pretraining.compare(config(), train_on, held_out, tokenizer, **options)
    for arm, (kind, strength) in arms.items():
        for seed in (0, 4):
            trained = pretraining.train(
                config(),
                train_on,
                tokenizer,
                regulariser=kind,
                strength=strength,
                seed=seed,
                recipe=Recipe(10, 3e-3),
                context=16,
                batch=3,
                progress=False,
            )
            model = trained.known("m")
            at = got.sel(arm=arm, seed=seed)
            loss = perplexity.perplexity(
                model, held_out, context=16, stride=8, bos="<|endoftext|>", progress=False
            )
            assert float(at.validation_loss) == pytest.approx(float(loss.nll), rel=1e-5)
            states = actstore.extract(
                model,
                held_out,
                tmp_path / f"{arm}{seed}.zarr",
                positions="all",
                include_special=True,
                max_length=16,
                bos="<|endoftext|>",
                progress=False,
            )
            scores = linearity.scores(states, parts=1, progress=False)
            np.testing.assert_allclose(at.linearity, scores.score, rtol=1e-4)
            np.testing.assert_allclose(
                at.linearity_no_residual, scores.score_no_residual, rtol=1e-3
            )
            np.testing.assert_allclose(
                at.accuracy, states.resid.mean(("sample", "feature")), rtol=1e-3, atol=1e-5
            )
    loss = got.validation_loss.values
    expected = stats.mean(loss[1] - loss[0])
    for end, value in zip(("", "_low", "_high"), expected, strict=True):
        assert float(got["validation_loss_gain" + end].sel(arm="cosine")) == pytest.approx(value)
    assert (got.validation_loss_gain.sel(arm="plain") == 0).all()
    assert pretraining.compare(config(), train_on, held_out, tokenizer, **options).equals(got)

    back = results.load(results.save(got, tmp_path / "r.zarr"))
    page = report.build(tmp_path / "r.html", [back]).read_text()
    assert "best layer" in page
    figure = plots.pretraining(back)
    np.testing.assert_allclose(
        figure.axes[1].lines[1].get_ydata(), got.mean_linearity.sel(arm="cosine")
    )
    with pytest.raises(AnalysisError, match="each once"):
        pretraining.compare(config(), train_on, held_out, tokenizer, folder=tmp_path, seeds=(1, 1))
