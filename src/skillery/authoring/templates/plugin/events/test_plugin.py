import json
from pathlib import Path

import pytest
from skillery.backends import Place
from skillery.testing import EventsContract, sample_events

from __MODULE__ import __CLASS__, skillery_plugin


class Test__CLASS__(EventsContract):
    @pytest.fixture
    def listener(self, tmp_path: Path) -> __CLASS__:
        offer = skillery_plugin()
        return offer.open(offer.settings(file=str(tmp_path / "events.jsonl")), Place(tmp_path))


def test_each_chosen_event_is_a_line(tmp_path: Path) -> None:
    offer = skillery_plugin()
    settings = offer.settings(file=str(tmp_path / "events.jsonl"), types=("published", "yanked"))
    listener = offer.open(settings, Place(tmp_path))
    for event in sample_events():
        listener.events(event=event)

    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["type"] for line in lines] == ["published", "yanked"]
