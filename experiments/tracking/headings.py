"""MLflow's experiments and headings.

A study has one experiment. In the experiment, each combination of a profile and a corpus has one heading, which is the
parent run of the table's runs.
"""

from typing import Any

from experiments.identity import digest
from experiments.tracking.database import SCHEME


class Headings:
    """The experiments and headings of studies, which are created if missing.

    elsewhere: whether MLflow is on a server, which then chooses the location of artifacts.
    """

    def __init__(self, client: Any, elsewhere: bool) -> None:
        self._client, self._elsewhere = client, elsewhere
        self._experiments: dict[str, str] = {}
        self._active: list[str] = []
        self._headings: dict[tuple[str, str, str], str] = {}

    def experiments(self) -> list[str]:
        """Return the ids of the active experiments. The ids are cached until `experiment` creates or restores one."""
        if not self._active:  # without this cache, the search would take a sixth of MLflow's time for each run
            self._active = [one.experiment_id for one in self._client.search_experiments()]
        return self._active

    def experiment(self, study: str) -> str:
        """Return the id of the study's experiment, which is created or restored if necessary."""
        if study not in self._experiments:
            self._active = []
            known = self._client.get_experiment_by_name(study)
            if known is None:
                location = f"{SCHEME}{''.join(c if c.isalnum() else '-' for c in study)}"
                self._experiments[study] = self._client.create_experiment(
                    study, artifact_location=None if self._elsewhere else location
                )
            else:
                if known.lifecycle_stage != "active":
                    self._client.restore_experiment(known.experiment_id)
                self._experiments[study] = known.experiment_id
        return self._experiments[study]

    def heading(self, study: str, profile: str, corpus: str, start_ms: int | None = None) -> str:
        """Return the id of a heading, which is created if missing.

        Its status is FINISHED, because it only groups runs.
        """
        key = (study, profile, corpus)
        if key not in self._headings:
            experiment = self.experiment(study)
            about = {"heading": digest(key), "study": study, "profile": profile, "corpus": corpus}
            found = self._client.search_runs([experiment], f"tags.heading = '{about['heading']}'", max_results=1)
            if not found:
                name = " · ".join(part for part in key if part)
                found = [self._client.create_run(experiment, start_time=start_ms, tags=about, run_name=name)]
            if found[0].info.status != "FINISHED":  # the heading is new, or a kill left it incomplete
                self._client.set_terminated(found[0].info.run_id, "FINISHED", start_ms)
            self._headings[key] = found[0].info.run_id
        return self._headings[key]
