"""The synthetic world is deterministic, unambiguous and right about its own pictures."""

import hashlib
import re
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_modules.synthetic.types import COLOURS
from data_modules.synthetic.world import CELL, KINDS, LABELS, SPLITS, cell_labels, generate
from tests.synthetic.facts import STATES, expected, things

SAMPLES = st.builds(generate, st.integers(0, SPLITS["test"].stop - 1), st.sampled_from(KINDS))

GOLDEN = {
    "scene": ["5672c06605332e3b", "0e356ba118dda519", "1eff9218abe5bc85"],
    "count": ["1dae2804798fd753", "206857c24eaad7b0", "b87de3f9f16e8556"],
    "sign": ["e0ca1cddbb239c7d", "b16c166f0a2e859e", "ddb869fb2ca3d457"],
    "document": ["3d6183cf16a985e8", "2d951dc42f6a43c8", "2c23ab40c8bd79bb"],
    "chart": ["9eda948d537a427c", "a1128cfb205edd67", "49cffc1792f96ee1"],
    "science": ["c5d9801bb2bd5664", "d872d62de6216f68", "c3d6bee28998265e"],
}


def digest(sample):
    text = "\n".join(f"{turn.question}|{turn.answer}|{turn.choices}" for turn in sample.turns)
    return hashlib.sha256(sample.image.tobytes() + text.encode()).hexdigest()[:16]


@pytest.mark.parametrize("kind", KINDS)
def test_samples_are_the_same_on_every_platform(kind):
    assert [digest(generate(seed, kind)) for seed in (0, 1, SPLITS["test"].start)] == GOLDEN[kind]


def test_kinds_are_uniform():
    counts = Counter(generate(seed).kind for seed in range(1200))
    assert set(counts) == set(KINDS)
    assert min(counts.values()) > 150


def test_splits_are_disjoint():
    ranges = sorted(SPLITS.values(), key=lambda split: split.start)
    assert all(left.stop <= right.start for left, right in pairwise(ranges))


def test_pictures_of_different_splits_differ():
    digests = [digest(generate(split.start + i)) for split in SPLITS.values() for i in range(60)]
    assert len(set(digests)) == len(digests)


@given(SAMPLES)
def test_answers_are_right(sample):
    for turn in sample.turns:
        assert turn.critical == expected(sample, turn.question), turn


@given(SAMPLES)
def test_turns_are_well_formed(sample):
    assert 4 <= len(sample.turns) <= 8
    assert len({turn.question for turn in sample.turns}) == len(sample.turns)
    for turn in sample.turns:
        assert 5 <= len(turn.question.split()) <= 20
        assert 7 <= len(turn.answer.split()) <= 40
        assert turn.answer[0].isupper()
        assert turn.answer.endswith(".")
        assert not re.search(r"[\[\]]|  |\ba [aeiou]", turn.answer)
        assert turn.critical
        assert set(turn.critical) <= set(re.findall(r"\w+", turn.answer))
        assert (turn.number >= 0) == (sample.kind == "count")


@given(SAMPLES)
def test_choices_hold_the_answer_once(sample):
    for turn in sample.turns:
        if sample.kind != "science":
            assert turn.choices == ()
            continue
        assert 2 <= len(turn.choices) <= 5
        assert len(set(turn.choices)) == len(turn.choices)
        right = re.findall(r"\w+", turn.choices[turn.answer_index].replace(" and ", " "))
        assert set(right) <= set(turn.critical)


@given(SAMPLES)
def test_marks_fill_each_cell_once(sample):
    cells = [(mark.label, int(mark.y) // CELL, int(mark.x) // CELL) for mark in sample.marks]
    assert len(set(cells)) == len(cells)
    grids = cell_labels(sample)
    assert set(grids) == set(LABELS)
    assert sum((grid >= 0).sum() for grid in grids.values()) == len(sample.marks)
    for mark in sample.marks:
        assert grids[mark.label][int(mark.y) // CELL, int(mark.x) // CELL] == mark.value
        assert 0 <= mark.value < len(LABELS[mark.label])


@given(st.builds(generate, st.integers(0, 10**8), st.sampled_from(("scene", "count"))))
def test_shapes_have_their_colour_and_extent(sample):
    for thing in things(sample):
        x, y = int(thing["x"]), int(thing["y"])
        assert tuple(sample.image[y, x].tolist()) == COLOURS[thing["colour"]]
        same = (sample.image[y] == COLOURS[thing["colour"]]).all(1)
        ends = np.flatnonzero(~same)  # the shape's own pixels: a neighbour may have its colour
        row = min(ends[ends > x], default=len(same)) - max(ends[ends < x], default=-1) - 1
        assert row > 11 if thing.get("size") == "large" else row < 23


@given(SAMPLES)
def test_images_are_rgb_bytes(sample):
    assert sample.image.shape == (128, 128, 3)
    assert sample.image.dtype == np.uint8
    assert len(np.unique(sample.image.reshape(-1, 3), axis=0)) > 2


@pytest.mark.parametrize("kind", KINDS)
def test_every_phrasing_occurs(kind):
    questions = {turn.question for seed in range(400) for turn in generate(seed, kind).turns}
    for pattern, _ in STATES[kind][1]:
        assert any(re.fullmatch(pattern, question) for question in questions), pattern


def test_short_and_long_answers_mix():
    lengths = [len(turn.answer.split()) for seed in range(300) for turn in generate(seed).turns]
    assert np.mean([length >= 20 for length in lengths]) > 0.1
    assert np.mean([length <= 15 for length in lengths]) > 0.4
