"""What the tests share: servers, people, packages, models of clients."""
