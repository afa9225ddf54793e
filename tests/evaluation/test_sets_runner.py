"""The benchmark on several sets: scores, subsets, the paper's tables, resuming, processes, exactness."""

import csv
import json
import sys
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from helpers import agreeing_drafter, picture, save_backbone, tiny_backbone
from hub_repository import write_repository
from ranks import spawn

from data_modules.evaluation import SetOptions, load_set
from tiger.backbones.base import Backbone, PromptTooLong
from tiger.decoding.autoregressive import AutoregressiveDecoder
from tiger.decoding.records import Generation
from tiger.decoding.speculative import SpeculativeDecoder
from tiger.drafting.saving import save_drafter
from tiger.evaluation import decoders as decoders_module
from tiger.evaluation import runner
from tiger.evaluation.bootstrap import mean_interval
from tiger.evaluation.cells import points, scores
from tiger.evaluation.decoders import Decoders
from tiger.evaluation.exactness import differing, is_tie, split_ties
from tiger.evaluation.runner import benchmark
from tiger.evaluation.samples import Journal

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A tiny pair, and POPE and ScienceQA with a few real questions each."""
    folder = tmp_path_factory.mktemp("world")
    verifier = tiny_backbone(layers=1)
    save_backbone(verifier, folder / "verifier")
    save_drafter(agreeing_drafter(verifier, 0.5), folder / "tiger")
    sys.path.insert(0, str(ROOT / "tests" / "data_modules" / "evaluation"))
    from fixtures import POPE, SCIENCEQA, full

    sys.path.pop(0)
    pope = [
        full(POPE, question=f"Is there a {thing}?", answer=answer, category="random", image=picture(number))
        for number, (thing, answer) in enumerate(
            (("star", "yes"), ("dog", "no"), ("cat", "no"), ("sign", "yes"))
        )
    ]
    science = full(SCIENCEQA, question="Which?", choices=["a", "b"], answer=1, hint="", subject="physics")
    write_repository(folder / "pope", {"test": pope}, POPE)
    rows = [science | {"image": picture(9)}, science | {"image": None}]
    write_repository(folder / "science", {"test": rows}, SCIENCEQA, "ScienceQA-IMG")
    return folder


def settings(world, output, **changes):
    return {
        "verifier": str(world / "verifier"),
        "decoders": {"tiger": str(world / "tiger")},
        "dataset": ["pope", "scienceqa", "pope@speed"],
        "num_prompts": None,
        "set_options": {
            "pope": SetOptions(path=world / "pope"),
            "pope@speed": SetOptions(path=world / "pope"),
            "scienceqa": SetOptions(path=world / "science"),
        },
        "temperatures": [0.0],
        "batch_sizes": [1, 2],
        "block_size": 3,
        "max_new_tokens": 8,
        "acceptance_batch_size": 3,
        "speed_prompts": 1,
        "speed_repeats": 1,
        "full_token_decoder": "tiger",
        "output": output,
        "num_threads": None,
        "device": "cpu",
    } | changes


@pytest.fixture(scope="module")
def done(world, tmp_path_factory):
    output = tmp_path_factory.mktemp("results")
    return benchmark(**settings(world, output)), output


def test_every_cell_is_there(done):
    cells, _ = done
    assert [(c["dataset"], c["batch_size"], c["decoder"]) for c in cells] == [
        (name, size, decoder)
        for name in ("pope", "scienceqa", "pope@speed")
        for size in (1, 2)
        for decoder in ("autoregressive", "tiger")
    ]
    assert {(c["dataset"], c["num_prompts"]) for c in cells} == {
        *(("pope", 4), ("scienceqa", 1), ("pope@speed", 4))
    }
    assert all((c["exact"], c["ties"], c["mismatches"]) == (1, [], []) for c in cells)


def test_scores_come_from_the_texts(done, world):
    cells, output = done
    samples = [json.loads(line) for line in (output / "samples.jsonl").open()]
    tasks = load_set("pope", options=SetOptions(path=world / "pope"))
    own = {s["id"]: s for s in samples if s["dataset"] == "pope" and s["decoder"] == "tiger"}
    metric = tasks.metrics()[0]
    points = [
        metric.score(own[prompt_id]["text"], reference)
        for prompt_id, reference in zip(tasks.prompt_ids, tasks.references, strict=True)
    ]
    assert [own[prompt_id]["score"] for prompt_id in tasks.prompt_ids] == points
    cell = cells[1]
    assert (cell["metric"], cell["score"]) == ("accuracy", pytest.approx(sum(points) / 4))
    assert cell["score_low"] <= cell["score"] <= cell["score_high"]
    assert {"precision", "recall", "f1", "yes_ratio", "accuracy/random"} <= set(cell["scores"])
    speed = next(c for c in cells if c["dataset"] == "pope@speed")
    assert (speed["style"], speed["metric"], speed["score"]) == ("speed", None, None)
    assert all(s["score"] is None for s in samples if s["dataset"] == "pope@speed")


def test_latencies_are_normalised(done):
    cells, _ = done
    for plain, tiger in zip(cells[::2], cells[1::2], strict=True):
        assert (plain["latency_ar_normalized"], tiger["latency_full_token_normalized"]) == (1, 1)
        assert tiger["latency_ar_normalized"] == pytest.approx(1 / tiger["speedup"])
        assert plain["latency_full_token_normalized"] == pytest.approx(tiger["speedup"])
        assert plain["peak_memory_gib"] is None or torch.cuda.is_available()


def test_a_missing_full_token_decoder_leaves_its_column_empty(world, tmp_path):
    changes = {"dataset": "pope", "set_options": {"pope": SetOptions(path=world / "pope")}}
    cells = benchmark(**settings(world, tmp_path, full_token_decoder="vanilla", **changes))
    assert {cell["latency_full_token_normalized"] for cell in cells} == {None}


def test_subsets_are_recorded(done):
    _, output = done
    subsets = json.loads((output / "subsets.json").read_text())
    assert sorted(subsets["pope"]["ids"]) == ["0", "1", "2", "3"]
    assert subsets["scienceqa"]["skipped"] == {"no_image": ["1"]}
    assert subsets["pope@speed"]["style"] == "speed"


def test_tables_in_the_papers_layout(done):
    cells, output = done
    text = (output / "paper_table.md").read_text()
    assert text.count("## T = 0, batch size") == 2
    header = "| Method | pope AccLen | pope Spd. | pope Acc. | scienceqa AccLen |"
    assert header in text
    assert f"| tiger | {cells[1]['acclen']:.2f} | {cells[1]['speedup']:.2f}x |" in text
    assert "| autoregressive | – | 1.00x |" in text
    rows = list(csv.DictReader((output / "paper_table.csv").open()))
    assert [(row["T"], row["Batch"], row["Method"]) for row in rows] == [
        ("0", size, name) for size in "12" for name in ("autoregressive", "tiger")
    ]
    assert float(rows[1]["pope VerRds."]) == pytest.approx(cells[1]["rounds_per_token"], abs=1e-3)
    assert rows[1]["pope@speed Acc."] == "–"
    assert "## scienceqa" in (output / "table.md").read_text()


def test_a_partial_cell_goes_on_at_the_sample(done, world, tmp_path, monkeypatch):
    _, output = done
    lines = (output / "samples.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line)["dataset"] != "pope@speed"]
    # Of the cell of pope and tiger two of four answers are left, the second cut in its middle.
    mine = [line for line in kept if json.loads(line)["dataset"] == "pope" and "tiger" in line]
    kept = [line for line in kept if line not in mine]
    (tmp_path / "samples.jsonl").write_text("".join(kept) + mine[0] + mine[1][:50])
    decoded = []
    plain = SpeculativeDecoder.generate

    def spy(self, prompts, listener=None):
        decoded.extend(prompt.id for prompt in prompts)
        return plain(self, prompts, listener)

    monkeypatch.setattr(SpeculativeDecoder, "generate", spy)
    options = settings(world, tmp_path, dataset=["pope", "scienceqa"], speed_prompts=0)
    del options["set_options"]["pope@speed"]
    cells = benchmark(**options)
    assert sorted(decoded) == sorted(json.loads(line)["id"] for line in mine[1:])
    assert [c["acclen"] for c in cells[:4]] == [c["acclen"] for c in done[0][:4]]
    records = [json.loads(line) for line in (tmp_path / "samples.jsonl").open() if line.endswith("}\n")]
    assert len({(r["cell"], r["id"]) for r in records}) == len(records) == 2 * 4 + 2 * 1


@pytest.mark.dist
def test_two_processes_equal_one(done, world, tmp_path):
    cells, output = done
    options = {
        "verifier": str(world / "verifier"),
        "decoders": json.dumps({"tiger": str(world / "tiger")}),
        "dataset": '["pope", "scienceqa", "pope@speed"]',
        "num_prompts": "null",
        "set_options": json.dumps(
            {
                "pope": {"path": str(world / "pope")},
                "pope@speed": {"path": str(world / "pope")},
                "scienceqa": {"path": str(world / "science")},
            }
        ),
        "temperatures": "[0.0]",
        "batch_sizes": "[1, 2]",
        "block_size": "3",
        "max_new_tokens": "8",
        "acceptance_batch_size": "3",
        "speed_prompts": "0",
        "output": str(tmp_path),
        "num_threads": "null",
        "device": "cpu",
    }
    spawn(["-m", "tiger", "benchmark", *(f"--{name}={value}" for name, value in options.items())])
    assert [path.name for path in tmp_path.glob("samples*")] == ["samples.jsonl"]
    together = json.loads((tmp_path / "metrics.json").read_text())
    timed = {name for name, value in together[0].items() if value is None} | {"speed_dataset"}
    for alone, shared in zip(json.loads(json.dumps(cells)), together, strict=True):
        assert {k: v for k, v in shared.items() if k not in timed} == {
            k: v for k, v in alone.items() if k not in timed
        }

    def texts(folder):
        rows = map(json.loads, (folder / "samples.jsonl").open())
        return {(row["cell"], row["id"]): (row["tokens"], row["accepted"]) for row in rows}

    assert texts(tmp_path) == texts(output)


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
