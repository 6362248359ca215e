"""A trunk and the draft head that another repository holds, as one checkpoint."""

from dataclasses import replace
from functools import partial

from poem.checkpoint.checkpoint import Checkpoint
from poem.checkpoint.stored import Stored
from poem.errors import CheckpointError

PREFIX = "aux."


class Joined(Checkpoint):
    """Tensors, configuration and metadata of the head appear under `aux.`; the files beside the weights are the trunk's.

    Each side is read by its own configuration: a quantised trunk may have a plain head.
    """

    def __init__(self, trunk: Checkpoint, head: Checkpoint) -> None:
        """CheckpointError (`import.head`) for a trunk that has something of that prefix already."""
        if trunk.has_prefix(PREFIX) or "aux" in trunk.config:
            raise CheckpointError(
                "import.head", f"this checkpoint has tensors or settings under `{PREFIX}` already", phase="import", file=trunk.place,
                expected="a trunk, to which a head is joined", hint="leave out --head",
            )  # fmt: skip
        super().__init__(
            trunk.place,
            trunk.kind,
            {**trunk.tensors, **{PREFIX + name: raw for name, raw in head.tensors.items()}},
            config={**trunk.config, "aux": head.config},
            metadata={**trunk.metadata, **{PREFIX + key: value for key, value in head.metadata.items()}},
            side_files={name: partial(trunk.side_files.__getitem__, name) for name in trunk.side_files},
            source={**trunk.source, "head": head.source.get("repo", head.place)},
        )
        self._trunk, self._head = trunk, head
        self.quantisation = head.quantisation if head.quantisation.problem else trunk.quantisation

    def find(self, name: str) -> Stored | None:
        if not name.startswith(PREFIX):
            return self._trunk.find(name)
        found = self._head.find(name.removeprefix(PREFIX))
        return None if found is None else replace(found, name=name, tensors=tuple(PREFIX + tensor for tensor in found.tensors))
