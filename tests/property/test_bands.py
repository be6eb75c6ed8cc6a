"""Bands of good runs: how often a further run leaves them, and what the margin promises."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from traincheck.vocab.bands import MAX_OCTAVE, Band, band_of_runs, band_of_text, octave_of, text_of

OCTAVES = st.integers(-60, 60)
RUNS = st.lists(st.lists(OCTAVES, min_size=1, max_size=5), min_size=3, max_size=8)


def leaves(run: Sequence[int], band: Band) -> bool:
    return not set(run) <= set(band.allowed)


@given(RUNS)
def test_at_most_two_runs_lie_outside_the_range_of_the_others(runs: list[list[int]]) -> None:
    """Each of n + 1 exchangeable runs is equally likely to be the last, so that leaves a range in 2 / (n + 1) of cases
    at most."""
    ranges = [band_of_runs(others, others, 0)._replace(margin=0) for others in without_each(runs)]
    assert sum(leaves(run, band) for run, band in zip(runs, ranges, strict=True)) <= 2


@given(RUNS, st.integers(0, 8))
def test_each_run_lies_in_the_band_of_the_others_with_the_same_margin(runs: list[list[int]], least: int) -> None:
    band = band_of_runs(runs, runs, least)
    assert band.margin >= least
    for run, others in zip(runs, without_each(runs), strict=True):
        assert not leaves(run, band)
        assert not leaves(run, band_of_runs(others, others, 0)._replace(margin=band.margin - least))


@given(RUNS, st.randoms(use_true_random=False))
def test_the_order_of_runs_does_not_matter(runs: list[list[int]], random: object) -> None:
    shuffled = [*runs]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert band_of_runs(shuffled, shuffled, 2) == band_of_runs(runs, runs, 2)


@given(st.integers(-MAX_OCTAVE, MAX_OCTAVE), st.integers(0, MAX_OCTAVE), st.integers(0, 60))
def test_a_band_is_read_as_it_was_written(lowest: int, width: int, margin: int) -> None:
    band = Band(lowest, min(lowest + width, MAX_OCTAVE), margin)
    assert band_of_text(str(band)) == band
    assert octave_of(text_of(lowest)) == lowest


@given(st.text(max_size=12) | st.from_regex(r"-?[0-9]{0,4}/?[0-9]{0,300}", fullmatch=True))
def test_other_texts_are_no_band(text: str) -> None:
    octave = octave_of(text)
    assert octave is None or abs(octave) <= MAX_OCTAVE
    band_of_text(text)


def without_each(runs: list[list[int]]) -> list[list[list[int]]]:
    return [runs[:index] + runs[index + 1 :] for index in range(len(runs))]
