import inspect

import pytest
import torch
from helpers import agreeing_drafter, hf_generate, prompts, save_backbone, tiny_backbone

from tiger.backbones.base import Prompt
from tiger.backbones.loading import choose_device
from tiger.backbones.videos import load_video
from tiger.decoding.autoregressive import AutoregressiveDecoder
from tiger.drafting.saving import save_drafter
from tiger.evaluation.generate import generate, stream, summary
from tiger.report.pieces import piece, pieces


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    verifier = tiny_backbone(layers=1)
    save_backbone(verifier, folder / "verifier")
    save_drafter(agreeing_drafter(verifier, noise=0.5), folder / "drafter")
    prompts(1)[0].images[0].save(folder / "image.png")
    return folder


def ask(pair, **changes):
    settings = {
        "images": str(pair / "image.png"),
        "prompt": "What is in the picture?",
        "verifier": str(pair / "verifier"),
        "drafter": str(pair / "drafter"),
        "block_size": 4,
        "max_new_tokens": 12,
        "device": "cpu",
    }
    return generate(**settings | changes)


def test_streamed_text_is_the_verifiers_own(pair, capsys):
    answer = ask(pair, compare=True)
    output = capsys.readouterr().out
    plain = ask(pair, drafter=None)
    assert answer.tokens == plain.tokens
    assert output.startswith(answer.text.rstrip("\ufffd"))
    assert f"{len(answer.rounds)} rounds · AccLen" in output
    assert "x autoregressive speed" in output
    assert "rounds" not in capsys.readouterr().out.splitlines()[-1]


def test_steps_are_compiled_if_asked_for(pair, monkeypatch):
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda function, **options: compiled.append(options) or function)
    plain = ask(pair)
    assert not compiled
    assert ask(pair, compile_drafter=True).tokens == plain.tokens
    assert compiled == [{"mode": "default"}]


def test_devices_by_name(pair, monkeypatch):
    assert choose_device("cpu").type == "cpu"
    for name in ("gpu", "cuda:x", "mps", ""):
        with pytest.raises(ValueError, match=f"device is '{name}'; choose cpu, cuda, cuda:N, or null"):
            choose_device(name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device(None).type == "cpu"
    with pytest.raises(ValueError, match="device is 'cuda', but torch sees 0 CUDA devices here"):
        ask(pair, device="cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device(None) == torch.device("cuda")
    assert choose_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(ValueError, match="device is 'cuda:2', but torch sees 2"):
        choose_device("cuda:2")


def test_trace_is_written(pair, tmp_path, capsys):
    answer = ask(pair, trace=tmp_path / "deep" / "page.html", num_routed=3)
    assert all(len(r.route) == 64 for r in answer.rounds) or all(len(r.route) == 3 for r in answer.rounds)
    assert "What is in the picture?" in (tmp_path / "deep" / "page.html").read_text()
    assert "Trace written" in capsys.readouterr().out


def test_listener_hears_every_round_of_a_batch_of_one(pair):
    heard = []
    backbone = tiny_backbone(layers=1)
    answer = AutoregressiveDecoder(backbone, 6).generate(
        prompts(1), stream(backbone.tokenizer, heard.append)
    )[0]
    assert "".join(heard) == answer.text.rstrip("\ufffd")


def test_pieces_join_to_the_text():
    tokenizer = tiny_backbone(layers=1).tokenizer
    text = "A café costs 3 €, naïve 🐯!"
    ids = tokenizer(text)["input_ids"]
    assert "".join(pieces(tokenizer, ids)) == text
    euro = tokenizer("€")["input_ids"]
    assert len(euro) == 3
    assert piece(tokenizer, euro[:1], euro[1]) == ""


def test_every_option_is_documented():
    document = inspect.getdoc(generate)
    assert all(f"    {name}: " in document for name in inspect.signature(generate).parameters)


def test_summary_without_rounds():
    backbone = tiny_backbone(layers=1)
    answer = AutoregressiveDecoder(backbone, 2).generate(prompts(1))[0]
    assert summary(answer, 8).startswith("2 tokens · ")


def test_videos_are_read_at_the_given_rate(pair, tmp_path, capsys):
    frames = [image.resize((48, 48)) for prompt in prompts(3) for image in prompt.images]
    frames[0].save(tmp_path / "film.gif", save_all=True, append_images=frames[1:], duration=500)
    film = {"videos": str(tmp_path / "film.gif"), "images": None}
    answer = ask(pair, **film, video_fps=2.0, trace=tmp_path / "page.html")
    assert answer.tokens == ask(pair, **film, video_fps=2.0, drafter=None).tokens
    expected = load_video(tmp_path / "film.gif", 2.0)
    assert len(expected.frames) == 3
    prompt = Prompt("What is in the picture?", videos=(expected,))
    assert answer.tokens == hf_generate(tiny_backbone(layers=1), prompt, max_new_tokens=12)
    data = (tmp_path / "page.html").read_text()
    assert data.count("data:image/png") == 2  # three frames are two groups of visual tokens
    both = ask(pair, **film | {"images": str(pair / "image.png")}, max_frames=1)
    assert both.id == "image.png"


def test_prompt_errors(pair, tmp_path):
    with pytest.raises(ValueError, match="needs an image or a video"):
        ask(pair, images=None)
    with pytest.raises(FileNotFoundError, match=r"no image file .*cat\.png"):
        ask(pair, images=str(tmp_path / "cat.png"))
    with pytest.raises(FileNotFoundError, match=r"no video file .*cat\.mp4"):
        ask(pair, images=None, videos=[str(tmp_path / "cat.mp4")])
    (tmp_path / "text.png").write_text("no picture")
    with pytest.raises(ValueError, match="cannot be read as an image"):
        ask(pair, images=str(tmp_path / "text.png"))
    with pytest.raises(ValueError, match="cannot be read as a video"):
        ask(pair, images=None, videos=str(tmp_path / "text.png"))
