"""The interface of all methods: a loss for one batch, and a predictive for any number of rows."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import torch
from torch import Generator, Tensor, nn

from compound.models.adam import Adam
from compound.ood.distance import Distance
from compound.precision import full_precision
from compound.predictive import Predictive
from compound.random import Generators
from compound.types import Batch, RowWeights, Task, check_inputs

C = TypeVar("C")
MEMORY = 256 * 2**20  # bytes of intermediate arrays while predicting
COPIES = 8  # arrays of one shape that are alive together while predicting
DISTANCES = 2000  # bound on the cluster centres to which far noise computes distances
N_SAMPLES = 20
N_INNER = 5


class Loss(NamedTuple):
    """The objective on a batch and its two parts, all per datum."""

    total: Tensor  # () what is minimised, summed over members
    nll: Tensor  # (members,) or (), detached
    kl: Tensor  # (members,) or () the KL or penalty, detached


class OptimizerSettings(Protocol):
    """What `Model.optimizer` reads from the settings of a fit."""

    @property
    def lr(self) -> float: ...


class Model(nn.Module, ABC):
    """A method with its network: the loss that it minimises, and how it predicts."""

    method: ClassVar[str]  # its name in METHODS
    Config: ClassVar[type]  # its options, a frozen dataclass
    reference: ClassVar[str]  # who published it
    components: ClassVar[tuple[str, ...]]  # of uncertainty that it tells apart: component, mixing, posterior
    eval_inner: ClassVar[int] = 1  # n_inner of `nll`
    stratified: bool = False  # draws of a prediction are stratified: fewer suffice
    has_far_noise: ClassVar[bool] = False  # an option of its Config, not added by `DistanceAware`
    eval_mixture: ClassVar[bool] = False  # early stopping by the NLL of all members' mixture, not of each
    kinds: ClassVar[tuple[str, ...]] = ("regression", "classification")  # of tasks
    max_rows: ClassVar[int | None] = None  # training rows at most
    clips_gradients: ClassVar[bool] = True  # False where a gradient is an update that is exact as it is
    needs_ood_rows: ClassVar[bool] = False  # trains with out-of-distribution rows, `Batch.x_ood`
    takes_families: ClassVar[bool] = False  # predicts targets of other families than the Gaussian
    rows_in_memory: ClassVar[str] = ""  # why all training rows must be in memory; "": they need not
    whole_batches: ClassVar[str] = ""  # why several processes cannot share a batch; "": they can
    config: Any  # the options of this model, an instance of Config
    inputs: int
    task: Task
    members: int = 1

    def __init_subclass__(cls, **options: Any) -> None:
        """Wrap the methods that compute, so that they use full precision even under autocast."""
        super().__init_subclass__(**options)
        for name in {"on_fit_start", "loss", "predict_chunk", "nll", "on_fit_end"} & vars(cls).keys():
            setattr(cls, name, full_precision(vars(cls)[name]))

    def on_fit_start(self, data: Batch, generator: Generator) -> None:
        """Called once before training, to set constants that depend on the training rows; default: none."""

    @abstractmethod
    def loss(self, batch: Batch, generator: Generators) -> Loss:
        """The objective on a batch; `generator` is one generator, or one per member."""

    @abstractmethod
    def predict_chunk(self, x: Tensor, n_samples: int, n_inner: int, generator: Generator) -> Predictive:
        """The predictive of one chunk of rows.

        All rows share the noise, so a row's predictive does not depend on others.
        """

    @torch.no_grad()
    def nll(self, batch: Batch, n_samples: int, generator: Generator) -> Tensor:  # (members,)
        """Mean NLL under each member's predictive of `n_samples` draws, weighted by `batch.weight`."""
        outer = math.ceil(n_samples / self.eval_inner)
        values = -self.predict(batch.x, generator, outer, self.eval_inner).log_prob(batch.y)  # (rows,)
        weight = torch.ones_like(values) if batch.weight is None else batch.weight
        return ((weight * values).sum(-1) / weight.sum(-1)).reshape(-1)

    def on_fit_end(self, data: Batch, generator: Generator) -> None:
        """Called once after training, with the rows of `on_fit_start`; default: nothing.

        Methods fit here what needs the trained network: far noise, a Laplace posterior, a temperature.
        """

    @property
    def distance(self) -> Distance | None:
        """The fitted distance to the training rows, an OOD score; None for a model without one."""
        return None

    def lr_multipliers(self) -> dict[str, float]:
        """Factors on the learning rate, by the last part of a parameter's name; parameters not listed: 1."""
        return {}

    def optimizer(self, settings: OptimizerSettings) -> torch.optim.Optimizer:
        """The optimizer to train with: Adam, a parameter group for each factor of `lr_multipliers`."""
        factors = self.lr_multipliers()
        groups: dict[float, list[nn.Parameter]] = {}
        for name, parameter in self.named_parameters():
            groups.setdefault(factors.get(name.rsplit(".", 1)[-1], 1.0), []).append(parameter)
        lr, items = settings.lr, groups.items()
        return Adam([{"params": p, "lr": lr * factor, "factor": factor} for factor, p in items], fused=True)

    def predict(
        self,
        x: Tensor,
        generator: Generator,
        n_samples: int = N_SAMPLES,
        n_inner: int = N_INNER,
        memory: int = MEMORY,
    ) -> Predictive:
        """The predictive distribution of every row.

        Parameters
        ----------
        x : Tensor of shape (rows, inputs)
        generator : Generator
            Source of all randomness.
        n_samples : int, default=20
            Draws of what more data would determine: the posterior over weights, spread over the members.
        n_inner : int, default=5
            Draws of the mixing distribution for each of them; 1 leaves mixing and posterior in one.
        memory : int, default=2**28
            Bytes of intermediate arrays; rows are computed in chunks that respect it.

        Returns
        -------
        Predictive
            A `GaussianPredictive` (of a family, a `FamilyPredictive`) for regression, a
            `CategoricalPredictive` for classification.

        Raises
        ------
        ValueError
            If x has another shape than (rows, inputs), no rows or non-finite values, or a count is below 1.
        """
        return Predictive.concat(list(self.predict_chunks(x, generator, n_samples, n_inner, memory)))

    @torch.no_grad()
    def predict_chunks(
        self,
        x: Tensor,
        generator: Generator,
        n_samples: int = N_SAMPLES,
        n_inner: int = N_INNER,
        memory: int = MEMORY,
    ) -> Iterator[Predictive]:
        """`predict` as an iterator over chunks of rows, for x whose predictive does not fit in memory."""
        check_inputs(x, self.inputs)
        if len(x) == 0:
            raise ValueError("x has no rows: give at least one")
        for name, count in (("n_samples", n_samples), ("n_inner", n_inner)):
            if count < 1:
                raise ValueError(f"{name} is {count}: ask for at least one draw")
        rows = max(1, memory // (self.floats_per_row(n_samples, n_inner) * x.element_size()))
        state = generator.get_state()
        for chunk in x.split(rows):
            generator.set_state(state)  # every chunk sees the same noise
            yield self.predict_chunk(chunk, n_samples, n_inner, generator)

    def floats_per_row(self, n_samples: int, n_inner: int) -> int:
        """A bound on the floats that `predict_chunk` holds per row, from the sizes of the network.

        Inputs, the units of one draw and the outputs of all draws are held up to COPIES times while moments
        or entropies are computed; far noise needs up to DISTANCES more.
        `tests/models/test_laws.py` compares the bound with the measured peak.
        """
        draws = (n_samples + self.members) * n_inner  # rounded up to the same number for every member
        units = self.network_inputs * self.members + self.hidden_units
        return COPIES * (units + draws * self.outputs) + DISTANCES

    @property
    def network_inputs(self) -> int:
        """Inputs of the first layer: more than `inputs` where they are encoded before."""
        return self.inputs

    @property
    def hidden_units(self) -> int:
        """Hidden units, of all layers and members."""
        return self.members * sum(self.config.widths)

    @property
    def outputs(self) -> int:
        """Numbers per row and draw: logits, or means and variances."""
        if self.task.family is not None and self.task.kind == "regression":
            return 4 * self.task.size
        return self.task.size if self.task.kind == "classification" else 2 * self.task.size


def weighted_row_mean(values: Tensor, weight: Tensor | RowWeights | None) -> Tensor:  # (members,)
    """Weighted mean over the last axis of values (members, rows) or (rows,).

    `weight` is (rows,) or (members, rows), 0 for rows that a member holds out; None weighs all rows equally.
    In a part of a batch `RowWeights` say what the sum is divided by (`Batch.row_weights`).
    """
    if weight is None:
        return values.mean(-1)
    if isinstance(weight, RowWeights):
        total = torch.as_tensor(weight.total, dtype=values.dtype, device=values.device)
        weighted = values if weight.values is None else weight.values.to(values.dtype) * values
        return weighted.sum(-1) / total.clamp_min(torch.finfo(values.dtype).tiny)
    weight = weight.to(values.dtype)
    return (weight * values).sum(-1) / weight.sum(-1).clamp_min(torch.finfo(values.dtype).tiny)


def train_mask(data: Batch) -> Tensor:  # (rows,)
    """True for the rows that at least one member trains on, those of weight > 0."""
    if data.weight is None:
        return torch.ones(len(data), dtype=torch.bool)
    return (data.weight > 0).reshape(-1, len(data)).any(0)


def with_defaults(config: C, defaults: dict[str, Any]) -> C:
    """A copy of a config dataclass in which fields that are None have their value in `defaults`."""
    return replace(
        config, **{name: value for name, value in defaults.items() if getattr(config, name, 0) is None}
    )  # type: ignore[type-var]


# Hidden units where `widths` is None: as in the CDN paper for classes, as is usual on UCI sets for targets.
WIDTHS = {"classification": (100,), "regression": (50,)}
