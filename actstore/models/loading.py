"""`load_model`: hub id, folder, GGUF file or loaded model in; checked `LanguageModel` out."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from actstore.errors import ModelError
from actstore.models.language_model import LanguageModel
from actstore.models.source import Source, first_line


def load_model(
    model: Any,
    *,
    tokenizer: Any = None,
    name: str | None = None,
    dtype: Any = "auto",
    device: Any = None,
    revision: str | None = None,
    attn_implementation: str | None = None,
    device_map: Any = None,
    trust_remote_code: bool = False,
    part: Literal["encoder", "decoder"] | None = None,
) -> LanguageModel:
    """Load a model and check that it is understood.

    Parameters
    ----------
    model : str, path, transformers.PreTrainedModel or LanguageModel
        A hub id, a folder with ``config.json`` and safetensors weights, a ``.gguf`` file
        (dequantised to float32 unless ``dtype`` says otherwise), or a loaded model. A
        `LanguageModel` is returned as it is.
    tokenizer : tokenizer, str, path or False, optional
        Default: the one beside the weights. False: none, for pre-tokenised input only.
    name : str, optional
        Label used in stores; default: the last part of the id, folder or file name.
    dtype : str or torch.dtype
        "auto" keeps the checkpoint's own.
    device : str or torch.device, optional
        Default: the first CUDA device where there is one, else the CPU. A model that is
        given loaded stays where it is unless a device is named.
    revision, attn_implementation, device_map, trust_remote_code
        As in transformers. No code of a model repository runs unless ``trust_remote_code``.

    part : {"encoder", "decoder"}, optional
        Of an encoder-decoder (T5, BART), whose states are meant; default: the encoder's. For the
        decoder, each sequence goes into the encoder as it is, and into the decoder behind the
        configuration's ``decoder_start_token_id``. The state at a position is the decoder's
        after it read that token, with the whole sequence before its cross-attention.

    Raises
    ------
    ModelError
        The model, its weights or its tokenizer cannot be had; one line says what to do.
    UnsupportedModelError
        A load-time check failed.
    MissingDependencyError
        A GGUF file is given and the package ``gguf`` or ``accelerate`` is not installed.

    Notes
    -----
    Weights are read from safetensors (or GGUF) only: pickled checkpoints can run code.
    The head is kept only if the checkpoint holds its weights.
    """
    if isinstance(model, LanguageModel):
        return model
    if not isinstance(model, str | Path):
        return _wrap_loaded(model, tokenizer, name, device, part)
    source = Source(model, revision, trust_remote_code)
    kinds = source.auto_classes(part)
    if isinstance(tokenizer, str | Path):
        found = Source(tokenizer, None, trust_remote_code).tokenizer()
    elif tokenizer is None:
        found = source.tokenizer()
    else:
        found = tokenizer or None
    options = {"attn_implementation": attn_implementation, "device_map": device_map}
    chosen = {key: value for key, value in options.items() if value is not None}
    loaded = source.weights(kinds, dtype, chosen)
    if device_map is None and not getattr(loaded, "quantization_method", None):
        loaded = _moved(loaded, _default_device() if device is None else device)
    label = source.label + ("-decoder" if part == "decoder" else "")
    return LanguageModel(loaded, found, name=name or label, origin=source.origin(), part=part)


def _wrap_loaded(
    model: Any,
    tokenizer: Any,
    name: str | None,
    device: Any,
    part: Literal["encoder", "decoder"] | None,
) -> LanguageModel:
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        raise ModelError(
            f"a {type(model).__name__} given as model, expected a hub id, a folder, a .gguf file "
            "or a transformers PreTrainedModel"
        )
    if isinstance(tokenizer, str | Path):
        tokenizer = Source(tokenizer, None, False).tokenizer()
    if device is not None:
        model = _moved(model, device)
    origin = {"source": str(getattr(model.config, "_name_or_path", "") or "") or None}
    return LanguageModel(model, tokenizer or None, name=name, origin=origin, part=part)


def _moved(model: Any, device: Any) -> Any:
    try:
        return model.to(device)
    except (RuntimeError, AssertionError) as error:
        raise ModelError(
            f"the model cannot be moved to device {str(device)!r}: {first_line(error)}"
        ) from error


def _default_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
