"""Builtins that come with media models: each name is there and refuses (`media.not-available`)."""

from typing import Any

from poem.language.builtins.record import BUILTINS, Builtin
from poem.language.evaluation import PHASES, Call
from poem.language.inputs import MEDIA

FACTS = ("has", "single_token", "drafts", "block_draft", "scores", "bidirectional", "stream", "reading", "all_of", "none_of")
NAMES = (
    "merge", "switch", "conv", "grid_rule", "segment", "group_block_diagonal", "unmasked", "reference_self_only", "generation",
    "reading", "port", "positions", "latent_space", "schedule", "canvas",
)  # fmt: skip


class _Refusing(Builtin):
    """A builtin that takes anything and refuses."""

    def call(self, call: Call, args: Any, kwargs: Any) -> Any:
        raise call.error("media.not-available", f"{self.shown}() comes with media models, which this version does not have")


for _name in (*NAMES, *(f"fact.{fact}" for fact in FACTS), *(f"inputs.{method}" for method in MEDIA)):
    BUILTINS[_name] = _Refusing(_name, _name, _Refusing.call, PHASES)
