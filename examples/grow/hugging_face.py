"""Grow a vision transformer of Hugging Face, trained by its Trainer. Needs the extra drivers.

python examples/grow/hugging_face.py [epochs]
"""

import sys
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.optim.lr_scheduler import LinearLR
from transformers import Trainer, TrainerCallback, TrainingArguments, ViTConfig, ViTForImageClassification, set_seed

import esper
from esper.seeds.blueprints.attention import AttentionConfig

SLOT = "vit.layers.0"


class Growth(TrainerCallback):
    """The controller: one seed, planted before the third epoch and holding from the fifth on."""

    def on_epoch_begin(self, args: Any, state: Any, control: Any, *, model: nn.Module, **_: Any) -> None:
        epoch = round(state.epoch)
        if epoch == 2:
            model.germinate(SLOT, AttentionConfig(causal=False))  # else the class token would see only itself
        if epoch == 4:
            model.advance(SLOT)
        model.begin_epoch()


if __name__ == "__main__":
    set_seed(0)
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images).float().view(-1, 1, 8, 8) / 16, torch.tensor(labels)
    train, test = ([{"pixel_values": x[row], "labels": y[row]} for row in rows] for rows in (range(1200), range(1200, len(x))))
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = ViTConfig(image_size=8, patch_size=2, num_channels=1, num_labels=10, **small)
    net = esper.grow(ViTForImageClassification(config), [SLOT], {"pixel_values": x[:2]})

    epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    optimizer = torch.optim.AdamW(net.module.parameters(), lr=5e-3)
    net.attach(optimizer)
    scheduler = LinearLR(optimizer, 1, 0.1, total_iters=epochs * len(train) // 40)  # the Trainer's own wants fixed groups
    options = {"remove_unused_columns": False, "label_names": ["labels"]}  # which it reads off the arguments of a bare model
    options |= {"eval_strategy": "epoch", "save_strategy": "epoch", "report_to": "none", "use_cpu": True}
    arguments = TrainingArguments("grown_vit", num_train_epochs=epochs, per_device_train_batch_size=40, **options)
    data = {"train_dataset": train, "eval_dataset": test}
    Trainer(net, arguments, **data, optimizers=(optimizer, scheduler), callbacks=[Growth()]).train()

    def correct() -> torch.Tensor:
        return (net(pixel_values=x[1200:]).logits.argmax(1) == y[1200:]).float()

    net.eval()
    print(f"contribution {net.contributions(correct)[SLOT].value:.3f}")
    print(f"accuracy {100 * correct().mean():.1f} %, stage: {net.stage(SLOT)}")
