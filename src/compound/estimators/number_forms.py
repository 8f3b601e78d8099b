"""Numbers as people write them: "1,234.5", "$5", "5%", "1.234,5 €". A form says which signs mean what.

A column of text has a form where every value has it: the same currency or percent sign throughout, and
separators that can only be read one way. "5%" is 5.
"""

import re
import warnings
from collections.abc import Sequence
from typing import NamedTuple

CURRENCIES = ("$", "€", "£", "¥")
SYMBOLS = ("", *CURRENCIES, "%")
SPACES = "\u00a0\u202f"  # other spaces that separate thousands
_SHAPE = re.compile(
    r"([+-]?) ?(?P<before>[$€£¥]?) ?([+-]?)(?P<digits>\d[\d.,' \u00a0\u202f]*?) ?(?P<after>[$€£¥%]?)"
)


class NumberForm(NamedTuple):
    """How the numbers of a column are written."""

    symbol: str  # one of SYMBOLS
    thousands: str  # what separates them: "," "." "'" or " "
    decimal: str  # "." or ","

    @property
    def example(self) -> str:
        """A number in this form, for messages."""
        number = f"1{self.thousands}234{self.decimal}5"
        return f"{self.symbol}{number}" if self.symbol in CURRENCIES else f"{number}{self.symbol}"

    @property
    def digits(self) -> str:
        """A regular expression of the digits with their separators."""
        thousands, decimal = re.escape(self.thousands), re.escape(self.decimal)
        return rf"(\d+|[1-9]\d{{0,2}}({thousands}\d{{3}})+)({decimal}\d+)?"


FORMS = ((",", "."), (".", ","), (" ", ","), (" ", "."), ("'", "."))  # thousands, decimal


class AmbiguousNumbersError(ValueError):
    """Text that looks like numbers which can be read in more than one way."""


def warn_of_written_numbers(column: str, values: Sequence[str]) -> None:
    """Warn that numbers in a column's distinct values, such as "$5", are taken for categories."""
    try:
        seems_number = find_form(values, comma_separates=True) is not None
    except AmbiguousNumbersError:
        seems_number = True
    if seems_number:
        warnings.warn(
            f"column {column!r} holds text such as {values[0]!r}, which is taken for categories: "
            "convert it to numbers if it holds numbers",
            UserWarning,
            stacklevel=2,
        )


def find_form(values: Sequence[str], comma_separates: bool) -> NumberForm | None:
    """The form of the numbers in a column's distinct values; None if they are not such numbers.

    "1,234" alone may be 1234 or 1.234: it is 1234 where `comma_separates` the columns of the file, so that
    it is no decimal comma; else AmbiguousNumbersError, whose message follows the name of the column.
    """
    shapes = []
    for value in values:
        shape = _SHAPE.fullmatch(value.strip())
        if shape is None or (shape["before"] and shape["after"]):
            return None
        shapes.append(shape)
    symbols = {shape["before"] or shape["after"] for shape in shapes}
    is_plain = symbols == {""} and all(re.fullmatch(r"\d+(\.\d*)?", shape["digits"]) for shape in shapes)
    if not shapes or is_plain:
        return None
    if len(symbols) > 1:
        first, other = (
            next(s[0] for s in shapes if (s["before"] or s["after"]) == x) for x in sorted(symbols)[:2]
        )
        raise AmbiguousNumbersError(
            f"holds {first!r} and {other!r}: write all numbers in one unit, without a sign"
        )
    digits = [re.sub(f"[{SPACES}]", " ", shape["digits"]) for shape in shapes]
    symbol = symbols.pop()
    fitting = [
        form for form in FORMS if all(re.fullmatch(NumberForm(symbol, *form).digits, d) for d in digits)
    ]
    separated = next((d for d in digits if not d.isdigit()), None)
    if symbol and separated is None:
        return NumberForm(symbol, *FORMS[0])
    if not fitting:  # such as 1,2,3: a list of codes
        return None
    if FORMS[0] in fitting and FORMS[1] in fitting and not comma_separates:
        raise AmbiguousNumbersError(
            f"holds {separated!r}, where the sign may separate thousands or decimals: "
            "write numbers without separators of thousands, with a decimal point"
        )
    if fitting[0][0] == " " and not symbol and all(d.replace(" ", "").isdigit() for d in digits):
        return None  # 110 001 may be a code
    return NumberForm(symbol, *fitting[0])
