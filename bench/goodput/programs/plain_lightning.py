"""The same training as a LightningModule, with Lightning's checkpoint each epoch and `ckpt_path="last"`. For a shell loop.

No progress bar, no logger, no summary: only what is needed to resume.
"""

import lightning
import storm
import task
import torch
from lightning.pytorch.callbacks import ModelCheckpoint


class Plain(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = task.build()
        self.criterion = torch.nn.CrossEntropyLoss()

    def training_step(self, batch, _index):
        inputs, labels = batch
        return self.criterion(self.net(inputs), labels)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)

    def on_train_batch_end(self, *_):
        storm.batch_done(self.trainer.global_step)


torch.manual_seed(0)
loader = task.make_loader(storm.config["batches"])
module = Plain()
trainer = lightning.Trainer(
    accelerator="cpu",
    max_epochs=storm.config["epochs"],
    callbacks=[ModelCheckpoint(dirpath="checkpoints", save_last=True, every_n_epochs=1)],
    enable_progress_bar=False,
    enable_model_summary=False,
    logger=False,
)
trainer.fit(module, loader, ckpt_path="last")
storm.finished(module.net.state_dict().values())
