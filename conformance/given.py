"""Comparisons with what the user names: a checkpoint, a golden, the original class."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from conformance.backend import compare_on_backend
from conformance.golden import EXPECTED, INPUTS, Golden, open_golden, read_prompt, save_golden
from conformance.options import Options
from conformance.planned import inexact, subject_of
from conformance.report import Report
from conformance.traces import traced
from poem.checkpoint import Checkpoint, open_checkpoint
from poem.errors import UsageError
from poem.graph import Graph
from poem.importer import plan_import

if TYPE_CHECKING:
    from poem.package import Package

GREEDY = 8  # tokens the original decodes
PROMPT = 24  # tokens of a prompt drawn at random


def compare_given(package: "Package", options: Options, report: Report, progress: Callable[[str], None]) -> None:
    """Compare the deployment that a checkpoint fits with a golden, with the original class, or its two modes with each other."""
    golden = open_golden(options.golden) if options.golden and not options.against else None
    source = options.checkpoint or _weights_of(golden)
    checkpoint = open_checkpoint(source)
    plan = plan_import(checkpoint, [package], deployment=options.deployment, model=options.model)
    graph = package.trace(plan.deployment)
    report.traces = [traced(graph)]
    report.notes += list(plan.notes)
    # A golden of stated roundings says what becomes of weights; any other computed with the checkpoint's own numbers.
    reason = inexact(plan) if options.against or (golden is not None and not golden.stated) else ""
    if reason:
        raise UsageError(
            "check.inexact", f"the weights of {plan.deployment.name} are not the original's: {reason}", phase="check",
            hint="name a deployment with --deployment that keeps the checkpoint's weights as they are",
        )  # fmt: skip
    if options.against:
        golden = _original(checkpoint, graph, Path(source), options, progress)
    if golden is None:
        progress(f"running {plan.deployment.name} in exact and native mode")
        subject = subject_of(plan, graph, _prompt_alone(graph, options), options)
        report.comparisons.append(subject.compare_modes())
        if options.backend is not None:
            report.comparisons.append(compare_on_backend(subject, options.backend))
        report.notes.append("no original was given: native mode was compared with exact mode. Add --against transformers or --golden DIR")
        return
    progress(f"comparing {plan.deployment.name}")
    subject = subject_of(plan, graph, golden, options)
    report.comparisons += [subject.compared(mode) for mode in options.modes]
    if options.backend is not None:
        report.comparisons.append(compare_on_backend(subject, options.backend))


def _weights_of(golden: Golden | None) -> Path:
    """The folder of a golden's weights. UsageError (`check.golden`) where there are none."""
    assert golden is not None, "neither a checkpoint nor a golden"
    folder = golden.checkpoint
    if not any(file.suffix in (".safetensors", ".gguf") and file.name not in (INPUTS, EXPECTED) for file in folder.iterdir()):
        raise UsageError(
            "check.golden", "the golden holds no weights", phase="check", file=str(folder), expected="--checkpoint DIR besides --golden DIR"
        )
    return folder


def _original(checkpoint: Checkpoint, graph: Graph, folder: Path, options: Options, progress: Callable[[str], None]) -> Golden:
    """Run the original class of a checkpoint."""
    tokens = read_prompt(Path(options.golden)) if options.golden else _random_prompt(graph, options.seed)
    progress("running the original class in transformers")
    try:
        import torch
        import transformers

        from conformance.originals import record_original
    except ModuleNotFoundError as missing:
        raise UsageError(
            "check.original", f"{missing.name} is not installed", phase="check", hint="pip install 'poem-models[oracles]'"
        ) from None
    if not folder.is_dir():
        raise UsageError(
            "check.original", "transformers loads a folder with config.json and weights", phase="check", file=str(folder),
            expected="--checkpoint DIR", found="a file or a name",
        )  # fmt: skip
    try:
        recorded = record_original(folder, np.array(tokens), greedy=GREEDY)
    except Exception as fault:  # transformers, torch and the code of quantisers each have their own
        said, *_ = str(fault).strip().splitlines() or [""]
        raise UsageError(
            "check.original", f"transformers cannot run the original: {type(fault).__name__}: {said}", phase="check", file=str(folder),
            hint="compare with the same model unquantised" if checkpoint.quantisation.everywhere.said else "",
        ) from fault  # fmt: skip
    architectures = checkpoint.config.get("architectures") or ["?"]
    meta = {
        "class": f"transformers.{architectures[0]}",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "run": "float32, eager attention, on the CPU",
    }
    if options.save_golden:
        small = save_golden(Path(options.save_golden), folder, np.array(tokens), recorded, meta)
        progress(f"golden saved in {options.save_golden}{'' if small else ', without the weights, which are too large to commit'}")
    return Golden(f"{meta['class']} of {folder}", tokens, recorded, meta)


def _random_prompt(graph: Graph, seed: int) -> tuple[int, ...]:
    """Token ids drawn evenly from the vocabulary, the first few left out: they are often special."""
    vocabulary = next((int(node.attributes["vocab"]) for node in graph.nodes if node.op == "gather.embed"), 256)
    return tuple(np.random.default_rng(seed).integers(min(3, vocabulary - 1), vocabulary, PROMPT).tolist())


def _prompt_alone(graph: Graph, options: Options) -> Golden:
    """A golden without an original: only a prompt."""
    return Golden("exact mode", _random_prompt(graph, options.seed), {}, {})
