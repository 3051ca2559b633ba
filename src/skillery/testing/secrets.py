"""The contract of Secrets: subclass SecretsContract and provide the fixture `secrets`, and `put` for a read-only
backend."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from skillery.backends import Secrets
from skillery.errors import NotAllowed
from skillery.testing.rules import Contract

VALUES = [
    "x",
    "hunter2-hunter2",
    " spaces around ",
    "-----BEGIN KEY-----\nabc\ndef\n-----END KEY-----\n",
    "quotes ' \" and \\ and % and =",
    "größer 😀 \u2028",
    "\t\x01\x7f",
    "x" * 65_536,
]
Put = Callable[[str, str], None]


class SecretsContract(Contract):
    """The contract: a value is found by its exact name and is unchanged. `repr` of the backend shows no value."""

    @pytest.fixture
    def secrets(self) -> Secrets:
        raise NotImplementedError("provide the fixture `secrets`: an empty backend")

    @pytest.fixture
    def put(self, secrets: Secrets) -> Put:
        """Return the function that sets a value in this backend."""
        return secrets.set

    @pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
    def test_what_goes_in_comes_out(self, secrets: Secrets, put: Put, value: str) -> None:
        """`get` returns exactly the text that was set, with all spaces, lines and characters."""
        put("API_KEY", value)

        assert secrets.get("API_KEY") == value

    def test_what_was_never_set_is_none(self, secrets: Secrets, put: Put) -> None:
        """`get` returns None for a name without a value. Names are compared exactly."""
        put("API_KEY", "value")

        assert secrets.get("OTHER") is None
        assert secrets.get("api_key") is None
        assert secrets.get("API_KEY_2") is None
        assert secrets.get("API") is None

    def test_a_new_value_takes_the_place_of_the_old(self, secrets: Secrets, put: Put) -> None:
        """`set` replaces the present value, and `names` lists the name once."""
        put("API_KEY", "the first")
        put("API_KEY", "the second")

        assert secrets.get("API_KEY") == "the second"
        assert secrets.names() == ["API_KEY"]

    def test_the_names_are_sorted(self, secrets: Secrets, put: Put) -> None:
        """`names` returns the names of all values, sorted by their characters."""
        assert secrets.names() == []
        for name in ("B", "a", "_C", "A"):
            put(name, f"value of {name}")

        assert secrets.names() == ["A", "B", "_C", "a"]

    def test_what_is_removed_is_gone(self, secrets: Secrets, put: Put) -> None:
        """`remove` removes the value and returns True; without a value it returns False."""
        put("API_KEY", "value")
        put("OTHER", "kept")
        if secrets.read_only:
            with pytest.raises(NotAllowed) as refused:
                secrets.remove("API_KEY")
            assert refused.value.hint
            return

        assert secrets.remove("API_KEY") is True
        assert secrets.get("API_KEY") is None
        assert secrets.names() == ["OTHER"]
        assert secrets.remove("API_KEY") is False

    def test_one_that_is_read_only_says_where_values_are_set(self, secrets: Secrets) -> None:
        """A read-only backend raises NotAllowed from `set`, with a hint and without the value."""
        if not secrets.read_only:
            secrets.set("API_KEY", "value")
            return
        with pytest.raises(NotAllowed) as refused:
            secrets.set("API_KEY", "the-value-itself")

        assert refused.value.hint
        assert "the-value-itself" not in f"{refused.value} {refused.value.hint} {refused.value.data}"
        assert secrets.get("API_KEY") is None

    def test_several_ask_at_once(self, secrets: Secrets, put: Put) -> None:
        """Several threads may call `get` at the same time."""
        for number in range(8):
            put(f"NAME_{number}", f"value {number}")
        values: dict[int, str | None] = {}

        def ask(number: int) -> None:
            for _ in range(10):
                values[number] = secrets.get(f"NAME_{number}")

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert values == {number: f"value {number}" for number in range(8)}

    def test_a_backend_does_not_show_a_value(self, secrets: Secrets, put: Put) -> None:
        """The repr and the attributes of the backend do not show a value."""
        put("API_KEY", "the-value-itself")
        secrets.get("API_KEY")

        assert "the-value-itself" not in f"{secrets!r} {secrets} {vars(secrets)}"
