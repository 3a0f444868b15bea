"""Hidden states through maps and the model's head, a bounded block of logits at a time.

All that reads predictions off hidden layers goes through `stream`: it never holds more than a
fixed number of bytes of logits, reads every stored chunk once, and keeps all cores in matrix
products.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from actstore.errors import AnalysisError, NonFiniteError, SiteError

if TYPE_CHECKING:
    from actstore.fitting import MapSet
    from actstore.models import LanguageModel
    from actstore.store import Run

SITE = "resid"
MEMORY = 256 * 2**20
SHORTCUTS = ("mat", "id")

# Rows of one product below which reading the head's weights costs as much as multiplying.
_WORTHWHILE_ROWS = 256
_CORES_PER_WORKER = 8
_HIDDEN_BYTES = 64 * 2**20
_TASKS_PER_WORKER = 4

Readout = Mapping[str, Any]
Reduce = Callable[[str, int, slice, NDArray[np.float32]], None]


def stream(
    run: Run,
    model: LanguageModel,
    readouts: Mapping[int, Readout],
    reduce: Reduce,
    *,
    memory: int = MEMORY,
    progress: bool | None = None,
) -> None:
    """Decode layers of the residual stream and hand every block of logits to `reduce`.

    The products use all cores. Where there are many, several threads take turns, so that one
    block is multiplied while others are read and reduced; on few cores they would only be in
    each other's way.

    Parameters
    ----------
    run : Run
        Samples whose states are decoded.
    model : LanguageModel
        Its ``decode`` turns layer-L states into logits.
    readouts : mapping of layer to {shortcut: LinearMap or None}
        What to decode: at each layer, by each shortcut; None decodes the state itself.
    reduce : callable (shortcut, layer, rows, logits)
        Called once for each block, from several threads at a time; `rows` is a slice of the
        run's samples, `logits` a (rows, vocab) float32 array that may be overwritten and is
        void after the call.
    memory : int
        Bytes that all blocks of logits together may take (at least one row per block).
    progress : bool, optional
        Show a progress bar; default: on a terminal.

    Raises
    ------
    NonFiniteError
        A stored state is NaN or infinite.
    """
    layers = list(readouts)
    rows, workers = _partition(model.vocab_size, memory)
    # A task is a layer of a part. With few layers the parts are smaller, so that all can work.
    share = -(-run.n_samples * len(layers) // (_TASKS_PER_WORKER * workers))
    parts = list(_parts(run, max(rows, min(share, _HIDDEN_BYTES // (4 * run.width(SITE))))))

    def task(layer: int, part: Sequence[Any]) -> None:
        hidden = _read(run, layer, part)
        start = part[0].out.start
        for block in _even_slices(len(hidden), rows):
            states = np.asarray(hidden[block], dtype=np.float32)
            if not np.isfinite(states).all():
                raise NonFiniteError(
                    f"{run.model}/{run.corpus} layer {layer} holds NaN or infinity among samples "
                    f"{start + block.start}…{start + block.stop - 1}; extract these rows anew"
                )
            for shortcut, linear in readouts[layer].items():
                logits = model.decode(states if linear is None else linear(states))
                reduce(shortcut, layer, slice(start + block.start, start + block.stop), logits)

    bar = tqdm(
        total=len(layers) * len(parts),
        desc="decode",
        unit="layer",
        disable=None if progress is None else not progress,
        file=sys.stderr,
    )
    with bar, ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(task, layer, part) for part in parts for layer in layers]
        try:
            for future in as_completed(futures):
                future.result()
                bar.update()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def readouts_to_last(
    run: Run,
    maps: MapSet | None,
    model: LanguageModel,
    shortcuts: Sequence[str],
) -> dict[int, dict[str, Any]]:
    """What `stream` needs to read the last layer's prediction off every layer in view.

    ``mat`` decodes through the map to layer L, ``id`` the state itself; at layer L both are the
    model's own prediction.

    Returns
    -------
    dict
        Layer → shortcut → LinearMap or None, in increasing order of layers, L last.

    Raises
    ------
    AnalysisError, SiteError
        An unknown shortcut, a model without a head, layer L or a map missing.
    """
    unknown = [shortcut for shortcut in shortcuts if shortcut not in SHORTCUTS]
    if unknown or not shortcuts:
        raise AnalysisError(f"shortcut {unknown[0] if unknown else ''!r}; choose from {SHORTCUTS}")
    if not model.has_head:
        raise AnalysisError(f"{model.name} has no language-model head to decode with")
    last = model.n_blocks
    layers = sorted(run.sites.get(SITE, []))
    if last not in layers:
        raise SiteError(
            f"predictions need layer {last} of site {SITE!r}, the last of {model.name}, but "
            f"{run.model}/{run.corpus} has layers {layers or 'none'}; extract or select it too"
        )
    require_model(run, model)
    if "mat" in shortcuts:
        inner = [layer for layer in layers if layer < last]
        missing = [layer for layer in inner if maps is None or (layer, last) not in maps]
        if missing:
            raise AnalysisError(
                f"no map {missing[0]} → {last} among the maps; fit with pairs='to_last' or 'all', "
                f"select fewer layers, or pass shortcuts=('id',)"
            )
    return {
        layer: {
            shortcut: maps[layer, last] if shortcut == "mat" and layer < last and maps else None
            for shortcut in shortcuts
        }
        for layer in layers
    }


def require_model(run: Run, model: LanguageModel) -> None:
    """Refuse another model than the run's; the same weights in another dtype are let through."""
    extracted, given = run.info().get("key", {}).get("model", {}), model.describe()
    differs = extracted.get("dtype") == given.get("dtype") and extracted.get(
        "fingerprint"
    ) != given.get("fingerprint")
    if differs or run.width(SITE) != model.width:
        raise AnalysisError(
            f"{run.model}/{run.corpus} was not extracted from {model.name} (width {model.width}, "
            f"weights {str(given.get('fingerprint'))[:12]}); pass the model that it was, with "
            f"width {run.width(SITE)} and weights {str(extracted.get('fingerprint'))[:12]}"
        )


def require_finite(values: NDArray[np.float32], shortcut: str, layer: int) -> None:
    """Refuse logits that are NaN or infinite at the tokens that matter."""
    if not np.isfinite(values).all():
        raise NonFiniteError(
            f"layer {layer} decoded by {shortcut!r} gives logits that are NaN or infinite; check "
            f"that model and maps belong to this run"
        )


def _partition(vocab: int, memory: int) -> tuple[int, int]:
    """Rows of a block, and the number of threads that each hold one."""
    total = memory // (4 * vocab)
    workers = min((os.cpu_count() or 1) // _CORES_PER_WORKER, total // _WORTHWHILE_ROWS)
    workers = max(1, workers)
    return max(1, total // workers), workers


def _parts(run: Run, rows: int) -> Iterator[list[Any]]:
    """Consecutive row blocks of the run, whole shards where they fit, up to `rows` together."""
    part: list[Any] = []
    for block in run.row_blocks(rows):
        if part and block.out.stop - part[0].out.start > rows:
            yield part
            part = []
        part.append(block)
    if part:
        yield part


def _read(run: Run, layer: int, part: Sequence[Any]) -> NDArray:
    pieces = [run.read(SITE, layer, block) for block in part]
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def _even_slices(n: int, most: int) -> Iterator[slice]:
    count = -(-n // most)
    for number in range(count):
        yield slice(n * number // count, n * (number + 1) // count)
