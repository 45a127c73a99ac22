"""Set-up of the tests of the front ends."""

import pytest

tvm = pytest.importorskip("tvm")
