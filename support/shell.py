"""What all commands share: how flags are spelled, and how a bad one is answered in one line."""

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """An ArgumentParser without abbreviations that says what is wrong in one line.

    Flags are spelled with hyphens; nanoGPT's underscores, as in --top_k, are understood.
    """

    def __init__(self, **options: Any):
        super().__init__(allow_abbrev=False, **options)

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        given = list(sys.argv[1:] if args is None else args)
        flags = given.index("--") if "--" in given else len(given)  # behind it is no flag
        return super().parse_args([*map(self._hyphened, given[:flags]), *given[flags:]], namespace)

    def _hyphened(self, argument: str) -> str:
        """--top_k=5 as --top-k=5, if there is such a flag."""
        name, equals, value = argument.partition("=")
        flag = name.replace("_", "-")
        return flag + equals + value if flag in self._option_string_actions else argument

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (--help lists all options)\n")


@contextmanager
def flags_for(names: Iterable[str]) -> Iterator[None]:
    """Errors raised inside name these arguments as the shell does: top_k becomes --top-k."""
    try:
        yield
    except ValueError as error:
        message = str(error)
        for name in names:
            flag = "--" + name.replace("_", "-")
            message = re.sub(rf"\b{name}='(\w+)'", rf"{flag} \1", message)
            # "temperature is -1" is about the argument, "a high temperature" is not.
            message = re.sub(rf"\b{name}" + (r"\b" if "_" in name else "(?= is )"), flag, message)
        raise ValueError(message) from None


def speak_utf8() -> None:
    """Write UTF-8 whatever the locale; on stderr, what can't be encoded as its code."""
    for stream, errors in ((sys.stdout, "strict"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=errors)


def reason(error: Exception) -> str:
    """What went wrong, for a reader: an OSError without its number."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)
