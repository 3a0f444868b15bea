"""The four ways in which blocks are taken out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.pruning.distilling import distil, distil_maps
from analysis.pruning.surgery import remove, replace
from analysis.training import Batches, Recipe

if TYPE_CHECKING:
    from actstore.fitting import LinearMap
    from actstore.models import LanguageModel

VARIANTS = ("remove", "replace", "replace_distilled", "remove_distilled")
_FITTED = ("train", "first_token", "intercept", "ridge")
_DISTILLED = ("distil_text", "distil_context", "distil_batch", "seed")
USED: dict[str, tuple[str, ...]] = {
    "whole": (),
    "remove": (),
    "replace": _FITTED,
    "replace_distilled": (*_FITTED, *_DISTILLED, "maps_recipe"),
    "remove_distilled": (*_DISTILLED, "whole_recipe", "logits", "hidden"),
}
"""Which choices make a variant's model what it is, beside the blocks."""


class Pruner:
    """Makes the model of a variant with some blocks taken out."""

    def __init__(
        self,
        model: LanguageModel,
        fit: Callable[[], dict[int, LinearMap]],
        batches: Batches,
        *,
        maps_recipe: Recipe,
        whole_recipe: Recipe,
        first_token: str | int,
        weights: tuple[float, float],
        seed: int,
        progress: bool | None,
    ) -> None:
        self.model, self.batches, self._fit = model, batches, fit
        self.maps_recipe, self.whole_recipe = maps_recipe, whole_recipe
        self.first_token, self.weights = first_token, weights
        self.options: dict[str, Any] = {"seed": seed, "progress": progress}

    @cached_property
    def maps(self) -> dict[int, LinearMap]:
        """Fitted when they are first asked for."""
        return self._fit()

    def __call__(self, variant: str, blocks: Sequence[int], folder: Path) -> Any:
        if variant.startswith("replace"):
            made = replace(self.model, {block: self.maps[block] for block in blocks})
            if variant == "replace_distilled":
                distil_maps(
                    self.model,
                    made,
                    self.batches,
                    recipe=self.maps_recipe,
                    first_token=self.first_token,
                    folder=folder,
                    **self.options,
                )
            return made
        made = remove(self.model, blocks)
        if variant == "remove_distilled":
            distil(
                self.model,
                made,
                self.batches,
                kept=[n for n in range(self.model.n_blocks) if n not in blocks],
                logits=self.weights[0],
                hidden=self.weights[1],
                recipe=self.whole_recipe,
                folder=folder,
                **self.options,
            )
        return made
