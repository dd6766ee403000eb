"""What the two shell commands share: a bad argument is answered in one line."""

import argparse
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that takes no abbreviations and says what is wrong in one line."""

    def __init__(self, **options: object):
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (--help lists all options)\n")
