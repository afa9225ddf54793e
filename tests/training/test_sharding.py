import pytest
import torch
from helpers import fresh_backbone

from tiger.training.sharding import shard


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8], ids=["4bit", "8bit"])
def test_a_quantized_verifier_is_refused_before_anything_is_sharded(dtype):
    drafter, verifier = fresh_backbone("drafter", 1, 2), fresh_backbone("verifier", 0, 2)
    projection = verifier.model.get_decoder().layers[1].self_attn.q_proj
    projection.weight = torch.nn.Parameter(projection.weight.to(dtype), requires_grad=False)
    with pytest.raises(ValueError, match=r"quantized model cannot be sharded.*use the ddp strategy"):
        shard(torch.nn.Module(), drafter, [verifier], (), None)
