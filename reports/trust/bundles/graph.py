"""The graph of a crate's description: entities, the actions of each step, times of events."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from ablations.plan.planned import Plan
from experiments.events.event_log import Tail
from experiments.identity import digest
from experiments.store.layout import Store

Entity = Mapping[str, Any]
STEPS = {"train": "Train the runs", "evaluate": "Evaluate the runs", "report": "Print the table"}
_TOLD = ("started", "trained", "evaluated")


def ref(id_: str) -> dict[str, str]:
    """A reference to an entity."""
    return {"@id": id_}


def date(seconds: float) -> str:
    """Unix seconds as ISO 8601, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def compact(value: Any) -> Any:
    """A list of one value as that value: RO-Crate 1.1 recommends it."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


@dataclass
class Graph:
    """Entities in order, each once; by step, its actions and their tools."""

    entities: dict[str, Entity] = field(default_factory=dict)
    actions: dict[str, list[str]] = field(default_factory=lambda: {step: [] for step in STEPS})
    tools: dict[str, list[str]] = field(default_factory=lambda: {step: [] for step in STEPS})

    def add(self, id_: str, type_: str | Sequence[str], **properties: Any) -> str:
        """Add an entity without its empty properties; returns its id."""
        kept = {name: compact(value) for name, value in properties.items() if value not in (None, "", [])}
        self.entities.setdefault(id_, {"@id": id_, "@type": type_, **kept})
        return id_

    def act(self, step: str, id_: str, tool: str, **properties: Any) -> None:
        """Add an action of a step."""
        self.add(id_, "CreateAction", instrument=ref(tool), **properties)
        self.actions[step].append(id_)
        if tool not in self.tools[step]:
            self.tools[step].append(tool)

    def setting(self, name: str, value: Any) -> dict[str, str]:
        """A reference to a setting with its value."""
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        return ref(self.add(f"#setting-{digest([name, text])}", "PropertyValue", name=name, value=text))

    def used(self, of: str, record: Mapping[str, Any], fields: Mapping[str, tuple[str, str]]) -> list[dict[str, str]]:
        """References to the amounts that a record has. `fields`: name → what it is, unit."""
        found = []
        for name, (about, unit) in fields.items():
            amount = record.get(name)
            if isinstance(amount, int | float) and not isinstance(amount, bool):
                value = {"propertyID": name, "value": f"{amount:.10g}", "unitCode": unit}
                found.append(ref(self.add(f"{of}-{name}", "PropertyValue", name=about, **value)))
        return found


class Times:
    """When things happened, from the events of the attempts that finished, of which a bundle has the files."""

    def __init__(self, plan: Plan, store: Store) -> None:
        self._of: dict[str, dict[str, float]] = {run.run_id: {} for run in plan.trainings}
        for run_id, times in self._of.items():
            result = store.result(run_id)
            for event in Tail(store.attempt_folder(run_id, result.attempt)).read() if result else ():
                if event["kind"] in _TOLD:
                    times[event["eval_id"] if event["kind"] == "evaluated" else event["kind"]] = event["t"]

    def of(self, run_id: str, what: str) -> str:
        """The time of "started", of "trained", or of an evaluation by its eval_id; "" if no event tells it."""
        found = self._of[run_id].get(what)
        return "" if found is None else date(found)

    @property
    def first(self) -> str:
        """The first time; "" if there is none."""
        return date(min(self._all)) if self._all else ""

    @property
    def last(self) -> str:
        """The last time; "" if there is none."""
        return date(max(self._all)) if self._all else ""

    @property
    def _all(self) -> list[float]:
        return [t for times in self._of.values() for t in times.values()]
