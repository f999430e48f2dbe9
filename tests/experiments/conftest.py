import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))


@pytest.fixture(params=["own", "anchors"])
def anchors(request: pytest.FixtureRequest) -> Path | None:
    """None for the classifier trained here; else the folder with the original's weights and seeds."""
    import lab

    if request.param == "own":
        return None
    if not lab.ANCHORS.is_dir():
        pytest.skip(f"the original's weights are not at {lab.ANCHORS}")
    return lab.ANCHORS
