"""The chart as Helm's own engine reads it (helm-python-sdk), without a cluster."""

from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "cantle"


@pytest.fixture(scope="session")
def chart():
    helm = pytest.importorskip("helm_python", reason="helm-python-sdk cannot be had here (tests/requirements.txt)")
    with helm.Chart.load(CHART) as chart:
        yield chart


@pytest.fixture(scope="session")
def render(chart):
    """Objects of the chart with these values."""

    def render(values=None, name="cantle", namespace="cantle-system"):
        files = chart.render(values, name=name, namespace=namespace)
        texts = (text for path, text in sorted(files.items()) if path.endswith(".yaml"))
        return [thing for text in texts for thing in yaml.safe_load_all(text) if thing]

    return render
