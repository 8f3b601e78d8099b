"""Private functions of torch: looked up in one file, tested, and reported by name if they are missing."""

import ast
import importlib.util
import warnings
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

import compound
from compound import compat

SOURCE = Path(compound.__file__).parent
ONE, TWO = torch.tensor([3.0, 4.0]), torch.tensor([-1.0, 2.0])


def in_place(call, *rest) -> torch.Tensor:
    values = ONE.clone()
    call([values], *rest)
    return values


def fused_adam() -> torch.Tensor:
    values, states = ONE.clone(), [torch.zeros(2), torch.zeros(2)]
    rates = {
        "lr": 0.1,
        "beta1": 0.9,
        "beta2": 0.999,
        "weight_decay": 0.0,
        "eps": 1e-8,
        "amsgrad": False,
        "maximize": False,
    }
    compat.fused_adam_([values], [TWO], [states[0]], [states[1]], [], [torch.tensor(1.0)], **rates)
    return values


def started() -> list[str]:
    parameter = torch.nn.Parameter(ONE.clone())
    parameter.grad = TWO
    optimizer = torch.optim.Adam([parameter], fused=True)
    compat.adam_states(optimizer, optimizer.param_groups[0], [], [], [], [], [], [])
    return sorted(optimizer.state[parameter])


def grouped() -> int:
    optimizer = torch.optim.Adam([torch.nn.Parameter(ONE.clone())])
    compat.add_param_group(optimizer, {"params": torch.nn.Parameter(TWO.clone())})
    return len(optimizer.param_groups)


def retained(retain: bool) -> bool:
    seen = []
    x = ONE.clone().requires_grad_()
    x.register_hook(lambda _: seen.append(compat.retains_graph()))
    x.sum().backward(retain_graph=retain)
    return seen[0]


def in_vmap() -> bool:
    seen = []
    torch.func.vmap(lambda x: (seen.append(compat.transforms() is not None), x)[1])(ONE)
    return seen[0]


def trace_depth() -> int:
    seen = []

    def call(x: torch.Tensor) -> torch.Tensor:
        seen.append(compat.dispatch_modes())
        with compat.untraced():
            seen.append(compat.dispatch_modes())
        return x + 1

    program = compat.make_fx(call, "real")(ONE)
    assert_close(program(TWO), TWO + 1)
    return seen[0] - seen[1]


def runs_uncompiled() -> list[bool]:
    seen = []

    @compat.uncompiled
    def note(x: torch.Tensor) -> torch.Tensor:
        seen.append(torch.compiler.is_compiling())
        return x + 1

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the compiler itself
        torch.compile(lambda x: note(2 * x), backend="eager")(ONE)
    return seen


BREAKS = {  # what breaks without it, or where it has another meaning
    "torch._foreach_add_": (
        "Adam counts its steps",
        lambda: in_place(compat.foreach_add_, torch.tensor(1.0)),
        ONE + 1,
    ),
    "torch._foreach_clamp_max_": (
        "gradients are clipped by value",
        lambda: in_place(compat.foreach_clamp_max_, 3.5),
        ONE.clamp_max(3.5),
    ),
    "torch._foreach_clamp_min_": (
        "gradients are clipped by value",
        lambda: in_place(compat.foreach_clamp_min_, 3.5),
        ONE.clamp_min(3.5),
    ),
    "torch._foreach_lerp_": (
        "training averages weights",
        lambda: in_place(compat.foreach_lerp_, [TWO], 0.25),
        ONE.lerp(TWO, 0.25),
    ),
    "torch._foreach_mul_": (
        "gradients are clipped by norm",
        lambda: in_place(compat.foreach_mul_, [TWO]),
        ONE * TWO,
    ),
    "torch._fused_adam_": ("every step of Adam", fused_adam, ONE - 0.1 * TWO.sign()),
    "torch.optim.Adam._init_group": ("the first step of Adam", started, ["exp_avg", "exp_avg_sq", "step"]),
    "torch.optim.Optimizer.add_param_group.__wrapped__": ("Adam begins without the compiler", grouped, 2),
    "torch.ops.mkldnn._linear_pointwise.default": (
        "large products",
        lambda: compat.onednn_linear(ONE.unsqueeze(0), torch.stack([ONE, TWO])),
        (torch.stack([ONE, TWO]) @ ONE).unsqueeze(0),
    ),
    "torch.ops.aten.special_ndtri.default": (
        "export of quantiles to ONNX",
        lambda: compat.ndtri(torch.tensor([0.5])),
        torch.zeros(1),
    ),
    "torch.ops.aten.searchsorted.Tensor": (
        "export of encoders to ONNX",
        lambda: compat.searchsorted(ONE.cumsum(0), ONE.cumsum(0)),
        torch.arange(len(ONE)),
    ),
    "torch.ops.aten.repeat_interleave.Tensor": (
        "export of shared scales to ONNX",
        lambda: compat.repeat_interleave(torch.tensor([2, 1]), output_size=3),
        torch.tensor([0, 0, 1]),
    ),
    "torch._disable_dynamo": ("compiled networks have heads", runs_uncompiled, [False]),
    "torch._C._len_torch_dispatch_stack": ("loops run inside traces, which do not see them", trace_depth, 1),
    "torch._C._functorch.peek_interpreter_stack": (
        "loops run inside torch.func",
        lambda: (compat.transforms(), in_vmap()),
        (None, True),
    ),
    "torch._C._autograd._get_current_graph_task_keep_graph": (
        "a second backward",
        lambda: (retained(True), retained(False)),
        (True, False),
    ),
    f"{compat.TRACING}.make_fx": ("export", trace_depth, 1),
    f"{compat.TRACING}.disable_proxy_modes_tracing": ("export", trace_depth, 1),
}


@pytest.mark.parametrize("path", BREAKS)
def test_private_functions_do_what_the_library_expects(path):
    breaks, call, expected = BREAKS[path]
    if isinstance(expected, torch.Tensor):
        assert_close(call(), expected, msg=lambda text: f"{path}, needed for: {breaks}. {text}")
    else:
        assert call() == expected, f"{path}, needed for: {breaks}"


def test_a_missing_function_is_reported_by_name(monkeypatch):
    for path in (
        "torch._gone",
        "torch._C._gone",
        "torch.ops.aten._gone",
        f"{compat.TRACING}.gone",
        "torch.gone.further",
    ):
        version = torch.__version__.replace("+", ".")
        message = f"^torch {version} has no {path}, which compound calls: install"
        with pytest.raises(ValueError, match=message):
            compat.private(path)
    monkeypatch.delattr(torch, "_fused_adam_")
    spec = importlib.util.spec_from_file_location("again", compat.__file__)
    with pytest.raises(
        ValueError, match=r"has no torch\._fused_adam_, "
    ):  # before any work: when the library is loaded
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_private_functions_are_looked_up_in_one_file_and_tested():
    fetched = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                path.name == "compat.py"
                and isinstance(node, ast.Call)
                and ast.unparse(node.func) == "private"
            ):
                fetched.add(eval(ast.unparse(node.args[0]), {"TRACING": compat.TRACING}))
            elif path.name != "compat.py" and isinstance(node, ast.Attribute | ast.ImportFrom):
                name = f"{node.module}." if isinstance(node, ast.ImportFrom) else ast.unparse(node)
                private = (
                    name.startswith(("torch._", "torch.ops.", "torch.fx.")) and name != "torch.__version__"
                )
                assert not private, f"{path.name}, line {node.lineno}: fetch {name} in compat.py"
    assert fetched == set(BREAKS)
