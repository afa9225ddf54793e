"""The benchmark on several sets: damaged files, prompts that cannot be read, answers that are not exact."""

import json
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from helpers import picture, tiny_backbone
from hub_repository import write_repository
from sets_world import settings

from data_modules.evaluation import SetOptions, load_set
from tiger.backbones.base import Backbone, PromptTooLong
from tiger.decoding.autoregressive import AutoregressiveDecoder
from tiger.decoding.records import Generation
from tiger.evaluation import decoders as decoders_module
from tiger.evaluation import runner
from tiger.evaluation.bootstrap import mean_interval
from tiger.evaluation.cells import points, scores
from tiger.evaluation.decoders import Decoders
from tiger.evaluation.exactness import differing, is_tie, split_ties
from tiger.evaluation.runner import benchmark
from tiger.evaluation.samples import Journal

ROOT = Path(__file__).resolve().parents[2]


def test_files_of_a_killed_process_are_joined(tmp_path):
    first, second = Journal(tmp_path / "a.jsonl"), Journal(tmp_path / "a.jsonl", rank=1)
    first.add("cell", [{"id": "x"}], 2)
    second.add("cell", [{"id": "y"}], 2, shared=1)
    (tmp_path / "a.rank1.jsonl").open("a").write('{"cell": "ce')
    again = Journal(tmp_path / "a.jsonl")
    assert again.found("cell") == {"x", "y"}
    again.note("cell", "score", {"x": 1.0, "y": None})
    again.save()
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]
    rows = Journal(tmp_path / "a.jsonl").get("cell")
    assert [(row["id"], row["score"]) for row in rows] == [("x", 1.0), ("y", None)]


def test_damaged_lines_of_a_journal_are_computed_again(tmp_path, caplog):
    path = tmp_path / "a.jsonl"
    Journal(path).add("cell", [{"id": "x"}], 2)
    bad = [b"{", b"3", b'{"cell": "cell", "of": 2}', b'{"cell": "cell", "id": "y"}', b"\xff", b'{"cell": "ce']
    path.write_bytes(b"\n".join([path.read_bytes().rstrip(), *bad]))
    again = Journal(path)
    assert again.found("cell") == {"x"}
    named = [number for number in range(1, 9) if f"line {number} is no record" in caplog.text]
    assert named == [2, 3, 4, 5, 6, 7]
    again.add("cell", [{"id": "y"}], 2)
    assert len(Journal(path).get("cell")) == 2


@pytest.mark.parametrize("name", ["samples", "timings"])
def test_records_that_lack_something_are_named(done, world, tmp_path, name):
    _, output = done
    for file in ("samples.jsonl", "timings.jsonl"):
        records = [json.loads(line) for line in (output / file).open()]
        for record in records if file.startswith(name) else ():
            record.pop("accepted", None)
            record.get("timing", {})["hours"] = 1
        (tmp_path / file).write_text("".join(json.dumps(record) + "\n" for record in records))
    with pytest.raises(ValueError, match=rf"{name}\.jsonl is damaged: .*(accepted|hours).*Delete"):
        benchmark(**settings(world, tmp_path))


def test_two_runs_do_not_share_a_folder(world, tmp_path):
    with (
        FileLock(tmp_path / "lock"),
        pytest.raises(ValueError, match=rf"Another benchmark writes to {tmp_path}. Wait .* another folder"),
    ):
        benchmark(**settings(world, tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"verifier": "tiny/verifer"}, "no folder 'tiny/verifer'"),
        ({"decoders": {"tiger": "tiny/tigr"}}, "no folder 'tiny/tigr'"),
        ({"decoders": {"racer": "configs/drafter/racr.yaml"}}, "no file 'configs/drafter/racr.yaml'"),
        ({"decoders": {"tiger": "EMPTY"}}, r"holds no config\.json"),
        ({"decoders": {"tiger": "HEAD"}}, r"holds no head\.safetensors"),
    ],
)
def test_all_models_are_looked_for_first(world, tmp_path, monkeypatch, changes, message):
    for name in ("EMPTY", "HEAD"):
        (tmp_path / name).mkdir()
    (tmp_path / "HEAD" / "head.json").write_text("{}")
    decoders = {k: str(tmp_path / v) if v.isupper() else v for k, v in changes.get("decoders", {}).items()}
    monkeypatch.setattr(runner, "load_set", None)  # before any set is opened
    with pytest.raises(FileNotFoundError, match=message):
        benchmark(
            **settings(world, tmp_path / "out", **changes | ({"decoders": decoders} if decoders else {}))
        )
    assert not (tmp_path / "out").exists()


def test_a_decoder_that_is_not_exact_is_an_error(world, tmp_path, monkeypatch):
    build = decoders_module.Decoders.build

    def broken(self, name, *arguments):
        decoder = build(self, name, *arguments)
        if name == "tiger":
            plain = decoder.generate

            def generate(prompts, listener=None):
                answers = plain(prompts, listener)
                answers[0].tokens[1] += 1
                return answers

            decoder.generate = generate
        return decoder

    monkeypatch.setattr(decoders_module.Decoders, "build", broken)
    options = settings(world, tmp_path, dataset=["pope"], speed_prompts=0, acceptance_batch_size=4)
    options["set_options"] = {"pope": SetOptions(path=world / "pope")}
    with pytest.raises(RuntimeError, match=r"tiger on pope: 1 of 4, such as pope/\d"):
        benchmark(**options)
    cells = json.loads((tmp_path / "metrics.json").read_text())
    assert [len(cell["mismatches"]) for cell in cells] == [0, 1, 0, 1]
    assert cells[1]["exact"] == 0.75


def test_ties_are_told_from_errors(world):
    backbone = tiny_backbone(layers=1)
    tasks = load_set("pope", options=SetOptions(path=world / "pope"))
    answer = AutoregressiveDecoder(backbone, 6).generate([tasks.prompt(0)])[0]
    other = [*answer.tokens[:2], answer.tokens[2] + 1]
    assert not is_tie(tasks.prompt(0), other, answer.tokens, backbone)
    assert not is_tie(tasks.prompt(0), answer.tokens[:2], answer.tokens, backbone)
    changed = Generation(answer.id, other)
    assert differing([answer, changed], [answer, answer]) == [1]
    twice = [changed, changed]
    assert split_ties([0], twice, [answer, answer], tasks, backbone) == ([], [answer.id])

    class Level(type(backbone)):
        """Rates every token alike."""

        def logits(self, hidden):
            return torch.ones_like(super().logits(hidden))

    level = Level(backbone.model, backbone.processor)
    assert is_tie(tasks.prompt(0), other, answer.tokens, level)
    assert is_tie(tasks.prompt(0), [answer.tokens[0] + 1], answer.tokens, level)
    assert split_ties([0], twice, [answer, answer], tasks, level) == ([answer.id], [])


def test_an_interval_needs_a_score_that_is_a_mean(world):
    tasks = load_set("synthetic", 3)
    right = [Generation(reference.id, [1], reference.answers[0]) for reference in tasks.references]
    right[2].text = "No idea."
    each = points(right, tasks)
    entry = scores(right, tasks, each, seed=0)
    assert each == [100, 100, 0]
    assert entry["score"] == pytest.approx(200 / 3)
    expected = mean_interval([100, 100, 0])
    assert (entry["score_low"], entry["score_high"]) == (expected.low, expected.high)
    with pytest.raises(ValueError, match="no prompt"):
        mean_interval([])


def test_timed_prompts_beyond_the_context_are_left_out(world, tmp_path, monkeypatch):
    check, whole = Backbone.check_length, set()

    def short(self, inputs, name):
        if name.startswith("pope@speed") and name not in whole:
            raise PromptTooLong(name)
        check(self, inputs, name)

    monkeypatch.setattr(Backbone, "check_length", short)
    options = {"pope@speed": SetOptions(path=world / "pope")}
    changes = {"dataset": "synthetic", "num_prompts": 1, "set_options": options, "batch_sizes": [1]}
    changes |= {"speed_dataset": "pope@speed", "speed_prompts": 3}
    with pytest.raises(ValueError, match=r"No prompt of pope@speed can be read: prompt_too_long \(3\)"):
        benchmark(**settings(world, tmp_path, **changes))
    first, *others = load_set("pope@speed", 3, options=options["pope@speed"]).prompt_ids
    whole.add(first)
    cells = benchmark(**settings(world, tmp_path, **changes))
    assert [cell["speed_skipped"] for cell in cells] == [dict.fromkeys(others, "prompt_too_long")] * 2
    assert all(cell["tokens_per_second"] > 0 for cell in cells)
    with monkeypatch.context() as patch:
        patch.setattr(Decoders, "build", None)  # nothing is decoded again
        assert json.dumps(benchmark(**settings(world, tmp_path, **changes))) == json.dumps(cells)
    options["pope@speed"] = SetOptions(path=world / "pope", media_root=tmp_path)  # another timed set
    benchmark(**settings(world, tmp_path, **changes))
    assert len({json.loads(line)["cell"] for line in (tmp_path / "timings.jsonl").open()}) == 2
    assert len({json.loads(line)["cell"] for line in (tmp_path / "samples.jsonl").open()}) == 2


def test_prompts_beyond_the_context_are_left_out(world, tmp_path, monkeypatch):
    check = Backbone.check_length

    def short(self, inputs, name):
        if name in {"pope/1", "pope/3"}:
            raise PromptTooLong(name)
        check(self, inputs, name)

    monkeypatch.setattr(Backbone, "check_length", short)
    changes = {"dataset": "pope", "set_options": {"pope": SetOptions(path=world / "pope")}}
    cells = benchmark(**settings(world, tmp_path, speed_prompts=2, **changes))
    assert {(cell["num_prompts"], cell["exact"]) for cell in cells} == {(2, 1)}
    subset = json.loads((tmp_path / "subsets.json").read_text())["pope"]
    assert (sorted(subset["ids"]), sorted(subset["skipped"]["prompt_too_long"])) == (["0", "2"], ["1", "3"])
    monkeypatch.setattr(Decoders, "build", None)  # nothing is decoded again
    assert json.dumps(benchmark(**settings(world, tmp_path, speed_prompts=2, **changes))) == json.dumps(cells)
    monkeypatch.undo()
    monkeypatch.setattr(Backbone, "check_length", lambda *_: (_ for _ in ()).throw(PromptTooLong("all")))
    with pytest.raises(ValueError, match=r"No prompt of pope can be read: prompt_too_long \(4\)"):
        benchmark(**settings(world, tmp_path, max_new_tokens=7, **changes))


def test_texts_that_mark_pictures_are_left_out(world, tmp_path, capsys):
    from fixtures import POPE, full  # which `world` has imported

    questions = ["Is there a star?", "Is <|image_pad|> a dog?", "Is <image> like <image>?", "<image> A cat?"]
    rows = [
        full(POPE, question=question, answer="no", category="random", image=picture(number))
        for number, question in enumerate(questions)
    ]
    write_repository(tmp_path / "pope", {"test": rows}, POPE)
    changes = {"dataset": "pope", "set_options": {"pope": SetOptions(path=tmp_path / "pope")}}
    cells = benchmark(**settings(world, tmp_path / "out", speed_prompts=4, batch_sizes=[1], **changes))
    assert {(cell["num_prompts"], cell["exact"]) for cell in cells} == {(2, 1)}
    subset = json.loads((tmp_path / "out" / "subsets.json").read_text())["pope"]
    assert (sorted(subset["ids"]), sorted(subset["skipped"]["image_token"])) == (["0", "3"], ["1", "2"])
    assert "pope: left out image_token 2, see subsets.json" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dataset": []}, "name one set or more"),
        ({"dataset": ["pope", "pope"]}, "each once"),
        ({"dataset": ["pope"]}, "set_options names pope@speed, scienceqa; the sets are pope"),
    ],
)
def test_errors_say_what_is_wrong(world, tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        benchmark(**settings(world, tmp_path, **changes))
