"""Every method behind one name: `build("ml-cdn", inputs, task, seed)`."""

import dataclasses
from typing import Any

from compound.models.base import Draws as Draws
from compound.models.base import Loss as Loss
from compound.models.base import Model as Model
from compound.models.cdn import MLCDN as MLCDN
from compound.models.cdn import VBCDN as VBCDN
from compound.models.map import MAP as MAP
from compound.types import Task

METHODS: dict[str, type[Model]] = {
    "ml-cdn": MLCDN,
    "vb-cdn": VBCDN,
    "map": MAP,
}


class Method:
    """The light description of a method: Method("ml-cdn", lam=1e-5). Its options are those of the method's `Config`."""

    def __init__(self, name: str, **options: Any):
        self.name = name
        self.options = options
        self.config()  # a wrong name or option is refused here, before any work

    def config(self) -> Any:
        """The frozen `Config` of the method with these options."""
        if self.name not in METHODS:
            raise ValueError(f"method is {self.name!r}: choose one of {', '.join(METHODS)}")
        kind = METHODS[self.name].Config
        known = [field.name for field in dataclasses.fields(kind)]
        for option in self.options:
            if option not in known:
                raise ValueError(f"{self.name} has no option {option!r}: it has {', '.join(known)}")
        return kind(**self.options)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return {"name": self.name, **self.options}

    def set_params(self, **params: Any) -> "Method":
        self.name = params.pop("name", self.name)
        self.options = {**self.options, **params}
        self.config()
        return self

    def __repr__(self) -> str:
        return ", ".join([f"Method({self.name!r}", *(f"{k}={v!r}" for k, v in self.options.items())]) + ")"


def build(method: str | Method, inputs: int, task: Task, seed: int = 0) -> Model:
    """A fresh model of a method, its weights drawn from the streams of `seed`."""
    method = Method(method) if isinstance(method, str) else method
    return METHODS[method.name](inputs, task, method.config(), seed)  # type: ignore[call-arg]
