"""What a checkpoint's configuration says about quantisation: which family, what of each module, and what is refused.

The tensors decide how each weight is stored; the configuration confirms it, and settles what bytes cannot tell (the two
forms of GPTQ, the bits of MLX words). It is written in `config.json` (`quantization_config`, the older
`compression_config`, MLX's `quantization`; also under `text_config`), or in modelopt's `hf_quant_config.json`.
"""

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from typing import Any

from poem.dataclass import dataclass

FP8, NVFP4, MXFP4, MLX, PACKED, WORDS = "FP8", "NVFP4", "MXFP4", "MLX", "compressed-tensors", "AWQ or GPTQ"
BITS = (2, 4, 8)
TILE = (128, 128)
NOT_READ = ("bitsandbytes", "hqq", "eetq", "aqlm", "fp_quant", "vptq", "torchao", "quanto", "fbgemm_fp8", "higgs", "spqr", "bitnet")


@dataclass(frozen=True, slots=True)
class Stated:
    """What the configuration says of one module.

    said: how it says so, for messages; "" without a configuration. families: whose tensors it may have. words: how its
    weight may be stored; () for any. ignored: it is excluded from quantisation. problem: why it cannot be read, or "".
    The rest is what some families' tensors do not tell.
    """

    said: str = ""
    families: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    ignored: bool = False
    problem: str = ""
    method: str = ""
    bits: int | None = None
    group: int | None = None
    tile: tuple[int, int] | None = None
    symmetric: bool | None = None
    mode: str = ""
    version: str = ""


NOTHING = Stated()


@dataclass(frozen=True)
class Quantisation:
    """The quantisation part of a configuration. problem: why no weight of the checkpoint may be read, or ""."""

    problem: str = ""
    everywhere: Stated = NOTHING
    excluded: "Names" = field(default_factory=lambda: Names(()))
    by_module: Callable[[str], Stated | None] = lambda module: None

    def module(self, name: str) -> Stated:
        """What is said of a module (a weight's name without `.weight`)."""
        if not self.everywhere.said:
            return NOTHING
        own = self.by_module(name)
        stated = self.everywhere if own is None else own
        return replace(stated, ignored=True) if not stated.ignored and name in self.excluded else stated


class Names:
    """A list of modules: exact names, their beginnings or ends at a dot, globs, or regular expressions after `re:`."""

    def __init__(self, listed: Iterable[Any]) -> None:
        texts = [str(item).removesuffix(".weight") for item in listed if item]
        globs = [fnmatch.translate(text) for text in texts if "*" in text and not text.startswith("re:")]
        # A glob names modules; everything below them is meant as well.
        self._patterns = [_regex(text[3:]) for text in texts if text.startswith("re:")]
        self._patterns += [re.compile(f"(?:{glob[:-2]})(?:\\..*)?\\Z") for glob in globs]
        self._exact = frozenset(text for text in texts if "*" not in text and not text.startswith("re:"))

    def __contains__(self, module: object) -> bool:
        steps = str(module).split(".")
        parts = (".".join(steps[:end]) for end in range(1, len(steps) + 1)), (".".join(steps[start:]) for start in range(len(steps)))
        if self._exact and any(part in self._exact for side in parts for part in side):
            return True
        return any(pattern.match(str(module)) for pattern in self._patterns)


def _regex(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error:
        return re.compile(re.escape(text))


# -- reading a configuration ---------------------------------------------------------------------
def quantisation_of(config: Mapping[str, Any], modelopt: Mapping[str, Any] | None = None) -> Quantisation:
    """What `config.json` (and `hf_quant_config.json`) say about quantisation."""
    settings = _settings(config)
    if not settings and modelopt and isinstance(modelopt.get("quantization"), dict):
        settings = {"quant_method": "modelopt", **modelopt["quantization"]}
    if not settings:
        return Quantisation()
    for key in ("transform_config", "sparsity_config"):
        if settings.get(key):
            return Quantisation(f"its weights are changed by a {key}, which would need matching work at run time")
    method = settings.get("quant_method")
    if method is None:
        if "bits" in settings or "group_size" in settings:
            return _mlx(settings)
        if "quant_algo" in settings:
            return _modelopt(settings)
        return Quantisation("the configuration names no quant_method, so its quantisation is not understood")
    reader = _READERS.get("modelopt" if str(method).startswith("modelopt") else str(method))
    if reader is not None:
        return reader(settings)
    return Quantisation(f"checkpoints quantised with {method} are not read" + ("" if method in NOT_READ else ": the method is not known"))


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    text = config.get("text_config")
    for place in (config, text if isinstance(text, dict) else {}):
        for key in ("quantization_config", "compression_config", "quantization"):
            if isinstance(place.get(key), dict) and place[key]:
                return dict(place[key])
    return {}


def _list(settings: Mapping[str, Any], key: str) -> list[Any]:
    """The list under a key; [] for anything else."""
    found = settings.get(key)
    return found if isinstance(found, list) else []


def _listed(settings: Mapping[str, Any], *keys: str) -> Names:
    return Names(item for key in keys for item in _list(settings, key))


def _fp8(settings: Mapping[str, Any]) -> Quantisation:
    if settings.get("fmt", "e4m3") not in ("e4m3", "float8_e4m3fn"):
        return Quantisation(f"FP8 of the form {settings['fmt']} is not read, only e4m3")
    block = settings.get("weight_block_size")
    if block is None:
        stated = Stated("quant_method fp8 without blocks", (FP8,), ("e4m3tensor", "e4m3row"))
    elif _is_pair(block):
        tile = (block[0], block[1])
        word = "e4m3tile128" if tile == TILE else f"e4m3tile{tile[0]}x{tile[1]}"
        stated = Stated(f"quant_method fp8 in blocks of {tile[0]} by {tile[1]}", (FP8,), (word,), tile=tile)
    else:
        return Quantisation(f"FP8 in blocks of {block!r}: a pair of integers is expected as weight_block_size")
    return Quantisation("", stated, _listed(settings, "modules_to_not_convert", "ignored_layers", "ignore"))


def _is_pair(block: Any) -> bool:
    return isinstance(block, list) and len(block) == 2 and all(type(extent) is int and 2 <= extent <= 1 << 16 for extent in block)


def _mxfp4(settings: Mapping[str, Any]) -> Quantisation:
    stated = Stated("quant_method mxfp4", (MXFP4,), ("mxfp4",))
    return Quantisation("", stated, _listed(settings, "modules_to_not_convert", "ignore"))


def _awq(settings: Mapping[str, Any]) -> Quantisation:
    bits, group = settings.get("bits", settings.get("w_bit")), settings.get("group_size", settings.get("q_group_size"))
    version = str(settings.get("version", "gemm")).lower()
    if version != "gemm":
        return Quantisation(f"AWQ words in the order of version {version} are not read, only gemm")
    if bits != 4:
        return Quantisation(f"AWQ of {bits} bits is not read, only 4")
    symmetric = settings.get("zero_point") is not True
    stated = Stated(f"quant_method awq, group_size {group}", (WORDS,), method="awq", bits=4, group=_group(group), symmetric=symmetric)
    return Quantisation("", stated, _listed(settings, "modules_to_not_convert"))


def _gptq(settings: Mapping[str, Any]) -> Quantisation:
    bits, group = settings.get("bits"), settings.get("group_size")
    form = "marlin" if settings.get("is_marlin_format") else settings.get("checkpoint_format") or settings.get("format") or "gptq"
    if form not in ("gptq", "gptq_v2"):
        return Quantisation(f"GPTQ words in the order of checkpoint_format {form} are not read, only gptq and gptq_v2")
    if bits not in BITS:
        return Quantisation(f"GPTQ of {bits} bits is not read, only 2, 4 and 8")
    if settings.get("dynamic"):
        return Quantisation("GPTQ with other settings for some modules (`dynamic`) is not read")
    stated = Stated(f"quant_method gptq of {bits} bits, group_size {group}", (WORDS,), method="gptq", bits=bits, group=_group(group))
    return Quantisation("", replace(stated, version=form), _listed(settings, "modules_to_not_convert", "modules_in_block_to_not_quantize"))


def _group(size: Any) -> int | None:
    return size if type(size) is int and size > 0 else None


# -- MLX -----------------------------------------------------------------------------------------
def _mlx(settings: Mapping[str, Any]) -> Quantisation:
    common = {key: settings[key] for key in ("bits", "group_size", "mode") if key in settings}

    def by_module(module: str) -> Stated | None:
        own = settings.get(module)
        if own is False:
            return replace(stated(common), ignored=True)
        return stated({**common, **own}) if isinstance(own, dict) else None

    def stated(said: Mapping[str, Any]) -> Stated:
        bits, group, mode = said.get("bits"), said.get("group_size"), said.get("mode", "affine")
        text = f"{bits} bits in groups of {group}" + ("" if mode == "affine" else f", mode {mode}")
        return Stated(text, (MLX,), method="mlx", bits=bits if type(bits) is int else None, group=_group(group), mode=str(mode))

    mode = common.get("mode", "affine")
    if mode not in ("affine", "mxfp4", "nvfp4"):
        return Quantisation(f"MLX weights of mode {mode} are not read")
    return Quantisation("", stated(common), by_module=by_module)


# -- modelopt --------------------------------------------------------------------------------------
_ALGORITHMS = {
    "FP8": Stated("quant_algo FP8", (FP8,), ("e4m3tensor",)),
    "FP8_PER_CHANNEL_PER_TOKEN": Stated("quant_algo FP8_PER_CHANNEL_PER_TOKEN", (FP8,), ("e4m3row",)),
    "FP8_PB_WO": Stated("quant_algo FP8_PB_WO", (FP8,), ("e4m3tile128",), tile=TILE),
    "NVFP4": Stated("quant_algo NVFP4", (NVFP4,), ("nvfp4",)),
}


def _modelopt(settings: Mapping[str, Any]) -> Quantisation:
    algorithm = settings.get("quant_algo")
    excluded = _listed(settings, "exclude_modules", "ignore")
    if algorithm == "MIXED_PRECISION":
        layers = settings.get("quantized_layers")
        layers = layers if isinstance(layers, dict) else {}
        mixed = Stated("quant_algo MIXED_PRECISION", (FP8, NVFP4), ignored=True)  # modules that are not listed are plain
        return Quantisation("", mixed, excluded, lambda module: _algorithm(layers[module]) if module in layers else None)
    stated = _algorithm(settings)
    return Quantisation(stated.problem, stated, excluded)


def _algorithm(settings: Any) -> Stated:
    algorithm = settings.get("quant_algo") if isinstance(settings, dict) else None
    stated = _ALGORITHMS.get(str(algorithm))
    if stated is None:
        return Stated(f"quant_algo {algorithm}", problem=f"weights of modelopt's quant_algo {algorithm} are not read")
    group = settings.get("group_size")
    if algorithm == "NVFP4" and group not in (None, 16):
        return replace(stated, problem=f"NVFP4 in groups of {group} is not read, only 16")
    return stated


# -- compressed-tensors ------------------------------------------------------------------------------
_FORMATS: dict[str, tuple[str, ...]] = {
    "float-quantized": (FP8,),
    "naive-quantized": (FP8,),
    "nvfp4-pack-quantized": (PACKED,),
    "mxfp4-pack-quantized": (PACKED,),
    "pack-quantized": (PACKED,),
    "dense": (),
}
_STRATEGIES = {"tensor": ("e4m3tensor",), "channel": ("e4m3row", "e4m3tensor"), "block": ("e4m3tile128",)}


def _compressed_tensors(settings: Mapping[str, Any]) -> Quantisation:
    whole = str(settings.get("format"))
    groups = settings.get("config_groups")
    groups = [group for group in groups.values() if isinstance(group, dict)] if isinstance(groups, dict) else []
    if whole not in _FORMATS and whole != "mixed-precision":
        return Quantisation(f"compressed-tensors of the format {whole} are not read")
    read = [(_listed(group, "targets"), _list(group, "targets"), _scheme(group, str(group.get("format") or whole))) for group in groups]
    excluded = _listed(settings, "ignore")
    if len(read) == 1 and read[0][2].problem:
        return Quantisation(read[0][2].problem)
    classes = [scheme for _, targets, scheme in read if any(re.fullmatch(r"[A-Z]\w*", str(target)) for target in targets)]
    outside = replace(classes[0], said=f"compressed-tensors {whole}") if classes else Stated(f"compressed-tensors {whole}", ignored=True)

    def by_module(module: str) -> Stated | None:
        return next((scheme for names, _, scheme in read if module in names), None)

    return Quantisation("", outside, excluded, by_module)


def _scheme(group: Mapping[str, Any], form: str) -> Stated:
    """What one group of modules says about its weights."""
    weights = group.get("weights")
    weights = weights if isinstance(weights, dict) else {}
    bits, kind, size, strategy = (weights.get(key) for key in ("num_bits", "type", "group_size", "strategy"))
    stated = Stated(f"compressed-tensors {form}", _FORMATS.get(form, ()), method="compressed-tensors")
    symmetric = weights.get("symmetric", True) is not False
    problem, words, tile = "", tuple[str, ...](), None
    if form not in _FORMATS:
        problem = f"compressed-tensors of the format {form} are not read"
    elif not weights:
        return stated
    elif form in ("float-quantized", "naive-quantized"):
        block = weights.get("block_structure")
        if (bits, kind) != (8, "float") or not symmetric or strategy not in _STRATEGIES:
            problem = f"compressed-tensors of {bits} bits, type {kind}, strategy {strategy} under the format {form} are not read"
        elif strategy == "block" and not _is_pair(block):
            problem = f"FP8 in blocks of {block!r}: a pair of integers is expected as block_structure"
        else:
            tile = (block[0], block[1]) if strategy == "block" and isinstance(block, list) else None
            words = _STRATEGIES[str(strategy)] if tile in (None, TILE) else (f"e4m3tile{tile[0]}x{tile[1]}",)
    elif form == "pack-quantized":
        if bits not in BITS or kind not in (None, "int") or strategy not in (None, "group", "channel"):
            problem = f"packed weights of {bits} bits, type {kind}, strategy {strategy} are not read"
    elif bits != 4 or kind != "float" or not symmetric or size not in (None, 16 if form == "nvfp4-pack-quantized" else 32):
        problem = f"weights of {bits} bits, type {kind}, groups of {size} under the format {form} are not read"
    else:
        words = (form.split("-")[0],)
    return replace(stated, problem=problem, words=words, tile=tile, bits=bits, group=_group(size), symmetric=symmetric)


_READERS: dict[str, Callable[[Mapping[str, Any]], Quantisation]] = {
    "fp8": _fp8,
    "compressed-tensors": _compressed_tensors,
    "modelopt": _modelopt,
    "mxfp4": _mxfp4,
    "awq": _awq,
    "gptq": _gptq,
}
