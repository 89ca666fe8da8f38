"""The same training as train.py, as a LightningModule in Lightning's default Trainer.

BENCH_CONFIG is as in train.py, with an additional key `callbacks`: none or monitoring. The module's hooks time the loop, from the end
of the last warm-up step to the end of training, as in the plain script. The loss is logged in both rows, as in Lightning's guide.
"""

import hashlib
import itertools
import json
import os
import time
from pathlib import Path

import lightning
import models
import torch
from lightning.pytorch.callbacks import DeviceStatsMonitor, LearningRateMonitor, ModelCheckpoint

config = json.loads(os.environ["BENCH_CONFIG"])


class Timed(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = models.build(config["net"])
        self.criterion = torch.nn.CrossEntropyLoss()
        self.marks = []
        self.loop_cpu = 0.0
        self.last_loss = None

    def training_step(self, batch, _index):
        inputs, labels = batch
        loss = self.criterion(self.net(inputs), labels)
        self.log("loss", loss)
        self.last_loss = loss.detach()
        return loss

    def configure_optimizers(self):
        return models.build_optimizer(config["optimizer"], self.parameters())

    def on_train_batch_end(self, *_):
        self.marks.append(time.perf_counter())
        if len(self.marks) == config["warmup"]:
            self.loop_cpu = time.process_time()

    def on_train_end(self):
        self.ended = time.perf_counter()
        self.loop_cpu = time.process_time() - self.loop_cpu


torch.manual_seed(0)
dataset = models.make_data(config["net"], config["samples"])
loader = torch.utils.data.DataLoader(dataset, batch_size=config["batch"], shuffle=True, drop_last=True)
module = Timed()
folder = Path(config["out"]).parent
callbacks = []
if config["callbacks"] == "monitoring":
    callbacks = [LearningRateMonitor(), DeviceStatsMonitor(), ModelCheckpoint(every_n_epochs=1)]
trainer = lightning.Trainer(
    accelerator="cpu", max_steps=config["warmup"] + config["steps"], default_root_dir=folder, callbacks=callbacks
)
trainer.fit(module, loader)

marks = module.marks[config["warmup"] - 1 :]
gaps = sorted(after - before for before, after in itertools.pairwise(marks))
weights = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in module.parameters()))
result = {
    "steps": config["steps"],
    "loop_s": module.ended - marks[0],
    "loop_cpu_s": module.loop_cpu,
    "step_ms": 1e3 * (module.ended - marks[0]) / config["steps"],
    "median_step_ms": 1e3 * gaps[len(gaps) // 2],
    "final_loss": float(module.last_loss),
    "weights": weights.hexdigest()[:16],
    "tensors": len(list(module.parameters())),
    "threads": torch.get_num_threads(),
    "torch": torch.__version__,
}
line = json.dumps(result)
Path(config["out"]).write_text(line)
print(line, flush=True)
