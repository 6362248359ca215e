"""Attention gives the same bits whichever block comes last, however a prompt is cut, and for one token alone or in any company."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from cupy_backend.kernels import attn
from tests.cupy_backend.attention import Case, numbers, prepared, run, with_numbers
from tests.cupy_backend.running import schedules


@settings(deadline=None, max_examples=6)
@given(schedule=schedules, decode=st.booleans())
def test_which_block_comes_last_changes_no_bit_and_a_launch_can_be_repeated(schedule, decode):
    case = Case(((900, 3), (5, 1), (400, 2)), decode, pieces=3, seed=9)
    want, want_lse = run(case)
    memory, launches = prepared(case, schedule=schedule)
    for _ in range(2):
        memory["out"][:], memory["lse"][:], memory["scratch"][:] = 0, 0, 0xFF
        memory.run(launches)
        assert (memory["out"].tobytes(), memory["lse"].tobytes()) == (want.tobytes(), want_lse.tobytes()), f"{case}, {schedule}"
        assert not memory["counters"].any(), "counters are 0 again for the next launch"


@settings(deadline=None, max_examples=4)
@given(seed=st.integers(0, 2**31))
def test_decoding_a_lane_gives_the_same_bits_alone_and_in_any_company(seed):
    together = Case(((5, 1), (150, 1), (640, 1)), True, pieces=attn.INVARIANT_PIECES, seed=seed)
    given, k, v = numbers(together)
    out, _ = run(together)
    for lane, chunk in enumerate(together.lanes):
        alone = replace(together, lanes=(chunk,), page_size=32)
        got, _ = with_numbers(alone, given[lane : lane + 1], [k[lane]], [v[lane]])
        assert got.tobytes() == out[lane : lane + 1].tobytes(), f"lane {lane} of {together}"


@settings(deadline=None, max_examples=4)
@given(cut=st.integers(1, 59), window=st.none() | st.integers(1, 40), seed=st.integers(0, 2**31))
def test_how_a_prompt_is_cut_into_passes_changes_no_bit(cut, window, seed):
    whole = Case(((0, 60),), False, window=window, seed=seed)
    q, k, v = numbers(whole)
    out, _ = run(whole)
    for first, stop in ((0, cut), (cut, 60)):
        part = replace(whole, lanes=((first, stop - first),), page_size=4)
        got, _ = with_numbers(part, q[first:stop], [k[0][:stop]], [v[0][:stop]])
        assert got.tobytes() == out[first:stop].tobytes(), f"rows {first}:{stop} of {whole}"


def test_the_number_of_pieces_depends_on_the_batch_only_where_it_may():
    for tiles in (1, 7, 500):
        assert attn.pieces_of(tiles, 8, decode=True, arch="sm_90a", batch_invariant=True) == attn.INVARIANT_PIECES
        assert attn.pieces_of(tiles, 8, decode=False, arch="sm_90a", batch_invariant=True) == 1
    for decode in (True, False):
        found = [attn.pieces_of(tiles, 8, decode=decode, arch="sm_90a", batch_invariant=False) for tiles in (1, 7, 500)]
        assert found == [attn.MAXIMUM_PIECES, 9, 1]
