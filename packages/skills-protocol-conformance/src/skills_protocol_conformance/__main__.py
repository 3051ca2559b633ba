"""`python -m skills_protocol_conformance` is the command `skills-protocol-conformance`."""

import sys

from skills_protocol_conformance.cli import main

sys.exit(main())
