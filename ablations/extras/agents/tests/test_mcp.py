"""The answers of `ablations mcp` and what a caller may name; system/test_mcp_server.py speaks with the server."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablations.cli.main import verb
from ablations.cli.verbs import verbs
from ablations.extras.agents import mcp
from experiments.errors import UserError


def test_each_tool_calls_a_verb_with_options_that_it_has() -> None:
    for name, tool in mcp.TOOLS.items():
        called, *words = tool["verb"].split()
        known = {option for param in verb(called).params for option in param.opts}
        options = [
            f"--{one.replace('_', '-')}" for one in tool.get("takes", ()) if one not in (*mcp.NO_OPTIONS, *mcp.OURS)
        ]
        assert {*words, *options, "--json"} <= known, name
        assert {*tool.get("next", ())} <= {*mcp.TOOLS} and tool.get("required", 0) <= len(tool.get("takes", ()))


def test_no_tool_deletes_or_edits() -> None:
    changing = {tool["verb"].split()[0] for tool in mcp.TOOLS.values() if tool.get("changes")}
    assert changing == {"run", "cancel"}
    reading = {tool["verb"] for tool in mcp.TOOLS.values() if not tool.get("changes")}
    assert reading == {"studies", "settings", "plan", "status", "log", "report", "explain", "compare", "verify"}
    assert reading < {*verbs()}


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=4), inner, max_size=6),
    max_leaves=30,
)


@given(VALUES, st.integers(2, 300))
def test_pages_hold_the_whole_value_and_none_is_too_long(value: object, limit: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(mcp, "PAGE", limit)
        entries, text, cursor = [], "", 0
        while True:
            shown = mcp.page(value, cursor)
            if "part" in shown:
                assert len(shown["part"]) <= limit
                text += shown["part"]
            else:
                assert len(json.dumps(shown["value"], ensure_ascii=False)) <= limit
                entries += shown["value"] if isinstance(value, list) else [shown["value"]]
            if "cursor" not in shown:
                break
            assert shown["cursor"] > cursor
            cursor = shown["cursor"]
    assert (json.loads(text) if text else entries if isinstance(value, list) else entries[0]) == value


def test_a_cursor_past_the_end_gives_an_empty_page() -> None:
    assert mcp.page([1, 2], 7) == {"value": [], "total": 2}


@given(st.text(max_size=300), st.integers(10, 100))
def test_a_short_text_has_its_ends(text: str, longest: int) -> None:
    shown = mcp.short({"text": text, "gone": 1}, ("gone",), longest)
    assert [*shown] == ["text"] and shown["text"][: longest // 2] == text[: longest // 2]
    assert shown["text"] == text if len(text) <= longest else "characters left out" in shown["text"]


def test_the_price_counts_a_training_once_and_what_is_unknown_is_null() -> None:
    run = {"run_id": "a", "state": "missing", "seconds": 1800.0, "memory_bytes": 5.0, "disk_bytes": 2.0}
    done = {**run, "run_id": "b", "state": "finished", "seconds": None}
    other = {**run, "run_id": "c", "memory_bytes": 9.0}
    found = {"runs": 2, "slot_hours": 1.0, "memory_bytes": 9.0, "disk_bytes": 4.0}
    assert mcp.price([run, run, done, other]) == found
    assert mcp.price([run, {**other, "seconds": None}])["slot_hours"] is None
    assert mcp.price([done]) == {"runs": 0, "slot_hours": 0.0, "memory_bytes": None, "disk_bytes": None}


def test_what_of_a_price_is_unknown_has_a_reason() -> None:
    own = {"run_id": "a", "state": "missing", "seconds": None, "memory_bytes": 0.0, "disk_bytes": 0.0, "cost": 0.0}
    assert {*mcp.price([own])["unknown"]} == {"slot_hours", "memory_bytes", "disk_bytes"}
    built_in = {**own, "memory_bytes": 5.0, "disk_bytes": 2.0, "cost": 1e9}
    assert mcp.price([built_in])["unknown"] == {"slot_hours": mcp.NOT_MEASURED}
    assert mcp.price([own])["unknown"]["slot_hours"] != mcp.NOT_MEASURED  # a trainer whose cost nobody predicts
    assert "unknown" not in mcp.price([{**own, "state": "finished"}])


def test_arguments_have_the_types_of_the_schema() -> None:
    given_ = {"cursor": 1.0, "seeds": 3.0, "max_hours": 2.0, "rows": ["base", "A"], "study": "t"}
    found = mcp.as_declared(given_)
    assert found == {"cursor": 1, "seeds": 3, "max_hours": 2.0, "rows": "base,A", "study": "t"}
    assert [type(found[name]) for name in ("cursor", "seeds", "max_hours")] == [int, int, float]
    assert mcp.page([1, 2, 3], found["cursor"]) == {"value": [2, 3], "total": 3}
    for value in (math.nan, math.inf, -math.inf):
        with pytest.raises(UserError, match="seconds"):
            mcp.as_declared({"seconds": value})


@given(st.text(max_size=30))
def test_a_line_with_half_a_pair_can_be_read_and_any_other_stays(text: str) -> None:
    line = json.dumps({"a": text})
    assert json.loads(mcp.readable(line)) == {"a": text}
    for half in (r"\ud800", r"\uDFFF", r"\ud83d\ud83d"):
        repaired = mcp.readable(line[:-2] + half + line[-2:])
        repaired.encode()  # has no half of a pair
        assert json.loads(repaired)["a"].rstrip(mcp.REPLACEMENT) == text.rstrip(mcp.REPLACEMENT)


SETTINGS_OUTSIDE = [
    "data.corpus=/etc", "data.corpus=../x", "data.corpus=link", "data.corpus=~/x", "rate=/etc/hostname", "rate=../x",
    "rate=a/../../x", "rate=~/x", "rate=~nobody-there/x", "rate=link", "rate=link/x", "rate=file:///etc/hostname",
    "rate=--config=/etc/hostname", 'rate=["/etc/hostname"]', "rate=x;/etc/hostname", "rate=@/etc/hostname",
]  # fmt: skip
SETTINGS_INSIDE = [
    "data.corpus=builtin", "data.corpus=in", "rate=0.5", "rate=1/2", "rate=in", "rate=in/new", "rate=1..2", "rate=a~b",
    "model.encoder=N * (self_attention, feed_forward)", "modules=layers.*.attn -> identity", "rate=https://x.y/z",
]  # fmt: skip


@pytest.mark.parametrize("setting", [*SETTINGS_OUTSIDE, *SETTINGS_INSIDE])
def test_a_setting_that_names_a_path_outside_is_refused(tmp_path, monkeypatch, setting) -> None:
    (tmp_path / "here" / "in").mkdir(parents=True)
    (tmp_path / "here" / "link").symlink_to(tmp_path)
    (tmp_path / "here" / "t.toml").touch()
    monkeypatch.chdir(tmp_path / "here")
    allowed = mcp.Allowed([tmp_path / "here"])
    for study in ("t.toml", str(tmp_path / "here" / "t.toml"), "table3"):
        if setting in SETTINGS_INSIDE:
            allowed.check("plan", {"study": study, "set": ["x=1", setting]})
        else:
            with pytest.raises(UserError, match=r"outside the allowed folders|without it"):
                allowed.check("plan", {"study": study, "set": ["x=1", setting]})


@pytest.mark.parametrize("name", ["study", "corpus", "other", "file", "out"])
@pytest.mark.parametrize("way", ["/etc/hostname", "../x.toml", "in/../../x.md", "link/x.toml", "~/x.toml"])
def test_a_path_outside_is_refused(tmp_path, monkeypatch, name, way) -> None:
    (tmp_path / "here" / "in").mkdir(parents=True)
    (tmp_path / "here" / "link").symlink_to(tmp_path)
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(UserError, match="outside the allowed folders"):
        mcp.Allowed([tmp_path / "here"]).check("report", {name: way})


@pytest.mark.parametrize("text", ["a\x00", "a\nb", "\x1b]0;x\x07", "\x9bm", "\ud800"])
def test_control_characters_are_refused(tmp_path, text) -> None:
    with pytest.raises(UserError, match="not Unicode"):
        mcp.Allowed([tmp_path]).check("start", {"because": mcp.REPLACEMENT})
    for given_ in ({"because": text}, {"runs": ["a", text]}, {"study": text}):
        with pytest.raises(UserError, match="control characters"):
            mcp.Allowed([tmp_path]).check("start", given_)


def test_a_circle_of_extends_ends(tmp_path) -> None:
    (tmp_path / "a.toml").write_text('extends = "a.toml"\n')
    mcp.Allowed([tmp_path]).check("plan", {"study": str(tmp_path / "a.toml")})  # the verb explains it


def test_the_instructions_are_short() -> None:
    assert len((mcp.HERE / "agents.md").read_text(encoding="utf-8").splitlines()) <= 60
