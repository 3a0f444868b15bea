"""The hub's answer to one question, before transformers asks for every file with five retries."""

from __future__ import annotations

NOWHERE = (
    "it is no folder here, not in the hub's local cache, and the hub is out of reach "
    "(HF_HUB_OFFLINE=1, or no network); is the id right?"
)
_PATIENCE = 10.0


def reachable(model: str, revision: str | None) -> bool:
    """Whether the hub answers when asked for a model, whatever it answers; asked once.

    True, too, where nobody is to be asked (``HF_HUB_OFFLINE=1``): transformers does not ask then.
    """
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    if constants.HF_HUB_OFFLINE:
        return True
    try:
        HfApi().model_info(model, revision=revision, timeout=_PATIENCE, expand=["sha"])
    except (HfHubHTTPError, HFValidationError):
        return True
    except Exception:  # of whatever library carries its requests
        return False
    return True


def is_cached(model: str, revision: str | None) -> bool:
    """Whether the hub's local cache has the model's configuration."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        return isinstance(try_to_load_from_cache(model, "config.json", revision=revision), str)
    except HFValidationError:
        return False
