"""The training loop: one run, one epoch, one step. ``Trainer.fit`` is the whole recipe."""

import math
import time
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wnfused.train import checkpoints, distributed, optimization
from wnfused.train.config import Config
from wnfused.train.crowding import Crowding
from wnfused.train.curves import Board
from wnfused.train.data import Images
from wnfused.train.distributed import World
from wnfused.train.interrupts import SIGNALS, Interrupted, Interrupts
from wnfused.train.metrics import Diverged, Meter, evaluate
from wnfused.train.progress import Moment, Progress
from wnfused.train.result import Result
from wnfused.train.run_directory import RunDirectory

READ_EVERY = 10  # steps between two readings of the loss


class Trainer:
    """A run in progress: network, optimizer, position. ``saved`` is the checkpoint to resume from."""

    def __init__(
        self,
        config: Config,
        model: nn.Module,
        images: Images,
        directory: RunDirectory,
        world: World,
        progress: Progress,
        saved: checkpoints.State | None = None,
    ) -> None:
        self.config, self.model, self.images, self.directory = config, model, images, directory
        self.world, self.progress = world, progress
        self.epoch = self.batch = self.step = 0  # completed
        self.seconds = 0.0  # of training and validation
        self.history: list[dict[str, Any]] = []
        self.best: dict[str, Any] = {"epoch": None, "validation_accuracy": None}
        self.meter = Meter()
        self.interrupts = Interrupts()
        self.crowding = Crowding()
        self.board: Board | None = None

        if saved is not None:
            model.load_state_dict(saved["model"])
        layout = torch.channels_last if config.channels_last else torch.preserve_format
        model.to(device=world.device, memory_format=layout)  # type: ignore[call-overload]
        if config.compile:
            model.compile()
        self.runner = world.distribute(model, config.sharding)
        self.sharded = world.size > 1 and config.sharding == "fsdp"
        self.parameters = list(model.parameters())
        self.optimizer = optimization.sgd(model, config)
        self.scaler = torch.amp.GradScaler(world.device.type, enabled=config.amp == "fp16")
        self.ema = optimization.EMA(model, config.ema) if config.ema else None
        if saved is not None:
            checkpoints.restore(self, saved)
        self.saved_at = self.started_at = time.perf_counter()
        self.first_step = self.step

    # One run

    def fit(self) -> Result:
        """Train and validate epoch by epoch, then test the best weights; stop early on divergence or a signal."""
        finished: Result | None = None
        diverged: Diverged | None = None
        with self.interrupts:
            try:
                self._replace_lost_best()
                while self.epoch < self.config.epochs and not self.has_all_steps():
                    self.train_epoch()
                    self.end_epoch()
                loss, accuracy = self.test_best_weights()
                finished = self._result("finished", test_loss=loss, test_accuracy=accuracy)
            except Interrupted:
                if self.epoch < self.config.epochs:  # after the last epoch everything is already saved
                    with suppress(Diverged):
                        self.save()
            except Diverged as error:
                diverged = error
        # A signal takes precedence over divergence: its sender wants no next run. Resuming finds the divergence again.
        if stopped_by := self._signal_on_any_rank():
            return self._result("interrupted", stopped_by=stopped_by)
        if diverged is not None:
            self._record_epoch(None, None, self.meter.seconds, diverged=True)
            return self._result("diverged", diverged_step=diverged.step, reason=diverged.reason)
        assert finished is not None
        return finished

    # One epoch

    def train_epoch(self) -> None:
        self.model.train()
        self.meter.start_clock()
        for images, labels in self.images.train.epoch(self.epoch, self.batch):
            self.advance(images, labels)
            if self.has_all_steps():
                break
        self.raise_if_diverged()

    def has_all_steps(self) -> bool:
        return 0 < self.config.max_steps <= self.step

    def advance(self, images: Tensor, labels: Tensor) -> None:
        """One training step, then what is due: reading the losses, stopping, a checkpoint, progress."""
        self.train_step(images, labels)
        self.batch += 1
        self.step += 1
        if self.world.device.type == "cpu":
            self.meter.lap()
        if self.step % READ_EVERY == 0:
            self.raise_if_diverged()
        *stop, save = self.world.any(*self.interrupts.flags(), self._checkpoint_due())
        if any(stop):
            raise Interrupted
        if save:
            self.save()
        if notice := self.crowding.notice():
            self.progress.say(notice)
        if self.progress.due():
            self.progress.moment(self.moment())

    def end_epoch(self) -> None:
        """Validate, record the epoch, save the weights if they are the best, and write a checkpoint."""
        start = time.perf_counter()
        loss = accuracy = None
        with self.averaged_weights():
            if self.images.validation is not None:
                loss, accuracy = self.evaluate("validation")
                if not self.is_acceptable(loss):
                    raise Diverged(self.step, f"the validation loss after epoch {self.epoch + 1} is {loss:g}")
            best = self.best["validation_accuracy"]
            if accuracy is None or best is None or accuracy > best:
                self.best = {"epoch": self.epoch + 1, "validation_accuracy": accuracy}
                self._save_best()
        self._record_epoch(loss, accuracy, self.meter.seconds + time.perf_counter() - start)
        self.epoch, self.batch, self.meter = self.epoch + 1, 0, Meter()
        self.save()

    # One step

    def train_step(self, images: Tensor, labels: Tensor) -> None:
        config, size = self.config, self.images.train.global_size(self.batch)
        rate = self.learning_rate(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss, correct = self._backward(images, labels, size)
        if config.clip:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.parameters, config.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        if self.ema is not None:
            self.ema.update(self.step)
        self.meter.add(loss, correct, size)

    def _backward(self, images: Tensor, labels: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """Compute the gradients of the mean loss over the ``size`` images of all ranks.

        Returns this rank's sum of losses and number of correct predictions. DDP and FSDP average gradients over ranks,
        so each rank takes its sum of losses times (ranks / ``size``): correct also if ranks have unequal numbers of
        images.
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

    def learning_rate(self, step: int) -> float:
        return optimization.learning_rate(self.config, step, len(self.images.train))

    def autocast(self) -> AbstractContextManager[Any]:
        if self.config.amp == "none":
            return nullcontext()
        return torch.autocast(self.world.device.type, torch.bfloat16 if self.config.amp == "bf16" else torch.float16)

    # Evaluation

    def is_acceptable(self, loss: float) -> bool:
        return math.isfinite(loss) and (self.config.max_loss is None or loss <= self.config.max_loss)

    def evaluate(self, which: str) -> tuple[float, float]:
        """(loss, accuracy) on the "validation" or the "test" set."""

        def between() -> None:
            if self.world.size == 1 and self.interrupts.requested:
                raise Interrupted

        loader = self.images.validation if which == "validation" else self.images.test
        assert loader is not None
        return evaluate(self.model, loader, self.world, self.autocast, sharded=self.sharded, between=between)

    def test_best_weights(self) -> tuple[float, float]:
        """Load the best weights into the model and evaluate them on the test set."""
        best = self.world.on_rank_0(lambda: checkpoints.load_best(self.directory.checkpoints))
        checkpoints.load_model(self.model, best["model"])
        return self.evaluate("test")

    def averaged_weights(self) -> AbstractContextManager[None]:
        """A context in which the model has its averaged weights, if the run averages them."""
        return self.ema.in_place() if self.ema is not None else nullcontext()

    # Recording

    def raise_if_diverged(self) -> None:
        """Read the losses of the steps since the last reading; raise Diverged at the first that is too large."""
        pending = self.meter.pending
        losses = self.meter.read(self.world)
        if pending and self.world.device.type == "cuda":
            self.meter.lap(pending)  # reading waited for the GPU
        if self.board is not None:
            self.board.steps(self.step - len(losses) + 1, losses)
        for step, loss in enumerate(losses, self.step - len(losses) + 1):
            if not self.is_acceptable(loss):
                raise Diverged(step, f"the loss of step {step} is {loss:g}")

    def _record_epoch(
        self, loss: float | None, accuracy: float | None, seconds: float, *, diverged: bool = False
    ) -> None:
        """Add a line to metrics.jsonl, progress and TensorBoard; ``loss`` and ``accuracy`` are of the validation."""
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
        if self.world.is_rank_0:
            self.progress.epoch(self.history[-1], self.config.epochs)
            if self.board is not None:
                self.board.epoch(self.history[-1])
        self.world.on_rank_0(lambda: self.directory.write_metrics(self.history))

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

    def _signal_on_any_rank(self) -> str | None:
        """The name of the signal that any rank received. All ranks must call it, after ``interrupts`` has ended."""
        received = self.world.any(*self.interrupts.flags())
        return next((number.name for number, flag in zip(SIGNALS, received, strict=True) if flag), None)

    # Checkpoints

    def _checkpoint_due(self) -> bool:
        steps, seconds = self.config.checkpoint_steps, self.config.checkpoint_seconds
        if steps and self.step % steps == 0:
            return True
        return bool(seconds) and self.world.is_rank_0 and time.perf_counter() - self.saved_at >= seconds

    def save(self) -> None:
        """Write a checkpoint; raises Diverged instead if the run has diverged."""
        self.raise_if_diverged()
        state, directory = checkpoints.capture(self), self.directory.checkpoints
        self.world.on_rank_0(lambda: checkpoints.save_step(state, directory, self.step, self.config.keep))
        self.saved_at = time.perf_counter()
        self.meter.start_clock()

    def _save_best(self) -> None:
        state = checkpoints.capture_best(self)
        self.world.on_rank_0(lambda: checkpoints.save(state, self.directory.checkpoints / checkpoints.BEST))

    def _replace_lost_best(self) -> None:
        """If the best weights were lost, save those of the last epoch in their place: there may be no next epoch."""
        if self.best["epoch"] is None and self.epoch > 0 and self.batch == 0:
            self.best = {"epoch": self.epoch, "validation_accuracy": self.history[-1]["validation_accuracy"]}
            with self.averaged_weights():
                self._save_best()
