"""The plain layer (all of tiger/ but training/ and the command line) works without Lightning."""

import subprocess
import sys
from pathlib import Path

import tiger

ROOT = Path(__file__).resolve().parents[1]

PROGRAM = """
import importlib, sys, traceback

sys.modules.update({"lightning": None, "pytorch_lightning": None})  # None makes the import fail
failed = False
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except Exception:
        failed = True
        print(f"--- {name}", traceback.format_exc(), sep="\\n", file=sys.stderr)
sys.exit(failed)
"""


def plain_modules():
    for path in sorted((ROOT / "tiger").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[1] in {"training", "cli", "__main__"}:
            continue
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_plain_layer_imports_without_lightning():
    modules = list(plain_modules())
    assert "tiger" in modules
    assert "tiger.decoding" in modules
    assert not any(name.startswith("tiger.training") for name in modules)
    command = [sys.executable, "-c", PROGRAM, *modules]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_the_block_on_lightning_works():
    command = [sys.executable, "-c", PROGRAM, "lightning.pytorch"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert "ModuleNotFoundError" in done.stderr


def test_version_is_that_of_the_distribution():
    assert f'version = "{tiger.__version__}"' in (ROOT / "pyproject.toml").read_text()
