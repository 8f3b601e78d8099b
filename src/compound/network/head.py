"""A method of METHODS as the head of a network: its loss on features, and its predictive.

    loss(h, y) = 1/M sum_m loss_m(h, y),    h = backbone(x)

The M members share the backbone, so their losses are averaged: with the sum the backbone would take steps M
times as long. N, the number of training rows, divides the terms that do not belong to a row (a prior, the KL
of a posterior over weights). After training, `finish` fits what needs the trained network: a Laplace
posterior on the features of the training rows; temperature, far noise, conformal sets and the OOD threshold
on the rows of a second loader, which the network was not trained on.
"""

import math
from typing import Any, cast

import torch
from torch import Generator, Tensor, nn

from compound.compat import uncompiled
from compound.models import Method, Model
from compound.models.base import N_INNER, N_SAMPLES, Loss
from compound.network.batches import Loader, Network, call, device_of, unpack
from compound.network.calibrator import Calibrator
from compound.network.features import Collected, check_disjoint, collect, evaluating, flat_inputs, no_inputs
from compound.network.training import train_head
from compound.predictive import GaussianPredictive, Predictive
from compound.random import Generators, derive_seed, member_seed, named_generator
from compound.train.processes import Processes
from compound.types import Batch, Task, make_dataset

FAR = 3.0  # strength of far noise where the method has no option `far`
UNSUITABLE = {
    "dpn": "it trains with out-of-distribution rows, which a loader of features does not have",
    "bnn-lv": "it keeps a posterior for every single training row",
    "noisy-kfac": "it is an optimizer of its own, which the backbone's would not go with",
    "noisy-adam": "it is an optimizer of its own, which the backbone's would not go with",
    "pbp": "its updates are not gradients, which the backbone's optimizer needs",
}


class Head(nn.Module):
    """A method as the head of a network; calling it gives the loss of a batch.

    Parameters
    ----------
    method : str or Method, default='ml-cdn'
        Any method that needs no more than batches of features; others are refused.
    features : int
        Numbers that the backbone gives per row.
    task : Task
        What is predicted.
    inputs : int, default=0
        Numbers that the backbone takes per row, for far noise by distances between inputs, too; 0: between
        features alone.
    rows : float, optional
        N, the number of training rows; `fit` counts them. Without it methods with a prior or a posterior over
        weights have no loss.
    false_positive_rate : float, default=0.01
        Part of ordinary rows that `is_ood` may flag.
    seed : int, default=0
        Of the initial weights, and of all noise for which no generator is given.

    Raises
    ------
    ValueError
        If the method is unknown or cannot be a head, or an option is out of range.

    Examples
    --------
    >>> import torch
    >>> from compound import Head, Task, named_generator
    >>> x = torch.randn(256, 8, generator=named_generator(0, "x"))
    >>> y = (x[:, 0] > 0).long()
    >>> backbone = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU())
    >>> head = Head("ml-cdn", features=16, task=Task("classification", 2))
    >>> loader = list(zip(x[:200].split(50), y[:200].split(50)))
    >>> losses = head.fit(backbone, loader, [(x[200:], y[200:])], epochs=3)
    >>> head(backbone(x), y).shape, len(head.predict(backbone(x)))
    (torch.Size([]), 256)
    """

    shift: Tensor  # (features,) subtracted from features, 0 while the backbone is trained
    scale: Tensor  # (features,) divides them
    y_shift: Tensor  # (targets,) mean and
    y_scale: Tensor  # (targets,) standard deviation of the training targets
    rows: Tensor  # () N; NaN: not known
    steps: Tensor  # () losses computed, which name the noise of the next one
    started: Tensor  # () bool: units of the targets are known

    def __init__(
        self,
        method: str | Method = "ml-cdn",
        *,
        features: int,
        task: Task,
        inputs: int = 0,
        rows: float | None = None,
        false_positive_rate: float = 0.01,
        seed: int = 0,
    ):
        super().__init__()
        method = Method(method) if isinstance(method, str) else method
        check_suitable(method)
        if task.family is not None:
            raise ValueError(f"Head predicts Gaussian targets and classes without order, not {task.family}")
        if rows is not None and not rows > 0:
            raise ValueError(f"rows is {rows}: give the number of training rows")
        self.features, self.inputs, self.task, self.seed = features, inputs, task, seed
        # far noise is the calibrator's, on directions of features; what is left are bounds of targets
        self.model: Model = Method(method.name, **{**method.options, "far": 0.0}).build(features, task, seed)
        strength = float(method.options.get("far", FAR))
        views = [features, inputs] if inputs else [features]
        self.calibrator = Calibrator(task, views, [True, False][: len(views)], strength, false_positive_rate)
        for name, size in (("shift", features), ("y_shift", task.size)):
            self.register_buffer(name, torch.zeros(size, dtype=torch.float32))
        for name, size in (("scale", features), ("y_scale", task.size)):
            self.register_buffer(name, torch.ones(size, dtype=torch.float32))
        self.register_buffer(
            "rows", torch.tensor(math.nan if rows is None else float(rows), dtype=torch.float32)
        )
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("started", torch.tensor(task.kind == "classification", dtype=torch.bool))

    def start(self, targets: Tensor, rows: float | None = None) -> None:
        """Set what depends on the training targets (rows,) or (rows, targets): their units, and N.

        `fit` does it; a training loop of one's own needs it for regression.
        """
        if rows is not None or bool(self.rows.isnan()):
            self.rows.fill_(float(len(targets)) if rows is None else rows)
        if self.task.kind == "regression":
            std = targets.double().std(0, correction=0)
            self.y_shift.copy_(targets.double().mean(0))
            self.y_scale.copy_(torch.where(std > 0, std, 1.0))
        x = torch.zeros(len(targets), self.features, dtype=torch.float32, device=targets.device)
        data = make_dataset(x, self._standard_targets(targets), self.task)
        self.model.on_fit_start(data, named_generator(self.seed, "start"))
        self.started.fill_(True)

    def forward(
        self,
        features: Tensor,
        targets: Tensor,
        weight: Tensor | None = None,
        generator: Generators | None = None,
        progress: float = 1.0,
    ) -> Tensor:
        """The mean loss of a batch, averaged over members.

        Parameters
        ----------
        features : Tensor of shape (batch, ..., features)
        targets : Tensor of shape (batch, ...) or (batch, ..., targets)
        weight : Tensor of shape (batch, ...), optional
            Sample weights.
        generator : Generator, or one per member, optional
            Source of all noise; by default one that depends on the seed and the number of losses before.
        progress : float, default=1.0
            Part of training that is done, for options that change over training.

        Returns
        -------
        Tensor of shape ()
        """
        batch = self.batch(features, targets, weight, progress)
        return self.batch_loss(batch, self.noise() if generator is None else generator)

    def batch(self, features: Tensor, targets: Tensor, weight: Tensor | None, progress: float) -> Batch:
        """Features, targets and weights, shaped as those of `forward`, as the model takes them."""
        if not self.started:
            raise ValueError("the units of the targets are not known: call start with the training targets")
        x = self._standard_features(features)
        y = targets.reshape(-1) if self.task.kind == "classification" else targets.reshape(-1, self.task.size)
        if len(y) != len(x):
            raise ValueError(f"{len(x)} rows of features and {len(y)} of targets: give as many")
        w = None if weight is None else weight.reshape(-1).to(x.dtype)
        return Batch(x, self._standard_targets(y), self.rows, torch.arange(len(x)), w, None, progress)

    def batch_loss(self, batch: Batch, generator: Generators) -> Tensor:  # ()
        """The mean loss of a batch of `batch`, averaged over members."""
        loss = _loss(self.model, batch, generator)
        if bool(self.rows.isnan()) and bool(loss.total.isnan()):
            raise ValueError(
                f"rows is not known: {self.model.method} needs the number of training rows, Head(rows=...)"
            )
        return loss.total / self.model.members

    @uncompiled
    def noise(self, kind: type[Generator] = Generator) -> Generators:
        """Generators for the next loss, one per member."""
        step = int(self.steps)
        self.steps += 1
        seeds = [member_seed(self.seed, k) for k in range(self.model.members)]
        return [kind().manual_seed(derive_seed(seed, "noise", step)) for seed in seeds]

    def _standard_features(self, features: Tensor) -> Tensor:  # (rows, features)
        if features.shape[-1:] != (self.features,):
            raise ValueError(
                f"features have shape {tuple(features.shape)}: it must be (batch, ..., {self.features})"
            )
        return (features.reshape(-1, self.features).float() - self.shift) / self.scale

    def _standard_targets(self, y: Tensor) -> Tensor:
        return y.long() if self.task.kind == "classification" else (y.float() - self.y_shift) / self.y_scale

    def fit(
        self,
        backbone: Network,
        loader: Loader,
        val_loader: Loader | None = None,
        *,
        epochs: int = 10,
        lr: float = 1e-3,
        frozen: bool = False,
        distributed: bool = False,
    ) -> list[float]:
        """Train backbone and head together with Adam, then `finish`.

        Parameters
        ----------
        backbone : Module or callable
            Maps a batch's inputs to features.
        loader : iterable
            Batches (x, y), (x, y, weight) or dictionaries, for any number of passes.
        val_loader : iterable, optional
            Rows that are not trained on, for `finish`.
        epochs : int, default=10
        lr : float, default=1e-3
        frozen : bool, default=False
            Leave the backbone as it is: its features are computed once and standardised.
        distributed : bool, default=False
            Whether the processes of torch.distributed train one network. Every process gives the same
            loaders and takes its part of every batch; gradients are averaged here, so the backbone need not
            be wrapped in DistributedDataParallel.

        Returns
        -------
        list of float
            Mean loss of every epoch.
        """
        losses, train = train_head(self, backbone, loader, epochs, lr, frozen, Processes.of(distributed))
        self.finish(backbone, loader, val_loader, train)
        return losses

    @torch.no_grad()
    def finish(
        self,
        backbone: Network,
        loader: Loader,
        val_loader: Loader | None = None,
        train: Collected | None = None,
    ) -> None:
        """Fit what needs the trained network, from features of training rows and of rows not trained on.

        Without a `val_loader` there is no temperature, far noise, conformal set or threshold. `train` are the
        features of the training rows, where they are known.
        """
        read = self.reader(backbone)
        flat = flat_inputs if self.inputs and val_loader is not None else no_inputs
        train = collect(read, loader, flat) if train is None else train
        held_out = None if val_loader is None else collect(read, val_loader, flat)
        if held_out is not None:
            check_disjoint(train, held_out)
        device = device_of(self)
        self.to("cpu")  # features are collected there, curvatures and distances fitted
        self._finish_model(train, held_out)
        if held_out is not None:
            self._calibrate(train, held_out)
        self.to(device)

    def _finish_model(self, train: Collected, held_out: Collected | None) -> None:
        """`Model.on_fit_end` with features of the rows that were trained on and of those that were not."""
        parts = [train] if held_out is None else [train, held_out]
        x = torch.cat([self._standard_features(part.features) for part in parts])
        y = self._standard_targets(torch.cat([self.target_rows(part.targets) for part in parts]))
        weight = None
        if held_out is not None or bool((train.weight != 1).any()):
            weights = [train.weight] if held_out is None else [train.weight, 0 * held_out.weight]
            weight = torch.cat(weights)
        self.model.on_fit_end(make_dataset(x, y, self.task, weight), named_generator(self.seed, "finish"))

    def _calibrate(self, train: Collected, held_out: Collected) -> None:
        """Fit the calibrator to the predictive of held-out rows."""
        predictive = self._raw_predict(held_out.features, named_generator(self.seed, "calibrate"))
        std = self.y_scale if self.task.kind == "regression" else None
        y = self.target_rows(held_out.targets)
        y = y.long() if self.task.kind == "classification" else y.float()
        generator = named_generator(self.seed, "far")
        seen, new = (self._views(rows.features, rows.inputs) for rows in (train, held_out))
        self.calibrator.fit(predictive, y, held_out.weight, seen, new, std, generator)

    def _views(self, features: Tensor, inputs: Tensor) -> list[Tensor]:
        """Where distances are measured: features, and inputs (rows, numbers) if `inputs` says so."""
        if self.inputs and len(features) != len(inputs):
            raise ValueError(
                f"{len(inputs)} rows of inputs have {len(features)} rows of features: leave out inputs="
            )
        return [features, inputs] if self.inputs else [features]

    def target_rows(self, targets: Tensor) -> Tensor:
        if self.task.kind == "classification":
            return targets.reshape(-1)
        return targets.reshape(-1, self.task.size)

    def set_units(self, features: Tensor) -> None:
        std = features.double().std(0, correction=0)
        self.shift.copy_(features.double().mean(0))
        self.scale.copy_(torch.where(std > 1e-6 * features.double().abs().amax(0), std, 1.0))

    def reader(self, backbone: Network) -> Any:
        def read(inputs: Any) -> tuple[Tensor, Tensor]:
            with evaluating(backbone):
                features = call(backbone, inputs, device_of(self))
            rows = features.detach().float().cpu().reshape(-1, self.features)
            return rows, rows[:, :0]

        return read

    def predict(
        self,
        inputs: Tensor | Loader,
        backbone: Network | None = None,
        *,
        generator: Generator | None = None,
        n_samples: int = N_SAMPLES,
        n_inner: int = N_INNER,
    ) -> Predictive:
        """The predictive of all rows.

        Parameters
        ----------
        inputs : Tensor of shape (batch, ..., features), or iterable
            Features, or what the backbone takes: a batch, or a loader.
        backbone : Module or callable, optional
        generator : Generator, optional
            Source of all noise; by default the same at every call.
        n_samples, n_inner : int
            Draws, see `Model.predict`.

        Returns
        -------
        Predictive
        """
        generator = named_generator(self.seed, "predict") if generator is None else generator
        parts: list[Any] = (
            [inputs] if isinstance(inputs, Tensor) else [unpack(batch).inputs for batch in inputs]
        )
        if backbone is None:
            if self.inputs and self.calibrator.fitted:
                raise ValueError("far noise needs the inputs: give them, and the backbone, to predict")
            features = [part.detach().reshape(-1, self.features) for part in parts]
        else:
            read = self.reader(backbone)
            features = [read(part)[0] for part in parts]
        rows = torch.cat(features).to(device_of(self))
        predictive = self._raw_predict(rows, generator, n_samples, n_inner)
        if not self.calibrator.fitted:
            return predictive
        flat = torch.cat([flat_inputs(part) for part in parts]).to(rows.device) if self.inputs else rows
        return cast(Predictive, self.calibrator(predictive, self._views(rows.float(), flat)))

    def _raw_predict(
        self, features: Tensor, generator: Generator, n_samples: int = N_SAMPLES, n_inner: int = N_INNER
    ) -> Predictive:
        """The predictive before calibration, in the units of the targets."""
        predictive = self.model.predict(self._standard_features(features), generator, n_samples, n_inner)
        if isinstance(predictive, GaussianPredictive):
            return predictive.rescale(self.y_shift, self.y_scale)
        return predictive


@uncompiled
def _loss(model: Model, batch: Batch, generator: Generators) -> Loss:
    """`Model.loss`, whose loops are compiled already: torch.compile leaves it alone."""
    return model.loss(batch, generator)


def check_suitable(method: Method) -> None:
    """Raise ValueError for a method that cannot be a head."""
    if method.name in UNSUITABLE:
        raise ValueError(f"{method.name} cannot be a head: {UNSUITABLE[method.name]}")
    if method.options.get("adversarial"):
        raise ValueError(
            "adversarial is above 0: features are not inputs that an attack can change, set it to 0"
        )
