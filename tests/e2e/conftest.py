"""End-to-end tests: a real container, the real engine, playbooks driven through ansible-runner.

The container stays for the whole session; FIRSTLIGHT_KEEP=1 keeps it afterwards, so that a second session is quick.
FIRSTLIGHT_HOST=ready: the container is there and somebody else's to make and to remove.
"""

from __future__ import annotations

import os
import typing as t

import pytest
import testinfra
from driver import Site, run_testhost

PURPOSE = "e2e"


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[Site]:
    ready = os.environ.get("FIRSTLIGHT_HOST") == "ready"
    if not ready:
        run_testhost("create", PURPOSE, "--hostname", "ct129")
    yield Site(tmp_path_factory.mktemp("site"), PURPOSE)
    if not ready and not os.environ.get("FIRSTLIGHT_KEEP"):
        run_testhost("destroy", PURPOSE)


@pytest.fixture(scope="session")
def deployed(site: Site) -> Site:
    """A host on which site.yml has just succeeded."""
    play = site.play()
    assert play.status == "successful", play.output
    return site


@pytest.fixture(scope="session")
def host(site: Site) -> testinfra.host.Host:
    """The host as root sees it."""
    return testinfra.get_host("ssh://ct129", ssh_config=str(site.ssh_config), sudo=True)
