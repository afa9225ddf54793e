import json
import os
import shutil

import pytest
import torch
from helpers import prompts, save_backbone, tiny_backbone, tiny_drafter
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

from tiger.decoding.speculative import SpeculativeDecoder
from tiger.drafting.heads.saving import build_head, save_head
from tiger.drafting.saving import MARK, ROUTER_FILE, SETTINGS_FILE, load_drafter, save_drafter


@pytest.fixture
def folder(tmp_path):
    save_drafter(tiny_drafter("static", "inline", "text", 5), tmp_path, stage="kd")
    return tmp_path


def test_settings_and_weights_come_back(folder):
    drafter, saved = load_drafter(str(folder)), tiny_drafter("static", "inline", "text", 5)
    assert (drafter.selector, drafter.layout, drafter.query, drafter.num_routed) == (
        "static",
        "inline",
        "text",
        5,
    )
    assert not drafter.training
    for left, right in zip(drafter.state_dict().values(), saved.state_dict().values(), strict=True):
        assert torch.equal(left, right)
    assert json.loads((folder / SETTINGS_FILE).read_text())["stage"] == "kd"
    request = prompts(1)
    answers = [SpeculativeDecoder(tiny_backbone(), d, 3, 8).generate(request)[0] for d in (drafter, saved)]
    assert [r.drafted for r in answers[0].rounds] == [r.drafted for r in answers[1].rounds]


def test_files_have_the_permissions_of_new_ones(tmp_path):
    before = os.umask(0o027)
    try:
        save_drafter(tiny_drafter(), tmp_path / "drafter")
        save_head(build_head("medusa", tiny_backbone()), tmp_path / "head")
    finally:
        os.umask(before)
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert {file.name for file in files} >= {
        "model.safetensors",
        ROUTER_FILE,
        "head.safetensors",
        "head.json",
    }
    assert {oct(file.stat().st_mode & 0o777) for file in files} == {"0o640"}


def test_a_hub_repository_brings_its_settings_and_router(folder, tmp_path, monkeypatch):
    cache = tmp_path / "hub" / "models--someone--drafter"
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "main").write_text("0" * 40)
    (cache / "snapshots").mkdir()
    (cache / "snapshots" / ("0" * 40)).symlink_to(folder)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    found, local = load_drafter("someone/drafter"), load_drafter(str(folder))
    assert (found.selector, found.num_routed) == ("static", 5)
    assert torch.equal(found.router.query.weight, local.router.query.weight)


def test_overrides_replace_settings(folder):
    drafter = load_drafter(str(folder), num_routed=3, layout="suffix", selector=None)
    assert (drafter.num_routed, drafter.layout, drafter.selector) == (3, "suffix", "static")
    with pytest.raises(ValueError, match=r"\['blocks'\].*selector, layout, query, num_routed"):
        load_drafter(str(folder), blocks=3)
    with pytest.raises(ValueError, match="num_routed is 0"):
        load_drafter(str(folder), num_routed=0)
    with pytest.raises(ValueError, match=r"draft_temperature is 0; .* 0\.05 or more"):
        load_drafter(str(folder), draft_temperature=0)


def test_a_draft_temperature_that_was_learnt_comes_back(folder):
    drafter = load_drafter(str(folder), draft_temperature=0.4)
    save_drafter(drafter, folder)
    assert json.loads((folder / SETTINGS_FILE).read_text())["draft_temperature"] == 0.4
    assert load_drafter(str(folder)).draft_temperature == 0.4
    assert load_drafter(str(folder), draft_temperature=1.0).draft_temperature == 1.0


def test_a_plain_model_sees_everything_inline(tmp_path):
    save_backbone(tiny_backbone("drafter", 1, 2), tmp_path)
    drafter = load_drafter(str(tmp_path))
    assert (drafter.selector, drafter.layout) == ("full", "inline")


@pytest.mark.parametrize(
    "missing", [(ROUTER_FILE,), (SETTINGS_FILE,), (SETTINGS_FILE, ROUTER_FILE)], ids=" and ".join
)
def test_a_drafter_without_its_files_is_refused(folder, missing):
    for name in missing:
        (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"model of a drafter but lacks {' and '.join(missing)}"):
        load_drafter(str(folder))


def test_offline_a_hub_drafter_of_which_only_the_model_is_cached_is_refused(folder, tmp_path, monkeypatch):
    snapshot = tmp_path / "hub" / "models--someone--drafter" / "snapshots" / ("0" * 40)
    shutil.copytree(folder, snapshot, ignore=shutil.ignore_patterns("hub", SETTINGS_FILE, ROUTER_FILE))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    name = "someone/drafter@" + "0" * 40
    with pytest.raises(FileNotFoundError, match=f"lacks {SETTINGS_FILE} and {ROUTER_FILE}"):
        load_drafter(name)
    config = json.loads((snapshot / "config.json").read_text())
    assert config.pop(MARK)
    (snapshot / "config.json").write_text(json.dumps(config))
    assert load_drafter(name).selector == "full"


def test_a_router_of_another_model_is_refused(folder):
    wide = {name: torch.zeros(192, 192) for name in load_file(folder / ROUTER_FILE)}
    save_file(wide, folder / ROUTER_FILE)
    with pytest.raises(ValueError, match=r"belongs to another model.*drafter of width 128"):
        load_drafter(str(folder))


def test_a_drafter_of_another_vocabulary_is_refused(folder):
    drafter = load_drafter(str(folder))
    drafter.backbone.model.resize_token_embeddings(drafter.backbone.vocab_size - 3)
    save_drafter(drafter, folder)
    with pytest.raises(ValueError, match="ids of the shared tokenizer"):
        SpeculativeDecoder(tiny_backbone(), load_drafter(str(folder)))


def test_dtype_holds_for_router_and_model(folder):
    drafter = load_drafter(str(folder), dtype="bfloat16")
    assert {p.dtype for p in drafter.parameters()} == {torch.bfloat16}
