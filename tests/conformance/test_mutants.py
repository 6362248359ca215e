"""Mutants: what the operators change, that sources with mutants in them give the same bits, and that each kind of mistake is found."""

import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conformance import mutants
from conformance.mutants import generate
from conformance.mutants.engine import Engine, FalseAlarm, Result
from conformance.mutants.equivalent import entries, read, sorted_out
from conformance.mutants.generate import Mutant, Schemata, all_mutants, files_of, mutants_of
from conformance.mutants.operators import OPERATORS
from conformance.mutants.processes import cpu_limit, in_processes
from conformance.mutants.report import MutantReport, as_text
from conformance.mutants.switch import Switch
from conformance.mutants.trials import ExampleTrial
from cupy_backend import sources
from cupy_backend.emulator import EmulatedDevice, Schedule
from cupy_backend.launch import Array, Launch, Scalar
from poem.dataclass import dataclass
from poem.errors import UsageError

# A small function, and what the operator makes of its lines.
OPERATOR_CASES = {
    "missing barrier": (
        "void f() {\n  __syncthreads();\n  if (__syncthreads_or(x > 0)) g();\n  other();\n}",
        [";", "if ((x > 0)) g();"],
    ),
    "wait off by one": (
        "void f(int b) {\n  cp_async_wait<STAGES - 2>();\n  mbarrier_wait(b, s % 2 ^ 1);\n  mbarrier_init(b, 2);\n}",
        ["cp_async_wait<(STAGES - 2) + 1>();", "mbarrier_wait(b, 1 ^ (s % 2 ^ 1));", "mbarrier_init(b, 2 + 1);"],
    ),
    "weaker order": (
        "void f() {\n  if (atomic_add_acq_rel(c + 1, 1u) == 0) store_release(c, 0u);\n}",
        ["if (atomicAdd(c + 1, 1u) == 0) store_release(c, 0u);", "if (atomic_add_acq_rel(c + 1, 1u) == 0) *(c) = 0u;"],
    ),
    "wrong comparison": (
        "void f(int a, int b) {\n  x = a + 1 < b * 2 && a == b;\n}",
        ["x = a + 1 <= b * 2 && a == b;", "x = a + 1 < b * 2 && a != b;"],
    ),
    "missing guard": (
        "void f(int a, int b) {\n  if (a < b || c) g();\n}",
        ["if (true) g();", "if (false) g();", "if (a < b) g();", "if (c) g();"],
    ),
    "missing mask": (
        "void f(int a) {\n  x = a < 3 ? b : c ? d : e;\n  y = FAST ? a : b;\n}",
        ["x = b;", "x = c ? d : e;", "x = a < 3 ? b : d;", "x = a < 3 ? b : e;"],
    ),
    "missing term": (
        "void f(int a, float b) {\n  x = a + 1 - a * 2;\n  y = b / 2.0f >> 1;\n  z = p - a;\n}",
        ["x = a - a * 2;", "x = a + 1 - a;", "y = b / 2.0f;", "y = b >> 1;"],
    ),
    "wrong operator": (
        "void f(int lane, float b) {\n  x = lane / 4 + lane % 4;\n  y = b / c & m;\n}",
        ["x = lane % 4 + lane % 4;", "x = lane / 4 + lane / 4;", "y = b / c | m;"],
    ),
    "swapped operands": (
        "void f(int a, int b, const int* p, Pack<int, 4> v) {\n  x = a - b - 1;\n  g(a, b, p);\n  y = min(a, b) + fmaf(a, b, 1);\n"
        "  h(v, a, p);\n  z = Row<4>(p).at(a, b);\n}",
        ["x = (b) - (a) - 1;", "x = (1) - (a - b);", "g(b, a, p);", "y = min(a, b) + fmaf(a, 1, b);", "z = Row<4>(p).at(b, a);"],
    ),
    "wrong index": (
        "void f(int i) {\n  float v[4];\n  x = v[i] + v[0] + gains[i] + pages[i];\n}",
        ["x = v[0] + v[0] + gains[i] + pages[i];", "x = v[i] + v[1] + gains[i] + pages[i];"],
    ),
    "wrong scale index": ("void f(int i) {\n  x = gains[i + 1] + v[i];\n}", ["x = gains[0] + v[i];"]),
    "wrong page": ("void f(int i) {\n  x = b.pages[i >> 4] + v[i];\n}", ["x = b.pages[0] + v[i];"]),
    "wrong variable": (
        "void f(int rows, int width, float e, const float* x, const float* y) {\n"
        "  const int r = 0, c = r * width;\n  z = x[c] + y[r] + e;\n}",
        ["const int r = 0, c = r * rows;", "z = y[c] + y[r] + e;", "z = x[r] + y[r] + e;", "z = x[c] + x[r] + e;", "z = x[c] + y[c] + e;"],
    ),
    "wrong constant": (
        "void f(int a) {\n  x = a * 16 + 0x80u;\n  y = 0.5f + 0.0f;\n  z = a < 0 ? -1 : v[2];\n}",
        ["x = a * (16 + 1) + 0x80u;", "x = a * 16 + (0x80u >> 1);", "y = (0.5f * 1.03125f) + 0.0f;", "y = 0.5f + 1.0f;",
         "z = a < (0 + 1) ? -1 : v[2];"],
    ),
    "wrong sign": (
        "void f(float a) {\n  x = !done + -a * ~(b + c)[1];\n}",
        ["x = done + -a * ~(b + c)[1];", "x = !done + a * ~(b + c)[1];", "x = !done + -a * (b + c)[1];"],
    ),
    "wrong bound": ("void f(int a) {\n  x = min(a, 2) + fmaxf(y, z);\n}", ["x = max(a, 2) + fmaxf(y, z);", "x = min(a, 2) + fminf(y, z);"]),
    "wrong rounding": (
        "void f(float a) {\n  x = from_float<T>(a + 1.0f);\n  y = pack<bf16>(a, b) + to_float(from_float<OUT>(a)) + rintf(a);\n}",
        ["x = from_float<T>(towards_zero<T>(a + 1.0f));",
         "y = pack<bf16>(towards_zero<bf16>(a), towards_zero<bf16>(b)) + to_float(from_float<OUT>(a)) + rintf(a);",
         "y = pack<bf16>(a, b) + (a) + rintf(a);",
         "y = pack<bf16>(a, b) + to_float(from_float<OUT>(towards_zero<OUT>(a))) + rintf(a);",
         "y = pack<bf16>(a, b) + to_float(from_float<OUT>(a)) + truncf(a);"],
    ),
    "missing statement": ("void f(int a) {\n  x[a] = a;\n  store<T>(x, a);\n  __syncthreads();\n  x[0] += a;\n}", [";", ";"]),
    "missing accumulation": (
        "void f(int a) {\n  for (int i = 0; i < a; i += 2) s += a * i;\n}",
        ["for (int i = 0; i < a; i += 2) s = a * i;"],
    ),
    "wrong stride": (
        "void f(int a) {\n  for (int i = a; i < 9; i += a) g();\n  for (int i = 0; i < 9; ++i) g();\n}",
        ["for (int i = a; i < 9; i += 2 * (a)) g();", "for (int i = 0; i < 9; i += 2) g();"],
    ),
}  # fmt: skip


def mutants_of_text(text: str, folder: Path) -> list[Mutant]:
    path = folder / "small.cu"
    path.write_text(text + "\n")
    return mutants_of(path, folder)


def test_every_operator_is_shown() -> None:
    assert OPERATOR_CASES.keys() == OPERATORS.keys()


@pytest.mark.parametrize("operator", OPERATOR_CASES)
def test_an_operator_makes_these_mistakes_and_no_others(operator: str, tmp_path: Path) -> None:
    text, want = OPERATOR_CASES[operator]
    got = [mutant.becomes for mutant in mutants_of_text(text, tmp_path) if mutant.operator == operator]
    assert sorted(got) == sorted(want)


@pytest.mark.parametrize(
    "text",
    [
        "constexpr int A = B + 1;", "using T = Pack<float, N / 2>;", "POEM_SHARED(int, s, [N + 1]);", 'static_assert(N % 2, "even");',
        "float v[N + 1][2];", "f<A + 1>();", "g(sizeof(T[N / 2]));", "if constexpr (N > 1) h();", "const int* const p = nullptr;",
    ],
)  # fmt: skip
def test_what_the_compiler_evaluates_is_left_alone(text: str, tmp_path: Path) -> None:
    made = mutants_of_text(f"template <int N> void f() {{\n  {text}\n}}", tmp_path)
    assert {mutant.operator for mutant in made} <= {"missing statement"}


def test_functions_and_folds_of_constants_that_the_compiler_evaluates_are_left_alone(tmp_path: Path) -> None:
    text = "constexpr int f(int a) { return a + 1; }\ntemplate <int... N> void g(int a) {\n  a = (N + ...);\n  ((a = a + N), ...);\n}"
    made = {mutant.becomes for mutant in mutants_of_text(text, tmp_path)}
    assert made == {";", "((a = a), ...);"}, "what a fold does with each argument is not known to the compiler"


def test_what_only_a_device_or_only_the_emulator_sees_is_left_alone(tmp_path: Path) -> None:
    text = "int f(int a) {\n#ifdef POEM_EMULATED\n  a = a + 1;\n#else\n  a = a + 2;\n#endif\n  return a;  // a + 3\n}"
    assert not mutants_of_text(text, tmp_path)


def test_names_stand_for_the_innermost_variable_that_is_visible(tmp_path: Path) -> None:
    text = """void f(int a, int b) {
  auto g = [a](int c, int d) { return a + c; };
  for (int b = 0; b < 3; ++b) h(a);
}"""
    changed = {mutant.becomes for mutant in mutants_of_text(text, tmp_path) if mutant.operator == "wrong variable"}
    assert changed == {"auto g = [a](int c, int d) { return a + d; };"}, "b is not captured, and hidden in the loop"


def test_mutants_nest_and_lines_keep_their_numbers(tmp_path: Path) -> None:
    text = "void f(int a, int b) {\n  if (a < b &&\n      b > 2)\n    g(a + 1);  // why\n}\n"
    made = mutants_of_text(text, tmp_path)
    woven = Schemata(text + "\n", made)
    assert woven.text.count("\n") == text.count("\n") + 1
    assert all(woven.text.count(f"MUTANT({mutant.number})") == 1 for mutant in made)
    for start, end, mutant in woven.places:
        line, column = woven.text.count("\n", 0, start) + 1, start - woven.text.rfind("\n", 0, start)
        assert woven.text[start:end] == mutant.replacement
        assert woven.at(line, column) == mutant


def test_keys_outlive_other_edits_and_tell_equal_lines_apart(tmp_path: Path) -> None:
    text = "void f(int a) {\n  g(a + 1);\n  h(a);\n  g(a + 1);\n}"
    made = [mutant.key for mutant in mutants_of_text(text, tmp_path) if mutant.operator == "missing term"]
    assert made == [("small.cu", "f", 1, "g(a + 1);", "g(a);"), ("small.cu", "f", 2, "g(a + 1);", "g(a);")]
    assert made == [mutant.key for mutant in mutants_of_text(f"int other;\n{text}", tmp_path) if mutant.operator == "missing term"]


# -- the sources -------------------------------------------------------------------------------
def test_every_kernel_file_has_mutants_and_together_there_are_hundreds() -> None:
    made = all_mutants(sources.folder())
    files = {mutant.file for mutant in made}
    assert {path.name for path in sources.folder().glob("*.cu")} <= files | set(generate.NOT_MUTATED)
    assert len(made) >= 300
    assert {mutant.operator for mutant in made} == OPERATORS.keys()
    assert len({mutant.key for mutant in made}) == len(made), "keys tell mutants apart"


@pytest.mark.parametrize("path", files_of(sources.folder()), ids=lambda path: path.name)
def test_no_entry_of_the_equivalent_mutants_is_stale(path: Path) -> None:
    reasons, stale = sorted_out(mutants_of(path, sources.folder()), entries(path.name))
    assert not stale, "\n".join(map(str, stale))
    assert all(len(why) > 20 for why in reasons.values()), "a reason is an argument"


@pytest.mark.parametrize("path", files_of(sources.folder()), ids=lambda path: path.name)
def test_examples_of_the_suite_exist(path: Path) -> None:
    names = [trial.name for trials in mutants.rounds(path.name) for trial in trials]
    assert names
    assert len(set(names)) == len(names)
    assert all(ExampleTrial(name).schedule for name in names)


def test_a_sample_has_every_kind_of_mistake_in_every_function() -> None:
    made = all_mutants(sources.folder(), ["rope.cu"])
    few, more = mutants.sampled(made, 1), mutants.sampled(made, 2)

    def kinds(among: Sequence[Mutant]) -> Counter[tuple[str, str]]:
        return Counter((mutant.function, mutant.operator) for mutant in among)

    assert set(few) < set(more) < set(made)
    assert kinds(few) == dict.fromkeys(kinds(made), 1)
    assert kinds(more) == {kind: min(count, 2) for kind, count in kinds(made).items()}


@pytest.mark.slow
@pytest.mark.parametrize("path", files_of(sources.folder()), ids=lambda path: path.name)
def test_a_sample_of_the_mistakes_is_found(path: Path) -> None:
    report = mutants.run(files=[path.name], sample=1)
    assert report.passed, as_text(report)


def test_a_list_of_equivalents_is_read_as_it_is_written() -> None:
    text = "# One reason\n# on two lines.\n@@ a.cu f\n-x + 1\n+x\n+x - 1\n@@ a.cu g 2\n-y\n+z\n\n# Another.\n@@ b.cu f\n-u\n+v\n"
    assert [(entry.key, entry.why) for entry in read(text)] == [
        (("a.cu", "f", 1, "x + 1", "x"), "One reason on two lines."),
        (("a.cu", "f", 1, "x + 1", "x - 1"), "One reason on two lines."),
        (("a.cu", "g", 2, "y", "z"), "One reason on two lines."),
        (("b.cu", "f", 1, "u", "v"), "Another."),
    ]
    with pytest.raises(ValueError, match="line 2"):
        list(read("# why\n+x\n"))


# -- small kernels -----------------------------------------------------------------------------
KERNEL = """#include "prelude.cuh"
using namespace poem;
template <int THREADS> __global__ void mean(const float* x, float* out, int rows, int width, float eps) {
  POEM_SHARED(float, partial, [THREADS]);
  const int t = threadIdx.x, row = blockIdx.x;
  float sum = 0.0f;
  for (int i = t; i < width; i += THREADS) sum += x[row * width + i];
  partial[t] = sum;
  __syncthreads();
  for (int by = THREADS / 2; by > 0; by /= 2) {
    if (t < by) partial[t] += partial[t + by];
    __syncthreads();
  }
  if (t == 0) out[row] = partial[0] / (float)width + eps;
}
"""


@dataclass(frozen=True, slots=True)
class Mean:
    """Means of rows against NumPy's. wrong: makes it fail without a mutant."""

    name: str = "means"
    rows: int = 3
    width: int = 70
    wrong: bool = False

    @property
    def schedule(self) -> Schedule:
        return Schedule()

    def judge(self, device: EmulatedDevice) -> str:
        x = np.random.default_rng(0).standard_normal((self.rows, self.width)).astype(np.float32)
        got = means(device, x, 0.5)
        want = x.mean(axis=1, dtype=np.float64) + 0.5 + self.wrong
        return "" if np.abs(got - want).max() < 1e-5 else "the means are wrong"


def means(device: EmulatedDevice, x: np.ndarray, eps: float) -> np.ndarray:
    rows, width = x.shape
    memory = {"x": device.upload(x), "out": device.empty((rows,), "f32")}
    arguments = {
        "x": Array("x", "read", x.shape, "f32"), "out": Array("out", "write", (rows,), "f32"), "rows": Scalar(rows, "i32"),
        "width": Scalar(width, "i32"), "eps": Scalar(eps, "f32"),
    }  # fmt: skip
    device.run(Launch("mean.cu", "mean<32>", (rows, 1, 1), (32, 1, 1), arguments), memory)
    return memory["out"]


@pytest.fixture
def small_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of sources with one kernel, and the prelude and emulator of the others."""
    real, cached = sources.folder(), (sources.prelude_digest, sources.emulator_headers_digest, sources.emulator_digest)
    for name in ("prelude.cuh", "prelude", "emu"):
        (tmp_path / name).symlink_to(real / name)
    (tmp_path / "mean.cu").write_text(KERNEL)
    with monkeypatch.context() as patch:
        patch.setattr(sources, "folder", lambda: tmp_path)
        patch.setattr(generate, "PRELUDE", ())
        for function in cached:
            function.cache_clear()
        yield tmp_path
    for function in cached:
        function.cache_clear()


@pytest.fixture
def engine(small_sources: Path) -> Engine:
    made = Engine(all_mutants(small_sources))
    made.round([Mean()])
    return made


def test_mistakes_are_found_by_the_checker_a_bound_or_the_watchdog(engine: Engine) -> None:
    found = {result.mutant.becomes: (result.verdict, result.how) for result in engine.results.values()}
    for becomes, want in (
        ("float sum = 1.0f;", ("bound", "the means are wrong")),
        ("for (int i = t; i < width; i += THREADS) sum = x[row * width + i];", ("bound", "the means are wrong")),
        ("for (int i = t; i <= width; i += THREADS) sum += x[row * width + i];", ("checker", "emu.bounds")),
        ("if (t == 0) out[0] = partial[0] / (float)width + eps;", ("checker", "emu.conflict")),
        ("if (true) out[row] = partial[0] / (float)width + eps;", ("checker", "emu.race")),
        ("if (false) out[row] = partial[0] / (float)width + eps;", ("checker", "emu.incomplete")),
        ("for (int by = THREADS / 2; by >= 0; by /= 2) {", ("hang", "SIGPROF")),
        ("if (t == 0) out[row] = partial[0] / (float)width;", ("bound", "the means are wrong")),
    ):
        assert found[becomes] == want, becomes
    missing = [result for result in engine.results.values() if result.mutant.operator == "missing barrier"]
    assert [result.how for result in missing] == ["emu.unwritten", "emu.race"], "a barrier that stands first, and one in a loop"


def test_mutants_that_no_launch_reaches_are_not_tried(small_sources: Path) -> None:
    (small_sources / "mean.cu").write_text(KERNEL + "template <int N> __global__ void other(float* x) { x[threadIdx.x] = 1.0f; }\n")
    made = Engine(all_mutants(small_sources))
    made.round([Mean()])
    others = [result for result in made.results.values() if result.mutant.function == "other"]
    assert others
    assert {(result.verdict, result.tried) for result in others} == {("unreached", ())}


def test_sources_with_all_mutants_off_give_the_same_bits_as_without(small_sources: Path, tmp_path: Path) -> None:
    Switch()  # which the mutated kernels ask
    generate.write(small_sources, tmp_path / "mutated", all_mutants(small_sources))
    x = np.random.default_rng(1).standard_normal((4, 100)).astype(np.float32)
    got, want = (means(device, x, 1e-5) for device in (EmulatedDevice(folder=tmp_path / "mutated"), EmulatedDevice()))
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


def test_a_trial_that_fails_without_a_mutant_is_a_false_alarm(small_sources: Path) -> None:
    with pytest.raises(FalseAlarm, match="means: the means are wrong"):
        Engine(all_mutants(small_sources)).round([Mean(wrong=True)])


def test_a_mutant_that_does_not_compile_is_left_out(small_sources: Path) -> None:
    made = all_mutants(small_sources)
    broken = replace(made[0], replacement="no such thing")
    engine = Engine([broken, *made[1:]])
    engine.round([Mean()])
    assert engine.uncompilable == [broken]
    assert engine.results.keys() == {mutant.number for mutant in made[1:]}


# -- processes ---------------------------------------------------------------------------------
def died(last: str, signal_name: str, hung: bool) -> str:
    return f"{last}, {signal_name}, {'hung' if hung else 'crashed'}"


def attempts(mutant: Mutant, on: Sequence[str]) -> Iterator[str]:
    for what in on:
        yield f"began {what}"
        if what == "hang":
            cpu_limit(0.1)
            while True:
                pass
        elif what == "crash":
            os.abort()
        elif what == "eat":
            held = [bytearray(1 << 28) for _ in range(64)]
            yield f"ate {len(held)}"
        elif what == "raise":
            raise UsageError("x", "told")
        yield f"ended {what}"


@pytest.fixture
def some_mutant(tmp_path: Path) -> Mutant:
    return mutants_of_text("void f(int a) {\n  g(a + 1);\n}", tmp_path)[0]


@pytest.mark.parametrize(
    ("on", "want"),
    [(["a", "b"], "ended b"), (["a", "hang"], "began hang, SIGPROF, hung"), (["crash", "b"], "began crash, SIGABRT, crashed")],
)
def test_what_a_process_said_last_and_how_it_ended_is_known(some_mutant: Mutant, on: list[str], want: str) -> None:
    assert list(in_processes([(some_mutant, on)], attempts, died, 2, float("inf"))) == [want]


@pytest.mark.parametrize(("on", "error"), [(["eat"], MemoryError), (["a", "raise"], UsageError)])
def test_errors_of_a_process_are_raised(some_mutant: Mutant, on: list[str], error: type[BaseException]) -> None:
    with pytest.raises(error):
        list(in_processes([(some_mutant, on)], attempts, died, 1, float("inf")))


def test_nothing_begins_after_the_deadline(some_mutant: Mutant) -> None:
    assert not list(in_processes([(some_mutant, ["a"])], attempts, died, 1, time.monotonic() - 1.0))


# -- the report --------------------------------------------------------------------------------
@pytest.fixture
def report(tmp_path: Path) -> MutantReport:
    made = mutants_of_text("void f(int a) {\n  g(a + 1);\n  h(a < 2);\n}", tmp_path)
    survivor = next(mutant for mutant in made if mutant.operator == "wrong comparison")
    results = [
        Result(mutant, "survived", "", "", ("one", "two")) if mutant == survivor else Result(mutant, "checker", "emu.race", "one", ("one",))
        for mutant in made
    ]
    return MutantReport(results, {}, texts={"small.cu": (tmp_path / "small.cu").read_text()})


def test_a_survivor_is_shown_with_its_diff_and_what_was_tried(report: MutantReport) -> None:
    shown = as_text(report)
    assert "SURVIVED small.cu:3:5 wrong comparison, in f: 2 examples reach it" in shown
    assert "-  h(a < 2);\n+  h(a <= 2);" in shown
    assert "tried one two" in shown
    assert shown.splitlines()[-1].startswith("FAILED: ")
    assert not report.passed


def test_a_report_counts_by_file_and_by_operator(report: MutantReport) -> None:
    (row,) = report.counts(lambda result: result.mutant.file).values()
    assert (row["mutants"], row["by checker"], row["survived"]) == (len(report.results), len(report.results) - 1, 1)
    made = report.as_json()
    assert made["verdict"] == "failed"
    assert made["operators"]["wrong comparison"]["survived"] == 1
    assert {item["outcome"] for item in made["mutants"]} == {"by checker", "survived"}


def test_an_equivalent_mutant_is_no_survivor_and_must_not_be_found(report: MutantReport) -> None:
    numbers = {result.verdict: result.mutant.number for result in report.results}
    right = MutantReport(report.results, {numbers["survived"]: "it cannot be seen"}, texts=report.texts)
    assert right.passed
    wrong = MutantReport(report.results, {numbers["survived"]: "x", numbers["checker"]: "it cannot be seen"}, texts=report.texts)
    assert not wrong.passed
    assert "NOT EQUIVALENT" in as_text(wrong)


def test_an_unknown_file_is_refused() -> None:
    with pytest.raises(UsageError, match="no kernel file is called that"):
        mutants.run(files=["nothing.cu"])
