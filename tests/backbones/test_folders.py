"""Names become folders: local, shipped, or the hub's cache, which these tests fill by hand."""

import json
import shutil

import huggingface_hub.errors
import pytest
from helpers import save_backbone, tiny_backbone
from huggingface_hub import constants

from data_modules.examples import PromptFormat
from data_modules.responses import fingerprint as content_key
from tiger.backbones import folders
from tiger.backbones.folders import commit_of, resolve
from tiger.backbones.loading import family_of, load_backbone, load_processor
from tiger.evaluation.samples import fingerprint

COMMITS = {"main": "a" * 40, "v2": "b" * 40}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    target = tmp_path_factory.mktemp("saved")
    save_backbone(tiny_backbone("drafter", 1, 1), target)
    return target


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "model")


@pytest.fixture
def hub(saved, tmp_path, monkeypatch):
    """A hub cache that holds owner/model at two commits; returns the snapshots by revision."""
    repository = tmp_path / "hub" / "models--owner--model"
    (repository / "refs").mkdir(parents=True)
    for revision, commit in COMMITS.items():
        (repository / "refs" / revision).write_text(commit)
        shutil.copytree(saved, repository / "snapshots" / commit)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return {name: repository / "snapshots" / commit for name, commit in COMMITS.items()}


def test_local_folders_come_before_shipped_ones(tmp_path, monkeypatch):
    (tmp_path / "tiny" / "verifier").mkdir(parents=True)
    monkeypatch.setattr(folders, "SHIPPED", tmp_path)
    assert resolve("tiny/verifier") == tmp_path / "tiny" / "verifier"
    (tmp_path / "here@v1" / "tiny" / "verifier").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here@v1")
    assert resolve("tiny/verifier").absolute() == tmp_path / "here@v1" / "tiny" / "verifier"
    assert resolve(str(tmp_path / "here@v1")) == tmp_path / "here@v1"


def test_a_hub_id_is_its_snapshot_at_the_pinned_revision(hub):
    assert resolve("owner/model") == hub["main"]
    assert resolve("owner/model@v2") == resolve("owner/model@" + "b" * 40) == hub["v2"]
    assert commit_of(hub["v2"]) == "b" * 40
    assert commit_of(hub["v2"].parent) is None
    assert family_of("owner/model@v2") == "qwen3_vl"
    assert load_backbone("owner/model@v2").num_layers == 1
    assert PromptFormat("owner/model").processor.chat_template


@pytest.mark.parametrize("key", [content_key, lambda name: fingerprint(resolve(name))])
def test_keys_of_cached_results_follow_the_commit(hub, key):
    first = key("owner/model")
    assert first
    assert key("owner/model@v2") != first
    refs = hub["main"].parent.parent / "refs" / "main"
    refs.write_text(COMMITS["v2"])
    assert key("owner/model") == key("owner/model@v2") != first


@pytest.mark.parametrize("name", ["owner/other", "owner/model@v3", "owner/model@" + "c" * 40])
def test_offline_names_what_is_not_cached(hub, name):
    repository, _, revision = name.partition("@")
    command = f"hf download {repository}" + (f" --revision {revision}" if revision else "")
    with pytest.raises(FileNotFoundError, match=rf"lacks {name} .*HF_HUB_OFFLINE is set. Run `{command}`"):
        load_backbone(name)


def test_a_partial_snapshot_names_what_is_missing(hub):
    (hub["main"] / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"lacks model\.safetensors.*hf download owner/model --rev"):
        load_backbone("owner/model")
    (hub["v2"] / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        load_backbone("owner/model@v2")


def test_no_connection_is_told_from_offline_mode(hub, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)

    def unreachable(*args, **kwargs):
        raise huggingface_hub.errors.LocalEntryNotFoundError("ConnectError")

    monkeypatch.setattr(folders, "snapshot_download", unreachable)
    with pytest.raises(FileNotFoundError, match=r"as there is no connection.*ConnectError"):
        resolve("owner/model")


@pytest.mark.parametrize("kind", ["RepositoryNotFoundError", "RevisionNotFoundError", "GatedRepoError"])
def test_an_unknown_or_closed_repository(kind, monkeypatch):
    error = getattr(huggingface_hub.errors, kind)

    def refuse(*args, **kwargs):
        raise error.__new__(error)

    monkeypatch.setattr(folders, "snapshot_download", refuse)
    with pytest.raises(FileNotFoundError, match=r"neither a folder nor a hub repository.*hf auth login"):
        resolve("owner/model@v9")


def test_only_the_config_is_fetched_to_know_the_family(hub, monkeypatch):
    asked = []

    def fetch(repository, revision, allow_patterns, ignore_patterns):
        asked.append((repository, revision, allow_patterns))
        return str(hub["main"])

    monkeypatch.setattr(folders, "snapshot_download", fetch)
    (hub["main"] / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(ValueError, match="owner/model@v2 is a 'bert' model"):
        load_backbone("owner/model@v2")
    assert asked == [("owner/model", "v2", ["config.json"])]


def test_pickled_weights_are_refused(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(FileNotFoundError, match=r"holds pytorch_model\.bin\. Only safetensors are read"):
        load_backbone(str(folder))


def test_missing_weights_and_shards_are_named(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"lacks model\.safetensors\. Copy them"):
        load_backbone(str(folder))
    shards = {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    (folder / shards["a"]).write_bytes(b"")
    with pytest.raises(FileNotFoundError, match=r"lacks model-2-of-2\.safetensors\."):
        load_backbone(str(folder))


@pytest.mark.parametrize(
    ("gone", "message"),
    [
        ("processor_config.json", r"lacks processor_config\.json or preprocessor_config\.json\. Copy"),
        ("tokenizer.json", r"lacks tokenizer\.json or tokenizer\.model or vocab\.json\. Copy"),
        ("tokenizer_config.json", r"lacks tokenizer_config\.json\. Copy"),
        ("chat_template.jinja", r"has no chat template\. Copy chat_template\.jinja"),
    ],
)
def test_missing_processor_files_are_named(folder, gone, message):
    (folder / gone).unlink()
    for load in (load_backbone, PromptFormat):
        with pytest.raises(FileNotFoundError, match=message):
            load(str(folder))


def test_remote_code_is_not_run(folder):
    config = json.loads((folder / "processor_config.json").read_text())
    evil = {"auto_map": {"AutoProcessor": "evil.Evil"}}
    (folder / "processor_config.json").write_text(json.dumps(config | evil))
    (folder / "evil.py").write_text("raise SystemExit('remote code ran')\n")
    assert load_processor(folder).tokenizer is not None
    model = json.loads((folder / "config.json").read_text())
    auto = {"auto_map": {"AutoConfig": "evil.Evil", "AutoModelForImageTextToText": "evil.Evil"}}
    (folder / "config.json").write_text(json.dumps(model | auto))
    assert load_backbone(str(folder)).num_layers == 1
