"""Recording gradients inside a dispatch mode; the docstring of ``tracer`` says why that works."""

from typing import Any

import torch
from torch import Tensor

_AUTOGRAD = torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradFunctionality) | torch._C.DispatchKeySet(
    torch._C.DispatchKey.ADInplaceOrView
)


class LiveAutograd:
    """Autograd as above the mode: the two excluded keys are back, and gradients are recorded.

    Saved-tensor hooks of the program (activation checkpointing, offloading) must not meet what distances save: a
    checkpoint counts the tensors saved inside it and would find more than when it runs again.
    """

    __slots__ = ("_grad", "_guard", "_hooks")

    def __enter__(self) -> None:
        self._guard = torch._C._ForceDispatchKeyGuard(
            torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set() - _AUTOGRAD
        )
        self._guard.__enter__()
        self._grad = torch.enable_grad()
        self._grad.__enter__()
        self._hooks = None
        if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
            self._hooks = torch.autograd.graph.saved_tensors_hooks(Tensor.detach, lambda t: t)
            self._hooks.__enter__()

    def __exit__(self, *error: Any) -> None:
        if self._hooks is not None:
            self._hooks.__exit__(*error)
        self._grad.__exit__(*error)
        self._guard.__exit__(*error)
