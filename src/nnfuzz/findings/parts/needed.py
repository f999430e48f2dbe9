"""The imports of a script from packages that need not be there: without one nothing can be tried, which is status 2."""

from __future__ import annotations

_GUARDED = """try:
    {lines}
except ModuleNotFoundError as missing:
    if __name__ != "__main__":
        raise
    print(f"cannot be tried: {{missing}}: pip install {packages}", file=sys.stderr)
    sys.exit(2)"""


def needed(imports: str, packages: str) -> str:
    """Source of ``imports``, with one sentence and status 2 where a package is missing; the script imports ``sys``."""
    return _GUARDED.format(lines="\n    ".join(imports.splitlines()), packages=packages)
