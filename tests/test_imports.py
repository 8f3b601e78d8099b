"""Imports point one way, and the door is light: no torch before it is used."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import compound

SOURCE = Path(compound.__file__).parent
BELOW_BENCH = {"types", "distributions", "persist", "data", "predictive", "metrics", "nn", "attacks", "models", "train", "estimators"}
TABLE = {  # room: what it may import; `types` is for everyone
    "__init__": set(),
    "compat": set(),  # private functions of torch
    "precision": set(),
    "kernels": {"compat"},
    "outputs": set(),
    "types": {"kernels"},
    "distributions": {"types"},
    "schema": set(),
    "replacing": set(),
    "persist": {"types", "schema", "replacing", "outputs"},
    "data": {"types"},
    "predictive": {"types", "distributions"},
    "metrics": {"types", "predictive"},
    "nn": {"types", "distributions", "kernels", "compat", "precision"},
    "attacks": {"types"},
    "models": {"types", "distributions", "predictive", "nn", "attacks", "compat", "precision"},
    "models.files": {"types", "models", "nn", "predictive", "persist", "schema"},  # models on disk
    "gradients": {"compat"},
    "train": {"types", "models.base", "models.files", "schema", "persist", "gradients", "compat"},
    "estimators": {
        "types",
        "distributions",
        "nn",
        "models",
        "models.files",
        "train",
        "predictive",
        "persist",
        "data",
        "metrics",
        "schema",
        "compat",
    },
    "bench": BELOW_BENCH | {"models.files", "outputs"},
    "tables": BELOW_BENCH | {"bench", "outputs"},
    "cli": {"types", "estimators", "models", "models.files", "bench", "data", "cli_tables", "cli_errors", "outputs"},
    "cli_errors": set(),
    "cli_tables": {"estimators", "tables", "bench", "outputs"},
}


def room(module: str) -> str:
    """compound.models.base.Model -> models.base where the table names that, else models."""
    words = module.split(".")[1:]
    names = {name for allowed in TABLE.values() for name in allowed} | set(TABLE)
    long = ".".join(words[:2])
    return long if long in names else words[0] if words else "__init__"


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write imports in full"
            found |= {f"{node.module}.{alias.name}" if node.module.count(".") == 0 else node.module for alias in node.names}
    return {name for name in found if name.split(".")[0] == "compound" and name.split(".")[-1] not in ("__version__", "compound")}


def test_rooms_import_only_what_the_table_allows():
    wrong = []
    for path in SOURCE.rglob("*.py"):
        module = ".".join(["compound", *path.relative_to(SOURCE).with_suffix("").parts]).removesuffix(".__init__")
        here = "__init__" if module == "compound" else room(module)
        if here == "__init__":
            continue  # the public list names every room, lazily
        home = "models" if here == "models.base" else here
        allowed = {home, here, *TABLE[home]} | ({"models.base"} if "models" in {home, *TABLE[home]} else set())
        wrong += [f"{module} imports {name}" for name in imported(path) if room(name) not in allowed]
    assert not wrong


def test_every_public_name_resolves_to_its_home():
    for name in compound.__all__:
        assert getattr(compound, name).__name__ == name
    with pytest.raises(AttributeError, match="nonsense"):
        compound.nonsense  # noqa: B018


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_door_and_help_leave_torch_alone():
    heavy = "print([name for name in ('torch', 'numpy', 'numba', 'matplotlib', 'pandas') if name in sys.modules])"
    assert python(f"import sys, compound; {heavy}").strip() == "[]"
    asked = f"import sys, compound.cli\ntry: compound.cli.main(['--help'])\nexcept SystemExit: pass\n{heavy}"
    assert python(asked).strip().splitlines()[-1] == "[]"


def test_help_comes_within_half_a_second():
    """Of a processor's time, whatever else the machine does."""
    used = []
    for _ in range(3):
        before = os.times()
        python("import compound.cli\ncompound.cli.main(['--help'])")
        after = os.times()
        used.append(after.children_user - before.children_user + after.children_system - before.children_system)
    assert min(used) < 0.5
