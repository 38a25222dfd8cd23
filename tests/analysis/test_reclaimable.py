"""Memory of the server that the kernel can take back: pages of files that it maps, and pages that it has marked as free."""

from __future__ import annotations

import pytest
from synthetic_run import a_run, raised

from asyncli.analysis.cost import costs
from asyncli.analysis.cost_parts import Costs
from asyncli.model.run import Run

FILES = ("server.file_bytes", "server.file_rss_bytes")


def with_files(run: Run) -> Run:
    """The run with 1 MB of pages of files, and none that are marked as free."""
    for sample in run.samples:
        sample.values |= dict.fromkeys(FILES, 1e6) | {"server.lazyfree_bytes": 0.0}
        if "server.pss_bytes" in sample.values:
            sample.values["server.anon_shmem_bytes"] = sample.values["server.pss_bytes"] - 1e6
    return run


def codes(known: Costs) -> set[str]:
    return {finding.code for finding in known.findings}


MARKED_FREE = ("server.lazyfree_bytes", "server.anon_shmem_bytes", "server.pss_bytes")


@pytest.mark.parametrize("raises", [(*FILES, "server.pss_bytes"), MARKED_FREE])
def test_the_interval_reaches_from_without_it_to_with_it(raises: tuple[str, ...]) -> None:
    usual = costs(with_files(a_run(20_000)))
    assert "reclaimable_rises" not in codes(usual)
    known = costs(raised(with_files(a_run(20_000)), 0.0, *raises, each=16_384.0))
    assert "reclaimable_rises" in codes(known)
    assert usual.server_user is not None
    assert known.server_user is not None
    low, high = known.server_user.ci95
    each = usual.server_user.bytes_per_connection
    assert low == pytest.approx(each, rel=0.1)
    assert high >= each + 16_384.0


def test_pages_of_files_that_others_map_no_more_are_not_the_connections() -> None:
    # PSS of them rises, and resident pages do not.
    known = costs(raised(with_files(a_run(20_000)), 0.0, FILES[0], "server.pss_bytes", each=500.0))
    assert "reclaimable_rises" not in codes(known)
