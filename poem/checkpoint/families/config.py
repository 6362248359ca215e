"""What a checkpoint's configuration says about quantisation: where it is written, and what is refused outright."""

from collections.abc import Mapping
from typing import Any

# Families whose tensors Poem knows by name. Others rotate, prune or pack weights in ways that no scheme here reads.
KNOWN_METHODS = ("fp8", "compressed-tensors", "mxfp4", "awq", "gptq")


def quantisation_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The quantisation part of a `config.json`, under any of the keys its writers use; {} when there is none."""
    text = config.get("text_config")
    for place in (config, text if isinstance(text, dict) else {}):
        for key in ("quantization_config", "compression_config", "quantization"):
            if isinstance(place.get(key), dict):
                return dict(place[key])
    return {}


def quantisation_problem(settings: Mapping[str, Any]) -> str:
    """Why no weight of such a checkpoint may be read, or ""."""
    method = settings.get("quant_method")
    if method is not None and method not in KNOWN_METHODS and not str(method).startswith("modelopt"):
        return f"checkpoints quantised with {method} are not read"
    for key in ("transform_config", "sparsity_config"):
        if settings.get(key):
            return f"its weights are changed by a {key}, which would need matching work at run time"
    return ""
