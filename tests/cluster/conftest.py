"""One search for all tests of the base cluster: it keeps the mixes of the services."""

import pytest

from tvm_sched_cluster import ClusterState, load_cluster, load_services
from tvm_sched_cluster.search.cluster_search import ClusterSearch


@pytest.fixture(scope="session")
def services():
    return load_services()


@pytest.fixture(scope="session")
def base_search():
    return ClusterSearch(load_cluster("rampa-base"))


@pytest.fixture
def base(base_search, services):
    """The base cluster, empty."""
    return ClusterState(base_search.cluster, services, base_search)
