"""The `export` verb: folders that are read back, cards with what was measured, and what is refused."""

import json

import pytest
import torch
from helpers import prompts, save_backbone, tiny_backbone, tiny_drafter

from tiger.cli import main
from tiger.decoding.speculative import SpeculativeDecoder
from tiger.drafting.heads.saving import build_head, load_head, save_head
from tiger.drafting.saving import load_drafter, save_drafter
from tiger.evaluation.export import export
from tiger.evaluation.runner import benchmark
from tiger.report.model_card import Card

SMALL = {"total_tokens": 14, "depth": 2, "top_k": 3}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A verifier, a routed drafter and heads, on disk."""
    folder = tmp_path_factory.mktemp("models")
    save_backbone(tiny_backbone(), folder / "verifier")
    save_drafter(tiny_drafter(), folder / "routed", step=7, task="KDWarmStart")
    torch.manual_seed(0)
    for name, settings in {"eagle3": SMALL | {"layers": (1, 2)}, "medusa": {}}.items():
        head = build_head(name, tiny_backbone(), **settings)
        save_head(head, folder / name, task="DraftHeadDistillation", training_seconds=12.5)
    return folder


@pytest.fixture(scope="module")
def measured(models):
    """A benchmark of the routed drafter and a head."""
    benchmark(
        str(models / "verifier"),
        {
            "autoregressive": None,
            "mine": str(models / "routed"),
            "head": str(models / "eagle3"),
            "lookup": "prompt_lookup",
        },
        "synthetic",
        num_prompts=2,
        speed_prompts=1,
        speed_repeats=1,
        temperatures=[0.0],
        batch_sizes=[1],
        block_size=4,
        max_new_tokens=8,
        num_traces=0,
        output=models / "bench",
        device="cpu",
    )
    return models / "bench" / "metrics.json"


def words(models, name, output, *more):
    return ["export", str(models / name), str(output), "--verifier", str(models / "verifier"), *more]


def drafts(head):
    head.verifier.eos_ids = ()
    answers = SpeculativeDecoder(head.verifier, head, 4, 8).generate(prompts(2))
    return [[entry.drafted for entry in answer.rounds] for answer in answers]


@pytest.mark.parametrize("name", ["routed", "eagle3", "medusa"])
def test_an_export_holds_the_same_files_and_a_card(models, tmp_path, name):
    assert main(words(models, name, tmp_path / "my-drafter")) == tmp_path / "my-drafter"
    assert [path.name for path in tmp_path.iterdir()] == ["my-drafter"]
    written = {path.name: path.read_bytes() for path in (tmp_path / "my-drafter").iterdir()}
    card = written.pop("README.md").decode()
    assert written == {path.name: path.read_bytes() for path in (models / name).iterdir()}
    assert card.startswith("---\nlibrary_name: tiger-vlm\n")
    assert "base_model" not in card  # a folder is no id on the hub
    assert "\n## Measured\n\nNot measured.\n" in card
    assert "\n- verifier weights: " in card
    assert "\n- verifier layers: 3\n- verifier width: 192\n- verifier vocabulary: 799\n" in card
    assert f"--verifier {models / 'verifier'} --drafter my-drafter" in card
    if name == "routed":
        assert "- task: KDWarmStart\n" in card
        assert 'load_drafter("my-drafter")' in card
        assert load_drafter(str(tmp_path / "my-drafter")).num_routed == 8
    else:
        assert "- training_seconds: 12.5\n" in card
        assert 'load_head(Path("my-drafter"), verifier)' in card
        assert load_head(tmp_path / "my-drafter", tiny_backbone()).method == name


def test_a_routed_drafter_needs_no_verifier(models, tmp_path):
    card = (export(str(models / "routed"), tmp_path / "out") / "README.md").read_text()
    assert "of a verifier that was not named" in card
    assert "- verifier" not in card
    with pytest.raises(ValueError, match="a draft head is read beside its verifier: give --verifier"):
        export(str(models / "medusa"), tmp_path / "other")


def test_figures_are_those_of_the_benchmark(models, measured, tmp_path):
    cells = {cell["decoder"]: cell for cell in json.loads(measured.read_text())}
    assert cells["mine"]["acclen"] is not None
    for name, decoder in {"routed": "mine", "eagle3": "head"}.items():
        main(words(models, name, tmp_path / name, "--metrics", str(measured), "--decoder", decoder))
        card, cell = (tmp_path / name / "README.md").read_text(), cells[decoder]
        row = next(line for line in card.splitlines() if line.startswith("| synthetic "))
        values = [value.strip() for value in row.strip("|").split("|")]
        interval = f"{cell['acclen']:.2f} [{cell['acclen_low']:.2f}, {cell['acclen_high']:.2f}]"
        assert values[:6] == ["synthetic", "2", "4", "0", "1", interval]
        assert values[6:9] == [
            f"{cell['p_accept_ge'][n]:.2f}" if n in cell["p_accept_ge"] else "–" for n in ("2", "4", "8")
        ]
        assert values[9:] == [f"{cell['tokens_per_second']:.0f}", f"{cell['speedup']:.2f}x", "100.0%"]
        assert "Speed was measured on cpu (threads: 1), with prompts of synthetic." in card
        assert "Not measured" not in card


def test_figures_of_another_drafter_are_refused(models, measured, tmp_path):
    source, output = str(models / "routed"), tmp_path / "out"
    for decoder in (None, "tiger", "autoregressive"):
        with pytest.raises(ValueError, match=r"has the decoders \['head', 'lookup', 'mine'\].*--decoder"):
            export(source, output, metrics=measured, decoder=decoder)
    with pytest.raises(ValueError, match=r"'head' of .* the figures of another one"):
        export(source, output, metrics=measured, decoder="head")
    with pytest.raises(FileNotFoundError, match=r"There is no file .*gone\.json"):
        export(source, output, metrics=tmp_path / "gone.json")
    assert not any(tmp_path.iterdir())


def test_the_only_decoder_needs_no_name(models, measured, tmp_path):
    kept = [
        cell for cell in json.loads(measured.read_text()) if cell["decoder"] in ("autoregressive", "mine")
    ]
    (tmp_path / "metrics.json").write_text(json.dumps(kept))
    folder = export(str(models / "routed"), tmp_path / "out", metrics=tmp_path / "metrics.json")
    assert "| synthetic " in (folder / "README.md").read_text()


def test_speculators_and_back(models, tmp_path):
    main(words(models, "eagle3", tmp_path / "theirs", "--format", "speculators"))
    assert {path.name for path in (tmp_path / "theirs").iterdir()} == {
        "README.md",
        "config.json",
        "model.safetensors",
    }
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert config["speculators_config"]["verifier"]["name_or_path"] == str(models / "verifier")
    card = (tmp_path / "theirs" / "README.md").read_text()
    assert f"python -m tiger export theirs converted --verifier {models / 'verifier'}" in card
    assert "- training_seconds: 12.5\n" in card
    main(["export", str(tmp_path / "theirs"), str(tmp_path / "ours"), "--verifier", str(models / "verifier")])
    assert "- imported_from: theirs\n" in (tmp_path / "ours" / "README.md").read_text()
    before, after = (
        load_head(models / "eagle3", tiny_backbone()),
        load_head(tmp_path / "ours", tiny_backbone()),
    )
    assert after.settings == before.settings
    assert drafts(after) == drafts(before)


@pytest.mark.parametrize(
    ("name", "kind"), [("medusa", "a 'medusa' head"), ("routed", "a routed drafter")], ids=["head", "routed"]
)
def test_formats_that_do_not_hold_a_drafter_are_refused(models, tmp_path, name, kind):
    with pytest.raises(ValueError, match=f"'speculators' holds EAGLE-3 heads, and this is {kind}"):
        export(str(models / name), tmp_path / "out", str(models / "verifier"), format="speculators")
    with pytest.raises(ValueError, match="Unknown format 'gguf'; choose one of tiger, speculators"):
        export(str(models / name), tmp_path / "out", str(models / "verifier"), format="gguf")
    assert not any(tmp_path.iterdir())


def test_other_verifiers_missing_weights_and_taken_names_are_refused(models, tmp_path):
    save_backbone(tiny_backbone(layers=2), tmp_path / "verifier")
    with pytest.raises(ValueError, match="is a head for another verifier: it needs num_layers 3, not 2"):
        export(str(models / "medusa"), tmp_path / "out", str(tmp_path / "verifier"))
    save_head(load_head(models / "medusa", tiny_backbone()), tmp_path / "head")
    (tmp_path / "head" / "head.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"holds no head\.safetensors"):
        export(str(tmp_path / "head"), tmp_path / "out", str(models / "verifier"))
    with pytest.raises(ValueError, match="head exists already"):
        export(str(models / "routed"), tmp_path / "head")
    with pytest.raises(ValueError, match="is no head that can be read: 'qwen3_vl'"):
        export(str(models / "verifier"), tmp_path / "out", str(models / "verifier"))


def test_a_verifier_on_the_hub_is_the_cards_base_model():
    card = Card("head", "eagle2", "tiger", 5, {}, {}, "owner/model@v2", True, {}, []).text()
    assert "\nbase_model: owner/model\n" in card
    assert "came without notes on its training" in card
