"""Files that are written whole or not at all, even if the process is killed.

A single file is written under another name and renamed. The files of a folder make sense together
only, so they change all at once: the new ones go to a folder inside, `.incomplete`. Renaming that
to `.complete` takes no time and can't be half done: it is the moment when the new files count. Then
they move into place. Whoever reads asks `find`, which looks into `.complete` first, so that a
writer killed between two moves leaves the new state and not a mixture. The next writer finishes its
work.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder to write new files to; at the end they replace those in `folder`.

    After an exception nothing has changed. Other files in `folder` stay. Raises OSError when the
    disk is full or the folder can't be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _move_into_place(folder)
    incomplete = folder / ".incomplete"
    shutil.rmtree(incomplete, ignore_errors=True)  # of a writer that was killed
    incomplete.mkdir()
    try:
        yield incomplete
        for file in incomplete.iterdir():
            with file.open("rb") as written:
                os.fsync(written.fileno())  # on the disk before the rename says so
        incomplete.rename(folder / ".complete")
    except BaseException:
        shutil.rmtree(incomplete, ignore_errors=True)
        raise
    _move_into_place(folder)


def require_writable(folder: Path) -> None:
    """ValueError if files can't be written to `folder`, which needn't exist; nothing is made."""
    try:
        existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        with TemporaryDirectory(dir=existing):
            pass
    except OSError as error:
        raise ValueError(
            f"{folder} can't be written ({error.strerror}): choose another folder"
        ) from None


def write_whole(file: Path, data: bytes) -> None:
    """Write one file. OSError when the disk is full or its folder can't be written."""
    incomplete = file.with_name(file.name + ".incomplete")
    try:
        incomplete.write_bytes(data)
        incomplete.replace(file)
    except BaseException:
        incomplete.unlink(missing_ok=True)
        raise


def find(folder: Path, name: str) -> Path:
    """The path of the file `name` that counts; it may not exist."""
    moving = folder / ".complete" / name
    return moving if moving.is_file() else folder / name


def _move_into_place(folder: Path) -> None:
    complete = folder / ".complete"
    if complete.is_dir():
        for file in complete.iterdir():
            file.replace(folder / file.name)
        complete.rmdir()
