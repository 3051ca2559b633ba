"""For the tests of Skillery and of the plugins beside it."""

pytest_plugins = ["tests.support.parallel", "tests.support.chromium", "tests.support.durations", "tests.support.scale"]
