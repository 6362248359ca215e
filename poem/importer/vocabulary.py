"""The tokenizer contract: which tokens a model's package and template need, and whether a vocabulary has them."""

from collections.abc import Mapping
from typing import Any, cast

from poem.errors import CheckpointError, PoemError, UsageError
from poem.language.declarations import Deployment
from poem.suggest import nearest

UNRELATED = "the tokenizer belongs to another model, or the package to another checkpoint"


class _Words:
    """A vocabulary as templates ask it for tokens."""

    def __init__(self, vocabulary: Mapping[str, int]) -> None:
        self.token_id = vocabulary.get
        self.size = len(vocabulary)


def broken_contract(deployment: Deployment, vocabulary: Mapping[str, int], place: str) -> list[PoemError]:
    """An `import.tokenizer` for every token that is missing or has another id."""
    from poem.templates.render import stop_ids

    contract = deployment.model.tokenizer
    wanted: dict[str, int | None] = {token: None for group in contract.groups(deployment.parts) for token in group}
    faults: list[PoemError] = []
    for token, id in (wanted | dict(contract.pinned)).items():
        found = vocabulary.get(token)
        if found is None or (id is not None and found != id):
            faults.append(
                CheckpointError(
                    "import.tokenizer",
                    f"the vocabulary does not have {token} as the package's tokenizer contract wants it",
                    phase="import",
                    file=place,
                    expected=f"{token} at {id}" if id is not None else token,
                    found="missing" if found is None else f"at {found}, wanted {id}",
                    hint=_near(token, vocabulary) if found is None else UNRELATED,
                )
            )
    try:
        stop_ids(deployment.model.template, cast(Any, _Words(vocabulary)))
    except UsageError:
        pass  # a format that cannot be rendered yet asks for no tokens
    except CheckpointError as fault:
        if not faults:
            fault.file, fault.phase = place, "import"
            faults.append(fault)
    return faults


def _near(token: str, vocabulary: Mapping[str, int]) -> str:
    """Only marked-up tokens are compared: a vocabulary has hundreds of thousands of words."""
    marked = [word for word in vocabulary if word[:1] == token[:1] and word[-1:] == token[-1:] and len(word) > 2]
    best = nearest(token, marked) if len(marked) < 5000 else None
    return f"the vocabulary has {best}" if best else UNRELATED
