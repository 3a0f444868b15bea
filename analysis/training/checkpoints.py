"""Checkpoints: weights, AdamW's moments and the log, each whole or not there."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from actstore.errors import AnalysisError, CorruptionError

_WEIGHTS, _MOMENTS, _STATE = "weights.safetensors", "optimiser.safetensors", "state.json"
_NAMES = ("exp_avg", "exp_avg_sq", "step")


def latest(folder: Path) -> Path | None:
    """The newest checkpoint in a folder, None if there is none."""
    found = sorted(folder.glob("step-*/" + _STATE))
    return found[-1].parent if found else None


def save(
    folder: Path,
    done: int,
    parameters: Mapping[str, torch.nn.Parameter],
    optimiser: torch.optim.Optimizer,
    log: Mapping[str, list[float]],
    record: Mapping[str, Any],
) -> None:
    """One checkpoint in the place of the ones before, whole or not at all."""
    scratch = folder / f".step-{done:08d}"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    weights = {name: p.detach().contiguous() for name, p in parameters.items()}
    moments = {
        f"{name} {part}": optimiser.state[p][part].detach().contiguous()
        for name, p in parameters.items()
        for part in _NAMES
        if part in optimiser.state.get(p, {})
    }
    moments |= {f"log {name}": torch.tensor(v, dtype=torch.float64) for name, v in log.items()}
    save_file(weights, scratch / _WEIGHTS)
    save_file(moments, scratch / _MOMENTS)
    digests = {name: _digest(scratch / name) for name in (_WEIGHTS, _MOMENTS)}
    state = {"step": done, "identity": record, "sha256": digests, "log": list(log)}
    (scratch / _STATE).write_text(json.dumps(state, indent=2))
    for path in scratch.iterdir():
        with path.open("rb+") as file:
            os.fsync(file.fileno())
    target = folder / f"step-{done:08d}"
    shutil.rmtree(target, ignore_errors=True)
    scratch.rename(target)
    for other in folder.glob("step-*"):
        if other != target:
            shutil.rmtree(other)


def restore(
    kept: Path,
    parameters: Mapping[str, torch.nn.Parameter],
    optimiser: torch.optim.Optimizer,
    record: Mapping[str, Any],
) -> tuple[int, dict[str, list[float]]]:
    """Put a checkpoint's weights and moments back; the steps that were done, and the log."""
    state = json.loads((kept / _STATE).read_text())
    found = state["identity"]
    other = [key for key in {**record, **found} if record.get(key) != found.get(key)]
    if other:
        raise AnalysisError(
            f"the checkpoint in {kept.parent} is of another run: {other[0]} is "
            f"{found.get(other[0])!r} there and {record.get(other[0])!r} here; use another folder"
        )
    for name, digest in state["sha256"].items():
        if _digest(kept / name) != digest:
            raise CorruptionError(f"{kept / name} is not what was written; delete {kept}")
    weights, moments = load_file(kept / _WEIGHTS), load_file(kept / _MOMENTS)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])
            if f"{name} step" in moments:
                optimiser.state[parameter] = {
                    part: moments[f"{name} {part}"].to(
                        "cpu" if part == "step" else parameter.device
                    )
                    for part in _NAMES
                }
    return int(state["step"]), {name: moments[f"log {name}"].tolist() for name in state["log"]}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
