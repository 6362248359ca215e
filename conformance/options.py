"""What a check is asked for."""

from typing import Literal

from poem.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asks for.

    package: path or name. model, deployment: only these. checkpoint: weights. golden: a folder. against: "transformers" runs
    the original class. save_golden: where to keep what it gave. only: a pattern of tensors, files or lines.
    backend: a device to compare with the interpreter.
    """

    package: str
    model: str | None = None
    deployment: str | None = None
    checkpoint: str | None = None
    golden: str | None = None
    against: Literal["transformers"] | None = None
    save_golden: str | None = None
    mode: Literal["exact", "native", "both"] = "both"
    only: str | None = None
    backend: Literal["emu", "cuda"] | None = None
    seed: int = 0

    @property
    def modes(self) -> tuple[str, ...]:
        return ("exact", "native") if self.mode == "both" else (self.mode,)
