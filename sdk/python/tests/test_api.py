"""What `import xdb` gives."""

from __future__ import annotations

import subprocess
import sys

import xdb

CALLING = (
    "Admin AsyncClient Change Client Description Execution Finding Outcome Result Start StateOutcome Stranding Summary "
    "XdbError errors"
)


def test_every_name_is_there() -> None:
    assert [name for name in xdb.__all__ if not hasattr(xdb, name)] == []
    assert set(CALLING.split()) <= set(xdb.__all__)
    assert xdb.__all__ == sorted(xdb.__all__)


def test_a_worker_imports_nothing_but_the_package() -> None:
    """A driver, a framework or a type checker's helper that is loaded would have to be installed."""
    ours = "import sys, xdb; foreign = {m.partition('.')[0] for m in sys.modules} - sys.stdlib_module_names - {'xdb'}; "
    code = ours + "print(sorted(m for m in foreign if 'site' not in m and not m.startswith('_')))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
