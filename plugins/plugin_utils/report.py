# Copyright: Firstlight contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How reports get into files on the controller."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

DATA = Path(__file__).parent / "data"


def write(path: Path, text: str, mode: int | None = None) -> str:
    """Puts a whole file in place at once: a reader never sees half of it. mode: as the umask has it when not given."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, half = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        Path(half).chmod(0o666 & ~_umask() if mode is None else mode)
        Path(half).replace(path)
    except BaseException:
        Path(half).unlink(missing_ok=True)
        raise
    return str(path)


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def html(template: str, **names: object) -> str:
    """An HTML page of a template in data/: plain Jinja that sees these names and nothing of a play; every value is escaped."""
    environment = Environment(
        loader=FileSystemLoader(DATA),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
        autoescape=True,
    )
    return environment.get_template(template).render(**names)
