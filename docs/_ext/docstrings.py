"""Docstrings as they are written here, made fit for reStructuredText.

Equations stand in indented blocks without `::`, as in Markdown, and prose holds characters such as * and |
that reStructuredText would read as markup. This runs before numpydoc.
"""

import re
from typing import Any

SECTION = re.compile(r"^-{3,}\s*$")
PARAMETER = re.compile(r"^\S.*? : |^\*{0,2}\w+(, \*{0,2}\w+)*$")
DOCTEST = re.compile(r"^\s*(>>>|\.\.\.)")


def setup(app: Any) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", process, priority=100)
    app.connect("autodoc-process-signature", short_types)
    return {"parallel_read_safe": True}


def short_types(
    app: Any, what: str, name: str, obj: object, options: object, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """`ndarray` without its type parameters."""
    array = re.compile(r"(?:~?numpy\.)?ndarray\[tuple\[.*?\], .*?dtype\[.*?\]\]")
    return tuple(text and array.sub("ndarray", text) for text in (signature, returns))  # type: ignore[return-value]


def process(app: Any, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    if getattr(obj, "__module__", None) and not str(obj.__module__).startswith("compound"):
        return
    lines[:] = escape_prose(literal_blocks(lines))


def sections_start(lines: list[str]) -> int:
    """The line of the first numpydoc section's title; the number of lines where there is none."""
    starts = [i - 1 for i, line in enumerate(lines) if i and SECTION.match(line) and lines[i - 1].strip()]
    return min(starts, default=len(lines))


def literal_blocks(lines: list[str]) -> list[str]:
    """`::` before every indented block of the text above the sections."""
    out: list[str] = []
    head = sections_start(lines)
    inside = False
    for i, line in enumerate(lines):
        indented = i < head and line.startswith("    ")
        if indented and not inside and (not out or not out[-1].strip()):
            out += ["::", ""]
            inside = True
        elif line.strip() and not indented:
            inside = False
        out.append(line)
    return out


def escape_prose(lines: list[str]) -> list[str]:
    """Escapes *, | and trailing underscores outside code."""
    out: list[str] = []
    literal = doctest = False
    head = sections_start(lines)
    for i, line in enumerate(lines):
        if line.strip() == "::":
            literal = True
        elif literal and line.strip() and not line.startswith("    "):
            literal = False
        doctest = bool(DOCTEST.match(line)) or (doctest and bool(line.strip()))
        if literal or doctest or SECTION.match(line):
            out.append(line)
        elif i > head and PARAMETER.match(line):  # numpydoc itself escapes the name
            name, colon, kind = line.partition(" : ")
            out.append(name + colon + escape(kind))
        else:
            out.append(escape(line))
    return out


def escape(line: str) -> str:
    parts = re.split(r"(`+[^`]*`+)", line)
    parts[::2] = [re.sub(r"(?<!\\)[*|]|(?<=\w)_(?=\W|$)", r"\\\g<0>", part) for part in parts[::2]]
    return "".join(parts)
