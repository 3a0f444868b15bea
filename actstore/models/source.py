"""A place that a model comes from: hub id, folder or GGUF file; its config, tokenizer, weights."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from actstore.errors import MissingDependencyError, ModelError
from actstore.models.hub import NOWHERE, is_cached, reachable
from actstore.models.provenance import safe_name
from actstore.wording import count


class Source:
    """A place that weights and a tokenizer come from."""

    def __init__(self, where: str | Path, revision: str | None, trust: bool) -> None:
        path = Path(where).expanduser()
        self.where = str(where)
        self.gguf: Path | None = None
        self.local = path.is_dir()
        self.common: dict[str, Any] = {"revision": revision, "trust_remote_code": trust}
        if path.suffix == ".gguf":
            self._check_gguf(path)
            self.gguf = path
            self.location = str(path.parent)
            self.common["gguf_file"] = path.name
            self.label = safe_name(path.stem)
            return
        if path.is_file():
            raise ModelError(f"{where} is a file; expected a folder, a .gguf file or a hub id")
        self.location = str(path) if self.local else self.where
        self.label = safe_name((path.resolve() if self.local else path).name)
        if self.local and not (path / "config.json").is_file():
            raise ModelError(f"folder {where} has no config.json, so it holds no model")
        if not self.local and (path.is_absolute() or self.where.startswith((".", "~"))):
            raise ModelError(f"folder {where} does not exist")
        if not self.local and not reachable(self.where, revision):
            if not is_cached(self.where, revision):
                raise ModelError(f"{where} cannot be loaded: {NOWHERE}")
            self.common["local_files_only"] = True

    def origin(self) -> dict[str, Any]:
        """The part of the provenance that only the loader knows."""
        note = None if self.gguf is None else f"dequantised from {self.gguf.name}"
        # where a folder lies says nothing about what is in it
        outside = not self.local and self.gguf is None
        return {
            "source": self.where if outside else self.label,
            "revision": self._commit() if outside else None,
            "quantisation": note,
        }

    def _commit(self) -> str | None:
        """The commit that the files of a hub id were taken from; None if it cannot be told."""
        from transformers.utils import cached_file, extract_commit_hash

        revision: str | None = self.common["revision"]
        try:
            path = cached_file(
                self.location, "config.json", revision=revision, local_files_only=True
            )
        except OSError:
            return revision
        return extract_commit_hash(path, None) or revision

    def tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        advice = "pass tokenizer=…, or tokenizer=False for pre-tokenised input"
        if self.local and not _has_tokenizer(Path(self.location)):
            raise ModelError(f"folder {self.where} has no tokenizer files; {advice}")
        try:
            return AutoTokenizer.from_pretrained(self.location, **self.common)
        except Exception as error:
            raise ModelError(
                f"no tokenizer for {self.where} ({first_line(error)}); {advice}"
            ) from error

    def auto_classes(self, part: str | None = None) -> list[str]:
        """Names of transformers' auto classes to try, the last of which gives no head."""
        from transformers import AutoConfig

        if self.gguf is not None:
            return ["AutoModelForCausalLM", "AutoModel"]
        try:
            config = AutoConfig.from_pretrained(self.location, **self.common)
        except Exception as error:
            raise ModelError(f"{self.where} cannot be loaded: {_explained(error)}") from error
        return _auto_classes(config, part)

    def weights(self, kinds: list[str], dtype: Any, options: dict[str, Any]) -> Any:
        """Load the model, with its head where the checkpoint has one."""
        import transformers

        if self.local and not any(Path(self.location).glob("*.safetensors")):
            raise ModelError(
                f"folder {self.where} has no *.safetensors weights (pickled checkpoints can run "
                "code and are not read); convert it where you trust it, with transformers' "
                "from_pretrained(…).save_pretrained(…)"
            )
        if self.gguf is not None:
            dtype = "float32" if dtype == "auto" else dtype
        else:
            options = {**options, "use_safetensors": True}
        for kind in kinds:
            auto = getattr(transformers, kind)
            try:
                with _hushed(), _same_draw():
                    model, report = auto.from_pretrained(
                        self.location,
                        dtype=dtype,
                        output_loading_info=True,
                        **self.common,
                        **options,
                    )
            except Exception as error:
                raise ModelError(f"{self.where} cannot be loaded: {_explained(error)}") from error
            missing = sorted(report["missing_keys"])
            inside = [key for key in missing if _is_needed(model, key)]
            if inside:
                raise ModelError(
                    f"{self.where} lacks {count(len(inside), 'weight')} of "
                    f"{type(model).__name__}, first "
                    f"{inside[0]}; is the checkpoint whole, and of this architecture?"
                )
            if not missing or kind == kinds[-1]:
                return model
        raise AssertionError("the last class always returns or raises")

    def _check_gguf(self, path: Path) -> None:
        if not path.is_file():
            raise ModelError(f"file {path} does not exist")
        for package in ("gguf", "accelerate"):
            if importlib.util.find_spec(package) is None:
                raise MissingDependencyError(
                    f"reading {path.name} needs the package {package!r}: pip install {package}, "
                    "or install actstore[demo]"
                )


def _auto_classes(config: Any, part: str | None) -> list[str]:
    from transformers.models.auto import modeling_auto as auto

    architecture = next(iter(config.architectures or ()), "")
    if config.is_encoder_decoder and part == "decoder":
        return ["AutoModelForSeq2SeqLM", "AutoModel"]
    if config.is_encoder_decoder:
        text = auto.MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES
        return ["AutoModelForTextEncoding" if config.model_type in text else "AutoModel"]
    masked = config.model_type in auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    causal = architecture in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    if not architecture:
        causal = config.model_type in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and not masked
    if causal or architecture.endswith(("ForCausalLM", "LMHeadModel")):
        return ["AutoModelForCausalLM", "AutoModel"]
    if masked and architecture.endswith(("ForMaskedLM", "ForPreTraining")):
        return ["AutoModelForMaskedLM", "AutoModel"]
    return ["AutoModel"]


def _is_needed(model: Any, key: str) -> bool:
    """Whether a weight that the checkpoint lacks takes part in the states that are captured."""
    inner = key.removeprefix(f"{model.base_model_prefix}.")
    in_base = model.base_model is model or inner != key
    return in_base and not inner.startswith("pooler.")


def _has_tokenizer(folder: Path) -> bool:
    patterns = ("tokenizer*", "vocab*", "*.model", "spiece*", "*.tiktoken")
    return any(any(folder.glob(pattern)) for pattern in patterns)


@contextmanager
def _same_draw() -> Iterator[None]:
    """Weights that a checkpoint lacks (a pooler, which no state depends on) are drawn alike each
    time, so that the model keeps its fingerprint; the caller's random state is put back."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


@contextmanager
def _hushed() -> Iterator[None]:
    """Keep transformers' loading reports quiet, since what they say is checked here.

    Its progress bar stays where somebody can see it.
    """
    from transformers.utils import logging

    verbosity, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    if not sys.stderr.isatty():
        logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bar:
            logging.enable_progress_bar()


def _explained(error: Exception) -> str:
    text = str(error)
    if "trust_remote_code" in text:
        return "it needs code of its own repository; pass trust_remote_code=True if you trust it"
    if "offline" in text.lower() or "couldn't connect" in text.lower():
        return NOWHERE
    if "mismatched" in text:
        return "the shapes of its weights are not those of its config.json"
    return first_line(error)


def first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
