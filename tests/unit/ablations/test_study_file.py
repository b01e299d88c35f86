"""Each mistake in a study file gives one clear paragraph with the place and what to do."""

import os

import pytest

from ablations.study.study import load_study
from ablations.study.study_file import builtin_studies

ROW = '[[variation]]\nkey = "base"\n'


def test_a_study_needs_no_profile_and_then_has_the_exact_sizes(own_study, rows_of):
    study = own_study(ROW)
    assert list(study.profiles) == [study.default_profile] == ["exact"]
    config = rows_of(study)["base"].config
    assert config == type(config)()


def test_first_profile_is_the_default(own_study):
    assert own_study("[profile.b]\n[profile.a]\n" + ROW).default_profile == "b"


def test_unknown_study_with_nothing_near_lists_all(mistake):
    assert f"'qqqq'. Name a built-in study ({', '.join(builtin_studies())}) or" in mistake(load_study, "qqqq")


@pytest.mark.parametrize("name", ["", ".", "/", "./", "..", "a/", "~"])
def test_a_name_that_no_file_can_have_is_an_unknown_study(mistake, name):
    assert f"There is no study {name!r}" in mistake(load_study, name)


def test_one_pair_of_brackets_in_place_of_two(own_study, mistake):
    assert "write [[variation]] above each entry" in mistake(own_study, '[variation]\nkey = "base"\n')


def test_an_entry_of_a_list_is_counted_from_one(own_study, mistake):
    assert "notes, number 2: it contains" in mistake(own_study, 'notes = ["a", "b\\nc"]\n' + ROW)


def test_name_without_its_ending_points_to_the_file(tmp_path, mistake):
    (tmp_path / "mine.toml").write_text("")
    assert "mine.toml: write its name with the ending" in mistake(load_study, str(tmp_path / "mine"))


def test_missing_file_names_the_builtin_of_that_name(tmp_path, mistake):
    text = mistake(load_study, str(tmp_path / "table3.toml"))
    assert f"no study file {tmp_path / 'table3.toml'}" in text
    assert "built-in study is called table3" in text


def test_folder_in_place_of_a_file(tmp_path, mistake):
    (tmp_path / "x.toml").mkdir()
    assert "cannot be read: Is a directory" in mistake(load_study, str(tmp_path / "x.toml"))


@pytest.mark.parametrize(
    ("text", "line", "column", "what"),
    [
        ('name = "mine"\ntitle = = 3\n', 2, 9, "Invalid value"),
        ('name = "mine"\n[base\n', 2, 6, "Expected ']'"),
        ('name = "mine"\n\ntitle', 3, 6, "Expected '='"),
        ('name = "mine"\nname = "yours"\ntitle = "t"\n', 2, 15, "Cannot overwrite"),
        ("[profile.a]\n[profile.a]\n", 2, 11, "Cannot declare"),
    ],
)
def test_malformed_toml_names_line_and_column(tmp_path, mistake, text, line, column, what):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    message = mistake(load_study, str(path))
    assert message.startswith(f"{path}, line {line}, column {column}: not valid TOML: {what}")


def test_file_that_is_not_utf8_names_the_line(tmp_path, mistake):
    path = tmp_path / "bad.toml"
    path.write_bytes(b'name = "mine"\ntitle = "\xe4"\n')
    assert f"{path}, line 2: this is not UTF-8" in mistake(load_study, str(path))


def test_byte_order_mark_and_windows_line_ends_are_read(tmp_path):
    path = tmp_path / "dos.toml"
    path.write_bytes(b'\xef\xbb\xbfname = "mine"\r\ntitle = "t"\r\n[[variation]]\r\nkey = "base"\r\n')
    assert load_study(str(path)).name == "mine"


@pytest.mark.parametrize("text", ["", "\n# nothing\n"])
def test_empty_file(tmp_path, mistake, text):
    path = tmp_path / "empty.toml"
    path.write_text(text)
    assert f"{path}: the file is empty" in mistake(load_study, str(path))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "the study has no rows"),
        ("seeds = 2\n", "the study has no rows"),
        (ROW + ROW, "the row base appears twice"),
        ("seeds = 0\n" + ROW, "seeds = 0: it must be at least 1"),
        ('seeds = "3"\n' + ROW, 'seeds = "3": expected an integer'),
        ("title2 = 3\n" + ROW, "unknown key `title2`; did you mean `title`"),
        ("[[variaton]]\n" + ROW, "unknown key `variaton`; did you mean `variation`"),
        ('default_profile = "dmo"\n[profile.demo]\n' + ROW, 'default_profile = "dmo" is not declared. Nearest'),
        ("base = 3\n" + ROW, "base: expected a table of settings"),
        ("[base]\nmodel.d_k = 8\n'model.d_k' = 16\n" + ROW, "base: model.d_k is given twice"),
        ("[base]\ntraining.adam_epsilon = inf\n" + ROW, "expected a finite number"),
        (f"seeds = {'9' * 5000}\n" + ROW, "a number has too many digits"),
        (f'[[metric]]\nname = "{"m" * 251}"\n' + ROW, "it may have at most 250 characters"),
        ('[[metric]]\nname = "a\\u0000"\n' + ROW, "it contains a control character"),
        (ROW + "sets = {}\n", 'row "base": unknown key `sets`; did you mean `set`'),
        (ROW + "set = 3\n", 'row "base", set: expected a table of settings'),
        (ROW + "paper = {bleu = 'high'}\n", 'row "base", paper: bleu = "high": expected a number'),
        (ROW + "paper = {bleu = nan}\n", 'row "base", paper: bleu = NaN: expected a finite number'),
        (ROW + "seeds = 0\n", 'row "base": seeds = 0: it must be at least 1'),
        (ROW + "seed_offset = -1\n", 'row "base": seed_offset = -1: it must be at least 0'),
        (ROW + 'label = "two\\nlines"\n', 'row "base", label: it contains a control character'),
        (ROW + "set = {model.d_k = 1}\nfixed = {model.d_k = 2}\n", "model.d_k is in `set` and `fixed`"),
        ("[[variation]]\nset = {}\n", "[[variation]] number 1, key: it is missing"),
        (ROW + '[[variation]]\nkey = "a/b"\n', 'row "a/b": key = "a/b": it must match'),
        (f'[[variation]]\nkey = "{"k" * 65}"\n', "it may have at most 64 characters"),
        ("[profile.x]\nscale = {widht = 2}\n" + ROW, 'profile "x", scale: unknown key `widht`; did you mean'),
        ("[profile.x]\nscale = {width = 0}\n" + ROW, 'profile "x", scale: width = 0: it must be more than 0'),
        ("[profile.x]\nscales = {}\n" + ROW, 'profile "x": unknown key `scales`; did you mean `scale`'),
        ("variation = 3\n", "variation = 3: expected a list"),
        ("profile = 3\n" + ROW, "profile: expected a table"),
        ("profile.x = 3\n" + ROW, 'profile "x": expected a table'),
        ("[profile.'a b']\n" + ROW, 'profile "a b"'),
        ('folder = "x"\n' + ROW, "unknown key `folder`"),
        (ROW + 'code_tree = "x"\n', 'row "base": unknown key `code_tree`'),
    ],
)
def test_what_is_wrong_is_said_with_its_place(own_study, tmp_path, mistake, text, expected):
    message = mistake(own_study, text)
    assert message.startswith(f"{tmp_path / 'mine.toml'}: ")
    assert expected in message
    assert "Input should" not in message, "pydantic's own words are for programmers"


@pytest.mark.parametrize("key", ["../x", "", " a", "a b", "-x", "a,b", "</script>", "=cmd", "é"])
def test_keys_hold_nothing_that_could_harm(own_study, mistake, key):
    assert "it must match" in mistake(own_study, f"[[variation]]\nkey = '{key}'\n")


def test_labels_may_be_any_printable_text(own_study):
    label = "문장 α </script> \\input{x} =cmd"
    assert own_study(f"{ROW}label = '{label}'\n").variations[0].label == label


def test_name_and_title_are_required(tmp_path, mistake):
    path = tmp_path / "x.toml"
    path.write_text(ROW)
    message = mistake(load_study, str(path))
    assert "name: it is missing" in message
    assert "title: it is missing" in message


def test_dotted_and_nested_settings_are_the_same(own_study):
    rows = own_study(
        "[[variation]]\nkey = 'a'\nset = {model.d_k = 8, training.train_steps = 3}\n"
        "[[variation]]\nkey = 'b'\nset = {'model.d_k' = 8, 'training.train_steps' = 3}\n"
        "[[variation]]\nkey = 'c'\n[variation.set.model]\nd_k = 8\n[variation.set.training]\ntrain_steps = 3\n"
    ).variations
    assert rows[0].set == rows[1].set == rows[2].set == {"model.d_k": 8, "training.train_steps": 3}


def test_extends_takes_base_and_profiles_and_the_child_wins(own_study, tmp_path):
    (tmp_path / "parent.toml").write_text(
        'name = "parent"\ntitle = "p"\nseeds = 3\nnotes = ["the parent\'s"]\n[base]\nmodel.d_k = 8\nmodel.d_v = 8\n'
        '[profile.a]\nset = {model.d_ff = 7}\n[profile.b]\n[[variation]]\nkey = "theirs"\n'
    )
    study = own_study('extends = "parent.toml"\n[base]\nmodel.d_k = 16\n[profile.b]\nset = {model.d_ff = 9}\n' + ROW)
    assert study.base == {"model.d_k": 16, "model.d_v": 8}
    assert (study.profiles["a"].set, study.profiles["b"].set) == ({"model.d_ff": 7}, {"model.d_ff": 9})
    assert (study.seeds, study.notes, [row.key for row in study.variations]) == (3, (), ["base"])


@pytest.mark.parametrize(
    "text",
    [
        f"a = {'[' * 5000}{']' * 5000}\n",
        f"a = {'{b = ' * 3000}1{'}' * 3000}\n",
        f"[base]\n{'a.' * 5000}a = 1\n",
        f"[base.{'a.' * 5000}a]\n",
    ],
    ids=["lists", "inline tables", "dotted key", "table"],
)
def test_levels_without_end(own_study, mistake, text):
    assert "nested more than" in mistake(own_study, text)


def test_a_pipe_is_not_waited_for(tmp_path, mistake):
    os.mkfifo(tmp_path / "pipe.toml")
    assert "not a regular file" in mistake(load_study, str(tmp_path / "pipe.toml"))


def test_bytes_that_are_no_text(tmp_path, mistake):
    (tmp_path / "odd.toml").write_bytes(bytes(100))
    assert "line 1" in mistake(load_study, str(tmp_path / "odd.toml"))
    (tmp_path / "odd.toml").write_bytes(b"\xff\xfen\0")
    assert "not UTF-8" in mistake(load_study, str(tmp_path / "odd.toml"))


def test_extends_in_a_circle(own_study, mistake):
    assert "forms a cycle" in mistake(own_study, 'extends = "mine.toml"\n' + ROW)


def test_extends_something_unknown(own_study, mistake):
    assert "no study 'tabel3'" in mistake(own_study, 'extends = "tabel3"\n' + ROW)
    assert "extends = 3" in mistake(own_study, "extends = 3\n" + ROW)


def test_columns_default_to_what_rows_set(own_study):
    row = '[[variation]]\nkey = "a"\nset = {model.d_k = 8}\nfixed = {training.train_steps = 0}\n'
    assert own_study(row).factors == {"model.d_k": "d_k", "training.train_steps": "train_steps"}
    assert own_study('[columns]\nmodel.d_k = "keys"\n' + row).factors == {"model.d_k": "keys"}


def test_base_row_is_the_one_that_changes_nothing(own_study):
    again = '[[variation]]\nkey = "again"\nseed_offset = 5\n'
    assert own_study(again).base_row is None
    assert own_study(again + ROW).base_row.key == "base"


def test_studies_are_frozen(own_study):
    with pytest.raises(ValueError, match="frozen"):
        own_study(ROW).name = "other"
