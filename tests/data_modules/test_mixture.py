"""Mixtures are deterministic, capped, filtered and reported."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from data_modules import mixture as mixture_module
from data_modules.filters import QuestionFilter
from data_modules.index import Share
from data_modules.mixture import PAPER_SHARES, mix, proportions
from data_modules.sources import DocVQA, Llava, TextVQA
from data_modules.synthetic.world import SPLITS
from data_modules.world_rows import WorldRows

QUESTION = "What is written on the page?"


class ListRows:
    """Rows that are given."""

    fingerprint = "list"

    def __init__(self, *rows):
        self.rows = rows
        self.read = Counter()

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, number):
        self.read[number] += 1
        return self.rows[number]

    def key(self, number):
        return f"list/{number}"


def document(question=QUESTION, answer="a", **changes):
    return {"image": Image.new("RGB", (4, 4)), "question": question, "answers": [answer], **changes}


def documents(count):
    return [document(image=Image.new("RGB", (4, 4), (number, 0, 0))) for number in range(count)]


def world(source, split="train", seed=0, requested=6, available=50):
    return Share(source(), WorldRows(source.name, split, seed, available), requested)


def test_bad_rows_are_counted_and_skipped():
    rows = ListRows(
        document(),
        document("Too short?"),
        document(image=None),
        {},
        document("Is it open to all?", "yes"),
        document("What is written on the cover?"),
        document(),
    )
    mixture = mix("train", [Share(DocVQA(), rows, 9)], QuestionFilter())
    (report,) = mixture.index.reports
    assert [record.id for record in mixture] == ["list/0", "list/5"]
    assert (report.requested, report.available, report.examined, report.kept) == (9, 7, 7, 2)
    assert report.dropped == {"too_few_words": 1, "no_image": 1, "malformed": 1, "yes_no": 1, "duplicate": 1}
    assert report.examples["malformed"] == ["list/3"]
    assert report.tags == {"ocr": 2}
    assert "too_few_words 1" in mixture.report()


def test_counts_are_caps_and_no_row_is_read_beyond_them():
    rows = ListRows(*documents(5))
    assert len(mix("train", [Share(DocVQA(), rows, 2)])) == 2
    assert set(rows.read) == {0, 1}


def test_a_shortfall_is_filled_from_llava():
    short = Share(DocVQA(), ListRows(document(), document("no")), 4)
    mixture = mix("train", [short, world(Llava, requested=3)], QuestionFilter())
    docvqa, llava = mixture.index.reports
    assert (docvqa.kept, llava.kept, llava.backfilled, len(mixture)) == (1, 6, 3, 7)


def test_nothing_left_names_the_filter():
    rows = ListRows(document(), document())
    with pytest.raises(
        ValueError, match=r"validation split is empty: 2 rows.*too_few_words \(2\).*min_words=40"
    ):
        mix("validation", [Share(DocVQA(), rows, 2)], QuestionFilter(min_words=40))


def test_a_further_check_drops_records():
    rows = ListRows(document(answer="a"), document(answer="b"))
    check = lambda record: "is_b" if record.answers[0] == "b" else None  # noqa: E731
    assert mix("train", [Share(DocVQA(), rows, 2)], check=check).index.reports[0].dropped == {"is_b": 1}


def test_same_seed_same_records():
    one, two, other = (
        mix("train", [world(Llava, seed=seed), world(DocVQA, seed=seed)]) for seed in (3, 3, 4)
    )
    assert one.manifest == two.manifest != other.manifest
    assert [record.id for record in one] == [record.id for record in two]
    assert one[4].images[0].decode().tobytes() == two[4].images[0].decode().tobytes()
    assert {record.id for record in one}.isdisjoint(record.id for record in other)


def test_evaluation_rows_are_the_same_for_every_seed_and_apart_from_training():
    one, two = (mix("test", [world(Llava, "test", seed)]) for seed in (0, 1))
    assert one.manifest == two.manifest
    assert int(one[0].id.split("/")[-1]) in SPLITS["test"]
    assert int(mix("train", [world(Llava)])[0].id.split("/")[-1]) in SPLITS["train"]


def test_manifest_depends_on_content():
    def manifest(**changes):
        return mix("train", [Share(DocVQA(), ListRows(document(**changes)), 1)]).manifest

    assert manifest() == manifest()
    assert len({manifest(), manifest(answer="b"), manifest(image=Image.new("RGB", (4, 4), "red"))}) == 3


def test_any_prefix_is_mixed():
    mixture = mix("train", [world(Llava, requested=20), world(DocVQA, requested=10)])
    for end in range(6, 31, 6):
        counts = Counter(mixture[i].source for i in range(end))
        assert abs(counts["docvqa"] - end / 3) <= 1


def test_kept_rows_are_remembered(tmp_path, monkeypatch):
    first = mix("train", [world(Llava)], QuestionFilter(), cache_dir=tmp_path)
    monkeypatch.setattr(mixture_module, "select", lambda *_: pytest.fail("built again"))
    second = mix("train", [world(Llava)], QuestionFilter(), cache_dir=tmp_path)
    assert (second.manifest, second.report()) == (first.manifest, first.report())
    assert second.index == first.index
    with pytest.raises(pytest.fail.Exception, match="built again"):
        mix("train", [world(Llava)], QuestionFilter(min_words=4), cache_dir=tmp_path)


@given(st.integers(0, 10**6), st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 10**5), min_size=1))
def test_proportions_add_up_and_round_to_the_nearest(total, weights):
    counts = proportions(total, weights)
    assert sum(counts.values()) == total
    for name, weight in weights.items():
        assert abs(counts[name] - total * weight / sum(weights.values())) < 1


def test_paper_recipes_have_the_papers_sizes():
    assert {name: sum(shares.values()) for name, shares in PAPER_SHARES.items()} == {
        "kd": 92_500,
        "align": 80_000,
    }


def test_a_picture_is_shown_once_where_that_is_asked():
    first, second = documents(2)
    rows = ListRows(first, first | {"question": "What is written on the cover?"}, second)
    (report,) = mix("train", [Share(DocVQA(), rows, 9, is_one_per_image=True)]).index.reports
    assert (report.kept, report.dropped) == (2, {"same_image": 1})


def test_duplicates_are_found_across_sources():
    rows = ListRows(*documents(2))
    mixture = mix("train", [Share(DocVQA(), rows, 9), Share(TextVQA(), rows, 9)])
    assert [report.kept for report in mixture.index.reports] == [2, 0]
    assert mixture.index.reports[1].dropped == {"duplicate": 2}


def test_changed_rows_are_noticed():
    rows = ListRows(*documents(2))
    mixture = mix("train", [Share(DocVQA(), rows, 2)])
    rows.rows = (rows.rows[0], document("Another question about the page?"))
    assert mixture[0].id == "list/0"
    with pytest.raises(ValueError, match=r"list/1 is not what it was .*Build the mixture again"):
        mixture[1]


@pytest.mark.parametrize("content", ["", "{", "{}"])
def test_a_damaged_memory_is_named(tmp_path, content):
    mix("train", [world(Llava)], cache_dir=tmp_path)
    (path,) = tmp_path.rglob("*.json")
    path.write_text(content)
    with pytest.raises(ValueError, match=rf"{path} is damaged: .*Delete it; the rows are selected again"):
        mix("train", [world(Llava)], cache_dir=tmp_path)


def test_narrowing_counts_and_is_remembered(tmp_path):
    mixture = mix("train", [Share(DocVQA(), ListRows(*documents(3)), 3)])
    seen = []

    def check(record):
        seen.append(record.id)
        return "too_long" if record.id == "list/1" else None

    one, two = (mixture.narrow(check, "limit 5", tmp_path) for _ in range(2))
    assert seen == ["list/0", "list/1", "list/2"]
    assert [record.id for record in one] == [record.id for record in two] == ["list/0", "list/2"]
    (report,) = two.index.reports
    assert (report.kept, report.dropped, report.tags) == (2, {"too_long": 1}, {"ocr": 2})
    assert mixture.index.reports[0].kept == 3
    assert len({mixture.manifest, one.manifest}) == 2
    with pytest.raises(ValueError, match=r"train split is empty: all records were dropped by limit 1"):
        mixture.narrow(lambda record: "too_long", "limit 1", tmp_path)


def test_a_subset_has_a_manifest_of_its_own():
    mixture = mix("train", [Share(DocVQA(), ListRows(*documents(4)), 4)])
    part = mixture.subset("validation", [2, 0])
    assert [record.id for record in part] == ["list/2", "list/0"]
    assert part.manifest != mixture.manifest == mixture.subset("train", range(4)).manifest
