"""Advice that was tried: remedies as data, put in place of the failing call, and checked before they are shown."""

from nnfuzz.advice.advise import Proposal, advise
from nnfuzz.advice.remedy import REMEDIES, Remedy
from nnfuzz.advice.static import static_warnings
from nnfuzz.advice.verify import Case, Found, Verification

__all__ = ["REMEDIES", "Case", "Found", "Proposal", "Remedy", "Verification", "advise", "static_warnings"]
