"""A public config.json is taken for the model it is of, and for no other size, rope or window."""

from functools import cache
from typing import Any

import pytest

from poem.formats.declared import Format
from poem.formats.states import disagreement
from tests.models.packages import package
from tests.models.public_configs import PUBLIC


class ConfigAlone:
    """A checkpoint of which only config.json matters: it has every tensor that is asked for."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config

    def has(self, name: str) -> bool:
        return name.startswith("model.")

    def config_value(self, path: str) -> Any:
        found: Any = self.config
        for key in path.split("."):
            found = found.get(key) if isinstance(found, dict) else None
        return found

    def attribute_value(self, key: str) -> None:
        return None


def in_transformers_5(config: dict[str, Any]) -> dict[str, Any]:
    """The same config as transformers 5 saves it: rope in one place."""
    moved = dict(config)
    rope = moved.pop("rope_scaling", None) or {"rope_type": "default"}
    return {**moved, "rope_parameters": {**rope, "rope_theta": moved.pop("rope_theta")}}


@cache
def hub(id: str) -> Format:
    """The hub format of a model, without a checkpoint."""
    of = package(PUBLIC[id].package)
    return next(item for item in of.read_formats(f"{id}-bf16-kv-bf16", None) if item.name == "hub")


def accepted(id: str, config: dict[str, Any]) -> bool:
    """Whether a model takes a checkpoint with this config.json."""
    source: Any = ConfigAlone(config)
    if any(disagreement(state, source) for state in hub(id).states):
        return False
    formats = package(PUBLIC[id].package).read_formats(f"{id}-bf16-kv-bf16", source)
    recognizes = next(item for item in formats if item.name == "hub").recognizes
    assert recognizes is not None
    return recognizes().answer


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("id", PUBLIC)
def test_a_public_config_is_taken_for_the_models_with_these_numbers_only(id: str, version: int) -> None:
    config = PUBLIC[id].config
    stated = config if version == 4 else in_transformers_5(config)

    def numbers(of: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in of.items() if key not in ("max_position_embeddings", "head_dim")}

    same = {other for other, public in PUBLIC.items() if numbers(public.config) == numbers(config)}
    assert {other for other in PUBLIC if accepted(other, stated)} == same
