"""What operators are given: dashboards and alert rules name metrics and labels that there are."""

import json
import re
from pathlib import Path

import pytest

from engine.log import WORDING
from tests.test_metrics import page, settled

DEPLOY = Path(__file__).parent.parent / "deploy"
KNOWN_LABELS = {"instance", "le"}


def served():
    """Every series name of the page with its labels."""
    found = page(
        settled(p0=[1]),
        ("statement.ended", {"statement": "commit", "us": 1, "shard": 0}),
        ("backlog.seen", {"shard": 0, "age_ms": 1, "ahead_ms": 1}),
        ("work.seen", {"shard": 0, "ready": 1, "age_ms": 1, "doors": {"0" * 16: [1, 1, 1, 1]}}),
    )
    return {name: {label for label, _ in labels} for name, *labels in found}


def expressions(file):
    """The expressions of a file, as they are written there."""
    text = (DEPLOY / file).read_text()
    if file.endswith(".json"):
        return [target["expr"] for panel in json.loads(text)["panels"] for target in panel.get("targets", ())]
    joined = re.sub(r">-\n\s+", "", text)
    return re.findall(r"expr: (.*(?:\n {10}/.*)?)", joined)


@pytest.mark.parametrize(("file", "least"), [("alerts.yaml", 15), ("grafana.json", 20)])
def test_every_metric_and_label_that_is_asked_for_is_served(file, least):
    series = served()
    asked = expressions(file)
    assert len(asked) >= least
    for expression in asked:
        names = re.findall(r"secondzero_\w+", expression)
        assert names, expression
        assert [name for name in names if name not in series] == []
        labels = set(re.findall(r"(\w+)(?:=~|!=|=)\"", expression))
        labels |= {label.strip() for by in re.findall(r"by \(([^)]*)\)", expression) for label in by.split(",")}
        assert labels - KNOWN_LABELS <= set.union(*(series[name] for name in names)), expression


def test_alerts_on_events_name_events_that_there_are():
    events = re.findall(r'event="([^"]+)"', (DEPLOY / "alerts.yaml").read_text())
    assert events
    assert set(events) <= WORDING.keys()


def test_panels_do_not_overlap_and_are_numbered():
    panels = json.loads((DEPLOY / "grafana.json").read_text())["panels"]
    assert [panel["id"] for panel in panels] == list(range(1, len(panels) + 1))
    taken = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken
        assert at["x"] + at["w"] <= 24
        taken |= cells
