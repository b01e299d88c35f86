"""A task function with a Lightning trainer. One callback logs the curve and saves checkpoints."""

from dataclasses import dataclass

import lightning as L
import torch
from ablations_task import column, task


@dataclass
class Settings:
    rate: float = 0.05
    width: int = 16
    steps: int = 60


class Regression(L.LightningModule):
    def __init__(self, settings):
        super().__init__()
        self.rate = settings.rate
        self.layers = torch.nn.Sequential(torch.nn.Linear(2, settings.width), torch.nn.Tanh())
        self.head = torch.nn.Linear(settings.width, 1)

    def training_step(self, batch, _):
        loss = torch.nn.functional.mse_loss(self.head(self.layers(batch[0])).squeeze(1), batch[1])
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.rate)


class Reports(L.Callback):
    """Log the loss every 20 steps; save a checkpoint every 20 steps and when the run should stop."""

    def __init__(self, context):
        self.context = context

    def on_train_batch_end(self, trainer, *_):
        step = trainer.global_step
        if step % 20 == 0:
            self.context.log(step, loss=trainer.callback_metrics["loss"])
        if step % 20 == 0 or self.context.should_stop():
            with self.context.checkpoint(step) as folder:
                trainer.save_checkpoint(folder / "last.ckpt")


def points(seed, size):
    x = torch.randn(size, 2, generator=torch.Generator().manual_seed(seed))
    return torch.utils.data.TensorDataset(x, x[:, 0] * x[:, 1])


@task(Settings, columns=[column("error", "test error", better="lower", digits=3)], steps="steps")
def TASK(settings, context):
    L.seed_everything(context.seed, verbose=False)
    model = Regression(settings)
    trainer = L.Trainer(
        max_steps=settings.steps, accelerator="auto", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[Reports(context)],
    )  # fmt: skip
    # The batches have a fixed order, so that a resumed run continues with the same batches.
    batches = torch.utils.data.DataLoader(points(0, 640), batch_size=32)
    trainer.fit(model, batches, ckpt_path=context.resume and context.resume / "last.ckpt")
    context.facts(num_params=sum(p.numel() for p in model.parameters()))
    x, y = points(1, 500).tensors
    with torch.no_grad():
        return {"error": torch.nn.functional.mse_loss(model.head(model.layers(x)).squeeze(1), y)}
