"""The contract every method fulfils: a loss for one batch, and an answer for any number of rows."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import torch
from torch import Generator, Tensor, nn

from compound.models.adam import Adam
from compound.precision import full_precision
from compound.predictive import Predictive
from compound.random import Generators
from compound.types import Batch, Task, check_inputs

C = TypeVar("C")
MEMORY = 256 * 2**20  # bytes of live arrays while predicting


class Loss(NamedTuple):
    """Means per datum; one number per member where a method has members. `total` is what is minimised (summed over members)."""

    total: Tensor
    nll: Tensor
    kl: Tensor


class Draws(NamedTuple):
    """How many draws answer a question: `outer` of what more data would settle, and for each of them `inner` of the rest."""

    outer: int = 20
    inner: int = 5

    @classmethod
    def of(cls, n: "int | Draws") -> "Draws":
        """A plain number asks for at least so many: five inner ones each, 100 is 20 x 5 and so is 99; 7 is 7 x 1, too few to nest."""
        if isinstance(n, int):
            n = Draws(-(-n // 5), 5) if n >= 10 else Draws(n, 1)
        if n.outer < 1 or n.inner < 1:
            raise ValueError(f"n is {tuple(n)}: ask for at least one draw")
        return n


class OptimizerSettings(Protocol):
    """What `Model.optimizer` reads from the settings of a fit."""

    @property
    def lr(self) -> float: ...


class Model(nn.Module, ABC):
    """A method with its network: what it minimises, and how it answers."""

    method: ClassVar[str]  # its name in METHODS
    Config: ClassVar[type]  # its options, a frozen dataclass
    source: ClassVar[str]  # who published it
    components: ClassVar[tuple[str, ...]]  # of uncertainty that it tells apart: component, mixing, posterior
    needs_ood_rows: ClassVar[bool] = False  # whether training takes out-of-distribution rows, `Batch.x_ood`
    config: Any  # those of this model
    inputs: int
    task: Task
    members: int = 1

    def __init_subclass__(cls, **options: Any) -> None:
        """Every method computes in full precision, also where its caller has autocast on."""
        super().__init_subclass__(**options)
        for name in {"on_fit_start", "loss", "predict_chunk", "nll", "on_fit_end"} & vars(cls).keys():
            setattr(cls, name, full_precision(vars(cls)[name]))

    def on_fit_start(self, data: Batch, generator: Generator) -> None:
        """Once, before training: constants from the training rows."""

    @abstractmethod
    def loss(self, batch: Batch, generator: Generators) -> Loss:
        """The objective on a batch; `generator` is one stream, or one per member."""

    @abstractmethod
    def predict_chunk(self, x: Tensor, n: Draws, generator: Generator) -> Predictive:
        """The predictive of one chunk of rows. Noise is shared by all rows, so a row's answer does not depend on its neighbours."""

    @abstractmethod
    def floats_per_row(self, n: Draws) -> int:
        """How many numbers `predict_chunk` holds per row at its peak: the chunk size follows from it."""

    @torch.no_grad()
    def nll(self, batch: Batch, n: int, generator: Generator) -> Tensor:  # (members,)
        """Mean negative log-density of the batch under each member's predictive, weighted by `batch.weight`."""
        values = -self.predict(batch.x, n, generator).log_prob(batch.y)  # (rows,)
        weight = torch.ones_like(values) if batch.weight is None else batch.weight
        return ((weight * values).sum(-1) / weight.sum(-1)).reshape(-1)

    def on_fit_end(self, data: Batch, generator: Generator) -> None:
        """Once, after training, on the same rows as `on_fit_start`: far noise, Laplace, temperature."""

    def lr_multipliers(self) -> dict[str, float]:
        """Factors on the learning rate by the last word of a parameter's name; 1 where nothing is said."""
        return {}

    def optimizer(self, settings: OptimizerSettings) -> torch.optim.Optimizer:
        """Adam in one fused pass, one group per rate factor."""
        factors = self.lr_multipliers()
        groups: dict[float, list[nn.Parameter]] = {}
        for name, parameter in self.named_parameters():
            groups.setdefault(factors.get(name.rsplit(".", 1)[-1], 1.0), []).append(parameter)
        return Adam(
            [
                {"params": group, "lr": settings.lr * factor, "factor": factor}
                for factor, group in groups.items()
            ],
            fused=True,
        )

    @torch.no_grad()
    def predict_chunks(
        self, x: Tensor, n: int | Draws, generator: Generator, memory: int = MEMORY
    ) -> Iterator[Predictive]:
        """Answers chunk by chunk, for tables whose answers would not fit in memory together."""
        check_inputs(x, self.inputs)
        if len(x) == 0:
            raise ValueError("x has no rows: ask about at least one")
        n = Draws.of(n)
        rows = max(1, memory // (self.floats_per_row(n) * x.element_size()))
        state = generator.get_state()
        for chunk in x.split(rows):
            generator.set_state(state)  # every chunk sees the same noise
            yield self.predict_chunk(chunk, n, generator)

    def predict(self, x: Tensor, n: int | Draws, generator: Generator, memory: int = MEMORY) -> Predictive:
        """The predictive distribution of every row of x, from n draws."""
        return Predictive.concat(list(self.predict_chunks(x, n, generator, memory)))


def weighted_row_mean(values: Tensor, weight: Tensor | None) -> Tensor:  # (members,)
    """Mean over rows, weighted; rows a member holds out do not count for it."""
    if weight is None:
        return values.mean(-1)
    weight = weight.to(values.dtype)
    return (weight * values).sum(-1) / weight.sum(-1).clamp_min(torch.finfo(values.dtype).tiny)


def train_mask(data: Batch) -> Tensor:  # (rows,)
    """Which rows some member trains on."""
    if data.weight is None:
        return torch.ones(len(data), dtype=torch.bool)
    return (data.weight > 0).reshape(-1, len(data)).any(0)


def with_defaults(config: C, defaults: dict[str, Any]) -> C:
    """The frozen config with every None replaced by its default."""
    return replace(
        config, **{name: value for name, value in defaults.items() if getattr(config, name, 0) is None}
    )  # type: ignore[type-var]


# The network every method starts from where `widths` is None: the paper's for classes, that of the UCI tables for targets.
WIDTHS = {"classification": (100,), "regression": (50,)}
