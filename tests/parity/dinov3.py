"""Writes dinov3.json: outputs of the DINOv3 of `transformers` for weights and pixels that follow a rule.

    pip install transformers && python tests/parity/dinov3.py

The weights follow the rule of small.json, by the names that transformers gives them.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.backbone.test_vit import by_the_rule

SIZE = {"hidden_size": 24, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 2}
REGISTERS, STEP = 4, 7


def pixels() -> Tensor:
    """Of a photo that is not square."""
    return torch.from_numpy(np.random.RandomState(3).standard_normal((2, 3, 48, 80)).astype(np.float32))


def golden() -> dict[str, Any]:
    """The names and shapes of the weights, and every 7th value of the normalised outputs of all blocks."""
    from transformers import DINOv3ViTConfig, DINOv3ViTModel

    model = DINOv3ViTModel(DINOv3ViTConfig(**SIZE, num_register_tokens=REGISTERS)).eval()
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    model.load_state_dict({name: by_the_rule(name, shape) for name, shape in shapes.items()})
    with torch.no_grad():
        states = model(pixels(), output_hidden_states=True).hidden_states[1:]
        blocks = torch.stack([model.norm(state) for state in states], 1)  # (B, depth, 1 + registers + T, width)
    blocks = torch.cat([blocks[:, :, :1], blocks[:, :, 1 + REGISTERS :]], 2)
    values = [round(value, 5) for value in blocks.flatten()[::STEP].tolist()]
    return {"shapes": shapes, "tokens_shape": list(blocks.shape), f"every_{STEP}th": values}


if __name__ == "__main__":
    Path(__file__).with_suffix(".json").write_text(json.dumps(golden()) + "\n")
