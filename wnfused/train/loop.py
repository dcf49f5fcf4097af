"""The training loop: one step, one epoch, one run. What it is made of lies in the files beside it."""

import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wnfused.train import checkpoints, distributed, schedules, state
from wnfused.train.config import Config
from wnfused.train.data import Images
from wnfused.train.distributed import World
from wnfused.train.ema import EMA
from wnfused.train.evaluate import evaluate
from wnfused.train.interrupts import SIGNALS, Interrupts
from wnfused.train.meter import Meter
from wnfused.train.optimizer import sgd
from wnfused.train.progress import Moment, Progress
from wnfused.train.result import Result
from wnfused.train.run_folder import RunFolder
from wnfused.train.tensorboard import Board

READ_EVERY = 10  # steps between two looks at the loss


class Diverged(Exception):
    """The loss is NaN or too large."""

    def __init__(self, step: int, reason: str) -> None:
        super().__init__(reason)
        self.step, self.reason = step, reason


class Interrupted(Exception):
    """Somebody wants the run to stop."""


class Trainer:
    """A run in progress: network, optimizer, position. ``saved`` is the checkpoint to go on from."""

    def __init__(
        self,
        config: Config,
        model: nn.Module,
        images: Images,
        folder: RunFolder,
        world: World,
        progress: Progress,
        saved: checkpoints.Payload | None = None,
    ) -> None:
        self.config, self.model, self.images, self.folder = config, model, images, folder
        self.world, self.progress = world, progress
        self.epoch = self.batch = self.step = 0  # completed
        self.seconds = 0.0  # of training and validation
        self.history: list[dict[str, Any]] = []
        self.best: dict[str, Any] = {"epoch": None, "validation_accuracy": None}
        self.meter = Meter()
        self.interrupts = Interrupts()
        self.board: Board | None = None

        if saved is not None:
            model.load_state_dict(saved["model"])
        layout = torch.channels_last if config.channels_last else torch.preserve_format
        model.to(device=world.device, memory_format=layout)  # type: ignore[call-overload]
        if config.compile:
            model.compile()
        self.runner = world.spread(model, config.sharding)
        self.sharded = world.size > 1 and config.sharding == "fsdp"
        self.parameters = list(model.parameters())
        self.optimizer = sgd(model, config)
        self.scaler = torch.amp.GradScaler(world.device.type, enabled=config.amp == "fp16")
        self.ema = EMA(model, config.ema) if config.ema else None
        if saved is not None:
            state.restore(self, saved)
        self.saved_at = self.started_at = time.perf_counter()
        self.first_step = self.step

    # One step

    def autocast(self) -> AbstractContextManager[Any]:
        if self.config.amp == "none":
            return nullcontext()
        return torch.autocast(self.world.device.type, torch.bfloat16 if self.config.amp == "bf16" else torch.float16)

    def train_step(self, images: Tensor, labels: Tensor) -> None:
        config, size = self.config, self.images.train.global_size(self.batch)
        rate = self.learning_rate(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss, correct = self._gradients(images, labels, size)
        if config.clip:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.parameters, config.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        if self.ema is not None:
            self.ema.update(self.step)
        self.meter.add(loss, correct, size)

    def learning_rate(self, step: int) -> float:
        return schedules.learning_rate(self.config, step, len(self.images.train))

    def _gradients(self, images: Tensor, labels: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """Gradients of the mean loss over the ``size`` images of all processes; own sum of losses and right answers.

        The processes' gradients are averaged, so each takes the sum over its images times their number over ``size``:
        right also when they have different numbers of images.
        """
        parts = self.config.accumulate
        losses, corrects = [], []
        for i, (x, y) in enumerate(zip(images.tensor_split(parts), labels.tensor_split(parts), strict=True)):
            with distributed.accumulating(self.runner, last=i == parts - 1):
                with self.autocast():
                    logits = self.runner(x)
                loss = F.cross_entropy(logits.float(), y, reduction="sum", label_smoothing=self.config.label_smoothing)
                self.scaler.scale(loss * (self.world.size / size)).backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
            corrects.append((logits.detach().argmax(1) == y).sum())
        return (losses[0], corrects[0]) if parts == 1 else (torch.stack(losses).sum(), torch.stack(corrects).sum())

    # One epoch

    def train_epoch(self) -> None:
        self.model.train()
        self.meter.start_clock()
        for images, labels in self.images.train.epoch(self.epoch, self.batch):
            self.advance(images, labels)
            if self.has_all_steps():
                break
        self.read_losses()

    def has_all_steps(self) -> bool:
        return 0 < self.config.max_steps <= self.step

    def advance(self, images: Tensor, labels: Tensor) -> None:
        """One step and all that goes with it."""
        self.train_step(images, labels)
        self.batch += 1
        self.step += 1
        if self.world.device.type == "cpu":
            self.meter.lap()
        if self.step % READ_EVERY == 0:
            self.read_losses()
        *stop, save = self.world.any(*self.interrupts.flags(), self._checkpoint_due())
        if any(stop):
            raise Interrupted
        if save:
            self.save()
        if self.progress.due():
            self.progress.moment(self.moment())

    def _checkpoint_due(self) -> bool:
        steps, seconds = self.config.checkpoint_steps, self.config.checkpoint_seconds
        if steps and self.step % steps == 0:
            return True
        return bool(seconds) and self.world.first and time.perf_counter() - self.saved_at >= seconds

    def read_losses(self) -> None:
        """Bring the epoch's figures up to date; raises where a loss is not acceptable."""
        pending = self.meter.pending
        losses = self.meter.read(self.world)
        if pending and self.world.device.type == "cuda":
            self.meter.lap(pending)  # reading waited for the GPU
        if self.board is not None:
            self.board.steps(self.step - len(losses) + 1, losses)
        for step, loss in enumerate(losses, self.step - len(losses) + 1):
            if not self.is_acceptable(loss):
                raise Diverged(step, f"the loss of step {step} is {loss:g}")

    def is_acceptable(self, loss: float) -> bool:
        return math.isfinite(loss) and (self.config.max_loss is None or loss <= self.config.max_loss)

    def evaluate(self, which: str) -> tuple[float, float]:
        def between() -> None:
            if self.world.size == 1 and self.interrupts.requested:
                raise Interrupted

        loader = self.images.validation if which == "validation" else self.images.test
        assert loader is not None
        return evaluate(self.model, loader, self.world, self.autocast, sharded=self.sharded, between=between)

    @contextmanager
    def kept_weights(self) -> Iterator[None]:
        """The network has the weights that are validated and kept."""
        with self.ema.in_place() if self.ema is not None else nullcontext():
            yield

    def end_epoch(self) -> None:
        """Validate, note the figures, keep the weights if they are the best, and move on to the next epoch."""
        start = time.perf_counter()
        loss = accuracy = None
        with self.kept_weights():
            if self.images.validation is not None:
                loss, accuracy = self.evaluate("validation")
                if not self.is_acceptable(loss):
                    raise Diverged(self.step, f"the validation loss after epoch {self.epoch + 1} is {loss:g}")
            best = self.best["validation_accuracy"]
            if accuracy is None or best is None or accuracy > best:
                self.best = {"epoch": self.epoch + 1, "validation_accuracy": accuracy}
                self._save_best()
        self._note_epoch(loss, accuracy, self.meter.seconds + time.perf_counter() - start)
        self.epoch, self.batch, self.meter = self.epoch + 1, 0, Meter()
        self.save()

    def _note_epoch(
        self, loss: float | None, accuracy: float | None, seconds: float, *, diverged: bool = False
    ) -> None:
        meter = self.meter
        line = {
            "epoch": self.epoch + 1,
            "step": self.step,
            "lr": self.learning_rate(self.step - 1),
            "train_loss": meter.mean_loss(),
            "train_accuracy": meter.accuracy(),
            "validation_loss": loss,
            "validation_accuracy": accuracy,
            "seconds": seconds,
            "images_per_second": meter.images_per_second(),
            "median_step_seconds": meter.median_step_seconds(),
        }
        self.seconds += seconds
        self.history.append(line | ({"diverged": True} if diverged else {}))
        if self.world.first:
            self.progress.epoch(self.history[-1], self.config.epochs)
            if self.board is not None:
                self.board.epoch(self.history[-1])
        self.world.from_first(lambda: self.folder.write_metrics(self.history))

    # One run

    def run(self) -> Result:
        diverged: Diverged | None = None
        with self.interrupts:
            try:
                result = self._run()
            except Diverged as end:
                diverged = end
        # An interrupt wins, over divergence too: who asked for a stop wants no next run. Resuming leads here again.
        if stopped_by := self._stopped_by():
            return self._result("interrupted", stopped_by=stopped_by)
        if diverged is not None:
            self._note_epoch(None, None, self.meter.seconds, diverged=True)
            return self._result("diverged", diverged_step=diverged.step, reason=diverged.reason)
        return result

    def _run(self) -> Result:
        try:
            self._replace_lost_best()
            while self.epoch < self.config.epochs and not self.has_all_steps():
                self.train_epoch()
                self.end_epoch()
            loss, accuracy = self._test()
        except Interrupted:
            if self.epoch < self.config.epochs:  # after the last epoch everything is saved already
                self.save()
            return self._result("interrupted")
        return self._result("finished", test_loss=loss, test_accuracy=accuracy)

    def _stopped_by(self) -> str | None:
        """The signal that some process was sent. Every process has to ask, with its handlers restored."""
        raised = self.world.any(*self.interrupts.flags())
        return next((number.name for number, is_raised in zip(SIGNALS, raised, strict=True) if is_raised), None)

    def _test(self) -> tuple[float, float]:
        kept = self.world.from_first(lambda: checkpoints.load_best(self.folder.checkpoints))
        state.load_model(self.model, kept["model"])
        return self.evaluate("test")

    def _result(self, status: Any, **more: Any) -> Result:
        return Result(
            status,
            epochs=self.epoch,
            steps=self.step,
            seconds=self.seconds,
            best_epoch=self.best["epoch"],
            best_validation_accuracy=self.best["validation_accuracy"],
            parameters=sum(parameter.numel() for parameter in self.parameters),
            **more,
        )

    def moment(self) -> Moment:
        meter, batches = self.meter, len(self.images.train)
        steps = self.config.epochs * batches
        if self.config.max_steps:
            steps = min(steps, self.config.max_steps)
        pace = (time.perf_counter() - self.started_at) / max(1, self.step - self.first_step)  # validation included
        return Moment(
            epoch=self.epoch + 1,
            epochs=self.config.epochs,
            batch=self.batch,
            batches=batches,
            step=self.step,
            steps=steps,
            loss=meter.mean_loss(),
            accuracy=meter.accuracy(),
            images_per_second=meter.images_per_second(),
            seconds_left=pace * (steps - self.step),
        )

    # Saving

    def save(self) -> None:
        """Write a checkpoint of this moment. A run that has diverged is not worth one: this raises then."""
        self.read_losses()
        payload = state.capture(self)
        folder, keep = self.folder.checkpoints, self.config.keep
        self.world.from_first(lambda: checkpoints.save_step(payload, folder, self.step, keep))
        self.saved_at = time.perf_counter()
        self.meter.start_clock()

    def _replace_lost_best(self) -> None:
        """Take the last epoch's weights where those of the best epoch were damaged: there may be no epoch to come."""
        if self.best["epoch"] is None and self.epoch > 0 and self.batch == 0:
            self.best = {"epoch": self.epoch, "validation_accuracy": self.history[-1]["validation_accuracy"]}
            with self.kept_weights():
                self._save_best()

    def _save_best(self) -> None:
        payload = {
            **self.best,
            "model": state.model_state(self.model),
            "config": self.config.as_dict(),
            "shape": list(self.images.shape),
            "classes": self.images.classes,
        }
        self.world.from_first(lambda: checkpoints.save(payload, self.folder.checkpoints / checkpoints.BEST))
