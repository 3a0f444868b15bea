"""Minibatches hold every row once, in an order that workers and interruptions do not change."""

from __future__ import annotations

import copy
import json
import pickle
import warnings
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from store_fakes import coordinates, fill, planned, values
from torch.utils.data import DataLoader
from zarr.storage import MemoryStore

import actstore
from actstore.errors import CorruptionError, SelectionError, SiteError, StoreError
from actstore.store.shuffling import EpochOrder

N = 203


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("torch") / "s.zarr"
    fill(planned(path, N))
    return actstore.open(path)["gpt2", "wiki"]


def samples(batches):
    return [batch["sample"].tolist() for batch in batches]


def loader(data, workers, context):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # more workers than cores are meant here
        return list(
            DataLoader(data, batch_size=None, num_workers=workers, multiprocessing_context=context)
        )


orders = st.fixed_dictionaries(
    {
        "batch_size": st.integers(1, 60),
        "lanes": st.integers(1, 5),
        "seed": st.integers(0, 3),
        "epoch": st.integers(0, 3),
    }
)


@settings(max_examples=150, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), max_size=12),
    options=orders,
    buffer=st.integers(0, 100),
    shuffle=st.booleans(),
)
def test_every_row_is_in_one_batch_and_only_the_last_is_short(lengths, options, buffer, shuffle):
    options["lanes"] = options["lanes"] if shuffle else 1
    size = options["batch_size"]
    order = EpochOrder(lengths, buffer=size + buffer, shuffle=shuffle, **options)
    places = [(unit, row) for unit, n in enumerate(lengths) for row in range(n)]
    assert order.n_batches == -(-len(places) // size)
    seen = []
    for batch in range(order.n_batches):
        pool = order.pool(batch)
        assert len(pool) <= size + buffer
        held = [None] * len(pool)
        for piece in order.pieces(pool):
            for offset, row in enumerate(range(piece.start, piece.stop)):
                assert held[piece.at + offset] is None
                held[piece.at + offset] = (piece.unit, row)
        rows = [held[k] for k in order.permutation(pool)[order.within(batch)]]
        assert len(rows) == size or batch == order.n_batches - 1
        seen += rows
    assert sorted(seen) == places
    if not shuffle:
        assert seen == places


@settings(max_examples=30, deadline=None)
@given(options=orders, extra=st.integers(0, 100), data=st.data())
def test_batches_hold_the_rows_that_they_name(run, options, extra, data):
    chosen = sorted(data.draw(st.sets(st.integers(0, N - 1), min_size=1)))
    view = run.isel(sample=chosen)
    layers = data.draw(st.sampled_from([2, [1, 3], None]))
    batches = view.to_torch(
        layers=layers,
        buffer=options["batch_size"] + extra,
        coordinates=("token", "score"),
        **options,
    )
    known = coordinates(N)[0]
    whole = np.stack([values("resid", layer, N, 6) for layer in range(4)])
    for batch in batches:
        numbers, rows = batch["sample"].numpy(), batch["row"].numpy()
        np.testing.assert_array_equal(np.array(chosen)[rows], numbers)
        expected = whole[batch["layer"].numpy()][:, numbers]
        np.testing.assert_array_equal(
            batch["activations"], expected[0] if layers == 2 else expected
        )
        assert batch["token"] == known["token"][numbers].tolist()
        np.testing.assert_array_equal(batch["score"], known["score"][numbers])
    assert sorted(chain(*samples(batches))) == chosen
    assert len(samples(batches)) == len(batches)


@settings(max_examples=15, deadline=None)
@given(options=orders)
def test_mixed_layers_hold_every_layer_of_every_sample_once(run, options):
    seen = []
    for batch in run.to_torch(layers=[0, 2, 3], mixed=True, **options):
        for row, layer, number in zip(
            batch["activations"].numpy(),
            batch["layer"].tolist(),
            batch["sample"].tolist(),
            strict=True,
        ):
            np.testing.assert_array_equal(row, values("resid", layer, N, 6)[number])
            seen.append((layer, number))
    assert sorted(seen) == [(layer, number) for layer in (0, 2, 3) for number in range(N)]


@settings(max_examples=30, deadline=None)
@given(options=orders, at=st.integers(0, 300), mixed=st.booleans())
def test_resumed_equals_uninterrupted(run, options, at, mixed):
    def made():
        return run.to_torch(buffer=70, mixed=mixed, **options)

    whole = samples(made())
    first, head, state = made(), [], None
    for number, batch in enumerate(first):
        state = first.state_dict()
        head.append(batch["sample"].tolist())
        if number == at:
            break
    state = json.loads(json.dumps(state))
    second = run.to_torch(buffer=70, mixed=mixed, **{**options, "epoch": 9})
    second.load_state_dict(state)
    assert head + samples(second) == whole
    assert samples(second) == whole  # and the next time it is a whole epoch
    counted = made().state_dict(len(head))
    assert counted == state


@pytest.mark.parametrize(("context", "lanes"), [("fork", 1), ("fork", 4), ("spawn", 4)])
def test_the_order_is_the_same_for_any_number_of_workers(run, context, lanes):
    data = run.sel(long=True).to_torch(layers=1, batch_size=7, buffer=40, lanes=lanes, seed=3)
    alone = list(data)
    for workers in (2, 3) if context == "fork" else (2,):
        for mine, theirs in zip(alone, loader(data, workers, context), strict=True):
            assert torch.equal(mine["sample"], theirs["sample"])
            assert torch.equal(mine["activations"], theirs["activations"])


def test_workers_resume_too(run):
    data = run.to_torch(batch_size=8, buffer=40, lanes=2)
    whole = samples(data)
    data.load_state_dict(data.state_dict(5))
    assert samples(loader(data, 2, "fork")) == whole[5:]
    data.set_epoch(1)
    later = samples(loader(data, 2, "fork"))
    assert len(later) == len(whole)
    assert later != whole
    assert later == samples(run.to_torch(batch_size=8, buffer=40, lanes=2, epoch=1))


def test_workers_that_live_on_learn_of_the_next_epoch(run):
    data = run.to_torch(batch_size=8, buffer=40, lanes=2)
    living = DataLoader(
        data,
        batch_size=None,
        num_workers=2,
        persistent_workers=True,
        multiprocessing_context="fork",
    )
    for epoch in (0, 1, 5):
        data.set_epoch(epoch)
        expected = run.to_torch(batch_size=8, buffer=40, lanes=2, epoch=epoch)
        assert samples(living) == samples(expected)


def test_the_order_depends_on_seed_and_epoch_and_mixes_chunks(run):
    def first(**options):
        return next(iter(run.to_torch(batch_size=100, **options)))["sample"].tolist()

    assert first() == first()
    assert len({str(first(seed=seed, epoch=epoch)) for seed in (0, 1) for epoch in (0, 1)}) == 4
    assert len({number // 16 for number in first()}) == 13  # of all 13 shards
    assert first(shuffle=False) == list(range(100))


def test_memory_that_is_used_again_changes_nothing_given_out(run):
    data = run.to_torch(layers=[0, 2], batch_size=7, buffer=21, lanes=2, seed=1)
    expected = [batch["activations"].clone() for batch in data]
    abandoned = iter(data)
    early = [next(abandoned)["activations"] for _ in range(9)]
    del abandoned
    pairs = list(zip(iter(data), iter(data), strict=True))  # two at a time
    third = list(data)
    for number, (one, two) in enumerate(pairs):
        for found in (one, two, third[number]):
            assert torch.equal(found["activations"], expected[number])
    assert all(map(torch.equal, early, expected[:9]))


def test_drop_last_leaves_out_the_short_batch_and_changes_nothing_else(run):
    whole = samples(run.to_torch(batch_size=40))
    short = run.to_torch(batch_size=40, drop_last=True)
    assert len(short) == 5
    assert samples(short) == whole[:5]
    assert samples(loader(short, 2, "fork")) == whole[:5]


@pytest.mark.parametrize(
    ("stored", "asked", "got"),
    [
        ("float16", None, torch.float16),
        ("bfloat16", None, torch.float32),
        ("float32", "bfloat16", torch.bfloat16),
        ("float32", torch.float64, torch.float64),
    ],
)
def test_dtypes(stored, asked, got):
    store = MemoryStore()
    fill(planned(store, 20, dtype=stored))
    run = actstore.open(store)["gpt2", "wiki"]
    (batch,) = run.to_torch(layers=1, dtype=asked)
    assert batch["activations"].dtype == got
    expected = torch.from_numpy(run.resid.sel(layer=1).values[batch["sample"].numpy()]).to(got)
    assert torch.equal(batch["activations"], expected)


def test_a_dataset_pickles_small_and_without_rows(run):
    data = run.to_torch(coordinates=("token",))
    next(iter(data))
    assert len(pickle.dumps(data)) < 20_000
    assert samples(copy.deepcopy(data)) == samples(data)


def test_one_site_among_several_and_an_empty_view(run):
    (batch,) = run.to_torch("wide", [0, 2], batch_size=N)
    assert batch["activations"].shape == (2, N, 10)
    assert list(run.isel(sample=[]).to_torch()) == []


def test_damage_is_an_error_of_the_loop(tmp_path):
    fill(planned(tmp_path / "s.zarr", 50))
    run = actstore.open(tmp_path / "s.zarr")["gpt2", "wiki"]
    chunk = tmp_path / "s.zarr/gpt2/wiki/resid/c.1.2.0"
    data = bytearray(chunk.read_bytes())
    data[17] ^= 1
    chunk.write_bytes(bytes(data))
    with pytest.raises(CorruptionError, match="shard 2"):
        list(run.to_torch(layers=1))
    assert len(list(run.to_torch(layers=2))) == 1


def test_a_remote_store_is_not_read_after_a_fork(run, monkeypatch):
    data = run.to_torch()
    monkeypatch.setattr(data.run.stored.backend, "name", "s3://bucket/s.zarr")
    list(data)
    data._home += 1
    with pytest.raises(StoreError, match="spawn"):
        list(data)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"batch_size": 0}, SelectionError, "batch_size=0"),
        ({"batch_size": 10, "buffer": 9}, SelectionError, "buffer=9"),
        ({"lanes": 2, "shuffle": False}, SelectionError, "lanes=2"),
        ({"seed": -1}, SelectionError, "seed=-1"),
        ({"epoch": 0.5}, SelectionError, "epoch=0.5"),
        ({"dtype": "int8"}, SelectionError, "int8"),
        ({"coordinates": ("colour",)}, SelectionError, "colour"),
        ({"site": "attn"}, SiteError, "attn"),
        ({"layers": 4}, SiteError, "layer 4"),
    ],
)
def test_what_cannot_be_is_refused_by_name(run, options, error, says):
    with pytest.raises(error, match=says):
        run.to_torch(**options)


def test_a_position_of_another_order_is_refused(run):
    state = run.to_torch(seed=1).state_dict()
    with pytest.raises(SelectionError, match=r"seed 1 there and 0 here"):
        run.to_torch().load_state_dict(state)
    with pytest.raises(SelectionError, match="run "):
        run.isel(sample=slice(50)).to_torch(seed=1).load_state_dict(state)
