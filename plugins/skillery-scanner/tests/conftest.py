"""The servers and databases of Skillery's own tests."""

from tests.conftest import migrated_postgres_database as migrated_postgres_database
from tests.conftest import postgres as postgres
from tests.conftest import start_server as start_server
