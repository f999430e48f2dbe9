"""What can go wrong, as a tree. Each message is one sentence: what was given, what was expected, what to do.

NnfuzzError
 ├─ UsageError        bad input or usage, found before any fuzzing starts        exit status 2
 │   ├─ Unsupported   what was asked is legal but not built                      exit status 2
 │   └─ MissingExtra  an optional package is not installed                       exit status 2
 ├─ ModelFailure      the model itself raises on its own seeds                   exit status 3
 └─ StoreError        the run directory cannot be read or written                exit status 2
     └─ RunLocked     another process is writing this run                        exit status 2
"""


class NnfuzzError(Exception):
    """Root of everything that nnfuzz raises on purpose."""

    exit_status = 2


class UsageError(NnfuzzError, ValueError):
    """Bad input or usage; also a ``ValueError`` so that callers may catch the usual class."""


class Unsupported(UsageError):
    """Asked for something legal that nnfuzz does not do; never passed over as fine."""


class MissingExtra(UsageError, ImportError):
    """An optional package is missing; the message holds the exact ``pip install`` line."""

    def __init__(self, package: str, extra: str, purpose: str):
        super().__init__(f"{purpose} needs the package {package!r}: pip install 'nnfuzz[{extra}]'")


class ModelFailure(NnfuzzError):
    """The model raised on the seeds themselves, so there is nothing to compare mutants with."""

    exit_status = 3


class StoreError(NnfuzzError, OSError):
    """The run directory cannot be read or written (full disk, bad permissions, damaged file)."""


class RunLocked(StoreError):
    """Another live process is writing this run directory."""
