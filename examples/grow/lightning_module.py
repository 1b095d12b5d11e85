"""Grow a network that Lightning trains, in single precision and without accumulated gradients. Needs the extra drivers.

python examples/grow/lightning_module.py [epochs]
"""

import sys

import lightning
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import esper


class Growing(lightning.LightningModule):
    """A classifier in which one seed grows, behind the module at first."""

    def __init__(self, example: Tensor) -> None:
        super().__init__()
        layers = [nn.Conv2d(1, 4, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 10)]
        self.net = esper.grow(nn.Sequential(*layers), {"features": "1"}, example, incubation="closed_loop")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        optimizer = torch.optim.Adam(self.net.module.parameters(), lr=3e-3)
        self.net.attach(optimizer)
        return optimizer

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 2:
            self.net.germinate("features", "conv_light", ramp=2)
        if self.current_epoch == 4:
            self.net.advance("features")
        self.net.begin_epoch()

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        self.loss = lambda: F.cross_entropy(self.net(batch[0]), batch[1])
        return self.loss()

    def on_after_backward(self) -> None:
        self.net.incubate(self.loss)

    def validation_step(self, batch: list[Tensor], _: int) -> None:
        accuracy = (self.net(batch[0]).argmax(1) == batch[1]).float().mean()
        self.log("accuracy", accuracy, prog_bar=True)


if __name__ == "__main__":
    lightning.seed_everything(0)
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images).float().view(-1, 1, 8, 8) / 16, torch.tensor(labels))
    train, val = random_split(data, [1200, len(data) - 1200])
    epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    trainer = lightning.Trainer(max_epochs=epochs, accelerator="cpu", logger=False, enable_checkpointing=False)
    model = Growing(data[:2][0])
    trainer.fit(model, DataLoader(train, batch_size=64, shuffle=True), DataLoader(val, batch_size=600))
    print(f"accuracy {100 * trainer.logged_metrics['accuracy']:.1f} %, stage: {model.net.stage('features')}")
