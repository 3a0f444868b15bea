"""A pruned model measured once: perplexity, and whether its cache and its generation agree."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr

import actstore
from actstore.errors import NonFiniteError
from analysis import perplexity as measuring
from analysis import results
from analysis.training import save_model, token_stream

if TYPE_CHECKING:
    from actstore.models import LanguageModel

NEW_TOKENS = 8


class Judge:
    """Measures a model once, and remembers what it found in the folder."""

    def __init__(
        self,
        model: LanguageModel,
        held_out: actstore.Corpus,
        context: int,
        stride: int | None,
        bos: str,
        cluster: str | None,
        folder: Path,
        progress: bool | None,
    ) -> None:
        self.model, self.held_out, self.folder = model, held_out, folder
        self.options: dict[str, Any] = {
            "context": context,
            "stride": stride,
            "bos": bos,
            "cluster": cluster,
            "progress": progress,
        }

    def __call__(self, name: str, blocks: Sequence[int], key: Any, make: Any) -> xr.Dataset:
        how = {name: value for name, value in self.options.items() if name != "progress"}
        judged = [self.model.fingerprint(), self.held_out.fingerprint(), how]
        record = [actstore.__version__, judged, list(blocks), key]
        digest = hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:12]
        path = self.folder / "measured" / f"{name}-{digest}.zarr"
        if path.exists():
            return results.load(path)
        made = make(self.folder / "distilling" / f"{name}-{digest}")
        if made is not self.model.model:
            save_model(made, self.folder / name, self.model.tokenizer)
        known = actstore.load_model(
            made, tokenizer=self.model.tokenizer or False, name=f"{self.model.name}-{name}"
        )
        try:
            found = measuring.perplexity(known, self.held_out, **self.options)
        except NonFiniteError:
            found = self._lost()
        prompt = self._prompt()
        found["generates"] = ((), generates(made, prompt, NEW_TOKENS))
        found["continuation"] = ((), self._continuation(made, prompt))
        found["parameters"] = ((), sum(p.numel() for p in made.parameters()))
        results.save(found, path)
        return results.load(path)

    def _lost(self) -> xr.Dataset:
        """The whole model's result with every number NaN: logits overflowed."""
        found = measuring.perplexity(self.model, self.held_out, **self.options)
        names = [name for name in found.data_vars if name != "document_tokens"]
        return found.assign({name: found[name] * np.nan for name in names})

    def _prompt(self) -> torch.Tensor:
        stream, _ = token_stream(
            self.model.tokenizer, [next(iter(self.held_out))], self.options["bos"]
        )
        return torch.from_numpy(stream[None, :16])

    def _continuation(self, made: Any, prompt: torch.Tensor) -> str:
        new = greedy(made, prompt, NEW_TOKENS)[0, prompt.shape[1] :].tolist()
        tokenizer = self.model.tokenizer
        return str(new if tokenizer is None else tokenizer.decode(new))


def generates(model: Any, prompt: torch.Tensor, new_tokens: int) -> bool:
    """Whether ``generate`` with its cache equals picking the best token of whole passes.

    Where two tokens are as good as each other, either is right.
    """
    ids = greedy(model, prompt, new_tokens)
    with torch.inference_mode():
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits[0, prompt.shape[1] - 1 :]
    chosen = logits.gather(1, ids[0, prompt.shape[1] :, None])[:, 0]
    best = logits.max(1).values
    return bool((best - chosen <= 1e-3 * best.abs().clamp_min(1)).all())


def greedy(model: Any, prompt: torch.Tensor, new_tokens: int) -> torch.Tensor:
    """The prompt and its greedy continuation, with the model's own ``generate`` and cache; it may
    end sooner, with the model's end token."""
    ids = prompt.to(next(model.parameters()).device)
    found: torch.Tensor = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=new_tokens,
        use_cache=True,
        pad_token_id=0,
    )
    return found
