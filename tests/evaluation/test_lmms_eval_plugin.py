"""The plug-in against lmms-eval's interface, rebuilt here: registry, base class, requests."""

import importlib
import re
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from helpers import agreeing_drafter, picture, save_backbone, tiny_backbone

from tiger.backbones.base import Prompt
from tiger.decoding.acceptance import Sampling
from tiger.decoding.autoregressive import AutoregressiveDecoder
from tiger.decoding.pruners import PRUNERS, build_pruner
from tiger.decoding.speculative import SpeculativeDecoder
from tiger.drafting.heads.saving import build_head, save_head
from tiger.evaluation import lmms_eval_plugin as plugin

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class ModelManifest:
    model_id: str
    simple_class_path: str | None = None
    chat_class_path: str | None = None
    aliases: tuple[str, ...] = ()


class Lmms(ABC):
    """What lmms-eval's base class does in its constructor, and what it wants of a model."""

    is_simple = True

    def __init__(self):
        self.cache_hook = SimpleNamespace(add_partial=lambda *args: self.cached.append(args))
        self.task_dict, self.cached = {}, []

    @abstractmethod
    def loglikelihood(self, requests): ...

    @abstractmethod
    def generate_until(self, requests): ...

    @abstractmethod
    def generate_until_multi_round(self, requests): ...

    @classmethod
    def create_from_arg_string(cls, text, config):
        options = dict(part.split("=") for part in text.split(","))
        return cls(**options, **{name: value for name, value in config.items() if value is not None})


class Registry:
    """Resolves a model as lmms-eval does: manifest from the entry point, then the class by its path."""

    def get_model(self, name):
        project = (ROOT / "pyproject.toml").read_text()
        module, function = re.search(
            r'\[project\.entry-points\."lmms_eval\.models"\]\ntiger = "(.+):(.+)"', project
        ).groups()
        manifest = getattr(importlib.import_module(module), function)()
        assert isinstance(manifest, ModelManifest)
        assert manifest.model_id == name
        path, class_name = manifest.simple_class_path.rsplit(".", 1)
        model = getattr(importlib.import_module(path), class_name)
        assert issubclass(model, Lmms)
        assert model.is_simple
        return model


@pytest.fixture
def registry(monkeypatch):
    for name in ("lmms_eval", "lmms_eval.api", "lmms_eval.api.model", "lmms_eval.models"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "lmms_eval.models.registry_v2", ModuleType("registry_v2"))
    sys.modules["lmms_eval.api.model"].lmms = Lmms
    sys.modules["lmms_eval.models.registry_v2"].ModelManifest = ModelManifest
    plugin._tiger.cache_clear()
    yield Registry()
    plugin._tiger.cache_clear()


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    save_backbone(tiny_backbone(), folder / "verifier")
    save_backbone(agreeing_drafter(tiny_backbone(), 0.05).backbone, folder / "drafter")
    return folder


@pytest.fixture
def model(registry, pair):
    arguments = f"verifier={pair / 'verifier'},drafter={pair / 'drafter'},dtype=float32,system="
    model = registry.get_model("tiger").create_from_arg_string(
        arguments, {"batch_size": 2, "max_batch_size": None, "device": "cpu"}
    )
    rows = [{"images": [picture(0)]}, {"images": [picture(1), picture(2)]}, {"images": None}]
    model.task_dict["scenes"] = {"test": rows}
    return model


def request(doc_id, text="What is here?", visuals=lambda row: row["images"], **options):
    return SimpleNamespace(args=(text, options, visuals, doc_id, "scenes", "test"))


def alone(prompt, max_new_tokens):
    return AutoregressiveDecoder(tiny_backbone(), max_new_tokens).generate([prompt])[0].text


def test_answers_equal_the_verifiers_in_the_order_of_requests(model):
    requests = [
        request(0, "<image>\nWhat is here?", max_new_tokens=6, temperature=0, do_sample=False),
        request(1, max_new_tokens=9),
        request(2, max_new_tokens=6),
        request(1, max_new_tokens=6, temperature=0.7, do_sample=False),
    ]
    assert isinstance(model._decoder(6, Sampling()), SpeculativeDecoder)
    expected = [
        alone(Prompt("What is here?", (picture(0),)), 6),
        alone(Prompt("What is here?", (picture(1), picture(2))), 9),
        alone(Prompt("What is here?"), 6),
        alone(Prompt("What is here?", (picture(1), picture(2))), 6),
    ]
    assert model.generate_until(requests) == expected
    cached = {(name, context, text) for name, (context, _), text in model.cached}
    assert cached == {("generate_until", r.args[0], t) for r, t in zip(requests, expected, strict=True)}


def test_acceptance_is_reported(model, capsys):
    model.generate_until([request(0, max_new_tokens=12)])
    figures = model.acceptance.compute()
    assert f"AccLen {figures['acclen']:.2f}, {figures['rounds']} rounds" in capsys.readouterr().err


def test_answers_stop_at_the_first_stop_text(model):
    text = alone(Prompt("What is here?", (picture(0),)), 12)
    stop = text[4]
    assert model.generate_until([request(0, max_new_tokens=12, until=[stop, "\n\n"])]) == [
        text.split(stop)[0]
    ]
    assert plugin._cut("one\n\ntwo;three", "\n\n") == "one\n\ntwo;three"
    assert plugin._cut("one;two", ";") == "one"
    assert plugin._cut("one", None) == "one"


def test_sampled_repeats_differ_and_can_be_repeated(model):
    requests = [request(0, max_new_tokens=8, temperature=1.0, do_sample=True, top_p=None) for _ in range(3)]
    texts = model.generate_until(requests)
    assert len(set(texts)) > 1
    assert model.generate_until(requests) == texts


def test_settings_of_a_request():
    assert plugin._settings({}) == (128, Sampling())
    assert plugin._settings({"temperature": 0.5, "top_k": 3, "top_p": 0.9, "max_new_tokens": 4}) == (
        4,
        Sampling(0.5, 3, 0.9),
    )
    assert plugin._settings({"temperature": 0.5, "do_sample": False})[1] == Sampling()
    with pytest.raises(ValueError, match="num_beams is 4; speculative decoding has no beams"):
        plugin._settings({"num_beams": 4})


def test_without_a_drafter_decoding_is_autoregressive(registry, pair):
    model = registry.get_model("tiger")(str(pair / "verifier"), "none", dtype="float32")
    assert isinstance(model._decoder(6, Sampling()), AutoregressiveDecoder)


@pytest.mark.parametrize("name", ["head", "racer", "vispruner", "sparsevlm"])
def test_every_method_of_a_benchmark_answers(registry, pair, tmp_path, capsys, name):
    verifier = tiny_backbone()
    if name == "head":
        save_head(build_head("medusa", verifier), tmp_path / "head")
    drafter = str(tmp_path / name) if name == "head" else name
    model = registry.get_model("tiger")(str(pair / "verifier"), drafter, dtype="float32", system="")
    model.task_dict["scenes"] = {"test": [{"images": [picture(0)]}]}
    texts = model.generate_until([request(0, max_new_tokens=12)])
    said, prompt = capsys.readouterr().err, Prompt("What is here?", (picture(0),))
    if name in PRUNERS:
        pruned = build_pruner({"method": name}, verifier)
        assert texts == [AutoregressiveDecoder(pruned, 12).generate([prompt])[0].text]
        assert f"lossy: with {name} the answers are not the verifier's own" in said
    else:
        assert texts == [alone(prompt, 12)]
        assert "lossy" not in said
    assert ("AccLen" in said) == (name not in PRUNERS)
    with pytest.raises(ValueError, match="leave num_routed out"):
        registry.get_model("tiger")(str(pair / "verifier"), drafter, num_routed=4)


def test_videos_and_unknown_visuals(model):
    with pytest.raises(FileNotFoundError, match=r"no video file 'gone\.mp4'"):
        model.generate_until([request(0, visuals=lambda row: ["gone.mp4"])])
    with pytest.raises(
        ValueError, match=r"scenes/test/0 has visuals of \['ndarray'\]; images and video files"
    ):
        model.generate_until([request(0, visuals=lambda row: [np.zeros(3)])])


def test_what_is_not_offered_is_said(model, registry, monkeypatch):
    with pytest.raises(NotImplementedError, match="choose tasks of the type generate_until"):
        model.loglikelihood([])
    with pytest.raises(NotImplementedError, match="choose tasks of one round"):
        model.generate_until_multi_round([])
    with pytest.raises(ValueError, match="batch_size is 'auto'; give a number"):
        registry.get_model("tiger")(batch_size="auto")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="runs in one process"):
        registry.get_model("tiger")()


def test_the_plain_layer_does_not_need_lmms_eval():
    assert "lmms_eval" not in sys.modules
    with pytest.raises(AttributeError, match="has no attribute 'Other'"):
        plugin.Other  # noqa: B018
