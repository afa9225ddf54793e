import json

import pytest
from standins import save_standin

from tiger.backbones.loading import load_backbone


def test_a_sliding_window_is_refused(tmp_path):
    save_standin("qwen2_5_vl", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["text_config"]["layer_types"][-1] = "sliding_attention"
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="sliding window, which explicit masks would switch off"):
        load_backbone(str(tmp_path))
