"""Compare the plan with start-ups that really happened, and write docs/plan-accuracy.md.

    python tools/plan_accuracy.py          # write the page
    python tools/plan_accuracy.py --check  # say whether it is current

The data: tests/fixtures/plan/measured.json (own starts of the engine) and public.json (start-ups that people published).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "collections"))

from ansible_collections.firstlight.sglang.plugins.module_utils import (  # noqa: E402
    _model,
    _plan,
    _plan_defaults,
    _plan_pools,
)

FIXTURES = ROOT / "tests" / "fixtures" / "plan"
PAGE = ROOT / "docs" / "plan-accuracy.md"

# Runs that miss, and why: found in the release's source or in the run's own record.
REASONS: dict[str, str] = {}
