"""The garbage collector is paused while a run is read and reported, and then as it was before."""

import gc

import pytest
from click.testing import CliRunner

from asyncli.cli.report import command
from asyncli.model.garbage import uncollected


def test_it_is_paused_within_and_on_again_after_an_error():
    def fail():
        with uncollected():
            with uncollected():
                assert not gc.isenabled()
            # The inner one leaves it as it found it.
            assert not gc.isenabled()
            raise ValueError("within")

    with pytest.raises(ValueError, match="within"):
        fail()
    assert gc.isenabled()


def test_it_stays_off_for_a_caller_who_has_turned_it_off():
    gc.disable()
    try:
        with uncollected():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_is_left_at_last_is_never_looked_at_again():
    class Node:
        pass

    with uncollected(at_last=True):
        node = Node()
        node.itself = node
        del node
    try:
        gc.collect()
        assert not [kept for kept in gc.get_objects() if isinstance(kept, Node)]
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
    found = [kept for kept in gc.get_objects() if isinstance(kept, Node)]
    assert len(found) == 1


def test_a_report_that_cannot_be_read_leaves_it_on(tmp_path):
    result = CliRunner().invoke(command, [str(tmp_path / "no.db")])
    assert result.exception is not None
    assert gc.isenabled()
    gc.unfreeze()
