"""What an error looks like."""

import pickle

from poem.errors import Frame, PackageError, PoemErrors, UsageError


def test_an_error_says_where_what_expected_found_and_what_to_try() -> None:
    error = PackageError(
        "layout.bad-shape", "weight() wants a shape of positive integers", phase="layout", file="llama_3.poem", line=57, column=20,
        expected="every extent at least 1", found="[4096, 0] (0 at index 1)", hint="an extent of 0 often comes from an integer division",
        stack=(Frame("llama_3.poem", 71, "layout"), Frame("llama_3.poem", 52, "layer")),
    )  # fmt: skip
    assert error.render() == (
        "llama_3.poem:57:20: layout: weight() wants a shape of positive integers [layout.bad-shape]\n"
        "  expected: every extent at least 1\n"
        "  found:    [4096, 0] (0 at index 1)\n"
        "  hint:     an extent of 0 often comes from an integer division\n"
        "  in layer (llama_3.poem:52), called from layout (llama_3.poem:71)"
    )


def test_at_most_eight_frames_are_shown_the_innermost_kept() -> None:
    stack = [Frame("a.poem", line, f"f{line}") for line in range(1, 21)]
    text = PackageError("x.y", "message", stack=stack).render()
    assert "f20 (a.poem:20)" in text
    assert "f13 (a.poem:13)" in text
    assert "f12" not in text


def test_names_from_hostile_files_cannot_drive_the_terminal() -> None:
    text = PackageError("import.corrupt", "tensor \x1b[2J\x07", file="a\x00b").render()
    assert "\x1b" not in text
    assert "\\x1b[2J\\x07" in text
    assert "a\\x00b" in text


def test_several_faults_are_rendered_one_after_another() -> None:
    errors = PoemErrors([PackageError("a.b", "first"), PackageError("c.d", "second")])
    assert errors.code == "a.b"
    assert errors.render() == "first [a.b]\nsecond [c.d]"
    data = errors.as_json()
    assert data["code"] == "a.b"
    assert [error["message"] for error in data["errors"]] == ["first", "second"]  # type: ignore[index, attr-defined]


def test_errors_can_be_handed_from_one_process_to_another() -> None:
    one = UsageError("usage.x", "it is wrong", phase="check", file="a.poem", line=3, expected="b", found="c", hint="d")
    for error in (one, PoemErrors([one, one])):
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error)
        assert again.render() == error.render()
        assert again.as_json() == error.as_json()
