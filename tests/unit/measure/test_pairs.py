"""Sentence pairs from files, and correlations beside scipy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anynpu.errors import ConfigError, IntegrityError
from anynpu.measure.pairs import pearson, read_pairs, spearman
from anynpu.tasks.space import row_cosines


@pytest.fixture
def file(tmp_path):
    def write(text, name="p.csv"):
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return tmp_path / name

    return write


def test_three_columns_need_no_first_line(file):
    found = read_pairs(file('a cat,"a dog, sitting",1.5\n\nx,y,0\n'))
    assert found.first == ("a cat", "x") and found.second == ("a dog, sitting", "y")
    assert found.scores.tolist() == [1.5, 0.0]


def test_a_first_line_names_the_columns(file):
    found = read_pairs(file('index\tscore\tsentence1\tsentence2\n7\t4.2\ta "b\ta b\n8\t1\tc\td\n', "p.tsv"))
    assert found.first == ('a "b', "c") and found.second == ("a b", "d") and found.scores.tolist() == [4.2, 1.0]


def test_an_unknown_first_line_of_three_columns_is_passed_over(file):
    assert len(read_pairs(file("left,right,gold\na,b,1\n"))) == 1


def test_the_limit_takes_the_first(file):
    assert read_pairs(file("a,b,1\nc,d,2\ne,f,3\n"), 2).first == ("a", "c")


def test_a_byte_order_mark_and_windows_lines_are_no_text(file):
    found = read_pairs(file("\ufeffa,b,1\r\nc,d,2\r\n"))
    assert found.first == ("a", "c") and found.second == ("b", "d")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", ConfigError),
        ("sentence1,sentence2,score\n", ConfigError),
        ("a,b\n", ConfigError),
        ("a,b,c,d\n1,2,3,4\n", ConfigError),
        ("a,b,1\nc,d\n", IntegrityError),
        ("a,b,1\nc,d,high\n", IntegrityError),
        ("a,b,1\nc,d,nan\n", IntegrityError),
        ('a,b,1\nc,"d,2\n', IntegrityError),
        (b"a,b,1\n\xff,d,2\n", IntegrityError),
    ],
)
def test_bad_files_are_refused(file, text, error):
    with pytest.raises(error, match=r"p\.csv"):
        read_pairs(file(text))


def test_other_kinds_of_file_and_no_file_are_refused(file, tmp_path):
    for path in (file("a,b,1\n", "p.txt"), tmp_path / "none.csv"):
        with pytest.raises(ConfigError):
            read_pairs(path)


NUMBERS = st.lists(st.tuples(st.integers(-4, 4), st.floats(-5, 5).map(lambda x: round(x, 1))), min_size=3, max_size=40)


@settings(max_examples=200, deadline=None)
@given(NUMBERS)
def test_correlations_are_those_of_scipy(rows):
    stats = pytest.importorskip("scipy.stats")
    a, b = (np.array(column, float) for column in zip(*rows, strict=True))
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        assert np.isnan(spearman(a, b)) and np.isnan(pearson(a, b))
        return
    assert spearman(a, b) == pytest.approx(stats.spearmanr(a, b).statistic, abs=1e-12)
    assert pearson(a, b) == pytest.approx(stats.pearsonr(a, b).statistic, abs=1e-12)


def test_ties_share_the_mean_of_their_ranks():
    assert spearman(np.array([1, 2, 2, 3]), np.array([1, 2, 3, 4])) == pytest.approx(0.9486832980505138)


def test_numbers_that_differ_by_rounding_only_do_not_vary():
    assert np.isnan(pearson(np.full(50, 0.1) + np.arange(50) * 1e-18, np.arange(50.0)))


def test_cosines_of_rows():
    a, b = np.array([[1.0, 0], [1, 1], [2, 0]]), np.array([[0.0, 3], [2, 2], [-1, 0]])
    assert row_cosines(a, b).tolist() == pytest.approx([0, 1, -1])
    zeros = np.zeros((1, 2))
    assert row_cosines(zeros, zeros).tolist() == [1.0] and row_cosines(zeros, np.ones((1, 2))).tolist() == [0.0]
    assert np.isnan(row_cosines(np.full((1, 2), np.nan), np.ones((1, 2)))).all()
