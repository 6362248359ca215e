"""The interpreter beside transformers on the same shapes, weights and prompts, in the same process and in turns.

    python bench/interpreter.py [--shapes mini,small] [--repeats 5] [--clock wall] [--json]
    python bench/interpreter.py --weights u4g64,nvfp4,e4m3tile128a8 [--shapes small] [--repeats 5] [--clock wall]

Prints for each shape: milliseconds to prefill 128 tokens, milliseconds a decoded token, and seconds from starting a Python process
to its first logits; for the interpreter (fast setting, native bf16) and for transformers' LlamaForCausalLM in f32 and in bf16; and
the ratios transformers / interpreter (above 1: the interpreter is faster). "Bare products" is the time of the model's matrix products
alone, by NumPy on the same f32 matrices: less is not possible there, and for one row it is the time to read them from memory. The best
of the repeats counts: other work on the machine only ever adds time. Where it never stops, `OMP_NUM_THREADS=1 python
bench/interpreter.py --clock cpu` counts processor time of one thread instead. Needs the extra `oracles`.

With `--weights`, the interpreter alone: a decoded token with the layers' matrices in each dtype, with decoded weights kept in f32 and
without, beside bf16 kept in f32.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

PROMPT, DECODED = 128, 24
SHAPES = {
    "mini": {
        "num_hidden_layers": 2, "hidden_size": 256, "intermediate_size": 768, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 64, "vocab_size": 1024,
    },
    "small": {
        "num_hidden_layers": 12, "hidden_size": 768, "intermediate_size": 2048, "num_attention_heads": 12, "num_key_value_heads": 12,
        "head_dim": 64, "vocab_size": 32000,
    },
}  # fmt: skip


# -- the two sides, each made from a directory with weights.npz and config.json -----------------
def interpreter(directory: Path, dtype: str = "bf16", memory: int | None = None) -> Callable[[list[int], bool], np.ndarray]:
    """`step(tokens, fresh)` -> logits of the last token; `fresh` starts a new sequence.

    dtype: of the layers' matrices. memory: bytes of decoded weights to keep, None for the session's own choice.
    """
    sys.path.insert(0, str(Path(__file__).parent.parent))
    import ml_dtypes

    from interp import Session
    from poem.batch import Chunk
    from poem.dtypes import Dtype
    from poem.dtypes.tensor import Tensor

    config = json.loads((directory / "config.json").read_text())
    weights = {name: Tensor.of(array.view(ml_dtypes.bfloat16)) for name, array in np.load(directory / "weights.npz").items()}
    if dtype != "bf16":
        quantised = {name: tensor for name, tensor in weights.items() if "." in name and len(tensor.shape) == 2}
        weights |= {name: Tensor.encode(tensor.decode(), Dtype(dtype)) for name, tensor in quantised.items()}
    session = Session(graph(config, weights), weights, setting="fast", weight_memory=memory)
    current: list[int] = []

    def step(tokens: list[int], fresh: bool) -> np.ndarray:
        if fresh:
            for sequence in current:
                session.drop_sequence(sequence)
            current[:] = [session.add_sequence()]
        return session.run([Chunk(current[0], tokens)])["logits"][0]

    return step


def graph(config: dict[str, Any], weights: dict[str, Any]) -> Any:
    """Llama as a graph, over weights named as below."""
    from poem.graph import ValueType
    from poem.ops.operands import Weight
    from poem.tracer import Tracer

    trace = Tracer("bench", "bench", "bench")
    made = {}
    for name, tensor in weights.items():
        made[name] = Weight(tensor.shape, tensor.dtype)
        trace.add_param(made[name], name)

    def call(op: str, *arguments: Any) -> Any:
        return trace.call(op, arguments, {}, ())

    head_dim, kv_heads = config["head_dim"], config["num_key_value_heads"]
    width = kv_heads * head_dim
    positions = trace.input("positions", ValueType("tokens", 1, "i32"))
    space = trace.add_space("bf16")
    y = call("gather.embed", trace.input("tokens", ValueType("tokens", 1, "i32")), made["embed"], config["vocab_size"])
    for layer in range(config["num_hidden_layers"]):
        pages = trace.cache_handle(trace.add_kv(space, f"kv.{layer}", [width, width], head_dim, True))
        x = call("elemwise.rmsnorm", y, made[f"{layer}.attn_norm"], 1e-5)
        q, k, v = (call("linear.matmul", x, made[f"{layer}.{name}"]) for name in ("q", "k", "v"))
        q, k = call("elemwise.rope", q, k, positions, head_dim, 10000.0)
        call("attn.kv_append", k, v, pages)
        o = call("attn.attend", q, pages, trace.handle, head_dim, kv_heads, head_dim**-0.5)
        y = call("elemwise.residual_add", call("linear.matmul", o, made[f"{layer}.o"]), y)
        x = call("elemwise.rmsnorm", y, made[f"{layer}.mlp_norm"], 1e-5)
        h = call("linear.glu", call("linear.matmul", x, made[f"{layer}.gate_up"]), config["intermediate_size"])
        y = call("elemwise.residual_add", call("linear.matmul", h, made[f"{layer}.down"]), y)
    x = call("elemwise.rmsnorm", y, made["norm"], 1e-5)
    rows = trace.input("readout_rows", ValueType("readouts", 1, "i32"))
    trace.output("logits", call("linear.lm_head", call("gather.gather_rows", x, rows), made["head"]), ())
    return trace.graph()


def bare_products(directory: Path) -> Callable[[list[int], bool], np.ndarray]:
    """The products of the model and nothing else, with the matrices that a session of the fast setting keeps."""
    import ml_dtypes

    from interp.weights import factors
    from poem.dtypes.tensor import Tensor

    config = json.loads((directory / "config.json").read_text())
    weights = {name: Tensor.of(array.view(ml_dtypes.bfloat16)) for name, array in np.load(directory / "weights.npz").items()}
    steps = [
        [f"{layer}.{name}" for name in names]
        for layer in range(config["num_hidden_layers"])
        for names in (("q", "k", "v"), ("o",), ("gate_up",), ("down",))
    ]
    layers = [factors(tuple(weights[name] for name in names), np.float32) for names in steps]
    head = factors((weights["head"],), np.float32)

    def step(tokens: list[int], fresh: bool) -> np.ndarray:
        for matrices in layers:
            x = np.ones((len(tokens), len(matrices[0])), np.float32)
            for matrix in matrices:
                x.dot(matrix)
        return np.concatenate([np.ones((1, len(matrix)), np.float32).dot(matrix)[0] for matrix in head])

    return step


def original(directory: Path, dtype: str) -> Callable[[list[int], bool], np.ndarray]:
    """The same for transformers, in "float32" or "bfloat16"."""
    import torch
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**json.loads((directory / "config.json").read_text()), tie_word_embeddings=False, rms_norm_eps=1e-5)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    state = {}
    with np.load(directory / "weights.npz") as arrays:
        for name, array in arrays.items():
            state |= hub_names(name, torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).to(getattr(torch, dtype)))
    model.load_state_dict(state, assign=True)
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    model.eval()
    cache: list[Any] = [None]

    def step(tokens: list[int], fresh: bool) -> np.ndarray:
        if fresh:
            cache[0] = DynamicCache(config=config)
        with torch.inference_mode():
            found = model(torch.tensor([tokens]), past_key_values=cache[0], use_cache=True, logits_to_keep=1)
        return found.logits[0, -1].float().numpy()

    return step


def hub_names(name: str, tensor: Any) -> dict[str, Any]:
    """The checkpoint names of one of our weights."""
    whole = {"embed": "model.embed_tokens.weight", "norm": "model.norm.weight", "head": "lm_head.weight"}
    if name in whole:
        return {whole[name]: tensor}
    layer, part = name.split(".")
    places = {
        "attn_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm", "down": "mlp.down_proj",
        "q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj",
    }  # fmt: skip
    if part == "gate_up":
        gate, up = tensor.chunk(2)
        return {f"model.layers.{layer}.mlp.gate_proj.weight": gate, f"model.layers.{layer}.mlp.up_proj.weight": up}
    return {f"model.layers.{layer}.{places[part]}.weight": tensor}


SIDES: dict[str, Callable[[Path], Callable[[list[int], bool], np.ndarray]]] = {
    "interpreter": interpreter,
    "transformers f32": lambda directory: original(directory, "float32"),
    "transformers bf16": lambda directory: original(directory, "bfloat16"),
}


# -- measuring ---------------------------------------------------------------------------------
def write_weights(directory: Path, config: dict[str, Any]) -> None:
    import ml_dtypes

    rng = np.random.default_rng(0)
    hidden, inter, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    q, kv = (config[heads] * config["head_dim"] for heads in ("num_attention_heads", "num_key_value_heads"))
    layer = {
        "attn_norm": (hidden,), "q": (q, hidden), "k": (kv, hidden), "v": (kv, hidden), "o": (hidden, q), "mlp_norm": (hidden,),
        "gate_up": (2 * inter, hidden), "down": (hidden, inter),
    }  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {"embed": (vocab, hidden)}
    shapes |= {f"{index}.{name}": shape for index in range(config["num_hidden_layers"]) for name, shape in layer.items()}
    shapes |= {"norm": (hidden,), "head": (vocab, hidden)}
    arrays = {}
    for name, shape in shapes.items():
        values = rng.standard_normal(shape, np.float32) * np.float32(0.04) + np.float32(len(shape) == 1)
        arrays[name] = values.astype(ml_dtypes.bfloat16).view(np.uint16)
    np.savez(directory / "weights.npz", **arrays)  # type: ignore[arg-type]
    (directory / "config.json").write_text(json.dumps(config))


def children_time() -> float:
    """Processor seconds of the processes started so far that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


# Seconds so far: of this process, and for measuring a process started from here.
CLOCKS: dict[str, tuple[Callable[[], float], Callable[[], float]]] = {
    "wall": (time.perf_counter, time.perf_counter),
    "cpu": (time.process_time, children_time),
}


def measure(directory: Path, vocab: int, repeats: int, now: Callable[[], float]) -> dict[str, dict[str, float]]:
    """Best times of each side, the sides taking turns."""
    prompt = np.random.default_rng(1).integers(0, vocab, PROMPT).tolist()
    steps = {name: make(directory) for name, make in SIDES.items()}
    first = {name: step(prompt, True) for name, step in steps.items()}
    exact = first["transformers f32"]
    for name, logits in first.items():
        apart = np.abs(logits - exact).max() / np.abs(exact).max()
        assert apart < 0.1, f"{name} does not compute the same model: logits differ by {apart:.0%}"
    steps["bare products"] = bare_products(directory)
    best = {name: {"prefill_ms": float("inf"), "decode_ms": float("inf")} for name in steps}
    for _ in range(repeats):
        for name, step in steps.items():
            for _ in range(2):
                start = now()
                step(prompt, True)
                best[name]["prefill_ms"] = min(best[name]["prefill_ms"], 1e3 * (now() - start))
            for token in prompt[:DECODED]:
                start = now()
                step([token], False)
                best[name]["decode_ms"] = min(best[name]["decode_ms"], 1e3 * (now() - start))
    return best


def by_precision(directory: Path, vocab: int, dtypes: list[str], repeats: int, now: Callable[[], float]) -> list[tuple[str, str, float]]:
    """(dtype, "kept" or "decoded each time", milliseconds a decoded token), the best of the repeats, taking turns."""
    sides = [
        ("bf16", "kept", None),
        *((dtype, kept, memory) for dtype in dtypes for kept, memory in (("kept", None), ("decoded each time", 0))),
    ]
    steps = [interpreter(directory, dtype, memory) for dtype, _, memory in sides]
    prompt = np.random.default_rng(1).integers(0, vocab, 16).tolist()
    best = [float("inf")] * len(sides)
    for step in steps:
        step(prompt, True)
    for _ in range(repeats):
        for side, step in enumerate(steps):
            for token in prompt:
                start = now()
                step([token], False)
                best[side] = min(best[side], 1e3 * (now() - start))
    return [(dtype, kept, spent) for (dtype, kept, _), spent in zip(sides, best, strict=True)]


def start_up(directory: Path, side: str, repeats: int, now: Callable[[], float]) -> float:
    """Seconds from starting a process to its first logits, the best of the repeats."""
    program = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); from pathlib import Path; import interpreter as bench; "
        f"bench.SIDES[{side!r}](Path({str(directory)!r}))([1, 2, 3], True)"
    )
    times = []
    for _ in range(repeats):
        start = now()
        subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
        times.append(now() - start)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description="The interpreter beside transformers.")
    parser.add_argument("--shapes", default=",".join(SHAPES), help="comma-separated names")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--weights", help="comma-separated dtypes: compare precisions instead")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    report: dict[str, Any] = {}
    own, children = CLOCKS[arguments.clock]
    for shape in arguments.shapes.split(","):
        config = SHAPES[shape]
        with tempfile.TemporaryDirectory() as name:
            directory = Path(name)
            write_weights(directory, config)
            if arguments.weights:
                for dtype, kept, spent in by_precision(
                    directory, config["vocab_size"], arguments.weights.split(","), arguments.repeats, own
                ):
                    print(f"| {shape} | {dtype} | {kept} | {spent:.2f} |")
                continue
            times = measure(directory, config["vocab_size"], arguments.repeats, own)
            for side in SIDES:
                times[side]["start_up_s"] = start_up(directory, side, max(1, arguments.repeats // 2), children)
        report[shape] = times
    if not report:
        return
    if arguments.json:
        print(json.dumps(report, indent=2))
        return
    measures = {"prefill_ms": f"prefill {PROMPT}, ms", "decode_ms": "decode, ms a token", "start_up_s": "start-up, s"}
    print("| shape | measure | " + " | ".join(SIDES) + " | ratio f32 | ratio bf16 | bare products |")
    print("|---|---|" + "---|" * (len(SIDES) + 3))
    for shape, times in report.items():
        for key, label in measures.items():
            row = [times[side][key] for side in SIDES]
            ratios = [f"{theirs / row[0]:.2f}" for theirs in row[1:]]
            bare = f"{times['bare products'][key]:.2f}" if key in times["bare products"] else ""
            print(f"| {shape} | {label} | " + " | ".join([*(f"{number:.2f}" for number in row), *ratios, bare]) + " |")


if __name__ == "__main__":
    main()
