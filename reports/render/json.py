"""JSON: a list with one object per row (see reports/table/row_records.py)."""

import json

from reports.render.records import records
from reports.results.table import Table


def render(table: Table) -> str:
    """Numbers in full; a cell without a number is null. Readable UTF-8, a lone surrogate as its JSON escape."""
    text = json.dumps(records(table, "json")[0], indent=1, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "backslashreplace").decode() + "\n"
