"""All methods by name: `build("ml-cdn", inputs, task, seed)` gives a model."""

import dataclasses
import typing
from typing import Any

from compound.models.base import Loss as Loss
from compound.models.base import Model as Model
from compound.models.bayes_hypernet import BayesHypernet as BayesHypernet
from compound.models.bbb import BBB as BBB
from compound.models.bnn_lv import BNNLV as BNNLV
from compound.models.cdn import MLCDN as MLCDN
from compound.models.cdn import VBCDN as VBCDN
from compound.models.deep_ensemble import DeepEnsemble as DeepEnsemble
from compound.models.distance_aware import DistanceAware as DistanceAware
from compound.models.dpn import DPN as DPN
from compound.models.encoded import Encoded as Encoded
from compound.models.extrapolation import FarClasses, FarDistance
from compound.models.hmc import HMC as HMC
from compound.models.hypernet import Hypernet as Hypernet
from compound.models.implicit import Implicit as Implicit
from compound.models.laplace import Laplace as Laplace
from compound.models.map import MAP as MAP
from compound.models.mc_dropout import MCDropout as MCDropout
from compound.models.mdn import MDN as MDN
from compound.models.mnf import MNF as MNF
from compound.models.noisy_adam import NoisyAdam as NoisyAdam
from compound.models.noisy_kfac import NoisyKFAC as NoisyKFAC
from compound.models.options import check_option
from compound.models.pbp import PBP as PBP
from compound.models.temperature import Temperature as Temperature
from compound.models.vib import VIB as VIB
from compound.models.vmg import VMG as VMG
from compound.nn import PiecewiseLinearEncoding
from compound.types import Task

METHODS: dict[str, type[Model]] = {
    "ml-cdn": MLCDN,
    "vb-cdn": VBCDN,
    "map": MAP,
    "laplace": Laplace,
    "deep-ensemble": DeepEnsemble,
    "dpn": DPN,
    "vib": VIB,
    "vmg": VMG,
    "mnf": MNF,
    "bbb": BBB,
    "mdn": MDN,
    "temperature": Temperature,
    "mc-dropout": MCDropout,
    "bnn-lv": BNNLV,
    "noisy-kfac": NoisyKFAC,
    "noisy-adam": NoisyAdam,
    "hmc": HMC,
    "bayes-hypernet": BayesHypernet,
    "implicit": Implicit,
    "hypernet": Hypernet,
    "pbp": PBP,
}
FAR_OPTIONS: dict[str, Any] = {"far": float, "far_distance": FarDistance}  # of every method


class Method:
    """A method with its options, from which models are built.

    Parameters
    ----------
    name : str
        One of METHODS.
    **options
        Fields of the method's `Config`. Every method takes `far` besides: far noise on its predictive
        (see `compound.models.extrapolation`), 0 for bounds alone; CDNs have it by default, far=3.0. With it
        goes `far_distance`: 'directions' where inputs are features of a network, not centred, else 'inputs'.

    Raises
    ------
    ValueError
        If the name, an option or its value is unknown.

    Examples
    --------
    >>> from compound import Method
    >>> Method("ml-cdn", lam=1e-5)
    Method('ml-cdn', lam=1e-05)
    """

    def __init__(self, name: str, **options: Any):
        self.name = name
        self.options = options
        self.config()  # a wrong name or option is refused here, before any work

    def config(self) -> Any:
        """The frozen `Config` of the method with these options."""
        if self.name not in METHODS:
            raise ValueError(f"method is {self.name!r}: choose one of {', '.join(METHODS)}")
        config = METHODS[self.name].Config
        fields = [field.name for field in dataclasses.fields(config)]
        for option in self.options:
            if option not in fields and option not in FAR_OPTIONS:
                raise ValueError(f"{self.name} has no option {option!r}: it has {', '.join(fields)}")
        hints = FAR_OPTIONS | typing.get_type_hints(config)
        values = {
            option: check_option(option, value, hints[option]) for option, value in self.options.items()
        }
        return config(**{name: value for name, value in values.items() if name in fields})

    def build(
        self, inputs: int, task: Task, seed: int, encoding: PiecewiseLinearEncoding | None = None
    ) -> Model:
        """A fresh model, see `build`; `encoding` is applied to its inputs, but not to distances."""
        method: Any = METHODS[self.name]
        if task.kind not in method.kinds:
            raise ValueError(f"{self.name} is for {' and '.join(method.kinds)}, not for {task.kind}")
        self.check_family(task.family)
        if method.has_far_noise:
            return method(inputs, task, self.config(), seed, encoding)  # type: ignore[no-any-return]
        if encoding is None:
            model = method(inputs, task, self.config(), seed)
        else:
            model = Encoded(method(encoding.outputs, task, self.config(), seed), encoding)
        far = self.options.get("far")
        far_classes: FarClasses = "uniform" if encoding is None else "frequencies"
        far_distance: FarDistance = self.options.get("far_distance", "inputs")
        return model if far is None else DistanceAware(model, far, far_classes, far_distance)

    @property
    def takes_families(self) -> bool:
        """Whether the method predicts targets of other families than the Gaussian."""
        return METHODS[self.name].takes_families

    def check_family(self, family: str | None) -> None:
        """Raise ValueError if the method cannot predict targets of this family."""
        if family is not None and not self.takes_families:
            able = ", ".join(name for name, model in METHODS.items() if model.takes_families)
            raise ValueError(
                f"{self.name} predicts Gaussian targets and classes without order, not {family}: "
                f"use one of {able}"
            )

    def with_limits(self) -> "Method":
        """A copy whose models bound the predictive of targets (see limits.py); self where they already do."""
        if "far" in self.options or METHODS[self.name].has_far_noise:
            return self
        return Method(self.name, **self.options, far=0.0)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Name and options, as in scikit-learn."""
        return {"name": self.name, **self.options}

    def set_params(self, **params: Any) -> "Method":
        """Change name or options, as in scikit-learn; other options stay. Returns self."""
        self.name = params.pop("name", self.name)
        self.options = {**self.options, **params}
        self.config()
        return self

    def __repr__(self) -> str:
        return ", ".join([f"Method({self.name!r}", *(f"{k}={v!r}" for k, v in self.options.items())]) + ")"


def build(method: str | Method, inputs: int, task: Task, seed: int = 0) -> Model:
    """A fresh model of a method.

    Parameters
    ----------
    method : str or Method
    inputs : int
        Columns of x.
    task : Task
    seed : int, default=0
        Of the initial weights.

    Returns
    -------
    Model
        Train it with `compound.fit`, predict with `Model.predict`.

    Raises
    ------
    ValueError
        If the method or an option is unknown, or a value is out of range.

    Examples
    --------
    >>> from compound import Task, build
    >>> model = build("map", inputs=3, task=Task("classification", 2))
    >>> model.method, model.inputs
    ('map', 3)
    """
    method = Method(method) if isinstance(method, str) else method
    return method.build(inputs, task, seed)
