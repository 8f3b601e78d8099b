"""The list of mistakes stays true to the code: every one can still be made, and every method has some."""

import ast

import pytest
from mutations import broken, mutants

from compound.models import METHODS

CDN = {"ml-cdn", "vb-cdn"}  # theirs are made by hand in test_cdn's own tests


@pytest.mark.parametrize("mutant", mutants(), ids=lambda m: f"{m.method}: {m.words}")
def test_mistake_can_be_made(mutant):
    ast.parse(broken(mutant))  # stands there once, and the result is Python


def test_every_method_has_mistakes():
    assert {mutant.method for mutant in mutants()} >= set(METHODS) - CDN
