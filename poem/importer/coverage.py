"""Coverage, both ways: every weight lands once, and every tensor of the checkpoint is accounted for."""

import re
from collections.abc import Iterable, Sequence
from functools import cache

from poem.checkpoint import Checkpoint
from poem.dataclass import dataclass
from poem.errors import CheckpointError
from poem.faults import MAXIMUM_LISTED
from poem.formats.expand import Expansion, Landing
from poem.formats.lazy import Use
from poem.formats.paths import fold
from poem.graph import Param
from poem.suggest import nearest

# Tensors that follow from the configuration; some checkpoints carry them.
DERIVED = re.compile(r"(.*\.)?(rotary_emb\.(inv_freq|cos_cached|sin_cached)|attn\.masked_bias|position_ids)")
_INTEGER = re.compile(r"(?<![A-Za-z0-9_])\d+(?![A-Za-z0-9_])")


@dataclass(frozen=True, slots=True)
class NotRead:
    """Tensors that no weight reads, and why that is right."""

    reason: str
    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.reason}: {', '.join(fold(self.names))}"


def tensors_of(checkpoint: Checkpoint, names: Iterable[str]) -> set[str]:
    """The checkpoint tensors behind names of stored weights, companions included."""
    found: set[str] = set()
    for name in names:
        stored = checkpoint.find(name)
        found.update(stored.tensors if stored is not None else ())
    return found


def accounted(checkpoint: Checkpoint, read: set[str], expansion: Expansion, copies: set[str]) -> tuple[list[NotRead], list[str]]:
    """The tensors that are left out for a known reason, and the rest, which nothing explains."""
    reasons: dict[str, list[str]] = {}
    unread: list[str] = []
    for name in checkpoint.names():
        if name in read:
            continue
        if name in copies:
            reason: str | None = "copies of tied weights"
        elif DERIVED.fullmatch(name):
            reason = "derived from the configuration"
        else:
            reason = next((why for pattern, why in expansion.not_read if _matches(pattern, name)), None)
        if reason is None:
            unread.append(name)
        else:
            reasons.setdefault(reason, []).append(name)
    return [NotRead(reason, tuple(names)) for reason, names in reasons.items()], unread


def _matches(pattern: re.Pattern[str], name: str) -> bool:
    """A name by itself, or as a companion of the stored weight that the pattern names."""
    return any(pattern.fullmatch(form) for form in (name, *_weights_with_companion(name)))


_ENDINGS = ("_scale_inv", "_scale_2", "_scale", "_packed", "_global_scale", "_shape", "_zero_point", "_g_idx", "_blocks", "_scales")
_SIBLINGS = ("qweight", "qzeros", "scales", "biases", "g_idx", "input_scale", "activation_scale", "input_global_scale")


def _weights_with_companion(name: str) -> list[str]:
    """The stored weights that a tensor of this name could belong to."""
    module, _, last = name.rpartition(".")
    return [f"{module}.weight"] * (last in _SIBLINGS) + [name.removesuffix(ending) for ending in _ENDINGS if last.endswith(ending)]


def unlanded(checkpoint: Checkpoint, params: Sequence[Param], unread: Sequence[str]) -> CheckpointError:
    """`import.unlanded-weights`, with unread tensors of the same shape as hints."""
    listed = "; ".join(_unlanded_line(checkpoint, param, unread) for param in params[:MAXIMUM_LISTED])
    return CheckpointError(
        "import.unlanded-weights", f"{_count(len(params), 'weight')} of the layout read nothing", phase="import", file=checkpoint.place,
        expected="one landing for each weight", found=listed + _more(len(params)),
        hint=f"unread in the checkpoint: {_listed(unread)}" if unread else "add pairs for them to the format",
    )  # fmt: skip


def _unlanded_line(checkpoint: Checkpoint, param: Param, unread: Sequence[str]) -> str:
    alike = [name for name in unread if checkpoint.tensors[name].shape == param.shape]
    return f"{param.name} {list(param.shape)}" + (f" (same shape: {', '.join(alike[:3])})" if alike else "")


def unread_tensors(checkpoint: Checkpoint, names: Sequence[str], unlanded_params: Sequence[Param]) -> CheckpointError:
    """`import.unread-tensors`, folded by pattern."""
    hint = "add them to the format, or name them as not read: (name, None)"
    if unlanded_params:
        hint = f"weights without a landing: {', '.join(fold(param.name for param in unlanded_params))}"
    return CheckpointError(
        "import.unread-tensors", f"{_count(len(names), 'tensor')} of the checkpoint {'is' if len(names) == 1 else 'are'} read by nothing",
        phase="import", file=checkpoint.place, expected="every tensor read, or named as not read", found=_listed(names), hint=hint,
    )  # fmt: skip


def missing_tensors(checkpoint: Checkpoint, missing: Sequence[tuple[str, Landing]]) -> list[CheckpointError]:
    """Faults for the first 20 missing tensors, the last saying how many more there are.

    Near names are searched with their integers left out, so a checkpoint of many layers costs no more than one of few.
    """
    forms = {_INTEGER.sub("*", name): name for name in reversed(checkpoint.names())}
    near = cache(lambda form: nearest(form, (other for other in forms if other != form)))
    faults = []
    for name, landing in missing[:MAXIMUM_LISTED]:
        best = near(_INTEGER.sub("*", name))
        faults.append(_missing_tensor(checkpoint, name, landing, _same_place(checkpoint, name, best, forms[best]) if best else ""))
    if len(missing) > MAXIMUM_LISTED:
        faults[-1].message += f" (and {len(missing) - MAXIMUM_LISTED} more of this kind)"
    return faults


def _missing_tensor(checkpoint: Checkpoint, name: str, landing: Landing, near: str) -> CheckpointError:
    """`import.missing-tensor`: what is wanted, by which weight, what is near, and how far indices run."""
    frame = landing.where[-1] if landing.where else None
    return CheckpointError(
        "import.missing-tensor", f"the checkpoint has no `{name}`", phase="import", file=frame.file if frame else checkpoint.place,
        line=frame.line if frame else 0, expected=f"a tensor for the weight {landing.param.name}",
        found=_indices(checkpoint, name), hint=f"did you mean `{near}`?" if near else "",
    )  # fmt: skip


def _indices(checkpoint: Checkpoint, name: str) -> str:
    """How far the first index of a name runs among the names that are otherwise alike."""
    first = _INTEGER.search(name)
    if first is None:
        return ""
    alike = re.compile(re.escape(name[: first.start()]) + r"(\d+)" + r"\d+".join(map(re.escape, _INTEGER.split(name[first.end() :]))))
    found = sorted({int(match[1]) for other in checkpoint.tensors if (match := alike.fullmatch(other))})
    return f"`{name[: first.start()]}*{name[first.end() :]}` for {found[0]} to {found[-1]}" if found else ""


def _same_place(checkpoint: Checkpoint, name: str, form: str, example: str) -> str:
    """The name of another form with the integers of `name`, if the checkpoint has it; else an example of that form."""
    integers = iter(_INTEGER.findall(name))
    same = re.sub(r"\*", lambda _: next(integers, "*"), form)
    return same if same in checkpoint.tensors else example


def partly_read(checkpoint: Checkpoint, uses: Iterable[Use]) -> list[str]:
    """A note for each stored weight of which selections leave a part unread."""
    by_name: dict[str, list[Use]] = {}
    for use in uses:
        by_name.setdefault(use.name, []).append(use)
    notes = []
    for name, found in sorted(by_name.items()):
        axes = {use.axis for use in found}
        stored = checkpoint.find(name)
        if len(axes) != 1 or None in axes or stored is None:
            continue
        axis = axes.pop() or 0
        read = {entry for use in found for entry in use.entries}
        rest = [entry for entry in range(stored.shape[axis]) if entry not in read]
        if rest:
            notes.append(f"`{name}`: {_runs(rest)} of axis {axis} are not read")
    return notes


def _runs(entries: Sequence[int]) -> str:
    """Sorted integers as runs: `0 to 3, 7`."""
    runs: list[list[int]] = []
    for entry in entries:
        if runs and entry == runs[-1][1] + 1:
            runs[-1][1] = entry
        else:
            runs.append([entry, entry])
    said = [str(first) if first == last else f"{first} to {last}" for first, last in runs[:4]]
    return "entries " + ", ".join(said) + (" and more" if len(runs) > 4 else "")


def _listed(names: Sequence[str]) -> str:
    folded = fold(names)
    return ", ".join(folded[:MAXIMUM_LISTED]) + _more(len(folded))


def _more(count: int) -> str:
    return f" and {count - MAXIMUM_LISTED} more" if count > MAXIMUM_LISTED else ""


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
