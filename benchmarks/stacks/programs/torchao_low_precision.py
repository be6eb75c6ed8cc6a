"""Training in low precision with torchao: quantization-aware (MX), in MXFP8, or in float8 next to a frozen layer.

Without --bias, the quantized layers have no bias, as in most language models.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torchao.float8 import Float8LinearConfig, convert_to_float8_training
from torchao.prototype.moe_training.config import MXFP8TrainingOpConfig, MXFP8TrainingRecipe
from torchao.prototype.mx_formats import MXDynamicActivationMXWeightConfig
from torchao.quantization import quantize_
from torchao.quantization.qat import QATConfig
from torchao.quantization.quantize_.common.kernel_preference import KernelPreference

STEPS = 40


class Regressor(nn.Module):
    def __init__(self, bias):
        super().__init__()
        layers = nn.Linear(32, 128, bias=bias), nn.GELU(), nn.Linear(128, 64, bias=bias), nn.GELU()
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(64, 1)

    def forward(self, inputs):
        return self.head(self.layers(inputs))


def convert(model, way):
    """Let the layers in front of the head compute in low precision."""
    if way == "qat":
        base = MXDynamicActivationMXWeightConfig(
            activation_dtype=torch.float8_e4m3fn,
            weight_dtype=torch.float8_e4m3fn,
            kernel_preference=KernelPreference.EMULATED,
        )
        quantize_(model.layers, QATConfig(base, step="prepare"))
    elif way == "mxfp8":
        recipe = MXFP8TrainingOpConfig.from_recipe(MXFP8TrainingRecipe.MXFP8_EMULATED_RCEIL)
        quantize_(model.layers, recipe, filter_fn=lambda module, name: isinstance(module, nn.Linear))
    else:
        model.layers[0].requires_grad_(False)
        config = Float8LinearConfig(enable_fsdp_float8_all_gather=True, emulate=True)
        convert_to_float8_training(model.layers, config=config)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--way", choices=("qat", "mxfp8", "float8"), default="qat")
    parser.add_argument("--bias", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    model = Regressor(args.bias).bfloat16()
    convert(model, args.way)
    optimizer = torch.optim.AdamW([value for value in model.parameters() if value.requires_grad], lr=3e-3)
    for step in range(STEPS):
        draw = torch.Generator().manual_seed(args.seed * 1000 + step)
        inputs = torch.randn(64, 32, generator=draw)
        targets = inputs[:, :4].sum(dim=1, keepdim=True).sin()
        loss = F.mse_loss(model(inputs.bfloat16()).float(), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 5 == 0:
            print(f"step {step} loss {loss.item():.6f}")
    inputs = torch.randn(16, 32, generator=torch.Generator().manual_seed(1)).bfloat16()
    print("outputs", model(inputs).float().sum().item())


if __name__ == "__main__":
    main()
