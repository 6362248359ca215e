"""SmolLM2 135M, imported from its GGUF file: its next tokens are those of transformers on the same weights, and it answers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poem.batch import Chunk
from poem.cli.main import main
from poem.generate import generate_batch
from poem.tokenizer import Tokenizer

pytestmark = pytest.mark.slow
PACKAGE = Path(__file__).parents[2] / "models" / "llama_3.poem"
PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Once upon a time, 3 cats",
    "日本語",
    "<|im_start|>user\nName three colours.<|im_end|>\n<|im_start|>assistant\n",
]
TOKENS = 32
LAYERS = 30


@pytest.fixture(scope="module")
def plan(smollm2_path: Path) -> Any:
    from poem.checkpoint import open_checkpoint
    from poem.importer import plan_import
    from poem.package import load_package

    return plan_import(open_checkpoint(smollm2_path), [load_package(PACKAGE)])


@pytest.fixture(scope="module")
def tokenizer(plan: Any) -> Tokenizer:
    return Tokenizer.from_side_files(plan.checkpoint.side_files)


def session(plan: Any, mode: str) -> Any:
    from interp import Session

    return Session(plan.package.trace(plan.deployment), plan.weights, mode=mode, setting="fast")


def logits(session: Any, ids: Sequence[int]) -> np.ndarray:
    """[len(ids), vocabulary], the whole text read out."""
    return session.run([Chunk(session.add_sequence(), ids, readouts="all")])["logits"]


@pytest.fixture(scope="module")
def original(smollm2_path: Path) -> Any:
    """The original class in float32, its weights rounded to bf16 as the deployment stores them."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(smollm2_path.parent, gguf_file=smollm2_path.name, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(torch.bfloat16).to(torch.float32))
    return model


@pytest.mark.original
def test_next_tokens_and_logits_are_those_of_transformers(plan: Any, tokenizer: Tokenizer, original: Any) -> None:
    import torch

    exact, native = session(plan, "exact"), session(plan, "native")
    prompts = [tokenizer.encode_prompt(prompt) for prompt in PROMPTS]
    tokens = list(generate_batch(exact, prompts, maximum=TOKENS))
    for index, prompt in enumerate(prompts):
        got = [token.id for token in tokens if token.prompt == index]
        with torch.no_grad():
            inputs = torch.tensor([prompt])
            everything = torch.ones_like(inputs)  # otherwise transformers hides <|im_end|>, which is also its padding
            want = original.generate(inputs, attention_mask=everything, max_new_tokens=TOKENS, do_sample=False, eos_token_id=None)
            scores = original(want).logits[0].double().numpy()
        want = want[0].tolist()
        assert prompt + got == want, f"{PROMPTS[index]!r}: got {tokenizer.decode(got)!r}, want {tokenizer.decode(want[len(prompt) :])!r}"
        size = np.linalg.norm(scores)
        # Of float32, one unit of rounding for each of the 60 additions to the residual stream.
        error = np.linalg.norm(logits(exact, want) - scores) / size
        assert error < 2 * LAYERS * 2.0**-24, f"{PROMPTS[index]!r}: exact logits are off by {error:.2e} of their norm"
        # Of bf16, the root of the number of roundings, about twelve a layer, that add up at random.
        error = np.linalg.norm(logits(native, want) - scores) / size
        assert error < np.sqrt(12 * LAYERS) * 2.0**-9, f"{PROMPTS[index]!r}: native logits are off by {error:.2e} of their norm"


def test_it_answers_from_the_package_and_the_checkpoint(smollm2_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", str(PACKAGE), "--checkpoint", str(smollm2_path), "--max-tokens", "24"]
    code = main([*arguments, "--prompt", "What is the capital of France?"])
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    assert "Paris" in out


def test_it_answers_from_its_artifact_several_prompts_at_once(plan: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from poem.artifact import write_artifact

    path = tmp_path / "smollm2.zt"
    write_artifact(path, plan)
    prompts = ("What is the capital of France?", "What is the capital of Italy?")
    code = main(["run", str(path), "--max-tokens", "24", "--stats", *(word for prompt in prompts for word in ("--prompt", prompt))])
    out, err = capsys.readouterr()
    assert code == 0
    france, italy = out.split(f"==> {prompts[1]} <==")
    assert "Paris" in france
    assert "Rome" in italy
    assert "tokens/s" in err
