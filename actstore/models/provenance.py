"""What a model is, down to its bytes: fingerprints and a JSON-able description."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from actstore.errors import ModelError


def weights_fingerprint(model: Any) -> str:
    """SHA-256 over names, shapes, dtypes and bytes of all parameters and stored buffers.

    Tied tensors are hashed once and named every time: tied or copied, the model is the same.
    """
    tensors = model.state_dict(keep_vars=True)
    missing = next((name for name, tensor in tensors.items() if tensor.device.type == "meta"), None)
    if missing is not None:
        raise ModelError(
            f"{missing} is not in memory (offloaded to disk), so the weights cannot be "
            "fingerprinted; load the model without disk offload"
        )
    distinct = {_identity(tensor): tensor for tensor in tensors.values()}
    with ThreadPoolExecutor(max_workers=min(8, torch.get_num_threads())) as pool:
        digests = dict(zip(distinct, pool.map(_tensor_digest, distinct.values()), strict=True))
    total = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        line = [name, list(tensor.shape), str(tensor.dtype), digests[_identity(tensor)]]
        total.update(json.dumps(line).encode())
    return total.hexdigest()


def _identity(tensor: torch.Tensor) -> tuple[Any, ...]:
    return (tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())


def _tensor_digest(tensor: torch.Tensor) -> str:
    flat = tensor.detach().contiguous().cpu().reshape(-1)
    return hashlib.sha256(flat.view(torch.uint8).numpy().data).hexdigest()


def tokenizer_fingerprint(tokenizer: Any) -> str | None:
    """SHA-256 of a tokenizer's rules, vocabulary and special tokens; None for no tokenizer."""
    if tokenizer is None:
        return None
    backend = getattr(tokenizer, "backend_tokenizer", None)
    rules = json.loads(backend.to_str()) if backend is not None else tokenizer.get_vocab()
    if backend is not None:
        # set by whoever called the tokenizer last; not part of what it is
        rules.pop("truncation", None)
        rules.pop("padding", None)
    special = {key: str(value) for key, value in tokenizer.special_tokens_map.items()}
    content = [type(tokenizer).__name__, rules, special]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def library_versions() -> dict[str, str]:
    """Versions of the libraries that determine the numbers of a forward pass."""
    return {name: importlib.metadata.version(name) for name in ("torch", "transformers")}


def default_name(model: Any) -> str:
    """A label for a loaded model: the last part of its id, else its type."""
    source = str(getattr(model.config, "_name_or_path", "") or "")
    return safe_name(source.rstrip("/").rpartition("/")[2]) or safe_name(model.config.model_type)


def safe_name(text: str) -> str:
    """Replace what may not stand in a store's label by dashes."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")


def quantisation(config: Any) -> str | None:
    """How the weights are quantised, by the configuration; None if they are not."""
    found = getattr(config, "quantization_config", None)
    if found is None:
        return None
    method = found.get("quant_method") if isinstance(found, dict) else found.quant_method
    return str(getattr(method, "value", method))
