"""The checklist's runtime and number of attempts, from records with given times."""

from reports.render.setup import checklist


def test_a_training_that_finished_and_was_replaced_did_not_end_early(bench):
    """In records of earlier versions, the time of the last attempt is among those of earlier attempts."""
    earlier = [
        {"attempt": 1, "seconds": 7200.0, "ended": "finished"},
        {"attempt": 3, "seconds": 3600.0, "ended": "stopped"},
    ]
    bench.row("base", results=[(5.0, 25.0)], record={"train_s": 14400.0, "earlier_attempts": earlier})
    found = dict(checklist(bench.table()))
    assert found["Exact number of training runs"].endswith("1 training finished (after 1 attempt that ended early)")
    assert found["Runtime"].endswith("; 1.0 hours of it in 1 attempt that ended early")
