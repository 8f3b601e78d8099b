"""Uncertainty for a network that is already trained, and that stays as it is.

Training rows show where features (and inputs) of known rows lie; rows that the network was not trained on
choose a temperature, far noise, conformal sets and a threshold of `is_ood`. The predictive comes from the
network's own outputs, from several draws of them if it has compound layers; from a Laplace posterior over its
last layer; or from a head trained on its features.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from compound.models import Method
from compound.network.batches import Loader, unpack
from compound.network.calibrator import Calibrator
from compound.network.features import (
    Collected,
    FeatureReader,
    Features,
    bounded_inputs,
    check_disjoint,
    collect,
    flat_inputs,
    no_inputs,
)
from compound.network.head import Head, check_suitable
from compound.network.sources import FeatureHead, LastLayerLaplace, Outputs, Source
from compound.predictive import Predictive
from compound.random import named_generator
from compound.types import Task

View = Literal["features", "inputs"]
LIMIT = 20_000  # training rows that distances are fitted to


class PostHoc:
    """A trained network with calibrated uncertainty; `posthoc` makes one.

    Parameters
    ----------
    network : Module
    features : str or callable
        The submodule whose output are the features, or a function of the inputs.
    task : Task
    method : str or Method, optional
        None: the network's outputs; "laplace": a posterior over its last layer; others: a head.
    far_noise : sequence of {'features', 'inputs'}, optional
    strength : float, default=3.0
    false_positive_rate : float, default=0.01
    seed : int, default=0

    Examples
    --------
    >>> import torch
    >>> from compound import PostHoc, Task, named_generator
    >>> x = torch.randn(300, 2, generator=named_generator(0, "x"))
    >>> network = torch.nn.Sequential(torch.nn.Identity(), torch.nn.Linear(2, 1))
    >>> model = PostHoc(network, "0", Task("regression", 1))
    >>> model = model.fit([(x[:200], x[:200, :1])], [(x[200:], x[200:, :1])])
    >>> lower, upper = model.predict(x[:5]).sets(coverage=0.9)
    >>> bool((lower < upper).all())
    True
    """

    def __init__(
        self,
        network: nn.Module,
        features: Features,
        task: Task,
        method: str | Method | None = None,
        far_noise: Sequence[View] | None = None,
        strength: float = 3.0,
        false_positive_rate: float = 0.01,
        seed: int = 0,
    ):
        if far_noise is not None and (not far_noise or set(far_noise) - {"features", "inputs"}):
            raise ValueError(f"far_noise is {far_noise!r}: choose from 'features', 'inputs'")
        if not strength >= 0:
            raise ValueError(f"strength is {strength}: it may not be negative; 0 turns far noise off")
        self.network, self.task, self.seed = network, task, seed
        self.method = Method(method) if isinstance(method, str) else method
        if self.method is not None:
            check_suitable(self.method)
        self.read = FeatureReader(network, features, seed=seed)
        self.far_noise = far_noise
        self.views: tuple[View, ...] = ()  # set by `fit`
        self.strength, self.false_positive_rate = strength, false_positive_rate
        self.calibrator: Calibrator | None = None
        self.source: Source | None = None

    def fit(self, train_loader: Loader, val_loader: Loader) -> Self:
        """Fit to features of rows that the network was trained on, and calibrate on rows that it was not.

        Parameters
        ----------
        train_loader, val_loader : iterable
            Batches (x, y), (x, y, weight) or dictionaries.

        Returns
        -------
        PostHoc
            Itself.

        Raises
        ------
        ValueError
            If the second loader is missing or has rows of the first, or the outputs do not fit the task.
        """
        if val_loader is None or val_loader is train_loader:
            raise ValueError(
                "val_loader must hold rows that the network was not trained on: give a second loader"
            )
        flat = bounded_inputs
        if self.far_noise is not None:
            flat = flat_inputs if "inputs" in self.far_noise else no_inputs
        held_out = self._with_typed_targets(collect(self.read, val_loader, flat))
        sample = collect(self.read, train_loader, flat, LIMIT, named_generator(self.seed, "rows"))
        train = self._with_typed_targets(sample)
        check_disjoint(train, held_out)
        self._check_outputs(train)
        self.views = self._chosen_views(train, held_out)
        self.source = self._new_source(train.features.shape[1])
        rows = train
        if self.method is not None and len(train.features) == LIMIT:  # a head or a posterior needs all rows
            rows = self._with_typed_targets(collect(self.read, train_loader, no_inputs))
        self.source.fit(rows, held_out)
        predictive = self.source.predict(held_out.features, held_out.outputs)
        views = self._views(train.features, train.inputs), self._views(held_out.features, held_out.inputs)
        sizes = [view.shape[1] for view in views[0]]
        normalized = [view == "features" for view in self.views]
        self.calibrator = Calibrator(self.task, sizes, normalized, self.strength, self.false_positive_rate)
        std = None
        if self.task.kind == "regression":
            std = rows.targets.std(0, correction=0)
        generator = named_generator(self.seed, "far")
        self.calibrator.fit(predictive, held_out.targets, held_out.weight, *views, std, generator)
        return self

    def predict(self, x: Tensor | Mapping[str, Any] | Iterable[Any]) -> Predictive:
        """The predictive of the rows of a batch of inputs, or of a loader.

        Parameters
        ----------
        x : Tensor, dict or iterable
            A tensor or a dictionary is a batch; anything else is a loader.

        Returns
        -------
        Predictive
            With `is_ood` and conformal `sets`.
        """
        if self.source is None or self.calibrator is None:
            raise ValueError(
                "nothing is fitted yet: call fit with a loader of training rows and one of others"
            )
        batches = [x] if isinstance(x, Tensor | Mapping) else x
        parts = []
        for batch in batches:
            inputs = unpack(batch).inputs
            features, outputs = self.read(inputs)
            views = self._views(features, flat_inputs(inputs) if "inputs" in self.views else features[:, :0])
            with torch.no_grad():
                parts.append(self.calibrator(self.source.predict(features, outputs), views))
        return Predictive.concat(parts)

    def _chosen_views(self, train: Collected, held_out: Collected) -> tuple[View, ...]:
        """Where distances are measured; by default also between inputs, where all rows have as many."""
        size, other = (rows.inputs.shape[1] for rows in (train, held_out))
        if self.far_noise is None:
            return ("features", "inputs") if size == other > 0 else ("features",)
        if "inputs" in self.far_noise and not size == other > 0:
            raise ValueError(
                "rows of the loaders have inputs of different sizes: leave 'inputs' out of far_noise"
            )
        return tuple(self.far_noise)

    def _views(self, features: Tensor, inputs: Tensor) -> list[Tensor]:
        """The views of rows with features and inputs (rows, numbers each)."""
        return [features if view == "features" else inputs for view in self.views]

    def _new_source(self, features: int) -> Source:
        if self.method is None:
            return Outputs(self.task, self.read.has_posterior)
        if self.method.name == "laplace":
            return LastLayerLaplace(self.network, self.method, features, self.task, self.seed)
        return FeatureHead(Head(self.method, features=features, task=self.task, seed=self.seed))

    def _check_outputs(self, rows: Collected) -> None:
        if rows.outputs.shape[-1] != self.task.size:
            raise ValueError(
                f"the network gives {rows.outputs.shape[-1]} numbers per row: for {self.task.kind} it "
                f"must be {self.task.size}, logits or means"
            )

    def _with_typed_targets(self, rows: Collected) -> Collected:
        y = rows.targets
        if self.task.kind == "classification":
            return rows._replace(targets=y.long())
        return rows._replace(targets=y.float().reshape(-1, self.task.size))


def posthoc(
    network: nn.Module,
    features: Features,
    task: Task,
    method: str | Method | None = None,
    far_noise: Sequence[View] | None = None,
    strength: float = 3.0,
    false_positive_rate: float = 0.01,
    seed: int = 0,
) -> PostHoc:
    """Calibrated uncertainty for a trained network, which is not changed.

    Parameters
    ----------
    network : Module
        It gives logits, or means of targets. With compound layers it is drawn from 20 times.
    features : str or callable
        Name of the submodule whose output are the features, such as "layer4", or a function of the inputs.
        Feature maps are averaged over positions.
    task : Task
    method : str or Method, optional
        None: the network's own outputs. "laplace": a Laplace posterior over its last layer. Any other: a head
        that is trained on the features.
    far_noise : sequence of {'features', 'inputs'}, optional
        Where rows may be far from the training rows. By default in their features, and in their inputs where
        these are one tensor of floating-point numbers, at most 4096 per row and as many for all rows.
    strength : float, default=3.0
        Of far noise; targets: the standard deviation far away, in standard deviations of the target; 0: none.
    false_positive_rate : float, default=0.01
        Part of ordinary rows that `is_ood` may flag.
    seed : int, default=0

    Returns
    -------
    PostHoc
        `fit(train_loader, val_loader)`, then `predict(x)`.

    Raises
    ------
    ValueError
        If the network has no such submodule, or an option is unknown.

    Examples
    --------
    >>> import torch
    >>> from compound import Task, named_generator, posthoc
    >>> x = torch.randn(300, 4, generator=named_generator(0, "x"))
    >>> y = (x[:, 0] > 0).long()
    >>> network = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> model = posthoc(network, features="1", task=Task("classification", 2), far_noise=("inputs",))
    >>> model = model.fit([(x[:200], y[:200])], [(x[200:], y[200:])])
    >>> model.predict(torch.tensor([[0.0, 0.0, 0.0, 0.0], [50.0, 0.0, 0.0, 0.0]])).is_ood
    tensor([False,  True])
    """
    return PostHoc(network, features, task, method, far_noise, strength, false_positive_rate, seed)
