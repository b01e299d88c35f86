"""The study `path-lengths`: its labels have the paths of its rows."""

from ablations.planning.resolve import resolve
from ablations.service.selected import task_of_study
from ablations.study.selectors import Selection
from ablations.study.study import load_study
from model.paths import shortest_paths


def test_paths_in_the_labels_of_path_lengths_are_those_of_the_rows():
    study = load_study("path-lengths")
    for row in resolve(study, Selection(profile="demo"), task_of_study(study)):
        paths = shortest_paths(row.config.model, "encoder", 10)  # nine symbols and the end
        found = [int(paths[9, 9 - 2 * distance]) for distance in (1, 2, 4)]
        assert row.variation.label.endswith(f"paths {', '.join(map(str, found))}")
